//! Two documents of `bench --json` side by side.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Of one device, or of several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Document {
    One { results: Vec<Speed> },
    Several { runs: Vec<Document> },
}

impl Document {
    fn results(self) -> Vec<Speed> {
        match self {
            Self::One { results } => results,
            Self::Several { runs } => runs.into_iter().flat_map(Self::results).collect(),
        }
    }
}

/// What tells one result from another, and its speed.
#[derive(Debug, Deserialize)]
struct Speed {
    device: String,
    model: String,
    draft: Option<String>,
    temperature: f64,
    gamma: serde_json::Value,
    tokens_per_second: f64,
}

impl Speed {
    fn is_like(&self, other: &Self) -> bool {
        (&self.device, &self.model, &self.draft) == (&other.device, &other.model, &other.draft)
            && self.temperature == other.temperature
            && self.gamma == other.gamma
    }
}

pub(super) fn run(a: &Path, b: &Path) -> Result<()> {
    let (old, new) = (read(a)?, read(b)?);
    let mut out = io::stdout().lock();
    let mut found = false;
    for before in &old {
        let Some(after) = new.iter().find(|after| after.is_like(before)) else { continue };
        if !found {
            writeln!(
                out,
                "{:>8} {:>11} {:>6} {:>10} {:>10} {:>6}",
                "device", "temperature", "length", "A", "B", "B/A"
            )?;
        }
        found = true;
        let length = before.gamma.to_string().replace('"', "");
        let (slow, fast) = (before.tokens_per_second, after.tokens_per_second);
        let ratio = fast / slow;
        let at = before.temperature;
        let device = &before.device;
        writeln!(out, "{device:>8} {at:>11} {length:>6} {slow:>10.0} {fast:>10.0} {ratio:>6.2}")?;
    }
    ensure!(found, "{} and {} have no result in common", a.display(), b.display());
    Ok(out.flush()?)
}

fn read(path: &Path) -> Result<Vec<Speed>> {
    let name = || path.display().to_string();
    let text = fs::read(path).with_context(name)?;
    let document = serde_json::from_slice::<Document>(&text);
    let document = document.with_context(|| format!("{}: no document of bench", name()))?;
    Ok(document.results())
}
