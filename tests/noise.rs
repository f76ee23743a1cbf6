//! `noise`: what temperature 0 leaves to chance on a model of ours, and the same question put to a
//! server that flips a near-tie on purpose.

use std::{fs, thread, time::Duration};

use serde_json::Value;

use crate::{
    harness::{Finished, Run, draftproof, golden},
    server::{Request, Server, Told, completion},
    tiny::{FIRST, Tiny, spell},
};

const PROMPT: &str = "Once upon a time";

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The lines of outputs.jsonl in a folder.
fn outputs(folder: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("outputs.jsonl")).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Twenty runs with 1 and 2 threads, alone and in a batch, with every draft: one text. And the
/// spread that general kernels have, so that the zeros beside it mean something.
#[test]
fn row_invariant_kernels_leave_nothing_to_chance() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompts = folder.path().join("prompts.txt");
    fs::write(&prompts, format!("{PROMPT}\nThe old mill\n\nA dragon who\n")).expect("written");
    let run = draftproof("noise --runs 20 --max-tokens 24 --threads 2 --prompts").arg(&prompts);
    let found = run.arg("--report").arg(folder.path()).json();
    assert_eq!(found["passed"], true, "{found}");
    assert_eq!((&found["runs"], &found["prompts"]), (&20.into(), &3.into()));
    assert_eq!(
        (&found["distinct_outputs"], &found["most_common"]["count"]),
        (&1.into(), &20.into())
    );
    assert!(found["first_divergence"].is_null());
    let (mut promised, mut general) = (0, 0.0_f64);
    for spread in list(&found["spread"]) {
        let max = number(&spread["max"]);
        if spread["promised_zero"] == true {
            assert_eq!((max, list(&spread["flips"]).len()), (0.0, 0), "{spread}");
            promised += 1;
        } else if spread["kernels"] == "general" && spread["name"] == "rows" {
            general = general.max(max);
        }
        assert!(number(&spread["rms"]) <= max, "{spread}");
        assert_eq!(spread["decisions"], found["near_ties"]["positions"]);
    }
    assert_eq!(promised, 7, "control of both, rows twice, batch, threads, weights");
    assert!(general > 0.0 && general < 1e-2, "{general}");
    let longest = list(&found["reduction"]).last().expect("lengths");
    assert!(number(&longest["max"]) > 0.0 && number(&longest["max"]) < 1e-3, "{longest}");

    let ties = &found["near_ties"];
    let bars = list(&ties["histogram"]).iter().map(|bar| number(&bar["count"])).sum::<f64>();
    assert_eq!(bars, number(&ties["positions"]));
    let nearest: Vec<f64> =
        list(&ties["nearest"]).iter().map(|near| number(&near["gap"])).collect();
    assert!(nearest.is_sorted() && nearest[0] >= 0.0, "{nearest:?}");
    for near in list(&ties["nearest"]) {
        let [first, second] = [0, 1].map(|i| number(&near["logprobs"][i]));
        assert!((first - second - number(&near["gap"])).abs() < 1e-9, "{near}");
    }

    let outputs = outputs(folder.path());
    assert_eq!(outputs.len(), 60);
    let seen = |key: &str| -> Vec<String> {
        let mut seen: Vec<String> =
            outputs.iter().map(|output| output["circumstances"][key].to_string()).collect();
        seen.sort();
        seen.dedup();
        seen
    };
    assert_eq!(seen("threads"), ["1", "2"]);
    assert_eq!(seen("batch"), ["false", "true"]);
    assert_eq!(seen("draft").len(), 5, "{:?}", seen("draft"));
    assert_eq!(outputs[0]["tokens"], outputs[57]["tokens"], "run 0 and 19 of the first prompt");
    let page = fs::read_to_string(folder.path().join("noise.html")).expect("written");
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(page.contains("20 × "), "{page}");
}

#[test]
fn flips_of_general_kernels_come_with_their_gaps() {
    let run = draftproof("noise --kernels general --runs 4 --max-tokens 12").arg(PROMPT);
    let found = run.json();
    assert_eq!((&found["kernels"], &found["passed"]), (&"general".into(), &true.into()));
    for spread in list(&found["spread"]) {
        assert_eq!(spread["flips_within_twice_the_spread"], true);
        for flip in list(&spread["flips"]) {
            assert!(number(&flip["gap"]) <= 2.0 * number(&flip["spread"]), "{flip}");
        }
    }
    let kernels = list(&found["spread"]).iter().find(|spread| spread["name"] == "kernels");
    assert!(number(&kernels.expect("compared")["max"]) > 0.0);
}

