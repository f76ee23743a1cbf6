use draftproof_decode::{LanguageModel, ModelError, Token, lm::Pass};
use draftproof_model::pair::{self, Evidence, Pairing};
use serde_json::Value;

use crate::support::{Copy, Reference, argmax, feed, tokens};

/// Removes the token `id` from a copy's tokenizer, and the merge that made it.
fn forget(copy: &Copy, id: u32) {
    copy.edit("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let gone = vocab.iter().find(|(_, value)| **value == id).unwrap().0.clone();
        vocab.remove(&gone);
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        merges.retain(|merge| {
            let merge: Vec<&str> = match merge {
                Value::String(pair) => pair.split(' ').collect(),
                pair => pair.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect(),
            };
            merge.concat() != gone && !merge.contains(&gone.as_str())
        });
    });
}

#[test]
fn padding_rows_are_cut_off() {
    let copy = Copy::of("llama");
    forget(&copy, 319);
    let ids = Reference::of("llama").ids("input_ids");
    let full = Reference::of("llama").rows("logits_full");
    let mut model = copy.open().unwrap().into_language_model();
    assert_eq!(model.vocab(), 319);
    let sequence = model.open().unwrap();
    let rows = feed(&mut model, sequence, &ids);
    for i in 0..ids.len() {
        assert_eq!(rows.row(i).len(), 319);
        let pairs = rows.row(i).iter().zip(full.row(i));
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 2e-4));
    }
    let beyond = tokens(&[319]);
    let error = model.forward(&[Pass { sequence, tokens: &beyond, rows: 1 }]).unwrap_err();
    assert!(matches!(error, ModelError::UnknownToken { token: Token(319), vocab: 319 }));
    model.limit_vocab(100);
    model.limit_vocab(200);
    assert_eq!(model.vocab(), 100);
    assert_eq!(feed(&mut model, sequence, &tokens(&[7])).row(0).len(), 100);
}

#[test]
fn an_id_without_a_string_is_never_given() {
    let ids = Reference::of("llama").ids("input_ids");
    let best = argmax(Reference::of("llama").rows("logits_full").row(23));
    let copy = Copy::of("llama");
    forget(&copy, best.0);
    let mut model = copy.open().unwrap().into_language_model();
    assert_eq!(model.vocab(), 320);
    let sequence = model.open().unwrap();
    let rows = feed(&mut model, sequence, &ids);
    assert_eq!(rows.row(23)[best.index()], f32::NEG_INFINITY);
    assert_eq!(rows.row(23).iter().filter(|logit| !logit.is_finite()).count(), 1);
}

#[test]
fn the_same_strings_make_a_pair() {
    let (target, draft) = (Copy::of("pair-target"), Copy::of("pair-draft"));
    let check = || pair::check(&target.open().unwrap(), &draft.open().unwrap());
    let same = |shared, evidence| Pairing::SameIds { shared, evidence };
    assert_eq!(check().unwrap(), same(320, Evidence::Strings));
    forget(&draft, 319);
    assert_eq!(check().unwrap(), same(319, Evidence::Strings));
    // Ids that the draft cannot write are ids it never proposes.
    forget(&draft, 300);
    assert_eq!(check().unwrap(), same(319, Evidence::Strings));
    // Ids that only the draft can write need a map that leaves them out.
    let turned = pair::check(&draft.open().unwrap(), &target.open().unwrap()).unwrap();
    let Pairing::OtherIds { map, difference } = turned else { panic!("{turned:?}") };
    assert_eq!((map.vocab(), map.shared()), (319, 318));
    let message = difference.to_string();
    assert!(message.contains("token 300") && message.contains("no token"), "{message}");
}

/// Gives the ids of the draft's `vocabulary` to other strings.
fn rename(copy: &Copy, name: impl Fn(&str) -> String) {
    copy.edit("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object().unwrap();
        let renamed = vocab.iter().map(|(string, id)| (name(string), id.clone())).collect();
        json["model"]["vocab"] = Value::Object(renamed);
        json["model"]["merges"] = Value::Array(Vec::new());
    });
}

#[test]
fn strings_under_other_ids_are_mapped() {
    let (target, draft) = (Copy::of("pair-target"), Copy::of("pair-draft"));
    rename(&draft, |string| match string {
        "on" => "!".into(),
        "!" => "on".into(),
        other => other.into(),
    });
    let pairing = pair::check(&target.open().unwrap(), &draft.open().unwrap()).unwrap();
    assert_eq!(pairing.shared(), 320);
    let Pairing::OtherIds { map, difference } = pairing else { panic!("{pairing:?}") };
    let mark = target.open().unwrap().tokenizer().unwrap().encode_bare("!").unwrap()[0];
    assert_eq!(difference.id, mark);
    assert_eq!(
        difference.to_string(),
        format!("token {mark} is \"!\" in the target and \"on\" in the draft")
    );
    let other = map.to_draft(mark).unwrap();
    assert_ne!(other, mark);
    assert_eq!(map.to_draft(other), Some(mark));
    let moved = (0..320).map(Token::at).filter(|&token| map.to_draft(token) != Some(token));
    assert_eq!(moved.count(), 2);
}

#[test]
fn too_few_strings_in_common_name_the_first_id_that_differs() {
    let (target, draft) = (Copy::of("pair-target"), Copy::of("pair-draft"));
    // All but the special tokens; byte-level strings are letters, which have no "Ġ" behind them.
    rename(
        &draft,
        |string| {
            if string.starts_with('<') { string.into() } else { format!("{string}Ġ") }
        },
    );
    let error = pair::check(&target.open().unwrap(), &draft.open().unwrap()).unwrap_err();
    let message = error.to_string();
    for needle in ["token 3 is \"!\" in the target and \"!Ġ\" in the draft", "160 are needed"] {
        assert!(message.contains(needle), "{message}");
    }
}

#[test]
fn without_a_tokenizer_only_sizes_can_be_compared() {
    let (target, draft) = (Copy::of("pair-target"), Copy::of("pair-draft"));
    draft.remove("tokenizer.json");
    let check = || pair::check(&target.open().unwrap(), &draft.open().unwrap());
    assert_eq!(check().unwrap(), Pairing::SameIds { shared: 320, evidence: Evidence::SizesOnly });
    forget(&target, 319);
    let message = check().unwrap_err().to_string();
    assert!(message.contains("319") && message.contains("320"), "{message}");
}
