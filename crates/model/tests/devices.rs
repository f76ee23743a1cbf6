//! The promises on every device but the processor that this build and this machine have: the
//! reference's logits, the same bits in any pieces, and memory that does not grow.

use burn::tensor::TensorData;
use draftproof_decode::{LanguageModel, Token};
use draftproof_kernels::burn as kernels;
use draftproof_model::{
    Device, Error, Model, Role, Runner, TransformerModel, config::ModelConfig, device,
    load::Weights,
};
use serde_json::json;

use crate::{
    bits::assert_bits,
    support::{CHECKPOINTS, Reference, TOLERANCE, argmax, cpu, distance, feed, golden},
};

fn others() -> Vec<(String, Device)> {
    let facts = device::offered().into_iter().map(|facts| facts.expect("devices that compute"));
    let others: Vec<_> = facts
        .filter(|facts| facts.name != "cpu")
        .map(|facts| (facts.name.clone(), device::open(&facts.name).unwrap()))
        .collect();
    assert!(!others.is_empty(), "who builds for a GPU has one, or software that plays it");
    others
}

/// Blocks are expanded for devices whose kernels do not read them.
const GGUFS: [(&str, &str); 2] = [
    ("llama-tiny-f32.gguf", "reference-f32.safetensors"),
    ("llama-tiny-q8_0.gguf", "reference-q8_0.safetensors"),
];

#[test]
fn logits_are_the_reference() {
    let folders = CHECKPOINTS.map(|name| (golden(name), Reference::of(name)));
    let files = golden("llama-gguf");
    let files =
        GGUFS.map(|(file, reference)| (files.join(file), Reference::read(&files.join(reference))));
    let all: Vec<_> = folders.into_iter().chain(files).collect();
    for (device_name, device) in others() {
        for (path, reference) in &all {
            let (ids, expected) = (reference.ids("input_ids"), reference.rows("logits_full"));
            let mut model = Model::open(path, &device).unwrap().into_language_model();
            let sequence = model.open().unwrap();
            let worst = distance(&feed(&mut model, sequence, &ids), &expected, 0);
            let about = format!("{device_name} {}: {worst:e}", path.display());
            println!("{about}");
            assert!(worst < TOLERANCE, "{about}");
        }
    }
}

#[test]
fn rows_depend_on_their_prefix_only() {
    let folders = CHECKPOINTS.map(|name| (golden(name), name));
    let files = GGUFS.map(|(file, _)| (golden("llama-gguf").join(file), "llama"));
    for (device_name, device) in others() {
        for (path, reference) in folders.iter().chain(&files) {
            let reference = Reference::of(reference);
            let text = [reference.ids("input_ids"), reference.ids("greedy_ids")].concat();
            let model = Model::open(path, &device).unwrap();
            let about = format!("{device_name} {}", path.display());
            assert_bits(&mut model.into_language_model(), &text, &about);
        }
    }
}

#[test]
fn fable_is_near_the_cpu_and_its_rows_depend_on_their_prefix_only() {
    let prompts = include_str!("../../../models/fable/prompts.txt");
    for (device_name, device) in others() {
        for role in [Role::Target, Role::Draft] {
            let model = Model::builtin("fable", role, &device).unwrap();
            let mut text = model.tokenizer().unwrap().encode(prompts).unwrap();
            text.truncate(80);
            let mut model = model.into_language_model();
            assert_bits(&mut model, &text, &format!("{device_name} fable {role:?}"));
            let mut on_cpu = Model::builtin("fable", role, &cpu()).unwrap().into_language_model();
            let [there, here] = [&mut model, &mut on_cpu].map(|model| {
                let sequence = model.open().unwrap();
                feed(model, sequence, &text)
            });
            let worst = distance(&there, &here, 0);
            println!("{device_name} fable {role:?}: {worst:e}");
            assert!(worst < 1e-3, "{device_name} fable {role:?}: {worst:e}");
        }
    }
}

/// Weights all over the place for a shape that no file has.
struct Arbitrary(Device);

impl Weights for Arbitrary {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorData, Error> {
        let count = shape.iter().product::<usize>();
        let start = name.len();
        let values: Vec<f32> = (start..start + count).map(|i| (i as f32).sin() / 2.0).collect();
        Ok(TensorData::new(values, shape.to_vec()))
    }

    fn device(&self) -> &Device {
        &self.0
    }
}

/// 2 000 steps: drafts of up to eight tokens, cut back to three, beyond the point where caches grow,
/// in one sequence after the other.
#[test]
fn memory_is_flat_over_growth_and_truncation() {
    let config = json!({
        "model_type": "llama",
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "attention_bias": true,
        "tie_word_embeddings": true,
    });
    let config = ModelConfig::parse("config.json", config.to_string().as_bytes());
    let config = config.unwrap().transformer;
    for (device_name, device) in others() {
        let network = config.init(&mut Arbitrary(device.clone())).unwrap();
        let model = TransformerModel::new(network, &config, &device);
        let mut model = Runner::Here(Box::new(model));
        let mut walk = || {
            let sequence = model.open().unwrap();
            let mut next = Token(1);
            for step in 0..500 {
                let mut tokens = vec![next; 3];
                tokens.extend((0..step % 6).map(Token));
                let held = model.len(sequence).unwrap();
                next = argmax(feed(&mut model, sequence, &tokens).row(2));
                model.truncate(sequence, held + 3).unwrap();
            }
            assert_eq!(model.len(sequence).unwrap(), 1500);
            model.close(sequence);
            kernels::memory(&device).expect("a device that counts")
        };
        let before = walk();
        for round in 0..4 {
            let after = walk();
            println!("{device_name}, {round}: {before:?}, then {after:?} bytes");
            assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?}, then {after:?}");
        }
    }
}
