//! `detect` and `watermark calibrate`: verdicts on marked, foreign, human, short and greedy text, and
//! everything that is refused.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Run, draftproof, generate, golden, text, tokens};

/// A folder with key files.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy of a key that `watermark keygen` made once, `own.json` or `other.json`. Under a new key in
    /// each run the text would be a new one, and once in some hundreds so repetitive that it has too
    /// few usable positions for a verdict.
    fn take(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys");
        // Written and not copied: a checkout's files are readable by others, and keys may not be.
        let key = fs::read(keys.join(name)).expect("a key");
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).and_then(|mut file| file.write_all(&key)).expect("written");
        path
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("written");
        path
    }
}

/// Text of 300 tokens that the built-in pair marks, with a draft.
fn marked(key: &Path, words: &str) -> Value {
    marked_tokens(key, "300", words)
}

fn marked_tokens(key: &Path, tokens: &str, words: &str) -> Value {
    generate("--ignore-eos --seed 3 --max-tokens")
        .arg(tokens)
        .words(words)
        .arg("--watermark-key")
        .arg(key)
        .arg("Once upon a time")
        .json()
}

fn detect(key: &Path) -> Run {
    draftproof("detect --watermark-key").arg(key)
}

/// At a rate at which no text is found by chance.
fn strictly(key: &Path) -> Run {
    detect(key).words("--false-positive-rate 1e-9")
}

fn human() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fable/heldout.txt");
    fs::read_to_string(path).expect("text")
}

fn verdict(found: &Value) -> &str {
    found["verdict"].as_str().unwrap_or_else(|| panic!("no verdict: {found}"))
}

/// The key that marked a text finds it, as text, as ids, cropped, and in mode `fast`; another key does
/// not, and finds nothing in text of people.
#[test]
fn marks_are_found_by_their_key_only() {
    let keys = Keys::new();
    let (own, other) = (keys.take("own.json"), keys.take("other.json"));
    let object = marked(&own, "");
    let file = keys.write("out.txt", text(&object));
    let found = strictly(&own).arg(&file).json();
    assert_eq!(verdict(&found), "watermarked", "{found}");
    assert!(found["p_value"].as_f64().expect("a number") < 1e-20, "{found}");
    assert!(found["usable_positions"].as_u64().expect("a number") > 250, "{found}");
    let score = |name: &str| found["scores"][name].as_f64();
    assert!(score("mean") > Some(0.55) && score("weighted_mean") > score("mean"), "{found}");
    assert_eq!(score("bayesian"), None, "{found}");
    assert_eq!((&found["reason"], &found["keys_tried"]), (&Value::Null, &1.into()));
    assert!(found["does_not_prove"][0].as_str().expect("words").contains("no authorship"));
    // Ids need no tokenizer, and are what was generated.
    let list: Vec<String> = tokens(&object).iter().map(u32::to_string).collect();
    let by_ids = strictly(&own).arg("--ids").arg(list.join(",")).json();
    assert_eq!(verdict(&by_ids), "watermarked", "{by_ids}");
    // The second half, from the middle of a word; and from standard input.
    let half = &text(&object)[text(&object).len() / 2..];
    let cropped = detect(&own).stdin(half).json();
    assert_eq!(verdict(&cropped), "watermarked", "{cropped}");
    let foreign = strictly(&other).arg(&file).json();
    assert_eq!(verdict(&foreign), "not_detected", "{foreign}");
    let people = strictly(&own).arg("-").stdin(human()).json();
    assert_eq!(verdict(&people), "not_detected", "{people}");
    let fast = marked(&own, "--watermark-mode fast");
    let fast = strictly(&own).stdin(text(&fast)).json();
    assert_eq!(verdict(&fast), "watermarked", "{fast}");
    // In words, a verdict first, then what it does not prove.
    let words = strictly(&own).arg(&file).ok().stdout;
    assert!(words.starts_with("watermarked\n"), "{words}");
    for needle in ["no authorship, no person", "forge", "does not say that a person", "signatures"]
    {
        assert!(words.contains(needle), "{needle}: {words}");
    }
}

