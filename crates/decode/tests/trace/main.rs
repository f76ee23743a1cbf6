//! Traces of real runs hold; traces that were changed anywhere, or made by a wrong sampler, do not.

mod edits;
mod hostile;
mod json;
mod mutants;
mod setup;

use draftproof_decode::{
    FinishReason, Session, Token,
    trace::{RecordError, Recorder, Run, Summary, replay},
    verify::{BlockRule, Coupled, Rejection, Verifier},
};

use json::{body, rechain};
use setup::{Drafts, RULES, SETTINGS, Setup, Tape, tokens};

/// Replays, and compares what replay read with what the sessions did.
fn assert_replays(tape: &Tape, what: &str) -> Summary {
    let summary = replay(&tape.lines).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (mut rounds, mut emitted, mut accepted) = (0, 0, 0);
    for (session, replayed) in tape.sessions.iter().zip(&summary.sequences) {
        // A resumed session brought its first tokens along.
        let new = session.stats().tokens as usize;
        let before = session.generated().len() - new;
        assert_eq!(replayed.tokens, session.generated()[before..], "{what}");
        assert_eq!(replayed.finish, session.finish(), "{what}");
        rounds += session.stats().rounds;
        emitted += session.stats().tokens;
        accepted += session.stats().accepted;
    }
    assert_eq!(summary.rounds, rounds, "{what}");
    assert_eq!(summary.drafted, accepted, "{what}");
    assert_eq!(summary.drafted + summary.residual + summary.bonus, emitted, "{what}");
    assert_eq!(summary.lines, tape.lines.len() as u64);
    summary
}

/// Every rule × drafter × temperature × seed, two continuations at once, with and without laws.
#[test]
fn traces_of_real_runs_hold() {
    let (mut runs, mut cut, mut replaced, mut raced) = (0, 0, 0, 0);
    for verifier in RULES {
        for drafts in Drafts::ALL {
            for (name, settings) in SETTINGS {
                for seed in 0..12 {
                    let what = format!("{}, {drafts:?}, {name}, seed {seed}", verifier.name());
                    let setup = Setup { verifier, drafts, settings: settings(), seed };
                    let tape = setup.run(false);
                    let summary = assert_replays(&tape, &what);
                    let full = setup.run(true);
                    let whole = assert_replays(&full, &what);
                    assert_eq!(summary.choices, whole.choices, "{what}");
                    assert_eq!(summary.sequences, whole.sequences, "{what}");
                    assert_alpha(&full, &whole, &what);
                    if name == "temperature 0" {
                        let none = whole.choices.draws + whole.choices.coins + whole.choices.races;
                        assert_eq!(none, 0, "{what}: greedy decoding spends no noise");
                    }
                    runs += 2;
                    cut += tape.lines.iter().filter(|line| is_cut(line)).count();
                    replaced += whole.residual;
                    raced += whole.choices.races;
                }
            }
        }
    }
    println!("{runs} traces, {cut} tokens cut, {replaced} replaced, {raced} races");
    assert!(cut > 50 && replaced > 100 && raced > 100);
}

/// An emitted token behind the end of the text.
fn is_cut(line: &str) -> bool {
    line.contains("\"token\":") && line.contains("\"kept\":false") && !line.contains("rejected")
}

/// The overlap that replay derives from whole laws is the engine's own figure.
fn assert_alpha(tape: &Tape, summary: &Summary, what: &str) {
    let mut stats = tape.sessions[0].stats().clone();
    tape.sessions[1..].iter().for_each(|session| stats.add(session.stats()));
    match (stats.alpha(), summary.alpha) {
        (Some(engine), Some(replayed)) => {
            assert!((engine - replayed).abs() < 1e-12, "{what}: {engine} {replayed}");
        }
        (engine, replayed) => assert_eq!(engine, replayed, "{what}"),
    }
}

