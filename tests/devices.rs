//! Devices: what `devices` lists, what is refused, and that a draft changes no text on any of them.

#[cfg(feature = "wgpu")]
use serde_json::Value;

use crate::harness::{draftproof, generate};

#[test]
fn devices_are_listed() {
    let text = draftproof("devices").ok().stdout;
    for needle in ["this build contains cpu", "row-invariant   yes", "largest tensor"] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    let list = draftproof("devices").json();
    let names = |key: &str| -> Vec<String> {
        let names = list[key].as_array().expect("a list").iter();
        names.map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let (built, not_built) = (names("built"), names("not_built"));
    assert_eq!(built[0], "cpu");
    for name in &not_built {
        assert!(!built.contains(name), "{name}");
        let lacks = format!("lacks {}", not_built.join(", "));
        generate("x --max-tokens 1 --device").arg(name).fails(&["expected one of cpu", &lacks]);
    }
    let devices = list["devices"].as_array().expect("a list");
    assert_eq!(devices[0]["name"], "cpu");
    assert!(devices[0]["memory_bytes"].as_u64().is_none_or(|bytes| bytes > 1 << 20));
    for device in devices {
        assert_eq!(device["row_invariant"], true, "{device}");
        assert_eq!(device["checked"], device["name"] != "cpu", "{device}");
    }
}

#[test]
fn names_that_are_no_device_are_refused_before_anything_is_loaded() {
    for words in ["--device wgpu:x", "--device cpu,cpu", "--draft-device wgpu:"] {
        generate("x --max-tokens 1").words(words).fails(&["expected one of cpu"]);
    }
    draftproof("bench --device cpu,gpu").fails(&["device \"gpu\"", "expected one of cpu"]);
}

/// Greedy and coupled text of fable with everything on these devices.
#[cfg(feature = "wgpu")]
fn ids(prompt: &str, words: &str) -> Vec<u32> {
    let run = generate("--ignore-eos --max-tokens 40").words(words).arg(prompt);
    crate::harness::tokens(&run.json())
}

#[cfg(feature = "wgpu")]
#[test]
fn a_draft_changes_no_text_on_any_device() {
    for prompt in ["Once upon a time", "The old king had three sons, and"] {
        for rule in ["--temperature 0", "--temperature 1 --seed 5 --verify coupled"] {
            let plain = ids(prompt, &format!("{rule} --device wgpu --drafter none"));
            for others in [
                "--device wgpu --draft-len 1",
                "--device wgpu --draft-len 4",
                "--device wgpu --draft-device cpu --draft-len 3",
                "--device wgpu:0 --drafter ngram",
            ] {
                let drafted = ids(prompt, &format!("{rule} {others}"));
                assert_eq!(drafted, plain, "{prompt:?} {rule} {others}");
            }
            let here = ids(prompt, &format!("{rule} --drafter none"));
            let mixed = ids(prompt, &format!("{rule} --draft-device wgpu --draft-len 3"));
            assert_eq!(mixed, here, "{prompt:?} {rule}");
        }
    }
}

/// The CPU's text, up to the first place where the two largest logits are closer than devices agree.
#[cfg(feature = "wgpu")]
#[test]
fn greedy_text_is_the_cpus_where_the_gap_decides() {
    const TOLERANCE: f64 = 2e-3;
    for prompt in ["Once upon a time", "The old king had three sons, and", "In the forest"] {
        let run = |device: &str| {
            let words = format!("--temperature 0 --ignore-eos --max-tokens 60 --device {device}");
            generate(&words).words("--logprobs 2 --drafter none").arg(prompt).json()
        };
        let (here, there) = (run("cpu"), run("wgpu"));
        let [here_ids, there_ids] = [&here, &there].map(crate::harness::tokens);
        let first = here_ids.iter().zip(&there_ids).position(|(a, b)| a != b);
        if let Some(first) = first {
            let top = &here["logprobs"][first]["top"];
            let [best, second] = [0, 1].map(|i| top[i]["raw"].as_f64().expect("a number"));
            assert!(best - second < TOLERANCE, "{prompt:?}: {first}: {top:?}");
        }
        assert!(first.is_none_or(|first| first >= 8), "{prompt:?}: no more than {first:?} equal");
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn a_device_that_this_machine_has_not_is_refused_with_those_it_has() {
    generate("x --max-tokens 1 --device wgpu:99").fails(&["wgpu:99", "wgpu:0 ("]);
    generate("x --max-tokens 1 --draft-device wgpu:99").fails(&["wgpu:99", "wgpu:0 ("]);
}

#[cfg(feature = "wgpu")]
#[test]
fn several_devices_are_measured_one_after_the_other() {
    let run = draftproof("bench --max-tokens 8 --repeats 1 --draft-len 2 --temperature 0");
    let run = run.words("--device cpu,wgpu --json -").ok();
    let document: Value = serde_json::from_str(&run.stdout).expect("one document");
    let runs = document["runs"].as_array().expect("a run for each device");
    let devices: Vec<_> = runs.iter().map(|run| run["machine"]["device"].as_str()).collect();
    assert_eq!(devices, [Some("cpu"), Some("wgpu")]);
    for run in runs {
        let on_cpu = run["machine"]["device"] == "cpu";
        assert_eq!(run["machine"]["peak_gflops"].is_number(), on_cpu);
        assert!(run["passes"]["first_pass_seconds"].as_f64().is_some_and(|time| time > 0.0));
        let results = run["results"].as_array().expect("results");
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|result| result["device"] == run["machine"]["device"]));
    }
}

/// What is checked before a device is used are our kernels, whichever run afterwards.
#[cfg(feature = "wgpu")]
#[test]
fn general_kernels_run_on_a_device_too() {
    let words = "--temperature 0 --drafter none --kernels general";
    let found = ids("Once upon a time", &format!("{words} --device wgpu"));
    assert_eq!(found, ids("Once upon a time", words));
}
