//! Verifiers: which drafted tokens stay, and which token follows them.
//!
//! Every verifier must satisfy: **if the proposals were made as they say, the emitted tokens follow
//! the target's laws, whatever the draft is.** Each rule is one screen, in its paper's notation,
//! and spends noise only through [`Noise`]; a test that branches at each choice walks the rule itself.

pub mod block;
pub mod coupled;
pub mod fast_watermark;
pub mod rejection;

use std::fmt;

use crate::{
    Dist, Token,
    draft::Proposal,
    noise::{Noise, RoundNoise},
    sampler::RowError,
};

pub use block::BlockRule;
pub use coupled::Coupled;
pub use fast_watermark::FastWatermark;
pub use rejection::Rejection;

/// The target's laws along a drafted block.
pub trait TargetLaws: fmt::Debug {
    /// The law of the token at place `i` of the block, given all drafted tokens before it;
    /// `0 ≤ i ≤ γ`. Built when asked, so a row that decides nothing is never looked at.
    ///
    /// # Errors
    /// If the target's row there has no law.
    fn law(&self, i: usize) -> Result<Dist, RowError>;
}

/// A drafted block to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The drafted tokens, each with its q.
    pub proposals: &'a [Proposal],
    /// The target's laws at each of them and after the last.
    pub target: &'a dyn TargetLaws,
    /// The noise of the round.
    pub round: RoundNoise,
    /// The generated tokens before the block.
    pub generated: &'a [Token],
}

/// Where an emitted token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Drafted and accepted.
    Draft,
    /// Drawn from the residual law after a rejection.
    Residual,
    /// Drawn from the target's law after the whole block was accepted (or none was drafted).
    Bonus,
}

/// What a verifier decided: the first `accepted` drafted tokens, then `next`.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// How many drafted tokens stay.
    pub accepted: usize,
    /// The token that follows them, or why the row that should decide it has no law. That is an
    /// error only if the text does not end with one of the accepted tokens.
    pub next: Result<Next, RowError>,
    /// The target's laws that the rule looked at, by place in the block: those of the accepted
    /// tokens and of `next`, and for rules that look further those behind.
    pub laws: Vec<Dist>,
}

/// The token that follows the accepted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The token.
    pub token: Token,
    /// How it was drawn: never [`Origin::Draft`].
    pub origin: Origin,
}

impl Next {
    /// A token of the residual law.
    #[must_use]
    pub fn residual(token: Token) -> Self {
        Self { token, origin: Origin::Residual }
    }

    /// A token of the target's own law.
    #[must_use]
    pub fn bonus(token: Token) -> Self {
        Self { token, origin: Origin::Bonus }
    }
}

/// A rule of verification.
pub trait Verifier: fmt::Debug {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Whether its draws carry the watermark, which then is on no law (mode `fast`).
    fn marks_draws(&self) -> bool {
        false
    }

    /// Judges a block.
    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict;
}
