//! How far the logits of one text spread when only the circumstances of its passes change.
//!
//! The text is fixed: every launch reads the same tokens, so that rows can be compared one by one,
//! also behind a place where greedy decoding would have left it.

use anyhow::{Result, bail};
use draftproof_decode::{LanguageModel, Token, lm::Pass, lm::SequenceId};
use draftproof_model::{
    Model,
    machine::{self, Kernels},
};
use serde::Serialize;

use super::gaps::Top;

/// How the passes over a text are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) kernels: Kernels,
    pub(super) weights: Held,
    pub(super) threads: usize,
    /// New tokens of each pass, behind the prompt; 0: all tokens in one pass.
    pub(super) rows: usize,
    /// Other sequences in each pass.
    pub(super) company: usize,
}

/// How the weights lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// As in the file, where the kernels read that type.
    Stored,
    /// As f32 with the values of the file.
    Widened,
    /// As f32, rounded to the nearest bf16 values.
    Rounded,
    /// Wherever another device wants them.
    Elsewhere(usize),
}

/// The logits that decide each generated token of a text, under a launch.
pub(super) fn rows(
    model: &mut Model,
    launch: Launch,
    prompt: &[Token],
    generated: &[Token],
) -> Result<Vec<Vec<f32>>> {
    let before = machine::kernels();
    machine::set_kernels(launch.kernels);
    let found = machine::with_threads(launch.threads, || {
        pass_over(model.language_model(), launch, prompt, generated)
    });
    machine::set_kernels(before);
    found?
}

fn pass_over(
    lm: &mut dyn LanguageModel,
    launch: Launch,
    prompt: &[Token],
    generated: &[Token],
) -> Result<Vec<Vec<f32>>> {
    let mut sequences: Vec<SequenceId> = Vec::new();
    let found = (|| {
        for _ in 0..=launch.company {
            sequences.push(lm.open()?);
        }
        let Some((_, read)) = generated.split_last() else { return Ok(Vec::new()) };
        let mut rows = Vec::with_capacity(generated.len());
        if launch.rows == 0 {
            let text = [prompt, read].concat();
            step(lm, &sequences, &text, read.len() + 1, &mut rows)?;
            return Ok(rows);
        }
        step(lm, &sequences, prompt, 1, &mut rows)?;
        for tokens in read.chunks(launch.rows) {
            step(lm, &sequences, tokens, tokens.len(), &mut rows)?;
        }
        Ok(rows)
    })();
    sequences.into_iter().for_each(|sequence| lm.close(sequence));
    found
}

/// One pass of the first sequence, in the middle of the others, which read other tokens.
fn step(
    lm: &mut dyn LanguageModel,
    sequences: &[SequenceId],
    tokens: &[Token],
    rows: usize,
    into: &mut Vec<Vec<f32>>,
) -> Result<()> {
    let vocab = lm.vocab();
    let other = |i: usize| -> Vec<Token> {
        let shifted = |token: &Token| Token::at((token.index() + i) % vocab);
        tokens.iter().map(shifted).collect()
    };
    let all: Vec<Vec<Token>> = (0..sequences.len()).map(other).collect();
    let mut batch: Vec<Pass<'_>> = sequences
        .iter()
        .zip(&all)
        .map(|(&sequence, tokens)| Pass { sequence, tokens, rows })
        .collect();
    let place = batch.len() / 2;
    batch.swap(0, place);
    let found = lm.forward(&batch)?;
    into.extend((0..rows).map(|row| found[place].row(row).to_vec()));
    Ok(())
}

