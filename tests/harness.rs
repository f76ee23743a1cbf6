//! Runs the program and takes its results apart.
//!
//! Every run through here must end by itself, with exit code 0, 1 or 2, must not panic, and must not
//! say the same thing twice in a message.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

/// A command line in the making.
#[derive(Debug)]
pub(crate) struct Run {
    command: Command,
    stdin: Vec<u8>,
}

/// `draftproof` with these arguments, split at white space.
pub(crate) fn draftproof(words: &str) -> Run {
    let run = Run { command: Command::new(env!("CARGO_BIN_EXE_draftproof")), stdin: Vec::new() };
    run.words(words)
}

/// `draftproof generate` with these arguments, split at white space.
pub(crate) fn generate(words: &str) -> Run {
    draftproof("generate").words(words)
}

impl Run {
    /// More arguments, split at white space.
    pub(crate) fn words(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self
    }

    /// One argument as it is.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    // By reference: a temporary folder that moved in here would be gone before the run.
    pub(crate) fn model(self, folder: &(impl AsRef<Path> + ?Sized)) -> Self {
        self.arg("--model").arg(folder.as_ref())
    }

    pub(crate) fn draft(self, folder: &(impl AsRef<Path> + ?Sized)) -> Self {
        self.arg("--draft-model").arg(folder.as_ref())
    }

    pub(crate) fn ids(self, ids: &[u32]) -> Self {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        self.arg("--prompt-ids").arg(ids.join(","))
    }

    /// A variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: &OsStr) -> Self {
        self.command.env(name, value);
        self
    }

    /// What the program reads on standard input; nothing if this is not called.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// The bare command, for tests that hold its pipes themselves.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Runs to the end.
    pub(crate) fn run(self) -> Finished {
        let shown = format!("{:?}", self.command);
        let mut command = assert_cmd::Command::from_std(self.command);
        let output = command.write_stdin(self.stdin).timeout(Duration::from_secs(300)).output();
        Finished::new(shown, output.expect("the program runs"))
    }

    /// Runs and expects exit code 0.
    pub(crate) fn ok(self) -> Finished {
        let finished = self.run();
        assert_eq!(finished.code, 0, "{}: {}", finished.shown, finished.stderr);
        finished
    }

    /// Runs with `--json` and expects one object.
    pub(crate) fn json(self) -> Value {
        let mut objects = self.jsons();
        assert_eq!(objects.len(), 1);
        objects.remove(0)
    }

    /// Runs with `--json` and expects one object a line.
    pub(crate) fn jsons(self) -> Vec<Value> {
        self.arg("--json").ok().objects()
    }

    /// Runs and expects exit code 2, nothing on standard output, and a message with all of `needles`.
    pub(crate) fn fails(self, needles: &[&str]) {
        let finished = self.run();
        assert_eq!(finished.stdout, "", "{}", finished.shown);
        finished.failed(needles);
    }
}

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The command line.
    pub(crate) shown: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn new(shown: String, output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
        assert!(!stderr.contains("panicked"), "{shown}: {stderr}");
        for message in stderr.lines().filter(|line| line.starts_with("draftproof: ")) {
            let parts: Vec<&str> = message.split(": ").collect();
            assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "{shown}: {message}");
        }
        let code = output.status.code();
        let code = code.unwrap_or_else(|| panic!("{shown}: {}: {stderr}", output.status));
        assert!((0..=2).contains(&code), "{shown}: exit code {code}: {stderr}");
        let stdout = String::from_utf8(output.stdout).expect("text is UTF-8");
        Self { shown, code, stdout, stderr }
    }

    /// The lines of standard output as JSON.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let object = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        self.stdout.lines().map(object).collect()
    }

    /// Exit code 2 and a message with all of `needles`.
    pub(crate) fn failed(&self, needles: &[&str]) {
        let Self { shown, code, stderr, .. } = self;
        assert_eq!(*code, 2, "{shown}: {stderr}");
        for needle in needles {
            assert!(stderr.contains(needle), "{shown}: {needle:?} is not in {stderr}");
        }
    }
}

/// A checkpoint of crates/model/tests/golden.
pub(crate) fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("crates/model/tests/golden").join(name)
}

/// A JSON file of the repository.
pub(crate) fn read_json(path: impl AsRef<Path>) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The `tokens` of an object of `generate --json`.
pub(crate) fn tokens(object: &Value) -> Vec<u32> {
    ids(&object["tokens"])
}

/// A JSON list of ids.
pub(crate) fn ids(list: &Value) -> Vec<u32> {
    let id = |id: &Value| u32::try_from(id.as_u64().expect("an id")).expect("an id");
    list.as_array().unwrap_or_else(|| panic!("no list: {list}")).iter().map(id).collect()
}

/// The `text` of an object of `generate --json`.
pub(crate) fn text(object: &Value) -> &str {
    object["text"].as_str().unwrap_or_else(|| panic!("no text: {object}"))
}

/// Arguments that choose a drafter; the folder is for those that need a draft model.
pub(crate) fn with_drafter(run: Run, drafter: &str, draft: &Path) -> Run {
    let run = run.words("--drafter").arg(drafter);
    if drafter == "model" { run.draft(draft) } else { run }
}

pub(crate) const DRAFTERS: [&str; 3] = ["none", "ngram", "model"];
pub(crate) const RULES: [&str; 3] = ["rejection", "block", "coupled"];
