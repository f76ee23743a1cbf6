//! Qwen3: Llama with a norm on each query and key head; late layers may have a window.
//!
//! `loop_cfg` = {"start", "end" (exclusive), "K", "damping"} makes it a looped transformer, as in
//! "Training-Free Looped Transformers" (arXiv 2605.23872): the layers from start to end run K times,
//! `u ← (1 − damping)·u + damping·layers(u)`. No published checkpoint has such a field; its user
//! writes it. K = 1 with damping 1 is the plain model, bit for bit.

use super::{
    Family,
    llama::{self, Defaults},
    looped, qwen2, ropes,
};
use crate::{
    Error,
    config::{Fields, HeadNorms, TransformerConfig},
    loops::{LoopConfig, Recurrence},
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
    config.loops = window(fields, config.layers.len())?;
    Ok(TransformerConfig { query_key_norms: HeadNorms::BeforeRope, ..config })
}

/// What `loop_cfg` says.
fn window(fields: Fields<'_>, layers: usize) -> Result<Option<LoopConfig>, Error> {
    let Some(found) = fields.get("loop_cfg") else { return Ok(None) };
    let Some(raw) = found.as_object() else {
        return Err(fields.error("loop_cfg", "an object", found));
    };
    let file = format!("{}: loop_cfg", fields.file);
    let inner = Fields { file: &file, raw, aliases: &[] };
    let (start, end) = (inner.needed_size("start")?, inner.needed_size("end")?);
    if start >= end || end > layers {
        let expected = format!("start < end ≤ {layers} layers");
        return Err(inner.error("end", expected, format!("start {start}, end {end}")));
    }
    let loops = looped::count(inner, "K")?;
    let damping = match inner.number("damping")? {
        None => 1.0 / loops as f64,
        Some(damping) if damping > 0.0 && damping <= 1.0 => damping,
        Some(other) => return Err(inner.error("damping", "a number in (0, 1]", other)),
    };
    let recurrence = Recurrence::Damped(damping as f32);
    Ok(Some(LoopConfig { loops, prelude: start, core: end - start, recurrence, noise: None }))
}
