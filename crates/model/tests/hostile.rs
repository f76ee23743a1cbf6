use std::fs;

use draftproof_decode::{LanguageModel, lm::Pass};
use draftproof_model::WeightType;
use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support::{CHECKPOINTS, Copy, Reference, bits, feed, golden};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00002.safetensors";

#[test]
fn a_file_that_ends_early_is_refused() {
    let whole = fs::read(golden("llama").join(FILE)).unwrap();
    let copy = Copy::of("llama");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in [0, 1, 7, 8, 9, header / 2, header - 1, header, header + 1, whole.len() - 1] {
        copy.write(FILE, &whole[..len]);
        let message = copy.refusal();
        assert!(message.contains(FILE), "{len}: {message}");
    }
    copy.write(FILE, [&whole[..], &[0]].concat());
    assert!(copy.refusal().contains("tensor data"));
}

#[test]
fn a_header_of_absurd_length_is_refused_before_memory_is_taken() {
    let copy = Copy::of("llama");
    let mut bytes = copy.read(FILE);
    for len in [u64::MAX, u64::MAX / 2, 1 << 40, 100_000_001, 0, 1] {
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        copy.write(FILE, &bytes);
        assert!(copy.refusal().contains(FILE), "{len}");
    }
}

fn refuse_header(change: impl Fn(&mut Map<String, Value>, &mut Vec<u8>), words: &[&str]) {
    let copy = Copy::of("llama");
    copy.edit_weights(FILE, change);
    let message = copy.refusal();
    for word in words.iter().chain(&[FILE]) {
        assert!(message.contains(word), "{word}: {message}");
    }
}

const NORM: &str = "model.norm.weight";
const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";

#[test]
fn offsets_and_shapes_that_do_not_fit_are_refused() {
    for offsets in [[0_u64, 1], [5, 4], [1 << 60, 1 << 61], [0, 256]] {
        refuse_header(|header, _| header[NORM]["data_offsets"] = json!(offsets), &[]);
    }
    refuse_header(|header, _| header[NORM]["data_offsets"] = json!([-1, 4]), &[]);
    for shape in
        [json!([65]), json!([1_u64 << 40, 1_u64 << 40]), json!([-64]), json!([0]), json!("64")]
    {
        refuse_header(|header, _| header[NORM]["shape"] = shape.clone(), &[]);
    }
    // The same bytes in another shape.
    refuse_header(|header, _| header[NORM]["shape"] = json!([8, 8]), &[NORM, "[64]", "[8, 8]"]);
    refuse_header(|header, _| header[QUERY]["shape"] = json!([32, 128]), &[QUERY, "[64, 64]"]);
}

#[test]
fn types_that_are_no_floats_are_refused() {
    refuse_header(|header, _| header[NORM]["dtype"] = json!("I32"), &[NORM, "I32", "BF16"]);
    refuse_header(|header, _| header[NORM]["dtype"] = json!("F31"), &[]);
    refuse_header(|header, _| header[NORM]["dtype"] = json!("F64"), &[]);
}

