//! How near decisions were: the gap between the two largest logits, which is also that between the
//! logarithms of the two largest probabilities.

use draftproof_decode::Token;
use draftproof_model::Tokenizer;
use serde::Serialize;

/// Below these a decision is a near-tie.
pub(super) const NEAR: [f64; 3] = [1e-4, 1e-5, 1e-6];

/// The nearest decisions that are listed, at most.
const LISTED: usize = 20;

/// The two largest logits of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Top {
    /// The largest; of equal ones the lowest id.
    pub(super) first: Token,
    pub(super) second: Token,
    /// The first's logit less the second's: at least 0.
    pub(super) gap: f64,
}

impl Top {
    /// Of a row of at least two logits.
    pub(super) fn of(row: &[f32]) -> Self {
        let (mut first, mut second) = if row[1] > row[0] { (1, 0) } else { (0, 1) };
        for id in 2..row.len() {
            if row[id] > row[first] {
                (first, second) = (id, first);
            } else if row[id] > row[second] {
                second = id;
            }
        }
        let gap = f64::from(row[first]) - f64::from(row[second]);
        Self { first: Token::at(first), second: Token::at(second), gap }
    }
}

/// A decision and how near it was.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Decision {
    pub(super) prompt: usize,
    /// Generated tokens before it.
    pub(super) position: usize,
    pub(super) gap: f64,
    /// Logarithms of the two probabilities.
    pub(super) logprobs: [f64; 2],
    /// The two tokens, the one taken first.
    pub(super) tokens: [String; 2],
    /// What was written before it.
    pub(super) before: String,
}

/// The logarithm of the probability of each id in `ids`.
fn logprobs(row: &[f32], ids: [Token; 2]) -> [f64; 2] {
    let max = row.iter().fold(f64::NEG_INFINITY, |max, &z| max.max(f64::from(z)));
    let sum: f64 = row.iter().map(|&z| (f64::from(z) - max).exp()).sum();
    ids.map(|id| f64::from(row[id.index()]) - max - sum.ln())
}

/// A token as text, or its id where there is no tokenizer.
pub(super) fn shown(tokenizer: Option<&Tokenizer>, token: Token) -> String {
    tokenizer.map_or_else(|| token.to_string(), |tokenizer| tokenizer.decode(&[token]))
}

/// Tokens as text, or their ids.
pub(super) fn text(tokenizer: Option<&Tokenizer>, tokens: &[Token]) -> String {
    match tokenizer {
        Some(tokenizer) => tokenizer.decode(tokens),
        None => tokens.iter().map(Token::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Some tokens before a position.
pub(super) fn before(
    tokenizer: Option<&Tokenizer>,
    prompt: &[Token],
    generated: &[Token],
) -> String {
    const TOKENS: usize = 12;
    let all = [prompt, generated].concat();
    text(tokenizer, &all[all.len().saturating_sub(TOKENS)..])
}

impl Decision {
    pub(super) fn new(
        tokenizer: Option<&Tokenizer>,
        (index, prompt): (usize, &[Token]),
        generated: &[Token],
        row: &[f32],
    ) -> Self {
        let top = Top::of(row);
        let ids = [top.first, top.second];
        Self {
            prompt: index,
            position: generated.len(),
            gap: top.gap,
            logprobs: logprobs(row, ids),
            tokens: ids.map(|id| shown(tokenizer, id)),
            before: before(tokenizer, prompt, generated),
        }
    }
}

/// One bar of the histogram: gaps from `from` (included) to `to`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    pub(super) from: f64,
    /// None: no end.
    pub(super) to: Option<f64>,
    pub(super) count: usize,
}

/// All decisions of an experiment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NearTies {
    /// How many decisions there were.
    pub(super) positions: usize,
    #[serde(rename = "below_1e-4")]
    pub(super) below_1e_4: usize,
    #[serde(rename = "below_1e-5")]
    pub(super) below_1e_5: usize,
    #[serde(rename = "below_1e-6")]
    pub(super) below_1e_6: usize,
    /// By half decades.
    pub(super) histogram: Vec<Bar>,
    /// The nearest, in order.
    pub(super) nearest: Vec<Decision>,
}

impl NearTies {
    pub(super) fn new(mut decisions: Vec<Decision>) -> Self {
        decisions.sort_by(|a, b| a.gap.total_cmp(&b.gap));
        let gaps: Vec<f64> = decisions.iter().map(|decision| decision.gap).collect();
        let below = |limit: f64| gaps.iter().filter(|&&gap| gap < limit).count();
        let [below_1e_4, below_1e_5, below_1e_6] = NEAR.map(below);
        decisions.truncate(LISTED.max(below_1e_6));
        Self {
            positions: gaps.len(),
            below_1e_4,
            below_1e_5,
            below_1e_6,
            histogram: histogram(&gaps),
            nearest: decisions,
        }
    }
}

/// From 0 to 1e-7, then half decades up to 100, then the rest.
fn histogram(gaps: &[f64]) -> Vec<Bar> {
    let mut edges = vec![0.0];
    edges.extend((-14..=4).map(|half| 10_f64.powf(f64::from(half) / 2.0)));
    let bar = |i: usize| {
        let (from, to) = (edges[i], edges.get(i + 1).copied());
        let inside = |gap: &&f64| **gap >= from && to.is_none_or(|to| **gap < to);
        Bar { from, to, count: gaps.iter().filter(inside).count() }
    };
    (0..edges.len()).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_ties_to_the_lowest_id() {
        let top = |row: &[f32]| {
            let Top { first, second, gap } = Top::of(row);
            (first.0, second.0, gap)
        };
        assert_eq!(top(&[1.0, 3.0, 2.5]), (1, 2, 0.5));
        assert_eq!(top(&[2.0, 2.0, 2.0]), (0, 1, 0.0));
        assert_eq!(top(&[2.0, 1.0, 4.0]), (2, 0, 2.0));
        assert_eq!(top(&[1.0, 1.5]), (1, 0, 0.5));
    }

    #[test]
    fn the_gap_of_logits_is_that_of_logprobs() {
        let row = [0.3, -1.0, 2.25, 2.0];
        let [first, second] = logprobs(&row, [Token(2), Token(3)]);
        assert!((first - second - Top::of(&row).gap).abs() < 1e-12);
        let all: f64 = (0..4).map(|id| logprobs(&row, [Token(id), Token(0)])[0].exp()).sum();
        assert!((all - 1.0).abs() < 1e-12);
    }

    #[test]
    fn each_gap_is_in_one_bar() {
        let gaps = [0.0, 1e-9, 5e-7, 0.05, 1.0, 99.0, 1e6];
        let bars = histogram(&gaps);
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<usize>(), gaps.len());
        assert_eq!((bars[0].count, bars.last().map(|bar| bar.count)), (2, Some(1)));
    }
}
