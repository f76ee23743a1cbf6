//! `evaluate`: figures that follow from small tables, settings side by side, and bad input.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{Run, draftproof},
    tiny::{SURE, Tiny},
};

/// Small enough for every test, with the built-in pair.
const SMALL: &str = "--n 2 --max-tokens 12 --batch 1,2";

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    path
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// The document of a run of `evaluate` with these settings.
fn evaluate(run: Run, settings: &[&str]) -> Value {
    let run = settings.iter().fold(run, |run, setting| run.words("--setting").arg(setting));
    let finished = run.words("--json -").ok();
    serde_json::from_str(&finished.stdout).expect("one document")
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap_or_else(|| panic!("no number: {found}"));
    assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
}

/// Ids: a 2, b 3, c 4, space 5, newline 6; seven in all. After a and after a space b has 3 parts of
/// 9 and all others one; after b and c comes b, after a newline a newline.
fn table() -> TempDir {
    let three = 3_f32.ln();
    Tiny::new(&["a", "b", "c", " ", "\n"])
        .logit(2, 3, three)
        .logit(5, 3, three)
        .logit(3, 3, SURE)
        .logit(4, 3, SURE)
        .logit(6, 6, SURE)
        .write()
}

#[test]
fn choices_and_answers_follow_from_the_table() {
    let (model, folder) = (table(), tempfile::tempdir().expect("a folder"));
    let choice = |choices: [&str; 2], answer: Value| json!({"id": 7, "question": "a ", "choices": choices, "answer": answer});
    let questions = file(
        &folder,
        "questions.jsonl",
        &lines(&[
            // b has a third; each of the three tokens of cbb the cube root of a ninth, on average.
            choice(["b", "cbb"], json!(0)),
            choice(["c", "b"], json!("b")),
            // With top-k 1 neither has mass.
            choice(["c", "a"], json!("c")),
            json!({"prompt": "a", "answer": " bbb "}),
            json!({"prompt": "c", "answer": "b"}),
            // Only newlines: no answer.
            json!({"prompt": "\n", "answer": "b"}),
        ]),
    );
    let prompts = file(&folder, "prompts.txt", "a\n");
    let found = |score: &str| {
        let run = draftproof("evaluate --batch 1 --max-tokens 3 --choice-score").arg(score);
        let run = run.model(&model).words("--questions").arg(&questions);
        let report = evaluate(
            run.words("--prompts").arg(&prompts),
            &["all=--temperature 0 --top-k 0", "best=--temperature 1 --top-k 1"],
        );
        [0, 1].map(|i| report["settings"][i]["answers"].clone())
    };
    for (score, right) in [("mean", 2), ("sum", 3)] {
        let [greedy, best] = found(score);
        for answers in [&greedy, &best] {
            assert_eq!(answers["choice_score"], score);
            // Raw logits know nothing of the sampler's settings.
            let raw = &answers["choice"];
            assert_eq!([&raw["questions"], &raw["right"], &raw["failures"]], [3, right, 0]);
            let exact = &answers["exact"];
            assert_eq!([&exact["questions"], &exact["right"], &exact["failures"]], [3, 1, 1]);
            close(&exact["failure_rate"], 1.0 / 3.0);
            // Wilson's interval of 1 in 3.
            close(&exact["interval"][0], 0.061_492);
            close(&exact["interval"][1], 0.792_340);
        }
        // Under the law only b is left after a space: two right, and one question without an answer.
        let law = &best["choice_under_law"];
        assert_eq!([&law["right"], &law["failures"]], [2, 1], "{law}");
    }
}

