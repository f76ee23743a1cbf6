//! `bench`: its document, its tables, and what it refuses. What it measures is not tested, only that
//! the figures fit together.

use std::{fs, path::Path};

use draftproof_model::machine::Order;
use serde_json::Value;

use crate::{harness::draftproof, tiny::Tiny};

/// The shortest there is.
fn bench(words: &str) -> crate::harness::Run {
    draftproof("bench --max-tokens 8 --repeats 1").words(words)
}

fn number(value: &Value, path: &str) -> f64 {
    let found = path.split('.').fold(value, |value, key| &value[key]);
    found.as_f64().unwrap_or_else(|| panic!("{path} is {found}"))
}

#[test]
fn the_document_has_what_scripts_rely_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bench.json");
    let report = folder.path().join("report");
    let run = bench("--draft-len 1,3,auto --temperature 0,0.8 --json").arg(&file);
    let run = run.arg("--report").arg(&report).ok();
    for needle in [
        "device cpu, row-invariant kernels",
        "pass v(n)",
        "temperature 0.8",
        "auto",
        "alpha",
        "bench.html",
    ] {
        assert!(run.stdout.contains(needle), "{needle}: {}", run.stdout);
    }
    let document: Value = serde_json::from_slice(&fs::read(&file).expect("written")).expect("JSON");
    let read = |name: &str| fs::read_to_string(report.join(name)).expect("a part of the report");
    assert_eq!(serde_json::from_str::<Value>(&read("bench.json")).expect("JSON"), document);
    let page = read("bench.html");
    for needle in ["<svg", "speed-up by draft length", "T = 0.8", "fable/target"] {
        assert!(page.contains(needle), "{needle}");
    }
    assert_eq!(fs::read_dir(&report).expect("a folder").count(), 2, "nothing half-written");
    for key in ["read_bandwidth_gb_s", "threads", "peak_gflops"] {
        assert!(number(&document["machine"], key) > 0.0, "{key}");
    }
    assert!(document["machine"]["cpu"].is_string());
    assert!(number(&document, "prefill.share_of_peak") > 0.0);
    assert!(number(&document, "determinism.general_t1") > 0.0);
    let results = document["results"].as_array().expect("results");
    assert_eq!(results.len(), 8);
    let cold = draftproof("contract --temperature 0 --ignore-eos").json();
    assert_eq!(results[0]["contract"], cold["hash"], "texts go on past the end-of-text token");
    assert_ne!(results[0]["contract"], results[7]["contract"], "another temperature");
    for result in results {
        for key in ["device", "model", "draft", "dtype"] {
            assert!(result[key].is_string(), "{key}");
        }
        assert_eq!(result["v"].as_array().map(Vec::len), Some(16));
    }
}

#[test]
fn figures_fit_together() {
    let run = bench("--draft-len 2 --temperature 1 --json -").ok();
    let document: Value = serde_json::from_str(&run.stdout).expect("one document, nothing else");
    let results = document["results"].as_array().expect("results");
    let [plain, drafted] = &results[..] else { panic!("{results:?}") };
    assert_eq!((&plain["gamma"], &drafted["gamma"]), (&0.into(), &2.into()));
    assert_eq!(number(plain, "speedup"), 1.0);
    assert!(plain["predicted_speedup"].is_null() && plain["pays"] == false);
    assert_eq!(drafted["pays"], number(drafted, "speedup") > 1.0);
    let same = number(plain, "tokens_per_second") == number(drafted, "plain_tokens_per_second");
    assert!(same, "{plain} {drafted}");
    assert!((0.5..0.9).contains(&number(drafted, "alpha")));
    assert!((1.5..3.0).contains(&number(drafted, "tokens_per_round")));
    let shares = ["draft", "verify", "sampler", "other"].map(|part| &drafted["share"][part]);
    let total: f64 = shares.iter().map(|share| share.as_f64().expect("a share")).sum();
    assert!((total - 1.0).abs() < 1e-9, "{shares:?}");
    let v = drafted["v"].as_array().expect("a list");
    assert_eq!(v[0], 1.0);
    assert!(v.iter().all(|v| v.as_f64().is_some_and(|v| v > 0.0)));
}

#[test]
fn kernels_are_named() {
    let mut kernels = vec!["general"];
    if Order::Tiles.is_available() {
        kernels.push("amx");
    }
    for kernels in kernels {
        let run = bench("--draft-len 1 --temperature 0 --json - --kernels").arg(kernels).ok();
        let document: Value = serde_json::from_str(&run.stdout).expect("one document");
        assert_eq!(document["kernels"], kernels);
    }
}

#[test]
fn two_documents_are_compared() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let document = |name: &str, rate: f64, gamma: &str| {
        let result = format!(
            r#"{{"results": [{{"device": "cpu", "model": "m", "draft": null, "temperature": 0,
                "gamma": {gamma}, "tokens_per_second": {rate}}}]}}"#
        );
        let path = folder.path().join(name);
        fs::write(&path, result).expect("written");
        path
    };
    let (a, b) = (document("a", 100.0, "4"), document("b", 150.0, "4"));
    let compare = |a: &Path, b: &Path| draftproof("bench --compare").arg(a).arg(b);
    assert!(compare(&a, &b).ok().stdout.contains("1.50"));
    let other = document("c", 100.0, "\"auto\"");
    compare(&a, &other).fails(&["no result in common"]);
    fs::write(&b, "[]").expect("written");
    compare(&a, &b).fails(&["b: no document of bench"]);
    compare(&a, Path::new("/nowhere")).fails(&["/nowhere"]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    bench("--temperature=-1").fails(&["--temperature"]);
    bench("--temperature x").fails(&["--temperature", "x"]);
    bench("--draft-len 1,x").fails(&["--draft-len", "x"]);
    bench("--repeats 0").fails(&["--repeats"]);
    draftproof("bench --max-tokens 2").fails(&["--max-tokens"]);
    bench("--synthetic 7b").fails(&["\"7b\"", "expected one of 100m"]);
    bench("--synthetic 100m --model x").fails(&["--synthetic", "--model"]);
    bench("--prompts /nowhere").fails(&["/nowhere"]);
    bench("--json /nowhere/bench.json --draft-len 1 --temperature 0")
        .fails(&["/nowhere/bench.json"]);
    let short = Tiny::letters(4).noisy(1).context(8).write();
    bench("").model(&short).fails(&["context of 8"]);
    let silent = Tiny::letters(4).noisy(1).without_tokenizer().write();
    bench("--prompts Cargo.toml").model(&silent).fails(&["has no tokenizer", "--prompts"]);
}
