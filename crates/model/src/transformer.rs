//! The decoder-only transformer that all families share.
//!
//! ```text
//! ids ─ embedding ─▶ x ─┬─ norm ─ attention ─┬─ norm ─ mlp ─┬─ … ─▶ norm ─ head ─▶ logits
//!                       └───────── + ────────┴────── + ─────┘
//! ```
//! A pass serves several sequences: their rows lie one after the other in `[n, hidden]`, go through
//! the linear maps together, and part only in attention, where each sees its own cache.

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};

use crate::{
    Error,
    attention::{Attention, AttentionConfig},
    cache::SequenceCache,
    config::TransformerConfig,
    layers::{Embedding, RmsNorm, RmsNormConfig},
    load::Weights,
    mlp::{Mlp, MlpConfig},
};

/// The rows of one sequence within a pass.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its first row.
    pub start: usize,
    /// How many rows it has.
    pub count: usize,
}

/// The rotation of every row of a pass, both `[n, head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct Positions {
    /// Cosines.
    pub cos: Tensor<2>,
    /// Sines.
    pub sin: Tensor<2>,
}

/// Attention, then the feed-forward block, each added to what came in.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// Embedding, layers, last norm, head.
#[derive(Module, Debug)]
pub struct Transformer {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// None: the embedding is the head.
    head: Option<Embedding>,
}

/// What is done with the name and the shape of each tensor.
pub type Visitor<'a> = dyn FnMut(&str, &[usize]) -> Result<(), Error> + 'a;

const EMBEDDING: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm";
/// The head's name, which tied checkpoints may carry too.
pub(crate) const HEAD: &str = "lm_head.weight";
/// The embedding's name.
pub(crate) const TIED: &str = EMBEDDING;

impl TransformerConfig {
    /// Calls `visit` with the name and shape of every tensor, in the order of [`init`](Self::init),
    /// and stops at its first error.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (query, key) = (self.query_width(), self.kv_width());
        visit(EMBEDDING, &[self.vocab, hidden])?;
        for layer in 0..self.layers {
            let prefix = layer_prefix(layer);
            let linears = [
                ("self_attn.q_proj", query, hidden, self.attention_bias),
                ("self_attn.k_proj", key, hidden, self.attention_bias),
                ("self_attn.v_proj", key, hidden, self.attention_bias),
                ("self_attn.o_proj", hidden, query, self.attention_bias),
                ("mlp.gate_proj", inner, hidden, self.mlp_bias),
                ("mlp.up_proj", inner, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, inner, self.mlp_bias),
            ];
            for (name, output, input, bias) in linears {
                visit(&format!("{prefix}.{name}.weight"), &[output, input])?;
                if bias {
                    visit(&format!("{prefix}.{name}.bias"), &[output])?;
                }
            }
            for name in ["input_layernorm", "post_attention_layernorm"] {
                visit(&format!("{prefix}.{name}.weight"), &[hidden])?;
            }
        }
        visit(&format!("{NORM}.weight"), &[hidden])?;
        if !self.tied_head {
            visit(HEAD, &[self.vocab, hidden])?;
        }
        Ok(())
    }

    /// The transformer with its weights.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Transformer, Error> {
        let table = [self.vocab, self.hidden];
        Ok(Transformer {
            embedding: Embedding::init(weights, EMBEDDING, table)?,
            layers: (0..self.layers)
                .map(|layer| self.init_layer(weights, &layer_prefix(layer)))
                .collect::<Result<_, _>>()?,
            norm: self.norm().init(weights, NORM)?,
            head: match self.tied_head {
                true => None,
                false => Some(Embedding::init(weights, HEAD, table)?),
            },
        })
    }

    fn norm(&self) -> RmsNormConfig {
        RmsNormConfig { width: self.hidden, epsilon: self.norm_epsilon }
    }

    fn init_layer(&self, weights: &mut dyn Weights, prefix: &str) -> Result<Layer, Error> {
        let attention = AttentionConfig {
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            bias: self.attention_bias,
            context: self.context,
        };
        let mlp =
            MlpConfig { hidden: self.hidden, intermediate: self.intermediate, bias: self.mlp_bias };
        Ok(Layer {
            attention_norm: self.norm().init(weights, &format!("{prefix}.input_layernorm"))?,
            attention: attention.init(weights, &format!("{prefix}.self_attn"))?,
            mlp_norm: self.norm().init(weights, &format!("{prefix}.post_attention_layernorm"))?,
            mlp: mlp.init(weights, &format!("{prefix}.mlp"))?,
        })
    }
}

fn layer_prefix(layer: usize) -> String {
    format!("model.layers.{layer}")
}

impl Transformer {
    /// The bytes of the embedding.
    pub(crate) fn embedding_bytes(&self) -> u64 {
        self.embedding.bytes()
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
        let x = self.embedding.forward(ids);
        let Some(first) = self.layers.first() else { return self.norm.forward(x) };
        let mut normed = first.attention_norm.forward(x.clone());
        let mut x = x;
        for (index, layer) in self.layers.iter().enumerate() {
            let attended = layer.attention.forward(normed, index, positions, spans, caches);
            (x, normed) = layer.mlp_norm.forward_sum(x, attended);
            let next = self.layers.get(index + 1).map_or(&self.norm, |next| &next.attention_norm);
            (x, normed) = next.forward_sum(x, layer.mlp.forward(normed));
        }
        normed
    }

    /// Logits of the first `vocab` ids.
    ///
    /// # Shapes
    /// - x: `[rows, hidden]`, rows of what [`forward`](Self::forward) returned
    /// - output: `[rows, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        self.head.as_ref().unwrap_or(&self.embedding).logits(x, vocab)
    }
}
