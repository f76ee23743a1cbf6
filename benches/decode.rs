//! What the exact arithmetic costs, on one core, at a vocabulary of 151 936 ids (and at fable's 4 096).
//!
//! `cargo bench --bench decode`. The `sort everything` rows are the yardstick: the same law by the
//! plain way of sorting all ids.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use draftproof_decode::{
    Dist, Sampler, Settings, Token,
    dist::{acceptance, overlap, overlap_estimate, residual},
    noise::{ChaCha, Noise, RoundNoise, Seed},
    sampler::Prefix,
    watermark::{GValues, Hashed, Key, Mode, Scheme, StoredKey, Variant, Watermark},
};

const WIDE: usize = 151_936;

/// Logits like a language model's: a long tail, and 40 tokens that stand out by `peak`.
fn row(vocab: usize, seed: u64, peak: f32) -> Vec<f32> {
    let mut state = seed;
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..vocab)
        .map(|_| {
            let normal: f32 = (0..6).map(|_| unit()).sum::<f32>() - 3.0;
            3.0 * normal + if unit() < 40.0 / vocab as f32 { peak } else { 0.0 }
        })
        .collect()
}

fn settings(top_k: usize, top_p: &str) -> Settings {
    Settings { temperature: 0.8, top_k, top_p: top_p.parse().expect("p"), ..Settings::default() }
}

fn law(settings: &Settings, logits: &[f32]) -> Dist {
    let sampler = Sampler::new(settings.clone(), logits.len()).expect("settings");
    sampler.law(Prefix { tokens: &[Token(0)], prompt_len: 1 }, logits).expect("a law")
}

/// Top-p after temperature, sorting all ids: what `top_p` avoids.
fn sort_everything(logits: &[f32], p: f64) -> Vec<(usize, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<(usize, f64)> =
        logits.iter().map(|&z| (f64::from(z - max) / 0.8).exp()).enumerate().collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut before = 0.0;
    weights.retain(|(_, weight)| {
        let keep = before < p * total;
        before += weight;
        keep
    });
    weights
}

fn sampler(c: &mut Criterion) {
    let rows = [("151936 ids, peaked", WIDE, 12.0), ("151936 ids, flat", WIDE, 0.0)];
    for (name, vocab, peak) in rows.into_iter().chain([("4096 ids", 4096, 6.0)]) {
        let logits = row(vocab, 1, peak);
        let mut group = c.benchmark_group(format!("law, {name}"));
        for (name, settings) in [
            ("temperature", settings(0, "1")),
            ("temperature, top-k 50, top-p 0.9", settings(50, "0.9")),
            ("temperature, top-p 0.9", settings(0, "0.9")),
            ("greedy", Settings { temperature: 0.0, ..Settings::default() }),
        ] {
            group.bench_function(name, |b| b.iter(|| law(&settings, black_box(&logits))));
        }
        group.bench_function("temperature, top-p 0.9: sort everything", |b| {
            b.iter(|| sort_everything(black_box(&logits), 0.9));
        });
        group.finish();
    }
}

fn verdict(c: &mut Criterion) {
    let round = RoundNoise { seed: Seed { seed: 1, sequence: 0 }, round_start: 9 };
    for (name, vocab, settings) in [
        ("151936 ids, dense", WIDE, settings(0, "1")),
        ("151936 ids, top-k 50", WIDE, settings(50, "1")),
        ("4096 ids, dense", 4096, settings(0, "1")),
    ] {
        let (p, q) = (law(&settings, &row(vocab, 1, 12.0)), law(&settings, &row(vocab, 2, 12.0)));
        let x = q.support().map(|(token, _)| token).next().expect("a token");
        let mut group = c.benchmark_group(format!("verdict, {name}"));
        group.bench_function("acceptance", |b| b.iter(|| acceptance(black_box(&p), &q, x)));
        group.bench_function("residual", |b| b.iter(|| residual(black_box(&p), &q)));
        group.bench_function("overlap", |b| b.iter(|| overlap(black_box(&p), &q)));
        group.bench_function("figures: overlap", |b| {
            b.iter(|| overlap_estimate(black_box(&p), &q));
        });
        group.bench_function("figures: entropy, support, largest", |b| {
            b.iter(|| (black_box(&p).entropy_bits(), p.support_len(), p.largest()));
        });
        let draw = |noise: &mut ChaCha| {
            let noise: &mut dyn Noise = noise;
            noise.draw(round.key(0, draftproof_decode::noise::Lane::Bonus), black_box(&p))
        };
        group.bench_function("draw", |b| {
            b.iter_batched_ref(ChaCha::default, draw, BatchSize::SmallInput)
        });
        group.bench_function("race", |b| b.iter(|| ChaCha.race(round.position(0), black_box(&p))));
        group.finish();
    }
}

/// The mark on a finished law, depth 30; and of it the bits alone.
fn watermark(c: &mut Criterion) {
    let text: Vec<Token> = (0..300).map(Token).collect();
    let rows =
        [("151936 ids", WIDE, 0), ("4096 ids", 4096, 0), ("151936 ids, top-k 100", WIDE, 100)];
    for (name, vocab, top_k) in rows {
        let law = law(&settings(top_k, "1"), &row(vocab, 1, 6.0));
        let ids: Vec<u32> = law.support().map(|(token, _)| token.0).collect();
        let mut group = c.benchmark_group(format!("watermark, {name}"));
        for variant in [Variant::Gdm, Variant::Hf] {
            let scheme = Scheme { variant, ..Scheme::default() };
            let key = Key::new((0..30).map(|layer| layer * 0x1234_5678_9abc).collect());
            let values = Hashed::new(&scheme, &key);
            let key = StoredKey::new(scheme, key, "2026-01-01".into(), None).expect("a key");
            let watermark = Watermark::new(&key, Mode::Exact);
            group.bench_function(format!("{variant}"), |b| {
                b.iter_batched(
                    || law.clone(),
                    |law| watermark.mark(black_box(&text), law),
                    BatchSize::LargeInput,
                );
            });
            let mut bits = vec![0; ids.len()];
            group.bench_function(format!("{variant}, bits"), |b| {
                b.iter(|| values.fill(black_box(&text[..4]), &ids, &mut bits));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, sampler, verdict, watermark);
criterion_main!(benches);