#[test]
fn likelihoods_follow_from_the_table() {
    let (model, folder) = (table(), tempfile::tempdir().expect("a folder"));
    let text = file(&folder, "text.txt", "a b");
    let prompts = file(&folder, "prompts.txt", "a");
    let run = draftproof("evaluate --batch 1 --n 3 --max-tokens 6").model(&model);
    let run = run.words("--text").arg(&text).words("--prompts").arg(&prompts);
    let report =
        evaluate(run, &["all=--temperature 1", "cool=--temperature 0.5", "best=--top-k 1"]);
    let scores = [0, 1, 2].map(|i| &report["settings"][i]["text"]);
    let (ninth, third) = ((1.0_f64 / 9.0).ln(), (1.0_f64 / 3.0).ln());
    for score in scores {
        assert_eq!(score["tokens"], 2);
        close(&score["mean_log_likelihood"], (ninth + third) / 2.0);
    }
    close(&scores[0]["mean_log_likelihood_under_law"], (ninth + third) / 2.0);
    // At temperature 0.5 b has 9 parts of 15.
    let cool = ((1.0_f64 / 15.0).ln() + (9.0_f64 / 15.0).ln()) / 2.0;
    close(&scores[1]["mean_log_likelihood_under_law"], cool);
    // Only b is left: the space has no mass, and the b after it all.
    close(&scores[2]["mean_log_likelihood_under_law"], 0.0);
    let without = scores.map(|score| &score["tokens_without_mass"]);
    assert_eq!(without, [0, 0, 1]);
    // bbbbbb three times: three 4-grams, two of them repeats.
    let texts = &report["settings"][2]["texts"][0];
    assert_eq!([&texts["texts"], &texts["mean_length"]], [&json!(3), &json!(6.0)]);
    close(&texts["repeated_4grams"], 2.0 / 3.0);
    for (i, expected) in [1.0 / 18.0, 1.0 / 15.0, 1.0 / 12.0].into_iter().enumerate() {
        close(&texts["distinct"][i], expected);
    }
    close(&texts["self_overlap"], 1.0);
    close(&texts["ended"], 0.0);
}

#[test]
fn settings_stand_side_by_side() {
    let run = draftproof("evaluate --temperatures 0,1").words(SMALL);
    let report = evaluate(
        run,
        &[
            "plain=--drafter none --verify coupled --draft-len 0",
            "drafted=--verify coupled --draft-len 3",
            "short=--max-tokens 5 --ignore-eos --stop zzz --threads 1",
        ],
    );
    let [plain, drafted, short] = [0, 1, 2].map(|i| &report["settings"][i]);
    assert_eq!([&plain["label"], &short["label"]], ["plain", "short"]);
    for setting in [plain, drafted, short] {
        let texts = setting["texts"].as_array().expect("texts");
        let temperatures: Vec<_> = texts.iter().map(|text| &text["temperature"]).collect();
        assert_eq!(temperatures, [1.0, 0.0, 1.0]);
        // The same seed gives the same figures; two greedy texts are one.
        assert_eq!(texts[0], texts[2]);
        close(&texts[1]["self_overlap"], 1.0);
        assert!(texts[0]["self_overlap"].as_f64().expect("a figure") < 0.9);
        let cost = &setting["cost"];
        assert!(cost["prefill"]["seconds"].as_f64().expect("a time") > 0.0);
        assert_eq!(cost["batches"].as_array().expect("batches").len(), 2);
        // fable/target: 2 · (6 · 737 280 + 4096 · 256).
        assert_eq!(cost["flops"]["target_row"], 10_944_512);
        if cfg!(target_os = "linux") {
            assert!(cost["peak_memory_bytes"].as_u64().expect("a peak") > 10_000_000);
        }
    }
    // The rule coupled gives the same texts with any draft, in fewer passes.
    let parts = |setting: &Value| {
        let mut texts = setting["texts"][0].clone();
        texts["passes"] = Value::Null;
        texts
    };
    assert_eq!(parts(plain), parts(drafted));
    let passes = |setting: &Value| setting["texts"][0]["passes"].clone();
    close(&passes(plain)["target_rows_per_token"], 1.0);
    close(&passes(plain)["drafted_per_token"], 0.0);
    assert!(passes(drafted)["target_passes"].as_u64() < passes(plain)["target_passes"].as_u64());
    let flops = |setting: &Value| setting["cost"]["flops"]["per_token"].as_f64().expect("a number");
    assert!(flops(drafted) > flops(plain));
    assert_eq!(short["texts"][0]["mean_length"], 5.0);
}

