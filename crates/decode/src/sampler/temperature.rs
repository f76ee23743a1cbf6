//! Temperature: from logits to integer weights.
//!
//! # Formula
//! `w_i = round_half_even(2^B · exp((z_i − max)/T))`, where `B = 61 − ⌈log2 S⌉` and `S` is
//! `Σ exp((z_i − max)/T)` bounded from above by a first integer pass at scale 2^32. All sums are of
//! integers, so they do not depend on their order.
//!
//! # Precision
//! `W ≤ 2^61 + V/2`, and the total variation between this law and the ideal softmax of the same
//! logits is at most `V·2^-61` (rounding) plus `2^-52` (the relative error of [`exp`](crate::exp))
//! plus the effect of the one rounding of `(z_i − max)/T` (relative `2^-53` of that quotient). A
//! token keeps a positive weight down to about `2^-61` of the total.
//!
//! # Temperature 0
//! A separate branch, and a law: all mass on the largest logit, ties to the lowest id. (The *limit*
//! T → 0 would share the mass between tied logits; the branch does not.)
//!
//! # Example
//! Logits 10 and 8 have the ratio e^(2/T): e^4 at T = 0.5, e^2 at 1, e^1 at 2.

use super::candidates::Candidates;
use crate::{
    exp::exp,
    vector::{Loop, widest},
};

/// Divides the logits of the candidates by `temperature`; 0 keeps only the largest.
pub(super) fn apply(candidates: &mut Candidates, temperature: f64) {
    if temperature == 0.0 {
        let logits = candidates.logits();
        let largest = largest(logits);
        let place = logits.iter().position(|&z| z == largest).unwrap_or(0);
        candidates.keep(&[place]);
    } else {
        candidates.set_temperature(temperature);
    }
}

/// The integer weights of `logits` (finite or −∞, one at least finite) at `temperature > 0`.
pub(super) fn weights(logits: &[f64], temperature: f64) -> Vec<u64> {
    let max = widest(Largest(logits));
    let mut row = vec![0; logits.len()];
    // x / 1 = x, and divisions are what this loop waits for.
    let exponents = Exponents { logits, max, temperature };
    let bound = if temperature == 1.0 {
        widest(Exponentials::<false> { exponents, row: &mut row })
    } else {
        widest(Exponentials::<true> { exponents, row: &mut row })
    };
    // ⌈log2 S⌉ ≥ 0, since the largest logit alone contributes 2^32 to the bound.
    let log_2 = u64::BITS - (bound - 1).leading_zeros() - 32;
    let scale = f64::from_bits(u64::from(1023 + 61 - log_2) << 52);
    widest(Round { row: &mut row, scale });
    row
}

struct Largest<'a>(&'a [f64]);

impl Loop for Largest<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        largest(self.0)
    }
}

/// What the exponents `(z − max)/T` are made of.
struct Exponents<'a> {
    logits: &'a [f64],
    max: f64,
    temperature: f64,
}

struct Exponentials<'a, const DIVIDE: bool> {
    exponents: Exponents<'a>,
    row: &'a mut [u64],
}

impl<const DIVIDE: bool> Loop for Exponentials<'_, DIVIDE> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Exponents { logits, max, temperature } = self.exponents;
        exponentials::<DIVIDE>(logits, max, temperature, self.row)
    }
}

struct Round<'a> {
    row: &'a mut [u64],
    scale: f64,
}

impl Loop for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        round(self.row, self.scale);
    }
}

