//! Parcae (arXiv 2604.12946): a prelude, a core that runs `mean_recurrence` times on a state which
//! fades while the prelude's output is fed in, and a coda. Neighbours rotate, then query and key heads
//! are normed; halved squared ReLU without a gate; every second layer adds a row of the token to its
//! values.

use draftproof_kernels::rope::RopeLayout;

use super::{
    Family,
    llama::{self, Defaults},
    looped,
};
use crate::{
    Error,
    config::{Fields, HeadNorms, TransformerConfig},
    loops::{LoopConfig, Recurrence},
    mlp::Function,
    names::Names,
    rope::{RopeConfig, RopeScaling},
};

pub(super) const FAMILY: Family = Family {
    model_type: "parcae",
    architecture: "Parcae",
    reads: &["qk_norm"],
    aliases: &[
        ("hidden_size", "n_embd"),
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
    query_key_value: &["attn.c_q", "attn.c_k", "attn.c_v"],
    attention_out: &["attn.c_proj"],
    mlp_norm: "norm_2",
    mlp_in: &["mlp.fc"],
    mlp_out: &["mlp.proj"],
    norm: "transformer.ln_f",
    buffers: &["freqs_cis"],
    ..Names::LLAMA
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let hidden = fields.needed_size("hidden_size")?;
    looped::only(
        fields,
        &[
            ("block_class_name", "TransformerPreNormBlock".into()),
            ("norm_class_name", "RMSNorm".into()),
            ("mlp_class_name", "BaseMLP".into()),
            ("nonlin_name", "ReLU2".into()),
            ("init_strategy", "scaled-zero".into()),
            ("injection_type", "diagonal".into()),
            ("mup_model_scaling_factor", 1.into()),
            ("bias", false.into()),
            ("qk_bias", false.into()),
            ("qk_norm", true.into()),
            ("prelude_norm", true.into()),
            ("use_abacus", false.into()),
            ("debias_attention", false.into()),
            ("center_attention", false.into()),
            ("recurrent_embedding_dimension", hidden.into()),
            (
                "recurrent_intermediation_embedding_dimension",
                fields.needed_size("intermediate_size")?.into(),
            ),
            ("recurrent_num_attention_heads", fields.needed_size("num_attention_heads")?.into()),
        ],
    )?;
    let [prelude, core, coda] = looped::sections(fields)?;
    let defaults = Defaults { norm_epsilon: 1e-5, tied_head: true, ..Defaults::LLAMA };
    let mut config =
        llama::of_layers(fields, &defaults, vec![rope(fields)?], prelude + core + coda)?;
    // The last layer has a table, and every second one before it.
    let last = config.layers.len().saturating_sub(1);
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.value_table = (index % 2 == last % 2).then_some(index);
    }
    let loops = looped::count(fields, "mean_recurrence")?;
    let like_init = fields.text("state_init")?.is_none_or(|init| init == "like-init");
    let noise = like_init.then_some(looped::std(config.hidden));
    Ok(TransformerConfig {
        rope_layout: RopeLayout::Interleaved,
        query_key_norms: HeadNorms::AfterRope,
        gated: false,
        activation: Function::HalfSquaredRelu,
        logit_softcap: fields.softcap("logit_softcap")?,
        names: NAMES,
        loops: Some(LoopConfig { loops, prelude, core, recurrence: Recurrence::Diagonal, noise }),
        ..config
    })
}

/// What `rope_settings` says.
fn rope(fields: Fields<'_>) -> Result<RopeConfig, Error> {
    let mut theta = 50_000.0;
    if let Some(found) = fields.get("rope_settings") {
        let Some(raw) = found.as_object() else {
            return Err(fields.error("rope_settings", "an object", found));
        };
        let file = format!("{}: rope_settings", fields.file);
        let inner = Fields { file: &file, raw, aliases: &[] };
        looped::only(inner, &[("use_rope", true.into()), ("rope_condense_ratio", 1.into())])?;
        theta = inner.positive("rope_base")?.unwrap_or(theta);
    }
    Ok(RopeConfig { theta, scaling: RopeScaling::None })
}