/// After a rotation the old key still finds its texts, at twice the p-value.
#[test]
fn all_keys_of_a_file_are_tried() {
    let keys = Keys::new();
    let own = keys.take("own.json");
    let object = marked(&own, "");
    let before = detect(&own).stdin(text(&object)).json();
    draftproof("watermark keygen --rotate").arg(&own).ok();
    let after = detect(&own).stdin(text(&object)).json();
    assert_eq!((verdict(&after), &after["key"]), ("watermarked", &before["key"]));
    assert_eq!(after["keys_tried"], 2);
    let p = |found: &Value| found["p_value"].as_f64().expect("a number");
    assert!((p(&after) / p(&before) - 2.0).abs() < 1e-9, "{before} {after}");
}

#[test]
fn thin_evidence_gets_no_verdict() {
    let keys = Keys::new();
    let own = keys.take("own.json");
    let object = marked_tokens(&own, "20", "");
    for text in [text(&object), "", "A few words."] {
        let found = detect(&own).stdin(text).json();
        assert_eq!(verdict(&found), "abstain", "{found}");
        let reason = found["reason"].as_str().expect("a reason");
        assert!(reason.contains("usable positions") && reason.contains("needs 5"), "{reason}");
    }
    // Nothing to score has no score.
    let found = detect(&own).stdin("").json();
    assert_eq!((&found["usable_positions"], &found["scores"]["mean"]), (&0.into(), &Value::Null));
    // A rate that is asked for needs more of the same text.
    let long = marked_tokens(&own, "100", "");
    let at = |rate: &str| detect(&own).stdin(text(&long)).words("--false-positive-rate").arg(rate);
    assert_eq!(verdict(&at("0.01").json()), "watermarked");
    assert_eq!(verdict(&at("1e-9").json()), "abstain");
}

/// With the model's laws at hand the detector knows that greedy text carries no mark; and it looks for
/// one as strong as it must be.
#[test]
fn the_models_laws_tell_what_could_be_seen() {
    let keys = Keys::new();
    let own = keys.take("own.json");
    let judge = |temperature: &str| {
        let object = marked(&own, &format!("--temperature {temperature}"));
        let run = detect(&own).words("--model builtin:fable --temperature").arg(temperature);
        run.arg("--prompt").arg("Once upon a time").stdin(text(&object)).json()
    };
    let greedy = judge("0");
    assert_eq!(verdict(&greedy), "abstain", "{greedy}");
    assert!(greedy["reason"].as_str().expect("a reason").contains("no room"), "{greedy}");
    assert_eq!(greedy["expected_gain"], 0.0);
    let sampled = judge("1");
    assert_eq!(verdict(&sampled), "watermarked", "{sampled}");
    let found = sampled["scores"]["weighted_mean"].as_f64().expect("a score") - 0.5;
    let expected = sampled["expected_gain"].as_f64().expect("a gain");
    assert!((found - expected).abs() < 0.05, "{sampled}");
    // Text of people has room for a mark at temperature 1, and none in it.
    let start = human()[..4000].to_owned();
    let people = strictly(&own).words("--model builtin:fable").stdin(start).json();
    assert_eq!(verdict(&people), "not_detected", "{people}");
}

