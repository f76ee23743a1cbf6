//! Causal attention over a cache, query heads grouped on fewer key heads.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use draftproof_kernels::{attention::AttentionRule, burn as kernels, rope::RopeLayout};

use crate::{
    Error,
    cache::{SequenceCache, StoreShape},
    layers::{Linear, LinearConfig},
    load::Weights,
    transformer::{Positions, Span},
};

/// Sizes of an [`Attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
    /// The most positions a cache may hold.
    pub context: usize,
}

/// Projections in and out, and what happens between.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    scale: f64,
}

impl AttentionConfig {
    /// Loads `prefix.{q,k,v,o}_proj`.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights, prefix: &str) -> Result<Attention, Error> {
        let bias = self.bias;
        let query_width = self.heads * self.head_dim;
        let kv_width = self.kv_heads * self.head_dim;
        let query = LinearConfig { input: self.hidden, output: query_width, bias };
        let key = LinearConfig { input: self.hidden, output: kv_width, bias };
        let output = LinearConfig { input: query_width, output: self.hidden, bias };
        Ok(Attention {
            query: query.init(weights, &format!("{prefix}.q_proj"))?,
            key: key.init(weights, &format!("{prefix}.k_proj"))?,
            value: key.init(weights, &format!("{prefix}.v_proj"))?,
            output: output.init(weights, &format!("{prefix}.o_proj"))?,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            context: self.context,
            scale: (self.head_dim as f64).sqrt().recip(),
        })
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
        if let ([_], [cache]) = (spans, &mut *caches) {
            return self.forward_one(x, layer, positions, cache);
        }
        let [n, _] = x.dims();
        let weights = [self.query.weight(), self.key.weight(), self.value.weight()];
        let biases = [self.query.bias(), self.key.bias(), self.value.bias()];
        let [query, key, value] = kernels::linear3(x, weights, biases);
        let rotate = |x: Tensor<2>, heads| {
            let (cos, sin) = (positions.cos.clone(), positions.sin.clone());
            kernels::rope(x.reshape([n, heads, self.head_dim]), cos, sin, RopeLayout::HalfSplit)
        };
        let (query, key) = (rotate(query, self.heads), rotate(key, self.kv_heads));
        let value = value.reshape([n, self.kv_heads, self.head_dim]);
        let mixed = spans.iter().zip(caches).map(|(span, cache)| {
            let own = |rows: &Tensor<3>| rows.clone().narrow(0, span.start, span.count);
            self.attend(own(&query), [own(&key), own(&value)], layer, cache)
        });
        self.output.forward(Tensor::cat(mixed.collect(), 0))
    }

    /// The rows of one sequence alone: the same operations in one go.
    fn forward_one(
        &self,
        x: Tensor<2>,
        layer: usize,
        positions: &Positions,
        cache: &mut SequenceCache,
    ) -> Tensor<2> {
        let held = cache.len();
        let end = held + x.dims()[0];
        let layer = &mut cache.layers[layer];
        let stores = layer.take(held, end, self.context, &self.store_shape(x.device()));
        let (y, stores) = kernels::attention_block(
            x,
            [self.query.parts(), self.key.parts(), self.value.parts()],
            self.output.parts(),
            [positions.cos.clone(), positions.sin.clone()],
            stores,
            held,
            (self.rule(), RopeLayout::HalfSplit),
        );
        layer.put(stores);
        y
    }

    fn rule(&self) -> AttentionRule {
        AttentionRule {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale as f32,
            window: None,
            softcap: None,
        }
    }

    fn store_shape(&self, device: Device) -> StoreShape {
        StoreShape { kv_heads: self.kv_heads, head_dim: self.head_dim, device }
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
        let (mixed, stores) = kernels::attention(query, new, stores, held, self.rule());
        layer.put(stores);
        mixed
    }
}
