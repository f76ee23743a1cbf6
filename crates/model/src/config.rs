//! `config.json`: the file's own layout on one side, what a transformer needs on the other.
//!
//! Each family reads its JSON ([`families`]) and gives a [`TransformerConfig`],
//! which is checked here once: after that no size is zero, nothing overflows and nothing is left
//! that would have to be ignored. Both of today's layouts are read, the hub's (`rope_theta`,
//! `rope_scaling`, `torch_dtype`) and transformers 5's (`rope_parameters`, `layer_types`, `dtype`).

use draftproof_kernels::rope::RopeLayout;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Error, families, layers::NormForm, loops::LoopConfig, mlp::Function, names::Names,
    rope::RopeConfig,
};

/// Positions are computed in f32, which holds every integer up to here.
const MAX_CONTEXT: usize = 1 << 24;

/// More than any model has; what is told of each layer takes memory before the weights are seen.
pub(crate) const MAX_LAYERS: usize = 1 << 16;

/// What a `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family, as `model_type` names it.
    pub model_type: String,
    /// Sizes and arithmetic.
    pub transformer: TransformerConfig,
    /// The id that begins a text.
    pub bos: Option<u32>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
}

/// Sizes and arithmetic of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Rows of the embedding and of the head, padding included.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward block.
    pub intermediate: usize,
    /// What is special about each layer.
    pub layers: Vec<LayerConfig>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query heads share them in groups.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The most positions.
    pub context: usize,
    /// What rows of the embedding are multiplied by; 1 for most.
    pub embedding_scale: f32,
    /// Rows of a table of learned positions, which are added to the embedding; None: there is none.
    pub learned_positions: Option<usize>,
    /// Rotary positions, of which each layer uses one.
    pub ropes: Vec<RopeConfig>,
    /// Which values of a head are rotated together.
    pub rope_layout: RopeLayout,
    /// The form of every norm.
    pub norm: NormForm,
    /// Added to the mean square (or the variance) in every norm.
    pub norm_epsilon: f64,
    /// Whether there are norms behind attention and the feed-forward block, and of what.
    pub out_norms: OutNorms,
    /// Whether and where each query and key head is normed.
    pub query_key_norms: HeadNorms,
    /// What attention scores are multiplied by.
    pub attention_scale: f32,
    /// Bends attention scores below this bound.
    pub attention_softcap: Option<f32>,
    /// Whether query, key and value have a bias.
    pub query_key_value_bias: bool,
    /// Whether query and key have a bias that lies in a tensor of its own.
    pub query_key_bias: bool,
    /// Whether the map out of attention has a bias.
    pub attention_out_bias: bool,
    /// Whether the feed-forward block is gated: `out(act(gate(x)) · up(x))`, else `out(act(up(x)))`.
    pub gated: bool,
    /// The function inside the feed-forward block.
    pub activation: Function,
    /// Whether the maps of the feed-forward block have a bias.
    pub mlp_bias: bool,
    /// Bends logits below this bound.
    pub logit_softcap: Option<f32>,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// What the tensors are called.
    pub names: Names,
    /// Which layers run several times, and what happens between; None: each runs once.
    pub loops: Option<LoopConfig>,
}

/// What is normed behind attention and the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutNorms {
    /// Nothing.
    None,
    /// What the block gives, before it is added to the residual stream: `x + norm(block(…))`.
    Branch,
    /// The residual stream, after the block was added: `norm(x + block(…))`.
    Sum,
}

/// Where query and key heads are normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// Nowhere.
    None,
    /// Before they are rotated, with weights.
    BeforeRope,
    /// After they are rotated, without weights, and with the smallest step of f32 as epsilon.
    AfterRope,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// How many positions a row sees at most, its own included.
    pub window: Option<usize>,
    /// Which of [`ropes`](TransformerConfig::ropes) rotates queries and keys; None: none does.
    pub rope: Option<usize>,
    /// The number of the table of which the token's row is added to the values, weighed by a gate for
    /// each head; None: none is.
    pub value_table: Option<usize>,
}

impl ModelConfig {
    /// Reads a `config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// If it is no JSON object, of an unknown family, or asks for what is not supported.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let raw: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|source| Error::json(file, source))?;
        let common: Common = read(file, &raw)?;
        let (model_type, transformer) = families::parse(file, &raw)?;
        Ok(Self {
            model_type,
            transformer,
            bos: common.bos_token_id,
            eos: common.eos_token_id.map(Ids::into_vec).unwrap_or_default(),
        })
    }
}

