//! [`Recorder`]: from judged rounds to lines.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::HashSet,
};

use super::{
    format::{
        BlockPlace, Closing, Coin, Drafted, Draw, FORMAT, Footer, Header, Opening, Position, Race,
        Record, Rule, Source, VERSION, Weights, Whole,
    },
    text::{Sum, Text},
};
use crate::{
    Dist, Session, Token,
    dist::{Fraction, residual},
    draft::Proposal,
    noise::Lane,
    session::JudgedRound,
    verify::block,
};

/// What a trace says about the whole run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The name of the verifier, as [`Verifier::name`](crate::verify::Verifier::name) gives it.
    pub verifier: &'a str,
    /// The hash of the sampler contract.
    pub contract: Option<&'a str>,
    /// The target's vocabulary.
    pub vocab: usize,
    /// The target's context.
    pub context: usize,
    /// Whether to keep whole laws.
    pub full: bool,
}

/// Why something cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No line format for this verifier.
    #[error("expected the verifier rejection, block or coupled, found {found}")]
    UnknownVerifier {
        /// The name given.
        found: String,
    },
    /// A vocabulary without a law.
    #[error("a vocabulary of {vocab} ids is larger than 2^24")]
    TooWide {
        /// The vocabulary size.
        vocab: usize,
    },
    /// The continuations of one run share the seed and differ in the sequence.
    #[error(
        "sequence {sequence} of seed {seed}: expected seed {expected} and a sequence of its own"
    )]
    MixedNoise {
        /// The seed of the offending continuation.
        seed: u64,
        /// Its sequence.
        sequence: u64,
        /// The seed of the run.
        expected: u64,
    },
    /// A round of a continuation that the header does not name.
    #[error("a round of sequence {sequence} of seed {seed}, which the header does not name")]
    UnknownSequence {
        /// The seed.
        seed: u64,
        /// The sequence.
        sequence: u64,
    },
    /// The verdict lacks a law that the decision needs, or the decision has no law at all.
    #[error("the verdict on the round that starts at {round_start} has no law for place {offset}")]
    NoLaw {
        /// The number of tokens before the round.
        round_start: u64,
        /// The place in the block.
        offset: usize,
    },
}

/// Writes a run down as lines of JSON, each with a digest of all lines so far; see the
/// [module](super). Pure: lines are returned, and where they go is the caller's affair.
#[derive(Clone, Debug)]
pub struct Recorder {
    header: Header,
    closings: Vec<Closing>,
    lines: u64,
    last: Sum,
}

impl Recorder {
    /// A recorder of `sessions` before their first round.
    ///
    /// # Errors
    /// If the verifier is unknown, the vocabulary too large, or the sessions do not share a seed or
    /// share a sequence.
    pub fn new(run: &Run<'_>, sessions: &[Session]) -> Result<Self, RecordError> {
        let verifier = match run.verifier {
            "rejection" => Rule::Rejection,
            "block" => Rule::Block,
            "coupled" => Rule::Coupled,
            found => return Err(RecordError::UnknownVerifier { found: found.into() }),
        };
        let vocab = run.vocab;
        if vocab > crate::dist::MAX_VOCAB {
            return Err(RecordError::TooWide { vocab });
        }
        let expected = sessions.first().map_or(0, |session| session.seed().seed);
        let mut taken = HashSet::new();
        for session in sessions {
            let noise = session.seed();
            if noise.seed != expected || !taken.insert(noise.sequence) {
                let (seed, sequence) = (noise.seed, noise.sequence);
                return Err(RecordError::MixedNoise { seed, sequence, expected });
            }
        }
        let header = Header {
            format: FORMAT.into(),
            version: VERSION,
            verifier,
            contract: run.contract.map(str::to_owned),
            vocab: Token::at(vocab).0,
            context: Text(run.context as u64),
            full: run.full,
            seed: Text(expected),
            sequences: sessions.iter().map(opening).collect(),
        };
        let closing = |opening: &Opening| Closing {
            sequence: opening.sequence,
            rounds: Text(0),
            tokens: Text(0),
            finish: None,
        };
        let closings = header.sequences.iter().map(closing).collect();
        Ok(Self { header, closings, lines: 0, last: Sum::START })
    }

    /// The first line.
    pub fn header(&mut self) -> String {
        let header = Record::Header(self.header.clone());
        self.line(&header)
    }

