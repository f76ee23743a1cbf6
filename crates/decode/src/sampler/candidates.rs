//! [`Candidates`]: what is left of a row between two steps of the contract.

use super::{
    RowError, Step,
    logits::Logits,
    temperature::{self, Weights},
};
use crate::{Dist, Token};

/// The surviving tokens of a row with their logits and, once a step has asked, their weights.
///
/// Never empty between steps: at least one candidate has a finite logit. No logit is NaN or +∞.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    vocab: usize,
    /// The surviving ids, ascending; `None` while all of `0..logits.len()` are candidates.
    ids: Option<Vec<u32>>,
    /// Parallel to the ids; −∞ is banned.
    logits: Logits<'a>,
    temperature: f64,
    /// Parallel to the ids, at `temperature`; absent until a step needs weights.
    weights: Option<Weights>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(vocab: usize, logits: &'a [f32]) -> Result<Self, RowError> {
        let used = &logits[..logits.len().min(vocab)];
        let logits = Logits::of(used)
            .map_err(|bad| RowError::NonFinite { token: Token::at(bad), value: used[bad] })?;
        let candidates = Self { vocab, ids: None, logits, temperature: 1.0, weights: None };
        candidates.nonempty_after(Step::Logits)?;
        Ok(candidates)
    }

    fn nonempty_after(&self, step: Step) -> Result<(), RowError> {
        if self.logits.any_finite() { Ok(()) } else { Err(RowError::Empty { step }) }
    }

    /// The size of the vocabulary: every id is below it.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// The logits of the candidates, by ascending id; −∞ is banned.
    pub(super) fn logits(&self) -> &Logits<'a> {
        &self.logits
    }

    /// The weights of the candidates, by ascending id, at the temperature reached so far (1 before
    /// the temperature step).
    pub(super) fn weights(&mut self) -> &Weights {
        let Self { logits, temperature, weights, .. } = self;
        weights.get_or_insert_with(|| temperature::weights(logits, *temperature))
    }

    pub(super) fn set_temperature(&mut self, temperature: f64) {
        self.temperature = temperature;
        self.weights = None;
    }

    /// Divides the logits by the temperature reached so far, for a step that changes logits after it.
    pub(super) fn settle_temperature(&mut self) {
        if self.temperature != 1.0 {
            for z in self.logits.own().iter_mut().filter(|z| z.is_finite()) {
                *z = finite(*z / self.temperature);
            }
            self.temperature = 1.0;
        }
    }

    /// Makes `change` of the logit of `token`, which stays finite; if the token is no candidate, or
    /// banned, nothing.
    pub(super) fn change(&mut self, token: Token, change: impl FnOnce(f64) -> f64) {
        if let Some(place) = self.place(token) {
            let z = &mut self.logits.own()[place];
            if *z > f64::NEG_INFINITY {
                *z = change(*z);
            }
        }
    }

    /// Makes the logit of `token` −∞.
    pub(super) fn ban(&mut self, token: Token) {
        if let Some(place) = self.place(token) {
            self.logits.own()[place] = f64::NEG_INFINITY;
        }
    }

    /// Ends a `step` that changed logits: weights are computed anew when a later one asks.
    pub(super) fn changed_by(&mut self, step: Step) -> Result<(), RowError> {
        self.weights = None;
        self.nonempty_after(step)
    }

    fn place(&self, token: Token) -> Option<usize> {
        match &self.ids {
            None => Some(token.index()).filter(|&place| place < self.logits.len()),
            Some(ids) => ids.binary_search(&token.0).ok(),
        }
    }

    /// Keeps the largest logit, of equal ones that with the lowest id.
    pub(super) fn keep_largest(&mut self) {
        let place = self.logits.place_of_largest();
        self.keep(&[place]);
    }

    /// Keeps the candidates at `places` (ascending, not empty) of the slices above.
    pub(super) fn keep(&mut self, places: &[usize]) {
        assert!(!places.is_empty(), "a filter keeps at least one candidate");
        if places.len() == self.logits.len() {
            return;
        }
        self.ids = Some(match &self.ids {
            None => places.iter().map(|&i| Token::at(i).0).collect(),
            Some(ids) => places.iter().map(|&i| ids[i]).collect(),
        });
        self.logits.keep(places);
        if let Some(Weights { row, total }) = &mut self.weights {
            *row = places.iter().map(|&i| row[i]).collect();
            *total = row.iter().sum();
        }
    }

    pub(super) fn into_dist(mut self) -> Dist {
        let Weights { mut row, total } = match self.weights.take() {
            Some(weights) => weights,
            None => temperature::weights(&self.logits, self.temperature),
        };
        match self.ids {
            None => {
                row.resize(self.vocab, 0);
                Dist::dense_of(row, total)
            }
            Some(mut ids) => {
                let mut live = row.iter().map(|&weight| weight > 0);
                ids.retain(|_| live.next().unwrap_or(false));
                row.retain(|&weight| weight > 0);
                Dist::sparse(self.vocab, ids, row).expect(
                    "the largest logit has a positive weight, and the total is bounded by construction",
                )
            }
        }
    }
}
/// The nearest finite number to a sum or quotient of finite ones, which may have overflowed; 0 for −0.
pub(super) fn finite(z: f64) -> f64 {
    z.clamp(f64::MIN, f64::MAX) + 0.0
}
