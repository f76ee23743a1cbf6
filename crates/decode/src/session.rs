//! [`Session`]: one continuation, from its prompt to its end.

use std::fmt;

use crate::{
    Dist, Error, Token,
    draft::{
        Draft, DraftEnd, Request, SessionId,
        length::{DraftLength, Pace},
    },
    error::ListenerError,
    lm::{LanguageModel, Pass, Rows, SequenceId},
    noise::{RoundNoise, Seed},
    sampler::{Prefix, RowError, Sampler},
    stats::{Meter, Part, Stats},
    verify::{Origin, TargetLaws, Verdict, Verifier},
};

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended the text.
    Eos,
    /// The listener asked for it: a stop string.
    Stop,
    /// The limit on generated tokens.
    Length,
    /// The target's context is full.
    Context,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
        })
    }
}

/// When a continuation ends, and how far ahead it drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the text; empty to go on past them.
    pub eos: Vec<Token>,
    /// How many tokens to draft a round.
    pub draft_len: DraftLength,
}

/// A token as it is committed.
#[derive(Clone, Copy, Debug)]
pub struct Emitted<'a> {
    /// The continuation.
    pub session: SessionId,
    /// The token.
    pub token: Token,
    /// Where it came from.
    pub origin: Origin,
    /// The target's law that it follows.
    pub law: &'a Dist,
    /// The target's logits behind that law.
    pub logits: &'a [f32],
    /// Whether it ends the text as one of [`Limits::eos`].
    pub is_eos: bool,
}

/// One round as it was judged: with the laws in it, every decision can be derived again.
#[derive(Clone, Copy, Debug)]
pub struct JudgedRound<'a> {
    /// The continuation.
    pub session: SessionId,
    /// The round's noise.
    pub noise: RoundNoise,
    /// What was drafted.
    pub draft: &'a Draft,
    /// What was decided.
    pub verdict: &'a Verdict,
    /// How many of the verdict's tokens were committed: fewer than `accepted + 1` where one of them
    /// ended the text.
    pub kept: usize,
    /// Why the text ended after the last of them, if it did.
    pub finish: Option<FinishReason>,
}

/// Receives tokens as they are decided, in order.
pub trait Listener {
    /// A token was committed. `Ok(true)` ends the continuation after it: a stop string is complete.
    ///
    /// # Errors
    /// If the token cannot be received; generation stops.
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError>;

    /// A round was judged and its tokens committed: what a trace records.
    ///
    /// # Errors
    /// If it cannot be recorded; generation stops.
    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        let _ = round;
        Ok(())
    }

    /// A row of the draft had no law, or the text holds a token that the draft does not know;
    /// decoding goes on without the proposal.
    fn warning(&mut self, session: SessionId, message: &str) {
        let _ = (session, message);
    }
}

/// Receives nothing.
impl Listener for () {
    fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
        Ok(false)
    }
}

/// One continuation of one prompt.
#[derive(Clone, Debug)]
pub struct Session {
    tokens: Vec<Token>,
    prompt_len: usize,
    seed: Seed,
    limits: Limits,
    sequence: Option<SequenceId>,
    finish: Option<FinishReason>,
    pace: Pace,
    stats: Stats,
}

impl Session {
    /// A continuation of `prompt` with the noise of `seed`.
    #[must_use]
    pub fn new(prompt: &[Token], seed: Seed, limits: Limits) -> Self {
        Self {
            tokens: prompt.to_vec(),
            prompt_len: prompt.len(),
            seed,
            pace: Pace::new(limits.draft_len),
            limits,
            sequence: None,
            finish: None,
            stats: Stats::default(),
        }
    }

    /// A continuation that takes up where another one stood: `generated` counts as its own output.
    #[must_use]
    pub fn resume(prompt: &[Token], generated: &[Token], seed: Seed, limits: Limits) -> Self {
        let mut session = Self::new(prompt, seed, limits);
        session.tokens.extend_from_slice(generated);
        session
    }

    /// The prompt.
    #[must_use]
    pub fn prompt(&self) -> &[Token] {
        &self.tokens[..self.prompt_len]
    }

    /// When it ends, and how far ahead it drafts.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The generated tokens, a final EOS included.
    #[must_use]
    pub fn generated(&self) -> &[Token] {
        &self.tokens[self.prompt_len..]
    }