    /// The lines of a round.
    ///
    /// # Errors
    /// If the round belongs to no session of the recorder, or its verdict lacks a law.
    pub fn round(&mut self, round: &JudgedRound<'_>) -> Result<Vec<String>, RecordError> {
        let noise = round.noise.seed;
        let known = |closing: &&mut Closing| closing.sequence.0 == noise.sequence;
        let closing = self.closings.get_mut(round.session.0).filter(known);
        let Some(closing) = closing.filter(|_| noise.seed == self.header.seed.0) else {
            let (seed, sequence) = (noise.seed, noise.sequence);
            return Err(RecordError::UnknownSequence { seed, sequence });
        };
        let judged = Judged { round, number: closing.rounds.0, full: self.header.full };
        let places = match self.header.verifier {
            Rule::Rejection => judged.rejection(),
            Rule::Block => judged.block(),
            Rule::Coupled => judged.coupled(),
        }?;
        closing.rounds.0 += 1;
        closing.tokens.0 += round.kept as u64;
        closing.finish = round.finish;
        let records = places.into_iter().map(|place| Record::Position(Box::new(place)));
        Ok(records.map(|record| self.line(&record)).collect())
    }

    /// The last line, after the last round.
    pub fn footer(&mut self, sessions: &[Session]) -> String {
        // A session may have ended without a round.
        for (closing, session) in self.closings.iter_mut().zip(sessions) {
            closing.finish = closing.finish.or(session.finish());
        }
        let footer = Record::Footer(Footer {
            lines: Text(self.lines),
            sequences: self.closings.clone(),
            last: Text(self.last),
        });
        self.line(&footer)
    }

    fn line(&mut self, record: &Record) -> String {
        let body = record.body();
        self.lines += 1;
        self.last = self.last.then(&body);
        let open = &body[..body.len() - 1];
        format!("{open},\"digest\":\"{}\"}}", self.last)
    }
}

fn opening(session: &Session) -> Opening {
    let (prompt, generated) = (session.prompt(), session.generated());
    let tokens = prompt.iter().chain(generated).copied();
    Opening {
        sequence: Text(session.seed().sequence),
        prompt_len: Text(prompt.len() as u64),
        start: Text((prompt.len() + generated.len()) as u64),
        start_sha256: Text(Sum::of_tokens(tokens)),
        max_tokens: Text(session.limits().max_tokens as u64),
        eos: session.limits().eos.iter().map(|token| token.0).collect(),
    }
}

/// A round on its way to lines.
struct Judged<'a> {
    round: &'a JudgedRound<'a>,
    number: u64,
    full: bool,
}

