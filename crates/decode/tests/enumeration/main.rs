//! The proof by enumeration: **every** path of the real loop on table models, as exact rationals.
//!
//! The emitted law must equal the target's with `==`, whatever the draft, the draft length and the
//! settings are; and the same check must reject every wrong sampler in `mutants`. Nothing is sampled
//! and nothing is rounded, so there is no tolerance and no false alarm.

mod block;
mod contract;
mod faults;
mod golden;
mod mapped;
mod mutants;
mod setup;

use std::{cell::Cell, collections::BTreeMap, ops::RangeInclusive, time::Instant};

use draftproof_decode::{
    LanguageModel, Limits, Sampler, Session, Settings, TableModel, Token,
    draft::{
        Drafter, NoDrafter,
        length::{CostModel, DraftLength},
        model::ModelDrafter,
        ngram::NgramDrafter,
    },
    noise::{ChaCha, Forbidden, Recorded},
    verify::{BlockRule, Coupled, Rejection, Verifier},
};
use draftproof_verification::exact::paths;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive};

use paths::{Exact, assert_is_law, distance, enumerate, zero};
use setup::{Case, VOCAB, constant, table, tokens};

fn settings() -> Vec<(&'static str, Settings)> {
    let plain = Settings::default;
    vec![
        ("temperature 1", plain()),
        ("temperature 0.6", Settings { temperature: 0.6, ..plain() }),
        ("temperature 0", Settings { temperature: 0.0, ..plain() }),
        ("top-k 2", Settings { top_k: 2, ..plain() }),
        ("top-p 0.8", Settings { top_p: "0.8".parse().expect("a decimal"), ..plain() }),
        ("min-p 0.2", Settings { min_p: "0.2".parse().expect("a decimal"), ..plain() }),
    ]
}

fn sampler(settings: Settings, vocab: usize) -> Sampler {
    Sampler::new(settings, vocab).expect("settings in range")
}

fn limits(max_tokens: usize, gamma: usize) -> Limits {
    Limits { max_tokens, draft_len: DraftLength::Fixed(gamma), eos: tokens(&[3]) }
}

/// What drafts in a case; each run gets a fresh one.
#[derive(Clone, Copy, Debug)]
enum Draft {
    None,
    Ngram,
    /// A table with other rows than the target's.
    Model(u64),
    /// The target itself.
    Twin,
}

const DRAFTS: [Draft; 4] = [Draft::None, Draft::Ngram, Draft::Model(77), Draft::Twin];

impl Draft {
    fn with<T>(self, target: &TableModel, body: impl FnOnce(&mut dyn Drafter) -> T) -> T {
        let mut model = match self {
            Self::None => return body(&mut NoDrafter),
            Self::Ngram => return body(&mut NgramDrafter),
            Self::Model(seed) => table(seed),
            Self::Twin => target.clone(),
        };
        body(&mut ModelDrafter::new(&mut model))
    }
}

/// The law of whole texts by walking every path of a whole run: several rounds, one cache.
fn whole_runs(case: &Case<'_>, draft: Draft, count: &Cell<u64>) -> Exact<Vec<Token>> {
    enumerate(|noise| {
        count.set(count.get() + 1);
        draft.with(case.target, |drafter| {
            case.run(&[], usize::MAX, drafter, noise).generated().to_vec()
        })
    })
}

/// The law of whole texts by walking every path of one round from every text that a round can leave,
/// and composing: the same claim where whole runs have too many paths.
fn round_by_round(case: &Case<'_>, draft: Draft, count: &Cell<u64>) -> Exact<Vec<Token>> {
    let mut law = Exact::new();
    let mut open = BTreeMap::from([(Vec::new(), BigRational::one())]);
    // Texts only grow, so taking the shortest first sees each one once, with all its probability.
    while let Some(text) = open.keys().min_by_key(|text| text.len()).cloned() {
        let probability = open.remove(&text).unwrap_or_else(zero);
        let blocks = enumerate(|noise| {
            count.set(count.get() + 1);
            draft.with(case.target, |drafter| {
                let session = case.run(&text, 1, drafter, noise);
                (session.generated().to_vec(), session.finish().is_some())
            })
        });
        for ((longer, ended), share) in blocks {
            let into = if ended { &mut law } else { &mut open };
            *into.entry(longer).or_insert_with(zero) += &probability * share;
        }
    }
    law
}

