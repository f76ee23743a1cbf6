//! Every sampler flag reaches the text, with and without a draft, and bad values are refused.

use crate::harness::{generate, tokens};

/// Greedy text under settings that must change it, the same with any drafter.
#[test]
fn every_flag_reaches_the_text() {
    let words = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(words.path(), "was\nvery\n").expect("a file");
    let bad_words = format!("--bad-words {}", words.path().display());
    let greedy = |words: &str, drafter: &str| {
        let run = generate("--temperature 0 --max-tokens 40").words(words).words(drafter);
        run.arg("The old king").json()
    };
    let plain = tokens(&greedy("", "--drafter none"));
    let first = plain[0];
    for words in [
        "--repetition-penalty 1.5",
        "--presence-penalty 3",
        "--frequency-penalty 1.5",
        "--no-repeat-ngram 2",
        &format!("--logit-bias {first}=-inf"),
        &format!("--logit-bias {first}=-100"),
        &bad_words,
    ] {
        let changed = tokens(&greedy(words, "--drafter none"));
        assert_ne!(changed, plain, "{words} changes nothing");
        for drafter in ["--drafter ngram --draft-len 4", "--drafter model --draft-len 3"] {
            assert_eq!(tokens(&greedy(words, drafter)), changed, "{words}, {drafter}");
        }
    }
    // A ban of the first token of the plain text really bans it.
    assert!(!tokens(&greedy(&format!("--logit-bias {first}=-inf"), "")).contains(&first));
}

/// Filters that leave one token make sampling greedy; a floor on the length keeps the text going.
#[test]
fn filters_and_limits() {
    let run = |words: &str| {
        tokens(&generate("--max-tokens 9 --seed 3").words(words).arg("The old king").json())
    };
    let greedy = run("--temperature 0");
    for words in ["--top-k 1", "--top-p 0.000001", "--min-p 1"] {
        assert_eq!(run(words), greedy, "{words}");
    }
    assert_ne!(run("--typical 0.2"), run(""));
    assert_ne!(
        run("--temperature 3 --top-p 0.5"),
        run("--temperature 3 --top-p 0.5 --sampler-order llama.cpp",)
    );
    let eos = "--logit-bias 0=100";
    assert_eq!(run(eos).len(), 1);
    for drafter in ["--drafter none", "--drafter ngram", "--draft-len 4"] {
        let kept = run(&format!("{eos} --min-tokens 5 {drafter}"));
        assert_eq!(kept.len(), 6, "{drafter}: {kept:?}");
        assert_eq!(kept[5], 0);
    }
}

#[test]
fn bad_values_are_refused() {
    for (words, needle) in [
        ("--repetition-penalty 0", "repetition-penalty"),
        ("--repetition-penalty -1", "repetition-penalty"),
        ("--presence-penalty nan", "presence-penalty"),
        ("--frequency-penalty inf", "frequency-penalty"),
        ("--typical 0", "typical"),
        ("--typical 1.5", "typical"),
        ("--logit-bias 5", "ID=NUMBER"),
        ("--logit-bias 4096=1", "logit-bias"),
        ("--logit-bias 5=inf", "logit-bias"),
        ("--logit-bias 5=1 --logit-bias 5=2", "twice"),
        ("--sampler-order temperature", "lacks step"),
        ("--sampler-order nonsense", "nonsense"),
        ("--top-k-ties maybe", "maybe"),
        ("--bad-words /no/such/file", "/no/such/file"),
        ("--min-tokens -1", "min-tokens"),
    ] {
        generate("--max-tokens 3").words(words).arg("Once").fails(&[needle]);
    }
}
