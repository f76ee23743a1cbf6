//! Typical: tokens whose surprise is nearest to the expected one.
//!
//! # Formula
//! With `p_i = w_i/W` and the entropy `H = −Σ p_i·ln p_i`, candidates are ranked by
//! (`|−ln p_i − H|` ascending, id ascending). With the decimal num/10^d as typed and
//! `t = ⌈num·W/10^d⌉`, a token stays while the mass of those before it, the *exclusive* prefix mass,
//! is below t. (Meister et al. 2202.00666, eq. 11 and §4; the rule of transformers' typical warper,
//! which keeps the whole group tied with the last.)
//!
//! # Precision
//! ln W cancels: `|−ln p_i − H| = |c − ln w_i|` with `c = Σ w_i·ln w_i / W`. Every `ln w_i`, from our
//! own [`ln`](crate::ln) (absolute error below 2^-45), is a whole multiple of 2^-57, so the sum and
//! the comparisons `|Σ w_j·l_j − W·l_i|` are of integers below 2^125: exact, in any order of summing.
//!
//! # Example
//! (0.5, 0.2, 0.2, 0.1) has H = 1.221 and the distances 0.53, 0.39, 0.39, 1.08: typical 0.4 keeps
//! tokens 1 and 2 and not the likeliest.
//!
//! # Edge cases
//! 1 keeps all. On a uniform row all distances are 0 and the lowest ids stay. A token of weight 0 is
//! infinitely surprising and goes.

use super::{candidates::Candidates, temperature::Weights, top_p::first_to_reach};
use crate::{Decimal, ln::ln};

/// Keeps the locally typical candidates of mass `mass`, below 1.
pub(super) fn apply(candidates: &mut Candidates<'_>, mass: Decimal) {
    let Weights { row: weights, total } = candidates.weights();
    let threshold = u64::try_from(mass.ceil_of(*total)).expect("mass < 1, so ⌈mass·W⌉ ≤ W");
    let mut ranked = distances(weights);
    let kept = first_to_reach(
        &mut ranked,
        threshold,
        |candidate| candidate.weight,
        |a, b| a.distance.cmp(&b.distance).then(a.place.cmp(&b.place)),
    );
    let mut places: Vec<usize> = ranked[..kept].iter().map(|ranked| ranked.place).collect();
    places.sort_unstable();
    candidates.keep(&places);
}

struct Ranked {
    /// `W·2^57·|c − ln w|`.
    distance: u128,
    weight: u64,
    place: usize,
}

/// The candidates of positive weight with their distances.
fn distances(weights: &[u64]) -> Vec<Ranked> {
    let logarithms: Vec<u64> = weights.iter().map(|&weight| logarithm(weight)).collect();
    let pairs = || weights.iter().zip(&logarithms).enumerate();
    let (mut total, mut sum) = (0, 0);
    for (_, (&weight, &logarithm)) in pairs() {
        total += u128::from(weight);
        sum += u128::from(weight) * u128::from(logarithm);
    }
    pairs()
        .filter(|(_, (weight, _))| **weight > 0)
        .map(|(place, (&weight, &logarithm))| Ranked {
            distance: sum.abs_diff(total * u128::from(logarithm)),
            weight,
            place,
        })
        .collect()
}

/// `ln(weight)·2^57`, a whole number: below 1 a logarithm of an integer is 0 or at least ln 2, whose
/// last bit is 2^-53. For weight 0, which is never ranked, that of 1.
fn logarithm(weight: u64) -> u64 {
    /// 2^57.
    const UNIT: f64 = 144_115_188_075_855_872.0;
    (ln(weight.max(1) as f64) * UNIT) as i64 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Prefix, Sampler, Settings};

    fn kept(probabilities: &[f64], typical: &str) -> Vec<u32> {
        let row: Vec<f32> = probabilities.iter().map(|p| p.ln() as f32).collect();
        let settings =
            Settings { typical: typical.parse().expect("a decimal"), ..Settings::default() };
        let sampler = Sampler::new(settings, row.len()).expect("settings in range");
        let prefix = Prefix { tokens: &[], prompt_len: 0 };
        let law = sampler.law(prefix, &row).expect("a law");
        law.support().map(|(token, _)| token.0).collect()
    }

    #[test]
    fn the_nearest_to_the_entropy_stay() {
        // H = 1.2206; distances 0.5275, 0.3888, 0.3888, 1.0820.
        let row = [0.5, 0.2, 0.2, 0.1];
        for (typical, expected) in [
            ("0.1", &[1][..]),
            ("0.2001", &[1, 2]),
            ("0.39", &[1, 2]),
            ("0.41", &[0, 1, 2]),
            ("0.89", &[0, 1, 2]),
            ("0.91", &[0, 1, 2, 3]),
            ("1", &[0, 1, 2, 3]),
        ] {
            assert_eq!(kept(&row, typical), expected, "{typical}");
        }
        // Meister et al.'s point: the likeliest token may be the one that goes.
        assert_eq!(kept(&[0.4, 0.15, 0.15, 0.15, 0.15], "0.5"), [1, 2, 3, 4]);
    }

    #[test]
    fn flat_rows_peaked_rows_and_single_tokens() {
        assert_eq!(kept(&[0.1; 10], "0.3"), [0, 1, 2]);
        assert_eq!(kept(&[0.1; 10], "0.30000001"), [0, 1, 2, 3]);
        assert_eq!(kept(&[1.0], "0.00001"), [0]);
        assert_eq!(kept(&[0.0, 1.0, 0.0], "0.999"), [1]);
        assert_eq!(kept(&[1e-30, 1.0], "0.999"), [1]);
    }

    /// The fixed-point logarithm loses nothing, up to the largest weight there is.
    #[test]
    fn logarithms_are_whole() {
        let mut weights: Vec<u64> = (1..5000).collect();
        weights.extend((0..63).flat_map(|bit| [1u64 << bit, (1 << bit) + 1, (1u64 << bit) - 1]));
        for weight in weights.into_iter().filter(|&weight| weight > 0) {
            let back = logarithm(weight) as f64 / 2f64.powi(57);
            assert_eq!(back, ln(weight as f64), "{weight}");
        }
        assert!(u128::from(logarithm(1 << 62)) << 62 < 1 << 125);
    }

    /// The distances are those of the definition, to f64's accuracy.
    #[test]
    fn distances_are_those_of_the_definition() {
        let weights = [500u64, 200, 0, 200, 100, 1];
        let total = 1001.0;
        let surprise = |weight: u64| -(weight as f64 / total).ln();
        let entropy: f64 = weights
            .iter()
            .filter(|weight| **weight > 0)
            .map(|&weight| weight as f64 / total * surprise(weight))
            .sum();
        let found = distances(&weights);
        assert_eq!(found.len(), 5);
        for ranked in found {
            let expected = (surprise(weights[ranked.place]) - entropy).abs();
            let scaled = ranked.distance as f64 / (total * 2f64.powi(57));
            assert!((scaled - expected).abs() < 1e-14, "{scaled} {expected}");
        }
    }
}
