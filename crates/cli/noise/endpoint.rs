//! The N-run experiment on somebody else's server.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    gaps::{Decision, NearTies},
    openai::{Reply, Scored, Server},
    outcome::Outcome,
    print, prompts, tables,
    tree::unseen,
    write, write_outputs,
};
use crate::{
    args::{ApiArgument, NoiseArguments},
    measure::StatusLine,
};

/// The prompts of an experiment that names none: every one costs its owner N replies.
const PROMPTS: usize = 1;

/// A reply and how long it took.
struct Answer {
    reply: Reply,
    seconds: f64,
}

pub(super) fn run(arguments: &NoiseArguments, url: &str) -> Result<bool> {
    let asked = &arguments.endpoint;
    let prompts = prompts(arguments, PROMPTS)?;
    let mut server = Server::new(asked, url, arguments.max_tokens)?;
    let (runs, count) = (arguments.runs as usize, prompts.len());
    let begun = Instant::now();
    let reply = server.first(&prompts[0])?;
    let first = Answer { reply, seconds: begun.elapsed().as_secs_f64() };
    let (answers, failed) = ask(&server, &prompts, runs, usize::from(asked.concurrency), first);
    let outputs: Vec<Value> = answers
        .iter()
        .enumerate()
        .filter_map(|(i, answer)| Some((i, answer.as_ref()?)))
        .map(|(i, answer)| {
            json!({
                "prompt": i % count,
                "run": i / count,
                "seconds": answer.seconds,
                "text": answer.reply.text,
                "reply": answer.reply.raw,
            })
        })
        .collect();
    if let Some(error) = failed {
        // What was paid for is kept.
        if let Some(folder) = &arguments.report {
            write_outputs(folder, &outputs)?;
        }
        let all = runs * count;
        return Err(error).with_context(|| format!("after {} of {all} replies", outputs.len()));
    }
    let replies: Vec<Reply> = answers.into_iter().flatten().map(|answer| answer.reply).collect();

    let tokens = replies.iter().all(|reply| reply.tokens.is_some());
    let units: Vec<Vec<String>> = replies.iter().map(|reply| units(reply, tokens)).collect();
    let mut decisions = Vec::new();
    let of_prompt = |prompt: usize| (0..runs).map(move |run| run * count + prompt);
    let outcomes: Vec<Outcome<'_>> = (0..count)
        .map(|prompt| {
            let texts: Vec<Vec<String>> =
                of_prompt(prompt).map(|reply| units[reply].clone()).collect();
            // As the first run told them.
            let scored = replies[prompt].tokens.as_deref().unwrap_or_default();
            decisions.extend(near(prompt, scored));
            let shown = texts.clone();
            let show = move |text: usize, units: Range<usize>| shown[text][units].concat();
            Outcome::new(prompt, &texts, scored.iter().map(Scored::gap).collect(), show)
        })
        .collect();
    let Some(worst) = Outcome::worst(&outcomes) else { bail!("expected a prompt, found none") };
    let models = different(replies.iter().map(|reply| &reply.model));
    let fingerprints = different(replies.iter().map(|reply| &reply.system_fingerprint));
    let void = void(&models, &fingerprints);
    let mut notes = Vec::new();
    if fingerprints == [None] {
        notes.push(
            "the server tells no system_fingerprint: a change of its software during the \
                    experiment would not be seen",
        );
    }
    if !tokens {
        notes.push("the server tells no tokens: positions are characters, gaps are not known");
    }
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "endpoint": url,
        "api": match asked.api {
            ApiArgument::Completions => "completions",
            ApiArgument::Chat => "chat",
        },
        "endpoint_model": asked.endpoint_model,
        "seed": asked.seed.to_string(),
        "concurrency": asked.concurrency,
        "prompts": count,
        "max_tokens": arguments.max_tokens,
        "unit": if tokens { "token" } else { "character" },
        "runs": arguments.runs,
        "distinct_outputs": worst.distinct(),
        "most_common": worst.most_common(),
        "first_divergence": worst.divergence(),
        "near_ties": if decisions.is_empty() { Value::Null } else { json!(NearTies::new(decisions)) },
        // Where no run differed; for independent runs, at 95 % confidence.
        "another_output_at_most": (worst.distinct() == 1).then(|| unseen(runs)),
        "models": models,
        "system_fingerprints": fingerprints,
        "void": void,
        "notes": notes,
        "outcomes": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
        "passed": void.is_none(),
    });
    if let Some(folder) = &arguments.report {
        write(folder, &document, &outputs)?;
    }
    let trees: Vec<Vec<String>> = outcomes.iter().map(Outcome::lines).collect();
    print(arguments, &document, &tables::endpoint(&document, &trees))?;
    Ok(void.is_none())
}

/// All replies, in the order of runs and in each of prompts, until one fails.
fn ask(
    server: &Server,
    prompts: &[String],
    runs: usize,
    concurrency: usize,
    first: Answer,
) -> (Vec<Option<Answer>>, Option<anyhow::Error>) {
    let all = runs * prompts.len();
    let mut answers: Vec<Option<Answer>> = (0..all).map(|_| None).collect();
    answers[0] = Some(first);
    let (answers, failure) = (Mutex::new(answers), Mutex::new(None));
    let (next, stop) = (AtomicUsize::new(1), AtomicBool::new(false));
    let status = Mutex::new(StatusLine::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= all {
                break;
            }
            let begun = Instant::now();
            let reply = server.ask(&prompts[i % prompts.len()]);
            let seconds = begun.elapsed().as_secs_f64();
            match reply {
                Ok(reply) => lock(&answers)[i] = Some(Answer { reply, seconds }),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    lock(&failure).get_or_insert(error);
                }
            }
            lock(&status).refresh(&format_args!("{i} of {all} replies"));
        }
    };
    thread::scope(|scope| {
        for _ in 0..concurrency.min(all) {
            scope.spawn(work);
        }
    });
    let inner = |poisoned: std::sync::PoisonError<_>| poisoned.into_inner();
    (answers.into_inner().unwrap_or_else(inner), lock(&failure).take())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What two replies are compared by.
fn units(reply: &Reply, tokens: bool) -> Vec<String> {
    match &reply.tokens {
        Some(scored) if tokens => scored.iter().map(|scored| scored.token.clone()).collect(),
        _ => reply.text.chars().map(String::from).collect(),
    }
}

/// The decisions whose two likeliest tokens were told.
fn near(prompt: usize, scored: &[Scored]) -> Vec<Decision> {
    let decision = |(position, at): (usize, &Scored)| {
        let [first, second] = at.top.as_ref()?;
        let before = &scored[position.saturating_sub(12)..position];
        Some(Decision {
            prompt,
            position,
            gap: first.1 - second.1,
            logprobs: [first.1, second.1],
            tokens: [first.0.clone(), second.0.clone()],
            before: before.iter().map(|scored| scored.token.as_str()).collect(),
        })
    };
    scored.iter().enumerate().filter_map(decision).collect()
}

fn different<'a>(names: impl Iterator<Item = &'a Option<String>>) -> Vec<Option<String>> {
    names.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Why the replies are not runs of one and the same thing, if they are not.
fn void(models: &[Option<String>], fingerprints: &[Option<String>]) -> Option<String> {
    let changed = |what: &str, names: &[Option<String>]| {
        let names: Vec<&str> =
            names.iter().map(|name| name.as_deref().unwrap_or("(none)")).collect();
        (names.len() > 1).then(|| format!("{what} changed between replies: {}", names.join(", ")))
    };
    changed("model", models).or_else(|| changed("system_fingerprint", fingerprints))
}