/// The draft lengths of a grid: fixed ones, and `auto` under costs that make it stop at all places.
fn lengths(gammas: RangeInclusive<usize>) -> Vec<(usize, DraftLength)> {
    let auto = DraftLength::Auto(CostModel { draft_step: 0.1, row: 0.25 });
    let longest = *gammas.end();
    gammas
        .map(|gamma| (gamma + 2, DraftLength::Fixed(gamma)))
        .chain([(longest + 2, auto)])
        .collect()
}

type Walk = fn(&Case<'_>, Draft, &Cell<u64>) -> Exact<Vec<Token>>;

/// Walks `gammas` × every setting × every drafter, gamma + 2 tokens, and compares with `==`.
fn assert_exact(
    verifier: &dyn Verifier,
    seed: u64,
    prompt: &[u32],
    gammas: RangeInclusive<usize>,
    walk: Walk,
) {
    let (start, count, mut cases) = (Instant::now(), Cell::new(0), 0);
    let (target, prompt) = (table(seed), tokens(prompt));
    for (name, settings) in settings() {
        let sampler = sampler(settings, VOCAB);
        for (max_tokens, draft_len) in lengths(gammas.clone()) {
            let limits = Limits { max_tokens, draft_len, eos: tokens(&[3]) };
            let case = Case {
                target: &target,
                verifier,
                sampler: &sampler,
                prompt: &prompt,
                limits: &limits,
            };
            let expected = case.target_law();
            assert_is_law(&expected);
            for draft in DRAFTS {
                let law = walk(&case, draft, &count);
                assert!(law == expected, "{name}, {draft_len:?}, {draft:?}");
                cases += 1;
            }
        }
    }
    println!("{cases} cases, {} paths, {:?}: all laws equal", count.get(), start.elapsed());
}

/// At least two rounds, EOS at every place of a block, caches that live through rejections.
#[test]
fn rejection_keeps_the_law_of_whole_runs() {
    assert_exact(&Rejection, 1, &[0, 2], 1..=2, whole_runs);
}

/// Longer blocks, round by round.
#[test]
fn rejection_keeps_the_law_round_by_round() {
    assert_exact(&Rejection, 2, &[1], 1..=4, round_by_round);
}

/// As for rejection; coins behind a rejected place decide too, in every round anew.
#[test]
fn block_keeps_the_law_of_whole_runs() {
    assert_exact(&BlockRule, 1, &[0, 2], 1..=2, whole_runs);
}

/// Longer blocks, round by round.
#[test]
fn block_keeps_the_law_round_by_round() {
    assert_exact(&BlockRule, 2, &[1], 1..=4, round_by_round);
}

/// The two ways of enumerating agree, so that neither proves less than it says.
#[test]
fn whole_runs_equal_rounds_composed() {
    let (target, prompt, limits) = (table(3), tokens(&[2]), limits(3, 2));
    let case = Case {
        target: &target,
        verifier: &mutants::RULES[2],
        sampler: &sampler(Settings::default(), VOCAB),
        prompt: &prompt,
        limits: &limits,
    };
    let whole = whole_runs(&case, Draft::Model(77), &Cell::new(0));
    assert_is_law(&whole);
    assert!(whole == round_by_round(&case, Draft::Model(77), &Cell::new(0)));
    assert!(whole != case.target_law(), "a mutant's law");
}

/// The law of one token on Pair A, p = (.1, .2, .3, .4) and q = (.4, .3, .2, .1).
fn pair_a(drafter: &mut dyn Drafter, verifier: &dyn Verifier) -> [f64; VOCAB] {
    // Two tokens allow a draft of one; the first token is the one judged.
    let case = Case {
        target: &constant([0.1, 0.2, 0.3, 0.4]),
        verifier,
        sampler: &sampler(Settings::default(), VOCAB),
        prompt: &tokens(&[0]),
        limits: &Limits { max_tokens: 2, draft_len: DraftLength::Fixed(1), eos: Vec::new() },
    };
    let law = enumerate(|noise| case.run(&[], 1, drafter, noise).generated()[0]);
    assert_is_law(&law);
    std::array::from_fn(|id| {
        law.get(&Token::at(id)).map_or(0.0, |share| share.to_f64().expect("a probability"))
    })
}

fn close(found: [f64; VOCAB], expected: [f64; VOCAB]) -> bool {
    found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 6e-4)
}