#[test]
fn the_chosen_setting_meets_the_held_out_items_alone() {
    let (model, folder) = (table(), tempfile::tempdir().expect("a folder"));
    let questions: Vec<Value> =
        (0..40).map(|i| json!({"id": i, "prompt": "a", "answer": "bbb"})).collect();
    let questions = file(&folder, "questions.jsonl", &lines(&questions));
    let prompts = file(&folder, "prompts.txt", "a");
    let run = || {
        let run = draftproof("evaluate --batch 1 --max-tokens 3 --choose questions").model(&model);
        run.words("--questions").arg(&questions).words("--prompts").arg(&prompts)
    };
    let settings = ["hot=--temperature 5", "cold=--temperature 0", "colder=--top-k 1"];
    let report = evaluate(run().words("--split 0.3"), &settings);
    let choice = &report["choice"];
    // Two are right about everything; the first of them is chosen.
    assert_eq!([&choice["label"], &choice["by"]], ["cold", "questions"]);
    close(&choice["score_to_choose_by"], 1.0);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {value}"));
    let (by, held) = (number(&choice["items_to_choose_by"]), number(&choice["items_held_out"]));
    assert!(by > 0 && by < held && by + held == 40, "{by} and {held}");
    assert_eq!(choice["answers"]["exact"]["questions"], held);
    for setting in report["settings"].as_array().expect("settings") {
        assert_eq!(setting["answers"]["exact"]["questions"], by);
    }
    assert!(report["settings"][0]["answers"]["exact"]["accuracy"].as_f64() < Some(1.0));
    let shown = settings.iter().fold(run(), |run, setting| run.words("--setting").arg(setting));
    let shown = shown.ok().stdout;
    assert!(shown.contains("chosen: cold, by "), "{shown}");
    run().words("--split 0.000001").fails(&["--choose", "both sides", "0 to choose by", "--split"]);
}

#[test]
fn text_chooses_too() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fable/heldout.txt");
    let run = draftproof("evaluate --choose text --text-tokens 300 --window 32").words(SMALL);
    let report = evaluate(run.words("--text").arg(text), &["draft=--drafter none", "other="]);
    let choice = &report["choice"];
    assert_eq!(choice["label"], "draft");
    let [chosen, held] = [&report["settings"][0]["text"], &choice["text"]];
    let tokens = |score: &Value| score["tokens"].as_u64().expect("a number");
    assert_eq!(tokens(chosen) + tokens(held), 300, "each piece begins with the token 0");
    for score in [chosen, held] {
        let likelihood = score["mean_log_likelihood"].as_f64().expect("a number");
        assert!((-4.5..-2.5).contains(&likelihood), "{likelihood}");
    }
}

#[test]
fn bad_settings_are_refused() {
    let setting = |typed: &str| draftproof("evaluate --setting").arg(typed);
    for (typed, needles) in [
        ("cool", &["--setting", "expected LABEL=FLAGS", "cool"][..]),
        ("--temperature=0", &["expected LABEL=FLAGS"]),
        ("a=--warm 3", &["--setting a", "--warm"]),
        ("a=--top-p 2", &["--setting a", "top-p", "at most 1"]),
        ("a=--top-k x", &["--setting a", "--top-k", "x"]),
        ("a=Once", &["--setting a", "a prompt is not part of a setting"]),
        ("a=--seed 3", &["--setting a", "--seed is not part of a setting"]),
        ("a=--n 3", &["--setting a", "--n is not part of a setting"]),
        ("a=--model nowhere", &["--setting a", "no model at nowhere"]),
    ] {
        setting(typed).fails(needles);
    }
    setting("a=").words("--setting a=").fails(&["two settings have the label a"]);
    draftproof("evaluate --temperatures -1").fails(&["--temperatures", "found -1"]);
    draftproof("evaluate --batch 0").fails(&["--batch"]);
    draftproof("evaluate --split 0.5").fails(&["--choose"]);
    draftproof("evaluate --choose questions").fails(&["--choose questions needs --questions"]);
    draftproof("evaluate --choose text").fails(&["--choose text needs --text"]);
}

