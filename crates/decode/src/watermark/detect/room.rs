//! How strong a mark a text could carry, by the model's own laws.
//!
//! The tournament needs a choice: where the law is near to certain, as in greedy or quoted text, no
//! mark is left whatever the key. With the laws at hand (teacher forcing) the expected bits of *marked*
//! text are known, and a detector can say beforehand that it would see nothing.

use super::{layer_weights, p_value};
use crate::{
    Dist, Token,
    watermark::{GValues, Scheme, tournament::tournament},
};

/// The expected gain of a marked text over fair bits, position by position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Room {
    positions: usize,
    expected: f64,
}

impl Room {
    /// Adds a usable position: the law p there without the watermark, and its context.
    ///
    /// The expected gain of each layer under this key is `Σ_x (W(p)(x) − p(x))·g_l(x)`: averaged over
    /// keys, p alone gives one half.
    pub fn add(&mut self, scheme: &Scheme, values: &dyn GValues, context: &[Token], law: &Dist) {
        self.positions += 1;
        if law.only().is_some() {
            return;
        }
        let marked = tournament(law, context, values, scheme.leaves);
        let ids: Vec<u32> = law.support().map(|(x, _)| x.0).collect();
        let mut bits = vec![0; ids.len()];
        values.fill(context, &ids, &mut bits);
        let layers = layer_weights(values.depth());
        for (bits, (x, weight)) in bits.into_iter().zip(law.support()) {
            let ones: u64 = layers.iter().enumerate().map(|(l, w)| w * (bits >> l & 1)).sum();
            let moved = marked.weight(x) as f64 - weight as f64;
            self.expected += ones as f64 * moved / law.total() as f64;
        }
    }

    /// How many positions were added.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// By how much the weighted mean of marked text is expected to exceed one half, 0 to 1/4 or so.
    #[must_use]
    pub fn gain(&self, depth: usize) -> f64 {
        let most = self.positions as f64 * layer_weights(depth).iter().sum::<u64>() as f64;
        if most == 0.0 { 0.0 } else { self.expected / most }
    }
}

/// The least share of marked texts that a length must let be found, to be called enough.
pub const POWER: f64 = 0.9;
/// The standard normal quantile of [`POWER`].
const POWER_QUANTILE: f64 = 1.281_551_565_544_6;

/// Whether `positions` of a text whose weighted mean is expected `gain` above one half are found at
/// false-positive rate `rate` with probability [`POWER`] (the score's spread taken as normal, and as
/// that of fair bits).
#[must_use]
pub fn is_enough(depth: usize, positions: usize, gain: f64, rate: f64) -> bool {
    let weights = layer_weights(depth);
    let (n, sum) = (positions as f64, weights.iter().sum::<u64>() as f64);
    let spread = (n * weights.iter().map(|&w| (w * w) as f64).sum::<f64>()).sqrt() / 2.0;
    let score = n * sum * (0.5 + gain) - POWER_QUANTILE * spread;
    let score = score.floor().clamp(0.0, n * sum);
    positions > 0 && p_value(depth, positions, score as u64) <= rate
}

/// The fewest positions that are [enough](is_enough); `None` beyond a million.
#[must_use]
pub fn needed(depth: usize, gain: f64, rate: f64) -> Option<usize> {
    needed_beyond(0, depth, gain, rate)
}

/// The same, if `few` positions are known not to be enough.
pub(super) fn needed_beyond(few: usize, depth: usize, gain: f64, rate: f64) -> Option<usize> {
    let (mut low, mut high) = (few, (2 * few).max(1));
    while !is_enough(depth, high, gain, rate) {
        if gain <= 0.0 || high > 1_000_000 {
            return None;
        }
        (low, high) = (high, 2 * high);
    }
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if is_enough(depth, middle, gain, rate) { high = middle } else { low = middle }
    }
    Some(high)
}
