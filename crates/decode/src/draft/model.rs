//! [`ModelDrafter`]: a small model that draws from its own law under the same contract.

use std::collections::BTreeMap;

use super::{Draft, DraftEnd, Drafter, Proposal, Request, SessionId};
use crate::{
    Error, Token,
    lm::{LanguageModel, Pass, SequenceId},
    noise::Noise,
    sampler::{Prefix, Sampler},
    stats::{Meter, Part},
};

/// Drafts with a second model.
///
/// It remembers which tokens its cache holds and keeps their common beginning with the committed
/// text. So it needs no word about what was accepted, and a rejected token cannot stay behind.
#[derive(Debug)]
pub struct ModelDrafter<'a> {
    model: &'a mut dyn LanguageModel,
    choice: Choice,
    held: BTreeMap<SessionId, Held>,
}

/// How a token comes from the draft's law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// Drawn with the round's own noise; q is the law.
    Draw,
    /// The winner of the race that the target will run too; nothing is drawn, so q is certain.
    Race,
}

/// A sequence of the draft model and the tokens in its cache.
#[derive(Debug)]
struct Held {
    sequence: SequenceId,
    tokens: Vec<Token>,
}

impl Held {
    /// How much of the cache can serve a row after `tokens`.
    fn shared(&self, tokens: &[Token]) -> usize {
        let shared = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        shared.min(tokens.len().saturating_sub(1))
    }
}

/// One request's draft in the making.
struct Running<'a> {
    request: Request<'a>,
    /// Committed and proposed tokens.
    tokens: Vec<Token>,
    draft: Draft,
    /// The chance that all proposals so far are accepted, by what was learnt.
    so_far: f64,
    live: bool,
}

impl Running<'_> {
    fn end(&mut self, why: DraftEnd) {
        self.draft.ended = Some(why);
        self.live = false;
    }
}

impl<'a> ModelDrafter<'a> {
    /// Drafts with `model`, whose ids mean the same strings as the target's: for the verifiers
    /// [`Rejection`](crate::verify::Rejection) and [`BlockRule`](crate::verify::BlockRule).
    pub fn new(model: &'a mut dyn LanguageModel) -> Self {
        Self { model, choice: Choice::Draw, held: BTreeMap::new() }
    }

    /// As [`new`](Self::new), but proposes the winners of the positions' races: for the verifier
    /// [`Coupled`](crate::verify::Coupled). (Exact under the others too, with fewer acceptances.)
    pub fn racing(model: &'a mut dyn LanguageModel) -> Self {
        Self { model, choice: Choice::Race, held: BTreeMap::new() }
    }

    /// Cuts the cache back to what it shares with `tokens`, less the last one, whose row is wanted. A
    /// continuation that is new here starts as a fork of the one that shares most with it.
    fn resume(&mut self, session: SessionId, tokens: &[Token]) -> Result<(), Error> {
        if !self.held.contains_key(&session) {
            let nearest = self.held.values().max_by_key(|held| held.shared(tokens));
            let held = match nearest.filter(|held| held.shared(tokens) > 0) {
                None => Held { sequence: self.model.open().map_err(Error::Draft)?, tokens: vec![] },
                Some(Held { sequence, tokens }) => {
                    let tokens = tokens.clone();
                    let sequence = self.model.fork(*sequence).map_err(Error::Draft)?;
                    Held { sequence, tokens }
                }
            };
            self.held.insert(session, held);
        }
        let held = self.held.get_mut(&session).expect("inserted if it was not there");
        let keep = held.shared(tokens);
        if keep < held.tokens.len() {
            self.model.truncate(held.sequence, keep).map_err(Error::Draft)?;
            held.tokens.truncate(keep);
        }
        Ok(())
    }

