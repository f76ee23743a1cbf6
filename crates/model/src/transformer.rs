//! The decoder-only transformer that all families share.
//!
//! ```text
//! ids ─ embedding ─▶ x ─┬─ norm ─ attention ─┬─ norm ─ mlp ─┬─ … ─▶ norm ─ head ─▶ logits
//!                       └───────── + ────────┴────── + ─────┘
//! ```
//! Some families norm what attention and mlp give too, before it is added.
//!
//! A pass serves several sequences: their rows lie one after the other in `[n, hidden]`, go through
//! the linear maps together, and part only in attention, where each sees its own cache.

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use draftproof_kernels::{attention::AttentionRule, burn as kernels};

use crate::{
    Error,
    attention::{Attention, AttentionConfig},
    cache::SequenceCache,
    config::{LayerConfig, TransformerConfig},
    layers::{Embedding, LinearsConfig, Norm, NormConfig},
    load::Weights,
    mlp::{Inward, Mlp, MlpConfig},
};

/// The rows of one sequence within a pass.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its first row.
    pub start: usize,
    /// How many rows it has.
    pub count: usize,
}

/// Where the rows of a pass stand in their texts.
#[derive(Clone, Debug)]
pub struct Positions {
    /// The position of each row, `[n]`.
    pub ids: Tensor<1, Int>,
    /// The rotation of each row, for each of the configuration's ropes.
    pub rotations: Vec<Rotation>,
}

/// The angles of every row of a pass, both `[n, head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Cosines.
    pub cos: Tensor<2>,
    /// Sines.
    pub sin: Tensor<2>,
}

/// Attention, then the feed-forward block, each added to what came in.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: Norm,
    attention: Attention,
    attention_out_norm: Option<Norm>,
    mlp_norm: Norm,
    mlp: Mlp,
    mlp_out_norm: Option<Norm>,
}

/// Embedding, layers, last norm, head.
#[derive(Module, Debug)]
pub struct Transformer {
    embedding: Embedding,
    embedding_scale: f32,
    /// Learned positions.
    positions: Option<Embedding>,
    layers: Vec<Layer>,
    norm: Norm,
    /// None: the embedding is the head.
    head: Option<Embedding>,
    logit_softcap: Option<f32>,
}

/// What is done with the name and the shape of each tensor.
pub type Visitor<'a> = dyn FnMut(&str, &[usize]) -> Result<(), Error> + 'a;

/// A [`Layer`] in the making.
struct LayerParts {
    attention_norm: NormConfig,
    attention: AttentionConfig,
    attention_out_norm: Option<NormConfig>,
    mlp_norm: NormConfig,
    mlp: MlpConfig,
    mlp_out_norm: Option<NormConfig>,
}

impl LayerParts {
    fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        self.attention.tensors(visit)?;
        self.mlp.tensors(visit)?;
        let norms = [&self.attention_norm, &self.mlp_norm];
        let more = [&self.attention_out_norm, &self.mlp_out_norm].into_iter().flatten();
        norms.into_iter().chain(more).try_for_each(|norm| norm.tensors(visit))
    }

    fn init(&self, weights: &mut dyn Weights) -> Result<Layer, Error> {
        let maybe = |norm: &Option<NormConfig>, weights: &mut dyn Weights| {
            norm.as_ref().map(|norm| norm.init(weights)).transpose()
        };
        Ok(Layer {
            attention_norm: self.attention_norm.init(weights)?,
            attention: self.attention.init(weights)?,
            attention_out_norm: maybe(&self.attention_out_norm, weights)?,
            mlp_norm: self.mlp_norm.init(weights)?,
            mlp: self.mlp.init(weights)?,
            mlp_out_norm: maybe(&self.mlp_out_norm, weights)?,
        })
    }
}

