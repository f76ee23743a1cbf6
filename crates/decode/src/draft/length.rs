//! Draft length: fixed, or decided as the draft goes.
//!
//! # What may decide
//! Whether to propose one more token may depend on the past, on the tokens proposed so far, and on
//! the law q of the next one *before* it is drawn: a stopping time, under which every verifier stays
//! exact. A token that was drawn is always submitted; dropping it for its own probability would
//! change the law of the text. No clock takes part, so a run is reproducible.
//!
//! # The rule
//! Costs are counted in target passes of one row: a draft step costs c, a verify pass of n rows
//! `v(n) = 1 + s·(n − 1)`. A draft earns tokens at some rate ρ per unit of cost; one more step is
//! worth its price if the tokens it is expected to add exceed ρ times that price (the rule of renewal
//! reward, as for optimal stopping):
//!
//! - before the draft model looks: `π·ā ≥ ρ·(c + s)`,
//! - once its law q is known: `π·a(q) ≥ ρ·s`,
//!
//! where π is the chance that all tokens proposed so far are accepted, a(q) the share accepted so far
//! in this continuation among proposals as confident as q (by the largest probability of q, in
//! eight classes), ā their mean, and ρ the tokens per cost so far.

use crate::dist::Dist;

/// How many tokens to draft a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DraftLength {
    /// Always this many.
    Fixed(usize),
    /// As many as pay under these costs, at most [`LONGEST`].
    Auto(CostModel),
}

/// The longest draft that [`DraftLength::Auto`] proposes.
pub const LONGEST: usize = 16;

/// What passes cost, in target passes of one row. From shapes or from a calibration, never from the
/// clock of the run it steers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// c: one step of the draft.
    pub draft_step: f64,
    /// s: what each row beyond the first adds to a pass of the target.
    pub row: f64,
}

/// The confidence classes of a(q).
const CLASSES: usize = 8;

/// What a continuation has learnt about its drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    length: DraftLength,
    accepted: [f64; CLASSES],
    judged: [f64; CLASSES],
    tokens: f64,
    cost: f64,
    rounds: u64,
}

impl Pace {
    /// Every how many rounds a draft that does not pay is tried again.
    const PROBE: u64 = 16;

    /// Before anything is known, proposals are taken to be accepted about as often as their draft is
    /// confident; that guess weighs as much as four verdicts in each class.
    #[must_use]
    pub fn new(length: DraftLength) -> Self {
        const WEIGHT: f64 = 4.0;
        let prior = |class: usize| 0.25 + 0.7 * (class as f64 + 0.5) / CLASSES as f64;
        Self {
            length,
            accepted: std::array::from_fn(|class| WEIGHT * prior(class)),
            judged: [WEIGHT; CLASSES],
            // Plain decoding's rate, for one round.
            tokens: 1.0,
            cost: 1.0,
            rounds: 0,
        }
    }

    /// The most tokens of a draft.
    pub(crate) fn longest(&self) -> usize {
        match self.length {
            DraftLength::Fixed(length) => length,
            DraftLength::Auto(_) => LONGEST,
        }
    }

    /// The [`confidence`] of a law, for the methods here; 0 for a fixed length, which asks nothing of it.
    #[must_use]
    pub fn confidence(&self, q: &Dist) -> f64 {
        match self.length {
            DraftLength::Fixed(_) => 0.0,
            DraftLength::Auto(_) => confidence(q),
        }
    }

    /// Whether to run the drafter for one more token, given the chance `so_far` that all proposed
    /// tokens are accepted.
    #[must_use]
    pub fn worth_a_look(&self, so_far: f64) -> bool {
        let DraftLength::Auto(CostModel { draft_step, row }) = self.length else {
            return true;
        };
        let mean = self.accepted.iter().sum::<f64>() / self.judged.iter().sum::<f64>();
        so_far * mean >= self.rate() * (draft_step + row) || self.is_probe(so_far)
    }

    /// Whether to propose a token from a law of this confidence, before it is drawn.
    #[must_use]
    pub fn worth_proposing(&self, so_far: f64, confidence: f64) -> bool {
        let DraftLength::Auto(CostModel { row, .. }) = self.length else {
            return true;
        };
        so_far * self.chance(confidence) >= self.rate() * row || self.is_probe(so_far)
    }

    /// a(q): the expected acceptance of a proposal of this confidence.
    #[must_use]
    pub fn chance(&self, confidence: f64) -> f64 {
        let class = class(confidence);
        self.accepted[class] / self.judged[class]
    }

