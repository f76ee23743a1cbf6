//! Looped targets: guided texts with early loops as drafts, what the card says, what does not fit.

use serde_json::Value;

use crate::harness::{Run, draftproof, generate, golden, read_json, tokens};

const LOOPED: [&str; 4] = ["ouro", "huginn", "parcae", "looped-qwen3"];
const PROMPT: [u32; 6] = [17, 250, 3, 99, 181, 42];
const GUIDED: [&str; 4] = [
    "",
    "--loop-guidance logits --guidance-weight 0.3",
    "--loop-guidance logits --guidance-weight adaptive:1.0 --reference-loop 2",
    "--loop-guidance hidden --guidance-weight adaptive:0.5",
];

fn run(model: &str, words: &str) -> Run {
    generate("--ignore-eos --max-tokens 24").words(words).ids(&PROMPT).model(&golden(model))
}

/// The same tokens with every draft, greedy and coupled, whatever the guidance.
#[test]
fn an_early_loop_changes_no_text() {
    for model in LOOPED {
        let mut texts = Vec::new();
        for guidance in GUIDED {
            for rule in
                ["--temperature 0", "--temperature 0 --verify block", "--seed 3 --verify coupled"]
            {
                let words = format!("{guidance} {rule}");
                let plain = run(model, &format!("{words} --drafter none")).json();
                for draft in ["--draft-loops 1", "--draft-loops 3 --draft-len 5", ""] {
                    let found = run(model, &format!("{words} --drafter early-exit {draft}")).json();
                    assert_eq!(tokens(&found), tokens(&plain), "{model} {words} {draft}");
                    assert!(found["stats"]["drafted"].as_u64() > Some(0));
                }
                texts.push(tokens(&plain));
            }
        }
        texts.dedup();
        assert!(texts.len() > 4, "{model}: guidance and rule matter");
    }
}

/// The built-in looped model, on its own text: greedy and coupled as without a draft, guided or not, and
/// most of what early loops propose is right.
#[test]
fn the_built_in_model_drafts_for_itself() {
    let fable = |words: &str| {
        let run = generate("--model builtin:fable-loop --ignore-eos --max-tokens 48").words(words);
        run.arg("Once upon a time")
    };
    let guided = "--loop-guidance logits --guidance-weight adaptive:1.0";
    for guidance in ["", guided] {
        for rule in ["--temperature 0", "--seed 2 --verify coupled"] {
            let words = format!("{guidance} {rule} --drafter");
            let expected = tokens(&fable(&format!("{words} none")).json());
            for draft in
                ["early-exit", "early-exit --draft-loops 2 --draft-len 3", "ngram", "quantized"]
            {
                let found = fable(&format!("{words} {draft}")).json();
                assert_eq!(tokens(&found), expected, "{words} {draft}");
            }
        }
    }
    let found = fable("--temperature 0 --drafter early-exit --draft-len 2").json();
    let [accepted, drafted] = ["accepted", "drafted"].map(|key| found["stats"][key].as_f64());
    assert!(accepted > drafted.map(|drafted| 0.5 * drafted), "{accepted:?} of {drafted:?}");
    let said = fable(&format!("{guided} --drafter early-exit --draft-len 2")).ok().stderr;
    for needle in
        ["fable-loop with fable-loop after loop 1", "passes of all loops saved", "speed-up"]
    {
        assert!(said.contains(needle), "{needle}: {said}");
    }
    // What needs no draft has one only if asked.
    let said = fable("--temperature 0").ok().stderr;
    assert!(said.contains("ngram"), "{said}");
    generate("x --model builtin:grimm").fails(&["\"grimm\"", "expected one of fable, fable-loop"]);
    fable("--drafter model").fails(&["--drafter model needs --draft-model"]);
}

