//! The promise *Bits*: a row of logits depends on its prefix only, so a draft never changes greedy
//! text, nor coupled text, nor a single log-probability; to the last bit.

use std::path::Path;

use draftproof_model::machine::Order;
use serde_json::Value;

use crate::{
    errors::breaks_after,
    harness::{RULES, generate, golden, ids, read_json, tokens},
    tiny::{Tiny, spell},
};

/// Fails unless both runs say the same of every token.
fn assert_same_logprobs(a: &Value, b: &Value, about: &str) {
    assert_eq!(tokens(a), tokens(b), "{about}");
    let (a, b) = (&a["logprobs"], &b["logprobs"]);
    let lists = (a.as_array().expect("a list"), b.as_array().expect("a list"));
    assert_eq!(lists.0.len(), lists.1.len(), "{about}");
    for (one, other) in lists.0.iter().zip(lists.1) {
        for key in ["raw", "contract"] {
            assert_eq!(one[key], other[key], "{about}: {one} against {other}");
        }
    }
}

#[test]
fn logprobs_are_the_same_with_and_without_a_draft() {
    let (target, draft) = (golden("pair-target"), golden("pair-draft"));
    let prompt = ids(&read_json(target.join("reference.json"))["input_ids"]);
    for sampler in ["--temperature 0 --verify rejection", "--verify coupled --top-p 0.95 --seed 3"]
    {
        let run = |words: &str| {
            let run = generate("--ignore-eos --max-tokens 40 --logprobs 0").words(sampler);
            run.words(words).ids(&prompt).model(&target)
        };
        let plain = run("--drafter none").json();
        for length in ["1", "4", "8"] {
            let words = format!("--draft-len {length}");
            let drafted = run(&words).draft(&draft).json();
            assert_same_logprobs(&plain, &drafted, &format!("{sampler} {words}"));
            let copied = run(&words).words("--drafter ngram").json();
            assert_same_logprobs(&plain, &copied, &format!("{sampler} {words}, ngram"));
        }
    }
}

/// The number of threads changes nothing; general kernels are another matter, so they are named.
#[test]
fn threads_change_no_bit() {
    let run = |words: &str| {
        let run = generate("--seed 3 --max-tokens 40 --draft-len 3 --logprobs 2").words(words);
        run.arg("The old mill").json()
    };
    let one = run("--threads 1");
    for threads in ["--threads 2", "--threads 3", ""] {
        assert_same_logprobs(&one, &run(threads), threads);
    }
    let general = generate("--seed 3 --max-tokens 40 --kernels general").arg("The old mill").ok();
    assert!(general.stderr.contains("general kernels"), "{}", general.stderr);
}

/// Where there is AMX, drafts change no bit by its tiles either; elsewhere it is refused.
#[test]
fn amx_keeps_the_promise_or_is_refused() {
    let run = |words: &str| {
        let run = generate("--kernels amx --temperature 0 --max-tokens 60 --logprobs 2");
        run.words(words).arg("The old mill")
    };
    if !Order::Tiles.is_available() {
        return run("").fails(&["--kernels amx", "expected", "AMX", "found"]);
    }
    let plain = run("--drafter none").json();
    for words in ["--draft-len 4", "--draft-len 8 --verify block", "--drafter ngram", "--threads 1"]
    {
        assert_same_logprobs(&plain, &run(words).json(), words);
    }
}

#[test]
fn a_continuation_is_the_same_in_company() {
    let (target, draft) = (golden("pair-target"), golden("pair-draft"));
    for words in ["--drafter none", "--draft-len 3 --verify coupled", "--draft-len 3"] {
        let run = |n: usize| {
            let run = generate("--seed 6 --max-tokens 24 --logprobs 0 --n").arg(n.to_string());
            let run = run.words(words).arg("Once upon").model(&target);
            if words.contains("none") { run.jsons() } else { run.draft(&draft).jsons() }
        };
        let (alone, company) = (run(1), run(4));
        assert_same_logprobs(&alone[0], &company[0], words);
    }
}

#[test]
fn coupled_text_is_the_same_with_any_draft() {
    let run = |model: &Path, seed: u32, words: &str| {
        let run = generate("--verify coupled --max-tokens 40 --seed").arg(seed.to_string());
        tokens(&run.words(words).arg("Once upon a time").model(model).json())
    };
    for (target, draft) in [("pair-target", "pair-draft"), ("llama", "llama3-rope")] {
        let draft = format!("--draft-model {}", golden(draft).display());
        for seed in 0..3 {
            let expected = run(&golden(target), seed, "--drafter none");
            for length in ["1", "4", "auto"] {
                let words = format!("{draft} --draft-len {length}");
                assert_eq!(run(&golden(target), seed, &words), expected, "{target} {words}");
            }
            assert_eq!(run(&golden(target), seed, "--draft-len 4"), expected, "{target}, ngram");
        }
    }
}

/// Every prompt of fable's list × drafter × draft length × rule: greedy text, and coupled text of a
/// seed, are those of plain decoding.
#[test]
fn fable_writes_the_same_with_any_draft() {
    let prompts = include_str!("../models/fable/prompts.txt");
    let mut compared = 0;
    for prompt in prompts.lines().filter(|line| !line.is_empty()) {
        for sampler in ["--temperature 0", "--verify coupled --seed 5"] {
            let run = |words: &str| {
                let run = generate("--ignore-eos --max-tokens 64").words(sampler).words(words);
                tokens(&run.arg(prompt).json())
            };
            let plain = run("--drafter none");
            let mut drafts =
                vec!["--draft-len 1", "--draft-len 7", "--drafter ngram --draft-len 4"];
            if sampler == "--temperature 0" {
                drafts.push("--verify block --draft-len 4");
            }
            for words in drafts {
                assert_eq!(run(words), plain, "{sampler} {words}: {prompt}");
                compared += plain.len();
            }
        }
    }
    assert!(compared > 10_000, "{compared} tokens compared");
}

/// A drafted token with a NaN inside must not reach the rows before it: they do not see it.
#[test]
fn an_unusable_row_harms_no_row_before_it() {
    let path = spell("abcdefgh");
    let target = breaks_after(&path, 3, f32::NAN).write();
    let draft = Tiny::letters(8).path(&path).write();
    for rule in RULES {
        for length in ["1", "2", "3", "8"] {
            let command = |words: &str| {
                let run = generate("--temperature 0 --draft-len").arg(length).words(words);
                run.words("--verify").arg(rule).ids(&path[..1]).model(&target).draft(&draft)
            };
            let run = command("").run();
            assert_eq!(run.stdout, "bcd", "{rule} {length}");
            run.failed(&["position 4 "]);
            assert_eq!(command("--max-tokens 3").ok().stdout, "bcd", "{rule} {length}");
            assert_eq!(command("--stop d").ok().stdout, "bc", "{rule} {length}");
        }
    }
}
