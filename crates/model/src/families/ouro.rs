//! Ouro (arXiv 2510.25741): all layers run `total_ut_steps` times, with norms behind each block; the
//! normed state is what the next loop gets.
//!
//! The exit gate, which the public code evaluates and then runs all loops regardless, is not used:
//! the law is that of the last loop.

use super::{
    Family,
    llama::{self, Defaults},
    looped, ropes, windows,
};
use crate::{
    Error,
    config::{Fields, OutNorms, TransformerConfig},
    loops::{LoopConfig, Recurrence},
    names::Names,
};

pub(super) const FAMILY: Family =
    Family { model_type: "ouro", architecture: "OuroForCausalLM", reads: &[], aliases: &[], parse };

const NAMES: Names = Names {
    attention_out_norm: "input_layernorm_2",
    mlp_out_norm: "post_attention_layernorm_2",
    buffers: &[
        ".rotary_emb.inv_freq",
        "model.early_exit_gate.weight",
        "model.early_exit_gate.bias",
    ],
    ..Names::LLAMA
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults { context: 65_536, ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 1e6)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    windows::refuse(fields)?;
    windows::everywhere(fields, &mut config.layers, None)?;
    let loops = looped::count(fields, "total_ut_steps")?;
    let core = config.layers.len();
    Ok(TransformerConfig {
        out_norms: OutNorms::Branch,
        names: NAMES,
        loops: Some(LoopConfig {
            loops,
            prelude: 0,
            core,
            recurrence: Recurrence::Normed,
            noise: None,
        }),
        ..config
    })
}
