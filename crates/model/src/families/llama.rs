//! Llama: the plain case that the shared transformer implements as it stands.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Error,
    config::{TransformerConfig, read, refuse_unsupported},
    rope::{RopeConfig, RopeScaling},
};

/// `config.json`, with transformers' names; what may be absent has transformers' default.
#[derive(Deserialize)]
struct Llama {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
}

pub(crate) fn parse(file: &str, raw: &Map<String, Value>) -> Result<TransformerConfig, Error> {
    refuse_unsupported(file, raw)?;
    if let Some(Value::Array(names)) = raw.get("architectures")
        && !names.iter().any(|name| name == "LlamaForCausalLM")
    {
        let found = Value::from(names.clone());
        return Err(Error::field(file, "architectures", "[\"LlamaForCausalLM\"]", found));
    }
    let llama: Llama = read(file, raw)?;
    if let Some(act) = &llama.hidden_act
        && act != "silu"
        && act != "swish"
    {
        return Err(Error::field(file, "hidden_act", "\"silu\"", act));
    }
    let heads = llama.num_attention_heads;
    let head_dim = match llama.head_dim {
        Some(dim) => dim,
        None if heads > 0 && llama.hidden_size.is_multiple_of(heads) => llama.hidden_size / heads,
        None => {
            let expected = format!("a divisor of hidden_size {}", llama.hidden_size);
            return Err(Error::field(file, "num_attention_heads", expected, heads));
        }
    };
    Ok(TransformerConfig {
        vocab: llama.vocab_size,
        hidden: llama.hidden_size,
        intermediate: llama.intermediate_size,
        layers: llama.num_hidden_layers,
        heads,
        kv_heads: llama.num_key_value_heads.unwrap_or(heads),
        head_dim,
        context: llama.max_position_embeddings.unwrap_or(2048),
        norm_epsilon: llama.rms_norm_eps.unwrap_or(1e-6),
        rope: rope(file, raw)?,
        attention_bias: llama.attention_bias.unwrap_or(false),
        mlp_bias: llama.mlp_bias.unwrap_or(false),
        tied_head: llama.tie_word_embeddings.unwrap_or(false),
    })
}

/// Either layout: `rope_theta` and `rope_scaling`, or all of it in `rope_parameters`. A file that
/// has both must say the same twice.
fn rope(file: &str, raw: &Map<String, Value>) -> Result<RopeConfig, Error> {
    let hub = layout(file, raw, "rope_scaling")?;
    let new = layout(file, raw, "rope_parameters")?;
    let config = new.unwrap_or(hub.unwrap_or(PLAIN));
    let top = raw.get("rope_theta").filter(|theta| !theta.is_null());
    let theta = top.map(|theta| number(file, "rope_theta", theta)).transpose()?;
    let config =
        RopeConfig { theta: config.theta.or(theta).unwrap_or(10_000.0), scaling: config.scaling };
    if let (Some(hub), Some(new)) = (hub, new)
        && hub.scaling != new.scaling
    {
        let expected = format!("{:?} as in rope_parameters", new.scaling);
        return Err(Error::field(file, "rope_scaling", expected, format!("{:?}", hub.scaling)));
    }
    if let Some(theta) = theta
        && theta != config.theta
    {
        let expected = format!("{} as in rope_parameters", config.theta);
        return Err(Error::field(file, "rope_theta", expected, theta));
    }
    Ok(config)
}

#[derive(Clone, Copy)]
struct Layout {
    theta: Option<f64>,
    scaling: RopeScaling,
}

const PLAIN: Layout = Layout { theta: None, scaling: RopeScaling::None };

fn layout(file: &str, raw: &Map<String, Value>, field: &str) -> Result<Option<Layout>, Error> {
    let parameters = match raw.get(field) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(parameters)) => parameters,
        Some(other) => return Err(Error::field(file, field, "an object or null", other)),
    };
    if let Some(factor) = parameters.get("partial_rotary_factor")
        && factor.as_f64() != Some(1.0)
    {
        return Err(Error::field(file, "partial_rotary_factor", "1", factor));
    }
    let theta = parameters.get("rope_theta").map(|theta| number(file, "rope_theta", theta));
    Ok(Some(Layout { theta: theta.transpose()?, scaling: scaling(file, field, parameters)? }))
}

fn number(file: &str, field: &str, found: &Value) -> Result<f64, Error> {
    found.as_f64().ok_or_else(|| Error::field(file, field, "a number", found))
}

fn scaling(file: &str, field: &str, parameters: &Map<String, Value>) -> Result<RopeScaling, Error> {
    let positive = |key: &str| -> Result<f64, Error> {
        let found = parameters.get(key).unwrap_or(&Value::Null);
        match found.as_f64() {
            Some(number) if number > 0.0 && number.is_finite() => Ok(number),
            _ => Err(Error::field(file, &format!("{field}.{key}"), "a positive number", found)),
        }
    };
    let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
    match kind.unwrap_or(&Value::Null) {
        Value::Null if !parameters.keys().any(|key| key != "rope_theta") => Ok(RopeScaling::None),
        Value::String(kind) if kind == "default" => Ok(RopeScaling::None),
        Value::String(kind) if kind == "linear" => {
            Ok(RopeScaling::Linear { factor: positive("factor")? })
        }
        Value::String(kind) if kind == "llama3" => {
            let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
            if high <= low {
                let expected = format!("more than low_freq_factor {low}");
                return Err(Error::field(file, "high_freq_factor", expected, high));
            }
            let original = positive("original_max_position_embeddings")?;
            Ok(RopeScaling::Llama3 { factor: positive("factor")?, low, high, original })
        }
        found => {
            let expected = "\"default\", \"linear\" or \"llama3\"";
            Err(Error::field(file, &format!("{field}.rope_type"), expected, found))
        }
    }
}
