//! Top-k: the k largest logits.
//!
//! # Formula
//! Candidates are ranked by (logit descending, id ascending). Under [`TopKTies::LowestId`] exactly
//! the first k stay; under [`TopKTies::Keep`] every candidate tied with the k-th stays too, as in
//! transformers. 0, or k of at least the number of candidates, keeps all. A banned token (−∞) never
//! counts as one of the k.
//!
//! # Example
//! Probabilities 0.30, 0.20, 0.12, … under k = 3 become 0.484, 0.323, 0.194.
//!
//! # Edge cases
//! k = 1 is greedy under the same tie rule (lowest id). Logits (3, 2, 2, 2, 1) with k = 3 keep ids
//! 0, 1, 2, and with them 3 under `keep`.

use std::{fmt, str::FromStr};

use super::{
    candidates::Candidates,
    logits::{Logit, each_kind, tie},
};
use crate::vector::{Loop, widest};

/// What becomes of tokens whose logit equals the k-th largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TopKTies {
    /// The lowest ids stay, so that exactly k tokens do.
    #[default]
    LowestId,
    /// All of them stay.
    Keep,
}

/// A text that names no [`TopKTies`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected lowest-id or keep; found `{found}`")]
pub struct TopKTiesError {
    /// The text.
    pub found: String,
}

impl FromStr for TopKTies {
    type Err = TopKTiesError;

    fn from_str(text: &str) -> Result<Self, TopKTiesError> {
        match text {
            "lowest-id" => Ok(Self::LowestId),
            "keep" => Ok(Self::Keep),
            _ => Err(TopKTiesError { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for TopKTies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LowestId => "lowest-id",
            Self::Keep => "keep",
        })
    }
}

/// Keeps the `k` largest logits, and by `ties` those tied with the last of them.
pub(super) fn apply(candidates: &mut Candidates<'_>, k: usize, ties: TopKTies) {
    if k < candidates.logits().len() {
        let places = each_kind!(candidates.logits(), logits => kept(logits, k, ties));
        candidates.keep(&places);
    }
}

/// The places of the `k` largest logits above −∞, and by `ties` of those tied with the last, ascending.
fn kept<Z: Logit>(logits: &[Z], k: usize, ties: TopKTies) -> Vec<usize> {
    let best = widest(Largest { logits, k });
    if ties == TopKTies::Keep {
        let kth = best.iter().fold(f64::INFINITY, |kth, &(z, _)| kth.min(z));
        return (0..logits.len()).filter(|&place| logits[place].into() >= kth).collect();
    }
    let mut places: Vec<usize> = best.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    places
}

/// The `k` largest logits above −∞ with their places.
///
/// One pass with a buffer that is cut back to the best k when it is full: nearly every block of a
/// wide row is below the k-th best so far and costs a few vectors.
struct Largest<'a, Z> {
    logits: &'a [Z],
    k: usize,
}

impl<Z: Logit> Loop for Largest<'_, Z> {
    type Output = Vec<(f64, usize)>;

    #[inline(always)]
    fn run(self) -> Vec<(f64, usize)> {
        const BLOCK: usize = 64;
        let Self { logits, k } = self;
        let capacity = (2 * k).max(512);
        let mut best: Vec<(f64, usize)> = Vec::with_capacity(capacity);
        // An equal logit further on has a higher id and loses, so only a larger one gets in.
        let mut threshold = f64::NEG_INFINITY;
        for (b, block) in logits.chunks(BLOCK).enumerate() {
            if !block.iter().fold(false, |any, &z| any | (z.into() > threshold)) {
                continue;
            }
            for (place, &z) in block.iter().enumerate() {
                let z = tie(z);
                if z > threshold {
                    best.push((z, b * BLOCK + place));
                    if best.len() == capacity {
                        threshold = cut(&mut best, k);
                    }
                }
            }
        }
        if best.len() > k {
            cut(&mut best, k);
        }
        best
    }
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
    fn ties_with_the_last_stay_or_go_by_policy() {
        use crate::sampler::{Prefix, Sampler, Settings};
        let kept = |row: &[f32], top_k, ties: &str| {
            let settings = Settings {
                top_k,
                top_k_ties: ties.parse().expect("a policy"),
                ..Settings::default()
            };
            let sampler = Sampler::new(settings, row.len()).expect("settings in range");
            let prefix = Prefix { tokens: &[], prompt_len: 0 };
            let law = sampler.law(prefix, row).expect("a law");
            law.support().map(|(token, _)| token.0).collect::<Vec<_>>()
        };
        let row = [2.0, 3.0, 2.0, f32::NEG_INFINITY, 2.0, 1.0];
        assert_eq!(kept(&row, 3, "lowest-id"), [0, 1, 2]);
        assert_eq!(kept(&row, 3, "keep"), [0, 1, 2, 4]);
        assert_eq!(kept(&row, 1, "keep"), [1]);
        assert_eq!(kept(&row, 4, "keep"), [0, 1, 2, 4]);
        assert_eq!(kept(&row, 5, "keep"), [0, 1, 2, 4, 5]);
        assert_eq!(kept(&[0.0; 7], 1, "keep").len(), 7);
        for ties in [TopKTies::LowestId, TopKTies::Keep] {
            assert_eq!(ties.to_string().parse(), Ok(ties));
        }
        let error = "all".parse::<TopKTies>().expect_err("no policy");
        assert_eq!(error.to_string(), "expected lowest-id or keep; found `all`");
    }

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
            assert_eq!(kept(&logits, k, TopKTies::LowestId), ranked, "n {n}, k {k}");
        }
    }
}
