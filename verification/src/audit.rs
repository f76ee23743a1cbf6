//! Audit: samples of *another* engine against the exact law.
//!
//! The samples are continuations of one prompt, drawn independently, as JSON lines: an object with
//! `tokens` (ids) or, if none of the lines has them, with `text`. The law is walked from the target
//! model and the settings that the other engine claims to use.
//!
//! By ids a sample may be longer than L; its first L tokens count. By text each sample must be
//! exactly L tokens of the engine long (or ended by EOS before, which the text does not show), and
//! all ways to write a text with L tokens are one cell.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
};

use draftproof_decode::{LanguageModel, Token};
use serde::Deserialize;

use crate::{
    Error,
    goodness::{Cells, Counts, Fit, LEAST_EXPECTED},
    model::{FreshRows, Place, Question, TextLaw},
    plan::Level,
    report::{Check, Report, Subject},
    toy::TUNED_FOR,
};

/// Samples of another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Samples {
    /// As ids.
    Tokens(Vec<Vec<Token>>),
    /// As text.
    Text(Vec<String>),
}

#[derive(Deserialize)]
struct Line {
    tokens: Option<Vec<u32>>,
    text: Option<String>,
}

impl Samples {
    /// Reads JSON lines; empty lines are skipped.
    ///
    /// ```
    /// use draftproof_verification::audit::Samples;
    /// let samples = Samples::read(&b"{\"tokens\":[5,6],\"text\":\"a b\"}\n\n{\"tokens\":[7,8]}\n"[..])?;
    /// assert_eq!(samples.len(), 2);
    /// # Ok::<(), draftproof_verification::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a line is no such object, lines of both kinds are mixed, or there is none.
    pub fn read(reader: impl BufRead) -> Result<Self, Error> {
        let (mut tokens, mut texts) = (Vec::new(), Vec::new());
        let mut lines = 0;
        for (number, line) in reader.lines().enumerate() {
            let wrong = |what: String| Error::Sample { line: number + 1, what };
            let line = line.map_err(|error| wrong(error.to_string()))?;
            if line.trim().is_empty() {
                continue;
            }
            lines += 1;
            let parsed: Line =
                serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
            match (parsed.tokens, parsed.text) {
                (Some(ids), _) => tokens.push(ids.into_iter().map(Token).collect()),
                (None, Some(text)) => texts.push(text),
                (None, None) => {
                    return Err(wrong("expected `tokens` or `text`; found neither".to_owned()));
                }
            }
            if !tokens.is_empty() && !texts.is_empty() {
                let what = "expected `tokens` in all lines or in none".to_owned();
                return Err(wrong(what));
            }
        }
        match lines {
            0 => Err(Error::Sample { line: 0, what: "expected samples; found none".to_owned() }),
            _ if texts.is_empty() => Ok(Self::Tokens(tokens)),
            _ => Ok(Self::Text(texts)),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Text(texts) => texts.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The text of tokens, as the other engine prints them; needed for samples that are text.
pub type Decode<'a> = &'a dyn Fn(&[Token]) -> String;

/// Tests samples against the law of `question` under `target`: one check, and its report.
///
/// # Errors
/// If the model fails, a row has no law, a sample by ids is shorter than L without an EOS, or texts
/// come without `decode`.
pub fn audit(
    name: &str,
    question: &Question<'_>,
    target: &mut dyn LanguageModel,
    samples: &Samples,
    decode: Option<Decode<'_>>,
) -> Result<Report, Error> {
    const MOST_CELLS: f64 = 128.0;
    let least = (LEAST_EXPECTED / samples.len().max(1) as f64).max(1.0 / MOST_CELLS);
    let mut rows = FreshRows::default();
    let law = TextLaw::walk(question, &mut rows, target, least)?;
    let (p, counts) = match samples {
        Samples::Tokens(tokens) => {
            let counts = by_ids(question, &mut rows, target, &law, tokens)?;
            (law.cells().probabilities().to_vec(), counts)
        }
        Samples::Text(texts) => {
            let decode = decode.ok_or_else(|| {
                Error::Plan("samples of text need the target's tokenizer".to_owned())
            })?;
            by_text(question, &mut rows, target, &law, texts, decode, least)?
        }
    };
    let fit = Fit::new(&p, &counts, TUNED_FOR);
    let mut check = Check::fit(name.to_owned(), Level::Model, &p, &counts.cells, &fit);
    check.pooled = Some(law.pooled());
    let mut report = Report {
        subject: Subject {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            level: Level::Model,
            pair: Some(name.to_owned()),
            audited: true,
            ..Subject::default()
        },
        checks: vec![check],
        ..Report::default()
    };
    report.judge();
    Ok(report)
}

fn by_ids(
    question: &Question<'_>,
    rows: &mut FreshRows,
    target: &mut dyn LanguageModel,
    law: &TextLaw,
    samples: &[Vec<Token>],
) -> Result<Counts, Error> {
    let mut counts = Counts::new(law.cells().probabilities().len());
    let mut possible = BTreeMap::new();
    for (line, sample) in samples.iter().enumerate() {
        let end = (1..=sample.len()).find(|&len| question.ends(&sample[..len]));
        let Some(end) = end else {
            return Err(Error::Sample {
                line: line + 1,
                what: format!(
                    "expected {} tokens or an EOS; found {} tokens",
                    question.length,
                    sample.len()
                ),
            });
        };
        let text = &sample[..end];
        match law.place(text) {
            Place::Impossible => counts.add(None),
            Place::Cell(cell) => counts.add(Some(cell)),
            Place::Beyond { cell, checked } => {
                let mut all = true;
                for i in checked..end {
                    let known = possible.get(&text[..=i]).copied();
                    let this = match known {
                        Some(known) => known,
                        None => {
                            let law = question.law(rows, target, &text[..i])?;
                            let this = law.weight(text[i]) > 0;
                            possible.insert(text[..=i].to_vec(), this);
                            this
                        }
                    };
                    all &= this;
                }
                counts.add(all.then_some(cell));
            }
        }
    }
    Ok(counts)
}

/// The cells of texts: those of the leaves that are told apart, each with the probability of *all*
/// its spellings, and one for every other text.
fn by_text(
    question: &Question<'_>,
    rows: &mut FreshRows,
    target: &mut dyn LanguageModel,
    law: &TextLaw,
    samples: &[String],
    decode: Decode<'_>,
    least: f64,
) -> Result<(Vec<f64>, Counts), Error> {
    let shown = |text: &[Token]| {
        let last = text.last().is_some_and(|last| question.eos.contains(last));
        decode(&text[..text.len() - usize::from(last)])
    };
    let texts: BTreeSet<String> = law.leaves().map(|leaf| shown(&leaf)).collect();
    let mut masses = BTreeMap::new();
    for text in texts {
        let mass = mass_of(question, rows, target, &text, decode)?;
        masses.insert(Some(text), mass);
    }
    // Every sample is some text of L tokens, so all that is left is the rest.
    let rest = 1.0 - masses.values().sum::<f64>();
    if rest > 1e-12 {
        masses.insert(None, rest);
    }
    let cells = Cells::new(&masses, least);
    let mut counts = Counts::new(cells.probabilities().len());
    for sample in samples {
        let own = cells.of(&Some(sample.clone()));
        counts.add(own.or_else(|| cells.of(&None)));
    }
    Ok((cells.probabilities().to_vec(), counts))
}

/// The probability of all sequences of L tokens (or ended by EOS) that decode to `text`.
fn mass_of(
    question: &Question<'_>,
    rows: &mut FreshRows,
    target: &mut dyn LanguageModel,
    text: &str,
    decode: Decode<'_>,
) -> Result<f64, Error> {
    let mut mass = 0.0;
    let mut open = vec![(Vec::new(), 1.0)];
    while let Some((tokens, probability)) = open.pop() {
        let law = question.law(rows, target, &tokens)?;
        for (token, weight) in law.support() {
            let longer = [&tokens[..], &[token]].concat();
            let share = probability * (weight as f64 / law.total() as f64);
            let eos = question.eos.contains(&token);
            let shown = decode(if eos { &tokens } else { &longer });
            if question.ends(&longer) {
                mass += if shown == text { share } else { 0.0 };
            } else if text.starts_with(complete(&shown)) {
                open.push((longer, share));
            }
        }
    }
    Ok(mass)
}

/// The text up to a character that the next token may complete.
fn complete(text: &str) -> &str {
    text.trim_end_matches('\u{fffd}')
}