/// Two tokens with one logit, after every token: every position is a tie, and named.
#[test]
fn ties_are_found() {
    let path = spell("ab");
    let mut tied = Tiny::letters(4);
    for last in 0..FIRST + 4 {
        tied = tied.logit(last, path[0], 9.0).logit(last, path[1], 9.0);
    }
    let folder = tied.write();
    let found = draftproof("noise --runs 2 --max-tokens 8").arg("abc").model(&folder).json();
    let ties = &found["near_ties"];
    assert_eq!((&ties["positions"], &ties["below_1e-6"]), (&8.into(), &8.into()));
    assert_eq!(ties["nearest"][0]["tokens"], serde_json::json!(["a", "b"]));
    assert_eq!(found["most_common"]["text"], "aaaaaaaa", "ties go to the lowest id");
    let tables = draftproof("noise --runs 2 --max-tokens 8").arg("abc").model(&folder).ok().stdout;
    for needle in ["1e-6: 8", "the same launch again", "2 runs", "PASSED"] {
        assert!(tables.contains(needle), "{needle}: {tables}");
    }
    let device = if cfg!(feature = "wgpu") { "on wgpu" } else { "left out" };
    assert!(tables.contains(device), "{tables}");
}

/// A model whose f32 weights lose half of their bits: logits move, decisions fall otherwise, each at
/// a gap that the movement of its row explains.
#[test]
fn rounded_weights_flip_decisions_within_twice_the_spread() {
    let run = draftproof("noise --runs 2 --max-tokens 40").model(&golden("pair-target"));
    let found = run.arg("Once upon").json();
    assert_eq!((&found["weights"], &found["passed"]), (&"f32".into(), &true.into()));
    let spreads = list(&found["spread"]);
    let rounded = spreads.iter().find(|spread| spread["name"] == "weights").expect("compared");
    assert!(number(&rounded["max"]) > 1e-3, "{}", rounded["max"]);
    let flips = list(&rounded["flips"]);
    assert!(!flips.is_empty(), "{}", found["near_ties"]);
    for flip in flips {
        assert!(number(&flip["gap"]) <= 2.0 * number(&flip["spread"]), "{flip}");
        assert_ne!(flip["tokens"][0], flip["tokens"][1]);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    draftproof("noise --runs 1").fails(&["--runs"]);
    draftproof("noise --max-tokens 0").fails(&["--max-tokens"]);
    draftproof("noise --prompts /nowhere").fails(&["/nowhere"]);
    draftproof("noise x --prompts y").fails(&["--prompts"]);
    draftproof("noise x --report /dev/null/x").fails(&["/dev/null/x"]);
    draftproof("noise --api chat x").fails(&["--endpoint"]);
    let short = Tiny::letters(4).noisy(1).context(8).write();
    draftproof("noise abcdabcdabcd").model(&short).fails(&["context of 8"]);
    let silent = Tiny::letters(4).noisy(1).without_tokenizer().write();
    draftproof("noise a").model(&silent).fails(&["has no tokenizer"]);
    draftproof("noise a --model x --endpoint http://127.0.0.1:1").fails(&["--endpoint", "--model"]);
}

/// Five tokens; the fourth is a near-tie.
const STANDS: [Told; 5] = [
    ("The", [("The", -0.1), ("A", -3.0)]),
    (" old", [(" old", -0.2), (" new", -2.0)]),
    (" mill", [(" mill", -0.3), (" man", -1.5)]),
    (" stands", [(" stands", -0.7), (" falls", -0.700_000_5)]),
    (".", [(".", -0.1), ("!", -3.0)]),
];
const FALLS: [Told; 5] = {
    let mut other = STANDS;
    other[3].0 = " falls";
    other[4] = ("!", [("!", -0.1), (".", -3.0)]);
    other
};

/// Every fourth reply takes the other branch.
fn flipping(number: usize, request: &Request) -> (u16, String) {
    let tokens = if number % 4 == 3 { &FALLS } else { &STANDS };
    (200, completion(request, tokens, Some("fp1")))
}

fn ask(server: &Server, words: &str) -> Run {
    draftproof("noise").words(words).arg("--endpoint").arg(&server.url).arg(PROMPT)
}

#[test]
fn a_server_that_flips_a_near_tie_is_found_out() {
    for words in ["--api completions", "--api chat", "--api chat --concurrency 4"] {
        let server = Server::start(flipping);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let run = ask(&server, words).words("--runs 20 --seed 7 --max-tokens 5 --endpoint-model m");
        let found = run.arg("--report").arg(folder.path()).json();
        assert_eq!(
            (&found["distinct_outputs"], &found["void"]),
            (&2.into(), &Value::Null),
            "{words}"
        );
        assert_eq!(found["most_common"]["count"], 15);
        assert_eq!(found["most_common"]["text"], "The old mill stands.");
        let fork = &found["first_divergence"];
        assert_eq!((&fork["position"], &found["unit"]), (&3.into(), &"token".into()));
        assert!((number(&fork["gap"]) - 5e-7).abs() < 1e-9, "{fork}");
        let [stands, falls] = &list(&fork["ways"])[..] else { panic!("{fork}") };
        assert_eq!((&stands["text"], &falls["text"]), (&" stands".into(), &" falls".into()));
        assert_eq!((&stands["share"], &falls["share"]), (&0.75.into(), &0.25.into()));
        let [low, high] = [0, 1].map(|end| number(&falls["share_interval_95"][end]));
        assert!(low > 0.05 && low < 0.25 && 0.25 < high && high < 0.5, "{low} {high}");
        assert_eq!(found["near_ties"]["below_1e-6"], 1);
        assert_eq!(found["near_ties"]["nearest"][0]["before"], "The old mill");
        let outputs = outputs(folder.path());
        assert_eq!(outputs.len(), 20);
        let falls = outputs.iter().filter(|output| output["text"] == "The old mill falls!");
        assert_eq!(falls.count(), 5, "raw outputs");
        assert!(
            fs::read_to_string(folder.path().join("noise.html"))
                .expect("written")
                .contains("falls")
        );
        let requests = server.requests();
        assert_eq!(requests.len(), 20);
        for request in requests {
            let body = &request.body;
            assert_eq!((&body["temperature"], &body["seed"]), (&0.into(), &7.into()));
            assert_eq!((&body["model"], &body["max_tokens"]), (&"m".into(), &5.into()));
            assert!(request.authorization.is_none());
        }
    }
}

#[test]
fn a_server_that_never_differs_is_bounded_only() {
    let server = Server::start(|_, request| (200, completion(request, &STANDS, None)));
    let found = ask(&server, "--runs 20").json();
    assert_eq!(found["distinct_outputs"], 1);
    assert!((number(&found["another_output_at_most"]) - 0.1391).abs() < 1e-3);
    assert!(list(&found["notes"])[0].as_str().is_some_and(|note| note.contains("fingerprint")));
}

#[test]
fn an_experiment_on_two_models_is_void() {
    let other = |number: usize| if number == 2 { "fp2" } else { "fp1" };
    let server = Server::start(move |number, request| {
        (200, completion(request, &STANDS, Some(other(number))))
    });
    let run = ask(&server, "--runs 4").run();
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stdout.contains("VOID: system_fingerprint changed"), "{}", run.stdout);
    let renamed = Server::start(|number, request| {
        let mut request = request.clone();
        request.body["model"] = format!("m{}", number / 3).into();
        (200, completion(&request, &STANDS, Some("fp")))
    });
    let run = ask(&renamed, "--runs 4 --json").run();
    assert_eq!((run.code, &run.objects()[0]["passed"]), (1, &false.into()));
}