/// The greedy text of a prompt, one row a pass, and the rows that decided it.
pub(super) fn greedy(
    model: &mut Model,
    launch: Launch,
    prompt: &[Token],
    count: usize,
) -> Result<(Vec<Token>, Vec<Vec<f32>>)> {
    let eos = model.eos().to_vec();
    let before = machine::kernels();
    machine::set_kernels(launch.kernels);
    let found = machine::with_threads(launch.threads, || {
        let lm = model.language_model();
        let sequence = lm.open()?;
        let found = (|| {
            let (mut text, mut rows) = (Vec::new(), Vec::new());
            let mut new = prompt.to_vec();
            while text.len() < count {
                let found = lm.forward(&[Pass { sequence, tokens: &new, rows: 1 }])?;
                let row = found[0].row(0).to_vec();
                if let Some(id) = row.iter().position(|z| z.is_nan() || *z == f32::INFINITY) {
                    bail!("the logit of id {id} is {}; there is no text to measure", row[id]);
                }
                let token = Top::of(&row).first;
                rows.push(row);
                text.push(token);
                new = vec![token];
                if eos.contains(&token) {
                    break;
                }
            }
            Ok((text, rows))
        })();
        lm.close(sequence);
        found
    });
    machine::set_kernels(before);
    found?
}

/// Sums of differences of logits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    max: f64,
    squares: f64,
    logits: u64,
}

impl Difference {
    fn of(a: &[f32], b: &[f32]) -> Self {
        let mut sums = Self { logits: a.len() as u64, ..Self::default() };
        for (&a, &b) in a.iter().zip(b) {
            // Two banned ids are equal; infinity less infinity would not be a number.
            let difference = if a == b { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
            // A NaN on one side is as far as can be.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            sums.max = sums.max.max(difference);
            sums.squares += difference * difference;
        }
        sums
    }

    fn add(&mut self, other: Self) {
        self.max = self.max.max(other.max);
        self.squares += other.squares;
        self.logits += other.logits;
    }

    fn rms(&self) -> f64 {
        (self.squares / self.logits.max(1) as f64).sqrt()
    }
}

/// A greedy decision that the other launch makes otherwise.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flip {
    pub(super) prompt: usize,
    /// Generated tokens before it.
    pub(super) position: usize,
    /// Of the first launch.
    pub(super) gap: f64,
    /// The largest difference between the two rows.
    pub(super) spread: f64,
    /// The ids taken by the two launches.
    pub(super) tokens: [u32; 2],
    pub(super) before: String,
}

/// Two launches of the same texts.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) name: &'static str,
    pub(super) first: Launch,
    pub(super) second: Launch,
    /// In words, what differs.
    pub(super) change: String,
    /// Whether the two must agree to the last bit.
    pub(super) promised: bool,
    all: Difference,
    /// By the number of tokens before the row: up to 1, 2, 4, 8…
    contexts: Vec<Difference>,
    decisions: u64,
    pub(super) flips: Vec<Flip>,
}

impl Comparison {
    pub(super) fn new(
        name: &'static str,
        change: String,
        [first, second]: [Launch; 2],
        promised: bool,
    ) -> Self {
        Self {
            name,
            first,
            second,
            change,
            promised,
            all: Difference::default(),
            contexts: Vec::new(),
            decisions: 0,
            flips: Vec::new(),
        }
    }

    /// Adds the rows of one text; `before` shows the text before a position.
    pub(super) fn add(
        &mut self,
        (prompt, length): (usize, usize),
        [first, second]: [&[Vec<f32>]; 2],
        before: &dyn Fn(usize) -> String,
    ) {
        for (position, (a, b)) in first.iter().zip(second).enumerate() {
            let difference = Difference::of(a, b);
            self.all.add(difference);
            let bucket = (length + position).next_power_of_two().ilog2() as usize;
            if self.contexts.len() <= bucket {
                self.contexts.resize(bucket + 1, Difference::default());
            }
            self.contexts[bucket].add(difference);
            self.decisions += 1;
            let (one, other) = (Top::of(a), Top::of(b));
            if one.first != other.first {
                self.flips.push(Flip {
                    prompt,
                    position,
                    gap: one.gap,
                    spread: difference.max,
                    tokens: [one.first.0, other.first.0],
                    before: before(position),
                });
            }
        }
    }

