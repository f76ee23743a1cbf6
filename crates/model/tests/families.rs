use std::fs;

use draftproof_decode::LanguageModel;
use draftproof_model::{
    config::{ModelConfig, TransformerConfig},
    families::SUPPORTED,
    rope::RopeScaling,
};
use serde_json::{Map, Value, json};

use crate::support::{CHECKPOINTS, Copy, Reference, bits, feed, golden, open};

const FILE: &str = "config.json";

/// A golden configuration with some fields set; one that is set to null is taken out.
fn config(name: &str, fields: &Value) -> Result<TransformerConfig, String> {
    let bytes = fs::read(golden(name).join(FILE)).unwrap();
    let mut raw: Map<String, Value> = serde_json::from_slice(&bytes).unwrap();
    for (field, value) in fields.as_object().unwrap() {
        match value {
            Value::Null => drop(raw.remove(field)),
            value => drop(raw.insert(field.clone(), value.clone())),
        }
    }
    let parsed = ModelConfig::parse(FILE, &serde_json::to_vec(&raw).unwrap());
    parsed.map(|config| config.transformer).map_err(|error| error.to_string())
}

fn with(name: &str, fields: &Value) -> TransformerConfig {
    config(name, fields).unwrap_or_else(|message| panic!("{name} {fields}: {message}"))
}

/// The window of each layer.
fn windows(name: &str, fields: &Value) -> Vec<Option<usize>> {
    with(name, fields).layers.iter().map(|layer| layer.window).collect()
}

/// The rope of each layer.
fn ropes(name: &str, fields: &Value) -> Vec<Option<usize>> {
    with(name, fields).layers.iter().map(|layer| layer.rope).collect()
}

#[test]
fn every_family_has_a_checkpoint() {
    for family in SUPPORTED {
        let of = |name: &&str| {
            let bytes = fs::read(golden(name).join(FILE)).unwrap();
            ModelConfig::parse(FILE, &bytes).unwrap().model_type == family
        };
        assert!(CHECKPOINTS.iter().any(of), "{family}");
    }
}

#[test]
fn windows_are_where_each_family_has_them() {
    let (some, none) = (Some(8), None);
    assert_eq!(windows("mistral", &json!({})), [some; 3]);
    assert_eq!(windows("mistral", &json!({"sliding_window": null})), [Some(4096); 3]);
    assert_eq!(windows("phi3", &json!({})), [none; 3]);
    assert_eq!(windows("phi3", &json!({"sliding_window": 8})), [some; 3]);
    // Qwen: from a layer on, and only if switched on.
    for name in ["qwen2", "qwen3"] {
        assert_eq!(windows(name, &json!({"sliding_window": 8})), [none; 3]);
        let mut on = json!({"use_sliding_window": true, "sliding_window": 8});
        on["max_window_layers"] = 1.into();
        assert_eq!(windows(name, &on), [none, some, some]);
        on["layer_types"] = json!(["sliding_attention", "full_attention", "full_attention"]);
        assert_eq!(windows(name, &on), [some, none, none]);
    }
    // SmolLM3: where nothing rotates.
    let on = json!({"use_sliding_window": true, "sliding_window": 8});
    assert_eq!(windows("smollm3", &on), [none, none, some]);
    // Gemma: every second layer, or all but every n-th.
    assert_eq!(windows("gemma2", &json!({"num_hidden_layers": 3})), [some, none, some]);
    assert_eq!(windows("gemma3", &json!({})), [some, some, none, some]);
    let six = json!({"sliding_window_pattern": null, "num_hidden_layers": 7});
    assert_eq!(windows("gemma3", &six), [some, some, some, some, some, none, some]);
    let two = json!({"sliding_window_pattern": null, "_sliding_window_pattern": 2});
    assert_eq!(windows("gemma3", &two), [some, none, some, none]);
    let types = json!({"layer_types": ["full_attention", "sliding_attention"]});
    assert_eq!(windows("gemma2", &types), [none, some]);
}

#[test]
fn layers_rotate_as_each_family_has_it() {
    assert_eq!(ropes("smollm3", &json!({})), [Some(0), Some(0), None]);
    let every = json!({"no_rope_layers": null, "no_rope_layer_interval": 2});
    assert_eq!(ropes("smollm3", &every), [Some(0), None, Some(0)]);
    let four = json!({"no_rope_layers": null, "no_rope_layer_interval": null,
                      "num_hidden_layers": 5});
    assert_eq!(ropes("smollm3", &four), [Some(0), Some(0), Some(0), None, Some(0)]);
    assert_eq!(ropes("gpt2", &json!({})), [None; 3]);
    assert_eq!(ropes("gemma3", &json!({})), [Some(1), Some(1), Some(0), Some(1)]);
    let scaled = json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let [global, local] = with("gemma3", &scaled).ropes[..] else { panic!("two ropes") };
    assert_eq!((global.theta, local.theta), (1e6, 1e4));
    let linear = RopeScaling::Linear { factor: 8.0 };
    assert_eq!((global.scaling, local.scaling), (linear, RopeScaling::None));
}

