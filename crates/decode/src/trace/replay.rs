//! [`Replayer`]: a trace is read line by line, and every decision is derived again.

use std::collections::VecDeque;

use super::{
    check::{At, Checked, Fail, Held, Walk, same},
    format::{Closing, FORMAT, Footer, Header, Opening, Position, Record, Rule, Source, VERSION},
    summary::{Choices, ReplayedSequence, Summary},
    text::{Sum, Text},
};
use crate::{
    FinishReason, Token,
    dist::MAX_VOCAB,
    generate::COMPANY,
    noise::{RoundNoise, Seed},
};

/// The longest line that replay reads, in bytes: room for two whole laws of a large vocabulary.
pub const MAX_LINE: usize = 1 << 28;

/// A line that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {field}: expected {expected}, found {found}")]
pub struct ReplayError {
    /// The number of the line, as the caller counts.
    pub line: u64,
    /// The field, or `line` for the line as a whole.
    pub field: String,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

/// Reads a trace line by line; see the [module](super). Stop at the first error.
#[derive(Debug, Default)]
pub struct Replayer {
    run: Option<Running>,
    lines: u64,
    last_number: u64,
    last: Option<Sum>,
    closed: bool,
}

/// What the header announced and the lines so far have made of it.
#[derive(Debug)]
struct Running {
    header: Header,
    sequences: Vec<Sequence>,
    /// Whose turns are left in this pass, as indices into the sequences.
    turns: VecDeque<usize>,
    open: Option<Open>,
    rounds: u64,
    by_origin: [u64; 3],
    choices: Choices,
    overlap: f64,
    judged: u64,
}

#[derive(Debug)]
struct Sequence {
    rounds: u64,
    committed: u64,
    tokens: Vec<Token>,
    finish: Option<FinishReason>,
}

/// A round between two of its lines.
#[derive(Debug)]
struct Open {
    round_start: u64,
    offset: u32,
    walk: Walk,
}

impl Replayer {
    /// Reads the next line, without its line break; `number` is what errors call it.
    ///
    /// # Errors
    /// If the line does not follow from the ones before, the noise and its own numbers.
    pub fn line(&mut self, number: u64, line: &str) -> Result<(), ReplayError> {
        self.last_number = number;
        self.check(line).map_err(|fail| fail_at(number, fail))
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// If its last line is missing.
    pub fn finish(self) -> Result<Summary, ReplayError> {
        let missing = |expected| {
            let number = self.last_number.saturating_add(1);
            fail_at(number, Fail::new("line", expected, "the end of the trace"))
        };
        let Some(run) = self.run else {
            return Err(missing("a header"));
        };
        if !self.closed {
            return Err(missing("a position or the footer"));
        }
        Ok(run.summary(self.lines))
    }

    fn check(&mut self, line: &str) -> Checked {
        let last = self.last.unwrap_or(Sum::START);
        let (record, digest) = parse(line, last)?;
        match (&mut self.run, record) {
            (run @ None, Record::Header(header)) => *run = Some(Running::new(header)?),
            (Some(_), _) if self.closed => {
                return Err(Fail::new("line", "the end of the trace", "another line"));
            }
            (Some(run), Record::Position(place)) => run.position(&place)?,
            (Some(run), Record::Footer(footer)) => {
                run.footer(&footer, self.lines, last)?;
                self.closed = true;
            }
            (None, _) => return Err(Fail::new("line", "a header", "another line")),
            (Some(_), Record::Header(_)) => {
                return Err(Fail::new("line", "a position or the footer", "a header"));
            }
        }
        self.lines += 1;
        self.last = Some(digest);
        Ok(())
    }
}

/// Replays a whole trace, given by its lines; they are numbered from 1.
///
/// # Errors
/// As [`Replayer::line`] and [`Replayer::finish`].
pub fn replay<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Result<Summary, ReplayError> {
    let mut replayer = Replayer::default();
    for (number, line) in (1..).zip(lines) {
        replayer.line(number, line.as_ref())?;
    }
    replayer.finish()
}

fn fail_at(line: u64, fail: Fail) -> ReplayError {
    let Fail { field, expected, found } = fail;
    let (expected, found) = (shortened(expected), shortened(found));
    ReplayError { line, field, expected, found }
}

/// A trace decides how long its own values are; a message does not have to be.
fn shortened(mut text: String) -> String {
    const LONGEST: usize = 400;
    if text.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}

/// Takes a line apart, after its digest was compared.
fn parse(line: &str, last: Sum) -> Checked<(Record, Sum)> {
    if line.len() > MAX_LINE {
        let expected = format!("at most {MAX_LINE} bytes");
        return Err(Fail::new("line", expected, line.len()));
    }
    let parts = line.strip_suffix("\"}").and_then(|rest| rest.rsplit_once(",\"digest\":\""));
    let Some((open, found)) = parts else {
        return Err(Fail::new("line", "an object that ends with a digest", line));
    };
    let body = format!("{open}}}");
    let digest = last.then(&body);
    same("digest", &digest.to_string().as_str(), &found)?;
    let record: Record =
        serde_json::from_str(&body).map_err(|error| Fail::new("line", "a record", error))?;
    // One way to write a record: no spare blanks, no leading zeros, no fields out of order.
    let canonical = record.body();
    if canonical != body {
        return Err(Fail::new("line", canonical, body));
    }
    Ok((record, digest))
}

impl Running {
    fn new(header: Header) -> Checked<Self> {
        same("format", &FORMAT, &header.format.as_str())?;
        same("version", &VERSION, &header.version)?;
        if header.vocab as usize > MAX_VOCAB {
            return Err(Fail::new("vocab", "at most 2^24", header.vocab));
        }
        let mut named = std::collections::HashSet::new();
        let mut sequences = Vec::with_capacity(header.sequences.len());
        for opening in &header.sequences {
            let Opening { sequence, prompt_len, start, .. } = opening;
            if !named.insert(sequence.0) {
                return Err(Fail::new("sequences", "each sequence once", sequence));
            }
            if prompt_len.0 == 0 || start.0 < prompt_len.0 || start.0 >= header.context.0 {
                let expected = format!("1 ≤ prompt_len ≤ start < {}", header.context);
                let found = format!("{prompt_len} and {start}");
                return Err(Fail::new("sequences", expected, found));
            }
            let done = start.0 - prompt_len.0 >= opening.max_tokens.0;
            sequences.push(Sequence {
                rounds: 0,
                committed: start.0,
                tokens: Vec::new(),
                finish: done.then_some(FinishReason::Length),
            });
        }
        let mut run = Self {
            header,
            sequences,
            turns: VecDeque::new(),
            open: None,
            rounds: 0,
            by_origin: [0; 3],
            choices: Choices::default(),
            overlap: 0.0,
            judged: 0,
        };
        run.turns = run.next_pass();
        Ok(run)
    }

