//! What a model is, from the metadata of its GGUF file.
//!
//! The entries are renamed to what `config.json` calls them, and the family reads them: so one place
//! knows a family's arithmetic. Errors about a value therefore use the name in `config.json`.

use draftproof_kernels::norm::RmsForm;
use serde_json::{Map, Value, json};

use super::{super::tensor_error, header::Header};
use crate::{
    Error,
    config::ModelConfig,
    families,
    layers::NormForm,
    names::Names,
    rope::{RopeConfig, RopeScaling},
};

/// What `general.architecture` means here.
struct Architecture {
    name: &'static str,
    /// The family, as `config.json` names it.
    model_type: &'static str,
    /// Entries beyond the common ones.
    reads: &'static [&'static str],
    /// Whether the two halves of each pair of a query or key head lie side by side.
    interleaved: bool,
    names: Names,
}

const NAMES: Names = Names {
    embedding: "token_embd",
    positions: "position_embd",
    layers: "blk",
    attention_norm: "attn_norm",
    attention_out_norm: "post_attention_norm",
    query_key_value: &["attn_q", "attn_k", "attn_v"],
    query_norm: "attn_q_norm",
    key_norm: "attn_k_norm",
    attention_out: &["attn_output"],
    mlp_norm: "ffn_norm",
    mlp_out_norm: "post_ffw_norm",
    mlp_in: &["ffn_gate", "ffn_up"],
    mlp_out: &["ffn_down"],
    norm: "output_norm",
    head: "output",
    prefix: None,
    transposed: false,
    buffers: &[],
    ..Names::LLAMA
};

/// Of files that keep query, key and value in one tensor, and what is in the feed-forward block (gate
/// and up, or up alone) in another.
const FUSED: Names = Names { query_key_value: &["attn_qkv"], mlp_in: &["ffn_up"], ..NAMES };

/// Frequencies that Llama 3's scaling gives, as a tensor of divisors.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The same for contexts that were stretched (longrope): one set of divisors for short texts, one for
/// long ones.
const LONG_DIVISORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

const WINDOW: &str = "attention.sliding_window";
const LAYER_EPSILON: &str = "attention.layer_norm_epsilon";
const SOFTCAPS: [&str; 3] = [WINDOW, "attn_logit_softcapping", "final_logit_softcapping"];

const ARCHITECTURES: [Architecture; 8] = [
    Architecture {
        name: "llama",
        model_type: "llama",
        reads: &[WINDOW],
        interleaved: true,
        names: Names { buffers: &[ROPE_DIVISORS], ..NAMES },
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        reads: &[],
        interleaved: false,
        names: NAMES,
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        reads: &[],
        interleaved: false,
        names: NAMES,
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        reads: &SOFTCAPS,
        interleaved: false,
        names: NAMES,
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        reads: &SOFTCAPS,
        interleaved: false,
        names: NAMES,
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        reads: &[WINDOW],
        interleaved: false,
        names: FUSED,
    },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        reads: &[],
        interleaved: true,
        names: NAMES,
    },
    Architecture {
        name: "gpt2",
        model_type: "gpt2",
        reads: &[LAYER_EPSILON],
        interleaved: false,
        names: FUSED,
    },
];

/// Entries that all architectures may have.
const COMMON: [&str; 17] = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

/// A model's configuration, and whether rows of query and key lie as llama.cpp wants them.
pub(super) struct Config {
    pub(super) model: ModelConfig,
    pub(super) interleaved: bool,
}

