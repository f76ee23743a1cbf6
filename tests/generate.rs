//! What `generate` prints, where, in which form, and what each flag of it does when all is well.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{
    harness::{
        DRAFTERS, RULES, draftproof, generate, golden, ids, read_json, text, tokens, with_drafter,
    },
    tiny::{self, EOS, SURE, Tiny, byte_of, noisy_logit, spell},
};

#[test]
fn text_goes_to_stdout_and_the_summary_to_stderr() {
    let command = || generate("--seed 1 --max-tokens 12").arg("Once upon a time");
    let run = command().ok();
    assert!(!run.stdout.is_empty());
    for figure in [
        "12 tokens in ",
        "tokens/s · length · seed 1\n",
        "fable/target with fable/draft",
        "tokens per round",
        "drafted tokens accepted",
        "accepted by position: ",
        "alpha ",
        "draft step c ",
        "verify pass v ",
        "predicted speed-up ",
        "entropy ",
        "eligible tokens",
        "time: draft ",
    ] {
        assert!(run.stderr.contains(figure), "{figure:?} is not in {}", run.stderr);
    }
    let object = command().json();
    assert_eq!(run.stdout, text(&object));
    assert!(!command().arg("--json").ok().stderr.contains("tokens/s"));
}

#[test]
fn the_prompt_may_come_from_anywhere() {
    let cases = read_json("crates/model/tests/golden/tokenizer_cases.json");
    let prompt = cases[0]["text"].as_str().expect("a text");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("prompt.txt");
    fs::write(&file, prompt).expect("written");
    let model = golden("pair-target");
    let command = || generate("--seed 3 --max-tokens 8").model(&model);
    let runs = [
        command().arg(prompt),
        command().arg("--prompt-file").arg(&file),
        command().words("--prompt-file -").stdin(prompt),
        command().stdin(prompt),
        command().ids(&ids(&cases[0]["ids"])),
    ];
    let found: BTreeSet<Vec<u32>> = runs.map(|run| tokens(&run.json())).into();
    assert_eq!(found.len(), 1, "{found:?}");
    let other = tokens(&command().arg(format!("{prompt}\n")).json());
    assert!(!found.contains(&other), "the prompt has no influence");
}

