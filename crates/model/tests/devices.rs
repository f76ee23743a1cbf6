//! The promises on every device but the processor that this build and this machine have: the
//! reference's logits, the same bits in any pieces, and memory that does not grow.

use burn::tensor::TensorData;
use draftproof_decode::{LanguageModel, Token};
use draftproof_kernels::burn as kernels;
use draftproof_model::{
    Device, Error, Model, Role, TransformerModel,
    config::TransformerConfig,
    device,
    load::Weights,
    rope::{RopeConfig, RopeScaling},
};

use crate::{
    bits::assert_bits,
    support::{LLAMAS, Reference, TOLERANCE, argmax, cpu, distance, feed, golden},
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

#[test]
fn logits_are_the_reference() {
    for (device_name, device) in others() {
        for name in LLAMAS {
            let reference = Reference::of(name);
            let (ids, expected) = (reference.ids("input_ids"), reference.rows("logits_full"));
            let model = Model::open(&golden(name), &device).unwrap();
            let mut model = model.into_language_model();
            let sequence = model.open().unwrap();
            let worst = distance(&feed(&mut model, sequence, &ids), &expected, 0);
            println!("{device_name} {name}: {worst:e}");
            assert!(worst < TOLERANCE, "{device_name} {name}: {worst:e}");
        }
    }
}

#[test]
fn rows_depend_on_their_prefix_only() {
    for (device_name, device) in others() {
        for name in LLAMAS {
            let ids = Reference::of(name).ids("input_ids");
            let model = Model::open(&golden(name), &device).unwrap();
            assert_bits(&mut model.into_language_model(), &ids, &format!("{device_name} {name}"));
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
    let config = TransformerConfig {
        vocab: 40,
        hidden: 16,
        intermediate: 24,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        context: 4096,
        norm_epsilon: 1e-5,
        rope: RopeConfig { theta: 10_000.0, scaling: RopeScaling::None },
        attention_bias: true,
        mlp_bias: false,
        tied_head: true,
    };
    for (device_name, device) in others() {
        let network = config.init(&mut Arbitrary(device.clone())).unwrap();
        let mut model = TransformerModel::new(network, &config, &device);
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