    /// The sequences of the next pass: the first that have not ended, as many as share one.
    fn next_pass(&self) -> VecDeque<usize> {
        let open = (0..self.sequences.len()).filter(|&i| self.sequences[i].finish.is_none());
        open.take(COMPANY).collect()
    }

    fn position(&mut self, place: &Position) -> Checked {
        let Some(&index) = self.turns.front() else {
            return Err(Fail::new("line", "the footer, all sequences have ended", "a position"));
        };
        let (opening, sequence) = (&self.header.sequences[index], &mut self.sequences[index]);
        let open = self.open.get_or_insert(Open {
            round_start: sequence.committed,
            offset: 0,
            walk: Walk::START,
        });
        same("sequence", &opening.sequence, &place.sequence)?;
        same("round", &Text(sequence.rounds), &place.round)?;
        same("round_start", &Text(open.round_start), &place.round_start)?;
        same("offset", &open.offset, &place.offset)?;
        let seed = Seed { seed: self.header.seed.0, sequence: opening.sequence.0 };
        let at = At {
            rule: self.header.verifier,
            vocab: self.header.vocab,
            full: self.header.full,
            noise: RoundNoise { seed, round_start: open.round_start },
            place,
        };
        let Held { last, overlap } = at.check(&mut open.walk, &mut self.choices)?;
        if place.origin == Source::Unusable && sequence.finish.is_none() {
            return Err(Fail::new("origin", "a token's, for the text goes on", "unusable"));
        }
        same("kept", &(place.token.is_some() && sequence.finish.is_none()), &place.kept)?;
        if let (true, Some(token)) = (place.kept, place.token) {
            sequence.commit(token, place.finish, opening, self.header.context.0)?;
            self.by_origin[place.origin as usize] += 1;
            if let Some(overlap) = overlap {
                self.overlap += overlap;
                self.judged += 1;
            }
        } else {
            same("finish", &None, &place.finish)?;
        }
        if last {
            sequence.rounds += 1;
            self.rounds += 1;
            self.open = None;
            self.turns.pop_front();
            if self.turns.is_empty() {
                self.turns = self.next_pass();
            }
        } else {
            let next = open.offset.checked_add(1);
            open.offset = next.ok_or_else(|| Fail::new("offset", "below 2^32 − 1", u32::MAX))?;
        }
        Ok(())
    }

