//! Every field of every line, changed: with the digests as they were, and by somebody who computes
//! them anew.

use std::collections::BTreeMap;

use draftproof_decode::trace::{ReplayError, replay};

use crate::{
    json::{Edit, body, edits, rechain},
    setup::{Drafts, RULES, SETTINGS, Setup},
};

/// What a trace states and nothing in it can confirm, whoever computes the digests: the laws stand
/// for the models, and the header for the world. (A law's *weights* are confirmed by its total. That
/// the listener stopped a text is its own word too, but stands in two lines, so it takes two lies.)
const GIVEN: [&str; 9] = [
    "header.contract",
    "header.vocab",
    "header.context",
    "header.sequences[].prompt_len",
    "header.sequences[].start_sha256",
    "header.sequences[].max_tokens",
    "header.sequences[].eos[]",
    // Ids of other tokens than the ones decided about.
    "position.p.ids[]",
    "position.q.ids[]",
];

/// What only whole laws confirm, if the digests were computed anew.
const NEEDS_LAWS: [&str; 13] = [
    "position.token",
    "position.drafted.token",
    "position.drafted.draw.below",
    // Under the coupled rule, which has no use for them; the others name them twice.
    "position.drafted.draw.weight",
    "position.drafted.draw.total",
    "position.weights.p",
    "position.weights.p_total",
    // Only 0 against 1, where α = 1 and h is 1 with either.
    "position.block.z",
    "position.draw.below",
    "position.draw.weight",
    "position.draw.total",
    "position.race.weight",
    "position.race.total",
];

fn setups() -> Vec<Setup> {
    let mut setups = Vec::new();
    for verifier in RULES {
        for (_, settings) in SETTINGS {
            setups.push(Setup { verifier, drafts: Drafts::Model, settings: settings(), seed: 5 });
        }
        for drafts in [Drafts::None, Drafts::Ngram, Drafts::Racing] {
            setups.push(Setup { verifier, drafts, settings: SETTINGS[0].1(), seed: 5 });
        }
        // Longer blocks, and a text that the listener stops.
        setups.push(Setup { verifier, drafts: Drafts::Twin, settings: SETTINGS[0].1(), seed: 8 });
    }
    setups
}

/// The replay of `lines` with line `at` changed, by somebody who computes the digests anew.
fn hidden(bodies: &[String], at: usize, edit: &Edit) -> Result<(), ReplayError> {
    let mut bodies = bodies.to_vec();
    bodies[at] = edit.line.clone();
    replay(rechain(&bodies, at)).map(|_| ())
}

/// Whether the change at line `at` may show only later: what the header announces, and that the
/// listener stopped a text, is held against the lines to come.
fn shows_later(edit: &Edit, at: usize) -> bool {
    at == 0 || edit.path == "position.finish"
}

#[test]
fn no_change_survives_the_digests() {
    let mut count = 0;
    for setup in setups() {
        for full in [false, true] {
            let lines = setup.run(full).lines;
            for (at, line) in lines.iter().enumerate() {
                for edit in edits(line) {
                    let mut changed = lines.clone();
                    changed[at] = edit.line.clone();
                    let error = replay(&changed).expect_err(&edit.path);
                    assert_eq!(error.line, at as u64 + 1, "{}: {error}", edit.path);
                    count += 1;
                }
            }
        }
    }
    println!("{count} changes, each found in its line");
}

/// The stronger claim: arithmetic alone. What it cannot see is listed above, and nothing else.
#[test]
fn hidden_changes_are_caught_by_arithmetic() {
    let (mut count, mut missed) = (0, [BTreeMap::new(), BTreeMap::new()]);
    for setup in setups() {
        for full in [false, true] {
            let lines = setup.run(full).lines;
            let bodies: Vec<String> = lines.iter().map(|line| body(line)).collect();
            assert_eq!(rechain(&bodies, usize::MAX), lines);
            let spent = replay(&lines).expect("a true trace").choices;
            let no_noise = spent.draws + spent.coins + spent.races == 0;
            for (at, line) in bodies.iter().enumerate() {
                for edit in edits(line) {
                    count += 1;
                    let Err(error) = hidden(&bodies, at, &edit) else {
                        *missed[usize::from(full)].entry(edit.path.clone()).or_insert(0) += 1;
                        let path = edit.path.as_str();
                        let spare = ["position.drafted.draw.weight", "position.drafted.draw.total"];
                        let listed = !spare.contains(&path) || setup.verifier.name() == "coupled";
                        let known = GIVEN.contains(&path)
                            || !full && listed && NEEDS_LAWS.contains(&path)
                            // Greedy decoding does not ask whose noise it is.
                            || no_noise && path == "header.seed";
                        assert!(
                            known,
                            "{setup:?}, full {full}: {path} {} → {}",
                            edit.from, edit.to
                        );
                        continue;
                    };
                    let own = error.line == at as u64 + 1;
                    let what = format!("{} {} → {}: {error}", edit.path, edit.from, edit.to);
                    assert!(own || shows_later(&edit, at), "line {}: {what}", at + 1);
                }
            }
        }
    }
    println!(
        "{count} changes; not to be seen without laws: {:?}; with laws: {:?}",
        missed[0], missed[1]
    );
    // The lists claim no blindness that is not there.
    assert!(NEEDS_LAWS.iter().all(|path| missed[0].contains_key(*path)));
    assert!(GIVEN.iter().all(|path| missed[1].contains_key(*path)));
}

