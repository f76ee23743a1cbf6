//! Marks on texts: keys stay secret, modes and masks keep what they promise.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    harness::{draftproof, generate},
    tiny::Tiny,
};

/// A folder with a new key file for the built-in pair.
fn key() -> (TempDir, String) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("k.json").display().to_string();
    draftproof("watermark keygen").arg(&file).ok();
    (folder, file)
}

/// The numbers of all keys in a file, each long enough that it cannot occur by accident.
fn secrets(file: &str) -> Vec<String> {
    let ring: Value = serde_json::from_slice(&fs::read(file).expect("a key file")).expect("JSON");
    let keys = ring["keys"].as_array().expect("keys").iter();
    let numbers = keys.flat_map(|key| key["key"].as_array().expect("numbers").iter());
    let numbers: Vec<String> = numbers.map(|n| n.as_str().expect("a text").to_owned()).collect();
    assert!(
        numbers.len() >= 30 && numbers.iter().all(|n| n.len() > 12 || n.parse::<i64>().is_ok())
    );
    numbers.into_iter().filter(|n| n.len() > 12).collect()
}

#[cfg(unix)]
#[test]
fn a_key_file_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, file) = key();
    let mode = |file: &str| fs::metadata(file).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    for open in [0o640, 0o604] {
        fs::set_permissions(&file, fs::Permissions::from_mode(open)).expect("a mode");
        let found = format!("found mode {open:04o}");
        generate("hi --watermark-key").arg(&file).fails(&[&file, "0600", &found]);
        draftproof("watermark keygen --rotate").arg(&file).fails(&[&file, &found]);
    }
}

/// A key file is never overwritten; a new key comes on top, and the old ones stay.
#[test]
fn rotation_keeps_the_old_keys() {
    let (folder, file) = key();
    let old = secrets(&file);
    draftproof("watermark keygen").arg(&file).fails(&[&file, "exists", "--rotate"]);
    assert_eq!(secrets(&file), old);
    let run = draftproof("watermark keygen --rotate --depth 31").arg(&file).ok();
    assert!(run.stderr.contains("of 2"), "{}", run.stderr);
    let new = secrets(&file);
    assert!(new.len() > old.len() && new.ends_with(&old));
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "nothing half-written stays: {left:?}");
    draftproof("watermark keygen --rotate").arg(folder.path().join("none")).fails(&["none"]);
}

/// No number of a key shows: not in text, JSON, traces, cards, messages, or errors about the key.
#[test]
fn the_key_shows_nowhere() {
    let (folder, file) = key();
    let secrets = secrets(&file);
    let trace = folder.path().join("t.jsonl");
    let mut shown = String::new();
    let with_key = || generate("Once --max-tokens 20 --seed 3 --watermark-key").arg(&file);
    for run in [
        with_key().words("--show-draft").ok(),
        with_key().words("--json --logprobs 3 --trace-full --trace").arg(&trace).ok(),
        draftproof("contract --watermark-key").arg(&file).ok(),
        draftproof("contract --json --watermark-key").arg(&file).ok(),
        draftproof("replay").arg(&trace).ok(),
        with_key().words("--verify block --watermark-mode fast").run(),
    ] {
        shown += &run.stdout;
        shown += &run.stderr;
    }
    shown += &fs::read_to_string(&trace).expect("a trace");
    // Files with one change each: every error about a key.
    let json = fs::read_to_string(&file).expect("a key file");
    for (from, to) in [
        (secrets[0].as_str(), "12"),
        ("\"depth\": 30", "\"depth\": 29"),
        ("\"gdm\"", "\"hf\""),
        ("\"key\": [", "\"key\": {"),
        ("\"id\"", "\"di\""),
        ("]\n}", ""),
    ] {
        let edited = json.replacen(from, to, 1);
        assert_ne!(edited, json, "{from}");
        write_private(&folder.path().join("edited.json"), &edited);
        let run = generate("Once --watermark-key").arg(folder.path().join("edited.json")).run();
        assert_eq!(run.code, 2, "{from}: {}", run.stderr);
        assert!(run.stderr.contains("edited.json"), "{}", run.stderr);
        shown += &run.stderr;
        fs::remove_file(folder.path().join("edited.json")).expect("a file");
    }
    assert!(shown.len() > 10_000);
    for secret in &secrets {
        assert!(!shown.contains(secret.as_str()), "a number of the key shows");
    }
}

fn write_private(file: &Path, text: &str) {
    fs::write(file, text).expect("a file");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("a mode");
    }
}

/// One seed with and without a key gives other texts, and the card says which law it is.
#[test]
fn the_mark_is_on_the_text_and_on_the_card() {
    let (_folder, file) = key();
    let plain = generate("Once --seed 5 --max-tokens 40").json();
    let marked = generate("Once --seed 5 --max-tokens 40 --watermark-key").arg(&file);
    let marked = marked.json();
    assert_ne!(plain["tokens"], marked["tokens"]);
    assert_ne!(plain["contract"], marked["contract"]);
    let card = draftproof("contract --json --watermark-key").arg(&file).ok().objects().remove(0);
    assert_eq!(card["hash"], marked["contract"]);
    assert_eq!(card["law"]["watermark"]["depth"], "30");
    let (_other_folder, other) = key();
    let card = draftproof("contract --json --watermark-key").arg(&other).ok().objects().remove(0);
    assert_ne!(card["hash"], marked["contract"], "each key has a law of its own");
}

