//! [`Summary`]: what a replayed trace has told.

use std::fmt;

use crate::{FinishReason, Token};

/// How many choices were derived again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Draws whose token is that of the noise.
    pub draws: u64,
    /// Coins that fell as the noise says.
    pub coins: u64,
    /// Races: run again from a full trace, else only their keys are checked.
    pub races: u64,
    /// Draws, coins and races of one possible outcome, which spend no noise.
    pub certain: u64,
}

/// One continuation as its trace tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedSequence {
    /// Its noise sequence.
    pub sequence: u64,
    /// The tokens it committed in this run.
    pub tokens: Vec<Token>,
    /// Why it ended; `None` if the run was interrupted.
    pub finish: Option<FinishReason>,
}

/// What a trace that holds has told, and what was checked; displayed, it says both in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The verifier's name.
    pub verifier: &'static str,
    /// The hash of the sampler contract that the trace is stamped with; taken as given.
    pub contract: Option<String>,
    /// The run's seed.
    pub seed: u64,
    /// Whether the trace holds whole laws.
    pub full: bool,
    /// The number of lines.
    pub lines: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// Tokens committed that were drafted.
    pub drafted: u64,
    /// Tokens committed that replaced a rejected one.
    pub residual: u64,
    /// Tokens committed after a whole block.
    pub bonus: u64,
    /// The choices derived again.
    pub choices: Choices,
    /// The mean of Σ min(p, q) over judged drafted tokens, from a full trace.
    pub alpha: Option<f64>,
    /// The continuations.
    pub sequences: Vec<ReplayedSequence>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choices { draws, coins, races, certain } = self.choices;
        writeln!(
            f,
            "{} lines: {} sequences, {} rounds, {} tokens ({} drafted, {} residual, {} bonus); \
             verifier {}, seed {}",
            self.lines,
            self.sequences.len(),
            self.rounds,
            self.drafted + self.residual + self.bonus,
            self.drafted,
            self.residual,
            self.bonus,
            self.verifier,
            self.seed
        )?;
        writeln!(
            f,
            "derived again from the seed: {draws} draws and {coins} coins; {certain} choices had one \
             outcome; digests, noise keys, order, ends and counts hold"
        )?;
        match (self.full, races) {
            (true, _) => write!(f, "derived again from whole laws: every weight, bound and total")?,
            (false, 0) => write!(
                f,
                "only a full trace lets replay derive: the bounds and totals of the draws, and \
                 what residuals they were from"
            )?,
            (false, _) => write!(
                f,
                "only a full trace lets replay derive: who won {races} races, whose keys hold"
            )?,
        }
        match (self.full, races) {
            (true, 0) => writeln!(f, ", the residuals")?,
            (true, _) => writeln!(f, ", {races} races")?,
            (false, _) => writeln!(f)?,
        }
        write!(
            f,
            "taken as given: the laws p and q (they need the models), the contract hash, the prompt, \
             stop strings"
        )
    }
}