/// Each mutant is the fault it claims to be: its law on Pair A is the known fingerprint.
#[test]
fn mutants_have_their_fingerprints() {
    let expected = [
        ("F1", [0.4, 0.3, 0.2, 0.1]),
        ("F2", [0.190, 0.290, 0.299, 0.221]),
        ("F3", [0.140, 0.280, 0.320, 0.260]),
        ("F4", [0.250, 0.000, 0.188, 0.563]),
        ("F5", [0.113, 0.267, 0.338, 0.283]),
        ("F6", [0.143, 0.286, 0.143, 0.429]),
        ("F7", [0.130, 0.260, 0.190, 0.420]),
        ("F8", [0.130, 0.220, 0.288, 0.363]),
        ("F12", [0.400, 0.300, 0.169, 0.131]),
    ];
    let draft = constant([0.4, 0.3, 0.2, 0.1]);
    let mut seen = BTreeMap::new();
    for rule in mutants::RULES {
        seen.insert(rule.name, pair_a(&mut ModelDrafter::new(&mut draft.clone()), &rule));
    }
    for mut drafter in mutants::drafters(&draft) {
        seen.insert(drafter.name, pair_a(&mut drafter, &Rejection));
    }
    for (tag, law) in expected {
        let (name, found) = seen
            .iter()
            .find(|(name, _)| name.split(' ').next() == Some(tag))
            .expect("a mutant for each fingerprint");
        assert!(close(*found, law), "{name}: {found:?} instead of {law:?}");
    }
    assert_eq!(seen.len(), expected.len());
    let right = pair_a(&mut ModelDrafter::new(&mut draft.clone()), &Rejection);
    assert!(close(right, [0.1, 0.2, 0.3, 0.4]), "{right:?}");
}

/// The check of the law tests above rejects every mutant, on the same tables.
#[test]
fn every_mutant_is_rejected() {
    let (target, prompt, limits) = (table(1), tokens(&[0, 2]), limits(3, 1));
    let sampler = sampler(Settings::default(), VOCAB);
    let case = |verifier| Case {
        target: &target,
        verifier,
        sampler: &sampler,
        prompt: &prompt,
        limits: &limits,
    };
    let expected = case(&Rejection).target_law();
    let report = |name: &str, law: &Exact<Vec<Token>>| {
        assert_is_law(law);
        let distance = distance(law, &expected).to_f64().expect("a distance");
        println!("{name}: total variation {distance:.4}");
        assert!(*law != expected, "{name} survives");
    };
    for rule in &mutants::RULES {
        report(rule.name, &whole_runs(&case(rule), Draft::Model(77), &Cell::new(0)));
    }
    for drafter in mutants::drafters(&table(77)) {
        let law = enumerate(|noise| {
            let drafter = &mut drafter.clone();
            case(&Rejection).run(&[], usize::MAX, drafter, noise).generated().to_vec()
        });
        report(drafter.name, &law);
    }
}

/// Greedy decoding never asks for noise, and its text is the plain greedy text, whatever drafts.
#[test]
fn greedy_never_touches_the_noise() {
    for seed in 0..20 {
        let target = table(seed);
        let text = |draft: Draft, draft_len| {
            let case = Case {
                target: &target,
                verifier: &Rejection,
                sampler: &sampler(Settings { temperature: 0.0, ..Settings::default() }, VOCAB),
                prompt: &tokens(&[0]),
                limits: &Limits {
                    max_tokens: 12,
                    draft_len: DraftLength::Fixed(draft_len),
                    eos: Vec::new(),
                },
            };
            draft.with(&target, |drafter| {
                case.run(&[], usize::MAX, drafter, &mut Forbidden).generated().to_vec()
            })
        };
        let plain = text(Draft::None, 0);
        for draft in DRAFTS {
            for draft_len in 0..6 {
                assert_eq!(text(draft, draft_len), plain, "{draft:?}, {draft_len}");
            }
        }
    }
}

