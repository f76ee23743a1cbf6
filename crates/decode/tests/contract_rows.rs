//! Two implementations of the sampler contract agree on rows of real size, with `==`.
//!
//! `golden/make_rows.py` is the contract written a second time, in plain Python, from the
//! documents: it sorts where the crate selects, sums Python integers, compares Fractions, and has
//! its own ChaCha20. This test makes the same 64 rows of 151 936 logits and compares, for each of
//! 128 cases, the kept ids, the total, every weight and eight seeded draws. One id too many at a
//! tie, one weight off by one, one noise word skipped, and it fails.
//!
//! To make the file anew (about a minute): `python3 crates/decode/tests/golden/make_rows.py`.
//! The script's head describes the rows; `--check` compares with the file instead of writing it.

use std::iter::repeat_with;

use draftproof_decode::{
    Dist, Sampler, Settings,
    noise::{ChaCha, Lane, Noise, RoundKey, Seed},
    sampler::Prefix,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Golden {
    vocab: usize,
    keys: Vec<Key>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Key {
    sequence: String,
    round_start: String,
    offset: u32,
    lane: String,
}

#[derive(Deserialize)]
struct Row {
    seed: String,
    shape: String,
    row_sha256: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    temperature: String,
    top_k: usize,
    top_p: String,
    min_p: String,
    kept: usize,
    ids_sha256: String,
    total: String,
    weights_sha256: String,
    noise_seed: String,
    draws: Vec<u32>,
}

/// The LCG of the golden vectors.
struct Lcg(u64);

impl Lcg {
    fn u32(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Six u16 from three outputs, summed and centred.
    fn bell(&mut self) -> i32 {
        let halves = |word: u32| (word >> 16) as i32 + (word & 0xffff) as i32;
        repeat_with(|| halves(self.u32())).take(3).sum::<i32>() - 6 * 32_768
    }
}

/// Rounds to the nearest bf16, ties to even.
fn bf16(z: f32) -> f32 {
    let bits = z.to_bits();
    let odd = (bits >> 16) & 1;
    f32::from_bits((bits + 0x7fff + odd) & 0xffff_0000)
}

/// The row of a shape and seed: the table at the head of the script.
fn make_row(shape: &str, seed: u64, vocab: usize) -> Vec<f32> {
    let mut lcg = Lcg(seed);
    let normal = |lcg: &mut Lcg| lcg.bell() as f32 / 16_384.0;
    let logit = |lcg: &mut Lcg| match shape {
        "normal" | "peaked" => normal(lcg),
        "flat" => (lcg.u32() >> 24) as f32 / 4096.0,
        "quarters" => ((lcg.bell() + 2048) >> 12) as f32 / 4.0,
        "grid" => ((lcg.u32() >> 19) as f32 - 4096.0) / 1024.0,
        "holes" if lcg.u32().is_multiple_of(3) => normal(lcg),
        "holes" => f32::NEG_INFINITY,
        "bf16" => bf16(normal(lcg)),
        "steep" => lcg.bell() as f32 / 1024.0,
        _ => panic!("no shape is called {shape}"),
    };
    let mut row: Vec<f32> = repeat_with(|| logit(&mut lcg)).take(vocab).collect();
    if shape == "peaked" {
        for _ in 0..40 {
            let token = lcg.u32() as usize % vocab;
            row[token] = 16.0 + (lcg.u32() >> 16) as f32 / 4096.0;
        }
    }
    row
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect(text)
}

fn law(case: &Case, row: &[f32], vocab: usize) -> Dist {
    let settings = Settings {
        temperature: number(&case.temperature),
        top_k: case.top_k,
        top_p: number(&case.top_p),
        min_p: number(&case.min_p),
        ..Settings::default()
    };
    let sampler = Sampler::new(settings, vocab).expect("settings in range");
    let prefix = Prefix { tokens: &[], prompt_len: 0 };
    sampler.law(prefix, row).expect("a law")
}

fn address(case: &Case, key: &Key) -> RoundKey {
    RoundKey {
        seed: Seed { seed: number(&case.noise_seed), sequence: number(&key.sequence) },
        round_start: number(&key.round_start),
        offset: key.offset,
        lane: match key.lane.as_str() {
            "draft" => Lane::Draft,
            "accept" => Lane::Accept,
            "residual" => Lane::Residual,
            "bonus" => Lane::Bonus,
            other => panic!("no lane is called {other}"),
        },
    }
}

#[test]
fn laws_and_draws_equal_those_of_the_second_implementation() {
    let golden: Golden =
        serde_json::from_str(include_str!("golden/rows_151936.json")).expect("golden rows");
    let (mut cases, mut weights, mut draws) = (0, 0, 0);
    for row in &golden.rows {
        let logits = make_row(&row.shape, number(&row.seed), golden.vocab);
        let bytes: Vec<u8> = logits.iter().flat_map(|z| z.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), row.row_sha256, "row {}", row.seed);
        for (c, case) in row.cases.iter().enumerate() {
            let name = format!("row {} ({}), case {c}", row.seed, row.shape);
            let dist = law(case, &logits, golden.vocab);
            assert_eq!(dist.vocab(), golden.vocab, "{name}");
            assert_eq!(dist.support_len(), case.kept, "{name}: kept");
            let ids: Vec<u8> =
                dist.support().flat_map(|(token, _)| token.0.to_le_bytes()).collect();
            assert_eq!(sha256(&ids), case.ids_sha256, "{name}: kept ids");
            assert_eq!(dist.total().to_string(), case.total, "{name}: total");
            let pairs: Vec<u8> = dist
                .support()
                .flat_map(|(token, weight)| {
                    let mut pair = [0; 12];
                    pair[..4].copy_from_slice(&token.0.to_le_bytes());
                    pair[4..].copy_from_slice(&weight.to_le_bytes());
                    pair
                })
                .collect();
            assert_eq!(sha256(&pairs), case.weights_sha256, "{name}: weights");
            let noise: &mut dyn Noise = &mut ChaCha;
            let drawn: Vec<u32> =
                golden.keys.iter().map(|key| noise.draw(address(case, key), &dist).0).collect();
            assert_eq!(drawn, case.draws, "{name}: draws");
            cases += 1;
            weights += case.kept;
            draws += drawn.len();
        }
    }
    let rows = golden.rows.len();
    println!("{rows} rows, {cases} cases: {weights} weights and {draws} draws equal, difference 0");
    assert!(rows == 64 && cases == 128 && draws == 1024);
}
