//! [`Candidates`]: what is left of a row between two steps of the contract.

use super::{RowError, Step, temperature};
use crate::{
    Dist, Token,
    vector::{Loop, widest},
};

/// The surviving tokens of a row with their logits and, once a step has asked, their weights.
///
/// Never empty between steps: at least one candidate has a finite logit. No logit is NaN, +∞ or −0.
#[derive(Debug)]
pub(super) struct Candidates {
    vocab: usize,
    /// The surviving ids, ascending; `None` while all of `0..logits.len()` are candidates.
    ids: Option<Vec<u32>>,
    /// Parallel to the ids; −∞ is banned.
    logits: Vec<f64>,
    temperature: f64,
    /// Parallel to the ids, at `temperature`; absent until a step needs weights.
    weights: Option<Vec<u64>>,
}

impl Candidates {
    pub(super) fn new(vocab: usize, logits: &[f32]) -> Result<Self, RowError> {
        let used = &logits[..logits.len().min(vocab)];
        // `< ∞` is false for NaN and +∞ alone; counting, unlike searching, is vectorised.
        if widest(Usable(used)) < used.len() {
            let bad = used.iter().position(|z| z.is_nan() || *z == f32::INFINITY).unwrap_or(0);
            return Err(RowError::NonFinite { token: Token::at(bad), value: used[bad] });
        }
        let mut logits = vec![0.0; used.len()];
        widest(Widen { from: used, to: &mut logits });
        let candidates = Self { vocab, ids: None, logits, temperature: 1.0, weights: None };
        candidates.nonempty_after(Step::Logits)?;
        Ok(candidates)
    }

    fn nonempty_after(&self, step: Step) -> Result<(), RowError> {
        if self.logits.iter().any(|&z| z > f64::NEG_INFINITY) {
            Ok(())
        } else {
            Err(RowError::Empty { step })
        }
    }

    /// The size of the vocabulary: every id is below it.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// The logits of the candidates, by ascending id; −∞ is banned.
    pub(super) fn logits(&self) -> &[f64] {
        &self.logits
    }

    /// The weights of the candidates, by ascending id, at the temperature reached so far (1 before
    /// the temperature step).
    pub(super) fn weights(&mut self) -> &[u64] {
        self.weights.get_or_insert_with(|| temperature::weights(&self.logits, self.temperature))
    }

    pub(super) fn set_temperature(&mut self, temperature: f64) {
        self.temperature = temperature;
        self.weights = None;
    }

    /// Divides the logits by the temperature reached so far, for a step that changes logits after it.
    pub(super) fn settle_temperature(&mut self) {
        if self.temperature != 1.0 {
            for z in self.logits.iter_mut().filter(|z| z.is_finite()) {
                *z = finite(*z / self.temperature);
            }
            self.temperature = 1.0;
        }
    }

    /// Makes `change` of the logit of `token`, which stays finite; if the token is no candidate, or
    /// banned, nothing.
    pub(super) fn change(&mut self, token: Token, change: impl FnOnce(f64) -> f64) {
        if let Some(place) = self.place(token)
            && self.logits[place] > f64::NEG_INFINITY
        {
            self.logits[place] = change(self.logits[place]);
        }
    }

    /// Makes the logit of `token` −∞.
    pub(super) fn ban(&mut self, token: Token) {
        if let Some(place) = self.place(token) {
            self.logits[place] = f64::NEG_INFINITY;
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
        self.logits = places.iter().map(|&i| self.logits[i]).collect();
        if let Some(weights) = &mut self.weights {
            *weights = places.iter().map(|&i| weights[i]).collect();
        }
    }

    pub(super) fn into_dist(mut self) -> Dist {
        let mut weights = match self.weights.take() {
            Some(weights) => weights,
            None => temperature::weights(&self.logits, self.temperature),
        };
        match self.ids {
            None => {
                weights.resize(self.vocab, 0);
                Dist::dense(weights)
            }
            Some(mut ids) => {
                let mut live = weights.iter().map(|&weight| weight > 0);
                ids.retain(|_| live.next().unwrap_or(false));
                weights.retain(|&weight| weight > 0);
                Dist::sparse(self.vocab, ids, weights)
            }
        }
        .expect("the largest logit has a positive weight, and the total is bounded by construction")
    }
}

/// How many logits are neither NaN nor +∞.
struct Usable<'a>(&'a [f32]);

impl Loop for Usable<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let usable = |&z: &f32| u32::from(z < f32::INFINITY);
        self.0.iter().fold(0u32, |count, z| count.wrapping_add(usable(z))) as usize
    }
}

/// Logits as f64. Adding 0 makes −0 and 0 the same, also to the last bit.
struct Widen<'a> {
    from: &'a [f32],
    to: &'a mut [f64],
}

impl Loop for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (to, &z) in self.to.iter_mut().zip(self.from) {
            *to = f64::from(z) + 0.0;
        }
    }
}

/// The nearest finite number to a sum or quotient of finite ones, which may have overflowed; 0 for −0.
pub(super) fn finite(z: f64) -> f64 {
    z.clamp(f64::MIN, f64::MAX) + 0.0
}