/// Lines swapped, lost, doubled, cut off: caught in the line where the order breaks, whoever
/// computes the digests.
#[test]
fn the_order_of_lines_is_checked() {
    let refused = |bodies: &[String], line: usize, what: &str| {
        let error = replay(rechain(bodies, usize::MAX)).expect_err(what);
        assert_eq!(error.line, line as u64 + 1, "{what}: {error}");
    };
    for setup in setups() {
        let lines = setup.run(false).lines;
        let bodies: Vec<String> = lines.iter().map(|line| body(line)).collect();
        for at in 0..lines.len() {
            let mut lost = (lines.clone(), bodies.clone());
            lost.0.remove(at);
            lost.1.remove(at);
            let error = replay(&lost.0).expect_err("a line is lost");
            assert_eq!(error.line, at as u64 + 1);
            refused(&lost.1, at, "a line is lost");

            let mut doubled = (lines.clone(), bodies.clone());
            doubled.0.insert(at, lines[at].clone());
            doubled.1.insert(at, bodies[at].clone());
            let error = replay(&doubled.0).expect_err("a line is doubled");
            assert_eq!(error.line, at as u64 + 2);
            refused(&doubled.1, at + 1, "a line is doubled");

            let error = replay(&lines[..at]).expect_err("the end is lost");
            assert_eq!(error.line, at as u64 + 1);
            refused(&bodies[..at], at, "the end is lost");

            if at + 1 < lines.len() {
                let mut swapped = (lines.clone(), bodies.clone());
                swapped.0.swap(at, at + 1);
                swapped.1.swap(at, at + 1);
                let error = replay(&swapped.0).expect_err("two lines are swapped");
                assert_eq!(error.line, at as u64 + 1);
                refused(&swapped.1, at, "two lines are swapped");
            }
        }
    }
}

/// Weights that were scaled consistently stay the same law, but not the same noise; a change that
/// the noise happens to forgive needs the whole law to be seen.
#[test]
fn scaled_weights() {
    let (mut forgiven, mut caught) = (0, 0);
    for seed in 0..20 {
        let setup = |full| {
            Setup { verifier: RULES[0], drafts: Drafts::None, settings: SETTINGS[0].1(), seed }
                .run(full)
                .lines
        };
        let (short, long) = (setup(false), setup(true));
        for at in 1..short.len() - 1 {
            let scaled = |lines: &[String]| {
                let mut bodies: Vec<String> = lines.iter().map(|line| body(line)).collect();
                for name in ["below", "weight", "total"] {
                    bodies[at] = halved(&bodies[at], &format!("position.draw.{name}"));
                }
                replay(rechain(&bodies, at))
            };
            match scaled(&short) {
                Ok(_) => forgiven += 1,
                Err(error) => assert_eq!(error.line, at as u64 + 1),
            }
            let error = scaled(&long).expect_err("whole laws see it");
            assert_eq!(error.line, at as u64 + 1);
            caught += 1;
        }
    }
    println!("{caught} scaled draws: {forgiven} pass without laws, none with them");
    assert!(0 < forgiven && forgiven < caught);
}

fn halved(body: &str, path: &str) -> String {
    let fields = crate::json::fields(body);
    let Some(field) = fields.iter().find(|field| field.path == path) else {
        return body.into();
    };
    let digits = body[field.value.clone()].trim_matches('"');
    let half = digits.parse::<u128>().expect("a number") / 2;
    let mut body = body.to_owned();
    body.replace_range(field.value.clone(), &format!("\"{half}\""));
    body
}
