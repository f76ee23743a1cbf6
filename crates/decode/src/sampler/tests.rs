//! The contract's worked figures and edges, through [`Sampler::law`] as the engine calls it.
//!
//! Every figure is small enough to redo by hand. Logits are `f32`, so rows are made from
//! probabilities with `ln`, and probabilities are compared to 1e-6; what a filter keeps, equality
//! of laws and draws are compared with `==`. Each filter's own algorithm is tested in its own file,
//! and rows of 151 936 logits against a second implementation in `tests/contract_rows.rs`.

use super::*;
use crate::{
    Decimal,
    dist::{MAX_TOTAL, MAX_VOCAB},
    noise::{ChaCha, Lane, Noise, RoundNoise, Seed},
};

const PREFIX: Prefix<'static> = Prefix { tokens: &[], prompt_len: 0 };

fn decimal(text: &str) -> Decimal {
    text.parse().expect("a decimal")
}

fn at_temperature(temperature: f64) -> Settings {
    Settings { temperature, ..Settings::default() }
}

fn with_top_k(top_k: usize) -> Settings {
    Settings { top_k, ..Settings::default() }
}

fn with_top_p(top_p: &str) -> Settings {
    Settings { top_p: decimal(top_p), ..Settings::default() }
}

fn with_min_p(min_p: &str) -> Settings {
    Settings { min_p: decimal(min_p), ..Settings::default() }
}

/// One of each kind, for what must hold whatever is set. The penalties and bans of these have
/// nothing to act on after an empty prefix.
fn all_kinds() -> Vec<Settings> {
    let plain = Settings::default;
    vec![
        plain(),
        at_temperature(0.0),
        at_temperature(0.3),
        with_top_k(1),
        with_top_k(2),
        Settings { top_k_ties: TopKTies::Keep, ..with_top_k(2) },
        with_top_p("0.9"),
        with_min_p("0.1"),
        Settings { typical: decimal("0.7"), ..plain() },
        Settings {
            repetition_penalty: 1.3,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            no_repeat_ngram: 2,
            ..plain()
        },
        Settings { logit_bias: vec![(Token(0), 0.75)], ..plain() },
        Settings {
            temperature: 0.7,
            top_k: 3,
            typical: decimal("0.95"),
            order: Order::LLAMA_CPP,
            ..with_top_p("0.95")
        },
    ]
}

fn try_law(settings: &Settings, vocab: usize, logits: &[f32]) -> Result<Dist, RowError> {
    let sampler = Sampler::new(settings.clone(), vocab).expect("settings in range");
    sampler.law(PREFIX, logits)
}

fn law(settings: &Settings, logits: &[f32]) -> Dist {
    try_law(settings, logits.len(), logits).expect("a law")
}

