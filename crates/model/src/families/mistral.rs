//! Mistral: Llama with a sliding window on all layers.

use super::{
    Family,
    llama::{self, Defaults},
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, TransformerConfig},
};

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    reads: &[],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults { context: 4096 * 32, kv_heads: Some(8), ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    let window = windows::size(fields, Some(4096))?;
    windows::everywhere(fields, &mut config.layers, window)?;
    Ok(config)
}
