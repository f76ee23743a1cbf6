//! Traces: written by `generate --trace`, derived again by `draftproof replay`.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use draftproof_decode::{
    Session,
    error::ListenerError,
    session::JudgedRound,
    trace::{MAX_LINE, Recorder, Replayer, Run},
};

use crate::args::ReplayArguments;

/// A trace file being written.
pub(crate) struct Tape {
    path: PathBuf,
    file: BufWriter<File>,
    recorder: Recorder,
}

impl Tape {
    pub(crate) fn create(path: &Path, run: &Run<'_>, sessions: &[Session]) -> Result<Self> {
        let mut recorder = Recorder::new(run, sessions)?;
        let context = || format!("the trace {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(context)?);
        writeln!(file, "{}", recorder.header()).with_context(context)?;
        Ok(Self { path: path.into(), file, recorder })
    }

    pub(crate) fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        for line in self.recorder.round(round)? {
            writeln!(self.file, "{line}")
                .map_err(|error| format!("the trace {}: {error}", self.path.display()))?;
        }
        Ok(())
    }

    /// Writes the footer: without it a replay knows that the file was cut off.
    pub(crate) fn close(mut self, sessions: &[Session]) -> Result<()> {
        let footer = self.recorder.footer(sessions);
        writeln!(self.file, "{footer}")
            .and_then(|()| self.file.flush())
            .with_context(|| format!("the trace {}", self.path.display()))
    }
}

/// Exit code 1 is for a check that did not pass: here, a trace that does not hold.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<bool> {
    let path = &arguments.file;
    let context = || format!("the trace {}", path.display());
    let mut reader = BufReader::new(File::open(path).with_context(context)?);
    let mut replayer = Replayer::default();
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        // A file without line ends must not be read into memory whole.
        let limit = MAX_LINE as u64 + 1;
        if (&mut reader).take(limit).read_line(&mut line).with_context(context)? == 0 {
            break;
        }
        if let Err(error) = replayer.line(number, line.trim_end_matches(['\n', '\r'])) {
            eprintln!("draftproof: {}: {error}", path.display());
            return Ok(false);
        }
    }
    match replayer.finish() {
        Ok(summary) => writeln!(io::stdout(), "{summary}")?,
        Err(error) => {
            eprintln!("draftproof: {}: {error}", path.display());
            return Ok(false);
        }
    }
    Ok(true)
}