fn row(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

fn kept(settings: &Settings, probabilities: &[f64]) -> Vec<u32> {
    let dist = law(settings, &row(probabilities));
    dist.support().map(|(token, _)| token.0).collect()
}

fn weights(dist: &Dist) -> Vec<u64> {
    let ids = 0..dist.vocab();
    ids.map(|id| dist.weight(Token::at(id))).collect()
}

#[track_caller]
fn assert_near(dist: &Dist, expected: &[f64], tolerance: f64) {
    for (id, &p) in expected.iter().enumerate() {
        let found = dist.probability(Token::at(id));
        assert!((found - p).abs() <= tolerance, "token {id}: {found}, not {p}");
    }
}

/// Rows of a documented LCG, on a coarse grid so that ties abound, with banned tokens.
fn rows_with_ties(count: usize) -> impl Iterator<Item = Vec<f32>> {
    let mut state = 11u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    (0..count).map(move |_| {
        let mut row: Vec<f32> = (0..1 + next(90))
            .map(|_| match next(8) {
                0 => f32::NEG_INFINITY,
                _ => next(12) as f32 / 2.0 - 3.0,
            })
            .collect();
        row[0] = row[0].max(-3.0);
        row
    })
}

#[test]
fn temperature_divides_logits() {
    for (t, exponent) in [(0.5, 4.0f64), (1.0, 2.0), (2.0, 1.0)] {
        let dist = law(&at_temperature(t), &[10.0, 8.0]);
        let ratio = dist.weight(Token(0)) as f64 / dist.weight(Token(1)) as f64;
        assert!((ratio / exponent.exp() - 1.0).abs() < 1e-14, "T {t}");
    }
}

#[test]
fn four_logits_give_the_worked_probabilities_and_entropy() {
    let dist = law(&Settings::default(), &[4.0, 2.0, 1.0, 0.0]);
    assert_near(&dist, &[0.831, 0.112, 0.041, 0.015], 5e-4);
    assert!((dist.entropy_bits() - 0.859).abs() < 5e-4);
    assert_eq!(dist.support_len(), 4);
    let exponentials = [4.0f64, 2.0, 1.0, 0.0].map(f64::exp);
    let sum: f64 = exponentials.iter().sum();
    assert_near(&dist, &exponentials.map(|e| e / sum), 1e-15);
}

#[test]
fn top_k_keeps_the_largest_and_renormalises() {
    let dist = law(&with_top_k(3), &row(&[0.30, 0.20, 0.12, 0.10, 0.10, 0.09, 0.09]));
    assert_near(&dist, &[0.484, 0.323, 0.194, 0.0], 5e-4);
    assert_near(&dist, &[0.30 / 0.62, 0.20 / 0.62, 0.12 / 0.62], 1e-6);
    assert_eq!(dist.support_len(), 3);
}

#[test]
fn top_k_breaks_ties_by_the_lowest_id() {
    let dist = law(&with_top_k(3), &[3.0, 2.0, 2.0, 2.0, 1.0]);
    assert_near(&dist, &[0.5761, 0.2119, 0.2119, 0.0, 0.0], 5e-5);
    assert_eq!(dist.weight(Token(1)), dist.weight(Token(2)));
    assert_eq!(dist.support_len(), 3);
    // The same where the ties stand before the largest.
    let dist = law(&with_top_k(3), &[2.0, 1.0, 2.0, 2.0, 3.0]);
    let ids: Vec<u32> = dist.support().map(|(token, _)| token.0).collect();
    assert_eq!(ids, [0, 2, 4]);
}

#[test]
fn top_k_never_counts_banned_tokens_and_is_off_when_wide() {
    const BANNED: f32 = f32::NEG_INFINITY;
    let dist = law(&with_top_k(3), &[BANNED, 1.0, BANNED, 0.0, BANNED]);
    assert_eq!(dist.support_len(), 2);
    let logits = [4.0, 2.0, 1.0, 0.0];
    let all = law(&Settings::default(), &logits);
    for k in [0, 4, 5, usize::MAX] {
        assert_eq!(law(&with_top_k(k), &logits), all, "k {k}");
    }
}

#[test]
fn one_of_top_k_is_greedy() {
    for logits in rows_with_ties(300) {
        let greedy = law(&at_temperature(0.0), &logits);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&z| z == largest);
        assert_eq!(greedy.only(), first.map(Token::at), "{logits:?}");
        for temperature in [0.0, 0.2, 1.0, 3.0] {
            for top_p in ["0.000001", "0.5", "1"] {
                let settings = Settings { temperature, top_p: decimal(top_p), ..with_top_k(1) };
                assert_eq!(law(&settings, &logits), greedy, "{settings:?} {logits:?}");
            }
        }
    }
}

#[test]
fn the_nucleus_keeps_the_crossing_token() {
    let cases: [(&[f64], &str, &[u32]); 7] = [
        (&[0.4, 0.3, 0.2, 0.1], "0.8", &[0, 1, 2]),
        (&[0.5, 0.3, 0.15, 0.05], "0.6", &[0, 1]),
        (&[0.5, 0.41, 0.09], "0.9", &[0, 1]),
        (&[0.95, 0.05], "0.9", &[0]),
        // On the border, where the rounding of the logits decides; exact borders are below.
        (&[0.5, 0.3, 0.1, 0.1], "0.8", &[0, 1]),
        (&[0.1, 0.2, 0.3, 0.4], "0.8", &[1, 2, 3]),
        (&[0.1, 0.2, 0.3, 0.4], "0.00000000000000001", &[3]),
    ];
    for (probabilities, top_p, expected) in cases {
        let found = kept(&with_top_p(top_p), probabilities);
        assert_eq!(found, expected, "{probabilities:?} {top_p}");
    }
}

/// Where the mass before a token *is* p, that token goes. Equal logits are the one row of floats
/// whose probabilities are exact rationals; in binary, 0.55 · 100 is above 55.
#[test]
fn the_nucleus_threshold_is_the_decimal_as_typed() {
    for percent in 1..=99 {
        let dist = law(&with_top_p(&format!("0.{percent:02}")), &[1.5; 100]);
        assert_eq!(dist.support_len(), percent);
        let more = format!("0.{percent:02}0000000000001");
        let dist = law(&with_top_p(&more), &[1.5; 100]);
        assert_eq!(dist.support_len(), percent + 1);
    }
    // Either side of 6/7, by a fraction of one unit of weight.
    let support_len = |top_p| law(&with_top_p(top_p), &[1.5; 7]).support_len();
    assert_eq!(support_len(".857142857142857142"), 6);
    assert_eq!(support_len(".857142857142857143"), 7);
    let dist = law(&with_top_p("0.5"), &[0.0; 32_000]);
    assert_eq!(dist.support_len(), 16_000);
    assert!(dist.support().map(|(token, _)| token.0).eq(0..16_000));
}

