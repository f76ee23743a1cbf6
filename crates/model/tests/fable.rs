use std::{fs, path::Path};

use draftproof_decode::{LanguageModel, Token, lm::Pass};
use draftproof_model::{
    Model, Role, WeightType,
    pair::{self, Evidence, Pairing},
};
use serde::Deserialize;

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

fn reference() -> Reference {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fable/reference.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn model(role: Role) -> Model {
    Model::builtin("fable", role, &cpu()).unwrap()
}

#[test]
fn greedy_text_is_the_reference() {
    let mut model = model(Role::Target);
    let tokenizer = model.tokenizer().unwrap().clone();
    for case in reference().greedy {
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
        let mut model = model(role).into_language_model();
        let sequence = model.open().unwrap();
        let rows = feed(&mut model, sequence, &tokens(&ids));
        assert_eq!(expected.len(), ids.len());
        let mut worst = 0_f32;
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(expected.len(), 8);
            for (a, b) in rows.row(i).iter().zip(expected) {
                worst = worst.max((a - b).abs());
            }
        }
        println!("{role:?}: {worst:e}");
        assert!(worst < TOLERANCE, "{role:?}: {worst:e}");
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
