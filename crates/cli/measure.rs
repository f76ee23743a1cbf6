//! What measuring needs: a clock, the cost of a pass, progress, and a file for the result.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, IsTerminal, Write},
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
    let known = |&token: &Token| if model.knows(token) { token } else { Token(0) };
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

/// The terminal's last line, while something long goes on; nothing where standard error is no
/// terminal.
#[derive(Debug)]
pub(crate) struct StatusLine {
    shown: Option<Instant>,
}

impl StatusLine {
    pub(crate) fn new() -> Self {
        Self { shown: io::stderr().is_terminal().then(Instant::now) }
    }

    /// Shows `text` now.
    pub(crate) fn show(&mut self, text: &dyn Display) {
        if let Some(shown) = &mut self.shown {
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
            *shown = Instant::now();
        }
    }

    /// Shows `text` unless another was shown a moment ago.
    pub(crate) fn refresh(&mut self, text: &dyn Display) {
        const EVERY: Duration = Duration::from_millis(100);
        if self.shown.is_some_and(|shown| shown.elapsed() >= EVERY) {
            self.show(text);
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// The middle of the values; the mean of the two middle ones if they are even in number.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
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
