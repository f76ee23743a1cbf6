//! Lines that nobody's recorder wrote: an error, never a panic.

use draftproof_decode::trace::{Replayer, replay};
use proptest::prelude::*;

use crate::{
    json::{body, rechain},
    setup::{Drafts, RULES, SETTINGS, Setup},
};

fn bodies(rule: usize, full: bool) -> Vec<String> {
    let drafts = Drafts::Model;
    let setup = Setup { verifier: RULES[rule], drafts, settings: SETTINGS[0].1(), seed: 5 };
    setup.run(full).lines.iter().map(|line| body(line)).collect()
}

/// The message for a trace in which the first `from` of line `at` became `to`, digests computed anew.
fn message(bodies: &[String], at: usize, from: &str, to: &str) -> String {
    let mut bodies = bodies.to_vec();
    assert!(bodies[at].contains(from), "{from} in {}", bodies[at]);
    bodies[at] = bodies[at].replacen(from, to, 1);
    let error = replay(rechain(&bodies, at)).expect_err("refused");
    assert_eq!(error.line, at as u64 + 1);
    error.to_string()
}

#[test]
fn lines_that_are_no_lines() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"position\":{deep},\"digest\":\"{}\"}}", "0".repeat(64));
    let texts =
        ["", "{", "null", "{}", "\"}", ",\"digest\":\"\"}", "{,\"digest\":\"é\"}", &deep, &nested];
    for text in texts {
        let error = Replayer::default().line(7, text).expect_err("no line");
        assert_eq!(error.line, 7);
        assert!(error.to_string().len() < 2000, "{}", error.to_string().len());
    }
    let chained = rechain(&["{}".into(), format!("{{\"position\":{deep}}}")], usize::MAX);
    for text in &chained {
        let error = Replayer::default().line(1, text).expect_err("no record");
        assert_eq!(error.line, 1);
    }
    assert_eq!(
        replay([""; 0]).expect_err("nothing").to_string(),
        "line 1, line: expected a header, found the end of the trace"
    );
}

/// A number has one spelling, a record one text.
#[test]
fn only_the_canonical_text_is_read() {
    let bodies = bodies(0, false);
    let round = "\"round\":\"0\"";
    for other in
        ["\"00\"", "\"+0\"", "\"-0\"", "\"0x0\"", "\" 0\"", "\"\"", "0", "\"\\u0030\"", "null"]
    {
        message(&bodies, 1, round, &format!("\"round\":{other}"));
    }
    message(&bodies, 1, round, &format!("{round},{round}"));
    message(&bodies, 1, round, &format!(" {round}"));
    message(&bodies, 1, round, &format!("{round},\"extra\":1"));
    message(&bodies, 1, "\"offset\":0", "\"offset\":0.0");
    message(&bodies, 1, "\"offset\":0", "\"offset\":4294967296");
    message(&bodies, 1, "\"offset\":0", "\"offset\":-1");
}

/// Numbers at the edge of their types.
#[test]
fn extreme_numbers() {
    let u64_max = u64::MAX.to_string();
    let u256_max = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    for rule in 0..3 {
        let bodies = bodies(rule, true);
        for (at, line) in bodies.iter().enumerate() {
            let mut seen = std::collections::HashSet::new();
            for field in crate::json::fields(line) {
                // One element of an array stands for all.
                if !seen.insert(field.path) || line[field.value.clone()].starts_with(['{', '[']) {
                    continue;
                }
                for number in [u64_max.as_str(), u256_max, &format!("{u256_max}0"), "0"] {
                    for form in [
                        format!("\"{number}\""),
                        number.to_owned(),
                        format!("\"{number}/{number}\""),
                    ] {
                        let mut bodies = bodies.clone();
                        bodies[at].replace_range(field.value.clone(), &form);
                        // Whatever it says, it says it without a panic.
                        let _ = replay(rechain(&bodies, at));
                    }
                }
            }
        }
    }
}

#[test]
fn messages_name_the_place() {
    let bodies = bodies(0, false);
    let text = message(&bodies, 1, "\"sequence\":\"3\"", "\"sequence\":\"4\"");
    assert_eq!(text, "line 2, sequence: expected \"3\", found \"4\"");
    let at = bodies.iter().position(|line| line.contains("\"passed\":true")).expect("a coin");
    let text = message(&bodies, at, "\"passed\":true", "\"passed\":false");
    assert!(text.starts_with(&format!("line {}, coin.passed: expected true", at + 1)), "{text}");
    let tape = rechain(&bodies, usize::MAX);
    let mut changed = tape.clone();
    changed[1] = changed[1].replacen("\"kept\":true", "\"kept\":null", 1);
    let text = replay(&changed).expect_err("refused").to_string();
    assert!(text.starts_with("line 2, digest: expected "), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any byte of any line changed to any other character: never a panic, and with the digests as
    /// they were never accepted.
    #[test]
    fn any_byte(rule in 0usize..3, line: prop::sample::Index, at: prop::sample::Index, to: char) {
        let bodies = bodies(rule, true);
        let lines = rechain(&bodies, usize::MAX);
        let line = line.index(lines.len());
        let change = |text: &String| {
            let at = at.index(text.len() - 1);
            let changed = format!("{}{to}{}", &text[..at], &text[at + 1..]);
            (changed != *text).then_some(changed)
        };
        if let (Some(raw), Some(hidden)) = (change(&lines[line]), change(&bodies[line])) {
            let mut changed = lines.clone();
            changed[line] = raw;
            let error = replay(&changed).expect_err("a byte was changed");
            prop_assert_eq!(error.line, line as u64 + 1);
            let mut changed = bodies.clone();
            changed[line] = hidden;
            let _ = replay(rechain(&changed, line));
        }
    }
}
