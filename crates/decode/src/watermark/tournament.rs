//! The tournament on integer weights: exactly the input law on average over keys.
//!
//! The reference multiplies probabilities, layer by layer: `P(x) ← P(x)·(1 + g(x) − G)` with
//! `G = Σ g·P`. On integers the same shift is a move of weight between the two classes g = 0 and
//! g = 1, of weights W0 and W1 with W0 + W1 = W:
//!
//! 1. `L = ⌊W0·W1/W⌋` moves from class 0 to class 1;
//! 2. within a class of weight `W_g`, with C the cumulative weight in id order, token x takes
//!    `⌊L·C_x/W_g⌋ − ⌊L·C_{x−1}/W_g⌋` of the move.
//!
//! The total stays W and no weight goes negative (`L ≤ W_g`, and the floors of a sum that grows by
//! at most w differ by at most w). Why it does not distort: flip all bits of the layer. The classes
//! swap, L and each token's share stay, and what x gained it now loses; so over a bit and its
//! complement, and over all keys, the mean is the weight that went in, exactly. Layers follow each
//! other with bits of their own.
//!
//! More leaves: a match of N keeps class 0 with probability `(W0/W)^N`, so `L = W0 − K_N` with
//! `K_1 = W0`, `K_{i+1} = ⌈K_i·W0/W⌉` (for N = 2 the L above). Only for N = 2 is the mean kept.

use crate::{Dist, Token, dist::Residual};

use super::GValues;

/// The law after all layers.
#[must_use]
pub fn tournament(law: &Dist, context: &[Token], values: &dyn GValues, leaves: usize) -> Dist {
    let (ids, mut weights): (Vec<u32>, Vec<u64>) = law.support().map(|(x, w)| (x.0, w)).unzip();
    let mut bits = vec![0; ids.len()];
    values.fill(context, &ids, &mut bits);
    for layer in 0..values.depth() {
        play(&mut weights, &bits, law.total(), layer, leaves);
    }
    law.reweighted(ids, weights)
}

/// One layer.
fn play(weights: &mut [u64], bits: &[u64], total: u64, layer: usize, leaves: usize) {
    let one: u64 = weights.iter().zip(bits).fold(0, |sum, (&weight, &bits)| {
        // A mask, not a branch: the bits are random.
        sum.wrapping_add(weight & (bits >> layer & 1).wrapping_neg())
    });
    let zero = total - one;
    if one == 0 || zero == 0 {
        return;
    }
    let moved = zero - kept(zero, total, leaves);
    let mut classes = [Class::new(moved, zero), Class::new(moved, one)];
    for (weight, &bits) in weights.iter_mut().zip(bits) {
        let g = bits >> layer & 1;
        let share = classes[g as usize].share(*weight);
        // Plus the share for g = 1, minus it for g = 0.
        let sign = g.wrapping_sub(1);
        *weight = weight.wrapping_add((share ^ sign).wrapping_sub(sign));
    }
}

/// What class 0 keeps of its weight: `K_N`.
fn kept(zero: u64, total: u64, leaves: usize) -> u64 {
    (1..leaves).fold(zero, |kept, _| {
        let product = u128::from(kept) * u128::from(zero);
        product.div_ceil(u128::from(total)) as u64
    })
}

/// Deals the move out within a class.
struct Class {
    moved: u64,
    weight: u64,
    /// `⌊moved·2^64 / weight⌋`, if that fits: less work than a division for each token.
    ratio: Option<u64>,
    sum: u64,
    dealt: u64,
}

impl Class {
    fn new(moved: u64, weight: u64) -> Self {
        let ratio = u64::try_from((u128::from(moved) << 64) / u128::from(weight)).ok();
        Self { moved, weight, ratio, sum: 0, dealt: 0 }
    }

    /// `⌊L·C_x/W_g⌋ − ⌊L·C_{x−1}/W_g⌋`.
    #[inline(always)]
    fn share(&mut self, weight: u64) -> u64 {
        self.sum = self.sum.wrapping_add(weight);
        let dealt = self.floor(self.sum);
        let share = dealt.wrapping_sub(self.dealt);
        self.dealt = dealt;
        share
    }

    /// `⌊moved·sum / weight⌋`. The ratio is too small by less than 2^-64, so `ratio·sum/2^64` is too
    /// small by less than `sum/2^64`: unless its fraction comes that near to 1 its floor is right.
    #[inline(always)]
    fn floor(&self, sum: u64) -> u64 {
        let product = || u128::from(self.moved) * u128::from(sum);
        let Some(ratio) = self.ratio else {
            return (product() / u128::from(self.weight)) as u64;
        };
        let estimate = u128::from(ratio) * u128::from(sum);
        let (floor, fraction) = ((estimate >> 64) as u64, estimate as u64);
        if fraction.checked_add(sum).is_none()
            && u128::from(floor + 1) * u128::from(self.weight) <= product()
        {
            return floor + 1;
        }
        floor
    }
}

/// A residual with a total of at most 2^61: see [`Watermark::mark_residual`](super::Watermark).
pub(super) fn narrowed(residual: &Residual, vocab: usize) -> Dist {
    use ruint::aliases::U256;

    use crate::law::Law;

    let total = residual.total();
    let (mut ids, mut weights, mut sum, mut dealt) = (vec![], vec![], U256::ZERO, 0u64);
    let unit = U256::from(1u64 << 61);
    residual.visit(&mut |token, weight| {
        sum += weight;
        let here: u64 = if total <= unit { sum.to() } else { (sum * unit / total).to() };
        if here > dealt {
            ids.push(token.0);
            weights.push(here - dealt);
        }
        dealt = here;
    });
    Dist::sparse(vocab, ids, weights)
        .expect("ids ascend, and the total is positive and at most 2^61")
}