/// `--loop-cfg` on a Qwen3 whose file does not say that it loops: the text of the one whose file does,
/// under a hash of its own.
#[test]
fn a_plain_qwen3_may_be_told_to_loop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = read_json(golden("looped-qwen3").join("config.json"));
    let said = config.as_object_mut().expect("an object").remove("loop_cfg").expect("the field");
    for file in ["model.safetensors", "generation_config.json"] {
        let from = golden("looped-qwen3").join(file);
        if from.exists() {
            std::fs::copy(from, folder.path().join(file)).expect("copied");
        }
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let plain = |command: Run| command.model(folder.path());
    let words = "--temperature 0 --drafter early-exit --ignore-eos --max-tokens 16";
    let told = plain(generate(words).ids(&PROMPT).arg("--loop-cfg").arg(said.to_string())).json();
    let expected = generate(words).ids(&PROMPT).model(&golden("looped-qwen3")).json();
    assert_eq!(tokens(&told), tokens(&expected));
    let hash = |run: Run| plain(run).json()["hash"].clone();
    let without = hash(draftproof("contract"));
    let with = hash(draftproof("contract").arg("--loop-cfg").arg(said.to_string()));
    assert!(without.is_string() && with.is_string() && without != with, "{without} {with}");

    for (loop_cfg, needle) in
        [("[1]", "expected a JSON object"), (r#"{"start": 1}"#, "loop_cfg"), ("{", "--loop-cfg")]
    {
        let run = generate("--max-tokens 1").ids(&PROMPT).arg("--loop-cfg").arg(loop_cfg);
        plain(run).fails(&[needle]);
    }
    let run = |model: Run| model.arg("--loop-cfg").arg(said.to_string());
    run(generate("x --model builtin:fable")).fails(&["--loop-cfg is for folders"]);
    for other in ["llama", "ouro"] {
        let found = run(generate("--max-tokens 1").ids(&PROMPT).model(&golden(other)));
        found.fails(&["--loop-cfg: expected a Qwen3 model", other]);
    }
}

/// A trace of a guided text with rejection holds, and says so.
#[test]
fn guided_rounds_replay() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (model, rule) in [("ouro", "rejection"), ("huginn", "block")] {
        let trace = folder.path().join(model);
        let words =
            "--loop-guidance logits --guidance-weight adaptive:1 --drafter early-exit --seed 5";
        run(model, words).words("--verify").arg(rule).arg("--trace").arg(&trace).ok();
        draftproof("replay").arg(&trace).ok();
    }
}

/// All loops but one are saved where the early loop is the whole model: with K damped by 1 loop.
#[test]
fn the_summary_says_what_was_run_and_what_was_not() {
    let said =
        run("parcae", "--temperature 0 --drafter early-exit --draft-loops 2 --draft-len 2").ok();
    for needle in ["4 loops a pass, the draft after 2", "passes of all loops saved", "after loop 2"]
    {
        assert!(said.stderr.contains(needle), "{needle}: {}", said.stderr);
    }
    let words = "--temperature 0 --drafter none --loop-guidance hidden --guidance-weight";
    let said = run("parcae", &format!("{words} adaptive:1")).ok().stderr;
    assert!(said.contains("guided by loop 1, one more readout a pass"), "{said}");
    let said = run("parcae", &format!("{words} 0.3")).ok().stderr;
    assert!(said.contains("guided by loop 1\n"), "{said}");
    // The first loops of a state that begins with zeros, not with the text.
    assert!(said.contains("warning: the state of parcae begins with"), "{said}");
    let said = run("ouro", &format!("{words} 0.3")).ok().stderr;
    assert!(!said.contains("warning"), "{said}");
}

fn card(words: &str) -> Value {
    draftproof("contract").words(words).model(&golden("ouro")).json()
}

#[test]
fn depth_and_guidance_are_law_and_drafts_are_not() {
    let base = "--loop-guidance logits --guidance-weight 0.3 --reference-loop 1";
    let hash = |words: &str| card(words)["hash"].clone();
    let all = [
        "",
        "--loops 3",
        base,
        "--loop-guidance logits --guidance-weight 0.4",
        "--loop-guidance logits --guidance-weight 0.3 --reference-loop 2",
        "--loop-guidance logits --guidance-weight adaptive:0.3",
        "--loop-guidance hidden --guidance-weight 0.3",
        "--loop-guidance logits --guidance-weight 0.3 --loops 3",
    ];
    let mut hashes: Vec<String> = all.iter().map(|words| hash(words).to_string()).collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), all.len());
    assert_eq!(hash("--loops 4"), hash(""), "its own depth");
    let none = "--loop-guidance hidden --guidance-weight 0 --reference-loop 3";
    assert_eq!(hash(none), hash(""), "no weight is no guidance");
    for draft in ["--drafter early-exit --draft-loops 3", "--drafter none", "--draft-len 2"] {
        assert_eq!(hash(&format!("{base} {draft}")), hash(base), "{draft}");
    }
    let card = card(base);
    assert_eq!(card["law"]["loops"]["loops"], 4);
    assert_eq!(card["law"]["loops"]["guidance"]["weight"], "0.3");
    assert!(card.to_string().contains("arXiv 2610.02185"));
    // Those that are not looped keep the hash they had.
    let plain = draftproof("contract").json();
    assert!(plain["law"].get("loops").is_none());
}