#[test]
fn yarn_takes_its_amplitude_as_transformers_does() {
    let scaling = |fields: Value| {
        let mut all = json!({"rope_type": "yarn", "factor": 4.0,
                             "original_max_position_embeddings": 64});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        with("qwen3-yarn", &json!({"rope_scaling": all})).ropes[0].amplitude()
    };
    let grown = |scale: f64| 0.1 * scale * 4_f64.ln() + 1.0;
    assert_eq!(scaling(json!({})), grown(1.0) as f32);
    assert_eq!(scaling(json!({"attention_factor": 1.5})), 1.5);
    assert_eq!(scaling(json!({"mscale": 2.0})), grown(1.0) as f32);
    let both = json!({"mscale": 2.0, "mscale_all_dim": 0.5});
    assert_eq!(scaling(both), (grown(2.0) / grown(0.5)) as f32);
    assert_eq!(scaling(json!({"factor": 1.0})), 1.0);
}

/// The root of 48 is 6.928…, of which bf16 keeps 8 bits and f16 11.
#[test]
fn gemma_scales_its_embedding_in_the_type_it_was_trained_in() {
    let scale = |fields: Value| {
        let mut all = json!({"hidden_size": 48, "torch_dtype": null});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        with("gemma2", &all).embedding_scale
    };
    assert_eq!(scale(json!({})), 48_f32.sqrt());
    assert_eq!(scale(json!({"torch_dtype": "float32"})), 48_f32.sqrt());
    assert_eq!(scale(json!({"torch_dtype": "bfloat16"})), 6.937_5);
    assert_eq!(scale(json!({"dtype": "float16"})), 6.929_687_5);
    assert_eq!(with("gemma3", &json!({})).embedding_scale, 8.0);
    assert_eq!(with("qwen3", &json!({})).embedding_scale, 1.0);
}

#[test]
fn silence_means_what_transformers_makes_of_it() {
    let silent = json!({"tie_word_embeddings": null, "max_position_embeddings": null,
                        "rms_norm_eps": null, "rope_theta": null});
    for (name, tied, context, epsilon, theta) in [
        ("llama", false, 2048, 1e-6, 1e4),
        ("mistral", false, 131_072, 1e-6, 1e4),
        ("qwen2", false, 32_768, 1e-6, 1e4),
        ("qwen3", false, 32_768, 1e-6, 1e4),
        ("gemma2", true, 8192, 1e-6, 1e4),
        ("gemma3", true, 131_072, 1e-6, 1e6),
        ("phi3", false, 4096, 1e-5, 1e4),
        ("smollm3", true, 32_768, 1e-6, 2e6),
    ] {
        let config = with(name, &silent);
        assert_eq!((config.tied_head, config.context), (tied, context), "{name}");
        assert_eq!((config.norm_epsilon, config.ropes[0].theta), (epsilon, theta), "{name}");
    }
    let config = with("gpt2", &json!({"n_positions": null, "layer_norm_epsilon": null}));
    assert_eq!((config.context, config.norm_epsilon), (1024, 1e-5));
    assert_eq!((config.intermediate, config.tied_head), (256, true));
    assert_eq!(with("gpt2", &json!({"n_inner": 96})).intermediate, 96);
    let config = with(
        "gemma2",
        &json!({"attn_logit_softcapping": null,
        "final_logit_softcapping": null, "query_pre_attn_scalar": null, "head_dim": null}),
    );
    assert_eq!((config.attention_softcap, config.logit_softcap), (Some(50.0), Some(30.0)));
    assert_eq!((config.attention_scale, config.head_dim), (1.0 / 16.0, 256));
    assert_eq!(with("qwen3", &json!({"head_dim": null})).head_dim, 128);
}