/// The lines are a file format: they change only on purpose.
#[test]
fn value_stability() {
    use sha2::{Digest, Sha256};
    let digest = |verifier| {
        let setup = Setup { verifier, drafts: Drafts::Model, settings: SETTINGS[0].1(), seed: 5 };
        let bytes = Sha256::digest(setup.run(true).lines.join("\n"));
        bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let rules: [&dyn Verifier; 3] = [&Rejection, &BlockRule, &Coupled];
    assert_eq!(rules.map(digest), ["b97951fa", "c4a64175", "5a980c13"]);
}

/// The text ends inside a block: what follows is in the trace and marked as not kept.
#[test]
fn eos_inside_a_block() {
    let setup = |seed| Setup {
        verifier: &Rejection,
        drafts: Drafts::Twin,
        settings: SETTINGS[0].1(),
        seed,
    };
    let ended = |tape: &Tape| tape.lines.iter().any(|line| line.contains("\"finish\":\"eos\""));
    let tape = (0..50)
        .map(|seed| setup(seed).run(false))
        .find(|tape| ended(tape) && tape.lines.iter().any(|line| is_cut(line)))
        .expect("some text ends so");
    assert_replays(&tape, "EOS");
}

/// Target rows without a law that decide nothing: block verification ends a block before one, and
/// with every rule one may stand behind a stop string.
#[test]
fn unusable_rows_that_decide_nothing() {
    let before = |line: &str| line.contains("\"drafted\":{\"token\":3,");
    let last = |line: &str| line.contains("\"alpha\":") && !line.contains("\"z\":");
    let open = |line: &str| last(line) && !line.contains("\"alpha\":\"0/");
    let mut cut = 0;
    for verifier in RULES {
        let mut behind = 0;
        for seed in 0..400 {
            let Some(tape) = setup::broken_row(verifier, seed) else { continue };
            assert_replays(&tape, &format!("a broken row, {verifier:?}, seed {seed}"));
            cut += tape.lines.windows(2).filter(|pair| before(&pair[0]) && open(&pair[1])).count();
            let unusable = |line: &String| line.contains("\"origin\":\"unusable\"");
            let Some(at) = tape.lines.iter().position(unusable) else { continue };
            // The same place in a text that goes on would hide a failure.
            let mut bodies: Vec<String> = tape.lines.iter().map(|line| body(line)).collect();
            let stopped = bodies[at - 1].replace(",\"finish\":\"stop\"", "");
            if stopped != bodies[at - 1] {
                behind += 1;
                bodies[at - 1] = stopped;
                let error = replay(rechain(&bodies, at - 1)).expect_err("no token and no end");
                assert_eq!((error.line, &*error.field), (at as u64 + 1, "origin"), "{error}");
            }
        }
        assert!(behind > 5, "{verifier:?}: {behind} unusable rows behind the end");
    }
    assert!(cut > 10, "{cut} blocks ended before an unusable row");
}

/// A run that fails or is stopped between rounds leaves a trace that says so.
#[test]
fn an_interrupted_run() {
    let setup =
        Setup { verifier: &Rejection, drafts: Drafts::Model, settings: SETTINGS[0].1(), seed: 1 };
    let summary = replay(&setup.rounds(false, 1).lines).expect("two rounds");
    assert_eq!((summary.rounds, summary.sequences[0].finish), (2, None));
    let nothing = setup.rounds(true, 0);
    assert_eq!(nothing.lines.len(), 2);
    assert_eq!(replay(&nothing.lines).expect("no round").rounds, 0);
}

#[test]
fn sessions_without_a_round() {
    let limits = setup::limits(0);
    let seed = setup::seed(3, 0);
    let mut sessions = [Session::new(&tokens(&[1]), seed, limits)];
    let mut tape = Tape::start(&Rejection, &sessions, false);
    Setup { verifier: &Rejection, drafts: Drafts::None, settings: SETTINGS[0].1(), seed: 3 }
        .generate(&mut sessions, &mut tape)
        .expect("nothing to do");
    let tape = tape.end(sessions.to_vec());
    let summary = assert_replays(&tape, "no tokens wanted");
    assert_eq!(summary.sequences[0].finish, Some(FinishReason::Length));
}

#[test]
fn what_cannot_be_recorded() {
    let session =
        |seed, sequence| Session::new(&[Token(1)], setup::seed(seed, sequence), setup::limits(4));
    let run = |verifier| Run { verifier, contract: None, vocab: 4, context: 64, full: false };
    let error = |verifier, sessions: &[Session]| {
        Recorder::new(&run(verifier), sessions).expect_err("refused")
    };
    let found = "greedy".to_owned();
    assert_eq!(error("greedy", &[]), RecordError::UnknownVerifier { found });
    let mixed = |seed, sequence| RecordError::MixedNoise { seed, sequence, expected: 1 };
    assert_eq!(error("block", &[session(1, 0), session(2, 1)]), mixed(2, 1));
    assert_eq!(error("block", &[session(1, 4), session(1, 4)]), mixed(1, 4));
}

/// The summary says what was checked, and what it could not check.
#[test]
fn the_summary_is_honest() {
    let setup =
        Setup { verifier: &Coupled, drafts: Drafts::Model, settings: SETTINGS[0].1(), seed: 2 };
    let short = replay(&setup.run(false).lines).expect("holds").to_string();
    let long = replay(&setup.run(true).lines).expect("holds").to_string();
    assert!(short.contains("only a full trace lets replay derive"), "{short}");
    assert!(long.contains("derived again from whole laws"), "{long}");
    assert!(long.contains("taken as given: the laws p and q"), "{long}");
}