/// `divisors` reads the tensor of rope divisors.
pub(super) fn read(
    header: &Header,
    divisors: impl FnOnce() -> Result<Option<Vec<f32>>, Error>,
) -> Result<Config, Error> {
    const KEY: &str = "general.architecture";
    let found = header.text(KEY)?.unwrap_or("none");
    let Some(architecture) = ARCHITECTURES.iter().find(|known| known.name == found) else {
        let known = ARCHITECTURES.each_ref().map(|known| known.name).join(", ");
        return Err(header.error(KEY, format!("one of {known}"), format!("{found:?}")));
    };
    if let Some(name) = LONG_DIVISORS.into_iter().find(|name| header.tensors.contains_key(*name)) {
        let expected = "no divisors for long contexts (longrope), which are not supported";
        return Err(tensor_error(header.label(), name, expected, "some"));
    }
    refuse_unknown(header, architecture)?;
    let json = Entries { header, architecture: architecture.name }.json(architecture)?;
    let (model_type, mut transformer) = families::parse(header.label(), &json)?;
    transformer.names = architecture.names;
    if transformer.norm == NormForm::Rms(RmsForm::Gemma) {
        // The files have 1 added to these weights.
        transformer.norm = NormForm::Rms(RmsForm::Llama);
    }
    if let Some(divisors) = divisors()? {
        let count = transformer.ropes.len();
        let [rope] = &mut transformer.ropes[..] else {
            return Err(header.error(ROPE_DIVISORS, "one rotation for all layers", count));
        };
        *rope = llama3(header, *rope, transformer.head_dim, &divisors)?;
    }
    let id = |key| -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let id = header.size(&key)?;
        id.map(|id| u32::try_from(id).map_err(|_| header.error(&key, "an id", id))).transpose()
    };
    let model = ModelConfig {
        model_type,
        transformer,
        bos: id("bos")?,
        // The end of a turn ends a text too.
        eos: [id("eos")?, id("eot")?].into_iter().flatten().collect(),
    };
    Ok(Config { model, interleaved: architecture.interleaved })
}

fn refuse_unknown(header: &Header, architecture: &Architecture) -> Result<(), Error> {
    let own =
        |key: &'_ str| key.strip_prefix(architecture.name)?.strip_prefix('.').map(str::to_owned);
    for (key, own) in header.keys().filter_map(|key| Some((key, own(key)?))) {
        if !COMMON.contains(&own.as_str()) && !architecture.reads.contains(&own.as_str()) {
            let expected = format!("an entry that {} models are known to have", architecture.name);
            return Err(header.error(key, expected, "this one"));
        }
    }
    Ok(())
}

/// The entries of an architecture.
#[derive(Clone, Copy)]
struct Entries<'a> {
    header: &'a Header,
    architecture: &'static str,
}

