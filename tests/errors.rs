//! What goes wrong: exit code 2, a message that says what was expected, what was found and where,
//! and nothing on standard output but what was decided before.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{
        DRAFTERS, RULES, draftproof, generate, golden, read_json, text, tokens, with_drafter,
    },
    tiny::{FIRST, SURE, Tiny, byte_level, spell},
};

#[test]
fn flags_out_of_range_are_refused() {
    let model = Tiny::letters(4).noisy(1).write();
    let cases: [(&str, &[&str]); 68] = [
        ("--temperature -1", &["temperature", "expected 0 (greedy) or a positive number", "-1"]),
        ("--temperature nan", &["temperature", "expected", "NaN"]),
        ("--temperature inf", &["temperature", "expected", "inf"]),
        ("--temperature=-inf", &["temperature", "expected", "-inf"]),
        ("--temperature warm", &["--temperature", "warm"]),
        ("--temperature 0,7", &["--temperature", "0,7"]),
        ("--top-p 0", &["top-p", "above 0 and at most 1", "found 0"]),
        ("--top-p 0.00", &["top-p", "found 0"]),
        ("--top-p 1.5", &["top-p", "at most 1", "found 1.5"]),
        ("--top-p 0,9", &["--top-p", "expected a decimal number", "0,9"]),
        ("--top-p -0.1", &["--top-p", "expected a decimal number", "-0.1"]),
        ("--top-p nan", &["--top-p", "expected a decimal number", "nan"]),
        ("--top-p 9e-1", &["--top-p", "expected a decimal number", "9e-1"]),
        ("--top-p 0.0000000000000000001", &["--top-p", "18 digits"]),
        ("--min-p 2", &["min-p", "from 0 (keeps all) to 1", "found 2"]),
        ("--min-p -1", &["--min-p", "expected a decimal number", "-1"]),
        ("--min-p x", &["--min-p", "expected a decimal number", "x"]),
        ("--top-k -1", &["--top-k", "-1"]),
        ("--top-k 1.5", &["--top-k", "1.5"]),
        ("--top-k 99999999999999999999999", &["--top-k", "too large"]),
        ("--draft-len -1", &["--draft-len", "expected auto or a number from 0 to 65535", "-1"]),
        ("--draft-len x", &["--draft-len", "expected auto or a number from 0 to 65535", "x"]),
        ("--draft-len 65536", &["--draft-len", "expected auto or a number", "65536"]),
        ("--draft-len AUTO", &["--draft-len", "AUTO"]),
        ("--n 0", &["--n", "0"]),
        ("--n -1", &["--n", "-1"]),
        ("--n 5000000000", &["--n", "5000000000"]),
        ("--max-tokens -1", &["--max-tokens", "-1"]),
        ("--max-tokens many", &["--max-tokens", "many"]),
        ("--max-tokens 18446744073709551616", &["--max-tokens", "too large"]),
        ("--seed x", &["--seed", "x"]),
        ("--seed -1", &["--seed", "-1"]),
        ("--seed 18446744073709551616", &["--seed", "too large"]),
        ("--logprobs -1 --json", &["--logprobs", "-1"]),
        ("--logprobs 3", &["--json"]),
        ("--device gpu", &["device \"gpu\"", "expected one of cpu"]),
        ("--device cpu:1", &["device \"cpu:1\"", "expected one of cpu"]),
        ("--draft-device gpu", &["gpu"]),
        ("--drafter oracle", &["--drafter", "oracle", "model, ngram, early-exit, quantized, none"]),
        ("--drafter model", &["--drafter model needs --draft-model"]),
        ("--draft-model builtin:fable --drafter ngram", &["builtin:fable", "--drafter ngram"]),
        ("--draft-model builtin:fable --drafter none", &["builtin:fable", "--drafter none"]),
        ("--draft-model builtin:grimm", &["\"grimm\"", "expected one of fable"]),
        ("--draft-model builtin:fable-loop", &["\"fable-loop\"", "expected one of fable"]),
        (
            "--draft-model builtin:fable --drafter quantized",
            &["builtin:fable", "--drafter quantized"],
        ),
        ("--draft-type q4_0", &["--draft-type is not used without"]),
        ("--draft-type q4_0 --drafter ngram", &["--draft-type is not used without"]),
        ("--draft-type q4_k --drafter quantized", &["q4_k", "q4_0, q4_1, q5_0, q5_1, q8_0"]),
        (
            "--kernels general --drafter quantized",
            &["a quantised copy", "kernels that read no blocks"],
        ),
        ("--draft-model /nowhere", &["/nowhere", "expected builtin:fable, a folder"]),
        ("--initial-state zeros", &["initial state", "a looped transformer", "layers run once"]),
        ("--initial-state noise:7", &["initial state", "a looped transformer", "layers run once"]),
        ("--initial-state noise", &["--initial-state", "expected zeros or noise:SEED"]),
        ("--initial-state noise:-1", &["--initial-state", "expected zeros or noise:SEED"]),
        ("--initial-state zero", &["--initial-state", "expected zeros or noise:SEED"]),
        ("--verify always", &["--verify", "always", "rejection, block, coupled"]),
        ("--system x", &["--system is not used without --chat"]),
        ("--chat", &["--chat", "--prompt-ids"]),
        ("--chat-file turns.json", &["--chat-file", "--prompt-ids"]),
        ("--json --show-draft", &["--json", "--show-draft"]),
        ("--show-draft --n 2", &["--show-draft", "--n 2"]),
        ("--stop=", &["--stop"]),
        ("--threads 0", &["--threads", "0"]),
        ("--threads 65", &["--threads", "65"]),
        ("--threads two", &["--threads", "two"]),
        ("--kernels fast", &["--kernels", "fast", "row-invariant, amx, general"]),
        ("--draft-model synthetic:1b", &["synthetic model \"1b\"", "expected one of 100m"]),
        ("--frobnicate", &["--frobnicate"]),
    ];
    for (words, needles) in cases {
        generate(words).ids(&[2]).model(&model).fails(needles);
    }
}

