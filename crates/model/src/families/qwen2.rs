//! Qwen2: Llama with a bias on query, key and value; late layers may have a window.

use super::{
    Family,
    llama::{self, Defaults},
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, LayerConfig, TransformerConfig},
};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    reads: &[],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults { context: 32_768, kv_heads: Some(32), ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    set_windows(fields, &mut config.layers)?;
    Ok(TransformerConfig { query_key_value_bias: true, ..config })
}

/// The window, if it is switched on, is for the layers from `max_window_layers` on.
pub(super) fn set_windows(fields: Fields<'_>, layers: &mut [LayerConfig]) -> Result<(), Error> {
    let full = fields.size("max_window_layers")?.unwrap_or(28);
    let window = windows::switched_size(fields, Some(4096))?;
    windows::set(fields, layers, window, |layer| layer >= full)
}