#[test]
fn missing_and_unexpected_tensors_are_refused() {
    let rename = |header: &mut Map<String, Value>, from: &str, to: &str| {
        let entry = header.remove(from).unwrap();
        header.insert(to.into(), entry);
    };
    let copy = Copy::of("llama");
    copy.edit_weights(FILE, |header, _| rename(header, QUERY, "model.layers.1.other.weight"));
    let message = copy.refusal();
    assert!(message.contains(QUERY) && message.contains("no such tensor"), "{message}");
    let add = |name: &'static str| {
        move |header: &mut Map<String, Value>, data: &mut Vec<u8>| {
            let range = [data.len(), data.len() + 8];
            header
                .insert(name.into(), json!({"dtype": "F32", "shape": [2], "data_offsets": range}));
            data.extend([0; 8]);
        }
    };
    refuse_header(add("model.layers.3.mlp.gate.weight"), &["model.layers.3.mlp.gate.weight"]);
    refuse_header(add("model.layers.0.self_attn.q_proj.bias"), &["q_proj.bias"]);
    let harmless = Copy::of("llama");
    harmless.edit_weights(FILE, add("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert!(harmless.open().is_ok());
}

#[test]
fn a_tied_head_must_be_the_embedding() {
    let copy = Copy::of("llama3-rope");
    let add = |flip: u8| {
        move |header: &mut Map<String, Value>, data: &mut Vec<u8>| {
            let from = header["model.embed_tokens.weight"]["data_offsets"].clone();
            let [start, end] = [0, 1].map(|i| from[i].as_u64().unwrap() as usize);
            let range = [data.len(), data.len() + end - start];
            let head = json!({"dtype": "F32", "shape": [320, 64], "data_offsets": range});
            header.insert("lm_head.weight".into(), head);
            data.extend(data[start..end].to_vec());
            data[range[0]] ^= flip;
        }
    };
    copy.edit_weights(FILE, add(0));
    assert!(copy.open().is_ok());
    let other = Copy::of("llama3-rope");
    other.edit_weights(FILE, add(1));
    assert!(other.refusal().contains("lm_head.weight"));
}

#[test]
fn shards_cannot_lead_out_of_the_folder() {
    for name in ["../x.safetensors", "/x.safetensors", "a/../x.safetensors", INDEX, "x", ".."] {
        let copy = Copy::of("llama-sharded");
        copy.edit(INDEX, |json| json["weight_map"]["lm_head.weight"] = name.into());
        let message = copy.refusal();
        assert!(message.contains(INDEX) && message.contains("weight_map"), "{name}: {message}");
    }
}

#[test]
fn shards_and_index_must_agree() {
    let copy = Copy::of("llama-sharded");
    copy.remove(SHARD);
    let message = copy.refusal();
    assert!(message.contains(SHARD) && message.contains(INDEX), "{message}");

    let copy = Copy::of("llama-sharded");
    copy.edit(INDEX, |json| json["weight_map"]["lm_head.weight"] = SHARD.into());
    assert!(copy.refusal().contains("lm_head.weight"));

    let copy = Copy::of("llama-sharded");
    copy.edit(INDEX, |json| {
        json["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
    });
    assert!(copy.refusal().contains("lm_head.weight"));

    let copy = Copy::of("llama-sharded");
    let shard = copy.read(SHARD);
    copy.write("again.safetensors", shard);
    copy.edit(INDEX, |json| json["weight_map"]["lm_head.weight"] = "again.safetensors".into());
    assert!(copy.refusal().contains("no other of this name"));

    for index in ["", "{}", "{\"weight_map\": {}}", "{\"weight_map\": 3}", "[[[["] {
        let copy = Copy::of("llama-sharded");
        copy.write(INDEX, index);
        assert!(copy.refusal().contains(INDEX), "{index}");
    }
}

#[test]
fn a_shard_that_is_no_file_is_refused() {
    let copy = Copy::of("llama-sharded");
    copy.remove(SHARD);
    fs::create_dir(copy.path().join(SHARD)).unwrap();
    assert!(copy.refusal().contains("a folder"));
}

#[test]
fn folders_without_what_a_model_needs_are_refused() {
    let copy = Copy::of("llama");
    copy.remove(FILE);
    let message = copy.refusal();
    assert!(message.contains(FILE) && message.contains(INDEX), "{message}");
    let copy = Copy::of("llama");
    copy.remove("config.json");
    assert!(copy.refusal().contains("config.json"));
    let copy = Copy::of("llama");
    copy.write("config.json", format!("{}1", "[".repeat(1 << 20)));
    assert!(copy.refusal().contains("config.json"));
    let nowhere = draftproof_model::Model::open(&copy.path().join("none"), &crate::support::cpu());
    assert!(nowhere.unwrap_err().to_string().contains("none"));
    for file in ["generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        let copy = Copy::of("llama");
        copy.write(file, "{\"a\": [");
        assert!(copy.refusal().contains(file), "{file}");
    }
}

#[test]
fn a_folder_without_optional_files_works() {
    let copy = Copy::of("llama");
    for file in ["generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        copy.remove(file);
    }
    let model = copy.open().unwrap();
    assert!(model.tokenizer().is_none());
    assert_eq!(model.eos().len(), 1);
    let ids = Reference::of("llama").ids("input_ids");
    let mut model = model.into_language_model();
    let sequence = model.open().unwrap();
    assert_eq!(feed(&mut model, sequence, &ids).len(), 24);
}

#[test]
fn sizes_that_disagree_with_the_weights_are_refused() {
    for (field, value, word) in [
        ("vocab_size", 321_u64, "model.embed_tokens.weight"),
        ("vocab_size", (1 << 31) - 1, "model.embed_tokens.weight"),
        ("hidden_size", 128, "model.embed_tokens.weight"),
        ("num_hidden_layers", 4, "model.layers.3."),
        ("num_hidden_layers", 2, "model.layers.2."),
        ("num_hidden_layers", 1 << 16, "model.layers.3."),
        ("num_hidden_layers", (1 << 31) - 1, "num_hidden_layers"),
        ("intermediate_size", 1 << 30, "mlp.gate_proj.weight"),
        ("num_key_value_heads", 4, "k_proj.weight"),
        ("num_attention_heads", 1 << 30, "hidden_size"),
        ("head_dim", 1 << 30, "q_proj.weight"),
    ] {
        let copy = Copy::of("llama");
        copy.edit("config.json", |json| drop(json.insert(field.into(), value.into())));
        let message = copy.refusal();
        assert!(message.contains(word), "{field} {value}: {message}");
    }
}

#[test]
fn weights_that_are_no_numbers_give_logits_that_are_none() {
    let copy = Copy::of("llama");
    copy.edit_weights(FILE, |header, data| {
        let start = header[NORM]["data_offsets"][0].as_u64().unwrap() as usize;
        data[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let ids = Reference::of("llama").ids("input_ids");
    let mut model = copy.open().unwrap().into_language_model();
    let sequence = model.open().unwrap();
    let rows = feed(&mut model, sequence, &ids);
    assert!(rows.row(5).iter().all(|logit| logit.is_nan()));
}

/// Stores the weights of a golden folder of f32 as `narrow` makes them: in two bytes, or as the f32
/// that those two bytes mean.
fn store(copy: &Copy, dtype: &str, narrow: impl Fn(f32) -> [u8; 2]) {
    copy.edit_weights(FILE, |header, data| {
        let values = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        *data = values.flat_map(narrow).collect();
        for entry in header.iter_mut().filter(|(name, _)| *name != "__metadata__").map(|(_, e)| e) {
            entry["dtype"] = json!(dtype);
            for end in entry["data_offsets"].as_array_mut().unwrap() {
                *end = (end.as_u64().unwrap() / 2).into();
            }
        }
    });
}

#[test]
fn half_precision_is_widened_exactly() {
    let run = |copy: &Copy, name: &str| {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = copy.open().unwrap().into_language_model();
        let sequence = model.open().unwrap();
        bits(&feed(&mut model, sequence, &ids))
    };
    type Round = fn(f32) -> ([u8; 2], f32);
    let types: [(&str, WeightType, Round); 2] = [
        ("F16", WeightType::F16, |x| {
            let x = f16::from_f32(x);
            (x.to_le_bytes(), x.to_f32())
        }),
        ("BF16", WeightType::Bf16, |x| {
            let x = bf16::from_f32(x);
            (x.to_le_bytes(), x.to_f32())
        }),
    ];
    // Whole matrices, parts of one, and transposed ones.
    for name in ["llama", "gemma3", "phi3", "gpt2"] {
        for (dtype, weight_type, round) in types {
            let (narrow, wide) = (Copy::of(name), Copy::of(name));
            store(&narrow, dtype, |x| round(x).0);
            assert_eq!(narrow.open().unwrap().weight_type(), weight_type);
            wide.edit_weights(FILE, |_, data| {
                for bytes in data.as_chunks_mut().0 {
                    *bytes = round(f32::from_le_bytes(*bytes)).1.to_le_bytes();
                }
            });
            assert!(run(&narrow, name) == run(&wide, name), "{name} {dtype}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]
    #[test]
    fn no_damaged_header_panics(
        damage in prop::collection::vec((0_usize..3000, any::<u8>()), 1..4),
    ) {
        let copy = Copy::of("pair-draft");
        let mut bytes = copy.read(FILE);
        for (at, value) in damage {
            bytes[at] = value;
        }
        copy.write(FILE, bytes);
        drop(copy.open());
    }

    #[test]
    fn no_damaged_json_panics(
        file in prop::sample::select(vec![
            "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        ]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let copy = Copy::of("pair-draft");
        let mut bytes = copy.read(file);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        copy.write(file, bytes);
        if let Ok(model) = copy.open()
            && let Some(tokenizer) = model.tokenizer()
        {
            drop(tokenizer.encode("Once upon a time\u{0}é🙂"));
        }
    }

    #[test]
    fn no_damaged_configuration_panics(
        name in prop::sample::select(&CHECKPOINTS),
        file in prop::sample::select(vec!["config.json", "config.v5.json"]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let copy = Copy::of(name);
        // Looped models have one layout only.
        let file = if golden(name).join(file).exists() { file } else { "config.json" };
        let mut bytes = copy.read(file);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        copy.write("config.json", bytes);
        if let Ok(model) = copy.open() {
            let ids = Reference::of(name).ids("input_ids");
            let mut model = model.into_language_model();
            let sequence = model.open().unwrap();
            drop(model.forward(&[Pass { sequence, tokens: &ids, rows: 1 }]));
        }
    }
}