#[test]
fn prompts_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    };
    let model = golden("llama");
    let command = |words: &str| generate(words).model(&model);
    let at_3 = "expected UTF-8 text, found an invalid byte at offset 3";
    let latin = file("latin.txt", b"caf\xE9");
    command("").arg("--prompt-file").arg(&latin).fails(&["latin.txt", at_3]);
    command("").stdin(*b"caf\xE9").fails(&["standard input", at_3]);
    command("--prompt-file /nowhere/p.txt").fails(&["/nowhere/p.txt", "No such file"]);
    command("").arg("--prompt-file").arg(folder.path()).fails(&["directory"]);
    command("--prompt-ids 5,320").fails(&["--prompt-ids", "id 320", "vocabulary of 320 ids"]);
    command("--prompt-ids 4294967295").fails(&["--prompt-ids", "4294967295"]);
    command("--prompt-ids 4294967296").fails(&["--prompt-ids", "4294967296"]);
    command("--prompt-ids 1,,2").fails(&["--prompt-ids"]);
    command("--prompt-ids -1").fails(&["--prompt-ids", "-1"]);
    command("--prompt-ids one").fails(&["--prompt-ids", "one"]);
    command("--prompt-ids 1").arg("x").fails(&["--prompt-ids", "cannot be used with"]);
    command("--prompt-file y").arg("x").fails(&["--prompt-file", "cannot be used with"]);
    command("--prompt-file y --prompt-ids 1").fails(&["--prompt-file", "cannot be used with"]);
    command("one two").fails(&["two"]);
    let silent = Tiny::letters(4).noisy(1).without_tokenizer().write();
    generate("hello").model(&silent).fails(&["has no tokenizer", "--prompt-ids"]);
    generate("--stop x --prompt-ids 2").model(&silent).fails(&["has no tokenizer", "--stop"]);
    #[cfg(unix)]
    {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        command("").arg(OsStr::from_bytes(b"caf\xE9")).fails(&["UTF-8"]);
    }
}

#[test]
fn commands_that_are_none_are_refused() {
    draftproof("").fails(&["Usage"]);
    draftproof("conjure").fails(&["conjure"]);
}

/// A model folder, changed after it was written.
fn spoilt(spoil: impl Fn(&Path)) -> TempDir {
    let folder = Tiny::letters(4).noisy(1).write();
    spoil(folder.path());
    folder
}