#[test]
fn each_filter_works_on_what_the_one_before_left() {
    let probabilities = [0.4, 0.3, 0.2, 0.1];
    // Top-k leaves 0.571 and 0.429, so the first alone reaches 0.55; of the whole row it would not.
    let both = Settings { top_k: 2, ..with_top_p("0.55") };
    assert_eq!(kept(&both, &probabilities), [0]);
    assert_eq!(kept(&with_top_p("0.55"), &probabilities), [0, 1]);
    // Three steps that each remove the lightest one left, which is the first by id.
    let three = Settings { top_k: 4, min_p: decimal("0.6"), ..with_top_p("0.8") };
    assert_eq!(kept(&three, &[0.06, 0.14, 0.2, 0.25, 0.35]), [3, 4]);
    // Temperature comes first: 0.5 squares the law to (16, 9, 4, 1) / 30.
    let cold = Settings { temperature: 0.5, ..with_top_p("0.8") };
    assert_eq!(kept(&cold, &probabilities), [0, 1]);
    // Min-p comes last: before top-p it would leave 0.571 and 0.429, as top-k does above.
    let last = Settings { min_p: decimal("0.7"), ..with_top_p("0.55") };
    assert_eq!(kept(&last, &probabilities), [0, 1]);
    assert_eq!(kept(&with_min_p("0.7"), &probabilities), [0, 1]);
}

#[test]
fn min_p_is_a_floor_relative_to_the_likeliest() {
    let probabilities = [0.1, 0.2, 0.3, 0.4];
    let dist = law(&with_min_p("0.6"), &row(&probabilities));
    assert_near(&dist, &[0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0], 1e-6);
    assert_eq!(kept(&with_min_p("0.6"), &probabilities), [2, 3]);
    assert_eq!(kept(&with_min_p("0"), &probabilities), [0, 1, 2, 3]);
    // 1 keeps the likeliest and those tied with it.
    let dist = law(&with_min_p("1"), &[2.0, 1.0, 2.0]);
    let weights = weights(&dist);
    assert_eq!((weights[0], weights[1]), (weights[2], 0));
}

#[test]
fn temperature_zero_is_the_argmax_and_small_temperatures_share_ties() {
    let logits = [1.0, 3.0, 2.999, 3.0, -7.0];
    let greedy = law(&at_temperature(0.0), &logits);
    assert_eq!(greedy.only(), Some(Token(1)));
    assert_eq!(law(&at_temperature(-0.0), &logits), greedy);
    for t in [f64::from_bits(1), f64::MIN_POSITIVE, 1e-300, 1e-6, 1e-5] {
        let dist = law(&at_temperature(t), &logits);
        assert_eq!(dist.support_len(), 2, "T {t}");
        assert_eq!(dist.weight(Token(1)), dist.weight(Token(3)), "T {t}");
    }
    // At 1e-3, e^-1 of the mass of a largest one is left to 2.999 (0.001 less, about, in f32).
    let dist = law(&at_temperature(1e-3), &logits);
    let third = (-1.0f64).exp() / (2.0 + (-1.0f64).exp());
    assert!((dist.probability(Token(2)) - third).abs() < 1e-3);
    assert_eq!(dist.support_len(), 3);
}

#[test]
fn huge_temperatures_are_uniform() {
    for t in [1e30, f64::MAX] {
        let dist = law(&at_temperature(t), &[5.0, -5.0, 0.0, 88.0, f32::NEG_INFINITY]);
        assert_eq!(weights(&dist), [1 << 59, 1 << 59, 1 << 59, 1 << 59, 0], "T {t}");
    }
}

#[test]
fn huge_logits_do_not_overflow() {
    let dist = law(&Settings::default(), &[3e38, -3e38, 3e38, 0.0, f32::MIN]);
    assert_eq!(weights(&dist), [1 << 60, 0, 1 << 60, 0, 0]);
    // The difference is beyond f32 but not beyond f64: e^-2 at T = 3e38.
    let dist = law(&at_temperature(f64::from(3e38f32)), &[3e38, -3e38]);
    let ratio = dist.weight(Token(1)) as f64 / dist.weight(Token(0)) as f64;
    assert!((ratio - (-2.0f64).exp()).abs() < 1e-15);
}