#[test]
fn bad_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = r#"{"prompt": "a", "answer": "b"}"#;
    for (line, needles) in [
        ("{\"prompt\": ", &["line 2", "expected JSON"][..]),
        ("[1]", &["line 2", "expected {\"question\""]),
        (r#"{"prompt": "a"}"#, &["line 2", "expected {\"question\""]),
        (r#"{"prompt": "a", "answer": " "}"#, &["line 2", "expected an answer"]),
        (r#"{"question": "q", "choices": ["a"], "answer": 0}"#, &["line 2", "two choices"]),
        (r#"{"question": "q", "choices": ["a", ""], "answer": 0}"#, &["line 2", "an empty one"]),
        (
            r#"{"question": "q", "choices": ["a", "b"], "answer": "c"}"#,
            &["line 2", "\"c\" is none"],
        ),
        (
            r#"{"question": "q", "choices": ["a", "b"], "answer": 2}"#,
            &["line 2", "2 is none of the 2"],
        ),
    ] {
        let path = file(&folder, "questions.jsonl", &format!("{good}\n{line}\n"));
        let needles = [needles, &["questions.jsonl"]].concat();
        draftproof("evaluate --questions").arg(path).fails(&needles);
    }
    let empty = file(&folder, "empty", "\n");
    draftproof("evaluate --questions")
        .arg(&empty)
        .fails(&["empty", "a question a line, found none"]);
    draftproof("evaluate --prompts").arg(&empty).fails(&["--prompts", "found none"]);
    let nothing = file(&folder, "nothing", "");
    draftproof("evaluate --text").arg(&nothing).fails(&["--text", "expected a text", "found 0"]);
    draftproof("evaluate --text missing.txt").fails(&["missing.txt"]);
    let nowhere = folder.path().join("no/folder/out.json");
    draftproof("evaluate --json").arg(&nowhere).fails(&["out.json"]);
    let model = Tiny::letters(3).without_tokenizer().write();
    draftproof("evaluate").model(&model).fails(&["has no tokenizer", "evaluate needs one"]);
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.json");
    let run = draftproof("evaluate --json").arg(&out).words(SMALL);
    // The second setting fails after the first was measured.
    run.words("--setting a= --setting").arg("b=--bad-words missing.txt").fails(&["missing.txt"]);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let finished = draftproof("evaluate --json").arg(&out).words(SMALL).ok();
    assert!(finished.stdout.contains("self-overlap"), "{}", finished.stdout);
    let written = fs::read_to_string(&out).expect("written");
    let report: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!(report["settings"][0]["label"], "default");
}

/// The commands of the README, word for word; no guidance is the plain model, figure for figure.
#[test]
fn the_readme_s_commands_run() {
    const BEFORE: &str = "cargo run --release -- evaluate ";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix(BEFORE)).collect();
    assert_eq!(commands.len(), 2, "commands of evaluate in README.md: samplers, and guidance");
    for (command, labels) in commands.into_iter().zip([&["cool"][..], &["w0", "two-guided"]]) {
        // What stands between quotes is one argument.
        let parts = command.split('\'').enumerate();
        let run = parts.fold(draftproof("evaluate"), |run, (i, part)| {
            if i % 2 == 0 { run.words(part) } else { run.arg(part) }
        });
        let shown = run.ok().stdout;
        for needle in ["plain", "log-likelihood", "self-overlap", "tokens/s"].iter().chain(labels) {
            assert!(shown.contains(needle), "{needle}: {shown}");
        }
        if labels.contains(&"w0") {
            let line = shown.lines().find(|line| line.starts_with("log-likelihood a token, raw"));
            let figures: Vec<&str> = line.expect("a line").split_whitespace().skip(4).collect();
            assert_eq!(figures.len(), 5, "{shown}");
            assert_eq!(figures[0], figures[1], "{shown}");
            assert!(figures[2..].iter().all(|figure| *figure != figures[0]), "{shown}");
        }
    }
}