impl Judged<'_> {
    fn rejection(&self) -> Result<Vec<Position>, RecordError> {
        let verdict = self.round.verdict;
        let place = |i: usize| {
            if self.is_unusable(i) {
                return Ok(self.place(i, None));
            }
            let p = self.p(i)?;
            let mut place = self.place(i, Some(p));
            let Some(proposal) = self.proposal(i) else {
                place.draw = self.draw(p, i, Lane::Bonus);
                return Ok(place);
            };
            let (x, q) = (proposal.token(), proposal.q());
            let weights = Weights::of(p, q, x);
            let (a, b) = weights.products();
            let passed = i < verdict.accepted;
            // A forged proposal may have no weight in its own law.
            let chance = Fraction::new(a, b.max(1));
            let key = self.round.noise.key(i, Lane::Accept);
            place.weights = Some(weights);
            place.coin = Some(Coin::new(chance, key, passed));
            if !passed && place.origin == Source::Residual {
                let r = residual(p, q).ok_or(self.no_law(i))?;
                place.draw = self.draw(&r, i, Lane::Residual);
            } else if !passed {
                place.draw = self.draw(p, i, Lane::Bonus);
            }
            Ok(place)
        };
        (0..=verdict.accepted).map(place).collect()
    }

    /// The places whose laws the rule looked at, and the one after them, where it stopped.
    fn block(&self) -> Result<Vec<Position>, RecordError> {
        let verdict = self.round.verdict;
        let proposals = &self.round.draft.proposals;
        let last = verdict.laws.len().min(proposals.len());
        let (mut alpha, mut places) = (block::ONE, Vec::with_capacity(last + 1));
        for (i, proposal) in proposals.iter().enumerate().take(last) {
            let (p, x, q) = (self.p(i)?, proposal.token(), proposal.q());
            let mut place = self.place(i, Some(p));
            let (at, residual) = BlockPlace::of(alpha, p, q);
            let weights = Weights::of(p, q, x);
            place.weights = Some(weights);
            place.block = Some(at);
            if i >= verdict.accepted {
                place.coin = Some(self.block_coin(i, at.h.0.0));
            }
            if i == verdict.accepted {
                place.draw = self.draw(&residual, i, Lane::Residual);
            }
            alpha = weights.next_alpha(alpha);
            places.push(place);
        }
        let bonus = verdict.accepted >= last && !self.is_unusable(last);
        let p = if bonus { Some(self.p(last)?) } else { None };
        let mut place = self.place(last, p);
        if !bonus {
            // Never judged, as little as the tokens behind it.
            (place.drafted, place.q) = (None, None);
        }
        let at = BlockPlace::last(alpha);
        place.block = Some(at);
        place.coin = Some(self.block_coin(last, at.h.0.0));
        place.draw = p.and_then(|p| self.draw(p, last, Lane::Bonus));
        places.push(place);
        Ok(places)
    }

    fn block_coin(&self, i: usize, h: Fraction) -> Coin {
        let key = self.round.noise.key(i, Lane::Accept);
        Coin::new(h, key, i == self.round.verdict.accepted)
    }

    fn coupled(&self) -> Result<Vec<Position>, RecordError> {
        let place = |i: usize| {
            if self.is_unusable(i) {
                return Ok(self.place(i, None));
            }
            let p = self.p(i)?;
            let mut place = self.place(i, Some(p));
            let key = self.round.noise.position(i);
            place.race = place.token.map(|token| Race::of(p, Token(token), key));
            Ok(place)
        };
        (0..=self.round.verdict.accepted).map(place).collect()
    }

    fn proposal(&self, i: usize) -> Option<&Proposal> {
        self.round.draft.proposals.get(i)
    }

    fn p(&self, i: usize) -> Result<&Dist, RecordError> {
        self.round.verdict.laws.get(i).ok_or(self.no_law(i))
    }

    fn no_law(&self, offset: usize) -> RecordError {
        let round_start = self.round.noise.round_start;
        RecordError::NoLaw { round_start, offset }
    }

    /// Whether the target's row for place `i`, the last, has no law.
    fn is_unusable(&self, i: usize) -> bool {
        i == self.round.verdict.accepted && self.round.verdict.next.is_err()
    }

    /// How the verdict's last token was drawn.
    fn draw(&self, law: &dyn crate::law::Law, i: usize, lane: Lane) -> Option<Draw> {
        let next = self.round.verdict.next.as_ref().ok()?;
        Some(Draw::of(law, next.token, self.round.noise.key(i, lane)))
    }

    /// What all rules have at place `i`: the token, if one was emitted, and the drafted one.
    fn place(&self, i: usize, p: Option<&Dist>) -> Position {
        let JudgedRound { noise, verdict, kept, finish, .. } = *self.round;
        let (token, origin) = match (i.cmp(&verdict.accepted), &verdict.next) {
            (Less, _) => (self.proposal(i).map(Proposal::token), Source::Draft),
            (Equal, Ok(next)) => (Some(next.token), next.origin.into()),
            (Equal, Err(_)) => (None, Source::Unusable),
            (Greater, _) => (None, Source::Rejected),
        };
        let drafted = self.proposal(i).map(|proposal| Drafted {
            token: proposal.token().0,
            draw: Draw::of(proposal.q(), proposal.token(), noise.key(i, Lane::Draft)),
        });
        let whole = |law: Option<&Dist>| law.filter(|_| self.full).map(Whole::of);
        Position {
            sequence: Text(noise.seed.sequence),
            round: Text(self.number),
            round_start: Text(noise.round_start),
            offset: Token::at(i).0,
            token: token.map(|token| token.0),
            origin,
            kept: token.is_some() && i < kept,
            finish: finish.filter(|_| i + 1 == kept),
            drafted,
            weights: None,
            block: None,
            coin: None,
            race: None,
            draw: None,
            p: whole(p),
            q: whole(self.proposal(i).map(Proposal::q)),
        }
    }
}