impl Entries<'_> {
    fn key(self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn size(self, key: &str) -> Result<Option<usize>, Error> {
        self.header.size(&self.key(key))
    }

    fn needed(self, key: &str) -> Result<usize, Error> {
        let expected = "a whole number";
        self.size(key)?.ok_or_else(|| self.header.error(&self.key(key), expected, "none"))
    }

    fn number(self, key: &str) -> Result<Option<f64>, Error> {
        self.header.number(&self.key(key))
    }

    fn json(self, architecture: &Architecture) -> Result<Map<String, Value>, Error> {
        let (header, tensors) = (self.header, &self.header.tensors);
        let hidden = self.needed("embedding_length")?;
        let heads = self.needed("attention.head_count")?;
        let layers = self.needed("block_count")?;
        let head_dim = self.head_dim(hidden, heads)?;
        let has = |name: &str| tensors.contains_key(name);
        if self.header.flag(&self.key("attention.causal"))? == Some(false) {
            return Err(header.error(&self.key("attention.causal"), "true", false));
        }
        let table = format!("{}.weight", NAMES.embedding);
        let vocab = tensors.get(&table).map_or(0, |table| table.shape[0]);
        let bias = has("blk.0.attn_q.bias");
        let window = self.size(WINDOW)?;
        let model_type = match (architecture.name, window) {
            // Mistral has no name of its own there.
            ("llama", Some(1..)) => "mistral",
            _ => architecture.model_type,
        };
        let mut json = Map::new();
        let mut put = |field: &str, value: Value| {
            json.insert(families::own_name(model_type, field).into(), value);
        };
        put("model_type", model_type.into());
        put("vocab_size", vocab.into());
        put("hidden_size", hidden.into());
        put("num_hidden_layers", layers.into());
        put("num_attention_heads", heads.into());
        put("num_key_value_heads", self.size("attention.head_count_kv")?.unwrap_or(heads).into());
        put("intermediate_size", self.needed("feed_forward_length")?.into());
        put("head_dim", head_dim.into());
        put("max_position_embeddings", self.needed("context_length")?.into());
        put("tie_word_embeddings", (!has(&format!("{}.weight", NAMES.head))).into());
        let numbers = [
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            ("rms_norm_eps", LAYER_EPSILON),
            ("rope_theta", "rope.freq_base"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ];
        for (field, key) in numbers {
            if let Some(number) = self.number(key)? {
                put(field, number.into());
            }
        }
        if let Some(window) = window {
            // 0 is none, and silence is what the family makes of it.
            put("sliding_window", if window == 0 { Value::Null } else { window.into() });
        }
        if let Some(scaling) = self.scaling()? {
            put("rope_scaling", scaling);
        }
        if architecture.name == "smollm3" {
            // Files do not say which layers do without rotation: it is every fourth in llama.cpp.
            put("no_rope_layer_interval", 4.into());
        }
        match architecture.name {
            "llama" | "smollm3" => {
                put("attention_bias", bias.into());
                put("mlp_bias", has("blk.0.ffn_gate.bias").into());
            }
            "gemma2" | "gemma3" => {
                // Only the models of 27 billion weights do otherwise, and files do not say so.
                let largest =
                    matches!((architecture.name, layers), ("gemma2", 46) | ("gemma3", 62));
                let width = if largest { hidden / heads.max(1) } else { head_dim };
                put("query_pre_attn_scalar", width.into());
            }
            _ => {}
        }
        Ok(json)
    }

    /// The width of a head, which must be that of its key, its value and its rotation.
    fn head_dim(self, hidden: usize, heads: usize) -> Result<usize, Error> {
        let key = self.size("attention.key_length")?;
        let dim = key.or_else(|| hidden.checked_div(heads)).unwrap_or(0);
        for other in ["attention.value_length", "rope.dimension_count"] {
            if let Some(found) = self.size(other)?
                && found != dim
            {
                let expected = format!("{dim}, the width of a head");
                return Err(self.header.error(&self.key(other), expected, found));
            }
        }
        Ok(dim)
    }

    fn scaling(self) -> Result<Option<Value>, Error> {
        let key = self.key("rope.scaling.type");
        let factor = self.number("rope.scaling.factor")?;
        match self.header.text(&key)? {
            None | Some("none") => Ok(None),
            Some("linear") => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            Some("yarn") => {
                let original = self.size("rope.scaling.original_context_length")?;
                Ok(Some(json!({
                    "rope_type": "yarn",
                    "factor": factor,
                    "original_max_position_embeddings": original,
                })))
            }
            Some(found) => {
                let expected = "\"none\", \"linear\" or \"yarn\"";
                Err(self.header.error(&key, expected, format!("{found:?}")))
            }
        }
    }
}

/// Llama 3's scaling from the divisors that a converter made of it: its bands are the same in all
/// models, so the largest divisor tells the rest, and all of them must fit.
fn llama3(
    header: &Header,
    plain: RopeConfig,
    head_dim: usize,
    divisors: &[f32],
) -> Result<RopeConfig, Error> {
    let factor = divisors.iter().copied().fold(1.0, f32::max).into();
    let scaling = RopeScaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
    let scaled = RopeConfig { scaling, ..plain };
    let pairs = plain.frequencies(head_dim).into_iter().zip(scaled.frequencies(head_dim));
    let expected: Vec<f32> = pairs.map(|(plain, scaled)| plain / scaled).collect();
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * b.abs();
    if expected.len() != divisors.len() || !divisors.iter().zip(&expected).all(near) {
        let wanted = "the divisors of Llama 3's rope scaling";
        return Err(tensor_error(header.label(), ROPE_DIVISORS, wanted, "others"));
    }
    Ok(scaled)
}
