//! Counters of a continuation, and what they predict. Durations are handed in: the crate has no clock.

use std::time::Duration;

use crate::dist::{Dist, overlap_estimate};

/// Tells the time, for statistics only; no decision ever depends on it.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// A clock that stands still.
#[derive(Clone, Copy, Debug)]
pub struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// Where the time of a round goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Forward passes of the draft model, or the search of another drafter.
    Draft,
    /// Forward passes of the target.
    Verify,
    /// From logits to laws, draws and verdicts, for both.
    Sampler,
}

/// Adds up how long the parts of a run took.
pub struct Meter {
    clock: Box<dyn Clock>,
    spent: [Duration; 3],
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("spent", &self.spent).finish_non_exhaustive()
    }
}

impl Meter {
    /// A meter that reads `clock`.
    #[must_use]
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self { clock: Box::new(clock), spent: [Duration::ZERO; 3] }
    }

    /// Runs `work` on the account of `part`.
    pub fn time<T>(&mut self, part: Part, work: impl FnOnce() -> T) -> T {
        let start = self.clock.now();
        let result = work();
        self.spent[part as usize] += self.clock.now().saturating_sub(start);
        result
    }

    /// How long `part` took in all.
    #[must_use]
    pub fn spent(&self, part: Part) -> Duration {
        self.spent[part as usize]
    }
}

/// What happened at one place of the drafted block, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtPosition {
    /// Rounds whose verdict reached this place: all drafted tokens before it were accepted.
    pub reached: u64,
    /// Rounds that accepted the token drafted here.
    pub accepted: u64,
}

/// The counters of one continuation; only tokens that were kept count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Rounds, each with one pass of the target.
    pub rounds: u64,
    /// Tokens emitted.
    pub tokens: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafted tokens emitted.
    pub accepted: u64,
    /// By place in the block, from 0.
    pub by_position: Vec<AtPosition>,
    /// Rounds in which an unusable row of the draft ended the proposal.
    pub unusable_draft_rows: u64,
    overlap_sum: f64,
    judged: u64,
    entropy_sum: f64,
    support_sum: f64,
}

impl Stats {
    /// Counts a drafted token that was judged at place `i` of its block and whose verdict was kept.
    pub(crate) fn judged(&mut self, i: usize, accepted: bool, p: &Dist, q: &Dist) {
        if self.by_position.len() <= i {
            self.by_position.resize(i + 1, AtPosition::default());
        }
        self.by_position[i].reached += 1;
        self.by_position[i].accepted += u64::from(accepted);
        self.accepted += u64::from(accepted);
        self.overlap_sum += overlap_estimate(p, q);
        self.judged += 1;
    }

    /// Counts a token emitted under the law `p`.
    pub(crate) fn emitted(&mut self, p: &Dist) {
        self.tokens += 1;
        self.entropy_sum += p.entropy_bits();
        self.support_sum += p.support_len() as f64;
    }

    /// Mean tokens emitted per round; `None` before the first round.
    #[must_use]
    pub fn tokens_per_round(&self) -> Option<f64> {
        mean(self.tokens as f64, self.rounds)
    }

    /// `alpha`: the mean of Σ min(p, q) over the places up to and including the first rejection.
    #[must_use]
    pub fn alpha(&self) -> Option<f64> {
        mean(self.overlap_sum, self.judged)
    }

    /// The share of judged drafted tokens that were accepted; its expectation is [`alpha`](Self::alpha).
    #[must_use]
    pub fn acceptance(&self) -> Option<f64> {
        mean(self.accepted as f64, self.judged)
    }

    /// The mean entropy, in bits, of the laws that the tokens were drawn from.
    #[must_use]
    pub fn entropy_bits(&self) -> Option<f64> {
        mean(self.entropy_sum, self.tokens)
    }

    /// The mean number of tokens that those laws could have drawn.
    #[must_use]
    pub fn eligible_tokens(&self) -> Option<f64> {
        mean(self.support_sum, self.tokens)
    }

    /// Adds the counters of another continuation.
    pub fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.tokens += other.tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.unusable_draft_rows += other.unusable_draft_rows;
        self.overlap_sum += other.overlap_sum;
        self.judged += other.judged;
        self.entropy_sum += other.entropy_sum;
        self.support_sum += other.support_sum;
        if self.by_position.len() < other.by_position.len() {
            self.by_position.resize(other.by_position.len(), AtPosition::default());
        }
        for (at, more) in self.by_position.iter_mut().zip(&other.by_position) {
            at.reached += more.reached;
            at.accepted += more.accepted;
        }
    }
}

fn mean(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

/// The expected tokens per round if each of `gamma` drafted tokens were accepted independently with
/// probability `alpha`: `(1 − α^{γ+1}) / (1 − α)` (Leviathan et al. 2211.17192, eq. 1).
///
/// ```
/// use draftproof_decode::stats::expected_tokens;
/// assert_eq!(expected_tokens(0.5, 2), 1.75);
/// assert_eq!(expected_tokens(1.0, 4), 5.0);
/// ```
#[must_use]
pub fn expected_tokens(alpha: f64, gamma: usize) -> f64 {
    (0..=gamma).map(|i| alpha.powi(i32::try_from(i).unwrap_or(i32::MAX))).sum()
}

/// The predicted speed-up over plain decoding, `E / (γ·c + v)`: E the tokens per round, c the cost
/// of one draft step and v the cost of one verify pass, both in target passes of one row.
/// (2211.17192, theorem 3.8, with the verify pass not taken as free.)
#[must_use]
pub fn predicted_speedup(tokens_per_round: f64, drafted_per_round: f64, c: f64, v: f64) -> f64 {
    tokens_per_round / (drafted_per_round * c + v)
}
