//! Temperature: from logits to integer weights.
//!
//! # Formula
//! `w_i = round(2^B · e_i)` with `e_i = exp((z_i − max)·(1/T))`, where `B = 61 − ⌈log2 S⌉` and
//! `S = Σ round(2^32 · e_i) / 2^32`. Both roundings are to the nearest integer, ties to even; all sums
//! are of integers, so they do not depend on their order.
//!
//! # Precision
//! `W ≤ 2^61·(1 + V·2^-33) + V/2`, and the total variation between this law and the ideal softmax of
//! the same logits is at most `V·2^-61` (rounding) plus `2^-52` (the relative error of
//! [`exp`](crate::exp)) plus the effect of the two roundings of `(z_i − max)·(1/T)` (relative `2^-52`
//! of that product; none at T = 1). A token keeps a positive weight down to about `2^-61` of the
//! total.
//!
//! # Temperature 0
//! A separate branch, and a law: all mass on the largest logit, ties to the lowest id. (The *limit*
//! T → 0 would share the mass between tied logits; the branch does not.)
//!
//! # Example
//! Logits 10 and 8 have the ratio e^(2/T): e^4 at T = 0.5, e^2 at 1, e^1 at 2.

use super::{
    candidates::Candidates,
    logits::{Logit, Logits, each_kind},
};
use crate::{
    exp::{INTEGERS, ROUND, exp},
    vector::{Loop, widest},
};

/// Which definition of the weights this is: it counts every change of their bits, and is part of what a
/// contract's hash covers.
pub const VERSION: u32 = 2;

/// Divides the logits of the candidates by `temperature`; 0 keeps only the largest.
pub(super) fn apply(candidates: &mut Candidates<'_>, temperature: f64) {
    if temperature == 0.0 {
        candidates.keep_largest();
    } else {
        candidates.set_temperature(temperature);
    }
}

/// Integer weights and their sum.
#[derive(Debug)]
pub(super) struct Weights {
    /// By ascending id of their candidates.
    pub(super) row: Vec<u64>,
    pub(super) total: u64,
}

/// The integer weights of `logits`, of which one is finite, at `temperature > 0`.
pub(super) fn weights(logits: &Logits<'_>, temperature: f64) -> Weights {
    let (max, inverse) = (logits.largest(), 1.0 / temperature);
    let (mut row, sum) = each_kind!(logits, logits => {
        widest(Exponentials { logits, max, inverse })
    });
    // ⌈log2 S⌉ ≥ 0, since the largest logit alone contributes 2^32 to the sum.
    let log_2 = u64::BITS - (sum - 1).leading_zeros() - 32;
    let scale = f64::from_bits(u64::from(1023 + 61 - log_2) << 52);
    let total = widest(Round { row: &mut row, scale });
    Weights { row, total }
}

/// The bits of each `e`, and `Σ round(2^32 · e)`.
struct Exponentials<'a, Z> {
    logits: &'a [Z],
    max: f64,
    /// 1/T.
    inverse: f64,
}

impl<Z: Logit> Loop for Exponentials<'_, Z> {
    type Output = (Vec<u64>, u64);

    #[inline(always)]
    fn run(self) -> (Vec<u64>, u64) {
        let Self { logits, max, inverse } = self;
        // Wrapping, since checked sums do not vectorise. The sum itself is at most V·2^32 < 2^57; the
        // bits of 2^52 that come along are taken off at the end.
        let mut sum = 0u64;
        // By way of a short buffer: a row that is made first and filled then is read from memory twice.
        let mut row = Vec::with_capacity(logits.len());
        let mut buffer = [0u64; 256];
        for logits in logits.chunks(buffer.len()) {
            let bits = &mut buffer[..logits.len()];
            for (bits, &z) in bits.iter_mut().zip(logits) {
                let x = (z.into() - max) * inverse;
                // 0·∞ at the tiniest temperatures is no number, and not below 0 either.
                let e = exp(if x < 0.0 { x } else { 0.0 });
                *bits = e.to_bits();
                sum = sum.wrapping_add(e.mul_add(4_294_967_296.0, INTEGERS).to_bits());
            }
            row.extend_from_slice(bits);
        }
        (row, sum.wrapping_sub((logits.len() as u64).wrapping_mul(INTEGERS.to_bits())))
    }
}

/// Turns the bits of each `e` into `round(e · scale)` and returns their sum.
struct Round<'a> {
    row: &'a mut [u64],
    scale: f64,
}

impl Loop for Round<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        // Below 2^62 (module docs), so it cannot wrap; unchecked sums vectorise.
        let mut total = 0u64;
        for bits in self.row {
            *bits = round(f64::from_bits(*bits) * self.scale);
            total = total.wrapping_add(*bits);
        }
        total
    }
}

/// Rounds `0 ≤ x ≤ 2^62` to an integer, ties to even, in halves of 32 bits: so it needs no
/// conversion from float to integer, which most vector units lack.
#[inline(always)]
fn round(x: f64) -> u64 {
    const HALF: f64 = 4_294_967_296.0;
    let high = x.mul_add(1.0 / HALF, INTEGERS);
    // Exact: what is left, its fraction included, has no more bits than x.
    let low = (high - INTEGERS).mul_add(-HALF, x);
    let low = (low + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
    // What `high` has above its low half is shifted out.
    (high.to_bits() << 32).wrapping_add(low)
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
            assert_eq!(round(x), expected, "{x}");
        }
    }

    /// The total stays between 2^60 and 2^61, less or more rounding, whatever the row.
    #[test]
    fn totals_use_the_range() {
        for n in [1usize, 2, 3, 63, 64, 65, 1000, 1 << 16] {
            for spread in [0.0, 0.1, 5.0, 40.0, 1e4] {
                let logits: Vec<f64> = (0..n).map(|i| -spread * i as f64 / n as f64).collect();
                let Weights { row, total } = weights(&Logits::Changed(logits), 1.0);
                assert_eq!(total, row.iter().sum::<u64>());
                assert!(total <= (1 << 61) + (n as u64) * ((1 << 28) + 1), "{n} {spread} {total}");
                assert!(total >= (1 << 60) - (n as u64) * ((1 << 28) + 1), "{n} {spread} {total}");
            }
        }
    }
}