/// Noise is part of the law and of its hash; zeros are what a model without the flag has.
#[test]
fn initial_states_are_law() {
    for model in ["huginn", "parcae"] {
        let card = |words: &str| draftproof("contract").words(words).model(&golden(model)).json();
        let hash = |words: &str| card(words)["hash"].clone();
        let (seven, eight) = (hash("--initial-state noise:7"), hash("--initial-state noise:8"));
        assert!(seven.is_string() && seven != eight, "{model}");
        assert!(hash("") != seven && hash("") != eight, "{model}");
        assert_eq!(hash("--initial-state zeros"), hash(""), "{model}");
        assert_eq!(hash("--initial-state noise:7 --drafter none --draft-len 2"), seven, "{model}");
        let noisy = card("--initial-state noise:7");
        assert_eq!(noisy["law"]["loops"]["initial_state"], "noise:7");
        let deviation = if model == "huginn" { "0.6325" } else { "0.0791" };
        for needle in ["noise, a function of the seed 7,", deviation, "cut at 3 of them"] {
            assert!(noisy.to_string().contains(needle), "{needle}: {noisy}");
        }
        assert!(card("").to_string().contains("The state begins with zeros, not with noise"));

        let stamp = run(model, "--initial-state noise:7").json();
        assert_eq!(stamp["contract"], hash("--initial-state noise:7 --ignore-eos"));
        for state in ["zeros", "noise:7"] {
            let said = run(model, &format!("--initial-state {state} --drafter none")).ok().stderr;
            assert!(said.contains(&format!("4 loops a pass · initial state {state} · ")), "{said}");
        }
    }
    for model in ["ouro", "looped-qwen3"] {
        let refused = run(model, "--initial-state noise:7");
        refused.fails(&["initial state", "whose state does not begin with the text", model]);
    }
}

/// The same tokens and probabilities with every draft under noise, greedy and coupled; other noise,
/// other probabilities.
#[test]
fn noise_changes_the_text_and_drafts_do_not() {
    for model in ["huginn", "parcae"] {
        for words in [
            "--temperature 0",
            "--seed 3 --verify coupled",
            "--seed 3 --verify coupled --loop-guidance logits --guidance-weight 0.3",
        ] {
            let text = |state: &str, draft: &str| {
                let words = format!("{words} --initial-state {state} --drafter {draft}");
                let found = run(model, &words).words("--logprobs 1").json();
                assert!(found["logprobs"][0]["raw"].is_f64(), "{found}");
                (tokens(&found), found["logprobs"].clone())
            };
            let plain = text("noise:7", "none");
            for draft in
                ["early-exit", "early-exit --draft-loops 3 --draft-len 5", "ngram", "quantized"]
            {
                assert_eq!(text("noise:7", draft), plain, "{model} {words} {draft}");
            }
            for other in ["noise:8", "zeros"] {
                let other = text(other, "none").1;
                assert_ne!(other[0]["raw"], plain.1[0]["raw"], "{model} {words}");
            }
        }
        let words = "--temperature 0 --initial-state noise:7 --n 3 --drafter";
        let alone = tokens(&run(model, &format!("{words} none")).jsons()[0]);
        for sibling in run(model, &format!("{words} early-exit")).jsons() {
            assert_eq!(tokens(&sibling), alone, "{model}: in company");
        }
    }
}