#[derive(Deserialize)]
struct Common {
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
}

/// One id or several, as `eos_token_id` is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected an id from 0 to 4294967295, or a list of ids")]
pub(crate) enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Reads a family's fields out of the object; fields it does not name are left.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(
    file: &str,
    raw: &Map<String, Value>,
) -> Result<T, Error> {
    T::deserialize(raw).map_err(|source| Error::json(file, source))
}

/// The fields of a `config.json`. A field that is null is as one that is not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    /// What errors call the file.
    pub(crate) file: &'a str,
    pub(crate) raw: &'a Map<String, Value>,
    /// Names used here, each with the one that the file has instead.
    pub(crate) aliases: &'a [(&'static str, &'static str)],
}

impl<'a> Fields<'a> {
    fn name(self, field: &str) -> &str {
        self.aliases.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs)
    }

    /// Whether the file has the field, be it null.
    pub(crate) fn has(self, field: &str) -> bool {
        self.raw.contains_key(self.name(field))
    }

    pub(crate) fn get(self, field: &str) -> Option<&'a Value> {
        self.raw.get(self.name(field)).filter(|value| !value.is_null())
    }

    pub(crate) fn error(
        self,
        field: &str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Error {
        Error::field(self.file, self.name(field), expected, found)
    }

    fn read<T>(
        self,
        field: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.error(field, expected, value))
    }

    /// A whole number from 0.
    pub(crate) fn size(self, field: &str) -> Result<Option<usize>, Error> {
        let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
        self.read(field, "a whole number", size)
    }

    /// A whole number that must be there.
    pub(crate) fn needed_size(self, field: &str) -> Result<usize, Error> {
        self.size(field)?.ok_or_else(|| self.error(field, "a whole number", "none"))
    }

    pub(crate) fn number(self, field: &str) -> Result<Option<f64>, Error> {
        self.read(field, "a number", Value::as_f64)
    }

    pub(crate) fn positive(self, field: &str) -> Result<Option<f64>, Error> {
        let positive = |number: &f64| *number > 0.0 && number.is_finite();
        self.read(field, "a positive number", |value| value.as_f64().filter(positive))
    }

    /// A bound that scores or logits are bent below.
    pub(crate) fn softcap(self, field: &str) -> Result<Option<f32>, Error> {
        let cap = |value: &Value| value.as_f64().map(|cap| cap as f32);
        let positive = |cap: &f32| *cap > 0.0 && cap.is_finite();
        self.read(field, "a positive number", |value| cap(value).filter(positive))
    }

    pub(crate) fn flag(self, field: &str) -> Result<Option<bool>, Error> {
        self.read(field, "true or false", Value::as_bool)
    }

    pub(crate) fn text(self, field: &str) -> Result<Option<&'a str>, Error> {
        self.read(field, "a string", Value::as_str)
    }

    pub(crate) fn list(self, field: &str) -> Result<Option<&'a [Value]>, Error> {
        self.read(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// The number of layers, small enough to keep a list of them.
    pub(crate) fn layers(self, field: &str) -> Result<usize, Error> {
        let layers = self.needed_size(field)?;
        match layers {
            1..=MAX_LAYERS => Ok(layers),
            _ => Err(self.error(field, format!("from 1 to {MAX_LAYERS} layers"), layers)),
        }
    }

    /// Refuses fields that would change the arithmetic and that this family does not honour (those
    /// it does are `read`), unless they are absent, null or the value that changes nothing.
    pub(crate) fn refuse_unsupported(self, read: &[&str]) -> Result<(), Error> {
        let neutral = [
            ("quantization_config", Value::Null),
            ("hidden_activation", Value::Null),
            ("attn_logit_softcapping", Value::Null),
            ("final_logit_softcapping", Value::Null),
            ("query_pre_attn_scalar", Value::Null),
            ("rope_local_base_freq", Value::Null),
            ("sliding_window_pattern", Value::Null),
            ("_sliding_window_pattern", Value::Null),
            ("no_rope_layers", Value::Null),
            ("clip_qkv", Value::Null),
            ("attention_multiplier", 1.0.into()),
            ("embedding_multiplier", 1.0.into()),
            ("residual_multiplier", 1.0.into()),
            ("logits_scaling", 1.0.into()),
            ("logit_scale", 1.0.into()),
            ("partial_rotary_factor", 1.0.into()),
            ("attention_bias", false.into()),
            ("mlp_bias", false.into()),
            ("use_qk_norm", false.into()),
            ("qk_norm", false.into()),
            ("alibi", false.into()),
            ("rope_interleaved", false.into()),
            ("use_mrope", false.into()),
            ("use_bidirectional_attention", false.into()),
            ("scale_attn_weights", true.into()),
            ("scale_attn_by_inverse_layer_idx", false.into()),
            ("add_cross_attention", false.into()),
            ("is_encoder_decoder", false.into()),
            ("num_local_experts", 0.into()),
            ("num_experts", 0.into()),
        ];
        for (field, expected) in neutral {
            match self.get(field) {
                None => {}
                Some(_) if read.contains(&field) => {}
                Some(found) if *found == expected || same_number(found, &expected) => {}
                Some(found) => return Err(self.error(field, expected.to_string(), found)),
            }
        }
        Ok(())
    }
}

