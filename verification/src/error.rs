//! What can go wrong: what was expected, what was found, where.

use draftproof_decode::{
    ModelError,
    sampler::{RowError, SettingError},
};

/// A failure of the suite itself; a check that does not pass is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(#[from] draftproof_decode::Error),
    /// A model failed while its law was walked.
    #[error("the model failed while its law was walked: {0}")]
    Model(#[from] ModelError),
    /// A row of the target has no law under the settings.
    #[error("the target's row after {position} tokens: {source}")]
    Row {
        /// The number of tokens before it.
        position: usize,
        /// What is wrong with it.
        source: RowError,
    },
    /// Settings that the contract refuses.
    #[error("a setting is out of range: {0}")]
    Setting(#[from] SettingError),
    /// A plan that cannot be run.
    #[error("{0}")]
    Plan(String),
    /// A line of samples that cannot be read.
    #[error("line {line} of the samples: {what}")]
    Sample {
        /// The line, from 1.
        line: usize,
        /// What was expected and found.
        what: String,
    },
    /// A report could not be written or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A report is not in the form that this version writes.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Reports that are not of one run.
    #[error("cannot merge reports: {0}")]
    Merge(String),
}
