//! Top-k: the k largest logits.
//!
//! # Formula
//! Candidates are ranked by (logit descending, id ascending); exactly the first k stay. 0, or k of
//! at least the number of candidates, keeps all. A banned token (−∞) never counts as one of the k.
//!
//! # Example
//! Probabilities 0.30, 0.20, 0.12, … under k = 3 become 0.484, 0.323, 0.194.
//!
//! # Edge cases
//! k = 1 is greedy under the same tie rule (lowest id). Logits (3, 2, 2, 2, 1) with k = 3 keep ids
//! 0, 1, 2.

use super::candidates::Candidates;

/// Keeps the `k` largest logits; 0 keeps all.
pub(super) fn apply(candidates: &mut Candidates, k: usize) {
    if k > 0 && k < candidates.logits().len() {
        let places = largest(candidates.logits(), k);
        candidates.keep(&places);
    }
}

/// The places of the `k` largest logits above −∞, ascending.
///
/// One pass with a buffer that is cut back to the best k when it is full: nearly every logit of a
/// wide row is below the k-th best so far and costs one comparison.
fn largest(logits: &[f64], k: usize) -> Vec<usize> {
    let capacity = (2 * k).max(512);
    let mut best: Vec<(f64, usize)> = Vec::with_capacity(capacity);
    // An equal logit further on has a higher id and loses, so only a larger one gets in.
    let mut threshold = f64::NEG_INFINITY;
    for (place, &z) in logits.iter().enumerate() {
        if z > threshold {
            best.push((z, place));
            if best.len() == capacity {
                threshold = cut(&mut best, k);
            }
        }
    }
    if best.len() > k {
        cut(&mut best, k);
    }
    let mut places: Vec<usize> = best.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    places
}

/// Cuts `best`, longer than `k`, back to its first k by rank, and returns the k-th logit.
fn cut(best: &mut Vec<(f64, usize)>, k: usize) -> f64 {
    let (_, kth, _) = best.select_nth_unstable_by(k - 1, |a, b| {
        // No NaN and no −0 gets here, so this order is the numeric one.
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
    });
    let threshold = kth.0;
    best.truncate(k);
    threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_sorting_everything() {
        let mut state = 3u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..400 {
            let n = 1 + next(3000) as usize;
            // Few distinct values make ties; ascending rows refill the buffer most often.
            let values = [3, 50, 1 << 20][round % 3];
            let mut logits: Vec<f64> = (0..n)
                .map(|_| if next(10) == 0 { f64::NEG_INFINITY } else { next(values) as f64 })
                .collect();
            if round % 4 == 0 {
                logits.sort_by(f64::total_cmp);
            }
            let k = 1 + next(n as u64 + 5) as usize;
            let mut ranked: Vec<usize> = (0..n).filter(|&i| logits[i].is_finite()).collect();
            ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            ranked.truncate(k);
            ranked.sort_unstable();
            assert_eq!(largest(&logits, k), ranked, "n {n}, k {k}");
        }
    }
}
