//! [`Layers`]: whole layers as one operand.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

use ::burn::{
    backend::{
        Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor,
        DispatchTensorKind, ExtensionType, TensorMetadata, tensor::FloatTensor,
    },
    tensor::{Shape, Tensor},
};

use super::{Bias, Matrix, MatrixOf, RowInvariantOps};
use crate::{
    attention::AttentionRule,
    layers::{Affine, Layer, Norm, Rotated},
};

/// Layers of a transformer that run one after the other, and the norm behind them if there is one.
///
/// A clone is a handle. Weights do not change, so what a backend makes of the tensors it makes once,
/// and a pass hands over one pointer instead of a dozen tensors for each layer.
#[derive(Clone, Debug)]
pub struct Layers(LayersOf<Dispatch>);

impl Layers {
    /// # Panics
    /// When run, if a weight is a view that is not in one piece.
    #[must_use]
    pub fn new(layers: &[Layer<Matrix, Tensor<1>>], then: Option<&Norm<Tensor<1>>>) -> Self {
        let vector = |vector: &Tensor<1>| vector.clone().into_dispatch();
        let matrix = |matrix: &Matrix| matrix.clone().into_dispatch();
        let layers = layers.iter().map(|layer| layer.map(matrix, vector)).collect();
        Self(LayersOf::new(layers, then.map(|then| then.map(vector))))
    }

    pub(super) fn into_dispatch(self) -> LayersOf<Dispatch> {
        self.0
    }
}

/// [`Layers`] on a backend.
#[derive(Debug)]
pub struct LayersOf<B: Backend>(Arc<Parts<B>>);

#[derive(Debug)]
pub(super) struct Parts<B: Backend> {
    pub(super) layers: Vec<Layer<MatrixOf<B>, FloatTensor<B>>>,
    pub(super) then: Option<Norm<FloatTensor<B>>>,
    /// What was made of them once: of dispatched tensors, those of the backend that holds them; beyond
    /// that, whatever the backend likes.
    made: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl<B: Backend> Parts<B> {
    /// What `make` made of these the first time.
    ///
    /// # Panics
    /// If that was of another type.
    pub(super) fn made<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> &T {
        let made = self.made.get_or_init(|| Box::new(make(self)));
        made.downcast_ref().expect("tensors stay on their backend")
    }
}

impl<B: Backend> Clone for LayersOf<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> LayersOf<B> {
    fn new(
        layers: Vec<Layer<MatrixOf<B>, FloatTensor<B>>>,
        then: Option<Norm<FloatTensor<B>>>,
    ) -> Self {
        Self(Arc::new(Parts { layers, then, made: OnceLock::new() }))
    }

    pub(super) fn parts(&self) -> &Parts<B> {
        &self.0
    }
}

impl<B: Backend> ExtensionType<B> for LayersOf<B> {
    type Target = LayersOf<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let vector = |tensor: &FloatTensor<B>| DispatchTensor {
            kind: map_kind(BackendTensor::Float(tensor.clone())),
            autodiff,
        };
        let matrix = |matrix: &MatrixOf<B>| matrix.clone().map_to_dispatch(&map_kind, autodiff);
        let Parts { layers, then, .. } = &*self.0;
        let layers = layers.iter().map(|layer| layer.map(matrix, vector)).collect();
        LayersOf::new(layers, then.as_ref().map(|then| then.map(vector)))
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let own = target.0.made(|Parts { layers, then, .. }| {
            let vector = |tensor: &DispatchTensor| unwrap_kind(tensor.clone()).float();
            let matrix = |matrix: &MatrixOf<Dispatch>| {
                MatrixOf::<B>::map_from_dispatch(matrix.clone(), &unwrap_kind)
            };
            let layers = layers.iter().map(|layer| layer.map(matrix, vector)).collect();
            Self::new(layers, then.as_ref().map(|then| then.map(vector)))
        });
        own.clone()
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        let Parts { layers, then, .. } = &*target.0;
        let norm = layers.first().map(|layer| &layer.attention_norm).or(then.as_ref());
        norm.map(|norm| &norm.weight)
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        Self::routing_tensor(target)
    }
}

