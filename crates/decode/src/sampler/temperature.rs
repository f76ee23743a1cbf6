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
use crate::exp::exp;

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

fn largest(logits: &[f64]) -> f64 {
    logits.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The integer weights of `logits` (finite or −∞, one at least finite) at `temperature > 0`.
pub(super) fn weights(logits: &[f64], temperature: f64) -> Vec<u64> {
    let max = largest(logits);
    let exponentials: Vec<f64> =
        logits.iter().map(|&z| exp(((z - max) / temperature).min(0.0))).collect();
    // ⌈e·2^32⌉ by truncation, which unlike `ceil` needs no library call on any target.
    let bound: u64 = exponentials
        .iter()
        .map(|&e| {
            let scaled = e * 4_294_967_296.0;
            let floor = scaled as i64;
            floor as u64 + u64::from((floor as f64) < scaled)
        })
        .sum();
    // ⌈log2 S⌉ ≥ 0, since the largest logit alone contributes 2^32 to the bound.
    let log_2 = u64::BITS - (bound - 1).leading_zeros() - 32;
    let scale = f64::from_bits(u64::from(1023 + 61 - log_2) << 52);
    exponentials.iter().map(|&e| round_half_even(e * scale)).collect()
}

/// Rounds `0 ≤ x ≤ 2^62` to an integer, ties to even.
#[inline(always)]
fn round_half_even(x: f64) -> u64 {
    /// 2^52: from here on every double is an integer; below, adding it rounds.
    const INTEGERS: f64 = 4_503_599_627_370_496.0;
    let rounded = if x < INTEGERS { (x + INTEGERS) - INTEGERS } else { x };
    rounded as i64 as u64
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
            (2f64.powi(61), 1 << 61),
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