    /// Why it ended, once it has.
    #[must_use]
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Its noise.
    #[must_use]
    pub fn seed(&self) -> Seed {
        self.seed
    }

    fn prefix(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens, prompt_len: self.prompt_len }
    }

    /// Checks that the session can be continued; true if it is still to be opened.
    pub(crate) fn check(
        &mut self,
        target: &dyn LanguageModel,
        sampler: &Sampler,
        verifier: &dyn Verifier,
    ) -> Result<bool, Error> {
        if self.sequence.is_some() || self.finish.is_some() {
            return Ok(false);
        }
        if sampler.vocab() != target.vocab() {
            let (sampler, target) = (sampler.vocab(), target.vocab());
            return Err(Error::VocabMismatch { sampler, target });
        }
        let fast = sampler.fast_watermark().is_some();
        if fast != verifier.marks_draws() {
            return Err(Error::WatermarkRule { rule: verifier.name(), fast });
        }
        if fast && matches!(self.limits.draft_len, DraftLength::Auto(_)) {
            return Err(Error::WatermarkLength);
        }
        if self.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if self.tokens.len() >= target.context() {
            let (prompt, context) = (self.tokens.len(), target.context());
            return Err(Error::PromptTooLong { prompt, context });
        }
        if self.generated().len() >= self.limits.max_tokens {
            self.finish = Some(FinishReason::Length);
        }
        Ok(self.finish.is_none())
    }

    /// Whether this open session holds the very tokens that `other` begins with.
    pub(crate) fn begins_like(&self, other: &Self) -> bool {
        self.sequence.is_some() && self.tokens == other.tokens
    }

    /// Opens the target's sequence: afresh, or as a fork of a session with the same tokens, which
    /// then runs over all of them but the last, once for both.
    pub(crate) fn open(
        &mut self,
        target: &mut dyn LanguageModel,
        twin: Option<&Self>,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        let opened = match twin.and_then(|twin| twin.sequence) {
            None => target.open(),
            Some(sequence) => {
                let beginning = &self.tokens[..self.tokens.len() - 1];
                let missing = &beginning[target.len(sequence).map_err(Error::Target)?..];
                if !missing.is_empty() {
                    let pass = Pass { sequence, tokens: missing, rows: 0 };
                    let forward = || target.forward(&[pass]).map_err(Error::Target);
                    meter.time(Part::Verify, forward)?;
                }
                target.fork(sequence)
            }
        };
        self.sequence = Some(opened.map_err(Error::Target)?);
        Ok(())
    }

    /// Frees what the session holds in the target.
    pub fn close(&mut self, target: &mut dyn LanguageModel) {
        if let Some(sequence) = self.sequence.take() {
            target.close(sequence);
        }
    }

    pub(crate) fn round(&self) -> RoundNoise {
        RoundNoise { seed: self.seed, round_start: self.tokens.len() as u64 }
    }

    /// The wish for proposals: at most the draft length, and no more than may still be emitted,
    /// less the one token that follows every block.
    pub(crate) fn request(&self, session: SessionId, context: usize) -> Request<'_> {
        let room = context - self.tokens.len();
        let left = self.limits.max_tokens - self.generated().len();
        let limit = self.pace.longest().min(room - 1).min(left - 1);
        let ends = &self.limits.eos;
        Request {
            session,
            prefix: self.prefix(),
            round: self.round(),
            limit,
            pace: &self.pace,
            ends,
        }
    }

    /// The target's next pass: the committed tokens its cache lacks, then the drafted ones.
    pub(crate) fn pass(
        &self,
        target: &dyn LanguageModel,
        draft: &Draft,
    ) -> Result<(SequenceId, Vec<Token>), Error> {
        let sequence = self.sequence.expect("a session is open while it runs");
        let held = target.len(sequence).map_err(Error::Target)?;
        let mut tokens = self.tokens[held..].to_vec();
        tokens.extend(draft.proposals.iter().map(|proposal| proposal.token()));
        Ok((sequence, tokens))
    }

    /// Takes a verdict's tokens in order until one of them ends the text; the rest is discarded, and
    /// with it all that was counted about it. If the text gets to the place of a row without a law,
    /// that is an error; the tokens before it stay, and the round is none that the listener sees.
    pub(crate) fn commit(
        &mut self,
        id: SessionId,
        draft: &Draft,
        verdict: &Verdict,
        rows: &Rows,
        listener: &mut dyn Listener,
        context: usize,
    ) -> Result<(), Error> {
        let (noise, before) = (self.round(), self.tokens.len());
        self.pace.learn(&draft.confidence, verdict.accepted, draft.steps);
        self.stats.rounds += 1;
        self.stats.drafted += draft.proposals.len() as u64;
        match &draft.ended {
            Some(end @ DraftEnd::UnusableRow { .. }) => {
                self.stats.unusable_draft_rows += 1;
                listener.warning(id, &end.to_string());
            }
            // Nothing is drafted from here on.
            Some(end @ DraftEnd::UnknownToken(_)) => listener.warning(id, &end.to_string()),
            Some(DraftEnd::ContextFull) | None => {}
        }
        for i in 0..=verdict.accepted {
            let proposal = draft.proposals.get(i);
            let accepted = i < verdict.accepted;
            let (token, origin) = match (proposal, &verdict.next) {
                (Some(proposal), _) if accepted => (proposal.token(), Origin::Draft),
                (_, Ok(next)) => (next.token, next.origin),
                (_, Err(unusable)) => {
                    return Err(Error::Row { position: before + i, source: unusable.clone() });
                }
            };
            let law = &verdict.laws[i];
            if let Some(proposal) = proposal {
                self.stats.judged(i, accepted, law, proposal.q());
            }
            let (logits, is_eos) = (rows.row(i), self.limits.eos.contains(&token));
            let emitted = Emitted { session: id, token, origin, law, logits, is_eos };
            if self.emit(&emitted, listener, context)? {
                break;
            }
        }
        let kept = self.tokens.len() - before;
        let finish = self.finish;
        let judged = JudgedRound { session: id, noise, draft, verdict, kept, finish };
        listener.round(&judged).map_err(Error::Listener)
    }

    /// Appends a token and tells the listener; true if the text ends with it.
    fn emit(
        &mut self,
        emitted: &Emitted<'_>,
        listener: &mut dyn Listener,
        context: usize,
    ) -> Result<bool, Error> {
        self.stats.emitted(emitted.law);
        self.tokens.push(emitted.token);
        let stop = listener.token(emitted).map_err(Error::Listener)?;
        self.finish = self.end_after(emitted.is_eos, stop, context);
        Ok(self.finish.is_some())
    }

    /// Why the text ends after its last token, if it does; the first reason that holds.
    fn end_after(&self, is_eos: bool, stop: bool, context: usize) -> Option<FinishReason> {
        if is_eos {
            Some(FinishReason::Eos)
        } else if stop {
            Some(FinishReason::Stop)
        } else if self.generated().len() >= self.limits.max_tokens {
            Some(FinishReason::Length)
        } else if self.tokens.len() >= context {
            Some(FinishReason::Context)
        } else {
            None
        }
    }

    /// Cuts the target's cache back to the committed tokens, less the last one, whose row the next
    /// round needs.
    pub(crate) fn truncate(&self, target: &mut dyn LanguageModel) -> Result<(), Error> {
        let sequence = self.sequence.expect("a session is open while it runs");
        target.truncate(sequence, self.tokens.len() - 1).map_err(Error::Target)
    }
}

/// The target's laws along a drafted block, from its rows of logits.
#[derive(Debug)]
pub(crate) struct RowLaws<'a> {
    sampler: &'a Sampler,
    /// Committed and drafted tokens.
    tokens: Vec<Token>,
    committed: usize,
    prompt_len: usize,
    rows: &'a Rows,
}

impl<'a> RowLaws<'a> {
    pub(crate) fn new(
        sampler: &'a Sampler,
        session: &Session,
        draft: &Draft,
        rows: &'a Rows,
    ) -> Self {
        let mut tokens = session.tokens.clone();
        tokens.extend(draft.proposals.iter().map(|proposal| proposal.token()));
        let (committed, prompt_len) = (session.tokens.len(), session.prompt_len);
        Self { sampler, tokens, committed, prompt_len, rows }
    }
}

impl TargetLaws for RowLaws<'_> {
    fn law(&self, i: usize) -> Result<Dist, RowError> {
        let tokens = &self.tokens[..self.committed + i];
        let prefix = Prefix { tokens, prompt_len: self.prompt_len };
        self.sampler.law(prefix, self.rows.row(i))
    }
}
