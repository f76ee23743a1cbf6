//! Gemma 3, text only: Gemma 2 with a norm on each query and key head instead of bounds, and with a
//! rotation of their own for layers that have a window.

use super::{
    Family,
    gemma2::{DEFAULTS, gemma},
    llama::Defaults,
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, HeadNorms, TransformerConfig},
};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    reads: &[
        "attention_bias",
        "hidden_activation",
        "query_pre_attn_scalar",
        "final_logit_softcapping",
        "rope_local_base_freq",
        "sliding_window_pattern",
        "_sliding_window_pattern",
    ],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let ropes = ropes::global_and_local(fields, [1_000_000.0, 10_000.0])?;
    let defaults = Defaults { context: 131_072, ..DEFAULTS };
    let mut config = gemma(fields, &defaults, ropes.into())?;
    let period = match fields.size("sliding_window_pattern")? {
        Some(period) => period,
        None => fields.size("_sliding_window_pattern")?.unwrap_or(6),
    };
    if period == 0 {
        return Err(fields.error("sliding_window_pattern", "at least 1", period));
    }
    let window = windows::size(fields, Some(4096))?;
    windows::set(fields, &mut config.layers, window, |layer| !(layer + 1).is_multiple_of(period))?;
    for layer in &mut config.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    Ok(TransformerConfig {
        query_key_norms: HeadNorms::BeforeRope,
        logit_softcap: fields.softcap("final_logit_softcapping")?,
        ..config
    })
}
