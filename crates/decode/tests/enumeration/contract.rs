//! Every setting of the contract inside a drafted block: a case for each, on a table where its effect
//! is large, with the speculative law equal to the plain one; and the known faults, which the same
//! comparison rejects.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Instant,
};

use draftproof_decode::{
    Decimal, Limits, Settings, TableModel, Token,
    draft::{Drafter, length::DraftLength, model::ModelDrafter, ngram::NgramDrafter},
    noise::ChaCha,
    sampler::{Order, TopKTies},
    verify::{BlockRule, Coupled, Rejection, Verifier},
};
use num_traits::ToPrimitive;

use crate::{
    Draft,
    faults::{Fault, Faulty, Forger, Memory, Noting, Observer},
    paths::{Exact, assert_is_law, distance, enumerate},
    round_by_round, sampler,
    setup::{Case, VOCAB, tokens},
};

/// A table without banned tokens, so that bans never empty a row, of `levels` logits, so that few of
/// them make ties.
fn full(seed: u64, levels: u64) -> TableModel {
    TableModel::new(VOCAB, 64, 2, |last| {
        let mut state = last.iter().fold(seed, |hash, token| {
            (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) % levels
        };
        (0..VOCAB).map(|_| next() as f32 * 3.0 / levels as f32).collect::<Vec<f32>>()
    })
}

fn decimal(text: &str) -> Decimal {
    text.parse().expect("a decimal")
}

/// A setting with what it is compared to, to show its effect.
struct Setting {
    name: &'static str,
    settings: Settings,
    without: Settings,
    levels: u64,
}

/// At least one case for each field. A field without a case does not compile: the pattern names
/// every field, and an unused one is an error.
#[deny(unused_variables)]
fn cases() -> Vec<Setting> {
    let Settings {
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        bad_words,
        no_repeat_ngram,
        min_tokens,
        eos,
        temperature,
        top_k,
        top_k_ties,
        typical,
        top_p,
        min_p,
        order,
    } = Settings::default();
    let plain = Settings::default;
    let bias = |bias: &[(u32, f64)]| {
        logit_bias.iter().copied().chain(bias.iter().map(|&(id, b)| (Token(id), b))).collect()
    };
    let words = |words: &[&[u32]]| {
        bad_words.iter().cloned().chain(words.iter().map(|word| tokens(word))).collect()
    };
    let one = |name, settings| Setting { name, settings, without: plain(), levels: 9 };
    let tied = |top_k_ties| Settings { top_k: top_k + 2, top_k_ties, ..plain() };
    let (typical, top_p, min_p) = (
        if typical == Decimal::ONE { decimal("0.5") } else { typical },
        if top_p == Decimal::ONE { decimal("0.7") } else { top_p },
        if min_p == Decimal::ZERO { decimal("0.4") } else { min_p },
    );
    let ordered = |order| Settings {
        repetition_penalty: 2.0,
        frequency_penalty: 0.8,
        logit_bias: vec![(Token(0), 2.0)],
        no_repeat_ngram: 3,
        temperature: 2.5,
        top_k: 3,
        typical: decimal("0.8"),
        top_p,
        min_p: decimal("0.3"),
        order,
        ..plain()
    };
    let in_order = |name, to: Order| Setting {
        name,
        settings: ordered(to),
        without: if to == order { plain() } else { ordered(order) },
        levels: 9,
    };
    vec![
        one(
            "repetition penalty 3",
            Settings { repetition_penalty: repetition_penalty * 3.0, ..plain() },
        ),
        one("presence penalty 2", Settings { presence_penalty: presence_penalty + 2.0, ..plain() }),
        one(
            "frequency penalty 1",
            Settings { frequency_penalty: frequency_penalty + 1.0, ..plain() },
        ),
        one(
            "rewards",
            Settings {
                repetition_penalty: 0.7,
                presence_penalty: -0.5,
                frequency_penalty: -0.5,
                ..plain()
            },
        ),
        one(
            "logit bias",
            Settings { logit_bias: bias(&[(0, 1.5), (1, f64::NEG_INFINITY)]), ..plain() },
        ),
        one(
            "bad words across borders",
            Settings { bad_words: words(&[&[0, 1], &[2, 2], &[1, 2, 0]]), ..plain() },
        ),
        one("no-repeat-ngram 2", Settings { no_repeat_ngram: no_repeat_ngram + 2, ..plain() }),
        one(
            "min-tokens 2, EOS in the block",
            Settings { min_tokens: min_tokens + 2, eos: [eos, tokens(&[3])].concat(), ..plain() },
        ),
        one("temperature 0.4", Settings { temperature: temperature * 0.4, ..plain() }),
        one("temperature 0", Settings { temperature: 0.0, ..plain() }),
        Setting { levels: 2, ..one("top-k 2, lowest id", tied(top_k_ties)) },
        Setting {
            without: tied(top_k_ties),
            levels: 2,
            ..one("top-k 2, ties kept", tied(TopKTies::Keep))
        },
        one("typical 0.5", Settings { typical, ..plain() }),
        one("top-p 0.7", Settings { top_p, ..plain() }),
        one("min-p 0.4", Settings { min_p, ..plain() }),
        in_order("all, default order", order),
        in_order("all, hf order", Order::HF),
        in_order("all, llama.cpp order", Order::LLAMA_CPP),
        in_order(
            "all, filters first and penalties after the temperature",
            "bans,top-p,min-p,top-k,temperature,penalties,bias,typical".parse().expect("an order"),
        ),
    ]
}

fn limits(gamma: usize, eos: &[u32]) -> Limits {
    Limits { max_tokens: gamma + 2, draft_len: DraftLength::Fixed(gamma), eos: tokens(eos) }
}

/// Two rounds at least, if not all is accepted: whole runs of few paths.
fn short() -> Limits {
    Limits { max_tokens: 3, ..limits(2, &[3]) }
}

fn tv(a: &Exact<Vec<Token>>, b: &Exact<Vec<Token>>) -> f64 {
    distance(a, b).to_f64().expect("a distance")
}

/// Each setting × gamma × drafter: the emitted law is the target's.
fn assert_exact(verifier: &dyn Verifier) {
    let (start, count, mut compared) = (Instant::now(), Cell::new(0), 0);
    let prompt = tokens(&[1, 0, 2, 0]);
    for Setting { name, settings, without, levels } in cases() {
        let target = full(11, levels);
        for gamma in 1..=3 {
            let limits = limits(gamma, &[3]);
            let case = |sampler| Case {
                target: &target,
                verifier,
                sampler,
                prompt: &prompt,
                limits: &limits,
            };
            let sampler_with = sampler(settings.clone(), VOCAB);
            let sampler_without = sampler(without.clone(), VOCAB);
            let case_with = case(&sampler_with);
            let expected = case_with.target_law();
            assert_is_law(&expected);
            let effect = tv(&expected, &case(&sampler_without).target_law());
            assert!(effect > 0.1, "{name}: an effect of {effect} shows nothing");
            for draft in [Draft::Ngram, Draft::Model(77)] {
                let law = round_by_round(&case_with, draft, &count);
                assert!(law == expected, "{name}, {gamma}, {draft:?}");
                compared += 1;
            }
        }
    }
    println!(
        "{} settings, {compared} cases, {} paths under {}, {:?}: all laws equal",
        cases().len(),
        count.get(),
        verifier.name(),
        start.elapsed()
    );
}

#[test]
fn every_setting_keeps_its_law_under_rejection() {
    assert_exact(&Rejection);
}

#[test]
fn every_setting_keeps_its_law_under_block() {
    assert_exact(&BlockRule);
}

/// What to do with a drafter.
type With<'a> = dyn FnMut(&mut dyn Drafter) + 'a;

/// The law of whole runs, over a drafter made anew for each path.
fn law_of(
    case: &Case<'_>,
    memory: &Rc<RefCell<Memory>>,
    mut drafter: impl FnMut(&mut With<'_>),
) -> Exact<Vec<Token>> {
    enumerate(|noise| {
        let mut text = Vec::new();
        drafter(&mut |drafter| {
            let mut noting = Noting { drafter, memory: memory.clone() };
            text = case.run(&[], usize::MAX, &mut noting, noise).generated().to_vec();
        });
        text
    })
}

/// Settings that depend on history, each on its own and all together.
fn historic() -> Vec<(&'static str, Settings)> {
    let all = Settings {
        repetition_penalty: 1.4,
        presence_penalty: 0.3,
        frequency_penalty: 0.7,
        bad_words: vec![tokens(&[0, 1])],
        no_repeat_ngram: 3,
        min_tokens: 2,
        eos: tokens(&[3]),
        ..Settings::default()
    };
    let mut settings: Vec<(&str, Settings)> = cases()
        .into_iter()
        .filter(|case| {
            let name = case.name;
            let history = ["penalty", "rewards", "words", "ngram", "min-tokens"];
            history.iter().any(|word| name.contains(word))
        })
        .map(|case| (case.name, case.settings))
        .collect();
    settings.push(("all that depends on history", all));
    settings
}

/// At place i of a block, prompt + committed + draft[..i], for p and for q; after a rejection, the
/// committed tokens and nothing else. On every path of whole runs.
#[test]
fn each_position_sees_its_own_prefix() {
    let (target, draft) = (full(11, 9), full(77, 9));
    let (prompt, limits) = (tokens(&[1, 0, 1]), short());
    let mut paths = 0;
    for (name, settings) in historic() {
        let sampler = sampler(settings, VOCAB);
        for rule in [&Rejection as &dyn Verifier, &BlockRule] {
            for drawn in [true, false] {
                let memory = Rc::new(RefCell::new(Memory::default()));
                let (target, sampler) = (&target, &sampler);
                let right =
                    Faulty { fault: Fault::None, rule, target, sampler, memory: memory.clone() };
                let verifier = &Observer { right, draft: drawn.then_some(&draft) };
                let case = Case { target, verifier, sampler, prompt: &prompt, limits: &limits };
                let law = law_of(&case, &memory, |run| {
                    paths += 1;
                    if drawn {
                        run(&mut ModelDrafter::new(&mut draft.clone()));
                    } else {
                        run(&mut NgramDrafter);
                    }
                });
                assert!(law == case.target_law(), "{name}, {rule:?}");
            }
        }
    }
    println!("{paths} paths observed");
}

/// Engines that advance history by rounds, or leave the settings out at drafted places.
#[test]
fn wrong_prefixes_are_rejected() {
    let (target, draft) = (full(11, 9), full(77, 9));
    let (prompt, limits) = (tokens(&[1, 0, 1]), short());
    for (name, settings) in historic() {
        let sampler = sampler(settings, VOCAB);
        for rule in [&Rejection as &dyn Verifier, &BlockRule] {
            for fault in [Fault::None, Fault::Frozen, Fault::LastOnly, Fault::BonusOnly] {
                let memory = Rc::new(RefCell::new(Memory::default()));
                let (target, sampler) = (&target, &sampler);
                let verifier = &Faulty { fault, rule, target, sampler, memory: memory.clone() };
                let case = Case { target, verifier, sampler, prompt: &prompt, limits: &limits };
                let law = law_of(&case, &memory, |run| {
                    run(&mut ModelDrafter::new(&mut draft.clone()));
                });
                assert_is_law(&law);
                let distance = tv(&law, &case.target_law());
                println!("{name}, {rule:?}, {fault:?}: total variation {distance:.4}");
                assert_eq!(distance == 0.0, fault == Fault::None, "{name}, {fault:?} survives");
            }
        }
    }
}

/// q must be the law that drew the token. Which law that is does not matter: a draft at another
/// temperature, without the penalties, or with stale counts is exact if it reports just that.
#[test]
fn a_draft_may_differ_but_not_lie() {
    let (target, table) = (full(11, 9), full(77, 9));
    let (prompt, limits) = (tokens(&[1, 0, 1]), short());
    let plain = sampler(Settings::default(), VOCAB);
    let cold = sampler(Settings { temperature: 0.4, ..Settings::default() }, VOCAB);
    let counting = sampler(Settings { frequency_penalty: 1.0, ..Settings::default() }, VOCAB);
    for (name, target_sampler, draws, reports) in [
        ("drawn at 1, reported at 0.4", &cold, (&plain, false), (&cold, false)),
        ("drawn at 0.4, reported at 1", &plain, (&cold, false), (&plain, false)),
        ("drawn without penalty, reported with", &counting, (&plain, false), (&counting, false)),
        ("drawn by stale counts, reported fresh", &counting, (&counting, true), (&counting, false)),
        ("drawn fresh, reported by stale counts", &counting, (&counting, false), (&counting, true)),
    ] {
        for rule in [&Rejection as &dyn Verifier, &BlockRule] {
            let sampler = target_sampler;
            let case =
                Case { target: &target, verifier: rule, sampler, prompt: &prompt, limits: &limits };
            let expected = case.target_law();
            let memory = Rc::default();
            let law = |draws, reports| {
                law_of(&case, &memory, |run| {
                    run(&mut Forger { table: &table, draws, reports });
                })
            };
            let lie = tv(&law(draws, reports), &expected);
            println!("{name}, {rule:?}: total variation {lie:.4}");
            assert!(lie > 0.0, "{name}: survives");
            for honest in [draws, reports] {
                assert!(law(honest, honest) == expected, "{name}: told, and still wrong");
            }
        }
    }
}

/// Two tokens of equal logits, frequency penalty 1, a draft that always proposes A: the chance of
/// AAAA is ½·0.2689·0.1192·0.0474, and ½⁴ where the counts are stale inside the block.
#[test]
fn a_run_of_four_has_its_known_chance() {
    let flat = TableModel::new(2, 64, 1, |_| vec![0.0, 0.0]);
    let always = TableModel::new(2, 64, 1, |_| vec![0.0, f32::NEG_INFINITY]);
    let settings = Settings { frequency_penalty: 1.0, ..Settings::default() };
    let sampler = &sampler(settings, 2);
    let (prompt, limits) = (tokens(&[1]), Limits { max_tokens: 4, ..limits(3, &[]) });
    let chance = |law: &Exact<Vec<Token>>| law[&tokens(&[0; 4])].to_f64().expect("a chance");
    for rule in [&Rejection as &dyn Verifier, &BlockRule] {
        for (fault, expected) in [(Fault::None, 7.60e-4), (Fault::Frozen, 6.25e-2)] {
            let memory = Rc::new(RefCell::new(Memory::default()));
            let target = &flat;
            let verifier = &Faulty { fault, rule, target, sampler, memory: memory.clone() };
            let case = Case { target, verifier, sampler, prompt: &prompt, limits: &limits };
            let law = law_of(&case, &memory, |run| {
                run(&mut ModelDrafter::new(&mut always.clone()));
            });
            let found = chance(&law);
            println!("{rule:?}, {fault:?}: P(AAAA) = {found:.3e}");
            assert!((found / expected - 1.0).abs() < 1e-3, "{fault:?}: {found}");
            assert_eq!(law == case.target_law(), fault == Fault::None);
            // The engine itself, without a stand-in.
            let engine = Case { verifier: rule, ..case };
            let law = law_of(&engine, &memory, |run| {
                run(&mut ModelDrafter::new(&mut always.clone()));
            });
            assert!(law == case.target_law(), "{rule:?}");
        }
    }
}

/// Under every setting, coupled text is the same token for token, whatever drafts and however long.
#[test]
fn every_setting_keeps_its_coupled_text() {
    let (prompt, mut accepted) = (tokens(&[1, 0, 2, 0]), 0);
    for Setting { name, settings, levels, .. } in cases() {
        let sampler = &sampler(settings, VOCAB);
        for seed in 0..20 {
            let (target, mut draft) = (&full(seed, levels), full(77, 9));
            let mut text = |drafted, gamma| {
                let limits = &Limits { max_tokens: 12, ..limits(gamma, &[3]) };
                let case = Case { target, verifier: &Coupled, sampler, prompt: &prompt, limits };
                let run =
                    |drafter: &mut dyn Drafter| case.run(&[], usize::MAX, drafter, &mut ChaCha);
                let session = match drafted {
                    true => run(&mut ModelDrafter::racing(&mut draft)),
                    false => run(&mut NgramDrafter),
                };
                accepted += session.stats().accepted;
                session.generated().to_vec()
            };
            let plain = text(false, 0);
            for (drafted, gamma) in [(true, 1), (true, 2), (true, 5), (false, 1), (false, 4)] {
                assert_eq!(text(drafted, gamma), plain, "{name}, {drafted}, {gamma}");
            }
        }
    }
    assert!(accepted > 1000, "only {accepted} drafted tokens were ever accepted");
}

/// EOS ends no text before token M + 1, and there it does, in the middle of a block.
#[test]
fn eos_is_possible_exactly_from_the_next_token_on() {
    let target = full(11, 9);
    let settings = Settings { min_tokens: 4, eos: tokens(&[3]), ..Settings::default() };
    let sampler = &sampler(settings, VOCAB);
    let (prompt, limits) = (tokens(&[0]), Limits { max_tokens: 6, ..limits(3, &[3]) });
    let case =
        Case { target: &target, verifier: &Rejection, sampler, prompt: &prompt, limits: &limits };
    let law = round_by_round(&case, Draft::Twin, &Cell::new(0));
    let lengths: Vec<usize> =
        law.keys().filter(|text| text.last() == Some(&Token(3))).map(Vec::len).collect();
    assert_eq!(lengths.iter().min(), Some(&5));
    assert!(lengths.contains(&6));
}
