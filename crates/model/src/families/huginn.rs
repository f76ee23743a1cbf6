//! Huginn (arXiv 2502.05171): a prelude, a core that runs `mean_recurrence` times on a state and the
//! prelude's output, and a coda. Norms behind each sum; biases of query and key; neighbours rotate.

use draftproof_kernels::rope::RopeLayout;

use super::{
    Family,
    llama::{self, Defaults},
    looped,
};
use crate::{
    Error,
    config::{Fields, OutNorms, TransformerConfig},
    loops::{LoopConfig, Recurrence},
    names::Names,
    rope::{RopeConfig, RopeScaling},
};

pub(super) const FAMILY: Family = Family {
    model_type: "huginn_raven",
    architecture: "RavenForCausalLM",
    reads: &[],
    aliases: &[
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_heads"),
        ("max_position_embeddings", "block_size"),
        ("rms_norm_eps", "norm_eps"),
        ("vocab_size", "padded_vocab_size"),
        ("tie_word_embeddings", "tie_embeddings"),
    ],
    parse,
};

const NAMES: Names = Names {
    embedding: "transformer.wte",
    sections: Some(["transformer.prelude", "transformer.core_block", "transformer.coda"]),
    attention_norm: "norm_1",
    attention_out_norm: "norm_2",
    query_key_value: &["attn.Wqkv"],
    query_key_bias: "attn.qk_bias",
    attention_out: &["attn.proj"],
    mlp_norm: "norm_3",
    mlp_out_norm: "norm_4",
    mlp_in: &["mlp.fc"],
    mlp_out: &["mlp.proj"],
    norm: "transformer.ln_f",
    buffers: &["freqs_cis"],
    ..Names::LLAMA
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    looped::only(
        fields,
        &[
            ("block_class_name", "SandwichBlock".into()),
            ("norm_class_name", "RMSNorm_llama".into()),
            ("mlp_class_name", "GatedMLP".into()),
            ("nonlin_name", "SiLU".into()),
            ("injection_type", "linear".into()),
            ("bias", false.into()),
            ("qk_bias", true.into()),
            ("test_time_noise", 0.into()),
        ],
    )?;
    let [prelude, core, coda] = looped::sections(fields)?;
    let theta = fields.positive("rope_base")?.unwrap_or(50_000.0);
    let ropes = vec![RopeConfig { theta, scaling: RopeScaling::None }];
    let defaults = Defaults { context: 4096, tied_head: true, ..Defaults::LLAMA };
    let config = llama::of_layers(fields, &defaults, ropes, prelude + core + coda)?;
    let init = |name: &str| fields.get("init_values")?.get(name)?.as_f64();
    let scale = init("embed_scale").unwrap_or((config.hidden as f64).sqrt());
    // With a deviation of 0 or below the public code begins with zeros.
    let std = init("std").unwrap_or(looped::std(config.hidden));
    let noise = Some(std * scale).filter(|_| std > 0.0);
    let loops = looped::count(fields, "mean_recurrence")?;
    Ok(TransformerConfig {
        embedding_scale: scale as f32,
        rope_layout: RopeLayout::Interleaved,
        out_norms: OutNorms::Sum,
        query_key_bias: true,
        names: NAMES,
        loops: Some(LoopConfig { loops, prelude, core, recurrence: Recurrence::Adapter, noise }),
        ..config
    })
}
