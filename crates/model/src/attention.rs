//! Causal attention over a cache, query heads grouped on fewer key heads.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, activation::sigmoid},
};
use draftproof_kernels::{
    attention::AttentionRule, burn as kernels, layers::Rotated, norm::RmsForm, rope::RopeLayout,
};

use crate::{
    Error,
    cache::{SequenceCache, StoreShape},
    layers::{Embedding, Linear, LinearsConfig, Norm, NormConfig, Visit},
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
    /// The tensor with the bias of query and key, if it is one of its own.
    pub query_key_bias: Option<String>,
    /// Norms of each query and each key head.
    pub norms: HeadNormsConfig,
    /// What is added to the values.
    pub value_rows: Option<ValueRowsConfig>,
    /// Heads, scale, window and softcap.
    pub rule: AttentionRule,
    /// Which of the pass's rotations turns queries and keys; None: they stay as they are.
    pub rope: Option<usize>,
    /// Which values of a head are rotated together.
    pub rope_layout: RopeLayout,
    /// The most positions a cache may hold.
    pub context: usize,
}

/// Norms of query and key heads in the making.
#[derive(Clone, Debug)]
pub enum HeadNormsConfig {
    /// None.
    None,
    /// Of query and key, before they are rotated.
    BeforeRope([NormConfig; 2]),
    /// Without weights, after they are rotated.
    AfterRope,
}

/// Rows of tokens that are added to values, in the making.
#[derive(Clone, Debug)]
pub struct ValueRowsConfig {
    /// The map from the first values of a row to a gate for each head.
    pub gate: LinearsConfig<1>,
    /// The name of the table, without `.weight`.
    pub table: String,
    /// Its shape: a row for each id, a value for each value of all heads.
    pub shape: [usize; 2],
}

/// `value + 2·sigmoid(gate(x[..input]))·table[token]`, a gate for each head.
#[derive(Module, Debug)]
pub struct ValueRows {
    gate: Linear,
    table: Embedding,
    /// How many values of a row the gate reads.
    input: usize,
}

impl ValueRowsConfig {
    fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        self.gate.tensors(visit)?;
        visit(&format!("{}.weight", self.table), &self.shape)
    }

    fn init(&self, weights: &mut dyn Weights) -> Result<ValueRows, Error> {
        let [gate] = self.gate.init(weights)?;
        let table = Embedding::init(weights, &self.table, self.shape)?;
        Ok(ValueRows { gate, table, input: self.gate.input })
    }
}

impl ValueRows {
    /// # Shapes
    /// - value: `[n, kv_heads, head_dim]`; x: `[n, hidden]`; tokens: `[n]`
    /// - output: `[n, kv_heads, head_dim]`
    fn add_to(&self, value: Tensor<3>, x: Tensor<2>, tokens: Tensor<1, Int>) -> Tensor<3> {
        let [n, heads, _] = value.dims();
        let gate = self.gate.forward(x.narrow(1, 0, self.input));
        let gate = sigmoid(gate).mul_scalar(2.0).reshape([n, heads, 1]);
        let rows = self.table.forward(tokens).reshape(value.dims());
        value + rows * gate
    }

    /// The bytes of the table.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.bytes()
    }
}

/// An [`Attention`] that kernels can run as a part of a whole layer.
pub(crate) struct Plain<'a> {
    /// Query, key, value, output.
    pub(crate) maps: [&'a Linear; 4],
    /// Of query and key heads, before they are rotated.
    pub(crate) head_norms: Option<(&'a Norm, &'a Norm)>,
    pub(crate) rotated: Option<Rotated>,
    pub(crate) rule: AttentionRule,
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
    norms_after_rope: bool,
    value_rows: Option<ValueRows>,
    #[module(skip)]
    rule: AttentionRule,
    rope: Option<usize>,
    #[module(skip)]
    rope_layout: RopeLayout,
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
        if let Some(name) = &self.query_key_bias {
            visit(name, &self.query_key_bias_shape())?;
        }
        if let HeadNormsConfig::BeforeRope(norms) = &self.norms {
            norms.iter().try_for_each(|norm| norm.tensors(visit))?;
        }
        self.value_rows.as_ref().map_or(Ok(()), |rows| rows.tensors(visit))
    }

    fn query_key_bias_shape(&self) -> [usize; 4] {
        [2, 1, self.rule.heads, self.rule.head_dim]
    }

    /// Loads the maps and norms.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Attention, Error> {
        let [mut query, mut key, value] = self.query_key_value.init(weights)?;
        let [out] = self.out.init(weights)?;
        if let Some(name) = &self.query_key_bias {
            let data = weights.take(name, &self.query_key_bias_shape())?;
            let width = self.rule.heads * self.rule.head_dim;
            let both = Tensor::<4>::from_data(data, weights.device()).reshape([2 * width]);
            query = query.with_bias(both.clone().narrow(0, 0, width));
            key = key.with_bias(both.narrow(0, width, width));
        }
        let (query_norm, key_norm) = match &self.norms {
            HeadNormsConfig::BeforeRope([query, key]) => {
                (Some(query.init(weights)?), Some(key.init(weights)?))
            }
            HeadNormsConfig::None | HeadNormsConfig::AfterRope => (None, None),
        };
        let Self { rule, rope, rope_layout, context, .. } = *self;
        Ok(Attention {
            query,
            key,
            value,
            out,
            query_norm,
            key_norm,
            norms_after_rope: matches!(self.norms, HeadNormsConfig::AfterRope),
            value_rows: self.value_rows.as_ref().map(|rows| rows.init(weights)).transpose()?,
            rule,
            rope,
            rope_layout,
            context,
        })
    }
}

