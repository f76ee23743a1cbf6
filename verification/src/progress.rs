//! [`Progress`]: how far a run is, told to whoever wants to show it.

use crate::{mutants::MutantResult, report::Check};

/// Hears how a run goes on; all methods do nothing unless written.
pub trait Progress {
    /// Task `index` of `total` begins.
    fn begin(&mut self, task: &str, index: usize, total: usize) {
        let _ = (task, index, total);
    }

    /// `done` of `all` samples of the task are drawn.
    fn advance(&mut self, done: u64, all: u64) {
        let _ = (done, all);
    }

    /// A check is done. Its verdict is final only in the report, since Holm's rule looks at all of
    /// them.
    fn check(&mut self, check: &Check) {
        let _ = check;
    }

    /// A mutant was tried.
    fn mutant(&mut self, mutant: &MutantResult) {
        let _ = mutant;
    }
}

/// Hears nothing.
impl Progress for () {}
