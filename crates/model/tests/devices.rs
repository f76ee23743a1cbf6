//! The promises on every device but the processor that this build and this machine have: the
//! reference's logits, the same bits in any pieces, and memory that does not grow.

use draftproof_decode::{LanguageModel, lm::Pass};
use draftproof_kernels::burn as kernels;
use draftproof_model::{Device, Model, Role, device};

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

/// 2 000 steps: drafts of up to eight tokens, cut back to one, beyond the point where caches grow.
#[test]
fn memory_is_flat_over_growth_and_truncation() {
    for (device_name, device) in others() {
        let mut model = Model::open(&golden("llama"), &device).unwrap().into_language_model();
        let ids = Reference::of("llama").ids("input_ids");
        let context = model.context();
        let mut walk = |steps: usize| {
            let sequence = model.open().unwrap();
            let mut next = ids[0];
            for step in 0..steps {
                let mut tokens = vec![next];
                tokens.extend(ids.iter().cycle().skip(step).take(step % 8));
                let held = model.len(sequence).unwrap();
                if held + tokens.len() > context {
                    model.truncate(sequence, context / 4).unwrap();
                }
                let held = model.len(sequence).unwrap();
                let rows = tokens.len();
                let pass = Pass { sequence, tokens: &tokens, rows };
                next = argmax(model.forward(&[pass]).unwrap()[0].row(0));
                model.truncate(sequence, held + 1).unwrap();
            }
            model.close(sequence);
        };
        walk(200);
        let (used, reserved) = kernels::memory(&device).expect("a device that counts");
        walk(2000);
        let (used_after, reserved_after) = kernels::memory(&device).expect("a device that counts");
        println!(
            "{device_name}: {used} of {reserved} bytes, then {used_after} of {reserved_after}"
        );
        // Other tests of this process hold models of their own on other streams meanwhile.
        assert!(reserved_after <= reserved, "{device_name}: {reserved} then {reserved_after}");
    }
}