    pub(super) fn report(self) -> Spread {
        let contexts = self.contexts.iter().enumerate().filter(|(_, sums)| sums.logits > 0);
        // Where two logits of a row move by at most s each, a gap above 2s cannot close.
        let explained = self.flips.iter().all(|flip| flip.gap <= 2.0 * flip.spread);
        Spread {
            name: self.name,
            change: self.change,
            kernels: kernels_name(self.first.kernels),
            promised_zero: self.promised,
            max: self.all.max,
            rms: self.all.rms(),
            by_context: contexts
                .map(|(bucket, sums)| ByContext {
                    tokens_up_to: 1 << bucket,
                    max: sums.max,
                    rms: sums.rms(),
                })
                .collect(),
            decisions: self.decisions,
            flips: self.flips,
            flips_within_twice_the_spread: explained,
            passed: explained && (!self.promised || self.all.max == 0.0),
        }
    }
}

pub(super) fn kernels_name(kernels: Kernels) -> &'static str {
    match kernels {
        Kernels::RowInvariant => "row-invariant",
        Kernels::General => "general",
    }
}

/// What came out of a [`Comparison`].
#[derive(Clone, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) name: &'static str,
    pub(super) change: String,
    /// Of the first launch.
    pub(super) kernels: &'static str,
    pub(super) promised_zero: bool,
    /// The largest difference of two logits.
    pub(super) max: f64,
    /// The root of the mean square difference over all logits of all rows.
    pub(super) rms: f64,
    pub(super) by_context: Vec<ByContext>,
    pub(super) decisions: u64,
    pub(super) flips: Vec<Flip>,
    /// Whether every flip has a gap of at most twice the largest difference of its row.
    pub(super) flips_within_twice_the_spread: bool,
    pub(super) passed: bool,
}

/// The rows with up to so many tokens before them, and more than half as many.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ByContext {
    pub(super) tokens_up_to: usize,
    pub(super) max: f64,
    pub(super) rms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCH: Launch = Launch {
        kernels: Kernels::RowInvariant,
        weights: Held::Stored,
        threads: 1,
        rows: 1,
        company: 0,
    };

    fn spread(promised: bool, first: &[Vec<f32>], second: &[Vec<f32>]) -> Spread {
        let mut both = Comparison::new("rows", String::new(), [LAUNCH; 2], promised);
        both.add((0, 3), [first, second], &|position| format!("before {position}"));
        both.report()
    }

    #[test]
    fn equal_rows_have_no_spread() {
        let rows = [vec![1.0, f32::NEG_INFINITY, 2.0], vec![0.0, 1.0, -1.0]];
        let found = spread(true, &rows, &rows);
        assert!(found.passed && found.max == 0.0 && found.rms == 0.0 && found.flips.is_empty());
        assert_eq!((found.decisions, found.by_context.len()), (2, 1));
    }

    #[test]
    fn a_near_tie_flips_within_twice_the_spread() {
        let first = [vec![1.0, 0.9, 0.0], vec![5.0, 0.0, 0.0]];
        let second = [vec![0.94, 0.96, 0.0], vec![5.0, 0.0, 0.0]];
        let found = spread(false, &first, &second);
        let [flip] = &found.flips[..] else { panic!("{found:?}") };
        assert_eq!((flip.position, flip.tokens, &flip.before[..]), (0, [0, 1], "before 0"));
        assert!(found.passed && (flip.gap - 0.1).abs() < 1e-6 && (flip.spread - 0.06).abs() < 1e-6);
        assert!((found.rms - (2.0_f64 * 0.0036 / 6.0).sqrt()).abs() < 1e-6, "{}", found.rms);
        assert!(!spread(true, &first, &second).passed, "a promise that was broken");
    }

    #[test]
    fn a_logit_on_one_side_only_is_as_far_as_can_be() {
        let second = [vec![1.0, f32::NAN]];
        assert_eq!(spread(false, &[vec![1.0, 0.0]], &second).max, f64::INFINITY);
    }
}
