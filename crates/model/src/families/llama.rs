//! Llama: the plain case that the shared transformer implements as it stands.

use draftproof_kernels::{glu::Activation, norm::RmsForm, rope::RopeLayout};

use super::{Family, ropes, windows};
use crate::{
    Error,
    config::{Fields, HeadNorms, LayerConfig, OutNorms, TransformerConfig},
    layers::NormForm,
    mlp::Function,
    names::Names,
    rope::RopeConfig,
};

pub(super) const FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    reads: &["attention_bias", "mlp_bias"],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = plain(fields, &Defaults::LLAMA, ropes)?;
    windows::refuse(fields)?;
    windows::everywhere(fields, &mut config.layers, None)?;
    Ok(config)
}

/// What an absent field means: transformers' defaults, as far as families differ in them.
pub(super) struct Defaults {
    pub(super) context: usize,
    pub(super) norm_epsilon: f64,
    pub(super) tied_head: bool,
    /// None: as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// None: the heads share the width of the residual stream.
    pub(super) head_dim: Option<usize>,
    /// Width inside the feed-forward block, in widths of the residual stream; None: the file says.
    pub(super) inner: Option<usize>,
}

impl Defaults {
    pub(super) const LLAMA: Self = Self {
        context: 2048,
        norm_epsilon: 1e-6,
        tied_head: false,
        kv_heads: None,
        head_dim: None,
        inner: None,
    };
}

/// The sizes and switches that nearly all families write alike, and Llama's arithmetic; all layers
/// rotate by the first of `ropes`.
pub(super) fn plain(
    fields: Fields<'_>,
    defaults: &Defaults,
    ropes: Vec<RopeConfig>,
) -> Result<TransformerConfig, Error> {
    of_layers(fields, defaults, ropes, fields.layers("num_hidden_layers")?)
}

/// As [`plain`], for files that count their layers in another way.
pub(super) fn of_layers(
    fields: Fields<'_>,
    defaults: &Defaults,
    ropes: Vec<RopeConfig>,
    layers: usize,
) -> Result<TransformerConfig, Error> {
    let hidden = fields.needed_size("hidden_size")?;
    let heads = fields.needed_size("num_attention_heads")?;
    let default = |field, default: Option<usize>| match fields.size(field)? {
        None if !fields.has(field) => Ok(default),
        size => Ok(size),
    };
    let head_dim = match default("head_dim", defaults.head_dim)? {
        Some(dim) => dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a divisor of hidden_size {hidden}");
            return Err(fields.error("num_attention_heads", expected, heads));
        }
    };
    let intermediate = match (fields.size("intermediate_size")?, defaults.inner) {
        (None, Some(times)) => hidden.saturating_mul(times),
        (size, _) => size.map_or_else(|| fields.needed_size("intermediate_size"), Ok)?,
    };
    let rope = (!ropes.is_empty()).then_some(0);
    let layer = LayerConfig { window: None, rope, value_table: None };
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    Ok(TransformerConfig {
        vocab: fields.needed_size("vocab_size")?,
        hidden,
        intermediate,
        layers: vec![layer; layers],
        heads,
        kv_heads: default("num_key_value_heads", defaults.kv_heads)?.unwrap_or(heads),
        head_dim,
        context: fields.size("max_position_embeddings")?.unwrap_or(defaults.context),
        embedding_scale: 1.0,
        learned_positions: None,
        ropes,
        rope_layout: RopeLayout::HalfSplit,
        norm: NormForm::Rms(RmsForm::Llama),
        norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(defaults.norm_epsilon),
        out_norms: OutNorms::None,
        query_key_norms: HeadNorms::None,
        attention_scale: scale(head_dim as f64),
        attention_softcap: None,
        query_key_value_bias: attention_bias,
        query_key_bias: false,
        attention_out_bias: attention_bias,
        gated: true,
        activation: Function::Kernel(activation(fields, "hidden_act", Activation::Silu)?),
        mlp_bias: fields.flag("mlp_bias")?.unwrap_or(false),
        logit_softcap: None,
        tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(defaults.tied_head),
        names: Names::LLAMA,
        loops: None,
    })
}

/// What scores are multiplied by so that `width` products of unit size add up to about 1.
pub(super) fn scale(width: f64) -> f32 {
    width.sqrt().recip() as f32
}

/// The function that `field` names.
pub(super) fn activation(
    fields: Fields<'_>,
    field: &str,
    default: Activation,
) -> Result<Activation, Error> {
    match fields.text(field)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => {
            let expected = "\"silu\", \"gelu_pytorch_tanh\" or \"gelu_new\"";
            Err(fields.error(field, expected, format!("{other:?}")))
        }
    }
}
