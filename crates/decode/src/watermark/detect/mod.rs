//! Detection: how much a text's bits favour the mark of a key.
//!
//! | step | where |
//! |---|---|
//! | which positions count | [`scored_places`], [`Evidence`] |
//! | mean, weighted mean, an exact p-value | [`Evidence`], [`tail`](mod@tail) |
//! | a learnt likelihood ratio | [`bayes`] |
//! | thresholds that real texts gave | [`calibration`] |
//! | how strong a mark the text could carry | [`room`] |
//! | the verdict, or an abstention | [`verdict`] |
//!
//! # What a p-value means here
//! *If the text came about without the key*, its bits are fair and independent as far as the hash is
//! a random function of (key, context, token). Then the p-value is exact: the chance that such a text
//! scores as high. The hash is a fast one, no cryptographic function, so this is a model, if one that
//! the evaluation of `verify --level watermark` finds no fault with. In variant `hf` all bits are read
//! from one table of 65 536: n-grams whose hashes agree modulo its size (ids 65 536 apart, and about
//! one pair in a text of 300 tokens by chance) have the *same* bits. Such positions are counted once,
//! but bits still meet in the table, and the p-value is approximate there.
//!
//! # Ids and text
//! Evidence sits in token ids. Text has to be tokenised again, which may cut words differently from
//! how they were generated; positions near such a place, and the first [`Scheme::context_len`] of a
//! cropped text, look unmarked. That weakens evidence and never fakes it.

pub mod bayes;
pub mod calibration;
pub mod room;
pub mod tail;
pub mod verdict;

use std::collections::{HashMap, HashSet};

use super::{GValues, Hashed, Scheme};
use crate::Token;

pub use bayes::Bayes;
pub use calibration::{Calibration, CalibrationError};
pub use room::Room;
pub use tail::tail;
pub use verdict::{Abstention, Detector, Finding, Verdict};

/// The positions that the reference's detector scores, 0 for the first token: those with a full
/// context that is new (within the scheme's history, which starts empty) and that come before the
/// first token of `ends`.
///
/// The first [`Scheme::context_len`] tokens are not scored, although they may be marked: what came
/// before them is not known of a text that may be cropped.
#[must_use]
pub fn scored_places(scheme: &Scheme, text: &[Token], ends: &[Token]) -> Vec<usize> {
    let end = text.iter().position(|token| ends.contains(token)).unwrap_or(text.len());
    let (len, history) = (scheme.context_len, scheme.history.unwrap_or(usize::MAX));
    let mut last = HashMap::new();
    let is_new = |place: &usize| {
        let earlier = last.insert(&text[place - len..*place], *place);
        earlier.is_none_or(|earlier| place - earlier > history)
    };
    (len..end).filter(is_new).collect()
}

/// The bits of a text's usable positions under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    depth: usize,
    rows: Vec<u64>,
}

impl Evidence {
    /// The bits of all places that the reference's detector scores.
    #[must_use]
    pub fn reference(scheme: &Scheme, values: &Hashed, text: &[Token], ends: &[Token]) -> Self {
        let bits = |place| values.bits(&text[place - scheme.context_len..place], text[place]);
        let rows = scored_places(scheme, text, ends).into_iter().map(bits).collect();
        Self { depth: values.depth(), rows }
    }

    /// The bits of those places, less the ones whose bits are those of an earlier place for a reason
    /// that is no chance: an n-gram that a short history lets come back, or (variant `hf`) one that
    /// reads the same places of the table. Of the others the bits are independent.
    #[must_use]
    pub fn new(scheme: &Scheme, values: &Hashed, text: &[Token], ends: &[Token]) -> Self {
        let mut seen = HashSet::new();
        let mut rows = Vec::new();
        for place in scored_places(scheme, text, ends) {
            let context = &text[place - scheme.context_len..place];
            if seen.insert(values.class(context, text[place])) {
                rows.push(values.bits(context, text[place]));
            }
        }
        Self { depth: values.depth(), rows }
    }

    /// Bits that come from elsewhere: bit l of a row is layer l.
    #[must_use]
    pub fn from_rows(depth: usize, rows: Vec<u64>) -> Self {
        Self { depth, rows }
    }

    /// The number of layers.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The bits, position by position.
    #[must_use]
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// The number of usable positions.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.rows.len()
    }

    /// How many positions have a 1, layer by layer.
    #[must_use]
    pub fn ones(&self) -> Vec<u64> {
        let ones = |layer: usize| self.rows.iter().map(|bits| bits >> layer & 1).sum();
        (0..self.depth).map(ones).collect()
    }

    /// The share of ones; `None` without a position.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let bits = self.depth * self.rows.len();
        (bits > 0).then(|| self.ones().iter().sum::<u64>() as f64 / bits as f64)
    }

    /// The share of ones with the weights of [`layer_weights`]; `None` without a position.
    #[must_use]
    pub fn weighted_mean(&self) -> Option<f64> {
        let most = self.rows.len() as u64 * layer_weights(self.depth).iter().sum::<u64>();
        (most > 0).then(|| self.weighted_sum() as f64 / most as f64)
    }

    fn weighted_sum(&self) -> u64 {
        layer_weights(self.depth).iter().zip(self.ones()).map(|(weight, ones)| weight * ones).sum()
    }

    /// The exact chance that fair bits have a [`mean`](Self::mean) as high; 1 without a position.
    #[must_use]
    pub fn p_value_of_mean(&self) -> f64 {
        let bits = (self.depth * self.rows.len()) as u64;
        tail(&[(1, bits)], self.ones().iter().sum())
    }

    /// The exact chance that fair bits have a [`weighted_mean`](Self::weighted_mean) as high; 1
    /// without a position.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        p_value(self.depth, self.rows.len(), self.weighted_sum())
    }
}

/// The chance that the weighted sum of `positions` rows of fair bits is at least `sum`.
fn p_value(depth: usize, positions: usize, sum: u64) -> f64 {
    let weights = layer_weights(depth).into_iter();
    tail(&weights.map(|weight| (weight, positions as u64)).collect::<Vec<_>>(), sum)
}

/// The weights of the weighted mean, as integers: from 10 down to 1 in equal steps, times
/// `depth − 1`. (The reference scales them to the sum `depth`; that changes no score.) The early
/// layers carry most: they meet a law with all its entropy.
#[must_use]
pub fn layer_weights(depth: usize) -> Vec<u64> {
    let last = depth.saturating_sub(1) as u64;
    (0..depth as u64).map(|layer| if last == 0 { 1 } else { 10 * last - 9 * layer }).collect()
}
