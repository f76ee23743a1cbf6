//! Qwen3: Llama with a norm on each query and key head; late layers may have a window.

use super::{
    Family,
    llama::{self, Defaults},
    qwen2, ropes,
};
use crate::{
    Error,
    config::{Fields, TransformerConfig},
};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    reads: &["attention_bias"],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults =
        Defaults { context: 32_768, kv_heads: Some(32), head_dim: Some(128), ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    qwen2::set_windows(fields, &mut config.layers)?;
    Ok(TransformerConfig { query_key_norms: true, ..config })
}