/// The tail that temperature and top-p exist to reach: e^-40 is 4e-18.
#[test]
fn tiny_probabilities_keep_a_weight() {
    let dist = law(&Settings::default(), &[0.0, -40.0]);
    assert_eq!(weights(&dist), [1 << 61, 10]);
    let mut logits = vec![-40.0; 100];
    logits[99] = 0.0;
    let dist = law(&Settings::default(), &logits);
    assert_eq!(dist.support_len(), 100);
    assert!(dist.total() > 1 << 60 && dist.total() <= MAX_TOTAL);
}

#[test]
fn nan_and_infinity_are_errors_that_name_the_token() {
    for settings in all_kinds() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in 0..37 {
                let mut logits = vec![0.5; 37];
                logits[36 - at] = f32::NEG_INFINITY;
                logits[at] = bad;
                match try_law(&settings, 37, &logits) {
                    Err(RowError::NonFinite { token, value }) => {
                        assert_eq!(token, Token::at(at), "{settings:?}");
                        assert_eq!(value.to_bits(), bad.to_bits());
                    }
                    other => panic!("{bad} at {at} under {settings:?}: {other:?}"),
                }
            }
        }
    }
    let two = try_law(&Settings::default(), 3, &[0.0, f32::INFINITY, f32::NAN]);
    let message = two.expect_err("two bad logits").to_string();
    assert_eq!(message, "the logit of token 1 is inf; expected a finite number or -inf");
}

#[test]
fn a_row_without_a_finite_logit_is_an_error() {
    for settings in all_kinds() {
        for n in [0, 1, 4, 100] {
            let banned = try_law(&settings, 4, &vec![f32::NEG_INFINITY; n]);
            let step = Step::Logits;
            assert_eq!(banned, Err(RowError::Empty { step }), "{n} {settings:?}");
        }
    }
    let message = RowError::Empty { step: Step::TopK }.to_string();
    assert_eq!(message, "no token is left after step `top-k`");
}

#[test]
fn zero_and_minus_zero_tie() {
    for logits in [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]] {
        assert_eq!(law(&at_temperature(0.0), &logits).only(), Some(Token(0)));
        assert_eq!(law(&with_top_k(1), &logits).only(), Some(Token(0)));
        assert_eq!(law(&with_top_p("0.5"), &logits).only(), Some(Token(0)));
        let dist = law(&Settings::default(), &logits);
        assert_eq!(weights(&dist), [1 << 60; 2]);
    }
}

#[test]
fn ids_beyond_the_vocabulary_are_not_looked_at() {
    let logits = [1.0, 3.0, 2.0, 0.0];
    for settings in all_kinds() {
        let expected = law(&settings, &logits);
        for padding in [5.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut wide = logits.to_vec();
            wide.extend([padding; 60]);
            assert_eq!(try_law(&settings, 4, &wide), Ok(expected.clone()));
        }
    }
}

#[test]
fn ids_beyond_the_row_have_no_weight() {
    let logits = [1.0, 3.0, 2.0, 0.0];
    for settings in all_kinds() {
        let narrow = try_law(&settings, 70, &logits).expect("a law");
        let mut padded = logits.to_vec();
        padded.resize(70, f32::NEG_INFINITY);
        assert_eq!(narrow, law(&settings, &padded), "{settings:?}");
        assert_eq!(narrow.vocab(), 70);
        assert_eq!(weights(&narrow)[..4], weights(&law(&settings, &logits)));
        assert_eq!(narrow.at(narrow.total() - 1), last(&narrow));
    }
}

fn last(dist: &Dist) -> Token {
    dist.support().last().expect("a token").0
}

/// A filter gives the sparse form; the dense form of the same weights is equal and draws the same.
#[test]
fn dense_and_sparse_forms_are_one_law() {
    let round = RoundNoise { seed: Seed::default(), round_start: 3 };
    for (r, logits) in rows_with_ties(60).enumerate() {
        for settings in all_kinds() {
            let dist = law(&settings, &logits);
            let dense = Dist::dense(weights(&dist)).expect("a law");
            assert_eq!(dense, dist);
            let mut below = 0;
            for (token, weight) in dist.support() {
                for u in [below, below + weight - 1] {
                    assert_eq!((dist.at(u), dense.at(u)), (token, token));
                }
                below += weight;
            }
            let noise: &mut dyn Noise = &mut ChaCha;
            let key = round.key(r, Lane::Draft);
            assert_eq!(noise.draw(key, &dist), noise.draw(key, &dense));
        }
    }
}

