use std::{fs, path::Path};

use draftproof_decode::{LanguageModel, Token, lm::Pass};
use draftproof_model::{
    Model, Role, WeightType,
    pair::{self, Evidence, Pairing},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::support::{TOLERANCE, argmax, cpu, feed, tokens};

#[derive(Deserialize)]
struct Reference {
    greedy: Vec<Greedy>,
    logits: Logits,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    margins: Vec<f32>,
}

#[derive(Deserialize)]
struct Logits {
    ids: Vec<u32>,
    target_first8_per_row: Vec<Vec<f32>>,
    draft_first8_per_row: Vec<Vec<f32>>,
}

/// What is known of the looped model.
#[derive(Deserialize)]
struct Looped {
    greedy: Vec<Greedy>,
    logits: LoopLogits,
}

#[derive(Deserialize)]
struct LoopLogits {
    ids: Vec<u32>,
    first8_per_row_after_loop: Vec<Vec<Vec<f32>>>,
}

fn read<T: DeserializeOwned>(folder: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    serde_json::from_slice(&fs::read(path.join(folder).join("reference.json")).unwrap()).unwrap()
}

fn reference() -> Reference {
    read("fable")
}

fn looped() -> Model {
    Model::builtin("fable-loop", Role::Target, &cpu()).unwrap()
}

fn model(role: Role) -> Model {
    Model::builtin("fable", role, &cpu()).unwrap()
}

#[test]
fn greedy_text_is_the_reference() {
    assert_greedy(model(Role::Target), reference().greedy);
    assert_greedy(looped(), read::<Looped>("fable-loop").greedy);
}

fn assert_greedy(mut model: Model, cases: Vec<Greedy>) {
    let tokenizer = model.tokenizer().unwrap().clone();
    for case in cases {
        assert_eq!(tokenizer.encode_bare(&case.prompt).unwrap(), tokens(&case.prompt_ids));
        let with_bos = tokenizer.encode(&case.prompt).unwrap();
        assert_eq!((with_bos[0], &with_bos[1..]), (Token(0), &tokens(&case.prompt_ids)[..]));
        assert!(case.margins.iter().all(|&margin| margin > TOLERANCE));
        let lm = model.language_model();
        let sequence = lm.open().unwrap();
        let mut next = tokens(&case.prompt_ids);
        for expected in case.ids {
            let rows = lm.forward(&[Pass { sequence, tokens: &next, rows: 1 }]).unwrap();
            next = vec![argmax(rows[0].row(0))];
            assert_eq!(next, [Token(expected)], "{}", case.prompt);
        }
        lm.close(sequence);
    }
}

#[test]
fn logits_are_the_reference() {
    let Logits { ids, target_first8_per_row, draft_first8_per_row } = reference().logits;
    for (role, expected) in
        [(Role::Target, target_first8_per_row), (Role::Draft, draft_first8_per_row)]
    {
        assert_logits(&mut model(role), &ids, &expected, &format!("{role:?}"));
    }
}

/// `expected`: the first eight logits of each row.
fn assert_logits(model: &mut Model, ids: &[u32], expected: &[Vec<f32>], about: &str) {
    let model = model.language_model();
    let sequence = model.open().unwrap();
    let rows = feed(model, sequence, &tokens(ids));
    assert_eq!(expected.len(), ids.len());
    let mut worst = 0_f32;
    for (i, expected) in expected.iter().enumerate() {
        assert_eq!(expected.len(), 8);
        for (a, b) in rows.row(i).iter().zip(expected) {
            worst = worst.max((a - b).abs());
        }
    }
    println!("{about}: {worst:e}");
    assert!(worst < TOLERANCE, "{about}: {worst:e}");
}

#[test]
fn every_loop_is_the_reference() {
    let LoopLogits { ids, first8_per_row_after_loop } = read::<Looped>("fable-loop").logits;
    let mut model = looped();
    assert_eq!((model.name(), model.loops()), ("fable-loop", Some(4)));
    assert_eq!((model.parameters(), model.weight_type()), (2_116_032, WeightType::Bf16));
    assert_eq!(first8_per_row_after_loop.len(), 4);
    for (loops, expected) in (1..).zip(first8_per_row_after_loop) {
        model.set_loops(Some(loops), None).unwrap();
        assert_logits(&mut model, &ids, &expected, &format!("loop {loops}"));
    }
}

#[test]
fn the_pair_is_a_pair() {
    let (target, draft) = (model(Role::Target), model(Role::Draft));
    assert_eq!((target.parameters(), draft.parameters()), (5_475_584, 893_568));
    assert_eq!(target.weight_type(), WeightType::Bf16);
    assert_eq!((target.name(), draft.name()), ("fable/target", "fable/draft"));
    assert_eq!(target.eos(), [Token(0)]);
    let expected = Pairing::SameIds { shared: 4096, evidence: Evidence::Strings };
    assert_eq!(pair::check(&target, &draft).unwrap(), expected);
    assert!(
        Model::builtin("fabel", Role::Draft, &cpu()).unwrap_err().to_string().contains("fable")
    );
}
