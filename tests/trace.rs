//! `generate --trace` and `replay`: what was decided can be derived again, and no edit passes.

use std::fs;

use crate::harness::{RULES, draftproof, generate};

fn trace(words: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.jsonl");
    let length = if words.contains("--max-tokens") { "" } else { "--max-tokens 30" };
    generate("--seed 5 --draft-len 3")
        .words(length)
        .words(words)
        .arg("--trace")
        .arg(&file)
        .arg("The old king")
        .ok();
    (folder, file)
}

#[test]
fn every_rule_and_drafter_leaves_a_trace_that_holds() {
    for rule in RULES {
        // More continuations than share a pass, too.
        for words in [
            "--n 35 --max-tokens 4",
            "",
            "--drafter ngram",
            "--drafter none",
            "--n 3",
            "--trace-full --top-k 20",
        ] {
            let (_folder, file) = trace(&format!("--verify {rule} {words}"));
            let replayed = draftproof("replay").arg(&file).ok();
            assert!(replayed.stdout.contains(rule), "{}", replayed.stdout);
        }
    }
}

/// Ten edits, each found, and its line named.
#[test]
fn edits_fail_and_name_their_line() {
    let (folder, file) = trace("--temperature 0.8");
    let text = fs::read_to_string(&file).expect("a trace");
    let lines: Vec<&str> = text.lines().collect();
    let find = |needle: &str| {
        let found = lines.iter().position(|line| line.contains(needle));
        found.unwrap_or_else(|| panic!("no line has {needle}"))
    };
    let replace = |needle: &str, new: &str| {
        let at = find(needle);
        let mut edited: Vec<String> = lines.iter().map(|&line| line.into()).collect();
        edited[at] = edited[at].replacen(needle, new, 1);
        (edited, at + 1)
    };
    let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    let mut swapped = owned(&lines);
    swapped.swap(3, 4);
    let mut dropped = owned(&lines);
    dropped.remove(6);
    let mut doubled = owned(&lines);
    doubled.insert(5, doubled[4].clone());
    let cut = owned(&lines[..lines.len() - 1]);
    let edits = [
        replace("\"passed\":true", "\"passed\":false"),
        replace("\"passed\":false", "\"passed\":true"),
        replace("\"origin\":\"residual\"", "\"origin\":\"bonus\""),
        replace("\"kept\":true", "\"kept\":false"),
        replace("\"lane\":\"accept\"", "\"lane\":\"residual\""),
        replace("\"round_start\":\"", "\"round_start\":\"1"),
        replace("\"q_total\":\"", "\"q_total\":\"1"),
        (swapped, 4),
        (dropped, 7),
        (doubled, 6),
    ];
    for (i, (edited, line)) in edits.into_iter().enumerate() {
        let path = folder.path().join(format!("edit-{i}.jsonl"));
        fs::write(&path, edited.join("\n") + "\n").expect("a file");
        let run = draftproof("replay").arg(&path).run();
        assert_eq!(run.code, 1, "edit {i}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(&format!("line {line},")), "edit {i}: {}", run.stderr);
        assert_eq!(run.stdout, "");
    }
    let path = folder.path().join("cut.jsonl");
    fs::write(&path, cut.join("\n") + "\n").expect("a file");
    assert_eq!(draftproof("replay").arg(&path).run().code, 1);
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in [("empty", ""), ("text", "Once upon a time\n"), ("json", "{}\n")] {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("a file");
        let run = draftproof("replay").arg(&path).run();
        assert_eq!(run.code, 1, "{name}: {}", run.stderr);
    }
    draftproof("replay").arg(folder.path().join("none")).fails(&["none"]);
    let nowhere = folder.path().join("no/such/folder/trace.jsonl");
    generate("--max-tokens 1").arg("--trace").arg(nowhere).arg("Once").fails(&["the trace"]);
}
