use draftproof_decode::{
    LanguageModel, ModelError, Token,
    lm::{Pass, SequenceId},
};
use draftproof_model::{Model, Runner};
use proptest::prelude::*;

use crate::support::{
    CHECKPOINTS, Reference, TOLERANCE, bits, cpu, distance, feed, golden, open, tokens,
};

#[test]
fn truncation_is_as_if_the_tail_had_never_been() {
    for name in CHECKPOINTS {
        let reference = Reference::of(name);
        let (ids, full) = (reference.ids("input_ids"), reference.rows("logits_full"));
        let mut model = open(name);
        for len in 1..=ids.len() {
            for cut in 0..len {
                let [one, two] = [(); 2].map(|()| model.open().unwrap());
                // Another tail than the one that follows: what was cut off must not matter.
                let tail: Vec<Token> = ids[cut..len].iter().map(|t| Token(319 - t.0)).collect();
                if cut > 0 {
                    feed(&mut model, one, &ids[..cut]);
                    feed(&mut model, two, &ids[..cut]);
                }
                feed(&mut model, one, &tail);
                model.truncate(one, cut).unwrap();
                assert_eq!(model.len(one).unwrap(), cut);
                let cut_off = feed(&mut model, one, &ids[cut..]);
                let fresh = feed(&mut model, two, &ids[cut..]);
                assert_eq!(bits(&cut_off), bits(&fresh), "{name} {len} {cut}");
                assert!(distance(&cut_off, &full, cut) < TOLERANCE, "{name} {len} {cut}");
                model.close(one);
                model.close(two);
            }
        }
    }
}

/// Whatever of a draft is kept, at lengths around the window and beyond, what follows has the bits
/// of a text that was read one by one.
#[test]
fn drafts_are_cut_anywhere_around_a_window() {
    const WINDOW: usize = 8;
    for name in ["mistral", "gemma2", "gemma3"] {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = open(name);
        let windows = Model::open(&golden(name), &cpu()).unwrap();
        let windows = &windows.config().transformer.layers;
        assert!(windows.iter().any(|layer| layer.window == Some(WINDOW)));
        let plain = model.open().unwrap();
        let plain: Vec<Vec<u32>> =
            ids.iter().map(|&id| bits(&feed(&mut model, plain, &[id]))).collect();
        for prompt in WINDOW - 2..=WINDOW + 6 {
            for draft in 1..=5 {
                for kept in 0..=draft {
                    let sequence = model.open().unwrap();
                    feed(&mut model, sequence, &ids[..prompt]);
                    let end = prompt + kept;
                    let wrong = (kept..draft).map(|i| Token(319 - ids[prompt + i].0));
                    let block: Vec<Token> = ids[prompt..end].iter().copied().chain(wrong).collect();
                    feed(&mut model, sequence, &block);
                    model.truncate(sequence, end).unwrap();
                    for (start, size) in [(end, 1), (end + 1, 3)] {
                        let rows = feed(&mut model, sequence, &ids[start..start + size]);
                        let expected = plain[start..start + size].concat();
                        assert!(bits(&rows) == expected, "{name} {prompt} {draft} {kept} {start}");
                    }
                    model.close(sequence);
                }
            }
        }
    }
}

/// Three layers with a window of 8 see 3 · 7 positions back, and not one more.
#[test]
fn a_window_ends_exactly_where_it_should() {
    let ids = Reference::of("mistral").ids("input_ids");
    let mut model = open("mistral");
    let mut last_row = |changed: Option<usize>| {
        let mut ids = ids.clone();
        if let Some(changed) = changed {
            ids[changed] = Token((ids[changed].0 + 1) % 320);
        }
        let sequence = model.open().unwrap();
        feed(&mut model, sequence, &ids).row(23).to_vec()
    };
    let row = last_row(None);
    assert_eq!(last_row(Some(0)), row);
    assert_eq!(last_row(Some(1)), row);
    for changed in 2..24 {
        assert_ne!(last_row(Some(changed)), row, "{changed}");
    }
}