/// Mode exact, coupled: with a key too the text is that of the seed, whatever drafts, in each mask.
#[test]
fn a_marked_text_does_not_depend_on_the_draft() {
    let (_folder, file) = key();
    for mask in ["sequence", "batch"] {
        let texts = |words: &str| {
            let run = generate("Once --seed 7 --max-tokens 30 --n 2 --verify coupled");
            let run = run.words(words).words("--watermark-mask").arg(mask);
            let run = run.arg("--watermark-key").arg(&file).words("--top-k 40").jsons();
            run.into_iter().map(|object| object["tokens"].clone()).collect::<Vec<_>>()
        };
        let plain = texts("--drafter none");
        assert_ne!(plain[0], plain[1]);
        assert_eq!(texts("--drafter model --draft-len 4"), plain, "{mask}");
        assert_eq!(texts("--drafter ngram"), plain, "{mask}");
    }
}

/// In a batch the first continuation is the one that is made alone, and later ones are masked by it.
#[test]
fn a_batch_is_masked_by_what_came_before() {
    let (_folder, file) = key();
    let texts = |words: &str| {
        let run = generate("Once --seed 7 --max-tokens 12 --drafter none --top-k 40");
        let run = run.words(words).arg("--watermark-key").arg(&file).jsons();
        run.into_iter().map(|object| object["tokens"].clone()).collect::<Vec<_>>()
    };
    let alone = texts("--n 1");
    let sequence = texts("--n 3 --watermark-mask sequence");
    let batch = texts("--n 3 --watermark-mask batch");
    assert_eq!(alone[0], sequence[0]);
    assert_eq!(alone[0], batch[0]);
    assert_ne!(sequence, batch, "the second begins with the context of the first");
}

#[test]
fn fast_refuses_what_breaks_its_law() {
    let (folder, file) = key();
    let trace = folder.path().join("t.jsonl").display().to_string();
    let fast = || generate("Once --max-tokens 8 --watermark-mode fast --watermark-key").arg(&file);
    fast().ok();
    fast().words("--draft-len 2 --drafter ngram").ok();
    fast().words("--verify block").fails(&["fast", "--verify rejection"]);
    fast().words("--verify coupled").fails(&["fast", "--verify rejection"]);
    fast().words("--draft-len auto").fails(&["fast", "--draft-len", "auto"]);
    fast().words("--trace").arg(&trace).fails(&["--trace", "fast"]);
    assert!(!Path::new(&trace).exists(), "nothing is half-written");
    generate("Once --watermark-mode fast").fails(&["--watermark-key"]);
}

#[test]
fn a_text_without_a_choice_is_said_to_carry_no_mark() {
    let (_folder, file) = key();
    for (words, said) in [("--temperature 0", "temperature 0"), ("--top-k 1", "top-k 1")] {
        let run = generate("Once --max-tokens 4").words(words).arg("--watermark-key").arg(&file);
        let run = run.ok();
        assert!(run.stderr.contains("warning") && run.stderr.contains(said), "{}", run.stderr);
    }
}

/// A key marks the ids of one tokenizer; under another they mean other words.
#[test]
fn a_key_for_another_tokenizer_is_refused() {
    let (_folder, file) = key();
    let model = Tiny::new(&["a", "b", "c"]).write();
    let run = generate("a --watermark-key").arg(&file).model(&model);
    run.fails(&[&file, "tokenizer", "expected"]);
    let own = model.path().join("k.json").display().to_string();
    draftproof("watermark keygen").arg(&own).model(&model).ok();
    generate("a --max-tokens 3 --watermark-key").arg(&own).model(&model).ok();
    generate("a --watermark-key").arg(&own).fails(&[&own, "tokenizer"]);
}

#[test]
fn schemes_out_of_range_are_refused_and_leave_no_file() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("k.json");
    for (words, needle) in [
        ("--depth 0", "depth"),
        ("--depth 65", "depth"),
        ("--context-len 0", "context_len"),
        ("--leaves 1", "leaves"),
        ("--history 0", "history"),
    ] {
        draftproof("watermark keygen").arg(&file).words(words).fails(&[needle, "expected"]);
        assert!(!file.exists());
    }
    let run = draftproof("watermark keygen --leaves 3").arg(&file).ok();
    assert!(run.stderr.contains("distortionary"), "{}", run.stderr);
}

/// A watermarking config of transformers becomes a key file.
#[test]
fn a_config_of_transformers_is_imported() {
    let folder = TempDir::new().expect("a folder");
    let (config, file) = (folder.path().join("config.json"), folder.path().join("k.json"));
    let json = r#"{"ngram_len": 3, "keys": [5, 6, 7], "sampling_table_size": 65536,
        "sampling_table_seed": 0, "context_history_size": 1024, "skip_first_ngram_calls": false,
        "debug_mode": false}"#;
    write_private(&config, json);
    draftproof("watermark keygen --import").arg(&config).arg(&file).ok();
    let ring: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
    let scheme = &ring["keys"][0]["scheme"];
    assert_eq!((&scheme["variant"], &scheme["depth"]), (&"hf".into(), &3.into()));
    assert_eq!((&scheme["context_len"], &scheme["history"]), (&2.into(), &1024.into()));
    generate("Once --max-tokens 4 --watermark-key").arg(&file).ok();
    write_private(&config, &json.replace("\"ngram_len\": 3", "\"ngram_len\": 1"));
    let again = folder.path().join("again.json");
    let run = draftproof("watermark keygen --import").arg(&config).arg(&again);
    run.fails(&["ngram_len", "2 or more", "found 1"]);
    write_private(&config, "{\"keys\": [5]}");
    let run = draftproof("watermark keygen --import").arg(&config).arg(&again);
    run.fails(&["config.json", "ngram_len"]);
}
