//! The watermark against the two public implementations: every vector of `golden/synthid`.

use std::fs;

use draftproof_decode::{
    Dist, Token,
    watermark::{Contexts, GValues, Hashed, Key, Mode, Scheme, StoredKey, Variant, Watermark},
};
use serde_json::Value;

fn golden(name: &str) -> Value {
    let path = format!("{}/tests/golden/synthid/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&fs::read_to_string(path).expect("a golden file")).expect("JSON")
}

fn tokens(ids: &Value) -> Vec<Token> {
    ids.as_array()
        .expect("ids")
        .iter()
        .map(|id| Token(id.as_u64().expect("an id") as u32))
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn integers(value: &Value) -> Vec<u64> {
    list(value).iter().map(|value| value.as_u64().expect("an integer")).collect()
}

fn key(value: &Value) -> Key {
    Key::new(list(value).iter().map(|layer| layer.as_i64().expect("a number")).collect())
}

/// The scheme that a reference's configuration means.
fn scheme(variant: Variant, config: &Value) -> Scheme {
    let number = |name: &str| config[name].as_u64().map(|number| number as usize);
    Scheme {
        variant,
        depth: list(&config["keys"]).len(),
        context_len: number("ngram_len").expect("a length") - 1,
        leaves: number("num_leaves").unwrap_or(2),
        history: number("context_history_size"),
        skip_first: config["skip_first_ngram_calls"].as_bool().unwrap_or(false),
        ..Scheme::default()
    }
}

fn watermark(scheme: &Scheme, key: &Key) -> Watermark {
    let stored = StoredKey::new(scheme.clone(), key.clone(), "2026-01-01".into(), None);
    Watermark::new(&stored.expect("a key"), Mode::Exact)
}

/// A score of a golden file: a number, or a word for what is banned.
fn score(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NEG_INFINITY)
}

/// The softmax of scores as integer weights of 2^50 a unit of probability.
fn law(scores: &[f64]) -> Dist {
    let probabilities = softmax(scores);
    Dist::dense(probabilities.iter().map(|p| (p * 2f64.powi(50)).round() as u64).collect())
        .expect("a law")
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn assert_near(law: &Dist, expected: &[f64], tolerance: f64, what: &str) {
    for (x, expected) in expected.iter().enumerate() {
        let found = law.probability(Token(x as u32));
        assert!(
            (found - expected).abs() <= tolerance,
            "{what}, token {x}: {found}, not {expected}"
        );
    }
}

#[test]
fn hashes_and_bits_of_both_variants() {
    for (name, variant) in
        [("synthid_gdm_hash", Variant::Gdm), ("synthid_hf_hash_and_table", Variant::Hf)]
    {
        let golden = golden(name);
        let key = key(&golden["keys"]);
        let scheme = Scheme { variant, ..Scheme::default() };
        let values = Hashed::new(&scheme, &key);
        let ngrams = list(&golden["ngrams"]);
        assert_eq!(ngrams.len(), 40);
        for ngram in ngrams {
            let ids = tokens(&ngram["ngram"]);
            let (token, context) = ids.split_last().expect("five ids");
            assert_eq!(Value::from(values.bits(context, *token)), ngram["g_bits"], "{ids:?}");
        }
    }
}

/// Ids a table size apart share all bits in variant `hf`, and do not in `gdm`.
#[test]
fn aliases_are_those_of_the_reference() {
    for (variant, equal) in [(Variant::Hf, true), (Variant::Gdm, false)] {
        let key = key(&golden("synthid_hf_hash_and_table")["keys"]);
        let values = Hashed::new(&Scheme { variant, ..Scheme::default() }, &key);
        let context = [3, 1, 4, 1].map(Token);
        for id in [0, 7, 1000, 65_535] {
            let pair = [id, id + 65_536].map(|id| values.bits(&context, Token(id)));
            assert_eq!(pair[0] == pair[1], equal, "{variant}, {id}");
        }
    }
}

const HF: [&str; 6] = [
    "synthid_hf_d5_v64",
    "synthid_hf_d30_v64",
    "synthid_hf_d5_v16_repeated_ctx",
    "synthid_hf_d5_v16_repeated_ctx_hist2",
    "synthid_hf_d5_v16_skip_first",
    "synthid_hf_d5_v32_topk_masked",
];

/// transformers' processor, step by step: bits, masks, probabilities within 1e-6 (f32 there), and
/// 1e-12 where the reference was run in f64.
#[test]
fn transformers_processor() {
    let (mut rows, mut masked) = (0, 0);
    for name in HF.iter().chain(&["synthid_hf_d3_ngram3_v8"]) {
        let golden = golden(name);
        let (scheme, key) =
            (scheme(Variant::Hf, &golden["config"]), key(&golden["config"]["keys"]));
        let (watermark, values) = (watermark(&scheme, &key), Hashed::new(&scheme, &key));
        for row in 0..2 {
            let prompt = list(&golden["prompt"][row]).len();
            let text = &tokens(&golden["final_ids"][row])[prompt..];
            for (place, step) in list(&golden["steps"]).iter().enumerate() {
                let what = format!("{name}, row {row}, step {place}");
                let generated = &text[..place];
                let ids: Vec<u32> = (0..list(&step["scores_in"][row]).len() as u32).collect();
                let mut bits = vec![0; ids.len()];
                let context = draftproof_decode::watermark::context(generated, scheme.context_len);
                assert_eq!(context, tokens(&step["context"][row]), "{what}");
                values.fill(&context, &ids, &mut bits);
                assert_eq!(bits, integers(&step["g_bits"][row]), "{what}");
                let unchanged = step["repeated"][row] == true || step["skipped"] == true;
                assert_eq!(watermark.is_masked(generated), unchanged, "{what}");
                masked += usize::from(unchanged);
                let scores = |name: &str| -> Option<Vec<f64>> {
                    Some(step.get(name)?.get(row)?.as_array()?.iter().map(score).collect())
                };
                let plain = law(&scores("scores_in").expect("scores"));
                let found = watermark.mark(generated, plain);
                for (name, tolerance) in [("scores_out_f32", 1e-6), ("scores_out_f64", 1e-12)] {
                    if let Some(expected) = scores(name) {
                        assert_near(&found, &softmax(&expected), tolerance, &what);
                        rows += 1;
                    }
                }
            }
        }
    }
    assert!(rows >= 120 && masked >= 20, "{rows} rows, {masked} masked");
}

/// The reference repository's call, in f64: bits and probabilities of the tokens that its top-k left;
/// with three leaves too, the distortionary form.
#[test]
fn reference_repository() {
    let mut rows = 0;
    for name in ["synthid_gdm_d5_leaves2", "synthid_gdm_d30_leaves2", "synthid_gdm_d5_leaves3"] {
        let golden = golden(name);
        let (scheme, key) =
            (scheme(Variant::Gdm, &golden["config"]), key(&golden["config"]["keys"]));
        let (watermark, values) = (watermark(&scheme, &key), Hashed::new(&scheme, &key));
        let vocab = golden["config"]["vocab"].as_u64().expect("a size") as usize;
        for row in 0..2 {
            let prompt = list(&golden["prompt"][row]).len();
            let text = &tokens(&golden["final_ids"][row])[prompt..];
            for (place, step) in list(&golden["steps"]).iter().enumerate() {
                let what = format!("{name}, row {row}, step {place}");
                let generated = &text[..place];
                let kept = tokens(&step["topk_indices"][row]);
                let context = draftproof_decode::watermark::context(generated, scheme.context_len);
                assert_eq!(context, tokens(&step["context"][row]), "{what}");
                let bits: Vec<u64> = kept.iter().map(|&x| values.bits(&context, x)).collect();
                assert_eq!(bits, integers(&step["g_bits"][row]), "{what}");
                let spread = |name: &str| {
                    let mut scores = vec![f64::NEG_INFINITY; vocab];
                    for (x, value) in kept.iter().zip(list(&step[name][row])) {
                        scores[x.index()] = score(value);
                    }
                    scores
                };
                let found = watermark.mark(generated, law(&spread("scores_topk")));
                assert_near(&found, &softmax(&spread("updated")), 1e-12, &what);
                rows += 1;
            }
        }
    }
    assert_eq!(rows, 44);
}

/// The masks of transformers' detector: a place is scored if its context is new.
#[test]
fn detector_masks() {
    let golden = golden("synthid_hf_detector");
    let mut compared = 0;
    for case in list(&golden["cases"]) {
        let config = serde_json::json!({
            "keys": case["keys"],
            "ngram_len": golden["ngram_len"],
            "context_history_size": case["context_history_size"],
        });
        // Scored are the places after the first full context, so its masks begin there.
        let scheme = Scheme { skip_first: true, ..scheme(Variant::Hf, &config) };
        for (row, ids) in list(&golden["sequences"]).iter().enumerate() {
            let text = tokens(ids);
            let contexts = Contexts::new(&scheme, &text);
            let mask: Vec<u64> = (scheme.context_len..text.len())
                .map(|place| u64::from(!contexts.is_masked(place)))
                .collect();
            assert_eq!(mask, integers(&case["context_repetition_mask"][row]), "row {row}");
            compared += mask.len();
        }
    }
    assert_eq!(compared, 9 * 36);
}