/// Expects the same refusal whether the folder is the target or the draft.
fn is_refused(folder: &TempDir, needles: &[&str]) {
    let good = Tiny::letters(4).noisy(1).write();
    generate("--seed 1").ids(&[2]).model(folder).fails(needles);
    generate("--seed 1").ids(&[2]).model(&good).draft(folder).fails(needles);
}

#[test]
fn folders_without_a_model_are_refused() {
    for name in ["/nowhere", "nowhere", "builtin", "model.gguf", "hf", ""] {
        let needles = ["no model at", name, "expected builtin:fable, a folder"];
        generate("x --model").arg(name).fails(&needles);
    }
    generate("x --model builtin:grimm").fails(&["\"grimm\"", "expected one of fable"]);
    let file = golden("README.md");
    generate("x --model").arg(&file).fails(&["README.md", "expected \"GGUF\" at its beginning"]);
    let empty = tempfile::tempdir().expect("a temporary folder");
    is_refused(&empty, &["expected config.json"]);
    for (missing, expected) in [("config.json", "config.json"), (WEIGHTS, WEIGHTS)] {
        let folder = spoilt(|folder| fs::remove_file(folder.join(missing)).expect("removed"));
        let place = folder.path().display().to_string();
        is_refused(&folder, &[&place, "expected", expected, "found no such file"]);
    }
    let folder = spoilt(|folder| {
        fs::remove_file(folder.join(WEIGHTS)).expect("removed");
        fs::create_dir(folder.join(WEIGHTS)).expect("created");
    });
    is_refused(&folder, &[WEIGHTS, "expected a file, found a folder"]);
}

const WEIGHTS: &str = "model.safetensors";

#[test]
fn weights_that_are_cut_off_or_corrupted_are_refused() {
    let whole = Tiny::letters(4).noisy(1).safetensors();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("8 bytes")) as usize;
    let with_length = |length: u64| [&length.to_le_bytes()[..], &whole[8..]].concat();
    let data = (whole.len() - header).to_string();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "expected 8 bytes of header length, found 0 bytes"),
        (whole[..7].to_vec(), "found 7 bytes"),
        (whole[..8].to_vec(), "expected a header of at most 0 bytes"),
        (whole[..header - 1].to_vec(), "expected a header of at most"),
        (whole[..header].to_vec(), "bytes of tensor data, found 0 bytes"),
        (whole[..whole.len() - 1].to_vec(), "bytes of tensor data"),
        ([&whole[..], b"!"].concat(), "bytes of tensor data"),
        (with_length(u64::MAX), "18446744073709551615"),
        (with_length(1 << 40), "1099511627776"),
        (with_length(2), WEIGHTS),
        ([&whole[..8], b"\xff\xfe", &whole[10..]].concat(), WEIGHTS),
        ([&8_u64.to_le_bytes()[..], b"[1,2,3] "].concat(), WEIGHTS),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "expected a header"),
    ];
    for (bytes, needle) in cases {
        let folder = spoilt(|folder| fs::write(folder.join(WEIGHTS), &bytes).expect("written"));
        is_refused(&folder, &[WEIGHTS, "draftproof: ", needle]);
    }
    let cut = spoilt(|folder| {
        fs::write(folder.join(WEIGHTS), &whole[..whole.len() - 1]).expect("written");
    });
    is_refused(&cut, &[&format!("expected {data} bytes")]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    let good = || Tiny::letters(4).noisy(1);
    let refused = |model: Tiny, needles: &[&str]| is_refused(&model.write(), needles);
    for name in good().tensors.keys() {
        let mut model = good();
        model.tensors.remove(name);
        refused(model, &[name, "expected shape", "no such tensor"]);
    }
    let mut model = good();
    model.tensors.insert(Q.into(), (vec![16, 2], vec![0.0; 32]));
    refused(model, &[WEIGHTS, Q, "expected shape [2, 16]", "found [16, 2]"]);
    let mut model = good();
    model.tensors.insert("model.layers.1.mlp.up_proj.weight".into(), (vec![1], vec![0.0]));
    refused(model, &["model.layers.1.mlp.up_proj.weight", "no use for"]);
    let mut model = good();
    model.config["num_hidden_layers"] = 2.into();
    refused(model, &["model.layers.1.", "no such tensor"]);
    let mut model = good();
    model.config["vocab_size"] = 7.into();
    refused(model, &["model.embed_tokens.weight", "expected shape [7, 16]", "found [6, 16]"]);
    let mut model = good();
    model.config["tie_word_embeddings"] = true.into();
    refused(model, &["lm_head.weight", "ties the two"]);
    // A type that cannot be read, and sizes that cannot be.
    let header = |from: &str, to: &str| {
        let bytes = good().safetensors();
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let text = std::str::from_utf8(&bytes[8..8 + length]).expect("a header");
        let text = text.replacen(from, to, 1);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[8 + length..]].concat()
    };
    for (from, to) in [
        ("\"F32\"", "\"I32\""),
        ("\"F32\"", "\"Q4\""),
        ("\"shape\":[6,16]", "\"shape\":[6,17]"),
        ("\"shape\":[6,16]", "\"shape\":[18446744073709551615,16]"),
        ("\"shape\":[6,16]", "\"shape\":[-6,16]"),
        ("\"data_offsets\":[0,", "\"data_offsets\":[4,"),
        ("\"data_offsets\":[0,", "\"data_offsets\":[9223372036854775807,"),
    ] {
        let bytes = header(from, to);
        assert_ne!(bytes, good().safetensors(), "{from} is not in the header");
        let folder = spoilt(|folder| fs::write(folder.join(WEIGHTS), &bytes).expect("written"));
        is_refused(&folder, &[WEIGHTS]);
    }
}

