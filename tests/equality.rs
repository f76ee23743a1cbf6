//! A draft changes the speed, not the text: greedy tokens with every drafter and draft length are
//! those of plain decoding and of the reference, and under `coupled` sampled tokens are too.
//!
//! Logits of one row and of several differ by about 1e-5 until all kernels are row-invariant, so
//! real weights are compared where the two largest logits are further apart than that (0.004 in
//! the golden models); see also [`bits`](crate::bits).

use std::path::Path;

use serde_json::Value;

use crate::{
    harness::{DRAFTERS, RULES, generate, golden, ids, read_json, tokens, with_drafter},
    tiny::Tiny,
};

const DRAFT_LENGTHS: [&str; 7] = ["0", "1", "2", "4", "8", "16", "auto"];

/// A greedy run of so many tokens.
fn greedy(model: &Path, prompt: &[u32], count: usize, drafter: &str, words: &str) -> Vec<u32> {
    let run = generate("--temperature 0 --ignore-eos --max-tokens").arg(count.to_string());
    let run = run.words("--drafter").arg(drafter).words(words);
    tokens(&run.ids(prompt).model(model).json())
}

#[test]
fn greedy_ids_are_those_of_the_reference() {
    for name in [
        "llama",
        "llama3-rope",
        "llama-bias-linear",
        "llama-bf16",
        "llama-sharded",
        "pair-target",
        "pair-draft",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3-yarn",
        "gemma2",
        "gemma3",
        "phi3",
        "smollm3",
        "gpt2",
    ] {
        let model = golden(name);
        let reference = read_json(model.join("reference.json"));
        let (prompt, expected) = (ids(&reference["input_ids"]), ids(&reference["greedy_ids"]));
        for (drafter, words) in [("none", ""), ("ngram", ""), ("ngram", "--kernels general")] {
            let found = greedy(&model, &prompt, 32, drafter, words);
            assert_eq!(found, expected, "{name} {drafter} {words}");
        }
    }
}

#[test]
fn greedy_ids_of_the_pair_are_those_of_assisted_generation() {
    let reference = read_json(golden("pair-target").join("assisted.json"));
    let cases = reference["cases"].as_array().expect("cases");
    for case in cases {
        let prompt = ids(&case["prompt"]);
        let expected = ids(&case["target_greedy_ids"]);
        let lookahead = case["num_assistant_tokens"].as_u64().expect("a number");
        let draft = golden("pair-draft");
        let words = format!("--draft-len {lookahead} --draft-model {}", draft.display());
        let found = greedy(&golden("pair-target"), &prompt, expected.len(), "model", &words);
        assert_eq!(found, expected);
    }
    assert!(cases.len() >= 4);
}

#[test]
fn greedy_ids_of_fable_are_those_of_the_reference() {
    let reference = read_json("models/fable/reference.json");
    for case in reference["greedy"].as_array().expect("cases") {
        let (prompt, expected) = (ids(&case["prompt_ids"]), ids(&case["ids"]));
        for words in ["--drafter none", "--draft-len 4"] {
            let run = generate("--temperature 0 --ignore-eos --max-tokens 96").words(words);
            assert_eq!(tokens(&run.ids(&prompt).json()), expected, "{}", case["prompt"]);
        }
    }
}

/// The second draft has nothing to do with its target: it is almost never right.
#[test]
fn greedy_ids_do_not_depend_on_the_draft() {
    for (target, draft) in [("pair-target", "pair-draft"), ("llama", "llama3-rope")] {
        let prompt = ids(&read_json(golden(target).join("reference.json"))["input_ids"]);
        let expected = greedy(&golden(target), &prompt, 40, "none", "");
        for rule in RULES {
            for length in DRAFT_LENGTHS {
                let words = format!("--verify {rule} --draft-len {length}");
                let ngram = greedy(&golden(target), &prompt, 40, "ngram", &words);
                assert_eq!(ngram, expected, "{target}, ngram, {words}");
                let words = format!("{words} --draft-model {}", golden(draft).display());
                let model = greedy(&golden(target), &prompt, 40, "model", &words);
                assert_eq!(model, expected, "{target}, {draft}, {words}");
            }
        }
    }
}

