//! Causal attention over a cache, query heads grouped on fewer key heads.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use draftproof_kernels::{attention::AttentionRule, burn as kernels, rope::RopeLayout};

use crate::{
    Error,
    cache::{SequenceCache, StoreShape},
    layers::{Linear, LinearsConfig, Norm, NormConfig},
    load::Weights,
    transformer::{Positions, Rotation, Span, Visitor},
};

/// An [`Attention`] in the making.
#[derive(Clone, Debug)]
pub struct AttentionConfig {
    /// The maps to query, key and value.
    pub query_key_value: LinearsConfig<3>,
    /// The map out.
    pub out: LinearsConfig<1>,
    /// Norms of each query and each key head, before they are rotated.
    pub norms: Option<[NormConfig; 2]>,
    /// Heads, scale, window and softcap.
    pub rule: AttentionRule,
    /// Which of the pass's rotations turns queries and keys; None: they stay as they are.
    pub rope: Option<usize>,
    /// The most positions a cache may hold.
    pub context: usize,
}

/// Projections in and out, and what happens between.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    #[module(skip)]
    rule: AttentionRule,
    rope: Option<usize>,
    context: usize,
}

impl AttentionConfig {
    /// Visits every tensor.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        self.query_key_value.tensors(visit)?;
        self.out.tensors(visit)?;
        self.norms.iter().flatten().try_for_each(|norm| norm.tensors(visit))
    }

    /// Loads the maps and norms.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Attention, Error> {
        let [query, key, value] = self.query_key_value.init(weights)?;
        let [out] = self.out.init(weights)?;
        let (query_norm, key_norm) = match &self.norms {
            Some([query, key]) => (Some(query.init(weights)?), Some(key.init(weights)?)),
            None => (None, None),
        };
        let Self { rule, rope, context, .. } = *self;
        Ok(Attention { query, key, value, out, query_norm, key_norm, rule, rope, context })
    }
}

impl Attention {
    /// Appends to layer `layer` of each cache and attends: the rows of all sequences share the
    /// projections, each sequence sees its own cache only.
    ///
    /// # Shapes
    /// - x: `[n, hidden]`, the rows of `spans` one after the other
    /// - output: `[n, hidden]`
    pub fn forward(
        &self,
        x: Tensor<2>,
        layer: usize,
        positions: &Positions,
        spans: &[Span],
        caches: &mut [SequenceCache],
    ) -> Tensor<2> {
        let rotation = self.rope.map(|rope| &positions.rotations[rope]);
        if let ([_], [cache], Some(rotation), None, None) =
            (spans, &mut *caches, rotation, &self.query_norm, &self.key_norm)
        {
            return self.forward_one(x, layer, rotation, cache);
        }
        let weights = [self.query.weight(), self.key.weight(), self.value.weight()];
        let biases = [self.query.bias(), self.key.bias(), self.value.bias()];
        let [query, key, value] = kernels::linear3(x, weights, biases);
        let AttentionRule { heads, kv_heads, .. } = self.rule;
        let query = self.turn(self.split(query, heads), self.query_norm.as_ref(), rotation);
        let key = self.turn(self.split(key, kv_heads), self.key_norm.as_ref(), rotation);
        let value = self.split(value, kv_heads);
        let mixed = spans.iter().zip(caches).map(|(span, cache)| {
            let own = |rows: &Tensor<3>| rows.clone().narrow(0, span.start, span.count);
            self.attend(own(&query), [own(&key), own(&value)], layer, cache)
        });
        self.out.forward(Tensor::cat(mixed.collect(), 0))
    }

    /// `[n, heads · head_dim]` → `[n, heads, head_dim]`.
    fn split(&self, x: Tensor<2>, heads: usize) -> Tensor<3> {
        let [n, _] = x.dims();
        x.reshape([n, heads, self.rule.head_dim])
    }

    /// Norms and rotates heads, as far as this layer does.
    fn turn(
        &self,
        heads: Tensor<3>,
        norm: Option<&Norm>,
        rotation: Option<&Rotation>,
    ) -> Tensor<3> {
        let heads = match norm {
            Some(norm) => norm.forward(heads),
            None => heads,
        };
        match rotation {
            Some(Rotation { cos, sin }) => {
                kernels::rope(heads, cos.clone(), sin.clone(), RopeLayout::HalfSplit)
            }
            None => heads,
        }
    }

    /// The rows of one sequence alone, without norms: the same operations in one go.
    fn forward_one(
        &self,
        x: Tensor<2>,
        layer: usize,
        rotation: &Rotation,
        cache: &mut SequenceCache,
    ) -> Tensor<2> {
        let held = cache.len();
        let end = held + x.dims()[0];
        let layer = &mut cache.layers[layer];
        let stores = layer.take(held, end, self.context, &self.store_shape(x.device()));
        let (y, stores) = kernels::attention_block(
            x,
            [self.query.parts(), self.key.parts(), self.value.parts()],
            self.out.parts(),
            [rotation.cos.clone(), rotation.sin.clone()],
            stores,
            held,
            (self.rule, RopeLayout::HalfSplit),
        );
        layer.put(stores);
        y
    }

    fn store_shape(&self, device: Device) -> StoreShape {
        StoreShape { kv_heads: self.rule.kv_heads, head_dim: self.rule.head_dim, device }
    }

    /// Appends to one sequence's cache and attends over it.
    ///
    /// # Shapes
    /// - query: `[m, heads, head_dim]`; key and value: `[m, kv_heads, head_dim]`
    /// - output: `[m, heads · head_dim]`
    fn attend(
        &self,
        query: Tensor<3>,
        new: [Tensor<3>; 2],
        layer: usize,
        cache: &mut SequenceCache,
    ) -> Tensor<2> {
        let held = cache.len();
        let end = held + query.dims()[0];
        let layer = &mut cache.layers[layer];
        let stores = layer.take(held, end, self.context, &self.store_shape(query.device()));
        let (mixed, stores) = kernels::attention(query, new, stores, held, self.rule);
        layer.put(stores);
        mixed
    }
}