/// Fewer loops are another model, and the same as the readout of an earlier loop.
#[test]
fn depth_reaches_the_text() {
    for model in LOOPED {
        let text = |words: &str| {
            tokens(&run(model, &format!("--temperature 0 --drafter none {words}")).json())
        };
        let all: Vec<_> = (1..=4).map(|r| text(&format!("--loops {r}"))).collect();
        assert_eq!(all[3], text(""), "{model}");
        assert!(all[0] != all[3] && all[1] != all[3], "{model}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let looped = |words: &str, needles: &[&str]| run("ouro", words).fails(needles);
    let guided = |more: &str| format!("--loop-guidance logits {more}");
    looped("--loops 0", &["loops", "from 1 to", "found 0"]);
    looped("--loops 5000", &["from 1 to", "5000"]);
    for k in ["0", "4", "9"] {
        let words = guided(&format!("--guidance-weight 0.5 --reference-loop {k}"));
        looped(&words, &["reference loop", "before the last of 4", &format!("found {k}")]);
    }
    looped(&guided("--guidance-weight 0.5 --loops 1"), &["before the last of 1"]);
    for weight in ["-1", "nan", "inf", "adaptive:", "adaptive:-0.1", "adaptive:x", "1,5"] {
        looped(&guided("--guidance-weight=").replace('=', &format!("={weight}")), &["from 0 on"]);
    }
    looped(&guided(""), &["--guidance-weight"]);
    looped("--guidance-weight 1", &["--loop-guidance"]);
    looped("--reference-loop 1", &["--loop-guidance"]);
    looped("--draft-loops 1", &["--drafter early-exit"]);
    for n in ["0", "4", "7"] {
        let words = format!("--drafter early-exit --draft-loops {n}");
        looped(&words, &["loops", &format!("found {n}")]);
    }
    // A draft of one's own has no early loop of the target.
    let other = golden("ouro");
    let both = run("ouro", "--drafter early-exit").draft(&other);
    both.fails(&["--draft-model", "early-exit"]);
    for words in ["--loops 2", "--drafter early-exit", "--loop-guidance logits --guidance-weight 1"]
    {
        generate("x --max-tokens 1").words(words).fails(&["a looped transformer", "fable"]);
    }
}

/// The guided law itself, sampled from the engine with early exits as drafts.
#[test]
fn samples_follow_the_guided_law() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let samples = folder.path().join("samples.jsonl");
    let guidance = "--loop-guidance logits --guidance-weight adaptive:1 --temperature 0.7";
    let words = "--ignore-eos --max-tokens 2 --n 3000 --drafter early-exit --draft-len 2 --seed 1";
    let drawn =
        generate(words).words(guidance).ids(&PROMPT).model(&golden("ouro")).arg("--json").ok();
    std::fs::write(&samples, drawn.stdout).expect("written");
    let audit = |words: &str| {
        let run = draftproof("audit --ignore-eos --length 2 --drafter none").words(words);
        run.arg("--samples").arg(&samples).ids(&PROMPT).model(&golden("ouro")).run()
    };
    let right = audit(guidance);
    assert_eq!(right.code, 0, "{}{}", right.stdout, right.stderr);
    let wrong = audit("--temperature 0.7");
    assert_eq!(wrong.code, 1, "the unguided law must be told apart: {}", wrong.stdout);
}