/// Copies of the target, and of a draft, in fewer bits: the same text, and most of what they propose is
/// accepted.
#[test]
fn quantized_drafts_change_no_text() {
    let fable = |words: &str| {
        let run = generate("--ignore-eos --max-tokens 64 --draft-len 3").words(words);
        run.ids(&[0, 433, 289]).json()
    };
    for rule in ["--temperature 0", "--temperature 0 --verify block", "--seed 5 --verify coupled"] {
        let expected = tokens(&fable(&format!("{rule} --drafter none")));
        for draft in [
            "--drafter quantized",
            "--drafter quantized --draft-type q4_1",
            "--drafter quantized --draft-type q8_0",
            "--draft-type q5_1",
        ] {
            let found = fable(&format!("{rule} {draft}"));
            assert_eq!(tokens(&found), expected, "{rule} {draft}");
            let stats = |key: &str| found["stats"][key].as_u64().expect("a count");
            let copy = draft.contains("quantized");
            let share = stats("accepted") as f64 / stats("drafted") as f64;
            assert!(share > if copy { 0.6 } else { 0.2 }, "{rule} {draft}: {share}");
        }
    }
    // Sampled: near the target's law, and not it.
    let found = fable("--seed 5 --drafter quantized");
    let [accepted, drafted] = ["accepted", "drafted"].map(|key| found["stats"][key].as_u64());
    assert!(accepted < drafted && accepted > Some(32), "{accepted:?} of {drafted:?}");
}

/// A draft that is always right and one that never is: accepted all or nothing, and the same text.
#[test]
fn acceptance_is_as_the_draft_deserves() {
    let cycle: Vec<u32> = (2..12).chain([2]).collect();
    let backwards: Vec<u32> = cycle.iter().rev().copied().collect();
    let target = Tiny::letters(10).path(&cycle).write();
    let wrong = Tiny::letters(10).path(&backwards).write();
    for rule in RULES {
        let run = |draft: &Path| {
            let words = format!("--seed 1 --max-tokens 30 --draft-len 4 --verify {rule}");
            generate(&words).ids(&[2]).model(&target).draft(draft).json()
        };
        let (good, bad) = (run(target.path()), run(wrong.path()));
        let expected: Vec<u32> = cycle[..10].iter().cycle().skip(1).take(30).copied().collect();
        assert_eq!((tokens(&good), tokens(&bad)), (expected.clone(), expected), "{rule}");
        let stats = |object: &Value, key: &str| object["stats"][key].as_u64();
        assert_eq!(stats(&good, "accepted"), stats(&good, "drafted"), "{rule}");
        assert_eq!(stats(&good, "rounds"), Some(6), "{rule}");
        assert_eq!(stats(&bad, "accepted"), Some(0), "{rule}");
        assert_eq!(stats(&bad, "rounds"), Some(30), "{rule}");
    }
}

/// Sampled with the same law, or raced with the same noise: a draft that is its own target is never
/// rejected.
#[test]
fn a_draft_that_is_the_target_is_always_accepted() {
    let model = Tiny::letters(14).noisy(14).write();
    for rule in RULES {
        for sampler in ["", "--temperature 0.8 --top-k 6 --top-p 0.9", "--min-p 0.3"] {
            let words = format!("--seed 3 --max-tokens 40 --draft-len 4 --verify {rule} {sampler}");
            let object = generate(&words).ids(&[2]).model(&model).draft(&model).json();
            let stats = &object["stats"];
            assert_eq!(
                (&stats["accepted"], &stats["drafted"]),
                (&32.into(), &32.into()),
                "{words}"
            );
        }
    }
}

/// Table models have the same bits in any pass, so this is equality without any allowance.
#[test]
fn coupled_ids_do_not_depend_on_the_draft() {
    let target = Tiny::letters(14).noisy(11).write();
    let draft = Tiny::letters(14).noisy(12).write();
    for sampler in ["", "--temperature 0.7 --top-k 5", "--top-p 0.6 --min-p 0.1"] {
        let run = |drafter: &str, length: &str| {
            let words = format!("--seed 7 --max-tokens 40 --draft-len {length}");
            let run = generate(&words).words("--verify coupled").words(sampler);
            tokens(&with_drafter(run.ids(&[2]).model(&target), drafter, draft.path()).json())
        };
        let expected = run("none", "0");
        for drafter in DRAFTERS {
            for length in DRAFT_LENGTHS {
                assert_eq!(run(drafter, length), expected, "{sampler} {drafter} {length}");
            }
        }
    }
}

/// Prompts, context ends and unusual lengths: the table models again, at temperature 0.
#[test]
fn a_draft_longer_than_everything_else_is_cut() {
    let model = Tiny::letters(8).noisy(13).context(24).write();
    for max in ["3", "1000", "18446744073709551615"] {
        for length in ["16", "200", "65535"] {
            let run = |drafter: &str| {
                let run = generate("--temperature 0 --max-tokens").arg(max);
                let run = run.words("--draft-len").arg(length).ids(&[2, 3]).model(&model);
                tokens(&with_drafter(run, drafter, model.path()).json())
            };
            let expected = run("none");
            assert_eq!(expected.len(), if max == "3" { 3 } else { 22 });
            assert_eq!((run("ngram"), run("model")), (expected.clone(), expected));
        }
    }
}