#[test]
fn a_row_does_not_see_what_comes_after_it() {
    for name in CHECKPOINTS {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = open(name);
        for changed in 1..ids.len() {
            let [one, two] = [(); 2].map(|()| model.open().unwrap());
            let mut other = ids.clone();
            other[changed] = Token((other[changed].0 + 1) % 320);
            let (a, b) = (feed(&mut model, one, &ids), feed(&mut model, two, &other));
            for i in 0..changed {
                assert_eq!(a.row(i), b.row(i), "{name} {changed} {i}");
            }
            assert_ne!(a.row(changed), b.row(changed), "{name}");
        }
    }
}

#[test]
fn a_fork_continues_alone() {
    for name in CHECKPOINTS {
        assert_fork(&mut open(name), name);
    }
}

pub(crate) fn assert_fork(model: &mut Runner, name: &str) {
    let ids = Reference::of(name).ids("input_ids");
    let origin = model.open().unwrap();
    feed(model, origin, &ids[..10]);
    let fork = model.fork(origin).unwrap();
    assert_ne!(fork, origin);
    let other = tokens(&[3, 4, 5]);
    let in_fork = feed(model, fork, &other);
    let in_origin = feed(model, origin, &ids[10..13]);
    for (found, rest) in [(in_fork, &other[..]), (in_origin, &ids[10..13])] {
        let fresh = model.open().unwrap();
        feed(model, fresh, &ids[..10]);
        assert_eq!(bits(&found), bits(&feed(model, fresh, rest)));
    }
    model.close(origin);
    assert!(matches!(model.len(origin), Err(ModelError::NotOpen { .. })));
    assert_eq!(model.len(fork).unwrap(), 13);
    feed(model, fork, &other);
    model.truncate(fork, 5).unwrap();
    let again = feed(model, fork, &ids[5..9]);
    let fresh = model.open().unwrap();
    feed(model, fresh, &ids[..5]);
    assert!(distance(&again, &feed(model, fresh, &ids[5..9]), 0) < TOLERANCE);
}

#[test]
fn sequences_that_share_a_pass_do_not_see_each_other() {
    for name in CHECKPOINTS {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = open(name);
        let texts = [&ids[..], &ids[5..6], &ids[3..12], &ids[7..]];
        let held = [4, 0, 9, 1];
        let wanted = [3, 1, 0, 16];
        let together: Vec<SequenceId> = held
            .iter()
            .zip(texts)
            .map(|(&held, text)| {
                let sequence = model.open().unwrap();
                if held > 0 {
                    feed(&mut model, sequence, &text[..held.min(text.len() - 1)]);
                }
                sequence
            })
            .collect();
        let alone: Vec<SequenceId> =
            together.iter().map(|&sequence| model.fork(sequence).unwrap()).collect();
        let pass = |i: usize, ids: &[SequenceId], model: &Runner| {
            let sequence = ids[i];
            let done = model.len(sequence).unwrap();
            Pass { sequence, tokens: &texts[i][done..], rows: wanted[i] }
        };
        let batch: Vec<Pass<'_>> = (0..4).map(|i| pass(i, &together, &model)).collect();
        let rows = model.forward(&batch).unwrap();
        assert_eq!(rows.len(), 4);
        for i in 0..4 {
            let single = pass(i, &alone, &model);
            let expected = model.forward(&[single]).unwrap().remove(0);
            assert_eq!(rows[i].len(), wanted[i]);
            assert_eq!(expected.len(), wanted[i]);
            assert!(distance(&rows[i], &expected, 0) < TOLERANCE, "{name} {i}");
            assert_eq!(model.len(together[i]).unwrap(), texts[i].len());
        }
    }
}

#[test]
fn a_failed_pass_changes_nothing() {
    assert_failure(&mut open("llama"));
}