    fn footer(&mut self, footer: &Footer, lines: u64, last: Sum) -> Checked {
        if self.open.is_some() {
            return Err(Fail::new("line", "the rest of the round", "the footer"));
        }
        same("lines", &Text(lines), &footer.lines)?;
        let closing = |(opening, sequence): (&Opening, &Sequence)| Closing {
            sequence: opening.sequence,
            rounds: Text(sequence.rounds),
            tokens: Text(sequence.tokens.len() as u64),
            finish: sequence.finish,
        };
        let sequences = self.header.sequences.iter().zip(&self.sequences);
        let closings: Vec<Closing> = sequences.map(closing).collect();
        same("sequences", &closings, &footer.sequences)?;
        same("last", &Text(last), &footer.last)
    }

    fn summary(self, lines: u64) -> Summary {
        let header = self.header;
        let sequence = |(opening, sequence): (&Opening, Sequence)| ReplayedSequence {
            sequence: opening.sequence.0,
            tokens: sequence.tokens,
            finish: sequence.finish,
        };
        Summary {
            verifier: match header.verifier {
                Rule::Rejection => "rejection",
                Rule::Block => "block",
                Rule::Coupled => "coupled",
            },
            contract: header.contract,
            seed: header.seed.0,
            full: header.full,
            lines,
            rounds: self.rounds,
            drafted: self.by_origin[Source::Draft as usize],
            residual: self.by_origin[Source::Residual as usize],
            bonus: self.by_origin[Source::Bonus as usize],
            choices: self.choices,
            alpha: (self.judged > 0).then(|| self.overlap / self.judged as f64),
            sequences: header.sequences.iter().zip(self.sequences).map(sequence).collect(),
        }
    }
}

impl Sequence {
    fn commit(
        &mut self,
        token: u32,
        finish: Option<FinishReason>,
        opening: &Opening,
        context: u64,
    ) -> Checked {
        // Below the context when the header was read, or when the last token was committed.
        self.committed += 1;
        self.tokens.push(Token(token));
        let by_limits = finish_by_limits(opening, context, self.committed, Some(token));
        // A stop string is the caller's to see; only EOS goes before it.
        let stopped = finish == Some(FinishReason::Stop) && by_limits != Some(FinishReason::Eos);
        if !stopped {
            same("finish", &by_limits, &finish)?;
        }
        self.finish = finish;
        Ok(())
    }
}

/// Why a continuation with so many generated and committed tokens has ended, if nobody stopped it:
/// the order of reasons is that of [`Session`](crate::Session).
fn finish_by_limits(
    opening: &Opening,
    context: u64,
    committed: u64,
    last: Option<u32>,
) -> Option<FinishReason> {
    let generated = committed.saturating_sub(opening.prompt_len.0);
    if last.is_some_and(|last| opening.eos.contains(&last)) {
        Some(FinishReason::Eos)
    } else if generated >= opening.max_tokens.0 {
        Some(FinishReason::Length)
    } else if committed >= context {
        Some(FinishReason::Context)
    } else {
        None
    }
}
