//! Level `watermark`: how well marked text is told from other text, and what the mark costs.
//!
//! | study | question | decided by |
//! |---|---|---|
//! | false positives | is the p-value of text without a mark uniform? human, model and templated text, lengths 32 to 352, both hash variants, a fresh key each | e-value of counts |
//! | true positives | how much marked text is found at 1 %, by length, temperature, entropy and score? | more than half of it at the greatest length |
//! | speculation | do texts of mode `exact` with a draft score as those without one? | fair coins in pairs |
//! | fast | how much of the evidence does mode `fast` keep, under which key? | figures |
//! | edits | how much is left after substitution, deletion, insertion, mixing, cropping? | figures |
//! | depth | how many layers does it take? | figures |
//! | acceptance | α without a mark, in mode `exact`, in mode `fast`: the price | e-values of acceptances; fair coins in pairs |
//! | no signal | does greedy text get no verdict, and what becomes of near-deterministic text? | every greedy text |
//!
//! All text of the pair is drawn with top-k 100 (the paper's setting), and goes on past the end of a
//! story.
//!
//! **Fair coins in pairs.** Texts i of two arms are written under the same key from independent noise.
//! If their laws agree, which of the two scores higher is a fair coin given everything else, so counts
//! of heads have an exact law without any assumption about scores. One coin asks which score is
//! larger, another which is further from the middle of 120 earlier ones.

mod studies;
mod writing;

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    goodness::{Counts, Fit},
    model::Pair,
    plan::Level,
    progress::Progress,
    report::Check,
    toy::TUNED_FOR,
};

/// The rate of false positives that the studies are about.
pub const RATE: f64 = 0.01;

/// The lengths of texts, in tokens, those that fit the models' context.
pub const LENGTHS: [usize; 7] = [32, 64, 96, 128, 192, 256, 352];

/// A part of the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Study {
    /// Text without a mark.
    FalsePositives,
    /// Text with one.
    TruePositives,
    /// Mode `exact`, with a draft and without.
    Speculation,
    /// Mode `fast`.
    Fast,
    /// Marked text that was changed.
    Edits,
    /// Schemes of other depths.
    Depth,
    /// What a mark costs.
    Acceptance,
    /// Greedy and near-deterministic text.
    NoSignal,
}

impl Study {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::FalsePositives,
        Self::TruePositives,
        Self::Speculation,
        Self::Fast,
        Self::Edits,
        Self::Depth,
        Self::Acceptance,
        Self::NoSignal,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FalsePositives => "false positives",
            Self::TruePositives => "true positives",
            Self::Speculation => "speculation",
            Self::Fast => "fast",
            Self::Edits => "edits",
            Self::Depth => "depth",
            Self::Acceptance => "acceptance",
            Self::NoSignal => "no signal",
        }
    }

    /// Whether it is about drafts.
    #[must_use]
    pub fn needs_draft(self) -> bool {
        matches!(self, Self::Speculation | Self::Fast | Self::Acceptance)
    }

    /// The number of statistical checks it makes.
    #[must_use]
    pub fn tests(self) -> usize {
        match self {
            Self::FalsePositives => 4,
            Self::TruePositives => 1,
            Self::Speculation => 2,
            Self::Acceptance => 4,
            Self::Fast | Self::Edits | Self::Depth | Self::NoSignal => 0,
        }
    }
}

/// Curves of one plot, with the numbers that made them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it shows, in a few words.
    pub title: String,
    /// How to read it, and how many texts made it.
    pub caption: String,
    /// What runs to the right.
    pub x: String,
    /// What runs upwards.
    pub y: String,
    /// The curves.
    pub lines: Vec<Line>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What it is about.
    pub name: String,
    /// Its points, (x, y).
    pub points: Vec<(f64, f64)>,
}

impl Line {
    fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points }
    }
}

/// What a study found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Its checks, not judged yet.
    pub checks: Vec<Check>,
    /// Its plots.
    pub figures: Vec<Figure>,
}

impl Pair<'_> {
    /// Makes one study with about `samples` texts an arm.
    ///
    /// # Errors
    /// If the engine or a model fails, or the prompt leaves no room for 32 tokens.
    pub fn study(
        &mut self,
        study: Study,
        samples: u64,
        seed: u64,
        progress: &mut dyn Progress,
    ) -> Result<Findings, Error> {
        studies::make(self, study, samples, seed, progress)
    }
}

/// A check of counts against the law `p` of their cells.
fn counted(name: &str, p: &[f64], cells: Vec<u64>) -> Check {
    let counts = Counts { cells, impossible: 0 };
    let fit = Fit::new(p, &counts, TUNED_FOR);
    Check::fit(format!("watermark/{name}"), Level::Watermark, p, &counts.cells, &fit)
}

/// A check of coins that should be fair: heads where the first of a pair is larger; ties are no coins.
fn coins(name: &str, pairs: impl Iterator<Item = (f64, f64)>) -> Check {
    let (mut heads, mut tails) = (0, 0);
    for (first, second) in pairs {
        heads += u64::from(first > second);
        tails += u64::from(first < second);
    }
    counted(name, &[0.5, 0.5], vec![heads, tails])
}
