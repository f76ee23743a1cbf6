//! Drafters: where proposed tokens come from.
//!
//! A proposal carries the law that it was drawn from, and has two constructors only:
//! [`Proposal::draw`], which does the drawing itself, and [`Proposal::certain`]. A drafter that
//! draws from one law and reports another, the most common fault of other engines, cannot be written.
//!
//! A proposed token is always judged. Whether to propose one *more* may depend on the past, on the
//! tokens proposed so far and on a law before the draw from it, never on dropping a token after it
//! was drawn: that would change the law of the text.

pub mod length;
pub mod mapped;
pub mod model;
pub mod ngram;

use std::fmt;

use crate::{
    Error, Token,
    dist::{Dist, DistError},
    noise::{Lane, Noise, RoundNoise},
    sampler::{Prefix, RowError, Sampler},
    stats::Meter,
    watermark::Watermark,
};
use length::Pace;

/// A proposed token with the law `q` that it was drawn from.
#[derive(Clone, Debug)]
pub struct Proposal {
    token: Token,
    q: Dist,
}

impl Proposal {
    /// Draws a token from `q` with the draft noise of `offset` in the round.
    pub fn draw(q: Dist, round: RoundNoise, offset: usize, noise: &mut dyn Noise) -> Self {
        let token = noise.draw(round.key(offset, Lane::Draft), &q);
        Self { token, q }
    }

    /// Draws a token from the watermark's tournament over `q` (mode `fast`), which is q averaged over
    /// keys: what [`FastWatermark`](crate::verify::FastWatermark) judges. `generated` are the tokens
    /// before it, drafted ones included.
    pub fn draw_marked(
        q: Dist,
        watermark: &Watermark,
        generated: &[Token],
        round: RoundNoise,
        offset: usize,
        noise: &mut dyn Noise,
    ) -> Self {
        let marked = watermark.mark(generated, q.clone());
        let token = noise.draw(round.key(offset, Lane::Draft), &marked);
        Self { token, q }
    }

    /// Proposes a token that was not drawn (found in the prompt, say): all of q's mass is on it.
    ///
    /// Exact for any way of choosing the token that does not look at the verifier's noise.
    ///
    /// # Errors
    /// If the token is outside the vocabulary.
    pub fn certain(vocab: usize, token: Token) -> Result<Self, DistError> {
        Ok(Self { token, q: Dist::one_hot(vocab, token)? })
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The law it was drawn from; under a watermark of mode `fast`, averaged over keys.
    #[must_use]
    pub fn q(&self) -> &Dist {
        &self.q
    }

    /// A proposal that lies about its law: see [`mutation`](crate::mutation).
    pub(crate) fn forged(token: Token, q: Dist) -> Self {
        Self { token, q }
    }
}

/// Names a continuation to a drafter across rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub usize);

/// One continuation's wish for proposals.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which continuation.
    pub session: SessionId,
    /// The committed tokens.
    pub prefix: Prefix<'a>,
    /// Its noise in this round.
    pub round: RoundNoise,
    /// The most tokens to propose, decided before anything is drawn.
    pub limit: usize,
    /// What decides whether one more is worth it.
    pub pace: &'a Pace,
    /// Tokens after which nothing is worth proposing: generation ends there.
    pub ends: &'a [Token],
}

/// What a drafter proposes for one request.
#[derive(Debug, Default)]
pub struct Draft {
    /// The proposals, in order; at most [`Request::limit`].
    pub proposals: Vec<Proposal>,
    /// For each of them, how sure the drafter was, from 0 to 1: the largest probability of its law, as
    /// far as [`Pace::confidence`](length::Pace::confidence) asks for it.
    pub confidence: Vec<f64>,
    /// How many times the drafter looked; a look may end without a proposal.
    pub steps: usize,
    /// Why there are fewer than the limit, when that is worth telling.
    pub ended: Option<DraftEnd>,
}

/// Why a draft ended early.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftEnd {
    /// The draft model's row has no law under the contract (all banned, NaN…).
    UnusableRow {
        /// The position of the row: the number of tokens before it.
        position: usize,
        /// What is wrong with it.
        source: RowError,
    },
    /// The draft model's context is full.
    ContextFull,
    /// The text holds a token that the draft model does not know.
    UnknownToken(Token),
}

impl fmt::Display for DraftEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnusableRow { position, source } => {
                write!(f, "the draft's row for position {position}: {source}")
            }
            Self::ContextFull => f.write_str("the draft's context is full"),
            Self::UnknownToken(token) => write!(f, "the draft does not know token {token}"),
        }
    }
}

/// Proposes tokens.
pub trait Drafter: fmt::Debug {
    /// Proposes for each request, in order; requests of one call may share passes.
    ///
    /// # Errors
    /// If a model fails. A row without a law is no error: it ends that draft.
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        meter: &mut Meter,
    ) -> Result<Vec<Draft>, Error>;

    /// Forgets a continuation.
    fn close(&mut self, session: SessionId);
}

/// Proposes nothing: plain decoding.
#[derive(Clone, Copy, Debug)]
pub struct NoDrafter;

impl Drafter for NoDrafter {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        _: &Sampler,
        _: &mut dyn Noise,
        _: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        Ok(requests.iter().map(|_| Draft::default()).collect())
    }

    fn close(&mut self, _: SessionId) {}
}
