//! The detector against transformers' (`golden/synthid/synthid_hf_detector.json`), and its verdicts on
//! texts of known laws.

use std::{collections::HashSet, fs};

use draftproof_decode::{
    Dist, Token,
    watermark::{
        Contexts, Hashed, Key, Mode, Scheme, StoredKey, Variant, Watermark, context,
        detect::{
            Abstention, Bayes, Calibration, CalibrationError, Detector, Evidence, Room, Verdict,
            layer_weights, room, scored_places,
        },
    },
};
use serde_json::Value;

fn golden() -> Value {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/synthid/synthid_hf_detector.json");
    serde_json::from_str(&fs::read_to_string(path).expect("a golden file")).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn floats(value: &Value) -> Vec<f64> {
    list(value).iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn integers(value: &Value) -> Vec<u64> {
    list(value).iter().map(|number| number.as_u64().expect("an integer")).collect()
}

fn tokens(value: &Value) -> Vec<Token> {
    integers(value).into_iter().map(|id| Token(id as u32)).collect()
}

/// Masks and bits equal; scores, log-odds and posterior within 1e-6 (f32 there).
#[test]
fn transformers_detector() {
    let golden = golden();
    let ends = [Token(golden["eos_token_id"].as_u64().expect("an id") as u32)];
    let near = |found: f64, expected: &Value, what: &str| {
        let expected = expected.as_f64().expect("a number");
        assert!((found - expected).abs() <= 1e-6, "{what}: {found}, not {expected}");
    };
    let mut compared = 0;
    for case in list(&golden["cases"]) {
        let key = Key::new(integers(&case["keys"]).into_iter().map(|k| k as i64).collect());
        let scheme = Scheme {
            variant: Variant::Hf,
            depth: key.depth(),
            history: case["context_history_size"].as_u64().map(|size| size as usize),
            ..Scheme::default()
        };
        let values = Hashed::new(&scheme, &key);
        let m = scheme.depth;
        let weights = layer_weights(m);
        let scale = m as f64 / weights.iter().sum::<u64>() as f64;
        for (weight, expected) in weights.iter().zip(list(&case["weighted_mean_weights"])) {
            near(*weight as f64 * scale, expected, "a weight");
        }
        let delta = floats(&case["bayes"]["delta_row_major"]);
        let bayes = Bayes {
            prior: case["bayes"]["prior"].as_f64().expect("a prior"),
            beta: floats(&case["bayes"]["beta"]),
            delta: (0..m).map(|l| delta[l * m..l * m + l].to_vec()).collect(),
        };
        assert!(bayes.fits(m) && !bayes.fits(m + 1));
        for (row, ids) in list(&golden["sequences"]).iter().enumerate() {
            let (text, what) = (tokens(ids), format!("depth {m}, row {row}"));
            let mask = |ends: &[Token]| {
                let places: HashSet<usize> =
                    scored_places(&scheme, &text, ends).into_iter().collect();
                (4..text.len()).map(|place| u64::from(places.contains(&place))).collect::<Vec<_>>()
            };
            assert_eq!(mask(&[]), integers(&case["context_repetition_mask"][row]), "{what}");
            assert_eq!(mask(&ends), integers(&case["combined_mask"][row]), "{what}");
            let evidence = Evidence::reference(&scheme, &values, &text, &ends);
            let bits = integers(&case["g_bits"][row]);
            let scored = mask(&ends).into_iter().zip(bits).filter(|(mask, _)| *mask == 1);
            assert_eq!(evidence.rows(), scored.map(|(_, bits)| bits).collect::<Vec<_>>(), "{what}");
            near(evidence.positions() as f64, &case["num_unmasked"][row], &what);
            near(evidence.mean().expect("a score"), &case["mean_score"][row], &what);
            let weighted = evidence.weighted_mean().expect("a score");
            near(weighted, &case["weighted_mean_score"][row], &what);
            let ratio = bayes.log_likelihood_ratio(&evidence);
            // Sums of 1 080 logarithms that were rounded to f32.
            let expected = case["bayes"]["log_odds_sum"][row].as_f64().expect("a number");
            assert!((ratio - expected).abs() <= 2e-5, "{what}: {ratio}, not {expected}");
            near(bayes.posterior(&evidence), &case["bayes"]["posterior"][row], &what);
            compared += 1;
        }
    }
    assert_eq!(compared, 9);
}

/// The detector's masks are the generator's, begun at the first full context.
#[test]
fn masks_are_the_generators() {
    let mut state = 5u64;
    for history in [None, Some(1), Some(2), Some(7)] {
        let scheme = Scheme { context_len: 2, history, skip_first: true, ..Scheme::default() };
        let text: Vec<Token> = (0..80).map(|_| Token((step(&mut state) * 3.0) as u32)).collect();
        let contexts = Contexts::new(&scheme, &text);
        let expected: Vec<usize> =
            (2..text.len()).filter(|&place| !contexts.is_masked(place)).collect();
        assert_eq!(scored_places(&scheme, &text, &[]), expected, "{history:?}");
    }
}

fn step(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

fn key(number: i64, scheme: &Scheme) -> StoredKey {
    let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut layer = || {
        let high = step(&mut state).to_bits() << 20;
        (high ^ step(&mut state).to_bits()).cast_signed()
    };
    let key = Key::new((0..scheme.depth).map(|_| layer()).collect());
    StoredKey::new(scheme.clone(), key, "2026-11-30".into(), None).expect("a key")
}

/// A law of `choices` even tokens of 1 000 at each place, others at other places.
fn law(place: usize, choices: usize) -> Dist {
    let mut ids: Vec<u32> =
        (0..choices).map(|i| ((place * 131 + i * 1000 / choices) % 1000) as u32).collect();
    ids.sort_unstable();
    Dist::sparse(1000, ids, vec![1 << 20; choices]).expect("a law")
}

fn text(watermark: Option<&Watermark>, len: usize, choices: usize, seed: u64) -> Vec<Token> {
    let (mut state, mut text) = (seed, Vec::new());
    for place in 0..len {
        let law = law(place, choices);
        let law = watermark.map_or(law.clone(), |watermark| watermark.mark(&text, law));
        let u = (step(&mut state) * law.total() as f64) as u64;
        text.push(law.at(u.min(law.total() - 1)));
    }
    text
}

#[test]
fn verdicts_on_texts_of_known_laws() {
    for variant in [Variant::Gdm, Variant::Hf] {
        let scheme = Scheme { variant, ..Scheme::default() };
        let (own, other) = (key(1, &scheme), key(2, &scheme));
        let watermark = Watermark::new(&own, Mode::Exact);
        let detector = |key| Detector::new(key, 1e-6);
        let verdict = |key, text: &[Token]| {
            let detector = detector(key);
            detector.judge(&detector.evidence(text, &[]), None)
        };
        let marked = text(Some(&watermark), 300, 50, 11);
        let found = verdict(&own, &marked);
        assert_eq!((found.verdict, found.usable_positions > 250), (Verdict::Watermarked, true));
        assert!(found.p_value < 1e-12 && found.bayesian.is_none(), "{}", found.p_value);
        // A crop still shows; another key and text without a mark do not.
        assert_eq!(verdict(&own, &marked[100..]).verdict, Verdict::Watermarked);
        let found = [verdict(&other, &marked), verdict(&own, &text(None, 300, 50, 12))];
        assert!(found.iter().all(|found| found.verdict == Verdict::NotDetected), "{found:?}");
        // Short text, text without a single scored position, and text that ends at once.
        for (short, positions) in [(&marked[..20], 16), (&marked[..4], 0), (&[][..], 0)] {
            let Verdict::Abstain(Abstention::Short { positions: found, needed }) =
                verdict(&own, short).verdict
            else {
                panic!("{positions} positions")
            };
            assert!(found == positions && needed > 16);
        }
        let ended = detector(&own).evidence(&marked, &marked[4..5]);
        assert_eq!((ended.positions(), ended.mean(), ended.p_value()), (0, None, 1.0));
        // The same text over and over is counted once.
        let evidence = |text: &[Token]| detector(&own).evidence(text, &[]).positions();
        assert_eq!(evidence(&marked.repeat(3)), evidence(&[&marked[..], &marked[..4]].concat()));
    }
}

/// Variant `hf` reads the same bits for ids 65 536 apart: such positions are no new evidence.
#[test]
fn aliases_are_counted_once() {
    let ids: Vec<Token> = (0..40).map(|i| Token(i * 7 + 1)).collect();
    let shifted: Vec<Token> = ids.iter().map(|id| Token(id.0 + 65_536)).collect();
    for (variant, twice) in [(Variant::Hf, false), (Variant::Gdm, true)] {
        let scheme = Scheme { variant, ..Scheme::default() };
        let detector = Detector::new(&key(3, &scheme), 0.01);
        let both = detector.evidence(&[&ids[..], &shifted[..]].concat(), &[]);
        let once = detector.evidence(&[&ids[..], &ids[..4]].concat(), &[]);
        assert_eq!(both.positions() > once.positions() + 30, twice, "{variant}");
    }
}

/// Near-deterministic laws leave no room, and the detector says so instead of "not detected"; the
/// expected gain is the gain of marked texts.
#[test]
fn room_tells_what_a_mark_could_show() {
    let scheme = Scheme::default();
    let own = key(1, &scheme);
    let watermark = Watermark::new(&own, Mode::Exact);
    let detector = Detector::new(&own, 0.01);
    let room = |text: &[Token], choices| {
        let mut room = Room::default();
        for place in scored_places(&scheme, text, &[]) {
            let context = context(&text[..place], scheme.context_len);
            room.add(&scheme, detector.values(), &context, &law(place, choices));
        }
        room
    };
    for (choices, verdict) in [(1, "abstain"), (50, "watermarked")] {
        let marked = text(Some(&watermark), 300, choices, 5);
        let room = room(&marked, choices);
        let evidence = detector.evidence(&marked, &[]);
        assert_eq!(room.positions(), evidence.positions());
        let found = detector.judge(&evidence, Some(&room));
        assert_eq!(found.verdict.name(), verdict, "{choices} choices");
        let gain = found.weighted_mean.expect("a score") - 0.5;
        // Three standard deviations of the weighted mean of 296 positions are 0.018.
        assert!((room.gain(30) - gain).abs() < 0.018, "{} and {gain}", room.gain(30));
        assert_eq!(room.gain(30) == 0.0, choices == 1);
    }
    // Room for a mark, and none there.
    let plain = text(None, 300, 50, 6);
    let found = detector.judge(&detector.evidence(&plain, &[]), Some(&room(&plain, 50)));
    assert_eq!(found.verdict, Verdict::NotDetected);
}

/// The fewest positions are the fewest, and fall as the gain grows.
#[test]
fn needed_positions() {
    for (depth, gain, rate) in [(30, 0.05, 0.01), (30, 0.1, 1e-6), (5, 0.2, 0.01), (1, 0.2, 0.01)] {
        let needed = room::needed(depth, gain, rate).expect("a length");
        assert!(room::is_enough(depth, needed, gain, rate));
        assert!(!room::is_enough(depth, needed - 1, gain, rate), "{depth}, {gain}: {needed}");
    }
    assert_eq!(room::needed(30, 0.0, 0.01), None);
    assert!(room::needed(30, 0.03, 0.01) > room::needed(30, 0.05, 0.01));
}

#[test]
fn calibrations_are_honest_and_refuse_what_is_not_theirs() {
    let scheme = Scheme { depth: 12, ..Scheme::default() };
    let (own, other) = (key(1, &scheme), key(2, &scheme));
    let watermark = Watermark::new(&own, Mode::Exact);
    let detector = Detector::new(&own, 0.01);
    let texts = |marked: bool, seeds: std::ops::Range<u64>| -> Vec<Evidence> {
        let watermark = Some(&watermark).filter(|_| marked);
        seeds.map(|seed| detector.evidence(&text(watermark, 260, 12, seed * 977), &[])).collect()
    };
    let fit = |rate, n| {
        let (unmarked, marked) = (texts(false, 0..n), texts(true, 1000..1000 + n));
        Calibration::fit(&own, Some("ab12".into()), rate, &unmarked, &marked)
    };
    let calibration = fit(0.05, 60).expect("enough texts");
    assert_eq!(fit(0.05, 60).expect("the same"), calibration);
    let json = calibration.to_json();
    assert_eq!(Calibration::parse(&json).expect("what was written"), calibration);
    // New texts: 120 of each kind, at a rate of 0.05. A right threshold lets through more than 20 of
    // the unmarked with a probability below 1e-5.
    let calibrated = detector.clone().calibrated(&own, calibration.clone(), Some("ab12"));
    let calibrated = calibrated.expect("its own key");
    assert_eq!(calibrated.rate(), 0.05);
    let count = |texts: Vec<Evidence>, name: &str| {
        texts.iter().filter(|text| calibrated.judge(text, None).verdict.name() == name).count()
    };
    assert!(count(texts(false, 5000..5120), "watermarked") <= 20);
    assert!(count(texts(true, 6000..6120), "watermarked") >= 110);
    let short =
        Evidence::from_rows(12, calibrated.evidence(&text(None, 19, 12, 1), &[]).rows().to_vec());
    assert_eq!(calibrated.judge(&short, None).verdict.name(), "abstain");
    // Between the thresholds of a class there is no verdict.
    let piece = Evidence::from_rows(12, texts(true, 7000..7001)[0].rows()[..18].to_vec());
    let score = calibration.bayes.log_likelihood_ratio(&piece);
    for (below, above, verdict) in
        [(-1.0, 1.0, "abstain"), (-1.0, 0.0, "watermarked"), (0.5, 1.0, "not_detected")]
    {
        let mut moved = calibration.clone();
        moved.classes[0].not_detected_below = score + below;
        moved.classes[0].watermarked_from = score + above;
        let moved = detector.clone().calibrated(&own, moved, None).expect("its own key");
        let found = moved.judge(&piece, None).verdict;
        assert_eq!(found.name(), verdict);
        let between = matches!(found, Verdict::Abstain(Abstention::Between { .. }));
        assert_eq!(between, verdict == "abstain");
    }
    // Another key, another tokenizer, an edited scheme, too few texts, a rate that is none.
    let refused = |key: &StoredKey, calibration: Calibration, tokenizer| {
        let error = Detector::new(key, 0.01).calibrated(key, calibration, tokenizer);
        error.expect_err("a mismatch").to_string()
    };
    assert!(refused(&other, calibration.clone(), None).contains("key"));
    assert!(refused(&own, calibration.clone(), Some("cd34")).contains("tokenizer"));
    let mut edited = calibration.clone();
    edited.scheme.context_len = 5;
    assert!(refused(&own, edited, None).contains("scheme"));
    assert!(matches!(fit(0.0005, 20), Err(CalibrationError::TooFew { .. })));
    assert!(matches!(fit(0.0, 2), Err(CalibrationError::Range { .. })));
    for (from, to) in [
        ("calibration 1", "calibration 2"),
        ("\"rate\": 0.05", "\"rate\": 0.9"),
        ("\"depth\": 12", "\"depth\": 13"),
        ("\"prior\"", "\"posterior\""),
    ] {
        let edited = json.replacen(from, to, 1);
        assert_ne!(edited, json, "{from}");
        assert!(Calibration::parse(&edited).is_err(), "{from}");
    }
    let distortionary = key(1, &Scheme { leaves: 3, ..scheme.clone() });
    let none = Calibration::fit(&distortionary, None, 0.05, &[], &[]);
    assert!(matches!(none, Err(CalibrationError::Leaves { leaves: 3 })));
}