impl TransformerConfig {
    /// Calls `visit` with the name and shape of every tensor, and stops at its first error.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        let weight = |name: &str| format!("{name}.weight");
        visit(&weight(self.names.embedding), &[self.vocab, self.hidden])?;
        if let Some(positions) = self.learned_positions {
            visit(&weight(self.names.positions), &[positions, self.hidden])?;
        }
        for layer in 0..self.layers.len() {
            self.layer(layer).tensors(visit)?;
        }
        self.norm(self.names.norm.into(), self.hidden).tensors(visit)?;
        match self.tied_head {
            true => Ok(()),
            false => visit(&weight(self.names.head), &[self.vocab, self.hidden]),
        }
    }

    /// The transformer with its weights.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Transformer, Error> {
        let names = &self.names;
        let table = [self.vocab, self.hidden];
        Ok(Transformer {
            embedding: Embedding::init(weights, names.embedding, table)?,
            embedding_scale: self.embedding_scale,
            positions: match self.learned_positions {
                Some(positions) => {
                    let table = [positions, self.hidden];
                    Some(Embedding::init(weights, names.positions, table)?)
                }
                None => None,
            },
            layers: (0..self.layers.len())
                .map(|layer| self.layer(layer).init(weights))
                .collect::<Result<_, _>>()?,
            norm: self.norm(names.norm.into(), self.hidden).init(weights)?,
            head: match self.tied_head {
                true => None,
                false => Some(Embedding::init(weights, names.head, table)?),
            },
            logit_softcap: self.logit_softcap,
        })
    }

    fn norm(&self, name: String, width: usize) -> NormConfig {
        NormConfig { name, form: self.norm, width, epsilon: self.norm_epsilon }
    }

    fn linears<const N: usize>(
        &self,
        prefix: &str,
        names: &'static [&'static str],
        (input, outputs): (usize, [usize; N]),
        bias: bool,
    ) -> LinearsConfig<N> {
        let (prefix, transposed) = (prefix.into(), self.names.transposed);
        LinearsConfig { prefix, names, input, outputs, bias, transposed }
    }

    fn layer(&self, layer: usize) -> LayerParts {
        let (names, prefix) = (&self.names, self.names.layer(layer));
        let norm = |name| self.norm(format!("{prefix}.{name}"), self.hidden);
        LayerParts {
            attention_norm: norm(names.attention_norm),
            attention: self.attention(&prefix, self.layers[layer]),
            attention_out_norm: self.sandwich_norms.then(|| norm(names.attention_out_norm)),
            mlp_norm: norm(names.mlp_norm),
            mlp: self.mlp(&prefix),
            mlp_out_norm: self.sandwich_norms.then(|| norm(names.mlp_out_norm)),
        }
    }

    fn attention(&self, prefix: &str, layer: LayerConfig) -> AttentionConfig {
        let (names, hidden) = (&self.names, self.hidden);
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let head_norm = |name| self.norm(format!("{prefix}.{name}"), self.head_dim);
        AttentionConfig {
            query_key_value: self.linears(
                prefix,
                names.query_key_value,
                (hidden, [query, key, key]),
                self.query_key_value_bias,
            ),
            out: self.linears(
                prefix,
                names.attention_out,
                (query, [hidden]),
                self.attention_out_bias,
            ),
            norms: self.query_key_norms.then(|| [names.query_norm, names.key_norm].map(head_norm)),
            rule: AttentionRule {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                scale: self.attention_scale,
                window: layer.window,
                softcap: self.attention_softcap,
            },
            rope: layer.rope,
            context: self.context,
        }
    }

    fn mlp(&self, prefix: &str) -> MlpConfig {
        let (names, hidden, inner, bias) =
            (&self.names, self.hidden, self.intermediate, self.mlp_bias);
        let inward = match self.gated {
            true => Inward::Gated(self.linears(prefix, names.mlp_in, (hidden, [inner; 2]), bias)),
            false => Inward::Plain(self.linears(prefix, names.mlp_in, (hidden, [inner]), bias)),
        };
        let out = self.linears(prefix, names.mlp_out, (inner, [hidden]), bias);
        MlpConfig { inward, out, activation: self.activation }
    }
}

impl Transformer {
    /// The bytes of tables of which a pass reads single rows: the embedding, unless it is the head,
    /// and learned positions.
    pub(crate) fn table_bytes(&self) -> u64 {
        let embedding = if self.head.is_some() { self.embedding.bytes() } else { 0 };
        embedding + self.positions.as_ref().map_or(0, Embedding::bytes)
    }

    /// Runs the layers and appends to the caches, whose `len` the caller moves afterwards.
    ///
    /// # Shapes
    /// - ids: `[n]`, the rows of `spans` one after the other
    /// - output: `[n, hidden]`, after the last norm
    pub fn forward(
        &self,
        ids: Tensor<1, Int>,
        positions: &Positions,
        spans: &[Span],
        caches: &mut [SequenceCache],
    ) -> Tensor<2> {
        let mut x = self.embed(ids, positions);
        let Some(first) = self.layers.first() else { return self.norm.forward(x) };
        let mut normed = first.attention_norm.forward(x.clone());
        for (index, layer) in self.layers.iter().enumerate() {
            let attended = layer.attention.forward(normed, index, positions, spans, caches);
            let attended = maybe_norm(layer.attention_out_norm.as_ref(), attended);
            (x, normed) = layer.mlp_norm.forward_sum(x, attended);
            let next = self.layers.get(index + 1).map_or(&self.norm, |next| &next.attention_norm);
            let inner = maybe_norm(layer.mlp_out_norm.as_ref(), layer.mlp.forward(normed));
            (x, normed) = next.forward_sum(x, inner);
        }
        normed
    }

    fn embed(&self, ids: Tensor<1, Int>, positions: &Positions) -> Tensor<2> {
        let mut x = self.embedding.forward(ids);
        if self.embedding_scale != 1.0 {
            x = x.mul_scalar(self.embedding_scale);
        }
        match &self.positions {
            Some(table) => x + table.forward(positions.ids.clone()),
            None => x,
        }
    }

    /// Logits of the first `vocab` ids.
    ///
    /// # Shapes
    /// - x: `[rows, hidden]`, rows of what [`forward`](Self::forward) returned
    /// - output: `[rows, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        let logits = self.head.as_ref().unwrap_or(&self.embedding).logits(x, vocab);
        match self.logit_softcap {
            Some(cap) => kernels::softcap(logits, cap),
            None => logits,
        }
    }
}

fn maybe_norm(norm: Option<&Norm>, x: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}