/// Of the golden llama.
pub(crate) fn assert_failure(model: &mut Runner) {
    let ids = Reference::of("llama").ids("input_ids");
    let [one, two, fresh] = [(); 3].map(|()| model.open().unwrap());
    feed(model, one, &ids[..6]);
    feed(model, fresh, &ids[..6]);
    let long = vec![Token(5); 256];
    let good = Pass { sequence: one, tokens: &ids[6..9], rows: 1 };
    let unknown = tokens(&[3, 320]);
    let bad = [
        Pass { sequence: two, tokens: &[], rows: 0 },
        Pass { sequence: two, tokens: &ids[..2], rows: 3 },
        Pass { sequence: two, tokens: &unknown, rows: 1 },
        Pass { sequence: one, tokens: &ids[..2], rows: 1 },
        Pass { sequence: SequenceId(1 << 40), tokens: &ids[..2], rows: 1 },
    ];
    for bad in bad {
        assert!(model.forward(&[good, bad]).is_err(), "{bad:?}");
        assert_eq!((model.len(one).unwrap(), model.len(two).unwrap()), (6, 0));
    }
    let overflow = Pass { sequence: one, tokens: &long, rows: 1 };
    assert!(matches!(model.forward(&[overflow]), Err(ModelError::ContextExceeded { .. })));
    assert!(matches!(model.truncate(one, 7), Err(ModelError::TruncateBeyond { .. })));
    assert_eq!(model.len(one).unwrap(), 6);
    let after = feed(model, one, &ids[6..]);
    assert_eq!(bits(&after), bits(&feed(model, fresh, &ids[6..])));
}

#[test]
fn edges_of_the_context_and_of_passes() {
    assert_edges(&mut open("llama"));
}

/// Of the golden llama.
pub(crate) fn assert_edges(model: &mut Runner) {
    assert_eq!(model.forward(&[]).unwrap(), []);
    let sequence = model.open().unwrap();
    let silent = Pass { sequence, tokens: &tokens(&[7, 8]), rows: 0 };
    let rows = model.forward(&[silent]).unwrap();
    assert!(rows.len() == 1 && rows[0].is_empty());
    assert_eq!(model.len(sequence).unwrap(), 2);
    let fill = vec![Token(9); 254];
    feed(model, sequence, &fill);
    let one_more = Pass { sequence, tokens: &tokens(&[1]), rows: 1 };
    assert!(matches!(model.forward(&[one_more]), Err(ModelError::ContextExceeded { .. })));
    model.truncate(sequence, 255).unwrap();
    assert_eq!(model.forward(&[one_more]).unwrap()[0].len(), 1);
    model.close(sequence);
    model.close(sequence);
    assert!(matches!(model.forward(&[one_more]), Err(ModelError::NotOpen { .. })));
    assert!(model.fork(sequence).is_err() && model.truncate(sequence, 0).is_err());
    assert_ne!(model.open().unwrap(), sequence);
}

#[test]
fn a_model_can_move_to_another_thread() {
    let mut model = open("llama");
    let sequence = model.open().unwrap();
    let ids = Reference::of("llama").ids("input_ids");
    let first = feed(&mut model, sequence, &ids[..8]);
    model.truncate(sequence, 0).unwrap();
    let ids = ids[..8].to_vec();
    let again = std::thread::spawn(move || feed(&mut model, sequence, &ids)).join().unwrap();
    assert_eq!(bits(&first), bits(&again));
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<u32>),
    Truncate(usize),
    Fork,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(0_u32..320, 1..9).prop_map(Step::Append),
        2 => (0_usize..40).prop_map(Step::Truncate),
        1 => Just(Step::Fork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_schedule_gives_the_rows_of_one_pass(
        name in prop::sample::select(&CHECKPOINTS),
        steps in prop::collection::vec(step(), 1..12),
    ) {
        let mut model = open(name);
        let mut sequence = model.open().unwrap();
        let mut text: Vec<Token> = Vec::new();
        for step in steps {
            match step {
                Step::Append(ids) => {
                    let ids = tokens(&ids);
                    let rows = feed(&mut model, sequence, &ids);
                    let first = text.len();
                    text.extend(ids);
                    let fresh = model.open().unwrap();
                    let full = feed(&mut model, fresh, &text);
                    model.close(fresh);
                    prop_assert!(distance(&rows, &full, first) < TOLERANCE);
                }
                Step::Truncate(len) => {
                    let len = len.min(text.len());
                    text.truncate(len);
                    model.truncate(sequence, len).unwrap();
                }
                Step::Fork => {
                    let fork = model.fork(sequence).unwrap();
                    if !text.is_empty() {
                        // The origin goes another way.
                        model.truncate(sequence, text.len() - 1).unwrap();
                        feed(&mut model, sequence, &tokens(&[0, 1, 2]));
                    }
                    sequence = fork;
                }
            }
            prop_assert_eq!(model.len(sequence).unwrap(), text.len());
        }
    }
}
