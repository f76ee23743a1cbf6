//! Drafts of another vocabulary change the speed, not the text; `draftproof pair` explains them.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{RULES, draftproof, generate, golden, text, tokens},
    tiny::{FIRST, SURE, Tiny, byte_level, spell},
};

/// The letters of [`Tiny::letters`] backwards: the same strings under other ids.
const BACKWARDS: [&str; 8] = ["h", "g", "f", "e", "d", "c", "b", "a"];

/// The id of a letter in a model of [`BACKWARDS`].
fn backwards(letter: u32) -> u32 {
    if letter < FIRST { letter } else { 2 * FIRST + 7 - letter }
}

/// A model whose word of each id is another one.
fn with_words(mut model: Tiny, words: &[&str]) -> Tiny {
    model.tokenizer = Some(byte_level(words));
    model
}

fn text_file(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("text.txt");
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn a_draft_with_other_ids_for_the_same_strings_drafts() {
    let path = spell("abcdefgh");
    let target = Tiny::letters(8).path(&path).write();
    let same: Vec<u32> = path.iter().map(|&letter| backwards(letter)).collect();
    let draft = with_words(Tiny::letters(8).path(&same), &BACKWARDS).write();
    for rule in RULES {
        let words = format!("--seed 1 --max-tokens 7 --draft-len 3 --json --verify {rule}");
        let run = generate(&words).ids(&path[..1]).model(&target).draft(&draft).ok();
        let object = &run.objects()[0];
        assert_eq!(text(object), "bcdefgh");
        let [drafted, accepted] = ["drafted", "accepted"].map(|key| &object["stats"][key]);
        assert!(drafted.as_u64() >= Some(5) && drafted == accepted, "{object}");
        let said = "token 2 is \"a\" in the target and \"h\" in the draft: ids are translated; 10 of \
                    the target's 10 tokens are in both";
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
}

/// Greedy and coupled text is that without a draft, however little the two have in common.
#[test]
fn the_drafts_vocabulary_never_changes_the_text() {
    let target = Tiny::letters(8).noisy(1).write();
    let words = [
        &BACKWARDS[..],
        &["a", "b", "c", "x", "e", "f", "g", "h"],
        // Trimmed, and longer; a word of which the target knows nothing in front.
        &["c", "b", "a", "d", "e"],
        &["xy", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
    ];
    let mut drafts: Vec<TempDir> = words
        .iter()
        .map(|words| with_words(Tiny::letters(words.len()).noisy(2), words).write())
        .collect();
    // The end of the text has another name.
    let mut other_end = Tiny::letters(8).noisy(3);
    let tokenizer = other_end.tokenizer.take().expect("a tokenizer").to_string();
    let tokenizer = tokenizer.replace("</s>", "<end>");
    other_end.tokenizer = Some(serde_json::from_str(&tokenizer).expect("JSON"));
    drafts.push(other_end.write());
    for settings in ["--temperature 0", "--verify coupled", "--temperature 0 --verify block"] {
        let run = || {
            let words = "--seed 7 --max-tokens 40 --draft-len 3";
            generate(words).words(settings).ids(&[FIRST]).model(&target)
        };
        let plain = tokens(&run().words("--drafter none").json());
        for draft in &drafts {
            let object = run().draft(draft).json();
            assert_eq!(tokens(&object), plain, "{settings}");
            assert!(object["stats"]["drafted"].as_u64() > Some(0), "{object}");
        }
        // A real model's vocabulary has all letters, among thousands of others.
        let object = run().words("--draft-model builtin:fable").json();
        assert_eq!(tokens(&object), plain, "{settings}");
    }
}

/// Rows of the head that pad it are never drafted, though all real logits are far below them.
#[test]
fn padding_of_a_mapped_draft_is_never_drafted() {
    let target = Tiny::letters(6).write();
    let mut draft = with_words(Tiny::letters(8), &["f", "e", "d", "c", "b", "a"]);
    let vocab = draft.vocab as u32;
    for last in 0..vocab {
        for token in 0..vocab {
            draft = draft.logit(last, token, if token < vocab - 2 { -9.0 } else { SURE });
        }
    }
    let draft = draft.write();
    let words = "--seed 1 --max-tokens 50 --ignore-eos --draft-len 3";
    let object = generate(words).ids(&[FIRST]).model(&target).draft(&draft).json();
    let stats = &object["stats"];
    // Both laws are uniform over the same tokens.
    assert!(stats["drafted"].as_u64() >= Some(30), "{stats}");
    assert_eq!((&stats["accepted"], &stats["alpha"]), (&stats["drafted"], &json!(1.0)));
}

#[test]
fn a_text_with_a_token_that_the_draft_lacks_is_written_without_it() {
    let path = spell("abcdefgh");
    let target = Tiny::letters(8).path(&path).write();
    let words = ["h", "g", "f", "e", "x", "c", "b", "a"];
    let same: Vec<u32> = path.iter().map(|&letter| backwards(letter)).collect();
    let draft = with_words(Tiny::letters(8).path(&same), &words).write();
    let run = generate("--seed 1 --max-tokens 7 --draft-len 2 --json").ids(&path[..1]);
    let run = run.model(&target).draft(&draft).ok();
    let object = &run.objects()[0];
    assert_eq!(text(object), "bcdefgh");
    let warning = format!("warning: the draft does not know token {}", path[3]);
    assert!(run.stderr.contains(&warning), "{}", run.stderr);
}

fn pair(target: &TempDir, draft: &TempDir) -> crate::harness::Run {
    draftproof("pair").arg(target.path()).arg(draft.path())
}

/// One object, as `--json` prints it.
fn found(run: crate::harness::Run) -> Value {
    run.json()
}

#[test]
fn pair_says_what_two_models_share_and_what_drafting_gains() {
    let command = || draftproof("pair").arg(golden("pair-target")).arg(golden("pair-draft"));
    let object = found(command());
    let number = |pointer: &str| {
        let value = object.pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{pointer}: {object}"))
    };
    assert_eq!(object["usable"], true);
    assert_eq!(object["vocabulary"], json!({"ids": "same", "compared": "strings", "shared": 320}));
    let alpha = number("/gain/alpha");
    assert!(alpha > 0.0 && alpha < 1.0, "{object}");
    assert!(number("/gain/c") > 0.0 && number("/gain/positions") > 100.0, "{object}");
    assert_eq!(object["gain"]["v"].as_array().expect("a list").len(), 16);
    assert!(number("/gain/predicted_speedup") >= 1.0, "a draft of length 0 is plain decoding");
    let run = command().ok();
    for line in [
        "target: pair-target, 320 tokens\n",
        "draft: pair-draft, 320 tokens\n",
        "ids: the same for the same strings\n",
        &format!("alpha: {alpha:.3}, "),
        "v(1) to v(9): 1.00 ",
        "draft step c: ",
        "best draft length: ",
    ] {
        assert!(run.stdout.contains(line), "{line:?} is not in {}", run.stdout);
    }
}

/// Logits that are all 0 make laws that are known: uniform over what both have.
#[test]
fn alpha_is_that_of_the_laws() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = text_file(&folder, "abcabcab");
    let target = Tiny::letters(4).write();
    let alpha = |draft: &TempDir, words: &str| {
        let object = found(pair(&target, draft).words(words).arg("--prompt-file").arg(&file));
        assert_eq!(object["gain"]["positions"], 8, "{object}");
        object["gain"]["alpha"].as_f64().expect("a number")
    };
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
    close(alpha(&target, ""), 1.0);
    close(alpha(&with_words(Tiny::letters(4), &["d", "c", "b", "a"]).write(), ""), 1.0);
    // Six tokens; the draft lacks one, and has the law of a sixth less than all.
    let lacks = with_words(Tiny::letters(4), &["b", "c", "a", "x"]).write();
    close(alpha(&lacks, ""), 5.0 / 6.0);
    // Greedy: the lowest id, which both have.
    close(alpha(&lacks, "--temperature 0"), 1.0);
    // Cut off: no map needed, and as little in common.
    close(alpha(&Tiny::letters(3).write(), ""), 5.0 / 6.0);
}

/// The text is cut to what both contexts hold, with room for the passes that are timed.
#[test]
fn a_draft_with_a_shorter_context_is_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = text_file(&folder, &"abcd".repeat(20));
    let target = Tiny::letters(4).write();
    let short = Tiny::letters(4).context(40).write();
    let object = found(pair(&target, &short).arg("--prompt-file").arg(&file));
    assert_eq!(object["gain"]["positions"], 40);
    assert!(object["gain"]["alpha"].as_f64() > Some(1.0 - 1e-9), "{object}");
    assert!(object["gain"]["c"].as_f64() > Some(0.0), "{object}");
}

#[test]
fn pair_tells_where_the_draft_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = text_file(&folder, "abcdabcd");
    let target = Tiny::letters(4).write();
    let lacks = with_words(Tiny::letters(4), &["b", "c", "a", "x"]).write();
    let command = || pair(&target, &lacks).arg("--prompt-file").arg(&file);
    let object = found(command());
    assert_eq!((&object["gain"]["positions"], &object["gain"]["lost"]), (&json!(8), &json!(5)));
    assert_eq!(object["vocabulary"]["ids"], "other");
    let difference = json!({"id": FIRST, "in_target": "a", "in_draft": "b"});
    assert_eq!(object["vocabulary"]["first_difference"], difference);
    let run = command().ok();
    for line in [
        "the first is 2, \"a\" in the target and \"b\" in the draft\n",
        "in both: 5 tokens, 83.3 % of the target's and 83.3 % of the draft's",
        "lost: 5 positions",
    ] {
        assert!(run.stdout.contains(line), "{line:?} is not in {}", run.stdout);
    }
}

