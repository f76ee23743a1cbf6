//! Min-p: a floor relative to the likeliest token.
//!
//! # Formula
//! A candidate stays while `w_i · 10^d ≥ num · w_max`, where `num / 10^d` is the decimal as typed.
//! (Nguyen et al. 2407.01082, §3.)
//!
//! # Example
//! (0.1, 0.2, 0.3, 0.4) with 0.6 has the floor 0.24 and keeps ids 2 and 3, as 0.4286 and 0.5714.
//!
//! # Edge cases
//! 0 keeps everything; 1 keeps the likeliest and those tied with it.

use super::candidates::Candidates;
use crate::Decimal;

/// Keeps candidates at least `min_p`, above 0, times as heavy as the heaviest.
pub(super) fn apply(candidates: &mut Candidates<'_>, min_p: Decimal) {
    let weights = &candidates.weights().row;
    let largest = weights.iter().copied().max().unwrap_or(0);
    let floor = min_p.ceil_of(largest);
    let places: Vec<usize> =
        (0..weights.len()).filter(|&i| u128::from(weights[i]) >= floor).collect();
    candidates.keep(&places);
}
