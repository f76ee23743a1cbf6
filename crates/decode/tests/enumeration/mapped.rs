//! Drafts of another vocabulary: fewer ids, more ids, padding, and ids that mean other strings.
//!
//! The emitted law must be the target's with `==`, as for any draft; and proposals must be drawn
//! from the draft's law over the tokens that both have.

use std::cell::Cell;

use draftproof_decode::{
    LanguageModel, Limits, ModelError, Settings, TableModel, Token,
    draft::{
        length::DraftLength,
        mapped::{Mapped, TokenMap},
        model::ModelDrafter,
    },
    lm::{Pass, SequenceId},
    noise::ChaCha,
    verify::{BlockRule, Coupled, Rejection, Verifier},
};

use crate::{
    paths::{assert_is_law, enumerate},
    sampler, settings,
    setup::{Case, VOCAB, constant, table, tokens},
};

/// Rows of `vocab` logits that all lie below zero, but for padding from `real` on, which is huge.
fn draft(vocab: usize, real: usize) -> TableModel {
    TableModel::new(vocab, 64, 1, move |last| {
        let mut row: Vec<f32> =
            (0..vocab).map(|id| -0.5 - ((id * 5 + last[0].index() * 3) % 7) as f32 / 2.0).collect();
        row[real..].fill(90.0);
        row
    })
}

