//! Changes to the text of a line, field by field, in the order the fields stand in; and the chain of
//! digests, computed once more by somebody who wants to hide a change.

use std::ops::Range;

use num_bigint::BigInt;
use sha2::{Digest, Sha256};

/// A value in a line of JSON.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Names joined by dots; `[]` for any element of an array.
    pub(crate) path: String,
    /// Where the value stands.
    pub(crate) value: Range<usize>,
    /// Where its name stands, with the quotes; empty for elements.
    name: Range<usize>,
}

/// All values of a compact JSON text, objects and arrays too.
pub(crate) fn fields(text: &str) -> Vec<Field> {
    let mut found = Vec::new();
    let end = walk(text, 0, String::new(), 0..0, &mut found);
    assert_eq!(end, text.len());
    found
}

fn walk(
    text: &str,
    start: usize,
    path: String,
    name: Range<usize>,
    found: &mut Vec<Field>,
) -> usize {
    let bytes = text.as_bytes();
    let string_end = |at: usize| at + 2 + text[at + 1..].find('"').expect("a closing quote");
    let slot = found.len();
    found.push(Field { path: path.clone(), value: start..start, name });
    let end = match bytes[start] {
        open @ (b'{' | b'[') => {
            let mut at = start + 1;
            while !matches!(bytes[at], b'}' | b']') {
                let (name, inner) = if open == b'{' {
                    let name = at..string_end(at);
                    at = name.end + 1;
                    let inner = &text[name.start + 1..name.end - 1];
                    let dot = if path.is_empty() { "" } else { "." };
                    (name, format!("{path}{dot}{inner}"))
                } else {
                    (0..0, format!("{path}[]"))
                };
                at = walk(text, at, inner, name, found);
                if bytes[at] == b',' {
                    at += 1;
                }
            }
            at + 1
        }
        b'"' => string_end(start),
        _ => start + text[start..].find([',', '}', ']']).expect("an end"),
    };
    found[slot].value.end = end;
    end
}

/// A line with one change.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) path: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) line: String,
}

const KEY: &str = r#"{"seed":"1","sequence":"3","round_start":"3","offset":0,"lane":"residual"}"#;

/// Every change of one value that keeps its kind, and the loss of every member.
pub(crate) fn edits(line: &str) -> Vec<Edit> {
    let mut edits = Vec::new();
    for field in fields(line) {
        let (path, from) = (field.path.clone(), &line[field.value.clone()]);
        let mut edit = |range: Range<usize>, to: &str| {
            let line = format!("{}{to}{}", &line[..range.start], &line[range.end..]);
            edits.push(Edit { path: path.clone(), from: from.into(), to: to.into(), line });
        };
        for to in others(&path, from) {
            edit(field.value.clone(), &to);
        }
        if !field.name.is_empty() {
            let after = &line[field.value.end..];
            let range = match after.starts_with(',') {
                true => field.name.start..field.value.end + 1,
                false if line[..field.name.start].ends_with(',') => {
                    field.name.start - 1..field.value.end
                }
                false => field.name.start..field.value.end,
            };
            edit(range, "");
        }
    }
    edits
}

fn others(path: &str, value: &str) -> Vec<String> {
    let last = path.rsplit('.').next().unwrap_or(path);
    let words: &[&str] = match last {
        "origin" => &["draft", "residual", "bonus", "rejected"],
        "lane" => &["draft", "accept", "residual", "bonus"],
        "finish" => &["eos", "stop", "length", "context"],
        "verifier" => &["rejection", "block", "coupled"],
        _ => &[],
    };
    let words: Vec<String> =
        words.iter().map(|word| format!("\"{word}\"")).filter(|word| word != value).collect();
    let inner = value.trim_matches('"');
    let quoted = |text: String| if value.starts_with('"') { format!("\"{text}\"") } else { text };
    let near = |digits: &str| -> Vec<String> {
        let number: BigInt = digits.parse().expect("digits");
        [&number + 1i32, number - 1i32]
            .into_iter()
            .filter(|other: &BigInt| *other >= BigInt::ZERO)
            .map(|other| other.to_string())
            .collect()
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if inner.len() == 64 {
        let other = if inner.starts_with('0') { "1" } else { "0" };
        return vec![quoted(format!("{other}{}", &inner[1..]))];
    }
    if let Some((a, b)) = inner.split_once('/').filter(|_| value.starts_with('"')) {
        let (numerators, denominators) = (near(a), near(b));
        let numerators = numerators.into_iter().map(|a| format!("\"{a}/{b}\""));
        return numerators
            .chain(denominators.into_iter().map(|b| format!("\"{a}/{b}\"")))
            .collect();
    }
    match value {
        "true" => vec!["false".into()],
        "false" => vec!["true".into()],
        "null" if last == "noise" => vec![KEY.into()],
        "null" => words,
        _ if last == "noise" => vec!["null".into()],
        _ if is_digits(inner) => near(inner).into_iter().map(quoted).collect(),
        _ if !words.is_empty() => words,
        _ if value.starts_with('"') => vec![quoted(format!("{inner}x"))],
        _ => Vec::new(),
    }
}

/// The line without its digest.
pub(crate) fn body(line: &str) -> String {
    let (open, _) = line.rsplit_once(",\"digest\":\"").expect("a digest");
    format!("{open}}}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computes all digests anew, the footer's copy included unless the footer itself is the lie.
pub(crate) fn rechain(bodies: &[String], lie: usize) -> Vec<String> {
    let mut last = [0; 32];
    let link = |(i, body): (usize, &String)| {
        let mut body = body.clone();
        if let Some(at) = body.find("\"last\":\"").filter(|_| i != lie) {
            body.replace_range(at + 8..at + 72, &hex(&last));
        }
        last = Sha256::new().chain_update(last).chain_update(&body).finalize().into();
        format!("{},\"digest\":\"{}\"}}", &body[..body.len() - 1], hex(&last))
    };
    bodies.iter().enumerate().map(link).collect()
}
