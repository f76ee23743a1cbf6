use std::fs;

use draftproof_decode::{LanguageModel, Token};
use draftproof_model::{Model, WeightType, config::ModelConfig};
use serde_json::Value;

use crate::support::{
    CHECKPOINTS, LOOPED, Reference, TOLERANCE, cpu, distance, feed, golden, greedy, open,
};

fn check_schedule(name: &str, cuts: &[usize], expected: &str) {
    let reference = Reference::of(name);
    let (ids, expected) = (reference.ids("input_ids"), reference.rows(expected));
    let mut model = open(name);
    let sequence = model.open().unwrap();
    let mut done = 0;
    let mut worst = 0_f32;
    for &count in cuts {
        let rows = feed(&mut model, sequence, &ids[done..done + count]);
        assert_eq!(rows.len(), count);
        worst = worst.max(distance(&rows, &expected, done));
        done += count;
    }
    assert_eq!(done, ids.len());
    println!("{name} {cuts:?}: {worst:e}");
    assert!(worst < TOLERANCE, "{name} {cuts:?}: {worst:e}");
}

#[test]
fn logits_of_one_pass_are_the_reference() {
    for name in CHECKPOINTS {
        check_schedule(name, &[24], "logits_full");
    }
}

#[test]
fn logits_token_by_token_are_the_reference() {
    let mut cuts = vec![8];
    cuts.extend([1; 16]);
    for name in CHECKPOINTS {
        check_schedule(name, &cuts, "logits_incremental");
    }
}

#[test]
fn logits_in_blocks_are_the_reference() {
    for name in CHECKPOINTS {
        check_schedule(name, &[8, 5, 1, 7, 3], "logits_blocks");
    }
}

#[test]
fn greedy_text_is_the_reference() {
    for name in CHECKPOINTS {
        let reference = Reference::of(name);
        let expected = reference.ids("greedy_ids");
        let found = greedy(&mut open(name), &reference.ids("input_ids"), expected.len());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn greedy_text_of_prompts_is_the_reference() {
    let file = fs::read(golden("pair-target/assisted.json")).unwrap();
    let json: Value = serde_json::from_slice(&file).unwrap();
    let ids = |value: &Value| -> Vec<Token> {
        let ids = value.as_array().unwrap().iter();
        ids.map(|id| Token(u32::try_from(id.as_u64().unwrap()).unwrap())).collect()
    };
    let cases = json["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let prompt = ids(&case["prompt"]);
        for (name, expected) in
            [("pair-target", "target_greedy_ids"), ("pair-draft", "draft_greedy_ids")]
        {
            let expected = ids(&case[expected]);
            assert_eq!(greedy(&mut open(name), &prompt, expected.len()), expected, "{name}");
        }
    }
}

#[test]
fn both_layouts_of_the_configuration_say_the_same() {
    // Looped models are published in one layout only.
    for name in CHECKPOINTS.into_iter().filter(|name| !LOOPED.contains(name)) {
        let parse = |file: &str| {
            ModelConfig::parse(file, &fs::read(golden(name).join(file)).unwrap()).unwrap()
        };
        assert_eq!(parse("config.json"), parse("config.v5.json"), "{name}");
    }
}

#[test]
fn parameters_and_the_bytes_of_a_pass_are_counted() {
    for name in CHECKPOINTS.into_iter().filter(|name| !LOOPED.contains(name)) {
        let file = fs::read(golden(name).join("reference.json")).unwrap();
        let json: Value = serde_json::from_slice(&file).unwrap();
        let model = Model::open(&golden(name), &cpu()).unwrap();
        assert_eq!(Some(model.parameters()), json["params"].as_u64(), "{name}");
        // A pass reads rows of an embedding that is not the head, and of learned positions.
        let config = &model.config().transformer;
        let learned = config.learned_positions.unwrap_or(0);
        let rows = learned + if config.tied_head { 0 } else { config.vocab };
        let wide = match name {
            "llama-bf16" => continue,
            _ => 4 * (model.parameters() - (rows * config.hidden) as u64),
        };
        assert_eq!(model.pass_bytes(), wide, "{name}");
    }
}

#[test]
fn a_model_tells_what_it_is() {
    for (name, parameters, weight_type, tokenizer) in [
        ("llama", 152_000, WeightType::F32, true),
        ("llama3-rope", 131_520, WeightType::F32, true),
        ("llama-bias-linear", 128_448, WeightType::F32, false),
        ("llama-sharded", 152_000, WeightType::F32, true),
    ] {
        let model = Model::open(&golden(name), &cpu()).unwrap();
        assert_eq!(model.name(), name);
        assert_eq!(model.parameters(), parameters);
        assert_eq!(model.weight_type(), weight_type);
        assert_eq!(model.tokenizer().is_some(), tokenizer);
        assert_eq!(model.vocab(), 320);
        assert_eq!(model.eos(), [Token(2)]);
        assert_eq!(model.into_language_model().context(), 256);
    }
    let model = Model::open(&golden("llama-bf16"), &cpu()).unwrap();
    assert_eq!(model.weight_type(), WeightType::Bf16);
}
