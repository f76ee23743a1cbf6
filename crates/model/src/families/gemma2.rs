//! Gemma 2: norms that multiply by `1 + weight`, also behind each block; a scaled embedding; GELU;
//! a window on every second layer; scores and logits bent below a bound.

use draftproof_kernels::{glu::Activation, norm::RmsForm};
use half::{bf16, f16};

use super::{
    Family,
    llama::{self, Defaults},
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, OutNorms, TransformerConfig},
    layers::NormForm,
    mlp::Function,
    names::Names,
    rope::RopeConfig,
};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    reads: &[
        "attention_bias",
        "hidden_activation",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    aliases: &[],
    parse,
};

const NAMES: Names = Names { mlp_norm: "pre_feedforward_layernorm", ..Names::LLAMA };

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults { context: 8192, ..DEFAULTS };
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = gemma(fields, &defaults, ropes)?;
    let window = windows::size(fields, Some(4096))?;
    windows::set(fields, &mut config.layers, window, |layer| layer.is_multiple_of(2))?;
    let cap = |field: &str, default: f32| match fields.softcap(field)? {
        None if !fields.has(field) => Ok::<_, Error>(Some(default)),
        cap => Ok(cap),
    };
    Ok(TransformerConfig {
        attention_softcap: cap("attn_logit_softcapping", 50.0)?,
        logit_softcap: cap("final_logit_softcapping", 30.0)?,
        ..config
    })
}

/// What Gemma 2 and 3 have in common.
pub(super) const DEFAULTS: Defaults =
    Defaults { tied_head: true, kv_heads: Some(4), head_dim: Some(256), ..Defaults::LLAMA };

/// What Gemma 2 and 3 have in common, without windows.
pub(super) fn gemma(
    fields: Fields<'_>,
    defaults: &Defaults,
    ropes: Vec<RopeConfig>,
) -> Result<TransformerConfig, Error> {
    let config = llama::plain(fields, defaults, ropes)?;
    let activation = llama::activation(fields, "hidden_activation", Activation::GeluTanh)?;
    // The older field, which only counts where it is the only one.
    if let Some(found) = fields.get("hidden_act")
        && llama::activation(fields, "hidden_act", activation)? != activation
    {
        return Err(fields.error("hidden_act", "the same as hidden_activation", found));
    }
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(TransformerConfig {
        embedding_scale: embedding_scale(fields, config.hidden)?,
        norm: NormForm::Rms(RmsForm::Gemma),
        out_norms: OutNorms::Branch,
        attention_scale: llama::scale(scalar),
        activation: Function::Kernel(activation),
        names: NAMES,
        ..config
    })
}

/// The root of the width, rounded to the type that the file says the model computes in: so it was
/// when the model was trained.
fn embedding_scale(fields: Fields<'_>, hidden: usize) -> Result<f32, Error> {
    let root = (hidden as f64).sqrt() as f32;
    let field = if fields.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    match fields.text(field)? {
        None | Some("float32") => Ok(root),
        Some("bfloat16") => Ok(bf16::from_f32(root).to_f32()),
        Some("float16") => Ok(f16::from_f32(root).to_f32()),
        Some(other) => {
            let expected = "\"float32\", \"bfloat16\" or \"float16\"";
            Err(fields.error(field, expected, format!("{other:?}")))
        }
    }
}
