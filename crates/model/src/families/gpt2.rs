//! GPT-2: learned positions, layer norms, biases everywhere, no gate, fused query, key and value,
//! and matrices stored the other way round.

use draftproof_kernels::glu::Activation;

use super::{
    Family,
    llama::{self, Defaults},
    windows,
};
use crate::{
    Error,
    config::{Fields, TransformerConfig},
    layers::NormForm,
    mlp::Function,
    names::Names,
};

pub(super) const FAMILY: Family = Family {
    model_type: "gpt2",
    architecture: "GPT2LMHeadModel",
    reads: &[],
    aliases: &[
        ("hidden_size", "n_embd"),
        ("intermediate_size", "n_inner"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
    ],
    parse,
};

const NAMES: Names = Names {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    layers: "transformer.h",
    attention_norm: "ln_1",
    query_key_value: &["attn.c_attn"],
    attention_out: &["attn.c_proj"],
    mlp_norm: "ln_2",
    mlp_in: &["mlp.c_fc"],
    mlp_out: &["mlp.c_proj"],
    norm: "transformer.ln_f",
    prefix: Some("transformer."),
    transposed: true,
    buffers: &[".attn.bias", ".attn.masked_bias"],
    ..Names::LLAMA
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults = Defaults {
        context: 1024,
        norm_epsilon: 1e-5,
        tied_head: true,
        inner: Some(4),
        ..Defaults::LLAMA
    };
    let mut config = llama::plain(fields, &defaults, Vec::new())?;
    for field in ["rope_theta", "rope_scaling", "rope_parameters"] {
        if let Some(found) = fields.get(field) {
            return Err(fields.error(field, "none, since positions are learned", found));
        }
    }
    windows::refuse(fields)?;
    windows::everywhere(fields, &mut config.layers, None)?;
    Ok(TransformerConfig {
        learned_positions: Some(config.context),
        norm: NormForm::Layer,
        query_key_value_bias: true,
        attention_out_bias: true,
        gated: false,
        activation: Function::Kernel(llama::activation(
            fields,
            "hidden_act",
            Activation::GeluTanh,
        )?),
        mlp_bias: true,
        names: NAMES,
        ..config
    })
}
