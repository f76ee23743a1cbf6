//! The contract card: its hash follows the law of the text, and nothing else.

use crate::harness::{draftproof, generate};

fn hash(words: &str) -> String {
    let mut objects = draftproof("contract --json").words(words).ok().objects();
    assert_eq!(objects.len(), 1);
    objects.remove(0)["hash"].as_str().expect("a hash").to_owned()
}

#[test]
fn the_hash_is_that_of_the_law() {
    let plain = hash("");
    assert_eq!(plain.len(), 64);
    assert_eq!(hash(""), plain);
    // The same law said otherwise, or what does not change it.
    for same in [
        "--temperature 1.0",
        "--top-p 1 --top-k 0",
        "--sampler-order hf",
        "--drafter none",
        "--draft-len 3",
        "--verify block",
        "--device cpu",
    ] {
        assert_eq!(hash(same), plain, "{same}");
    }
    assert_eq!(hash("--top-p 0.9"), hash("--top-p 0.90"));
    // Every setting of the law changes it, each in its own way.
    let words = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(words.path(), "wolf\n").expect("a file");
    let bad_words = format!("--bad-words {}", words.path().display());
    let mut seen = vec![plain];
    for other in [
        "--temperature 0.7",
        "--temperature 0",
        "--top-k 40",
        "--top-k 40 --top-k-ties keep",
        "--top-p 0.9",
        "--min-p 0.05",
        "--typical 0.9",
        "--repetition-penalty 1.1",
        "--presence-penalty 0.5",
        "--frequency-penalty 0.5",
        "--no-repeat-ngram 3",
        "--logit-bias 17=1.5",
        "--logit-bias 17=-inf",
        "--min-tokens 5",
        "--temperature 2 --top-p 0.9",
        "--temperature 2 --top-p 0.9 --sampler-order llama.cpp",
        "--stop wolf",
        "--ignore-eos",
        "--model builtin:fable --top-k 41",
        &bad_words,
    ] {
        let hash = hash(other);
        assert!(!seen.contains(&hash), "{other} has the hash of another law");
        seen.push(hash);
    }
}

#[test]
fn the_card_says_seven_points_and_generate_stamps_its_hash() {
    let card = draftproof("contract --top-k 40").ok().stdout;
    for number in 1..=7 {
        assert!(card.contains(&format!("\n{number}. ")), "{card}");
    }
    let run = generate("--top-k 40 --max-tokens 1 --draft-len 2").arg("Once").json();
    let stamp = run["contract"].as_str().expect("a hash");
    assert_eq!(stamp, hash("--top-k 40"));
    assert!(card.contains(stamp));
}