impl Attention {
    /// Those of the projections: the rest is small, or read by single rows.
    pub(crate) fn matrices(&mut self, visit: &mut Visit<'_>) {
        let Self { query, key, value, out, .. } = self;
        [query, key, value, out].into_iter().for_each(|map| map.matrices(visit));
    }

    /// Appends to slot `slot` of each cache and attends: the rows of all sequences share the
    /// projections, each sequence sees its own cache only.
    ///
    /// # Shapes
    /// - x: `[n, hidden]`, the rows of `spans` one after the other
    /// - output: `[n, hidden]`
    pub fn forward(
        &self,
        x: Tensor<2>,
        slot: usize,
        positions: &Positions,
        spans: &[Span],
        caches: &mut [SequenceCache],
    ) -> Tensor<2> {
        let rotation = self.rope.map(|rope| &positions.rotations[rope]);
        let weights = [self.query.weight(), self.key.weight(), self.value.weight()];
        let biases = [self.query.bias(), self.key.bias(), self.value.bias()];
        let [query, key, value] = kernels::linear3(x.clone(), weights, biases);
        let AttentionRule { heads, kv_heads, .. } = self.rule;
        let query = self.turn(self.split(query, heads), self.query_norm.as_ref(), rotation);
        let key = self.turn(self.split(key, kv_heads), self.key_norm.as_ref(), rotation);
        let mut value = self.split(value, kv_heads);
        if let Some(rows) = &self.value_rows {
            value = rows.add_to(value, x, positions.tokens.clone());
        }
        let mixed = spans.iter().zip(caches).map(|(span, cache)| {
            let own = |rows: &Tensor<3>| rows.clone().narrow(0, span.start, span.count);
            self.attend(own(&query), [own(&key), own(&value)], slot, cache)
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
        let heads = match rotation {
            Some([cos, sin]) => kernels::rope(heads, cos.clone(), sin.clone(), self.rope_layout),
            None => heads,
        };
        if !self.norms_after_rope {
            return heads;
        }
        let ones = Tensor::ones([self.rule.head_dim], &heads.device());
        kernels::rms_norm(heads, ones, f32::EPSILON.into(), RmsForm::Llama)
    }

    /// The rows that are added to values, if there are any.
    pub(crate) fn value_rows(&self) -> Option<&ValueRows> {
        self.value_rows.as_ref()
    }

    /// Query, key, value and output maps, the norms of heads, and the rotation, if that is all there is to
    /// this attention beside its rule.
    pub(crate) fn plain(&self) -> Option<Plain<'_>> {
        let Self { query, key, value, out, rope_layout: layout, .. } = self;
        if self.norms_after_rope || self.value_rows.is_some() {
            return None;
        }
        Some(Plain {
            maps: [query, key, value, out],
            head_norms: self.query_norm.as_ref().zip(self.key_norm.as_ref()),
            rotated: self.rope.map(|by| Rotated { by, layout: *layout }),
            rule: self.rule,
        })
    }

    /// Takes the stores of slot `slot` out of a cache, with room up to position `end`, for
    /// [`attend`](Self::attend) or what does the same.
    pub(crate) fn take(
        &self,
        cache: &mut SequenceCache,
        slot: usize,
        end: usize,
        device: Device,
    ) -> [Tensor<3>; 2] {
        let held = cache.len();
        cache.layers[slot].take(held, end, self.context, &self.store_shape(device))
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
        slot: usize,
        cache: &mut SequenceCache,
    ) -> Tensor<2> {
        let held = cache.len();
        let stores = self.take(cache, slot, held + query.dims()[0], query.device());
        let (mixed, stores) = kernels::attention(query, new, stores, held, self.rule);
        cache.layers[slot].put(stores);
        mixed
    }
}
