//! Phi-3: Llama with fused matrices and, if the file says so, a window on all layers.
//!
//! Files for long contexts ask for `longrope`, which is refused; so are heads of which only a part is
//! rotated.

use super::{
    Family,
    llama::{self, Defaults},
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, TransformerConfig},
    names::Names,
};

pub(super) const FAMILY: Family =
    Family { model_type: "phi3", architecture: "Phi3ForCausalLM", reads: &[], aliases: &[], parse };

const NAMES: Names = Names {
    query_key_value: &["self_attn.qkv_proj"],
    mlp_in: &["mlp.gate_up_proj"],
    ..Names::LLAMA
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults { context: 4096, norm_epsilon: 1e-5, ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 10_000.0)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    let window = windows::size(fields, None)?;
    windows::everywhere(fields, &mut config.layers, window)?;
    Ok(TransformerConfig { names: NAMES, ..config })
}