/// What a family would have to do and does not, by the field that asks for it.
#[test]
fn configurations_beyond_a_family_are_refused() {
    for (name, field, value) in [
        ("phi3", "rope_scaling", json!({"type": "longrope", "long_factor": [1.0]})),
        ("qwen2", "layer_types", json!(["full_attention"])),
        ("gemma3", "attn_logit_softcapping", json!(50.0)),
        ("gpt2", "activation_function", json!("relu")),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = read_json(golden(name).join("config.json"));
        config[field] = value;
        fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        fs::copy(golden(name).join(WEIGHTS), folder.path().join(WEIGHTS)).expect("copied");
        is_refused(&folder, &["config.json", field, "expected"]);
    }
}

#[test]
fn files_beside_the_weights_that_do_not_fit_are_refused() {
    type Spoil = fn(&mut Tiny);
    let cases: [(&[&str], Spoil); 15] = [
        (&["config.json", "model_type", "mamba"], |m| m.config["model_type"] = "mamba".into()),
        (&["config.json"], |m| m.config = json!([])),
        (&["config.json", "hidden_act", "gelu"], |m| m.config["hidden_act"] = "gelu".into()),
        (&["config.json", "sliding_window"], |m| m.config["sliding_window"] = 8.into()),
        (&["config.json", "vocab_size"], |m| m.config["vocab_size"] = 0.into()),
        (&["config.json"], |m| m.config["hidden_size"] = (-16).into()),
        (&["config.json", "hidden_size"], |m| m.config["hidden_size"] = (1_u64 << 40).into()),
        (&["config.json", "max_position_embeddings"], |m| {
            m.config["max_position_embeddings"] = (1_u64 << 30).into();
        }),
        (&["generation_config.json"], |m| m.generation = Some(json!({"top_k": "many"}))),
        (&["generation_config.json", "top_p"], |m| m.generation = Some(json!({"top_p": -1.0}))),
        (&["generation_config.json", "expected an id", "list of ids"], |m| {
            m.generation = Some(json!({"eos_token_id": "</s>"}));
        }),
        (&["tokenizer.json"], |m| m.tokenizer = Some(json!({"version": "1.0"}))),
        (&["tokenizer.json"], |m| m.tokenizer = Some(Value::Null)),
        (&["tokenizer_config.json", "eos_token", "<end>"], |m| {
            m.tokenizer_config = Some(json!({"eos_token": "<end>"}));
        }),
        (&["tokenizer_config.json"], |m| m.tokenizer_config = Some(json!(7))),
    ];
    for (needles, spoil) in cases {
        let mut model = Tiny::letters(4).noisy(1);
        spoil(&mut model);
        is_refused(&model.write(), needles);
    }
    // Only a target's recommendations are followed, so only there a wrong one matters.
    let mut model = Tiny::letters(4).noisy(1);
    model.generation = Some(json!({"top_p": 1.5}));
    let needles = ["generation_config.json", "top-p", "found 1.5"];
    generate("").ids(&[2]).model(&model.write()).fails(&needles);
    generate("--top-p 1 --max-tokens 2").ids(&[2]).model(&model.write()).ok();
    for file in ["config.json", "tokenizer.json"] {
        for bytes in [&b""[..], b"{", b"\xff\xfe{}", b"{\"a\":"] {
            let folder = spoilt(|folder| fs::write(folder.join(file), bytes).expect("written"));
            is_refused(&folder, &[file]);
        }
    }
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    const INDEX: &str = "model.safetensors.index.json";
    let copy = |spoil: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in fs::read_dir(golden("llama-sharded")).expect("a folder").flatten() {
            fs::copy(file.path(), folder.path().join(file.file_name())).expect("copied");
        }
        spoil(folder.path());
        folder
    };
    let refused = |spoil: &dyn Fn(&Path), needles: &[&str]| {
        generate("x --seed 1").model(&copy(spoil)).fails(needles);
    };
    generate("x --seed 1 --max-tokens 2").model(&copy(&|_| ())).ok();
    let second = "model-00002-of-00002.safetensors";
    refused(&|folder| fs::remove_file(folder.join(second)).expect("removed"), &[second]);
    let edit = |from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let text = fs::read_to_string(folder.join(INDEX)).expect("an index");
            fs::write(folder.join(INDEX), text.replace(from, to)).expect("written");
        }
    };
    refused(&edit(second, "../elsewhere.safetensors"), &[INDEX, "weight_map", "elsewhere"]);
    refused(&edit(second, "model-00001-of-00002.safetensors"), &["tensor", "model-00001"]);
    refused(&edit("weight_map", "weights"), &[INDEX]);
    refused(&edit("model.norm.weight", "model.norm.bias"), &["model.norm"]);
}

