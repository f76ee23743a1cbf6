//! Causal attention over a cache, query heads grouped on fewer key heads.

use burn::{module::Module, tensor::Tensor};

use crate::{
    Error,
    cache::SequenceCache,
    layers::{Linear, LinearConfig},
    load::Weights,
    ops,
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
        let [n, _] = x.dims();
        let query = self.query.forward(x.clone()).reshape([n, self.heads, self.head_dim]);
        let key = self.key.forward(x.clone()).reshape([n, self.kv_heads, self.head_dim]);
        let value = self.value.forward(x).reshape([n, self.kv_heads, self.head_dim]);
        let query = ops::rope(query, &positions.cos, &positions.sin).swap_dims(0, 1);
        let key = ops::rope(key, &positions.cos, &positions.sin).swap_dims(0, 1);
        let value = value.swap_dims(0, 1);
        let mixed = spans.iter().zip(caches).map(|(span, cache)| {
            let own = |rows: &Tensor<3>| rows.clone().narrow(1, span.start, span.count);
            let held = cache.len();
            let (keys, values) =
                cache.layers[layer].append(held, own(&key), own(&value), self.context);
            ops::attention(own(&query), keys, values, self.scale)
        });
        let mut mixed: Vec<Tensor<2>> = mixed.collect();
        let mixed = match mixed.len() {
            1 => mixed.remove(0),
            _ => Tensor::cat(mixed, 0),
        };
        self.output.forward(mixed)
    }
}
