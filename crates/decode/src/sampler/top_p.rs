//! Top-p (nucleus): the heaviest tokens up to a mass of p.
//!
//! # Formula
//! Candidates are ranked by (weight descending, id ascending). With `t = ⌈p·W⌉`, a token stays
//! while the weight *before* it is below t. So the token that crosses p stays, and the first always
//! does. p is the decimal that was typed, so the threshold is exact.
//! (Holtzman et al. 1904.09751, §3.1, with the smallest such set.)
//!
//! # Example
//! (0.5, 0.3, 0.1, 0.1) with p = 0.8 keeps two tokens: the mass before the third is 0.8, not below.
//!
//! # Edge cases
//! p = 1 keeps everything, whatever rounding the weights went through.

use std::cmp::Ordering;

use super::{candidates::Candidates, temperature::Weights};
use crate::{
    Decimal,
    vector::{Loop, widest},
};

/// Keeps the nucleus of mass `p`, below 1.
pub(super) fn apply(candidates: &mut Candidates<'_>, p: Decimal) {
    let Weights { row, total } = candidates.weights();
    let threshold = u64::try_from(p.ceil_of(*total)).expect("p < 1, so ⌈p·W⌉ ≤ W");
    let places = nucleus(row, *total, threshold);
    candidates.keep(&places);
}

/// The places of the nucleus, ascending: by rank, those with less than `threshold` before them.
fn nucleus(weights: &[u64], total: u64, threshold: u64) -> Vec<usize> {
    widest(Nucleus { weights, total, threshold })
}

/// Nothing is sorted but the tokens of one weight [`class`], that in which the threshold is crossed: it
/// has the last token of the nucleus, and all that rank before it stay.
struct Nucleus<'a> {
    weights: &'a [u64],
    total: u64,
    threshold: u64,
}

impl Loop for Nucleus<'_> {
    type Output = Vec<usize>;

    #[inline(always)]
    fn run(self) -> Vec<usize> {
        let Self { weights, total, threshold } = self;
        let weight = |place: u32| weights[place as usize];
        // Those lighter than (W − t)/n weigh less than W − t together, so the others reach t, and the
        // nucleus ends among them: in a model's row that leaves out most of the tail.
        let floor = (total - threshold) / weights.len() as u64;
        let heavy = select(0..weights.len() as u32, |place| weight(place) >= floor);
        let mut mass = [0u64; CLASSES];
        for &place in &heavy {
            let mass = &mut mass[class(weight(place))];
            // Part of the total, so it cannot wrap.
            *mass = mass.wrapping_add(weight(place));
        }
        let mut before = 0;
        let mut crossing = CLASSES - 1;
        while crossing > 0 && before + mass[crossing] < threshold {
            before += mass[crossing];
            crossing -= 1;
        }
        // Classes without mass hold nothing; a threshold of 0 keeps the first token, which is in the
        // highest class with mass.
        while mass[crossing] == 0 {
            crossing -= 1;
        }
        let ranked = select(heavy.iter().copied(), |place| class(weight(place)) == crossing);
        let mut ranked: Vec<_> = ranked.into_iter().map(|place| (weight(place), place)).collect();
        let kept = first_to_reach(
            &mut ranked,
            threshold.saturating_sub(before),
            |&(weight, _)| weight,
            |a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)),
        );
        let (least, last) = ranked[kept - 1];
        // Of those as heavy as the last only those not behind it.
        let stays = |place| weight(place) > least || (weight(place) == least && place <= last);
        let nucleus = select(heavy.iter().copied(), stays);
        nucleus.into_iter().map(|place| place as usize).collect()
    }
}

const CLASSES: usize = 65 << 3;

/// The bit length of a weight, then its three bits below the first: order by class is order by weight.
#[inline(always)]
fn class(weight: u64) -> usize {
    // In the class of 1, a weight of 0 is behind it, and the mass is complete before its turn.
    let zeros = (weight | 1).leading_zeros();
    let below = ((weight << zeros) >> 60) & 7;
    (((64 - zeros) as usize) << 3) | below as usize
}

/// The places for which `wanted` holds, in order.
#[inline(always)]
fn select(places: impl ExactSizeIterator<Item = u32>, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut selected = vec![0; places.len()];
    let mut count = 0usize;
    // Written always and counted where it holds: no branch to mispredict.
    for place in places {
        selected[count] = place;
        count = count.wrapping_add(usize::from(wanted(place)));
    }
    selected.truncate(count);
    selected
}

/// Brings the first `by_rank` to the front of `ranked` and returns how many of them it takes for
/// their weights to reach `threshold`; at least one.
///
/// Halves the range by selection until it is short, so that a flat row costs linear time as well.
pub(super) fn first_to_reach<T>(
    ranked: &mut [T],
    mut threshold: u64,
    weight: impl Fn(&T) -> u64,
    by_rank: impl Fn(&T, &T) -> Ordering,
) -> usize {
    let (mut from, mut to) = (0, ranked.len());
    while to - from > 64 {
        let middle = (to - from) / 2;
        let range = &mut ranked[from..to];
        range.select_nth_unstable_by(middle, &by_rank);
        let front: u64 = range[..middle].iter().map(&weight).sum();
        if front >= threshold {
            to = from + middle;
        } else {
            threshold -= front;
            from += middle;
        }
    }
    ranked[from..to].sort_unstable_by(&by_rank);
    let mut before = 0;
    let crossing = ranked[from..to].iter().position(|candidate| {
        before += weight(candidate);
        before >= threshold
    });
    from + crossing.map_or(to - from, |place| place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(weights: &[u64], threshold: u64) -> Vec<usize> {
        let mut ranked: Vec<usize> = (0..weights.len()).collect();
        ranked.sort_by(|&a, &b| weights[b].cmp(&weights[a]).then(a.cmp(&b)));
        let mut before = 0;
        let mut kept = Vec::new();
        for place in ranked {
            if before < threshold || kept.is_empty() {
                kept.push(place);
            }
            before += weights[place];
        }
        kept.sort_unstable();
        kept
    }

    #[test]
    fn agrees_with_sorting_everything() {
        let mut state = 5u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 20) % below
        };
        for round in 0..600 {
            let n = 1 + next(2000) as usize;
            let largest = [2, 5, 1000, 1 << 40][round % 4];
            let mut weights: Vec<u64> = (0..n).map(|_| next(largest)).collect();
            if weights.iter().all(|&weight| weight == 0) {
                weights[n / 2] = 1;
            }
            let total: u64 = weights.iter().sum();
            let threshold = match round % 5 {
                0 => 0,
                1 => total,
                _ => next(total) + 1,
            };
            assert_eq!(
                nucleus(&weights, total, threshold),
                plain(&weights, threshold),
                "{threshold}"
            );
        }
    }

    #[test]
    fn the_crossing_token_stays_and_equality_is_exact() {
        assert_eq!(nucleus(&[5, 3, 1, 1], 10, 8), [0, 1]);
        assert_eq!(nucleus(&[5, 3, 1, 1], 10, 9), [0, 1, 2]);
        assert_eq!(nucleus(&[4, 3, 2, 1], 10, 8), [0, 1, 2]);
        assert_eq!(nucleus(&[1, 0, 95, 4], 100, 90), [2]);
        assert_eq!(nucleus(&[1, 1, 1, 1], 4, 2), [0, 1]);
    }
}