/// A model whose rows are NaN from the token `path[at]` on.
pub(crate) fn breaks_after(path: &[u32], at: usize, value: f32) -> Tiny {
    let mut model = Tiny::letters(8).path(path);
    model.embedding(path[at])[0] = value;
    model
}

/// What was decided before stays on standard output. A draft may bring the end forward by some
/// tokens; [`bits`](crate::bits) has the test that it must not.
#[test]
fn nan_in_the_target_is_an_error_that_says_where() {
    let path = spell("abcdefgh");
    let broken = breaks_after(&path, 3, f32::NAN).write();
    let draft = Tiny::letters(8).path(&path).write();
    for rule in RULES {
        for drafter in DRAFTERS {
            for draft_len in ["1", "2", "3", "8"] {
                let words = format!("--temperature 0 --verify {rule} --draft-len {draft_len}");
                let run = generate(&words).ids(&path[..1]).model(&broken);
                let finished = with_drafter(run, drafter, draft.path()).run();
                assert_eq!(finished.stdout, "bcd", "{words} {drafter}");
                finished.failed(&["position 4 ", "the logit of token 0 is NaN", "expected"]);
            }
        }
    }
    // An unusable row behind the end of the text is nobody's business.
    for words in ["--max-tokens 3", "--stop d"] {
        generate(words).ids(&path[..1]).model(&broken).words("--drafter none").ok();
    }
}

#[test]
fn other_unusable_rows_are_told_apart() {
    let path = spell("abcd");
    let huge = Tiny::letters(4).path(&path).logit(path[2], path[1], f32::INFINITY);
    // The head is finite; the product is not.
    let mut model = huge.clone();
    for logit in model.tensor("lm_head.weight") {
        *logit = logit.clamp(-3e38, 3e38);
    }
    let run = generate("--seed 1").ids(&path[..1]).model(&model.write()).run();
    assert_eq!(run.stdout, "bc");
    run.failed(&["position 3 ", &format!("the logit of token {} is inf", path[1])]);
    let mut banned = Tiny::letters(4).path(&path);
    for token in 0..banned.vocab as u32 {
        banned = banned.logit(path[2], token, f32::NEG_INFINITY);
    }
    for logit in banned.tensor("lm_head.weight") {
        *logit = logit.clamp(-3e38, 3e38);
    }
    let run = generate("--seed 1").ids(&path[..1]).model(&banned.write()).run();
    assert_eq!(run.stdout, "bc");
    run.failed(&["position 3 ", "logits"]);
    // Every weight NaN.
    let mut model = Tiny::letters(4).path(&path);
    for name in model.tensors.keys().cloned().collect::<Vec<_>>() {
        model.tensor(&name).fill(f32::NAN);
    }
    generate("--seed 1").ids(&path[..1]).model(&model.write()).fails(&["position 1 ", "NaN"]);
}

