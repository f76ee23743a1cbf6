//! What `contract` says is reproducible: each line of its statement is one of these checks, and a
//! line without a check fails.

use std::fs;

use serde_json::Value;

use crate::harness::{draftproof, generate, tokens};

const PROMPT: &str = "The old mill";

fn text(words: &str) -> Vec<u32> {
    tokens(&generate("--ignore-eos --max-tokens 32").words(words).arg(PROMPT).json())
}

fn runs() {
    for rule in ["rejection", "block", "coupled"] {
        let words = format!("--seed 5 --verify {rule} --draft-len 3");
        assert_eq!(text(&words), text(&words), "{rule}");
    }
}

/// Exit code of an audit of two tokens of 500 texts made with these words, against temperature 1.
fn audited(words: &str) -> i32 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("samples.jsonl");
    let run = generate("--ignore-eos --max-tokens 2 --n 500 --json").words(words).arg(PROMPT);
    fs::write(&file, run.ok().stdout).expect("written");
    let audit = draftproof("audit --length 2 --ignore-eos --temperature 1 --samples").arg(&file);
    audit.arg(PROMPT).run().code
}

fn seeds() {
    assert_ne!(text("--seed 1"), text("--seed 2"));
    assert_eq!((audited("--seed 1"), audited("--seed 2")), (0, 0));
    assert_eq!(audited("--seed 1 --temperature 0.3"), 1, "the audit can fail");
}

fn threads() {
    for words in ["--seed 5", "--temperature 0", "--verify coupled --seed 5"] {
        let one = text(&format!("{words} --draft-len 4 --threads 1"));
        for threads in [2, 3] {
            let words = format!("{words} --draft-len 4 --threads {threads}");
            assert_eq!(text(&words), one, "{words}");
        }
    }
}

fn batch() {
    let company = |n: usize| -> Vec<Vec<u32>> {
        let run = generate("--seed 5 --max-tokens 24 --draft-len 3 --n").arg(n.to_string());
        run.arg(PROMPT).jsons().iter().map(tokens).collect()
    };
    let (alone, five) = (company(1), company(5));
    assert_eq!(alone[0], five[0]);
    assert_eq!(company(3)[..], five[..3]);
    assert_ne!(five[0], five[1], "each has noise of its own");
}

const DRAFTS: [&str; 4] =
    ["--draft-len 1", "--draft-len 4", "--draft-len auto", "--drafter ngram --draft-len 3"];

fn greedy_drafts() {
    let plain = text("--temperature 0 --drafter none");
    for draft in DRAFTS {
        for rule in ["rejection", "block", "coupled"] {
            let words = format!("--temperature 0 --verify {rule} {draft}");
            assert_eq!(text(&words), plain, "{words}");
        }
    }
}

fn coupled_drafts() {
    let plain = text("--verify coupled --seed 5 --drafter none");
    for draft in DRAFTS {
        let words = format!("--verify coupled --seed 5 {draft}");
        assert_eq!(text(&words), plain, "{words}");
    }
}

fn sampled_drafts() {
    // Other tokens: the line does not claim too little…
    assert_ne!(text("--seed 5 --draft-len 4"), text("--seed 5 --drafter none"));
    assert_ne!(text("--seed 5 --draft-len 4"), text("--seed 5 --draft-len 4 --verify block"));
    // …of the same law.
    for words in ["--drafter none", "--draft-len 2", "--draft-len 2 --verify block"] {
        assert_eq!(audited(&format!("--seed 9 {words}")), 0, "{words}");
    }
}

/// Of a prompt's ids: their number and their hash, as a trace has them.
fn ids(prompt: &str, threads: &str) -> (Value, Value) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let run = generate("--temperature 0 --max-tokens 1 --threads").arg(threads).arg("--trace");
    run.arg(file.path()).arg(prompt).ok();
    let trace = fs::read_to_string(file.path()).expect("written");
    let header: Value = serde_json::from_str(trace.lines().next().expect("a line")).expect("JSON");
    let sequence = &header["header"]["sequences"][0];
    assert!(sequence["start_sha256"].is_string(), "{header}");
    (sequence["prompt_len"].clone(), sequence["start_sha256"].clone())
}

fn tokenizer() {
    let prompt = "Ein naïver „Tèst“ — 12,5 % of\tthe  king's 龍 🙂\n\nend";
    let one = ids(prompt, "1");
    for threads in ["1", "2", "3", "4"] {
        assert_eq!(ids(prompt, threads), one, "{threads}");
    }
    assert_ne!(ids("Ein naiver Test", "1").1, one.1, "the hash is of the ids");
}

/// The only device of a build says the same again; nothing is said of two.
fn devices() {
    assert_eq!(text("--seed 5 --device cpu"), text("--seed 5 --device cpu"));
}

/// A spread that is not 0: the reason why nothing is claimed.
fn general_kernels() {
    let found = draftproof("noise --runs 2 --max-tokens 8").arg(PROMPT).json();
    let spreads = found["spread"].as_array().expect("a list");
    let moved = spreads.iter().any(|spread| {
        spread["kernels"] == "general"
            && spread["name"] == "rows"
            && spread["max"].as_f64().is_some_and(|max| max > 0.0)
    });
    assert!(moved, "{found}");
}

#[test]
fn each_line_of_the_statement_holds() {
    let objects = draftproof("contract --json").ok().objects();
    let lines = objects[0]["reproducibility"].as_array().expect("a statement");
    let checks: [(&str, &str, fn()); 10] = [
        ("runs", "same", runs),
        ("seeds", "equal-in-law", seeds),
        ("threads", "same", threads),
        ("batch", "same", batch),
        ("greedy-drafts", "same", greedy_drafts),
        ("coupled-drafts", "same", coupled_drafts),
        ("sampled-drafts", "equal-in-law", sampled_drafts),
        ("tokenizer", "same", tokenizer),
        ("devices", "not-claimed", devices),
        ("general-kernels", "not-claimed", general_kernels),
    ];
    let stated: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or_default();
            (text("name"), text("holds"))
        })
        .collect();
    let known: Vec<(&str, &str)> = checks.iter().map(|&(name, holds, _)| (name, holds)).collect();
    assert_eq!(stated, known);
    let card = draftproof("contract").ok().stdout;
    for line in lines {
        assert!(card.contains(line["across"].as_str().expect("a text")), "{card}");
    }
    checks.into_iter().for_each(|(_, _, check)| check());
}
