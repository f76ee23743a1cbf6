//! What became of one prompt in all runs.

use std::{cmp::Reverse, ops::Range};

use serde_json::{Value, json};

use super::tree::{Branch, interval};

/// Shows some units of a text.
type Show<'a> = Box<dyn Fn(usize, Range<usize>) -> String + 'a>;

/// The texts of a prompt: how many differ, and where they part.
pub(super) struct Outcome<'a> {
    prompt: usize,
    tree: Branch,
    /// Units of each text.
    lengths: Vec<usize>,
    /// Of the first text, by position, where known.
    gaps: Vec<Option<f64>>,
    show: Show<'a>,
}

impl<'a> Outcome<'a> {
    pub(super) fn new<U: Ord>(
        prompt: usize,
        texts: &[Vec<U>],
        gaps: Vec<Option<f64>>,
        show: impl Fn(usize, Range<usize>) -> String + 'a,
    ) -> Self {
        let lengths = texts.iter().map(Vec::len).collect();
        Self { prompt, tree: Branch::of(texts), lengths, gaps, show: Box::new(show) }
    }

    /// The number of different texts.
    pub(super) fn distinct(&self) -> usize {
        self.tree.leaves().len()
    }

    /// Where texts part first.
    fn parts_at(&self) -> Option<usize> {
        (!self.tree.ways.is_empty()).then_some(self.tree.units.end)
    }

    /// The one with the most different texts; of several the one that parts first.
    pub(super) fn worst(outcomes: &[Self]) -> Option<&Self> {
        let first = |outcome: &Self| Reverse(outcome.parts_at().unwrap_or(usize::MAX));
        outcomes
            .iter()
            .max_by_key(|outcome| (outcome.distinct(), first(outcome), Reverse(outcome.prompt)))
    }

    /// The text that came most often.
    pub(super) fn most_common(&self) -> Value {
        let most = self.tree.most_common();
        let text = most.first().copied().unwrap_or(0);
        json!({
            "prompt": self.prompt,
            "count": most.len(),
            "share": most.len() as f64 / self.lengths.len() as f64,
            "text": (self.show)(text, 0..self.lengths[text]),
        })
    }

    /// Where texts part first, how near that decision was, and how many went which way; null if they
    /// do not.
    pub(super) fn divergence(&self) -> Value {
        let Some(position) = self.parts_at() else { return Value::Null };
        let all = self.lengths.len();
        let ways = self.tree.ways.iter().map(|way| {
            let (text, count) = (way.texts[0], way.texts.len());
            let goes_on = position < self.lengths[text];
            json!({
                // Null: the text ended there.
                "text": goes_on.then(|| (self.show)(text, position..position + 1)),
                "count": count,
                "share": count as f64 / all as f64,
                "share_interval_95": interval(count, all),
            })
        });
        json!({
            "prompt": self.prompt,
            "position": position,
            "gap": self.gaps.get(position).copied().flatten(),
            "ways": ways.collect::<Vec<_>>(),
        })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "prompt": self.prompt,
            "distinct_outputs": self.distinct(),
            "most_common": self.most_common(),
            "first_divergence": self.divergence(),
            "tree": self.tree.to_json(&self.show),
        })
    }

    /// The tree as lines; none where all texts are one.
    pub(super) fn lines(&self) -> Vec<String> {
        if self.tree.ways.is_empty() { Vec::new() } else { self.tree.lines(&self.show) }
    }
}