/// With JSON nothing is printed of a text that could not be finished.
#[test]
fn a_run_that_fails_prints_no_json() {
    let path = spell("abcdefgh");
    let broken = breaks_after(&path, 3, f32::NAN).write();
    let run = generate("--seed 1 --json --n 2").ids(&path[..1]).model(&broken);
    run.fails(&["position 4 ", "NaN"]);
}

#[test]
fn nan_in_the_draft_is_a_warning() {
    let path = spell("abcdefgh");
    let target = Tiny::letters(8).path(&path).write();
    for (at, value) in [(0, f32::NAN), (2, f32::NAN), (2, f32::INFINITY)] {
        let broken = breaks_after(&path, at, value).write();
        for rule in RULES {
            let run = generate("--seed 1 --max-tokens 7 --draft-len 3 --verify").arg(rule);
            let run = run.ids(&path[..1]).model(&target).draft(&broken).arg("--json").ok();
            let object = &run.objects()[0];
            assert_eq!((text(object), tokens(object)), ("bcdefgh", path[1..].to_vec()));
            let warning = format!("draftproof: warning: the draft's row for position {}", at + 1);
            assert!(run.stderr.contains(&warning), "{warning:?} is not in {}", run.stderr);
            assert_eq!(run.stderr.matches("warning").count(), 1, "{}", run.stderr);
            assert!(object["stats"]["unusable_draft_rows"].as_u64() > Some(0), "{object}");
        }
    }
}

#[test]
fn a_draft_with_another_vocabulary_is_refused() {
    let target = Tiny::letters(8).noisy(1);
    let with_tokenizer = |words: &[&str]| {
        let mut draft = Tiny::letters(words.len()).noisy(1);
        draft.tokenizer = Some(byte_level(words));
        draft
    };
    let refused = |draft: &Tiny, needles: &[&str]| {
        let (target, draft) = (target.write(), draft.write());
        let run = generate("--seed 1").ids(&[2]).model(&target).draft(&draft);
        run.fails(&[&["cannot be used with the target"], needles].concat());
    };
    // Too few in common for a map: the special tokens and two letters, where five would do.
    let id_of_b = format!("token {} is \"b\" in the target and \"x\" in the draft", FIRST + 1);
    let few = "only 4 strings are in both, where 5 are needed";
    refused(&with_tokenizer(&["a", "x", "y", "z", "e", "u", "v", "w"]), &[&id_of_b, few]);
    let id_of_a = format!("token {FIRST} is \"a\" in the target and \"b\" in the draft");
    refused(&with_tokenizer(&["b", "x", "y", "z", "e", "u", "v", "w"]), &[&id_of_a, few]);
    // Without strings only the sizes can be compared.
    refused(&Tiny::letters(7).noisy(1).without_tokenizer(), &["10 ids", "9"]);
    let target = target.write();
    let silent = Tiny::letters(8).noisy(1).without_tokenizer().write();
    generate("--seed 1 --max-tokens 2").ids(&[2]).model(&target).draft(&silent).ok();
}

/// Filters never leave nothing, however narrow.
#[test]
fn the_narrowest_filters_leave_the_likeliest() {
    let path = spell("abcd");
    let model = Tiny::letters(4).path(&path).logit(path[0], path[2], SURE - 1.0).write();
    for words in [
        "--temperature 0",
        "--temperature 1e-300",
        "--top-k 1",
        "--top-p 0.00000000000000001",
        "--min-p 1",
        "--top-k 1 --top-p 0.1 --min-p 1 --temperature 100",
    ] {
        let run = generate("--seed 1 --max-tokens 3").words(words).ids(&path[..1]).model(&model);
        assert_eq!(run.ok().stdout, "bcd", "{words}");
    }
}
