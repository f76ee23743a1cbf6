//! Verifiers: which drafted tokens stay, and which token follows them.
//!
//! Every verifier must satisfy: **if the proposals were made as they say, the emitted tokens follow
//! the target's laws, whatever the draft is.** Each rule is one screen, in its paper's notation,
//! and spends noise only through [`Noise`]; a test that branches at each choice walks the rule itself.

pub mod block;
pub mod coupled;
pub mod rejection;

use std::fmt;

use crate::{
    Dist, Error, Token,
    draft::Proposal,
    noise::{Noise, RoundNoise},
};

pub use block::BlockRule;
pub use coupled::Coupled;
pub use rejection::Rejection;

/// The target's laws along a drafted block.
pub trait TargetLaws: fmt::Debug {
    /// The law of the token at place `i` of the block, given all drafted tokens before it;
    /// `0 ≤ i ≤ γ`. Built when asked, so a row that decides nothing is never looked at.
    ///
    /// # Errors
    /// If the target's row there has no law.
    fn law(&self, i: usize) -> Result<Dist, Error>;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many drafted tokens stay.
    pub accepted: usize,
    /// The token that follows them.
    pub next: Token,
    /// Where `next` came from.
    pub origin: Origin,
    /// The target's laws that the rule looked at, by place in the block: those of the
    /// `accepted + 1` emitted tokens, and for rules that look further those behind.
    pub laws: Vec<Dist>,
}

/// A rule of verification.
pub trait Verifier: fmt::Debug {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Judges a block.
    ///
    /// # Errors
    /// If a row of the target that the rule needs has no law.
    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Result<Verdict, Error>;
}
