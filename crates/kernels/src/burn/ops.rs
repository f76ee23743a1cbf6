//! The extension trait. A body here is what a listed backend runs until it has kernels of its own.

use ::burn::backend::{
    Backend, ExtensionType, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

use super::{
    General,
    layers::{LayersOf, TensorsOf, one_by_one},
};
use crate::{
    attention::AttentionRule, glu::Activation, norm::RmsForm, quant::BlockFormat, rope::RopeLayout,
};

/// A bias, or none.
#[derive(Debug, ExtensionType)]
pub enum Bias<B: Backend> {
    /// No bias.
    None,
    /// `[outputs]`.
    Some(FloatTensor<B>),
}

/// A matrix of weights, `[outputs, inputs]`.
#[derive(Debug, ExtensionType)]
pub enum MatrixOf<B: Backend> {
    /// f32 or bf16.
    Float(FloatTensor<B>),
    /// Blocks of a format: `[outputs, bytes of a row]`, u8.
    Blocks(IntTensor<B>, BlockFormat),
}

impl<B: Backend> Clone for MatrixOf<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Float(weight) => Self::Float(weight.clone()),
            Self::Blocks(bytes, format) => Self::Blocks(bytes.clone(), *format),
        }
    }
}

impl<B: Backend> MatrixOf<B> {
    /// The floats, for backends whose kernels read nothing else.
    ///
    /// # Panics
    /// If these are blocks: they must be expanded when they are loaded.
    #[must_use]
    pub fn floats(self) -> FloatTensor<B> {
        match self {
            Self::Float(weight) => weight,
            Self::Blocks(_, format) => panic!("this backend has no kernel for {format} weights"),
        }
    }
}

/// Operations whose output rows depend on their own inputs only, bit for bit where
/// [`row_invariance`](Self::row_invariance) says so.
///
/// Shapes are those of the functions in [`burn`](crate::burn).
#[backend_extension(Flex: cfg(feature = "cpu"), Cube: cfg(feature = "cube"))]
pub trait RowInvariantOps: Backend {
    /// Whether the backend that holds `probe` keeps the promise.
    fn row_invariance(probe: FloatTensor<Self>) -> bool {
        drop(probe);
        false
    }

    /// `x·Wᵀ + b`.
    fn row_linear(
        x: FloatTensor<Self>,
        #[extension_type] weight: MatrixOf<Self>,
        #[extension_type] bias: Bias<Self>,
    ) -> FloatTensor<Self> {
        General::<Self>::linear(x, weight.floats(), bias)
    }

    /// Three linear maps of one input.
    #[allow(clippy::too_many_arguments, reason = "an extension takes no arrays of tensors")]
    fn row_linear3(
        x: FloatTensor<Self>,
        #[extension_type] weight_a: MatrixOf<Self>,
        #[extension_type] weight_b: MatrixOf<Self>,
        #[extension_type] weight_c: MatrixOf<Self>,
        #[extension_type] bias_a: Bias<Self>,
        #[extension_type] bias_b: Bias<Self>,
        #[extension_type] bias_c: Bias<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (weights, biases) =
            ([weight_a, weight_b, weight_c].map(MatrixOf::floats), [bias_a, bias_b, bias_c]);
        General::<Self>::linear3(x, weights, biases)
    }

    /// `act(x·Gᵀ + g) · (x·Uᵀ + u)`.
    fn row_gated(
        x: FloatTensor<Self>,
        #[extension_type] gate: MatrixOf<Self>,
        #[extension_type] gate_bias: Bias<Self>,
        #[extension_type] up: MatrixOf<Self>,
        #[extension_type] up_bias: Bias<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        General::<Self>::gated(x, (gate.floats(), gate_bias), (up.floats(), up_bias), activation)
    }

    /// `act(gate) · up`.
    fn row_glu(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        General::<Self>::glu(gate, up, activation)
    }

    /// `cap·tanh(x / cap)`.
    fn row_softcap(x: FloatTensor<Self>, cap: f32) -> FloatTensor<Self> {
        General::<Self>::softcap(x, cap)
    }

    /// Root-mean-square norm over the last dimension.
    fn row_rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        form: RmsForm,
    ) -> FloatTensor<Self> {
        General::<Self>::rms_norm(x, weight, epsilon, form)
    }

    /// `residual + x` and its norm.
    fn row_add_rms_norm(
        residual: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
        form: RmsForm,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        General::<Self>::add_rms_norm(residual, x, weight, epsilon, form)
    }

    /// Layer norm over the last dimension.
    fn row_layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        General::<Self>::layer_norm(x, weight, bias, epsilon)
    }

    /// Rotary embedding.
    fn row_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        layout: RopeLayout,
    ) -> FloatTensor<Self> {
        General::<Self>::rope(x, cos, sin, layout)
    }

    /// Rows of a table.
    fn row_embedding(
        #[extension_type] table: MatrixOf<Self>,
        ids: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        General::<Self>::embedding(table.floats(), ids)
    }

    /// New positions into a cache.
    fn row_append(
        cache: FloatTensor<Self>,
        new: FloatTensor<Self>,
        at: usize,
    ) -> FloatTensor<Self> {
        General::<Self>::append(cache, new, at)
    }

    /// Whole layers on the rows of one sequence that holds `at` positions, the norm behind them, and the
    /// stores with the new positions. `rotations` are cosines and sines by turns, `stores` keys and
    /// values. The bits are those of the operations one by one.
    fn row_layers(
        x: FloatTensor<Self>,
        #[extension_type] layers: LayersOf<Self>,
        #[extension_type] rotations: TensorsOf<Self>,
        #[extension_type] stores: TensorsOf<Self>,
        at: usize,
    ) -> (FloatTensor<Self>, Vec<FloatTensor<Self>>) {
        one_by_one(x, &layers, &rotations.0, stores.0, at)
    }

    /// New positions into the caches, and attention from each over its own prefix.
    fn row_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        at: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        General::<Self>::append_and_attend(query, [key, value], [keys, values], at, rule)
    }
}
