//! Where a text ends: at an EOS anywhere inside a block, at the end of the context, at the limit;
//! with and without a draft alike.

use serde_json::{Value, json};

use crate::{
    harness::{DRAFTERS, RULES, generate, golden, ids, read_json, text, tokens, with_drafter},
    tiny::{EOS, FIRST, SURE, Tiny, spell},
};

/// The reason and the tokens.
fn end(object: &Value) -> (&str, Vec<u32>) {
    (object["finish_reason"].as_str().expect("a reason"), tokens(object))
}

/// Letters, EOS, and then more: what comes out after EOS has leaked. Every drafter drafts past it:
/// the model because it is the target itself, the n-grams because the prompt holds all of it.
#[test]
fn eos_ends_the_text_at_every_place_of_a_block() {
    let path: Vec<u32> = spell("abcdefghij").into_iter().chain([EOS]).chain(spell("klm")).collect();
    let eos_at = 10;
    let model = Tiny::letters(13).path(&path).write();
    for draft_len in ["1", "2", "3", "8", "auto"] {
        for before in 0..10 {
            for drafter in DRAFTERS {
                let rule = RULES[before % 3];
                let start = eos_at - 1 - before;
                let prompt = [&path[..], &path[..=start]].concat();
                let words = format!("--seed 1 --verify {rule} --draft-len {draft_len}");
                let run = generate(&words).ids(&prompt).model(&model);
                let object = with_drafter(run, drafter, model.path()).json();
                let about = format!("{words} {drafter}, {before} tokens before eos: {object}");
                assert_eq!(end(&object), ("eos", path[start + 1..=eos_at].to_vec()), "{about}");
                assert_eq!(text(&object), &"abcdefghij"[start + 1..], "{about}");
                let count = |key: &str| object["stats"][key].as_u64().expect("a count");
                let (made, rounds) = (before as u64 + 1, count("rounds"));
                assert!(count("accepted") + rounds >= made && rounds <= made, "{about}");
                if drafter != "none" && draft_len == "8" {
                    assert_eq!(rounds, made.div_ceil(9), "{about}");
                }
            }
        }
    }
}

/// EOS as the token after a block, and in place of a rejected one.
#[test]
fn eos_ends_the_text_as_bonus_and_as_residual() {
    let path: Vec<u32> = spell("abc").into_iter().chain([EOS]).chain(spell("d")).collect();
    let target = Tiny::letters(4).path(&path).write();
    let wrong = Tiny::letters(4).path(&path).logit(path[2], path[4], 2.0 * SURE).write();
    for rule in RULES {
        for (draft, length) in [(&target, "2"), (&wrong, "3"), (&wrong, "8")] {
            let run = generate("--seed 1 --draft-len").arg(length).words("--verify").arg(rule);
            let object = run.ids(&path[..1]).model(&target).draft(draft).json();
            assert_eq!(end(&object), ("eos", path[1..4].to_vec()), "{rule} {length}");
        }
    }
}

/// `generation_config.json` wins over `config.json`; any of its ids ends a text, special or not.
#[test]
fn every_eos_id_ends_the_text() {
    let letters = spell("abcdefgh");
    let path: Vec<u32> = letters.iter().copied().chain([EOS]).collect();
    let with_eos = |generation: Value, config: Value| {
        let mut model = Tiny::letters(8).path(&path);
        model.generation = Some(json!({"eos_token_id": generation}));
        model.config["eos_token_id"] = config;
        model.write()
    };
    let id = |letter: &str| spell(letter)[0];
    let cases = [
        (json!([EOS, id("f"), id("d")]), json!(EOS), "bc", 3),
        (json!(id("f")), json!([EOS, id("d")]), "bcde", 5),
        (Value::Null, json!([EOS, id("d")]), "bc", 3),
        (json!([EOS, 4000]), json!(id("d")), "bcdefgh", 8),
        (json!([]), json!(id("d")), "bc", 3),
    ];
    for (generation, config, expected, count) in cases {
        let model = with_eos(generation.clone(), config.clone());
        for drafter in DRAFTERS {
            let run = generate("--temperature 0 --draft-len 8").ids(&letters[..1]).model(&model);
            let run = with_drafter(run, drafter, model.path()).arg("--json").ok();
            // An id that no text can end with is told.
            let unknown = run.stderr.contains("end-of-text id 4000 is outside the vocabulary");
            assert_eq!(unknown, generation.to_string().contains("4000"), "{}", run.stderr);
            let object = run.objects().remove(0);
            let about = format!("{generation} {config} {drafter}: {object}");
            assert_eq!(end(&object), ("eos", path[1..=count].to_vec()), "{about}");
            assert_eq!(text(&object), expected, "{about}");
        }
    }
}