#[test]
fn models_that_make_no_pair_are_exit_code_1() {
    let target = Tiny::letters(8).write();
    let strangers = with_words(Tiny::letters(8), &["p", "q", "r", "s", "t", "u", "v", "h"]).write();
    let run = pair(&target, &strangers).run();
    assert_eq!(run.code, 1, "{}", run.stderr);
    for needle in ["no pair: ", "token 2 is \"a\" in the target and \"p\" in the draft", "only 3"] {
        assert!(run.stdout.contains(needle), "{needle:?} is not in {}", run.stdout);
    }
    let silent = Tiny::letters(7).without_tokenizer().write();
    let run = pair(&target, &silent).words("--json").run();
    assert_eq!(run.code, 1, "{}", run.stderr);
    let object = &run.objects()[0];
    assert_eq!((&object["usable"], &object["vocabulary"]), (&json!(false), &Value::Null));
    let reason = object["reason"].as_str().expect("a reason");
    assert!(reason.contains("10 ids, the draft 9"), "{reason}");
    // Input that is none stays exit code 2.
    draftproof("pair builtin:fable /nowhere").fails(&["/nowhere"]);
    draftproof("pair builtin:fable").fails(&["DRAFT"]);
    draftproof("pair builtin:fable builtin:fable --prompt-file /nowhere").fails(&["/nowhere"]);
    let silent = Tiny::letters(8).without_tokenizer().write();
    let run = pair(&silent, &silent).ok();
    assert!(run.stdout.contains("only sizes can be compared"), "{}", run.stdout);
}