/// Runs `rounds` rounds of draft length `gamma` at temperature 1; no key of noise is spent twice.
fn some_rounds(target: &TableModel, draft: &TableModel, gamma: usize, rounds: usize) -> Session {
    let case = Case {
        target,
        verifier: &Rejection,
        sampler: &sampler(Settings::default(), target.vocab()),
        prompt: &tokens(&[0]),
        limits: &Limits { max_tokens: 60, draft_len: DraftLength::Fixed(gamma), eos: Vec::new() },
    };
    let mut draft = draft.clone();
    case.run(&[], rounds, &mut ModelDrafter::new(&mut draft), &mut Recorded::new(ChaCha))
}

/// Twins accept all and emit one more, each round. Disjoint laws accept nothing and emit one token,
/// never one that only the draft can produce.
#[test]
fn twins_accept_all_and_strangers_nothing() {
    for gamma in 1..=5 {
        let session = some_rounds(&table(9), &table(9), gamma, 3);
        assert_eq!(session.stats().tokens, 3 * (gamma as u64 + 1));
        assert_eq!(session.stats().alpha(), Some(1.0));

        let (low, high) = (constant([0.5, 0.5, 0.0, 0.0]), constant([0.0, 0.0, 0.5, 0.5]));
        let session = some_rounds(&low, &high, gamma, 9);
        assert_eq!((session.stats().tokens, session.stats().accepted), (9, 0));
        assert!(session.generated().iter().all(|token| token.0 < 2));
    }
}

/// Rejected exactly at place j of a block: j drafted tokens, the replacement, and nothing after it.
#[test]
fn a_rejection_ends_the_block() {
    let certain = |id: usize| {
        let mut row = vec![f32::NEG_INFINITY; 8];
        row[id] = 0.0;
        row
    };
    let count = |last: &[Token]| (last[0].index() + 1) % 7;
    let draft = TableModel::new(8, 64, 1, |last| certain(count(last)));
    for j in 0..4 {
        let target = TableModel::new(8, 64, 1, |last| {
            certain(if last[0] == Token(j) { 7 } else { count(last) })
        });
        let session = some_rounds(&target, &draft, 4, 1);
        let expected: Vec<u32> = (1..=j).chain([7]).collect();
        assert_eq!(session.generated(), tokens(&expected), "rejected at {j}");
        assert_eq!(session.stats().by_position.len(), j as usize + 1);
    }
}

/// Coupled text is the same, token for token, whatever drafts and however long.
#[test]
fn coupled_text_does_not_depend_on_the_draft() {
    let mut accepted = 0;
    for seed in 0..30 {
        let target = table(seed);
        for (name, settings) in settings() {
            let text = |draft: Draft, draft_len| {
                let case = Case {
                    target: &target,
                    verifier: &Coupled,
                    sampler: &sampler(settings.clone(), VOCAB),
                    prompt: &tokens(&[0]),
                    limits: &Limits { max_tokens: 20, draft_len, eos: tokens(&[3]) },
                };
                let run =
                    |drafter: &mut dyn Drafter| case.run(&[], usize::MAX, drafter, &mut ChaCha);
                let session = match draft {
                    Draft::Model(seed) => run(&mut ModelDrafter::racing(&mut table(seed))),
                    Draft::Twin => run(&mut ModelDrafter::racing(&mut target.clone())),
                    other => other.with(&target, run),
                };
                if matches!(draft, Draft::Twin) {
                    let stats = session.stats();
                    assert!(stats.by_position.iter().all(|at| at.accepted == at.reached));
                }
                (session.generated().to_vec(), session.stats().accepted)
            };
            let (plain, _) = text(Draft::None, DraftLength::Fixed(0));
            for draft in DRAFTS {
                for (_, draft_len) in lengths(0..=5) {
                    let (found, kept) = text(draft, draft_len);
                    assert_eq!(found, plain, "{name}, {draft:?}, {draft_len:?}");
                    accepted += kept;
                }
            }
        }
    }
    assert!(accepted > 1_000, "only {accepted} drafted tokens were ever accepted");
}
