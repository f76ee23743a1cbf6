//! What can go wrong between a folder of files and a model: where, what was expected, what was found.

use std::{io, path::PathBuf};

use crate::pair::Difference;
use draftproof_kernels::burn::check::DeviceFault;

/// A failure to load a model, or to use two of them together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that must be there and is not.
    #[error("{place}: expected {expected}, found no such file")]
    Missing {
        /// The folder.
        place: String,
        /// The file, or the files of which one must be there.
        expected: String,
    },
    /// Something about a file as a whole.
    #[error("{file}: expected {expected}, found {found}")]
    File {
        /// The file.
        file: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A file that is not the JSON it should be.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// Where and why it does not parse.
        source: serde_json::Error,
    },
    /// A field of a JSON file or an entry of GGUF metadata that does not fit, or that asks for what is not supported.
    #[error("{file}: {field}: expected {expected}, found {found}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// What is supported.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A tensor that does not fit the configuration.
    #[error("{file}: tensor {tensor}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// Shape or type that the configuration asks for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A text that the tokenizer cannot encode.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// Messages for which a chat template raises an exception.
    #[error("{file}: the chat template refuses the messages: {reason}")]
    ChatRefused {
        /// The template's file.
        file: String,
        /// What the template says.
        reason: String,
    },
    /// A chat template that does not parse, fails, or does not end.
    #[error("{file}: the chat template fails: {reason}")]
    ChatTemplate {
        /// The template's file.
        file: String,
        /// What fails, and in which line.
        reason: String,
    },
    /// What a device computed could not be read back.
    #[error("the device failed: {0}")]
    Backend(String),
    /// A device that this build does not have.
    #[error(
        "device {name:?}: expected one of {available}, which this build contains (it lacks {})",
        if missing.is_empty() { "none" } else { missing }
    )]
    Device {
        /// The name asked for.
        name: String,
        /// The kinds of device that this build contains.
        available: String,
        /// The kinds it lacks.
        missing: String,
    },
    /// A device that this machine does not have.
    #[error("device {name:?}: expected one of the {kind} devices of this machine, found {offered}")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The kind of device.
        kind: &'static str,
        /// Those that are there.
        offered: String,
    },
    /// A device that is there and does not open.
    #[error("device {name:?} ({what}) cannot be used: {message}")]
    DeviceOpen {
        /// The name asked for.
        name: String,
        /// What it is.
        what: String,
        /// What its library said.
        message: String,
    },
    /// A device that computes wrongly.
    #[error("device {name:?} ({adapter}) is refused, since it computes wrongly: {fault}")]
    DeviceFault {
        /// The name asked for.
        name: String,
        /// The hardware's own name.
        adapter: String,
        /// What it computed and what it should have.
        fault: DeviceFault,
    },
    /// A worker that is not there, lets nobody in, or has another model.
    #[error("the worker at {url}: {message}")]
    Remote {
        /// Its address.
        url: String,
        /// What is wrong.
        message: String,
    },
    /// A built-in model that does not exist.
    #[error("built-in model {name:?}: expected one of {available}")]
    Builtin {
        /// The name asked for.
        name: String,
        /// The names that exist.
        available: String,
    },
    /// A synthetic model that does not exist.
    #[error("synthetic model {name:?}: expected one of {available}")]
    Synthetic {
        /// The name asked for.
        name: String,
        /// The names that exist.
        available: String,
    },
    /// A setting of loops, of guidance or of a copy that does not fit the model.
    #[error("{model}: {setting}: expected {expected}, found {found}")]
    Setting {
        /// Name of the model.
        model: String,
        /// What was set.
        setting: &'static str,
        /// What fits.
        expected: String,
        /// What was asked for.
        found: String,
    },
    /// A draft whose token ids mean something else than the target's, and that has too few of its
    /// strings under other ids.
    #[error(
        "the draft {draft} cannot be used with the target {target}: {difference}, and only \
         {shared} strings are in both, where {needed} are needed (half of the smaller vocabulary)"
    )]
    PairToken {
        /// Name of the target.
        target: String,
        /// Name of the draft.
        draft: String,
        /// The first id that differs.
        difference: Difference,
        /// How many strings are in both.
        shared: usize,
        /// How many would do.
        needed: usize,
    },
    /// Two models of which one has no tokenizer, so that nothing but sizes can be compared.
    #[error(
        "the draft {draft} cannot be used with the target {target}: without a tokenizer on both \
         sides only sizes can be compared, and the target has {target_vocab} ids, the draft \
         {draft_vocab}"
    )]
    PairSize {
        /// Name of the target.
        target: String,
        /// Name of the draft.
        draft: String,
        /// Usable ids of the target.
        target_vocab: usize,
        /// Usable ids of the draft.
        draft_vocab: usize,
    },
}

impl Error {
    pub(crate) fn file(file: &str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::File { file: file.into(), expected: expected.into(), found: found.into() }
    }

    pub(crate) fn field(
        file: &str,
        field: &str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        Self::Field {
            file: file.into(),
            field: field.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    pub(crate) fn json(file: &str, source: serde_json::Error) -> Self {
        Self::Json { file: file.into(), source }
    }
}