#[test]
fn calibrated_thresholds_decide_for_their_key_only() {
    let keys = Keys::new();
    let (own, other) = (keys.take("own.json"), keys.take("other.json"));
    let generated = keys.path("marked.jsonl");
    let run = generate("--n 30 --max-tokens 150 --ignore-eos --seed 8 --temperature 0.7");
    let run = run.arg("--watermark-key").arg(&own).arg("The old king");
    fs::write(&generated, run.words("--json").ok().stdout).expect("written");
    let people = keys.write("people.txt", human());
    let calibrate = |key: &Path, rate: &str| {
        draftproof("watermark calibrate --watermark-key")
            .arg(key)
            .arg("--generated")
            .arg(&generated)
            .arg("--human")
            .arg(&people)
            .arg("--false-positive-rate")
            .arg(rate)
            .arg("--output")
    };
    let file = keys.path("calibration.json");
    let told = calibrate(&own, "0.05").arg(&file).ok();
    assert!(told.stderr.contains("from 16 usable positions"), "{}", told.stderr);
    let read = |path: &Path| fs::read_to_string(path).expect("a file");
    let again = keys.path("again.json");
    calibrate(&own, "0.05").arg(&again).ok();
    assert_eq!(read(&file), read(&again));
    let key: Value = serde_json::from_str(&read(&own)).expect("JSON");
    for number in key["keys"][0]["key"].as_array().expect("a key") {
        assert!(!read(&file).contains(number.as_str().expect("a number")), "the key is a secret");
    }
    let calibrated = |key: &Path| detect(key).arg("--calibration").arg(&file);
    let object = marked(&own, "--temperature 0.7");
    let found = calibrated(&own).stdin(text(&object)).json();
    assert_eq!(verdict(&found), "watermarked", "{found}");
    assert!(found["scores"]["bayesian"].as_f64() > Some(0.99), "{found}");
    assert_eq!(found["false_positive_rate"], 0.05);
    let people = calibrated(&own).stdin(human()[..3000].to_owned()).json();
    assert_eq!(verdict(&people), "not_detected", "{people}");
    assert!(people["scores"]["bayesian"].as_f64() < Some(0.01), "{people}");
    assert_eq!(verdict(&calibrated(&own).stdin("A few words.").json()), "abstain");
    // A key that is no longer in use is calibrated still; another is refused.
    draftproof("watermark keygen --rotate").arg(&own).ok();
    let found = calibrated(&own).stdin(text(&object)).json();
    assert_eq!((verdict(&found), &found["keys_tried"]), ("watermarked", &1.into()));
    calibrated(&other).stdin("text").fails(&["calibration is for key", "says nothing here"]);
    let edited = read(&file).replace("\"depth\": 30", "\"depth\": 29");
    let edited = keys.write("edited.json", edited);
    detect(&own).arg("--calibration").arg(&edited).stdin("text").fails(&["edited.json", "bayes"]);
    calibrate(&other, "0.0001").arg(keys.path("none.json")).fails(&["10000 pieces", "0.0001"]);
    assert!(!keys.path("none.json").exists(), "no file without a calibration");
}

/// Exit code 2 and a message, for everything that is wrong with the input.
#[test]
fn bad_input_is_refused() {
    let keys = Keys::new();
    let own = keys.take("own.json");
    let plain = keys.write("text.txt", "text");
    detect(&keys.path("none.json")).arg(&plain).fails(&["none.json"]);
    detect(&own).arg(keys.path("none.txt")).fails(&["none.txt"]);
    detect(&own).stdin(b"text \xff".to_vec()).fails(&["standard input", "UTF-8", "offset 5"]);
    detect(&own).words("--temperature 0.5").arg(&plain).fails(&["--model"]);
    detect(&own).words("--prompt x").arg(&plain).fails(&["--model"]);
    detect(&own).words("--ids 1,2").arg(&plain).fails(&["--ids"]);
    detect(&own).words("--ids 1,x").fails(&["--ids"]);
    detect(&own).words("--ids 1,4096 --model builtin:fable").fails(&["4096", "vocabulary"]);
    detect(&own).words("--model builtin:none").arg(&plain).fails(&["none"]);
    for rate in ["0", "0.6", "-1", "x", "NaN"] {
        let run = detect(&own).arg("--false-positive-rate").arg(rate).arg(&plain);
        run.fails(&["false-positive-rate", "above 0, at most 0.5"]);
    }
    let json = keys.write("calibration.json", "{\"format\": 1}");
    detect(&own).arg("--calibration").arg(&json).arg(&plain).fails(&["calibration.json"]);
    detect(&json).arg(&plain).fails(&["calibration.json"]);
    // The ids of another tokenizer are other ids.
    let foreign = keys.path("foreign.json");
    draftproof("watermark keygen").arg(&foreign).model(&golden("pair-target")).ok();
    detect(&foreign).arg(&plain).fails(&["foreign.json", "tokenizer"]);
    let model = golden("pair-target");
    let found = detect(&foreign).model(&model).words("--ids 1,2,3,4,5,6,7").json();
    assert_eq!(verdict(&found), "abstain", "{found}");
}