#[test]
fn the_law_depends_on_its_arguments_only() {
    let logits: Vec<Vec<f32>> = rows_with_ties(40).collect();
    for settings in all_kinds() {
        let sampler = Sampler::new(settings, 90).expect("settings");
        let forwards: Vec<Dist> =
            logits.iter().map(|row| sampler.law(PREFIX, row).expect("a law")).collect();
        for (row, expected) in logits.iter().zip(&forwards).rev() {
            assert_eq!(sampler.law(PREFIX, row).as_ref(), Ok(expected));
            assert_eq!(sampler.clone().law(PREFIX, row).as_ref(), Ok(expected));
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    #[track_caller]
    fn refused(settings: Settings, vocab: usize, expected: [&str; 3]) {
        let error = Sampler::new(settings, vocab).expect_err("out of range");
        assert_eq!([error.name, error.expected, &error.found], expected);
        let [name, range, found] = expected;
        assert_eq!(error.to_string(), format!("{name}: expected {range}, found {found}"));
    }
    let range = "0 (greedy) or a positive number";
    for (t, found) in [
        (-1.0, "-1"),
        (-1e-300, &(-1e-300).to_string()),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        refused(at_temperature(t), 4, ["temperature", range, found]);
    }
    let range = "a number above 0 and at most 1 (1 keeps all)";
    for p in ["0", "0.000", "1.01", "1.00000000000000001"] {
        refused(with_top_p(p), 4, ["top-p", range, p]);
    }
    let range = "a number from 0 (keeps all) to 1";
    for p in ["1.5", "1.00000000000000001"] {
        refused(with_min_p(p), 4, ["min-p", range, p]);
    }
    let range = "1 to 2^24 ids";
    for (vocab, found) in [(0, "0"), (MAX_VOCAB + 1, "16777217")] {
        refused(Settings::default(), vocab, ["vocabulary", range, found]);
    }
    for settings in all_kinds() {
        assert!(Sampler::new(settings.clone(), 1).is_ok());
        assert!(Sampler::new(settings, MAX_VOCAB).is_ok());
    }
}

/// Nothing is silently ignored. A new field does not compile until it has a case here: the pattern
/// names every field, and a field without a case is an unused variable.
#[test]
#[deny(unused_variables)]
fn every_setting_changes_some_law() {
    let Settings {
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        mut logit_bias,
        mut bad_words,
        no_repeat_ngram,
        min_tokens,
        mut eos,
        temperature,
        top_k,
        top_k_ties,
        typical,
        top_p,
        min_p,
        order,
    } = Settings::default();
    let plain = Settings::default;
    logit_bias.push((Token(2), 0.25));
    bad_words.push(vec![Token(0), Token(2)]);
    eos.push(Token(3));
    assert_eq!((typical, top_p, min_p), (Decimal::ONE, Decimal::ONE, Decimal::ZERO));
    assert_eq!((top_k_ties, order), (TopKTies::LowestId, Order::DEFAULT));
    let cases = [
        Settings { repetition_penalty: repetition_penalty * 2.0, ..plain() },
        Settings { presence_penalty: presence_penalty + 0.5, ..plain() },
        Settings { frequency_penalty: frequency_penalty + 0.5, ..plain() },
        Settings { logit_bias, ..plain() },
        Settings { bad_words, ..plain() },
        Settings { no_repeat_ngram: no_repeat_ngram + 1, ..plain() },
        Settings { min_tokens: min_tokens + 4, eos, ..plain() },
        at_temperature(temperature / 2.0),
        with_top_k(top_k + 1),
        Settings { top_k_ties: TopKTies::Keep, ..with_top_k(1) },
        Settings { typical: decimal("0.1"), ..plain() },
        with_top_p("0.98"),
        with_min_p("0.2"),
        Settings { temperature: 4.0, ..with_top_p("0.9") },
        Settings { temperature: 4.0, order: Order::LLAMA_CPP, ..with_top_p("0.9") },
    ];
    // The likeliest token is tied, so that `keep` shows, and typical leaves both out.
    let logits = [2.0, 2.0, 1.0, 0.0, -1.0];
    let prefix = Prefix { tokens: &[1, 1, 1, 0].map(Token), prompt_len: 1 };
    let mut laws = Vec::new();
    for settings in [plain()].into_iter().chain(cases) {
        let sampler = Sampler::new(settings.clone(), 5).expect("settings in range");
        let changed = sampler.law(prefix, &logits).expect("a law");
        assert!(!laws.contains(&changed), "{settings:?} changes nothing");
        laws.push(changed);
    }
}