/// A draft and what it calls the target's ids; None: by the same numbers.
type Vocabulary = (&'static str, TableModel, Option<TokenMap>);

fn vocabularies() -> Vec<Vocabulary> {
    let map = |ids: [Option<u32>; VOCAB]| {
        Some(TokenMap::new(ids.iter().map(|id| id.map(Token)).collect()))
    };
    vec![
        ("a prefix", draft(3, 3), None),
        ("padded", draft(7, VOCAB), None),
        ("all, in another order", draft(4, 4), map([Some(3), Some(0), Some(1), Some(2)])),
        // The end of the text, 3, is among those that both have.
        ("a part, among others", draft(6, 6), map([Some(4), None, Some(0), Some(5)])),
        // It is not.
        ("a part without the end", draft(3, 3), map([Some(2), None, Some(0), None])),
        // An id that a trimmed head has lost is as good as no id.
        ("trimmed", draft(3, 3), map([Some(2), Some(5), Some(1), Some(0)])),
        ("padding in a map", draft(6, VOCAB), map([Some(1), None, Some(0), Some(3)])),
        ("nothing", draft(4, 4), map([None; VOCAB])),
    ]
}

fn with_model<T>(
    (_, model, map): &Vocabulary,
    body: impl FnOnce(&mut dyn LanguageModel) -> T,
) -> T {
    let mut model = model.clone();
    match map {
        None => body(&mut model),
        Some(map) => body(&mut Mapped::new(&mut model, map)),
    }
}

fn assert_exact(verifier: &dyn Verifier) {
    let (target, prompt, count) = (table(1), tokens(&[0, 2]), Cell::new(0_u64));
    let mut drafted = 0;
    for (name, settings) in settings() {
        let sampler = sampler(settings, VOCAB);
        for gamma in 1..=2 {
            let limits = Limits {
                max_tokens: gamma + 1,
                draft_len: DraftLength::Fixed(gamma),
                eos: tokens(&[3]),
            };
            let case = Case {
                target: &target,
                verifier,
                sampler: &sampler,
                prompt: &prompt,
                limits: &limits,
            };
            let expected = case.target_law();
            for vocabulary in vocabularies() {
                let law = enumerate(|noise| {
                    count.set(count.get() + 1);
                    with_model(&vocabulary, |model| {
                        let session =
                            case.run(&[], usize::MAX, &mut ModelDrafter::new(model), noise);
                        drafted += session.stats().drafted;
                        session.generated().to_vec()
                    })
                });
                assert_is_law(&law);
                assert!(law == expected, "{name}, {gamma}, {}", vocabulary.0);
            }
        }
    }
    assert!(drafted > count.get() / 4, "{drafted} tokens drafted on {} paths", count.get());
}

#[test]
fn rejection_keeps_the_law_with_drafts_of_another_vocabulary() {
    assert_exact(&Rejection);
}

#[test]
fn block_keeps_the_law_with_drafts_of_another_vocabulary() {
    assert_exact(&BlockRule);
}

#[test]
fn coupled_text_does_not_depend_on_the_drafts_vocabulary() {
    let (target, prompt) = (table(5), tokens(&[0]));
    for (name, settings) in settings() {
        let sampler = sampler(settings, VOCAB);
        let text = |vocabulary: Option<&Vocabulary>| {
            let length = if vocabulary.is_some() { 3 } else { 0 };
            let limits =
                Limits { max_tokens: 20, draft_len: DraftLength::Fixed(length), eos: Vec::new() };
            let case = Case {
                target: &target,
                verifier: &Coupled,
                sampler: &sampler,
                prompt: &prompt,
                limits: &limits,
            };
            let silent = ("nobody", target.clone(), None);
            with_model(vocabulary.unwrap_or(&silent), |model| {
                let mut drafter = ModelDrafter::racing(model);
                case.run(&[], usize::MAX, &mut drafter, &mut ChaCha).generated().to_vec()
            })
        };
        for vocabulary in vocabularies() {
            assert_eq!(text(Some(&vocabulary)), text(None), "{name}, {}", vocabulary.0);
        }
    }
}

/// The target's own law under other ids is accepted without exception; if a quarter of it has no id
/// in common, q is the rest of it, made whole: α = Σ min(p, q) = 3/4.
#[test]
fn q_is_the_drafts_law_over_what_both_have() {
    let p = [0.25_f32; VOCAB];
    let alpha = |ids: [Option<u32>; VOCAB]| {
        let map = TokenMap::new(ids.iter().map(|id| id.map(Token)).collect());
        let mut model = TableModel::new(VOCAB, 64, 1, move |_| p.map(f32::ln).to_vec());
        let mut mapped = Mapped::new(&mut model, &map);
        let limits = Limits { max_tokens: 2, draft_len: DraftLength::Fixed(1), eos: Vec::new() };
        let case = Case {
            target: &constant(p),
            verifier: &Rejection,
            sampler: &sampler(Settings::default(), VOCAB),
            prompt: &tokens(&[0]),
            limits: &limits,
        };
        let session = case.run(&[], 1, &mut ModelDrafter::new(&mut mapped), &mut ChaCha);
        assert_eq!(session.stats().drafted, 1);
        session.stats().alpha().expect("a token was judged")
    };
    assert_eq!(alpha([Some(2), Some(3), Some(1), Some(0)]), 1.0);
    let rest = alpha([Some(2), Some(3), Some(1), None]);
    assert!((rest - 0.75).abs() < 1e-12, "{rest}");
}

fn pass(sequence: SequenceId, tokens: &[Token]) -> Pass<'_> {
    Pass { sequence, tokens, rows: 1 }
}

#[test]
fn a_map_translates_both_ways_and_refuses_what_it_lacks() {
    let map = TokenMap::new(vec![Some(Token(2)), None, Some(Token(0))]);
    assert_eq!((map.vocab(), map.shared()), (3, 2));
    let mut model = TableModel::new(3, 8, 1, |last| vec![0.0, 1.0, 10.0 + last[0].0 as f32]);
    let mut mapped = Mapped::new(&mut model, &map);
    let sequence = mapped.open().expect("opened");
    let rows = mapped.forward(&[pass(sequence, &[Token(2), Token(0)])]).expect("rows");
    assert_eq!(rows[0].row(0), [12.0, f32::NEG_INFINITY, 0.0]);
    for token in [Token(1), Token(3)] {
        assert!(!mapped.knows(token));
        let error = mapped.forward(&[pass(sequence, &[Token(0), token])]).expect_err("unknown");
        assert!(matches!(error, ModelError::UnknownToken { token: t, vocab: 3 } if t == token));
    }
    assert_eq!(mapped.len(sequence).expect("open"), 2);
    assert_eq!(model.held(sequence), Some(&tokens(&[0, 2])[..]));
}
