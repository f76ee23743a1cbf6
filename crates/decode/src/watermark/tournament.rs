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

use ruint::aliases::U256;

use crate::{Dist, Token, dist::Residual, law::Law};

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

/// All ones where the bit of `layer` is 1: the bits are random, so masks beat branches.
#[inline(always)]
fn mask(bits: u64, layer: usize) -> u64 {
    (bits >> layer & 1).wrapping_neg()
}

/// One layer.
fn play(weights: &mut [u64], bits: &[u64], total: u64, layer: usize, leaves: usize) {
    let one: u64 = weights.iter().zip(bits).fold(0, |sum, (&weight, &bits)| {
        // Part of the total, so it cannot overflow.
        sum.wrapping_add(weight & mask(bits, layer))
    });
    let zero = total - one;
    if one == 0 || zero == 0 {
        return;
    }
    let moved = zero - kept(zero, total, leaves);
    let ratio = |class: u64| (u128::from(moved) << 64) / u128::from(class);
    match (u64::try_from(ratio(zero)), u64::try_from(ratio(one))) {
        (Ok(zero_ratio), Ok(one_ratio)) => {
            let classes = Classes { zero, one, zero_ratio, one_ratio };
            deal(weights, bits, layer, classes, |sum, class, ratio| {
                floor(moved, sum, class, ratio)
            });
        }
        // More leaves may give a class more than it has.
        _ => {
            let classes = Classes { zero, one, zero_ratio: 0, one_ratio: 0 };
            deal(weights, bits, layer, classes, |sum, class, _| {
                (u128::from(moved) * u128::from(sum) / u128::from(class)) as u64
            });
        }
    }
}

/// What class 0 keeps of its weight: `K_N`.
fn kept(zero: u64, total: u64, leaves: usize) -> u64 {
    (1..leaves).fold(zero, |kept, _| {
        let product = u128::from(kept) * u128::from(zero);
        product.div_ceil(u128::from(total)) as u64
    })
}

/// The weights of the classes, and what they get a unit of it, in 2^-64.
#[derive(Clone, Copy)]
struct Classes {
    zero: u64,
    one: u64,
    zero_ratio: u64,
    one_ratio: u64,
}

/// Deals the move out: `floor(C_x, W_g, ratio)` is `⌊L·C_x/W_g⌋`.
#[inline(always)]
fn deal(
    weights: &mut [u64],
    bits: &[u64],
    layer: usize,
    classes: Classes,
    floor: impl Fn(u64, u64, u64) -> u64,
) {
    let (mut zero_sum, mut one_sum, mut zero_dealt, mut one_dealt) = (0u64, 0u64, 0u64, 0u64);
    for (weight, &bits) in weights.iter_mut().zip(bits) {
        let one = mask(bits, layer);
        let either = |of_zero: u64, of_one: u64| of_zero ^ ((of_zero ^ of_one) & one);
        zero_sum = zero_sum.wrapping_add(*weight & !one);
        one_sum = one_sum.wrapping_add(*weight & one);
        let dealt = floor(
            either(zero_sum, one_sum),
            either(classes.zero, classes.one),
            either(classes.zero_ratio, classes.one_ratio),
        );
        let share = dealt.wrapping_sub(either(zero_dealt, one_dealt));
        zero_dealt = either(dealt, zero_dealt);
        one_dealt = either(one_dealt, dealt);
        // Plus the share in class 1, minus it in class 0.
        *weight = weight.wrapping_add((share ^ !one).wrapping_sub(!one));
    }
}

/// `⌊moved·sum / class⌋`, with `ratio = ⌊moved·2^64 / class⌋`: that is too small by less than 1, so
/// `⌊ratio·sum / 2^64⌋` is too small by at most 1, and the remainder, below 2^63, says by which.
#[inline(always)]
fn floor(moved: u64, sum: u64, class: u64, ratio: u64) -> u64 {
    let floor = ((u128::from(ratio) * u128::from(sum)) >> 64) as u64;
    let remainder = moved.wrapping_mul(sum).wrapping_sub(floor.wrapping_mul(class));
    floor.wrapping_add(u64::from(remainder >= class))
}

/// A residual with a total of at most 2^61: see [`Watermark::mark_residual`](super::Watermark).
pub(super) fn narrowed(residual: &Residual<'_>, vocab: usize) -> Dist {
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
