//! `verify` and `audit`: verdicts, exit codes, reports.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    harness::{draftproof, generate, golden},
    tiny::Tiny,
};

fn report(folder: &Path) -> Value {
    let bytes = fs::read(folder.join("report.json")).expect("a report");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The pair of a test: ids only, so that the prompt must be given.
fn pair(words: &str) -> crate::harness::Run {
    let (target, draft) = (golden("pair-target"), golden("pair-draft"));
    draftproof("verify").model(&target).draft(&draft).words(words)
}

#[test]
fn tables_pass_without_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("made/on/the/way");
    let run = draftproof("verify --level toy --samples 2000 --report").arg(&out).ok();
    for needle in ["PASSED", "Claimed", "report.html"] {
        assert!(run.stdout.contains(needle), "{needle}: {}", run.stdout);
    }
    let report = report(&out);
    assert_eq!(report["passed"], true);
    let checks = report["checks"].as_array().expect("checks");
    // Sampled checks of every rule, each with what it could have seen.
    for rule in ["rejection", "block", "coupled"] {
        let named = |check: &&Value| check["name"].as_str().expect("a name").contains(rule);
        let own: Vec<&Value> = checks.iter().filter(named).collect();
        assert!(own.iter().any(|check| check["detectable_tv"].is_f64()), "{rule}: {own:?}");
    }
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("<svg") && !page.contains("src=\"http") && !page.contains("NaN"));
    assert!(fs::read_to_string(out.join("junit.xml")).expect("XML").contains("<testsuite"));
}

/// One study of the level `watermark`, on the built-in pair and text of people: text without a mark.
#[test]
fn detectors_do_not_cry_wolf() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = "verify --level watermark --samples 100 --shard 1/8 --report";
    let run = draftproof(words).arg(folder.path()).ok();
    for needle in ["PASSED", "p-values/human text, variant hf", "false positives by length"] {
        assert!(run.stdout.contains(needle), "{needle}: {}", run.stdout);
    }
    let report = report(folder.path());
    let figures = report["figures"].as_array().expect("figures");
    assert!(figures.iter().any(|figure| figure["title"] == "false positives by length"));
    let page = fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("templated text") && page.contains("<svg") && !page.contains("NaN"));
    draftproof("verify --level watermark --samples 99").fails(&["at least 100 samples"]);
}

#[test]
fn a_pair_of_folders_passes_in_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut merge = draftproof("verify merge");
    for shard in ["1/2", "2/2"] {
        let out = folder.path().join(shard.replace('/', "-"));
        pair("--prompt-ids 1,2,3 --level model --samples 500 --shard")
            .arg(shard)
            .arg("--report")
            .arg(&out)
            .ok();
        merge = merge.arg(&out);
    }
    let whole = folder.path().join("whole");
    let run = merge.arg("--report").arg(&whole).ok();
    assert!(run.stdout.contains("PASSED"), "{}", run.stdout);
    let report = report(&whole);
    let named = |part: &str| {
        let checks = report["checks"].as_array().expect("checks");
        checks.iter().any(|check| check["name"].as_str().expect("a name").contains(part))
    };
    for part in ["rejection", "block", "coupled", "ngram", "len=auto", "no cache", "equal texts"] {
        assert!(named(part), "{part}");
    }
    let alone = folder.path().join("1-2");
    draftproof("verify merge").arg(&alone).fails(&["expected shards 1 to 2"]);
}

/// Samples of `generate` follow the law that they are made with, and no other.
#[test]
fn an_audit_tells_right_samples_from_wrong_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("samples.jsonl");
    let model = Tiny::letters(6).noisy(4).write();
    let sampled = |words: &str| {
        let run = generate("--n 3000 --max-tokens 3 --seed 5 --ignore-eos --draft-len 2 --json");
        let run = run.words(words).ids(&[2]).model(&model).draft(&model).ok();
        fs::write(&file, &run.stdout).expect("written");
    };
    let audit = |words: &str| {
        let run = draftproof("audit --prompt-ids 2 --ignore-eos").words(words).model(&model);
        run.arg("--samples").arg(&file).run()
    };
    sampled("--temperature 0.9 --top-k 4");
    let right = audit("--temperature 0.9 --top-k 4");
    assert_eq!(right.code, 0, "{right:?}");
    assert!(right.stdout.contains("PASSED"), "{right:?}");
    for wrong in ["--temperature 0.6 --top-k 4", "--temperature 0.9 --top-k 3", "--top-p 0.5"] {
        let found = audit(wrong);
        assert_eq!(found.code, 1, "{wrong}: {found:?}");
        assert!(found.stdout.contains("FAILED"), "{wrong}: {found:?}");
    }
    // The same as text: what other engines print.
    let text = fs::read_to_string(&file).expect("samples");
    let lines = text.lines().map(|line| {
        let object: Value = serde_json::from_str(line).expect("JSON");
        json!({"text": object["text"]}).to_string() + "\n"
    });
    fs::write(&file, lines.collect::<String>()).expect("written");
    assert_eq!(audit("--temperature 0.9 --top-k 4").code, 0);
    assert_eq!(audit("--temperature 0.6 --top-k 4").code, 1);
}

#[test]
fn what_cannot_be_verified_is_refused() {
    draftproof("verify --level fast")
        .fails(&["fast", "quick, exact, toy, model, watermark or all"]);
    draftproof("verify --shard 3/2").fails(&["3/2", "1 ≤ i ≤ n"]);
    draftproof("verify --samples 10").fails(&["at least 500"]);
    draftproof("verify --level toy a-prompt").fails(&["--level toy runs on tables"]);
    draftproof("verify --level exact --drafter none").fails(&["--level exact runs on tables"]);
    draftproof("verify merge").fails(&["DIR"]);
    draftproof("verify merge /nowhere").fails(&["/nowhere"]);
    pair("--prompt-ids 100000").fails(&["--prompt-ids"]);
    draftproof("verify --level toy --report /proc/none").fails(&["/proc/none"]);
    draftproof("audit").fails(&["--samples"]);
    draftproof("audit --samples /nowhere").fails(&["/nowhere"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("samples.jsonl");
    for (text, needle) in [
        ("", "expected samples"),
        ("{}", "expected `tokens` or `text`"),
        ("{\"tokens\": [1, 2, 3]}\n{", "line 2"),
        ("{\"tokens\": [1, 2]}", "tokens"),
    ] {
        fs::write(&file, text).expect("written");
        draftproof("audit --prompt-ids 1 --samples").arg(&file).fails(&[needle]);
    }
}