/// Any number of tensors, as one operand.
#[derive(Debug)]
pub struct TensorsOf<B: Backend>(pub Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for TensorsOf<B> {
    type Target = TensorsOf<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let kinds = self.0.into_iter().map(|tensor| map_kind(BackendTensor::Float(tensor)));
        TensorsOf(kinds.map(|kind| DispatchTensor { kind, autodiff }).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }
}

fn bias<B: Backend>(affine: &Affine<MatrixOf<B>, FloatTensor<B>>) -> Bias<B> {
    affine.bias.clone().map_or(Bias::None, Bias::Some)
}

/// The layers operation by operation: what a backend runs that has nothing better.
pub(super) fn one_by_one<B: RowInvariantOps>(
    mut x: FloatTensor<B>,
    layers: &LayersOf<B>,
    rotations: &[FloatTensor<B>],
    stores: Vec<FloatTensor<B>>,
    at: usize,
) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
    let Parts { layers, then, .. } = layers.parts();
    let norm = |norm: &Norm<FloatTensor<B>>, x| {
        B::row_rms_norm(x, norm.weight.clone(), norm.epsilon, norm.form)
    };
    let first = layers.first().map(|first| &first.attention_norm).or(then.as_ref());
    let mut normed = first.map(|first| norm(first, x.clone()));
    let add = |x, branch, out_norm: Option<&Norm<FloatTensor<B>>>, next: Option<&Norm<_>>| {
        let branch = match out_norm {
            Some(out_norm) => norm(out_norm, branch),
            None => branch,
        };
        match next {
            Some(Norm { weight, epsilon, form }) => {
                let (x, normed) = B::row_add_rms_norm(
                    x,
                    branch,
                    FloatTensor::<B>::clone(weight),
                    *epsilon,
                    *form,
                );
                (x, Some(normed))
            }
            None => (B::float_add(x, branch), None),
        }
    };
    let (mut stores, mut written) = (stores.into_iter(), Vec::new());
    for (index, layer) in layers.iter().enumerate() {
        let own = [(); 2].map(|()| stores.next().expect("keys and values for each layer"));
        let read = normed.take().expect("a layer has norms");
        let (branch, own) = attend(read, layer, rotations, own, at);
        written.extend(own);
        let next = Some(&layer.mlp_norm);
        (x, normed) = add(x, branch, layer.attention_out_norm.as_ref(), next);
        let read = normed.take().expect("a layer has norms");
        let (gate, up, down) = (&layer.gate, &layer.up, &layer.down);
        let inner = B::row_gated(
            read,
            gate.weight.clone(),
            bias(gate),
            up.weight.clone(),
            bias(up),
            layer.activation,
        );
        let branch = B::row_linear(inner, down.weight.clone(), bias(down));
        let next = layers.get(index + 1).map(|next| &next.attention_norm).or(then.as_ref());
        (x, normed) = add(x, branch, layer.mlp_out_norm.as_ref(), next);
    }
    (normed.unwrap_or(x), written)
}

fn attend<B: RowInvariantOps>(
    x: FloatTensor<B>,
    layer: &Layer<MatrixOf<B>, FloatTensor<B>>,
    rotations: &[FloatTensor<B>],
    [keys, values]: [FloatTensor<B>; 2],
    at: usize,
) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let AttentionRule { heads, kv_heads, head_dim, .. } = layer.rule;
    let rows = x.shape()[0];
    let split = |x, heads| B::float_reshape(x, Shape::from([rows, heads, head_dim]));
    let (query, key, value) = (&layer.query, &layer.key, &layer.value);
    let (query, key, value) = B::row_linear3(
        x,
        query.weight.clone(),
        key.weight.clone(),
        value.weight.clone(),
        bias(query),
        bias(key),
        bias(value),
    );
    let turn = |heads, norm: Option<&Norm<FloatTensor<B>>>| {
        let heads = match norm {
            Some(norm) => B::row_rms_norm(heads, norm.weight.clone(), norm.epsilon, norm.form),
            None => heads,
        };
        match layer.rotated {
            Some(Rotated { by, layout }) => {
                let [cos, sin] = [0, 1].map(|part| rotations[2 * by + part].clone());
                B::row_rope(heads, cos, sin, layout)
            }
            None => heads,
        }
    };
    let norms = layer.head_norms.as_ref();
    let query = turn(split(query, heads), norms.map(|norms| &norms[0]));
    let key = turn(split(key, kv_heads), norms.map(|norms| &norms[1]));
    let value = split(value, kv_heads);
    let (mixed, keys, values) = B::row_attention(query, key, value, keys, values, at, layer.rule);
    let output = &layer.output;
    (B::row_linear(mixed, output.weight.clone(), bias(output)), [keys, values])
}
