//! `draftproof noise`: what temperature 0 leaves to chance, here and behind any server.
//!
//! Greedy decoding is exact, the numbers it selects between are rounded. Another order of the same
//! sums changes their last bits, a near-tie flips, and the text forks. [`gaps`] are how near
//! decisions were, [`spread`] is how far logits move when only circumstances change, [`runs`] and
//! [`tree`] are what becomes of the text, and [`endpoint`] asks somebody else's server the same.

mod endpoint;
mod gaps;
mod local;
mod openai;
mod outcome;
mod page;
mod runs;
mod spread;
mod tables;
mod tree;

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    args::NoiseArguments,
    measure::OutFile,
    settings::{self, PROMPTS},
};

/// Exit code 1 is for a promise that was broken, or an experiment that is void.
pub(crate) fn run(arguments: &NoiseArguments) -> Result<bool> {
    // Minutes of work must not end at a folder that cannot be made.
    if let Some(folder) = &arguments.report {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    match &arguments.endpoint.endpoint {
        Some(url) => endpoint::run(arguments, url),
        None => local::run(arguments),
    }
}

/// The prompts as texts: the one typed, those of a file, or `most` of fable's.
fn prompts(arguments: &NoiseArguments, most: usize) -> Result<Vec<String>> {
    let text = match (&arguments.prompt, &arguments.prompts) {
        (Some(prompt), _) => return Ok(vec![prompt.clone()]),
        (None, Some(path)) => settings::read_text(path)?,
        (None, None) => PROMPTS.lines().take(most).collect::<Vec<_>>().join("\n"),
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let prompts: Vec<String> = lines.map(str::to_owned).collect();
    ensure!(!prompts.is_empty(), "--prompts: expected a prompt a line, found none");
    Ok(prompts)
}

/// Writes the document, every single output and the page into a folder.
fn write(folder: &Path, document: &Value, outputs: &[Value]) -> Result<()> {
    let file = |name: &str, text: &str| OutFile::create(&folder.join(name))?.finish(text);
    file("noise.json", &format!("{}\n", serde_json::to_string_pretty(document)?))?;
    write_outputs(folder, outputs)?;
    file("noise.html", &page::write(document))
}

/// Every single output, an object a line.
fn write_outputs(folder: &Path, outputs: &[Value]) -> Result<()> {
    let lines: String = outputs.iter().map(|output| format!("{output}\n")).collect();
    OutFile::create(&folder.join("outputs.jsonl"))?.finish(&lines)
}

/// Prints what was asked for.
fn print(arguments: &NoiseArguments, document: &Value, lines: &[String]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{document}")?;
    } else {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if let Some(folder) = &arguments.report {
            writeln!(out, "report: {}", folder.join("noise.html").display())?;
        }
    }
    Ok(out.flush()?)
}
