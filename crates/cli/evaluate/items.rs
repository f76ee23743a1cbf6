//! Questions and pieces of text, as they are read, and the two splits they fall into.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::Token;
use draftproof_model::Model;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::settings;

/// One line of `--questions`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Choice(ChoiceLine),
    Exact(ExactLine),
}

#[derive(Debug, Deserialize)]
struct ChoiceLine {
    question: String,
    choices: Vec<String>,
    answer: Answer,
}

#[derive(Debug, Deserialize)]
struct ExactLine {
    prompt: String,
    answer: String,
}

/// The right choice: its place from 0 on, or its text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Place(usize),
    Text(String),
}

/// A question.
#[derive(Clone, Debug)]
pub(super) enum Question {
    /// Whichever choice is the likeliest continuation is the answer.
    Choice { question: String, choices: Vec<String>, answer: usize },
    /// The first line of what the model writes is the answer.
    Exact { prompt: String, answer: String },
}

/// Reads the questions of a JSONL file, each with the side of the split that its line falls on.
pub(super) fn questions(path: &Path, share: f64) -> Result<Vec<(Side, Question)>> {
    let file = path.display();
    let text = settings::read_text(path)?;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let question = question(line).with_context(|| format!("{file}, line {}", i + 1))?;
        found.push((Side::of(line.trim().as_bytes(), share), question));
    }
    ensure!(!found.is_empty(), "{file}: expected a question a line, found none");
    Ok(found)
}

fn question(line: &str) -> Result<Question> {
    // First as any JSON: where that fails, its message says at which column.
    let value: serde_json::Value = serde_json::from_str(line).context("expected JSON")?;
    let line = serde_json::from_value(value).ok().context(
        "expected {\"question\": TEXT, \"choices\": [TEXT, …], \"answer\": TEXT or place from 0 on} \
         or {\"prompt\": TEXT, \"answer\": TEXT}",
    )?;
    let ChoiceLine { question, choices, answer } = match line {
        Line::Choice(line) => line,
        Line::Exact(ExactLine { prompt, answer }) => {
            ensure!(!answer.trim().is_empty(), "expected an answer, found an empty one");
            return Ok(Question::Exact { prompt, answer });
        }
    };
    ensure!(choices.len() >= 2, "expected at least two choices, found {}", choices.len());
    if choices.iter().any(|choice| choice.trim().is_empty()) {
        bail!("expected choices with a text, found an empty one");
    }
    let place = match &answer {
        Answer::Place(place) => Some(*place).filter(|&place| place < choices.len()),
        Answer::Text(text) => choices.iter().position(|choice| choice == text),
    };
    let Some(answer) = place else {
        let answer = match answer {
            Answer::Place(place) => place.to_string(),
            Answer::Text(text) => format!("{text:?}"),
        };
        bail!("the answer {answer} is none of the {} choices", choices.len());
    };
    Ok(Question::Choice { question, choices, answer })
}

/// Cuts a text into pieces of `window` tokens at most, each with what stands before it: the token
/// that begins a document, where the model has one.
pub(super) fn windows(
    text: &str,
    target: &Model,
    window: usize,
    most: usize,
    share: f64,
) -> Result<Vec<(Side, Vec<Token>)>> {
    let Some(tokenizer) = target.tokenizer() else {
        bail!("{} has no tokenizer; --text needs one", target.name());
    };
    let begun = tokenizer.encode(text)?;
    let bos = tokenizer.bos().filter(|bos| begun.first() == Some(bos));
    let mut tokens = tokenizer.encode_bare(text)?;
    tokens.truncate(most);
    let found = tokens.len();
    ensure!(found >= 2, "--text: expected a text of at least two tokens, found {found}");
    let window = window.min(target.config().transformer.context);
    let pieces = tokens.chunks((window - usize::from(bos.is_some())).max(1)).map(|piece| {
        let bytes: Vec<u8> = piece.iter().flat_map(|token| token.0.to_le_bytes()).collect();
        (Side::of(&bytes, share), bos.into_iter().chain(piece.iter().copied()).collect())
    });
    Ok(pieces.collect())
}

/// Which split an item belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// A setting is chosen on it.
    Choosing,
    /// The chosen one is evaluated on it.
    Held,
}

impl Side {
    /// By the item's content alone (its SHA-256), so that order and company do not matter: about
    /// `share` of all items are for choosing.
    fn of(item: &[u8], share: f64) -> Self {
        let digest = Sha256::digest(item);
        let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        if f64::from(number) < share * 2_f64.powi(32) { Self::Choosing } else { Self::Held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_keeps_its_side() {
        let side = |item: &str| Side::of(item.as_bytes(), 0.5);
        // SHA-256 of "abc" begins with ba78, that of "" with e3b0, that of "a" with ca97, of "c" 2e7d.
        assert_eq!(
            ["abc", "", "a", "c"].map(side),
            [Side::Held, Side::Held, Side::Held, Side::Choosing]
        );
        assert_eq!(Side::of(b"abc", 0.73), Side::Choosing);
        let items = (0..1000_u32).map(|i| Side::of(&i.to_le_bytes(), 0.25));
        let choosing = items.filter(|side| *side == Side::Choosing).count();
        assert!((200..300).contains(&choosing), "{choosing}");
    }

    #[test]
    fn an_answer_is_a_text_or_a_place() {
        for answer in ["\"b\"", "1"] {
            let line = format!(r#"{{"question": "q", "choices": ["a", "b"], "answer": {answer}}}"#);
            let found = question(&line).expect("a question");
            assert!(matches!(found, Question::Choice { answer: 1, .. }), "{found:?}");
        }
        for answer in ["\"c\"", "2", "-1", "null"] {
            let line = format!(r#"{{"question": "q", "choices": ["a", "b"], "answer": {answer}}}"#);
            question(&line).expect_err(answer);
        }
    }
}