#[inline(always)]
pub(super) fn largest(logits: &[f64]) -> f64 {
    let mut lanes = [f64::NEG_INFINITY; 8];
    let (blocks, rest) = logits.as_chunks::<8>();
    for block in blocks {
        for (lane, &z) in lanes.iter_mut().zip(block) {
            *lane = if z > *lane { z } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f64::NEG_INFINITY, f64::max)
}

/// 2^52: adding it to a smaller non-negative double rounds to an integer, ties to even, and leaves
/// that integer in the low bits.
const INTEGERS: f64 = 4_503_599_627_370_496.0;
const LOW_BITS: u64 = (1 << 52) - 1;

/// Writes the bits of `exp((z − max)/T)` to `row` and returns `Σ ⌈2^32 · exp((z − max)/T)⌉`.
#[inline(always)]
fn exponentials<const DIVIDE: bool>(
    logits: &[f64],
    max: f64,
    temperature: f64,
    row: &mut [u64],
) -> u64 {
    // Wrapping, since checked sums do not vectorise: it is at most V·(2^32 + 1) < 2^57.
    let mut bound = 0u64;
    for (bits, &z) in row.iter_mut().zip(logits) {
        let x = if DIVIDE { (z - max) / temperature } else { z - max };
        let e = exp(if x < 0.0 { x } else { 0.0 });
        *bits = e.to_bits();
        let scaled = e * 4_294_967_296.0;
        let shifted = scaled + INTEGERS;
        let short = u64::from(shifted - INTEGERS < scaled);
        bound = bound.wrapping_add(shifted.to_bits() & LOW_BITS).wrapping_add(short);
    }
    bound
}

/// Turns the bits of each `e` into `round_half_even(e · scale)`.
#[inline(always)]
fn round(row: &mut [u64], scale: f64) {
    for bits in row {
        *bits = round_half_even(f64::from_bits(*bits) * scale);
    }
}

/// Rounds `0 ≤ x ≤ 2^62` to an integer, ties to even, in halves of 32 bits: so it needs no
/// conversion from float to integer, which most vector units lack.
#[inline(always)]
fn round_half_even(x: f64) -> u64 {
    const HALF: f64 = 4_294_967_296.0;
    let shifted = x * (1.0 / HALF) + INTEGERS;
    let nearest = shifted - INTEGERS;
    let floor = if nearest > x * (1.0 / HALF) { nearest - 1.0 } else { nearest };
    // Exact: the low half of x, its fraction included, has no more bits than x.
    let low = x - floor * HALF;
    let high = (floor + INTEGERS).to_bits() & LOW_BITS;
    (high << 32).wrapping_add((low + INTEGERS).to_bits() & LOW_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_ties_to_even() {
        let cases = [
            (0.0, 0),
            (0.25, 0),
            (0.5, 0),
            (0.75, 1),
            (1.5, 2),
            (2.5, 2),
            (3.5, 4),
            (2f64.powi(51) + 0.5, 1 << 51),
            (2f64.powi(51) + 1.5, (1 << 51) + 2),
            (2f64.powi(52) - 0.5, 1 << 52),
            (2f64.powi(32) - 0.5, 1 << 32),
            (2f64.powi(32) + 0.5, 1 << 32),
            (2f64.powi(32) + 1.5, (1 << 32) + 2),
            (3.0 * 2f64.powi(31) + 0.5, 3 << 31),
            (2f64.powi(61), 1 << 61),
            (2f64.powi(62) - 512.0, (1 << 62) - 512),
            (2f64.powi(62), 1 << 62),
        ];
        for (x, expected) in cases {
            assert_eq!(round_half_even(x), expected, "{x}");
        }
    }

    /// The total stays between 2^60 (less rounding) and 2^61 + V/2, whatever the row.
    #[test]
    fn totals_use_the_range() {
        for n in [1usize, 2, 3, 63, 64, 65, 1000, 1 << 16] {
            for spread in [0.0, 0.1, 5.0, 40.0, 1e4] {
                let logits: Vec<f64> = (0..n).map(|i| -spread * i as f64 / n as f64).collect();
                let total: u64 = weights(&logits, 1.0).iter().sum();
                assert!(total <= (1 << 61) + n as u64 / 2, "{n} {spread} {total}");
                assert!(total >= (1 << 60) - n as u64, "{n} {spread} {total}");
            }
        }
    }
}
