//! What measuring needs: a clock, the cost of a pass, progress, and a file for the result.

use std::{
    fs::{self, File},
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use draftproof_decode::{LanguageModel, Token, lm::Pass, stats::Clock};

/// Wall time since it was made.
#[derive(Debug)]
pub(crate) struct WallClock(Instant);

impl WallClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The median time of a pass of `rows` new tokens after `prefix`, each asked for its logits.
///
/// At least 3 passes, and up to 15 while they stay within a fifth of a second together.
pub(crate) fn pass_time(
    model: &mut dyn LanguageModel,
    prefix: &[Token],
    rows: usize,
) -> Result<Duration> {
    // A draft may know fewer ids than the text holds; which they are does not change the time.
    let known = |&token: &Token| if token.index() < model.vocab() { token } else { Token(0) };
    let prefix: Vec<Token> = prefix.iter().map(known).collect();
    let sequence = model.open()?;
    let timed = (|| {
        // The new tokens must fit the context behind the prefix.
        let held = prefix.len().min(model.context().saturating_sub(rows));
        let new: Vec<Token> = prefix.iter().copied().cycle().take(rows).collect();
        if held > 0 {
            model.forward(&[Pass { sequence, tokens: &prefix[..held], rows: 0 }])?;
        }
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < 3 || (times.len() < 15 && start.elapsed().as_millis() < 200) {
            let pass = Instant::now();
            model.forward(&[Pass { sequence, tokens: &new, rows }])?;
            times.push(pass.elapsed());
            model.truncate(sequence, held)?;
        }
        times.sort();
        Ok(times[times.len() / 2])
    })();
    model.close(sequence);
    timed
}

/// A count on the terminal's last line while something long goes on; nothing where standard error
/// is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    done: usize,
    all: usize,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(what: &'static str, all: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, done: 0, all, shown: terminal.then(Instant::now) }
    }

    pub(crate) fn step(&mut self) {
        const EVERY: Duration = Duration::from_millis(100);
        self.done += 1;
        let Some(shown) = &mut self.shown else { return };
        if shown.elapsed() >= EVERY {
            *shown = Instant::now();
            let _ =
                write!(std::io::stderr(), "\r{} of {} {}\x1b[K", self.done, self.all, self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The cost of drafting a token and of a verify pass, in target passes of one row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// One token of the draft.
    pub(crate) c: Option<f64>,
    /// A verify pass with the run's mean number of rows.
    pub(crate) v_verify: Option<f64>,
}

/// A file that appears whole, once it is finished; that it can be written is known at once.
#[derive(Debug)]
pub(crate) struct OutFile {
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
}

impl OutFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create(&part).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.into(), part, file: Some(file) })
    }

    pub(crate) fn finish(mut self, text: &str) -> Result<()> {
        let written = match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).and_then(|()| file.sync_all()),
            None => Ok(()),
        };
        let moved = written.and_then(|()| fs::rename(&self.part, &self.path));
        moved.with_context(|| self.path.display().to_string())?;
        self.file = None;
        Ok(())
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.part);
        }
    }
}