fn same_number(a: &Value, b: &Value) -> bool {
    matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

impl TransformerConfig {
    /// Cuts the context to what the keys or values of a layer may take: `limit` bytes.
    pub(crate) fn limit_context(&mut self, limit: Option<u64>) {
        let position = (self.kv_heads * self.head_dim * size_of::<f32>()) as u64;
        let most = limit.and_then(|limit| usize::try_from(limit / position).ok());
        self.context = self.context.min(most.unwrap_or(usize::MAX).max(1));
    }

    /// What is left to check once a family has read `fields`.
    pub(crate) fn check(&self, fields: Fields<'_>) -> Result<(), Error> {
        let sizes = [
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_hidden_layers", self.layers.len()),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.context),
        ];
        for (field, size) in sizes {
            // With every size below 2^31 no product of two overflows, on any 64-bit platform.
            if size == 0 || size > i32::MAX as usize {
                return Err(fields.error(field, "a size from 1 to 2147483647", size));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} attention heads", self.heads);
            return Err(fields.error("num_key_value_heads", expected, self.kv_heads));
        }
        if !self.ropes.is_empty() && !self.head_dim.is_multiple_of(2) {
            return Err(fields.error("head_dim", "an even number", self.head_dim));
        }
        if self.context > MAX_CONTEXT {
            let expected = format!("at most {MAX_CONTEXT}");
            return Err(fields.error("max_position_embeddings", expected, self.context));
        }
        let positive = [
            ("rms_norm_eps", self.norm_epsilon),
            ("query_pre_attn_scalar", self.attention_scale.into()),
            ("hidden_size", self.embedding_scale.into()),
        ];
        for (field, number) in positive {
            if !(number > 0.0 && number.is_finite()) {
                return Err(fields.error(field, "a positive number", number));
            }
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err(fields.error("sliding_window", "at least 1", 0));
        }
        if self.query_key_bias && self.heads != self.kv_heads {
            let expected = format!("{}, since query and key share a bias", self.heads);
            return Err(fields.error("num_key_value_heads", expected, self.kv_heads));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rope::RopeScaling;

    pub(crate) fn small() -> Map<String, Value> {
        let text = r#"{
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320,
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "float32", "rope_theta": 10000.0, "rope_scaling": null,
            "tie_word_embeddings": false}"#;
        serde_json::from_str(text).unwrap()
    }

    fn parse(raw: &Map<String, Value>) -> Result<ModelConfig, Error> {
        ModelConfig::parse("config.json", &serde_json::to_vec(raw).unwrap())
    }

    fn with(field: &str, value: impl Into<Value>) -> Result<ModelConfig, Error> {
        let mut raw = small();
        raw.insert(field.into(), value.into());
        parse(&raw)
    }

    #[test]
    fn a_plain_configuration_is_read_with_its_defaults() {
        let config = parse(&small()).unwrap();
        assert_eq!(config.transformer.head_dim, 16);
        assert_eq!(config.transformer.ropes[0].scaling, RopeScaling::None);
        assert_eq!((config.bos, config.eos), (Some(1), vec![2]));
        assert_eq!(with("eos_token_id", vec![2, 7]).unwrap().eos, [2, 7]);
        assert_eq!(with("eos_token_id", Value::Null).unwrap().eos, [0; 0]);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let cases: Vec<(&str, Value)> = vec![
            ("model_type", "mamba".into()),
            ("model_type", Value::Null),
            ("architectures", vec!["LlamaForSequenceClassification"].into()),
            ("hidden_act", "gelu".into()),
            ("sliding_window", 8.into()),
            ("layer_types", vec!["full_attention"; 2].into()),
            ("layer_types", vec!["full_attention", "sliding_attention", "full_attention"].into()),
            ("layer_types", "full_attention".into()),
            ("hidden_activation", "gelu_pytorch_tanh".into()),
            ("no_rope_layers", vec![1, 1, 0].into()),
            ("partial_rotary_factor", 0.5.into()),
            ("quantization_config", serde_json::json!({"bits": 4})),
            ("final_logit_softcapping", 30.0.into()),
            ("rope_scaling", serde_json::json!({"type": "dynamic", "factor": 2.0})),
            ("rope_scaling", serde_json::json!({"type": "default", "mrope_section": [8, 8]})),
            ("rope_scaling", serde_json::json!({"type": "yarn", "rope_type": "linear"})),
            ("rope_scaling", serde_json::json!({"rope_type": "yarn", "factor": 4.0})),
            ("rope_scaling", serde_json::json!({"rope_type": "linear"})),
            ("rope_scaling", serde_json::json!({"rope_type": "linear", "factor": 0.0})),
            ("rope_scaling", serde_json::json!({"factor": 2.0})),
            ("rope_scaling", serde_json::json!(7)),
            ("rope_parameters", serde_json::json!({"full_attention": {"rope_theta": 1.0}})),
            ("rope_theta", (-1.0).into()),
            ("rms_norm_eps", 0.0.into()),
            ("num_key_value_heads", 3.into()),
            ("head_dim", 15.into()),
            ("max_position_embeddings", (1_u64 << 30).into()),
            ("vocab_size", 0.into()),
            ("num_hidden_layers", 0.into()),
            ("num_hidden_layers", ((1 << 16) + 1).into()),
            ("hidden_size", (1_u64 << 40).into()),
            ("num_attention_heads", 0.into()),
        ];
        for (field, value) in cases {
            let message = with(field, value.clone()).unwrap_err().to_string();
            assert!(message.contains(field), "{field} {value}: {message}");
            assert!(message.starts_with("config.json"), "{message}");
        }
        for (field, value) in [
            ("vocab_size", Value::from(-5)),
            ("hidden_size", 1.5.into()),
            ("hidden_size", Value::Null),
            ("hidden_act", 7.into()),
            ("attention_bias", "yes".into()),
        ] {
            let message = with(field, value).unwrap_err().to_string();
            assert!(message.contains(field), "{field}: {message}");
        }
    }

    #[test]
    fn neutral_values_pass() {
        for (field, value) in [
            ("partial_rotary_factor", Value::from(1)),
            ("sliding_window", Value::Null),
            ("quantization_config", Value::Null),
            ("layer_types", vec!["full_attention"; 3].into()),
            ("pretraining_tp", 2.into()),
            ("rope_parameters", serde_json::json!({"rope_type": "default", "rope_theta": 10000})),
        ] {
            assert!(with(field, value).is_ok(), "{field}");
        }
    }

    #[test]
    fn two_layouts_in_one_file_must_agree() {
        let linear = serde_json::json!({"rope_type": "linear", "factor": 2.0});
        let mut raw = small();
        raw.insert("rope_parameters".into(), linear.clone());
        let scaling = RopeScaling::Linear { factor: 2.0 };
        assert_eq!(parse(&raw).unwrap().transformer.ropes[0].scaling, scaling);
        raw.insert("rope_scaling".into(), linear);
        assert!(parse(&raw).is_ok());
        raw["rope_scaling"]["factor"] = 3.0.into();
        assert!(parse(&raw).unwrap_err().to_string().contains("rope_scaling"));
        let other = with("rope_parameters", serde_json::json!({"rope_theta": 5e5}));
        assert!(other.unwrap_err().to_string().contains("rope_theta"));
    }

    #[test]
    fn json_that_is_none_is_an_error() {
        let deep = "[".repeat(100_000);
        let nested = format!("{{\"a\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
        for text in ["", "{", "[]", "7", "{\"model_type\":", &deep, &nested] {
            assert!(ModelConfig::parse("config.json", text.as_bytes()).is_err());
        }
        assert!(ModelConfig::parse("config.json", b"\xff\xfe").is_err());
    }
}