/// A server that refuses log-probabilities: texts are compared by characters.
#[test]
fn without_logprobs_positions_are_characters() {
    let server = Server::start(|number, request| match request.body["logprobs"].is_null() {
        true => flipping(number, request),
        false => (400, "no logprobs here".into()),
    });
    let found = ask(&server, "--runs 8").json();
    assert_eq!(found["unit"], "character");
    assert_eq!(found["first_divergence"]["position"], "The old mill ".len());
    assert!(found["near_ties"].is_null());
}

#[test]
fn the_key_is_sent_and_never_shown() {
    const KEY: &str = "sk-a-very-secret-key";
    let keyed = |run: Run| {
        let mut command = run.into_command();
        command.env("DRAFTPROOF_API_KEY", KEY);
        let output = command.output().expect("the program runs");
        Finished::new("noise".into(), output)
    };
    // It echoes what it was sent, in a field of the reply, or in its refusal.
    let echo = Server::start(|number, request| {
        let key = request.authorization.clone().unwrap_or_default();
        match number {
            0..4 => (200, completion(request, &STANDS, Some(&key))),
            _ => (401, format!("no access for {key}")),
        }
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = keyed(ask(&echo, "--runs 4").arg("--report").arg(folder.path()));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(echo.requests().iter().all(|request| {
        request.authorization.as_deref() == Some("Bearer sk-a-very-secret-key")
    }));
    let mut seen = run.stdout + &run.stderr;
    for file in ["noise.json", "noise.html", "outputs.jsonl"] {
        seen += &fs::read_to_string(folder.path().join(file)).expect("written");
    }
    assert!(seen.contains("Bearer [key]"), "{seen}");
    let refused = keyed(ask(&echo, "--runs 4"));
    refused.failed(&["401", "no access for Bearer [key]"]);
    seen += &refused.stderr;
    // Nobody on the way may read it.
    let plain = keyed(draftproof("noise x --endpoint http://example.invalid/v1"));
    plain.failed(&["DRAFTPROOF_API_KEY", "https"]);
    assert!(!(seen + &plain.stderr).contains(KEY));
    // What could not be kept out of the output is not taken.
    for odd in ["short", "has spaces in it", "a\"quoted\"key"] {
        let mut command = ask(&echo, "--runs 4").into_command();
        let output = command.env("DRAFTPROOF_API_KEY", odd).output().expect("the program runs");
        let refused = Finished::new("noise".into(), output);
        refused.failed(&["DRAFTPROOF_API_KEY", "8 or more"]);
        assert!(!refused.stderr.contains(odd), "{}", refused.stderr);
    }
}

#[test]
fn servers_that_do_not_answer_well_are_named() {
    let replies: [(u16, &'static str, &[&str]); 4] = [
        (200, "not JSON", &["expected JSON"]),
        (200, "{\"choices\": []}", &["choices[0]"]),
        (404, "no such model", &["404", "no such model"]),
        (302, "", &["302"]),
    ];
    for (status, body, needles) in replies {
        let server = Server::start(move |_, _| (status, body.into()));
        ask(&server, "--runs 4").fails(needles);
        assert_eq!(server.requests().len(), 1, "{status}: no redirection, no second try");
    }
    let slow = Server::start(|_, request| {
        thread::sleep(Duration::from_secs(5));
        flipping(0, request)
    });
    ask(&slow, "--runs 4 --timeout 1").fails(&["timeout"]);
    draftproof("noise x --endpoint http://127.0.0.1:1/v1").fails(&["127.0.0.1:1"]);
    draftproof("noise x --endpoint ftp://127.0.0.1").fails(&["expected http://"]);
    draftproof("noise x --endpoint nonsense").fails(&["nonsense"]);
    if !cfg!(feature = "https") {
        draftproof("noise x --endpoint https://127.0.0.1:1").fails(&["--features https"]);
    }
}

/// A busy server is asked again; one that fails for good ends the run, and what came is kept.
#[test]
fn failures_are_bounded_and_replies_kept() {
    let busy = Server::start(|number, request| match number {
        2 => (503, "later".into()),
        _ => flipping(0, request),
    });
    assert_eq!(ask(&busy, "--runs 4").json()["distinct_outputs"], 1);
    assert_eq!(busy.requests().len(), 5);
    let broken = Server::start(|number, request| match number {
        0..3 => flipping(0, request),
        _ => (403, "enough".into()),
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = ask(&broken, "--runs 20").arg("--report").arg(folder.path());
    run.fails(&["after 3 of 20 replies", "403", "enough"]);
    assert_eq!(outputs(folder.path()).len(), 3);
    assert_eq!(broken.requests().len(), 4);
}