#[test]
fn what_a_family_does_not_do_is_refused_by_name() {
    let full = "full_attention";
    let sliding = "sliding_attention";
    let longrope = json!({"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]});
    let cases = [
        ("mistral", "hidden_act", json!("gelu")),
        ("mistral", "architectures", json!(["MistralForSequenceClassification"])),
        ("mistral", "attention_bias", json!(true)),
        ("mistral", "sliding_window", json!(0)),
        ("mistral", "sliding_window", json!("wide")),
        ("mistral", "use_sliding_window", json!(false)),
        ("mistral", "layer_types", json!([sliding, full, sliding])),
        ("qwen2", "layer_types", json!([full, full])),
        ("qwen2", "layer_types", json!([full, full, "chunked_attention"])),
        ("qwen2", "layer_types", json!([full, full, sliding])),
        ("qwen2", "use_sliding_window", json!("yes")),
        ("qwen2", "rope_scaling", json!({"type": "mrope", "mrope_section": [8, 4, 4]})),
        ("qwen3", "num_experts", json!(8)),
        ("qwen3-yarn", "rope_scaling.factor", json!({"type": "yarn", "factor": -1})),
        ("qwen3", "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})),
        ("gemma2", "hidden_activation", json!("gelu")),
        ("gemma2", "hidden_act", json!("silu")),
        ("gemma2", "query_pre_attn_scalar", json!(0)),
        ("gemma2", "attn_logit_softcapping", json!(-5.0)),
        ("gemma2", "final_logit_softcapping", json!("6")),
        ("gemma2", "torch_dtype", json!("float64")),
        ("gemma2", "use_bidirectional_attention", json!(true)),
        ("gemma3", "attn_logit_softcapping", json!(5.0)),
        ("gemma3", "sliding_window_pattern", json!(0)),
        ("gemma3", "rope_local_base_freq", json!(-1.0)),
        ("gemma3", "rope_parameters.sliding_attention", json!({full: {"rope_type": "default"}})),
        ("gemma3", "layer_types", json!([sliding, sliding, sliding])),
        ("gemma3", "model_type", json!("gemma3")),
        ("phi3", "rope_scaling.rope_type", longrope),
        ("phi3", "partial_rotary_factor", json!(0.75)),
        ("phi3", "layer_types", json!([full, sliding, full])),
        ("smollm3", "no_rope_layers", json!([1, 1])),
        ("smollm3", "no_rope_layers", json!([1, 1, 2])),
        ("gpt2", "activation_function", json!("relu")),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "scale_attn_weights", json!(false)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "rope_theta", json!(10_000.0)),
        ("gpt2", "n_head", json!(7)),
        ("gpt2", "n_layer", json!(0)),
        ("gpt2", "n_embd", json!(null)),
        ("gpt2", "n_inner", json!(0)),
        ("gpt2", "layer_norm_epsilon", json!(-1.0)),
    ];
    for (name, field, value) in cases {
        // A field of an object is set with the whole object.
        let top = field.split('.').next().unwrap();
        let message = config(name, &json!({top: value})).expect_err(field);
        let start = format!("{FILE}: {field}");
        assert!(message.starts_with(&start), "{name} {field}: {message}");
    }
    let nowhere = json!({"no_rope_layers": null, "no_rope_layer_interval": 0});
    assert!(config("smollm3", &nowhere).unwrap_err().contains("no_rope_layer_interval"));
    let twice = json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}});
    assert!(config("smollm3", &twice).unwrap_err().contains("rope_theta"));
}

/// GPT-2's own checkpoint has no prefix, and carries its masks.
#[test]
fn gpt2_is_read_in_the_hubs_layout_too() {
    let copy = Copy::of("gpt2");
    copy.edit_weights("model.safetensors", |header, data| {
        for (name, entry) in std::mem::take(header) {
            header.insert(name.trim_start_matches("transformer.").into(), entry);
        }
        // Tied, but there.
        let table = header["wte.weight"]["data_offsets"].clone();
        let [start, end] = [0, 1].map(|i| table[i].as_u64().unwrap() as usize);
        let range = [data.len(), data.len() + end - start];
        data.extend(data[start..end].to_vec());
        let entry = json!({"dtype": "F32", "shape": [320, 64], "data_offsets": range});
        header.insert("lm_head.weight".into(), entry);
        for layer in 0..3 {
            for (name, count) in [("bias", 128 * 128), ("masked_bias", 1)] {
                let range = [data.len(), data.len() + 4 * count];
                data.extend(vec![0; 4 * count]);
                let entry = json!({"dtype": "F32", "shape": [count], "data_offsets": range});
                header.insert(format!("h.{layer}.attn.{name}"), entry);
            }
        }
    });
    let ids = Reference::of("gpt2").ids("input_ids");
    let mut other = copy.open().unwrap().into_language_model();
    let mut model = open("gpt2");
    let (a, b) = (model.open().unwrap(), other.open().unwrap());
    assert_eq!(bits(&feed(&mut model, a, &ids)), bits(&feed(&mut other, b, &ids)));
    copy.edit_weights("model.safetensors", |header, _| {
        let entry = header.remove("h.1.attn.c_attn.bias").unwrap();
        header.insert("h.1.attn.bias_of_another_name".into(), entry);
    });
    assert!(copy.refusal().contains("h.1.attn.c_attn.bias"));
}

#[test]
fn parts_of_one_tensor_must_all_be_there() {
    for (name, field, value, tensor) in [
        ("phi3", "intermediate_size", 64, "mlp.gate_up_proj.weight"),
        ("phi3", "num_key_value_heads", 4, "self_attn.qkv_proj.weight"),
        ("gpt2", "n_positions", 64, "transformer.wpe.weight"),
        ("gpt2", "n_inner", 64, "transformer.h.0.mlp.c_fc.weight"),
    ] {
        let copy = Copy::of(name);
        copy.edit(FILE, |json| drop(json.insert(field.into(), value.into())));
        let message = copy.refusal();
        assert!(message.contains(tensor) && message.contains("expected shape"), "{message}");
    }
}