    /// Runs over all of `tokens` but the last, so that others can fork from there.
    fn fill(
        &mut self,
        session: SessionId,
        tokens: &[Token],
        meter: &mut Meter,
    ) -> Result<(), Error> {
        let held = self.held.get_mut(&session).expect("opened by `resume`");
        let tokens = &tokens[held.tokens.len()..tokens.len() - 1];
        let fits = held.tokens.len() + tokens.len() <= self.model.context()
            && tokens.iter().all(|&token| self.model.knows(token));
        if fits && !tokens.is_empty() {
            let pass = Pass { sequence: held.sequence, tokens, rows: 0 };
            meter.time(Part::Draft, || self.model.forward(&[pass])).map_err(Error::Draft)?;
            held.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Ends drafts that the model cannot continue, before anything is computed.
    fn check(&self, running: &mut Running<'_>) {
        let new = &running.tokens[self.held[&running.request.session].tokens.len()..];
        if let Some(&token) = new.iter().find(|&&token| !self.model.knows(token)) {
            running.end(DraftEnd::UnknownToken(token));
        } else if running.tokens.len() > self.model.context() {
            running.end(DraftEnd::ContextFull);
        }
    }

    /// Proposes one more token for each live draft, in one pass.
    fn step(
        &mut self,
        runs: &mut [Running<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        runs.iter_mut().filter(|run| run.live).for_each(|run| self.check(run));
        let mut live: Vec<&mut Running<'_>> = runs.iter_mut().filter(|run| run.live).collect();
        if live.is_empty() {
            return Ok(());
        }
        let batch: Vec<Pass<'_>> = live
            .iter()
            .map(|run| {
                let held = &self.held[&run.request.session];
                let tokens = &run.tokens[held.tokens.len()..];
                Pass { sequence: held.sequence, tokens, rows: 1 }
            })
            .collect();
        let rows = meter.time(Part::Draft, || self.model.forward(&batch)).map_err(Error::Draft)?;
        let choice = self.choice;
        for (run, rows) in live.iter_mut().zip(&rows) {
            run.draft.steps += 1;
            let held = self.held.get_mut(&run.request.session).expect("opened by `resume`");
            held.tokens.extend_from_slice(&run.tokens[held.tokens.len()..]);
            meter.time(Part::Sampler, || draw(run, rows.row(0), choice, sampler, noise));
        }
        Ok(())
    }
}

/// Proposes a token from the row, unless the row or the pace ends the draft.
fn draw(
    run: &mut Running<'_>,
    row: &[f32],
    choice: Choice,
    sampler: &Sampler,
    noise: &mut dyn Noise,
) {
    let prefix = Prefix { tokens: &run.tokens, ..run.request.prefix };
    let q = match sampler.law(prefix, row) {
        Ok(q) => q,
        Err(source) => {
            return run.end(DraftEnd::UnusableRow { position: run.tokens.len(), source });
        }
    };
    let Request { pace, round, ends, limit, .. } = run.request;
    let confidence = pace.confidence(&q);
    // Decided from q, before the draw.
    if !pace.worth_proposing(run.so_far, confidence) {
        run.live = false;
        return;
    }
    let offset = run.draft.proposals.len();
    let proposal = match choice {
        Choice::Draw => match sampler.fast_watermark() {
            None => Proposal::draw(q, round, offset, noise),
            Some(watermark) => {
                Proposal::draw_marked(q, watermark, prefix.output(), round, offset, noise)
            }
        },
        Choice::Race => {
            let winner = noise.winner(round.position(offset), &q);
            Proposal::certain(sampler.vocab(), winner).expect("a token of q is in the vocabulary")
        }
    };
    run.so_far *= pace.chance(confidence);
    run.tokens.push(proposal.token());
    run.live =
        !ends.contains(&proposal.token()) && offset + 1 < limit && pace.worth_a_look(run.so_far);
    run.draft.proposals.push(proposal);
    run.draft.confidence.push(confidence);
}

impl Drafter for ModelDrafter<'_> {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        meter: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let mut runs = Vec::with_capacity(requests.len());
        for &request in requests {
            self.resume(request.session, request.prefix.tokens)?;
            if requests.len() > 1 {
                self.fill(request.session, request.prefix.tokens, meter)?;
            }
            let tokens = request.prefix.tokens.to_vec();
            let live = request.limit > 0 && request.pace.worth_a_look(1.0);
            let draft = Draft::default();
            runs.push(Running { request, tokens, draft, so_far: 1.0, live });
        }
        while runs.iter().any(|run| run.live) {
            self.step(&mut runs, sampler, noise, meter)?;
        }
        Ok(runs.into_iter().map(|run| run.draft).collect())
    }

    fn close(&mut self, session: SessionId) {
        if let Some(held) = self.held.remove(&session) {
            self.model.close(held.sequence);
        }
    }
}
