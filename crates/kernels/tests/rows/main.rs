//! The law of the crate: a row of a batch = the row alone, bit for bit, on every instruction set and
//! any number of threads; and every kernel = a plain f64 reference, nearly.

mod attention;
mod linear;
mod quant;
mod rowwise;

use draftproof_kernels::{isa::Isa, team};

/// Numbers in −1..1 that repeat nowhere near.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference from the reference.
fn distance(found: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(found.len(), reference.len());
    let pairs = found.iter().zip(reference);
    pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

/// Runs `f` on every instruction set with one and two threads, checks that all give the same bits,
/// and returns them.
fn everywhere(f: impl Fn() -> Vec<f32>) -> Vec<f32> {
    team::set_threads(2);
    let first = Isa::Portable.scope(|| team::with_threads(1, &f));
    for isa in Isa::available() {
        for threads in [1, 2] {
            let found = isa.scope(|| team::with_threads(threads, &f));
            assert_eq!(bits(&found), bits(&first), "{isa:?}, {threads} threads");
        }
    }
    first
}