#[test]
fn a_full_context_ends_the_text() {
    let model = Tiny::letters(6).noisy(20).context(16).write();
    for drafter in DRAFTERS {
        for draft_len in ["0", "1", "3", "8", "40", "auto"] {
            for prompt_len in [1, 5, 14, 15] {
                let prompt: Vec<u32> = (0..prompt_len).map(|i| FIRST + i % 3).collect();
                let run = |max: &str| {
                    let words = format!("--seed 1 --max-tokens {max} --draft-len {draft_len}");
                    let run = generate(&words).ids(&prompt).model(&model);
                    with_drafter(run, drafter, model.path()).json()
                };
                let (object, room) = (run("100"), 16 - prompt_len as usize);
                let (reason, found) = end(&object);
                assert_eq!((reason, found.len()), ("context", room), "{drafter} {draft_len}");
                // Both limits at once: the one that was asked for is named.
                let (reason, found) = (run(&room.to_string()), found.len());
                assert_eq!(end(&reason).0, "length", "{drafter} {draft_len} {found}");
            }
        }
    }
}

#[test]
fn fable_ends_with_its_context() {
    let prompt: Vec<u32> = (100..480).collect();
    let object = generate("--seed 1 --ignore-eos").ids(&prompt).json();
    let (reason, found) = end(&object);
    assert_eq!((reason, found.len()), ("context", 4));
}

/// Beyond its own context a draft has nothing to say; the target goes on alone.
#[test]
fn the_draft_may_have_a_smaller_context() {
    let target = Tiny::letters(8).noisy(21).context(40).write();
    let draft = Tiny::letters(8).noisy(21).context(12).write();
    for prompt_len in [1, 11, 12, 13, 30] {
        let prompt: Vec<u32> = (0..prompt_len).map(|i| FIRST + i % 5).collect();
        let run = |words: &str| {
            let run = generate("--seed 2 --verify coupled").words(words).ids(&prompt);
            run.model(&target)
        };
        let plain = run("--drafter none").json();
        for length in ["1", "4", "16", "auto"] {
            let object = run("").words("--draft-len").arg(length).draft(&draft).json();
            assert_eq!(end(&object), end(&plain), "{prompt_len} {length}");
            let drafted = object["stats"]["drafted"].as_u64();
            assert_eq!(drafted > Some(0), prompt_len <= 12, "{prompt_len} {length}: {object}");
        }
        assert_eq!(tokens(&plain).len(), 40 - prompt_len as usize);
    }
}

/// A draft that knows fewer words than the target, or more, is used for those they share.
#[test]
fn the_draft_may_have_another_size() {
    let path = spell("abcdefgh");
    let target = Tiny::letters(8).path(&path).write();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    for size in [5, 20] {
        let known: Vec<u32> = path.iter().copied().take(size).collect();
        let draft = Tiny::new(&letters[..size]).path(&known).write();
        for rule in RULES {
            let run = generate("--seed 1 --max-tokens 7 --draft-len 2 --verify").arg(rule);
            let run = run.ids(&path[..1]).model(&target).draft(&draft).json();
            assert_eq!(end(&run), ("length", path[1..].to_vec()), "{size} {rule}");
        }
    }
}

/// Rows of the head beyond the tokenizer's ids are padding and never drawn, however large.
#[test]
fn padding_rows_are_never_drawn() {
    let mut words: Vec<String> = ('a'..='h').map(String::from).collect();
    let real = words.len();
    words.extend(["pad1".into(), "pad2".into()]);
    let mut model = Tiny::new(&words).noisy(22);
    for last in 0..model.vocab as u32 {
        model = model.logit(last, FIRST + real as u32, SURE);
    }
    model.tokenizer = Tiny::letters(real).tokenizer;
    let folder = model.write();
    for words in ["--temperature 0", "--seed 1 --temperature 1"] {
        for drafter in DRAFTERS {
            let run = generate(words).words("--max-tokens 20 --draft-len 3").ids(&[2]);
            let found = tokens(&with_drafter(run.model(&folder), drafter, folder.path()).json());
            assert!(
                found.iter().all(|&id| id < FIRST + real as u32),
                "{words} {drafter}: {found:?}"
            );
        }
    }
}

#[test]
fn a_prompt_must_leave_room_and_must_not_be_empty() {
    let model = Tiny::letters(4).noisy(1).context(16).write();
    let long = |len: u32| (0..len).map(|i| FIRST + i % 2).collect::<Vec<_>>();
    for drafter in DRAFTERS {
        let run = |prompt: &[u32]| {
            let run = generate("--seed 1").ids(prompt).model(&model);
            with_drafter(run, drafter, model.path())
        };
        for len in [16, 17, 1000] {
            let message = format!("the prompt has {len} tokens; the context of 16 leaves no room");
            run(&long(len)).fails(&[&message]);
        }
        assert_eq!(tokens(&run(&long(15)).json()).len(), 1);
    }
    generate("").arg("").model(&model).fails(&["the prompt is empty"]);
    generate("").model(&model).fails(&["the prompt is empty"]);
    generate("--prompt-file -").model(&model).fails(&["the prompt is empty"]);
    generate("").arg("--prompt-ids=").model(&model).fails(&["--prompt-ids"]);
    // A model with a bos can begin from nothing.
    let run = generate("--seed 1 --max-tokens 3").arg("").model(&golden("llama"));
    assert_eq!(tokens(&run.json()).len(), 3);
    let cases = read_json(golden("tokenizer_cases.json"));
    assert_eq!(ids(&cases[1]["ids"]), [1], "the empty prompt of this tokenizer is its bos");
}