    fn rate(&self) -> f64 {
        self.tokens / self.cost
    }

    /// The first token of every so many drafts, so that a draft may prove itself again.
    fn is_probe(&self, so_far: f64) -> bool {
        so_far >= 1.0 && self.rounds.is_multiple_of(Self::PROBE)
    }

    /// Takes in the verdict on one round: the confidence of each judged proposal, how many were
    /// accepted, how many draft steps were run.
    pub(crate) fn learn(&mut self, confidence: &[f64], accepted: usize, steps: usize) {
        self.rounds += 1;
        for (i, &confidence) in confidence.iter().enumerate().take(accepted + 1) {
            self.judged[class(confidence)] += 1.0;
            self.accepted[class(confidence)] += f64::from(u8::from(i < accepted));
        }
        if let DraftLength::Auto(CostModel { draft_step, row }) = self.length {
            self.tokens += accepted as f64 + 1.0;
            self.cost += 1.0 + draft_step * steps as f64 + row * confidence.len() as f64;
        }
    }
}

fn class(confidence: f64) -> usize {
    ((confidence * CLASSES as f64) as usize).min(CLASSES - 1)
}

/// The largest probability of a law.
#[must_use]
pub fn confidence(q: &Dist) -> f64 {
    q.largest() as f64 / q.total() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: CostModel = CostModel { draft_step: 0.15, row: 0.05 };

    /// The length of a draft whose every law has this confidence.
    fn drafted(pace: &Pace, confidence: f64) -> usize {
        let mut so_far = 1.0;
        for length in 0..LONGEST {
            if !pace.worth_a_look(so_far) || !pace.worth_proposing(so_far, confidence) {
                return length;
            }
            so_far *= pace.chance(confidence);
        }
        LONGEST
    }

    /// After many rounds in which each proposal was accepted with probability `alpha`.
    fn settled(costs: CostModel, alpha: f64) -> Pace {
        let mut pace = Pace::new(DraftLength::Auto(costs));
        let mut state = 1u64;
        for _ in 0..4000 {
            let length = drafted(&pace, 0.5);
            let mut accepted = 0;
            while accepted < length {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if (state >> 11) as f64 / 2f64.powi(53) >= alpha {
                    break;
                }
                accepted += 1;
            }
            pace.learn(&vec![0.5; length], accepted, length);
        }
        pace
    }

    /// On constant acceptance the rule finds the best fixed length, or a neighbour of it.
    #[test]
    fn settles_near_the_best_fixed_length() {
        for (costs, alpha) in [
            (COSTS, 0.7),
            (COSTS, 0.5),
            (COSTS, 0.9),
            (CostModel { draft_step: 0.02, row: 0.03 }, 0.8),
            (CostModel { draft_step: 0.4, row: 0.1 }, 0.6),
        ] {
            let speed = |gamma: usize| {
                let tokens = crate::stats::expected_tokens(alpha, gamma);
                tokens / (1.0 + gamma as f64 * (costs.draft_step + costs.row))
            };
            let best = (0..=LONGEST).max_by(|&a, &b| speed(a).total_cmp(&speed(b))).unwrap_or(0);
            let found = drafted(&settled(costs, alpha), 0.5);
            assert!(speed(found) > 0.97 * speed(best), "{costs:?} {alpha}: {found}, best {best}");
        }
    }

    #[test]
    fn a_draft_that_does_not_pay_is_left_alone_but_probed() {
        let pace = settled(CostModel { draft_step: 0.5, row: 0.3 }, 0.2);
        let lengths: Vec<usize> =
            (0..32).map(|rounds| drafted(&Pace { rounds, ..pace.clone() }, 0.5)).collect();
        assert_eq!(lengths.iter().sum::<usize>(), 2, "{lengths:?}");
    }

    #[test]
    fn confident_laws_are_followed_further() {
        let mut pace = Pace::new(DraftLength::Auto(COSTS));
        for _ in 0..50 {
            pace.learn(&[0.95, 0.95, 0.1], 2, 3);
        }
        assert!(drafted(&pace, 0.95) > drafted(&pace, 0.1));
        assert_eq!(drafted(&Pace::new(DraftLength::Fixed(3)), 0.0), LONGEST);
        assert_eq!(Pace::new(DraftLength::Fixed(3)).longest(), 3);
    }
}