#[test]
fn json_has_every_key_that_scripts_rely_on() {
    let is_u64 = |value: &Value| value.as_str().is_some_and(|text| text.parse::<u64>().is_ok());
    let is_share = |value: &Value| value.as_f64().is_some_and(|x| (0.0..=1.0).contains(&x));
    let is_positive = |value: &Value| value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite());
    let shares = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(is_share));
    let is_hash = |value: &Value| {
        value
            .as_str()
            .is_some_and(|text| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    type Fits<'a> = &'a dyn Fn(&Value) -> bool;
    let keys: [(&str, Fits<'_>); 21] = [
        ("/text", &Value::is_string),
        ("/tokens", &|value| ids(value).len() == 24),
        ("/finish_reason", &|value| value == "length"),
        ("/contract", &is_hash),
        ("/seed", &is_u64),
        ("/sequence", &is_u64),
        ("/stats/rounds", &Value::is_u64),
        ("/stats/drafted", &Value::is_u64),
        ("/stats/accepted", &Value::is_u64),
        ("/stats/tokens_per_round", &is_positive),
        ("/stats/acceptance_by_position", &shares),
        ("/stats/alpha", &is_share),
        ("/stats/c", &is_positive),
        ("/stats/v_verify", &is_positive),
        ("/stats/entropy_bits", &is_positive),
        ("/stats/eligible_tokens", &is_positive),
        ("/stats/tokens_per_second", &is_positive),
        ("/stats/predicted_speedup", &is_positive),
        ("/stats/share/draft", &is_share),
        ("/stats/share/verify", &is_share),
        ("/stats/share/sampler", &is_share),
    ];
    let object = generate("--seed 5 --draft-len 4 --max-tokens 24").arg("The king said").json();
    for (key, fits) in keys {
        let value = object.pointer(key).unwrap_or_else(|| panic!("{key} is missing: {object}"));
        assert!(fits(value), "{key}: {value}");
    }
    let stats = &object["stats"];
    let shares = ["draft", "verify", "sampler", "other"].map(|part| &stats["share"][part]);
    let all: f64 = shares.iter().filter_map(|share| share.as_f64()).sum();
    assert!((all - 1.0).abs() < 1e-6, "{shares:?}");
    let count = |key: &str| stats[key].as_u64().expect("a count");
    assert!(count("accepted") <= count("drafted"));
    // Each round adds one token to those it accepts; here nothing but the last round was cut.
    assert_eq!(count("accepted") + count("rounds"), 24);
    let per_round = stats["tokens_per_round"].as_f64().expect("a number");
    assert!((per_round - 24.0 / count("rounds") as f64).abs() < 1e-9);
    assert!(object.get("logprobs").is_none(), "nobody asked for log-probabilities");
}

#[test]
fn figures_that_do_not_exist_are_null() {
    let model = Tiny::letters(6).noisy(1).write();
    let command = |words: &str| generate("--seed 1").words(words).ids(&[2]).model(&model);
    let stats = |words: &str| command(words).json()["stats"].clone();
    for key in ["alpha", "c", "v_verify", "predicted_speedup"] {
        let plain = stats("--drafter none --max-tokens 6");
        assert_eq!(plain[key], Value::Null, "{key} without a draft");
        assert_eq!(stats("--max-tokens 0")[key], Value::Null, "{key} of nothing");
    }
    for key in ["tokens_per_round", "entropy_bits", "eligible_tokens"] {
        assert_eq!(stats("--max-tokens 0")[key], Value::Null, "{key} of nothing");
    }
    // A race proposes its winner with certainty, so there is no q to overlap with p.
    let coupled = command("--max-tokens 6 --verify coupled --draft-len 2").draft(&model).json();
    assert_eq!(coupled["stats"]["alpha"], Value::Null);
    assert!(coupled["stats"]["drafted"].as_u64() > Some(0));
    let silent = Tiny::letters(6).noisy(1).without_tokenizer().write();
    let object = generate("--seed 1 --max-tokens 6").ids(&[2]).model(&silent).json();
    assert_eq!((&object["text"], tokens(&object).len()), (&Value::Null, 6));
}

/// The bytes of each token of `tokenizer.json`, read by other means than the program's.
fn words(tokenizer: &Value) -> Vec<Vec<u8>> {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut words = vec![Vec::new(); vocab.len()];
    for (written, id) in vocab {
        words[id.as_u64().expect("an id") as usize] = written.chars().map(byte_of).collect();
    }
    for special in tokenizer["added_tokens"].as_array().expect("a list") {
        words[special["id"].as_u64().expect("an id") as usize].clear();
    }
    words
}

#[test]
fn the_text_is_that_of_the_tokens() {
    let fable = read_json("models/fable/target/tokenizer.json");
    let llama = read_json("crates/model/tests/golden/llama/tokenizer.json");
    let runs = [
        (fable, generate("--seed 2 --max-tokens 30").arg("There was")),
        (llama, generate("--seed 2 --max-tokens 60").arg("There was").model(&golden("llama"))),
    ];
    for (tokenizer, run) in runs {
        let words = words(&tokenizer);
        let object = run.json();
        let bytes: Vec<u8> =
            tokens(&object).iter().flat_map(|&id| words[id as usize].clone()).collect();
        assert_eq!(text(&object), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn n_continuations_differ_and_do_not_disturb_each_other() {
    let model = Tiny::letters(12).noisy(3).write();
    let command = |words: &str| {
        generate("--seed 9 --max-tokens 14 --draft-len 3")
            .words(words)
            .ids(&[5])
            .model(&model)
            .draft(&model)
    };
    // 35 are more than run in one batch.
    let many = command("--n 35").jsons();
    assert_eq!(many.len(), 35);
    for (i, object) in many.iter().enumerate() {
        assert_eq!(object["sequence"], i.to_string());
        assert_eq!(object["seed"], "9");
    }
    let distinct: BTreeSet<Vec<u32>> = many.iter().map(tokens).collect();
    assert_eq!(distinct.len(), 35);
    let three = command("--n 3").jsons();
    let all = |objects: &[Value]| objects.iter().map(tokens).collect::<Vec<_>>();
    assert_eq!(all(&three), all(&many[..3]));
    assert_eq!(tokens(&command("").json()), tokens(&three[0]));
    let printed = command("--n 3").ok().stdout;
    let lines: String = three.iter().map(|object| format!("{}\n", text(object))).collect();
    assert_eq!(printed, lines);
}

/// ln of the softmax of the table's row.
fn log_softmax(logit: impl Fn(u32) -> f32, vocab: u32, token: u32) -> f64 {
    let sum: f64 = (0..vocab).map(|other| f64::from(logit(other)).exp()).sum();
    f64::from(logit(token)) - sum.ln()
}

#[test]
fn logprobs_are_those_of_the_table_with_any_draft() {
    let model = Tiny::letters(14).noisy(4).write();
    let draft = Tiny::letters(14).noisy(5).write();
    for rule in RULES {
        for drafter in DRAFTERS {
            let command = generate("--seed 8 --max-tokens 20 --logprobs 3 --top-k 4 --draft-len 3")
                .words("--temperature 0.5 --verify")
                .arg(rule)
                .ids(&[3, 4])
                .model(&model);
            let object = with_drafter(command, drafter, draft.path()).json();
            let entries = object["logprobs"].as_array().expect("a list");
            let mut last = 4;
            assert_eq!(entries.len(), tokens(&object).len());
            for (entry, token) in entries.iter().zip(tokens(&object)) {
                let close = |found: &Value, expected: f64| {
                    let found = found.as_f64().unwrap_or_else(|| panic!("{drafter}: {entry}"));
                    assert!((found - expected).abs() < 1e-5, "{drafter}: {entry}, {expected}");
                };
                let raw = |token| log_softmax(|other| noisy_logit(4, last, other), 16, token);
                // The contract: the four largest, ties by id, at half the temperature.
                let mut ranked: Vec<u32> = (0..16).collect();
                ranked.sort_by(|&a, &b| {
                    noisy_logit(4, last, b).total_cmp(&noisy_logit(4, last, a)).then(a.cmp(&b))
                });
                let kept = |token: u32| match ranked[..4].contains(&token) {
                    true => 2.0 * noisy_logit(4, last, token),
                    false => f32::NEG_INFINITY,
                };
                assert_eq!(entry["token"], token);
                close(&entry["raw"], raw(token));
                close(&entry["contract"], log_softmax(kept, 16, token));
                let top = entry["top"].as_array().expect("a list");
                let order: Vec<u32> = top
                    .iter()
                    .map(|entry| entry["token"].as_u64().expect("an id") as u32)
                    .collect();
                assert_eq!(order, ranked[..3]);
                for (entry, &token) in top.iter().zip(&ranked) {
                    close(&entry["raw"], raw(token));
                    close(&entry["contract"], log_softmax(kept, 16, token));
                }
                last = token;
            }
        }
    }
}

#[test]
fn logprobs_say_null_where_there_is_no_probability() {
    let model = Tiny::letters(4).noisy(6).write();
    let command = || generate("--seed 1 --max-tokens 3 --top-k 2").ids(&[2]).model(&model);
    let entries = command().words("--logprobs 6").json()["logprobs"].clone();
    for entry in entries.as_array().expect("a list") {
        let top = entry["top"].as_array().expect("a list");
        let mass = |key: &str| top.iter().filter_map(|one| one[key].as_f64()).map(f64::exp).sum();
        let (raw, contract): (f64, f64) = (mass("raw"), mass("contract"));
        assert!((raw - 1.0).abs() < 1e-6 && (contract - 1.0).abs() < 1e-6, "{entry}");
        assert_eq!(top.iter().filter(|one| one["contract"].is_null()).count(), 4);
    }
    let entries = command().words("--logprobs 0").json()["logprobs"].clone();
    let first = &entries.as_array().expect("a list")[0];
    assert!(first.get("top").is_none() && first["raw"].is_number(), "{first}");
}

/// The text without colours, and the colours in order.
fn uncolour(coloured: &str) -> (String, Vec<&str>) {
    let (mut plain, mut colours) = (String::new(), Vec::new());
    for piece in coloured.split("\x1b[").skip(1) {
        let (colour, text) = piece.split_once('m').expect("a colour");
        plain += text;
        if colour != "0" {
            colours.push(colour);
        }
    }
    (plain, colours)
}

#[test]
fn show_draft_colours_by_origin() {
    const DRAFT: &str = "32";
    const RESIDUAL: &str = "33";
    const BONUS: &str = "34";
    let all = spell("abcdefghi");
    let target = Tiny::letters(9).path(&all).write();
    let half = Tiny::letters(9).path(&all).logit(all[3], all[3], 2.0 * SURE).write();
    let command = || {
        generate("--seed 1 --temperature 0 --draft-len 3 --max-tokens 8 --show-draft")
            .ids(&all[..1])
            .model(&target)
    };
    let cases = [
        // Three accepted and a bonus each round.
        (command().draft(&target), [DRAFT, DRAFT, DRAFT, BONUS, DRAFT, DRAFT, DRAFT, BONUS]),
        // This draft is wrong after d, and drafts on after its error.
        (command().draft(&half), [DRAFT, DRAFT, DRAFT, BONUS, DRAFT, DRAFT, DRAFT, BONUS]),
        (command().words("--drafter none"), [BONUS; 8]),
    ];
    for (run, expected) in cases {
        let run = run.ok();
        let (plain, colours) = uncolour(&run.stdout);
        assert_eq!((plain.as_str(), colours.as_slice()), ("bcdefghi", &expected[..]));
        for name in ["accepted draft", "residual", "bonus"] {
            assert!(run.stderr.contains(name), "no legend: {}", run.stderr);
        }
    }
    // With the prompt a token later the error of the draft falls inside a block.
    let run = generate("--seed 1 --temperature 0 --draft-len 3 --max-tokens 4 --show-draft");
    let run = run.ids(&all[1..2]).model(&target).draft(&half).ok();
    let (plain, colours) = uncolour(&run.stdout);
    assert_eq!(plain, "cdef");
    assert_eq!(colours, [DRAFT, DRAFT, RESIDUAL, BONUS]);
    generate("--show-draft --json").arg("x").fails(&["--show-draft", "--json"]);
}

#[test]
fn stop_strings_cut_the_text_wherever_tokens_end() {
    let words = ["one", " two", " thr", "ee", " fo", "ur, f", "ive", " six", "!"];
    let path: Vec<u32> = (tiny::FIRST..).take(words.len()).chain([EOS]).collect();
    let model = Tiny::new(&words).path(&path).write();
    let whole = " two three four, five six!";
    // Stop strings, the text before them, tokens up to and including the one that completes it.
    let cases: [(&[&str], &str, usize); 12] = [
        (&[" two"], "", 1),
        (&["wo thr"], " t", 2),
        (&["ee"], " two thr", 3),
        (&["e"], " two thr", 3),
        (&["four"], " two three ", 5),
        (&["three four, five"], " two ", 6),
        (&["four", "three"], " two ", 3),
        (&["three four", "hre"], " two t", 3),
        (&[" six!"], " two three four, five", 8),
        (&["!"], " two three four, five six", 8),
        (&["!!"], whole, 9),
        (&["fourteen", "sixty"], whole, 9),
    ];
    for (stops, expected, count) in cases {
        for drafter in DRAFTERS {
            for draft_len in [1, 2, 3, 8] {
                let mut run = generate("--seed 1 --temperature 0").ids(&path[..1]).model(&model);
                run = with_drafter(run, drafter, model.path());
                run = run.arg("--draft-len").arg(draft_len.to_string());
                for stop in stops {
                    run = run.arg("--stop").arg(stop);
                }
                let object = run.json();
                let about = format!("{stops:?} {drafter} {draft_len}: {object}");
                assert_eq!(text(&object), expected, "{about}");
                assert_eq!(tokens(&object), path[1..=count], "{about}");
                let reason = if expected == whole { "eos" } else { "stop" };
                assert_eq!(object["finish_reason"], reason, "{about}");
            }
        }
    }
}

#[test]
fn what_was_held_back_for_a_stop_string_comes_out_at_the_end() {
    let letters = spell("abcdefgh");
    let model = Tiny::letters(8).path(&letters).write();
    let run = generate("--seed 1 --temperature 0 --max-tokens 4 --stop defgh");
    let run = run.ids(&letters[..1]).model(&model).draft(&model).ok();
    assert_eq!(run.stdout, "bcde");
}

/// A stop string that the last allowed token completes is a stop; the count of log-probabilities is
/// that of the tokens.
#[test]
fn a_stop_beats_the_length_limit() {
    let letters = spell("abcdefgh");
    let model = Tiny::letters(8).path(&letters).write();
    for draft_len in ["0", "2", "8"] {
        let run = generate("--seed 1 --temperature 0 --max-tokens 3 --stop cd --logprobs 0");
        let run = run.words("--draft-len").arg(draft_len);
        let object = run.ids(&letters[..1]).model(&model).draft(&model).json();
        assert_eq!(object["finish_reason"], "stop");
        assert_eq!((text(&object), tokens(&object)), ("b", letters[1..4].to_vec()));
        assert_eq!(object["logprobs"].as_array().map(Vec::len), Some(3));
    }
}

#[test]
fn max_tokens_is_kept_whatever_is_drafted() {
    let letters = spell("abcdefghijklmn");
    let model = Tiny::letters(14).path(&letters).write();
    for rule in RULES {
        for drafter in DRAFTERS {
            for max in [0, 1, 2, 3, 8, 9, 10] {
                let words = format!("--seed 1 --draft-len 8 --max-tokens {max} --verify {rule}");
                let run = generate(&words).ids(&letters[..1]).model(&model);
                let object = with_drafter(run, drafter, model.path()).json();
                assert_eq!(tokens(&object), letters[1..=max], "{rule} {drafter}");
                assert_eq!(text(&object), &"bcdefghijklmn"[..max]);
                assert_eq!(object["finish_reason"], "length");
            }
        }
    }
}

/// Under plain decoding and under `coupled` a token depends on its position alone, so a shorter
/// limit cuts the longer text.
#[test]
fn a_shorter_limit_gives_the_beginning() {
    let model = Tiny::letters(14).noisy(7).write();
    let draft = Tiny::letters(14).noisy(8).write();
    let run = |max: usize, drafter: &str, rule: &str| {
        let words = format!("--seed 4 --draft-len 3 --max-tokens {max} --verify {rule}");
        let run = generate(&words).ids(&[2]).model(&model);
        tokens(&with_drafter(run, drafter, draft.path()).json())
    };
    for (drafter, rule) in [
        ("none", "rejection"),
        ("none", "block"),
        ("none", "coupled"),
        ("ngram", "coupled"),
        ("model", "coupled"),
    ] {
        let long = run(24, drafter, rule);
        for max in [1, 2, 5, 11, 23] {
            assert_eq!(run(max, drafter, rule), long[..max], "{drafter} {rule}");
        }
    }
}

#[test]
fn ignore_eos_goes_on_past_it() {
    let path = [2, 3, EOS, 4, 5];
    let model = Tiny::letters(4).path(&path).write();
    let command = |words: &str| {
        let run = generate("--seed 1 --temperature 0 --draft-len 8").words(words);
        run.ids(&path[..1]).model(&model).draft(&model)
    };
    let object = command("").json();
    assert_eq!((tokens(&object), text(&object)), (path[1..3].to_vec(), "b"));
    assert_eq!(object["finish_reason"], "eos");
    let object = command("--ignore-eos --max-tokens 4").json();
    assert_eq!((tokens(&object), text(&object)), (path[1..].to_vec(), "bcd"));
    assert_eq!(object["finish_reason"], "length");
}

#[test]
fn the_seed_decides() {
    let model = Tiny::letters(14).noisy(9).write();
    for rule in RULES {
        for drafter in DRAFTERS {
            let run = |seed: Option<&str>| {
                let run = generate("--max-tokens 20 --draft-len 2 --verify").arg(rule).ids(&[2]);
                let run = with_drafter(run.model(&model), drafter, model.path());
                let run = seed.into_iter().fold(run, |run, seed| run.words("--seed").arg(seed));
                run.json()
            };
            let seeds = ["0", "1", "2", "18446744073709551615"];
            let texts = seeds.map(|seed| {
                let object = run(Some(seed));
                assert_eq!(object["seed"], seed);
                assert_eq!(tokens(&object), tokens(&run(Some(seed))), "{rule} {drafter}");
                tokens(&object)
            });
            let distinct: BTreeSet<_> = texts.iter().collect();
            assert_eq!(distinct.len(), seeds.len(), "{rule} {drafter}");
            // Without one a random seed is taken, and told.
            let (one, other) = (run(None), run(None));
            assert_ne!(one["seed"], other["seed"]);
            assert_eq!(tokens(&run(one["seed"].as_str())), tokens(&one));
        }
    }
    let run = generate("--max-tokens 20").ids(&[2]).model(&model).ok();
    let (_, told) = run.stderr.split_once("seed ").expect("the seed is told");
    let seed: String = told.chars().take_while(char::is_ascii_digit).collect();
    let again = generate("--max-tokens 20 --seed").arg(seed).ids(&[2]).model(&model).ok();
    assert_eq!(again.stdout, run.stdout);
}

/// What the authors of a model recommend holds until something else is typed.
#[test]
fn generation_config_gives_the_defaults() {
    let mut model = Tiny::letters(10).noisy(10);
    let eligible = |model: &Tiny, words: &str| {
        let folder = model.write();
        let run = generate("--seed 1 --max-tokens 6").words(words).ids(&[2]).model(&folder);
        run.json()["stats"]["eligible_tokens"].as_f64()
    };
    assert_eq!(eligible(&model, ""), Some(10.0));
    model.generation = Some(json!({"eos_token_id": EOS, "top_k": 3}));
    assert_eq!(eligible(&model, ""), Some(3.0));
    assert_eq!(eligible(&model, "--top-k 5"), Some(5.0));
    assert_eq!(eligible(&model, "--top-k 0"), Some(10.0));
    model.generation = Some(json!({"eos_token_id": EOS, "do_sample": false}));
    assert_eq!(eligible(&model, ""), Some(1.0));
    assert_eq!(eligible(&model, "--temperature 1"), Some(10.0));
    // Every setting of the file reaches the contract.
    let recommended = json!({
        "repetition_penalty": 1.25, "no_repeat_ngram_size": 3, "temperature": 0.75, "top_k": 5,
        "typical_p": 0.9, "top_p": 0.8, "min_p": 0.1,
    });
    model.generation = Some(recommended.clone());
    let folder = model.write();
    let card = draftproof("contract --json").model(&folder).ok().objects().remove(0);
    for (name, value) in recommended.as_object().expect("an object") {
        let name = match name.as_str() {
            "no_repeat_ngram_size" => "no-repeat-ngram".into(),
            "typical_p" => "typical".into(),
            name => name.replace('_', "-"),
        };
        let found = card["law"]["sampler"][&name].as_str().expect("a setting");
        assert_eq!(found.parse::<f64>().ok(), value.as_f64(), "{name}: {found}");
    }
    model.generation = Some(json!({"num_beams": 4}));
    let folder = model.write();
    let run = generate("--seed 1 --max-tokens 2").ids(&[2]).model(&folder).ok();
    assert!(run.stderr.contains("num_beams = 4"), "{}", run.stderr);
}

#[test]
fn help_names_every_flag_and_the_version_is_told() {
    let help = generate("--help").ok().stdout;
    for flag in ["--model", "--draft-model", "--drafter", "--draft-len", "--verify", "--seed"] {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
    let version = draftproof("--version").ok().stdout;
    assert_eq!(version, format!("draftproof {}\n", env!("CARGO_PKG_VERSION")));
}
