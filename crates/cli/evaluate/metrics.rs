//! Figures of texts and of shares: pure functions, each with its definition.

use std::collections::{HashMap, HashSet};

use draftproof_decode::Token;

/// The share of the `n`-grams of a text that occurred in it before; none if it has no `n`-gram.
pub(super) fn repeated_share(text: &[Token], n: usize) -> Option<f64> {
    let all = text.windows(n).count();
    let different = text.windows(n).collect::<HashSet<_>>().len();
    (all > 0).then(|| (all - different) as f64 / all as f64)
}

/// distinct-n: different `n`-grams over all `n`-grams, of all texts together; none if there are none.
pub(super) fn distinct(texts: &[&[Token]], n: usize) -> Option<f64> {
    let all = || texts.iter().flat_map(|text| text.windows(n));
    let count = all().count();
    (count > 0).then(|| all().collect::<HashSet<_>>().len() as f64 / count as f64)
}

/// How alike the texts of one prompt are: over all pairs the mean of the share of common bigrams,
/// 2 · common / (bigrams of the one + of the other), each bigram counted as often as both have it.
///
/// 1 for equal texts, 0 for texts without a common bigram; none without a pair that has bigrams.
pub(super) fn self_overlap(texts: &[&[Token]]) -> Option<f64> {
    let counts: Vec<HashMap<&[Token], usize>> = texts
        .iter()
        .map(|text| {
            let mut counts = HashMap::new();
            text.windows(2).for_each(|pair| *counts.entry(pair).or_default() += 1);
            counts
        })
        .collect();
    let (mut sum, mut pairs) = (0.0, 0);
    for (i, one) in counts.iter().enumerate() {
        for other in &counts[i + 1..] {
            let total: usize = one.values().chain(other.values()).sum();
            if total > 0 {
                let both = one.iter().map(|(pair, n)| n.min(other.get(pair).unwrap_or(&0)));
                sum += 2.0 * both.sum::<usize>() as f64 / total as f64;
                pairs += 1;
            }
        }
    }
    (pairs > 0).then(|| sum / f64::from(pairs))
}

/// Wilson's interval of a share, at 95 %: `hits` of `all`. The whole of 0 to 1 for nothing.
pub(super) fn wilson(hits: usize, all: usize) -> [f64; 2] {
    /// The normal law's quantile at 0.975.
    const Z: f64 = 1.959_963_984_540_054;
    if all == 0 {
        return [0.0, 1.0];
    }
    let n = all as f64;
    let (p, z2) = (hits as f64 / n, Z * Z / n);
    let centre = (p + z2 / 2.0) / (1.0 + z2);
    let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt() / (1.0 + z2);
    [(centre - half).max(0.0), (centre + half).min(1.0)]
}

/// The mean; none of nothing.
pub(super) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_u64);
    for value in values {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    fn close(found: Option<f64>, expected: f64) {
        let found = found.expect("a figure");
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn repeats_are_counted_from_the_second_time_on() {
        // 12 23 31 12 23 34: six bigrams, four of them different.
        close(repeated_share(&text(&[1, 2, 3, 1, 2, 3, 4]), 2), 2.0 / 6.0);
        close(repeated_share(&text(&[1, 1, 1, 1]), 1), 0.75);
        close(repeated_share(&text(&[1, 2, 3]), 3), 0.0);
        assert_eq!(repeated_share(&text(&[1, 2]), 3), None);
    }

    #[test]
    fn distinct_pools_the_texts() {
        let (a, b) = (text(&[1, 2, 3]), text(&[1, 2, 4]));
        close(distinct(&[&a, &b], 1), 4.0 / 6.0);
        // 12 23 and 12 24; no bigram crosses from one text to the other.
        close(distinct(&[&a, &b], 2), 3.0 / 4.0);
        close(distinct(&[&a, &b], 3), 1.0);
        assert_eq!(distinct(&[&a, &b], 4), None);
    }

    #[test]
    fn overlap_is_that_of_bigrams_counted_with_their_number() {
        let (a, b, c) = (text(&[1, 2, 1, 2]), text(&[1, 2, 3]), text(&[7, 8, 9]));
        // 12 21 12 against 12 23: one in common, of five.
        close(self_overlap(&[&a, &b]), 2.0 / 5.0);
        close(self_overlap(&[&a, &a]), 1.0);
        close(self_overlap(&[&b, &c]), 0.0);
        close(self_overlap(&[&a, &b, &c]), 2.0 / 15.0);
        assert_eq!(self_overlap(&[&a]), None);
        assert_eq!(self_overlap(&[&text(&[1]), &text(&[])]), None);
    }

    #[test]
    fn intervals_are_those_of_wilson() {
        // By hand from the formula: 8 of 10, 0 of 10 and 10 of 10.
        for (hits, expected) in
            [(8, [0.490_162_47, 0.943_317_8]), (0, [0.0, 0.277_532_8]), (10, [0.722_467_2, 1.0])]
        {
            let found = wilson(hits, 10);
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{hits}: {found} is not {expected}");
            }
        }
        assert_eq!(wilson(0, 0).map(f64::to_bits), [0.0_f64, 1.0].map(f64::to_bits));
    }

    #[test]
    fn the_mean_of_nothing_is_none() {
        close(mean([1.0, 2.0, 6.0]), 3.0);
        assert_eq!(mean([]), None);
    }
}
