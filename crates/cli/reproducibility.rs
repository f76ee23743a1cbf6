//! What stays the same across what, what is only equal in law, and what is not claimed.
//!
//! Every line is a test of the same name in `tests/reproducibility.rs`, which fails on a line it does
//! not know.

use serde::Serialize;

/// How much holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Holds {
    /// The same tokens (or ids), every time.
    Same,
    /// Other tokens, of the same law.
    EqualInLaw,
    /// Neither; measured by `draftproof noise`.
    NotClaimed,
}

impl Holds {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Same => "the same",
            Self::EqualInLaw => "equal in law only",
            Self::NotClaimed => "not claimed",
        }
    }
}

/// One line of the statement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// What may change.
    pub(crate) across: &'static str,
    pub(crate) holds: Holds,
    /// Under which conditions.
    pub(crate) when: &'static str,
}

const fn line(name: &'static str, across: &'static str, holds: Holds, when: &'static str) -> Line {
    Line { name, across, holds, when }
}

/// The statement.
pub(crate) const LINES: [Line; 10] = [
    line(
        "runs",
        "runs",
        Holds::Same,
        "same seed, models, settings, rule, drafter and draft length, on one device",
    ),
    line("seeds", "seeds", Holds::EqualInLaw, "temperature above 0"),
    line("threads", "numbers of threads", Holds::Same, "row-invariant kernels"),
    line(
        "batch",
        "company in a pass (continuation i of any --n above i)",
        Holds::Same,
        "row-invariant kernels",
    ),
    line(
        "greedy-drafts",
        "drafters, draft lengths and rules",
        Holds::Same,
        "temperature 0, row-invariant kernels",
    ),
    line(
        "coupled-drafts",
        "drafters and draft lengths",
        Holds::Same,
        "rule coupled, row-invariant kernels",
    ),
    line(
        "sampled-drafts",
        "drafters, draft lengths and rules",
        Holds::EqualInLaw,
        "rules rejection and block, temperature above 0",
    ),
    line("tokenizer", "runs and threads: the ids of a text", Holds::Same, "always"),
    line(
        "devices",
        "devices and machines",
        Holds::NotClaimed,
        "each text follows the law of the logits that its own device computed",
    ),
    line(
        "general-kernels",
        "rows in a pass, with general kernels",
        Holds::NotClaimed,
        "a row may differ in its last bits; a near-tie may then fall otherwise",
    ),
];
