//! The loop: draft, verify, commit, truncate. Read this file first.
//!
//! ```text
//! committed tokens ─▶ drafter ─▶ proposals {token, q}
//!        │                            │
//!        └──────▶ target ◀────────────┘   one pass: rows for each drafted place and the next
//!                   │
//!                 verifier ─▶ verdict: accepted prefix + one token ─▶ commit ─▶ truncate
//! ```
//!
//! Invariant between rounds: the target's cache holds a beginning of the committed tokens (all but
//! the last, once a round is done), so a pass always takes the committed tokens that the cache
//! lacks, then the drafted ones.

use crate::{
    Error, Token,
    draft::{Draft, Drafter, Request, SessionId},
    lm::{LanguageModel, Pass, Rows},
    noise::Noise,
    sampler::Sampler,
    session::{Listener, RowLaws, Session},
    stats::{Meter, Part},
    verify::{Block, Verifier},
};

/// How many sessions share a pass; others wait until one of these has ended, and hold no memory.
pub const COMPANY: usize = 32;

/// All that decoding needs, borrowed for a run.
#[derive(Debug)]
pub struct Engine<'a> {
    /// The model whose law the text follows.
    pub target: &'a mut dyn LanguageModel,
    /// Where proposals come from.
    pub drafter: &'a mut dyn Drafter,
    /// The rule that judges them.
    pub verifier: &'a dyn Verifier,
    /// The contract, for target and draft alike.
    pub sampler: &'a Sampler,
    /// The source of random choices.
    pub noise: &'a mut dyn Noise,
    /// Where the time goes.
    pub meter: &'a mut Meter,
}

/// Continues every session to its end; sessions share the passes of both models.
///
/// The tokens of a session depend on its prompt, its seed and its limits, not on its company.
///
/// # Errors
/// If a session cannot be continued, a model fails, a row that decides a token has no law, or the
/// listener fails. Committed tokens stay in the sessions.
pub fn generate(
    engine: &mut Engine<'_>,
    sessions: &mut [Session],
    listener: &mut dyn Listener,
) -> Result<(), Error> {
    let mut more = Ok(true);
    while let Ok(true) = more {
        more = round(engine, sessions, listener);
    }
    for (id, session) in sessions.iter_mut().enumerate() {
        session.close(engine.target);
        engine.drafter.close(SessionId(id));
    }
    more.map(|_| ())
}

/// One round of the first [`COMPANY`] sessions that have not ended; false once all have.
///
/// For callers that step; what is still open when they stop early they close with [`Session::close`]
/// and [`Drafter::close`].
///
/// # Errors
/// As [`generate`].
pub fn round(
    engine: &mut Engine<'_>,
    sessions: &mut [Session],
    listener: &mut dyn Listener,
) -> Result<bool, Error> {
    let ids = open(engine, sessions)?;
    let mut live: Vec<(SessionId, &mut Session)> = sessions
        .iter_mut()
        .enumerate()
        .map(|(id, session)| (SessionId(id), session))
        .filter(|(id, _)| ids.contains(id))
        .collect();
    if live.is_empty() {
        return Ok(false);
    }
    let drafts = draft(engine, &live)?;
    let rows = target_pass(engine, &live, &drafts)?;
    let context = engine.target.context();
    for (((id, session), draft), rows) in live.iter_mut().zip(&drafts).zip(&rows) {
        let laws = RowLaws::new(engine.sampler, session, draft, rows);
        let block = Block {
            proposals: &draft.proposals,
            target: &laws,
            round: session.round(),
            generated: session.generated(),
        };
        let verify = || engine.verifier.verify(&block, engine.noise);
        let verdict = engine.meter.time(Part::Sampler, verify);
        session.commit(*id, draft, &verdict, rows, listener, context)?;
        if session.finish().is_some() {
            session.close(engine.target);
            engine.drafter.close(*id);
        } else {
            session.truncate(engine.target)?;
        }
    }
    Ok(true)
}

/// Chooses the sessions of a round and opens those that are not; where two begin alike, one pass
/// over their beginning serves both.
fn open(engine: &mut Engine<'_>, sessions: &mut [Session]) -> Result<Vec<SessionId>, Error> {
    let mut live = Vec::with_capacity(COMPANY.min(sessions.len()));
    for id in 0..sessions.len() {
        let (before, rest) = sessions.split_at_mut(id);
        let session = &mut rest[0];
        if session.check(engine.target, engine.sampler, engine.verifier)? {
            let twin = before.iter().find(|other| other.begins_like(session));
            session.open(engine.target, twin, engine.meter)?;
        }
        if session.finish().is_none() {
            live.push(SessionId(id));
        }
        if live.len() == COMPANY {
            break;
        }
    }
    Ok(live)
}

fn draft(engine: &mut Engine<'_>, live: &[(SessionId, &mut Session)]) -> Result<Vec<Draft>, Error> {
    let requests: Vec<Request<'_>> =
        live.iter().map(|(id, session)| session.request(*id, engine.target.context())).collect();
    engine.drafter.propose(&requests, engine.sampler, engine.noise, engine.meter)
}

fn target_pass(
    engine: &mut Engine<'_>,
    live: &[(SessionId, &mut Session)],
    drafts: &[Draft],
) -> Result<Vec<Rows>, Error> {
    let mut tokens: Vec<(_, Vec<Token>)> = Vec::with_capacity(live.len());
    for ((_, session), draft) in live.iter().zip(drafts) {
        tokens.push(session.pass(engine.target, draft)?);
    }
    let batch: Vec<Pass<'_>> = tokens
        .iter()
        .zip(drafts)
        .map(|((sequence, tokens), draft)| Pass {
            sequence: *sequence,
            tokens,
            rows: draft.proposals.len() + 1,
        })
        .collect();
    engine.meter.time(Part::Verify, || engine.target.forward(&batch)).map_err(Error::Target)
}
