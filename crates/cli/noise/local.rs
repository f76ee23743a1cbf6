//! The experiment on a model of ours.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use draftproof_decode::{LanguageModel, Token};
use draftproof_model::{
    Model, REMOTE, Tokenizer, WeightType, device,
    machine::{self, Kernels},
    reduction,
};
use serde_json::{Value, json};

use super::{
    gaps::{self, Decision, NearTies, Top},
    outcome::Outcome,
    print, prompts,
    runs::{self, Circumstances},
    spread::{self, Comparison, Held, Launch, Spread, kernels_name},
    tables, write,
};
use crate::{
    args::NoiseArguments,
    bench::passes,
    measure::StatusLine,
    settings::{self, Models},
};

/// New tokens of a pass that checks four drafted ones.
const ROWS: usize = 5;

/// Other sequences in a pass with company.
const COMPANY: usize = 3;

/// Lengths of the sums whose spread is measured on its own.
const LENGTHS: [usize; 6] = [16, 64, 256, 1024, 4096, 16384];

/// The same model as often as it is needed: stored weights, f32 weights, other devices.
struct Bench {
    models: Models,
    /// As the target, loaded for the other kernels.
    other: Model,
    /// As the target, with its f32 weights rounded to bf16; where the file has bf16 there is none.
    rounded: Option<Model>,
    elsewhere: Vec<(&'static str, Model)>,
    chosen: Kernels,
    /// Whether the device has row-invariant kernels.
    promises: bool,
}

impl Bench {
    fn model(&mut self, held: Held) -> &mut Model {
        let target = match held {
            Held::Stored => self.chosen == Kernels::RowInvariant,
            Held::Widened => self.chosen == Kernels::General,
            Held::Rounded => return self.rounded.as_mut().unwrap_or(&mut self.other),
            Held::Elsewhere(i) => return &mut self.elsewhere[i].1,
        };
        if target { &mut self.models.target } else { &mut self.other }
    }

    fn rows(
        &mut self,
        launch: Launch,
        prompt: &[Token],
        generated: &[Token],
    ) -> Result<Vec<Vec<f32>>> {
        spread::rows(self.model(launch.weights), launch, prompt, generated)
    }
}

/// The launch that others are compared with.
fn base(kernels: Kernels) -> Launch {
    let weights = match kernels {
        Kernels::RowInvariant => Held::Stored,
        Kernels::General => Held::Widened,
    };
    Launch { kernels, weights, threads: machine::threads(), rows: 1, company: 0 }
}

pub(super) fn run(arguments: &NoiseArguments) -> Result<bool> {
    ensure!(
        !arguments.models.device.starts_with(REMOTE),
        "--device {}: noise changes kernels and threads, which a worker chooses itself; run it there",
        arguments.models.device
    );
    let models = Models::load(&arguments.models)?;
    let mut left_out = Vec::new();
    let chosen = machine::kernels();
    let mut bench = open(arguments, models, chosen, &mut left_out)?;
    let context = bench.models.target.language_model().context();
    let vocab = bench.models.target.vocab();
    ensure!(vocab >= 2, "a vocabulary of {vocab} id leaves nothing to choose");
    let tokenizer = bench.models.target.tokenizer().cloned();
    let tokenizer = tokenizer.as_deref();
    let prompts = encode(arguments, tokenizer, &bench.models.target, context)?;
    let max_tokens = arguments.max_tokens as usize;
    let mut status = StatusLine::new();

    let mut comparisons = comparisons(&bench, chosen);
    let mut decisions = Vec::new();
    let mut row_gaps: Vec<Vec<Option<f64>>> = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        status.show(&format_args!("spread: prompt {} of {}", index + 1, prompts.len()));
        let count = max_tokens.min(context - prompt.len());
        let launch = base(chosen);
        let (text, rows) = spread::greedy(bench.model(launch.weights), launch, prompt, count)?;
        let before = |position: usize| gaps::before(tokenizer, prompt, &text[..position]);
        let decision =
            |at: usize| Decision::new(tokenizer, (index, prompt), &text[..at], &rows[at]);
        decisions.extend((0..rows.len()).map(decision));
        compare(&mut bench, &mut comparisons, (index, prompt), &text, &before)?;
        row_gaps.push(rows.iter().map(|row| Some(Top::of(row).gap)).collect());
    }
    let spreads: Vec<Spread> = comparisons.into_iter().map(Comparison::report).collect();

    let mut all = vec![Vec::new(); prompts.len()];
    let mut outputs = Vec::new();
    for run in 0..arguments.runs as usize {
        status.show(&format_args!("run {} of {}", run + 1, arguments.runs));
        let circumstances = Circumstances::of(run, &bench.models);
        let found = runs::run(&mut bench.models, circumstances, &prompts, max_tokens)?;
        for (prompt, tokens) in found.into_iter().enumerate() {
            let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
            outputs.push(json!({
                "prompt": prompt,
                "run": run,
                "circumstances": circumstances.named(),
                "tokens": ids,
                "text": gaps::text(tokenizer, &tokens),
            }));
            all[prompt].push(tokens);
        }
    }
    status.show(&"reduction lengths and the price of determinism");
    let outcomes: Vec<Outcome<'_>> = all
        .iter()
        .zip(&row_gaps)
        .enumerate()
        .map(|(prompt, (texts, gaps))| {
            let show =
                move |text: usize, units: Range<usize>| gaps::text(tokenizer, &texts[text][units]);
            Outcome::new(prompt, texts, gaps.clone(), show)
        })
        .collect();
    let on = device::open(&arguments.models.device)?;
    let reductions = LENGTHS.map(|length| reduction::measure(length, &on));
    let reductions: Vec<Value> = reductions
        .into_iter()
        .map(|found| {
            let found = found?;
            Ok(json!({
                "length": found.length,
                "max": found.max,
                "rms": found.rms,
                "rms_error_row_invariant": found.rms_error_row_invariant,
                "rms_error_general": found.rms_error_general,
            }))
        })
        .collect::<Result<_>>()?;
    let price = price(&mut bench, chosen, &prompts[0], context, &mut left_out)?;
    drop(status);

    // The worst prompt stands for the experiment.
    let Some(worst) = Outcome::worst(&outcomes) else { bail!("expected a prompt, found none") };
    let promised = bench.promises && chosen == Kernels::RowInvariant;
    let same = outcomes.iter().all(|outcome| outcome.distinct() == 1);
    let passed = spreads.iter().all(|spread| spread.passed) && (same || !promised);
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": bench.models.target.name(),
        "weights": bench.models.target.weight_type().to_string(),
        "kernels": kernels_name(chosen),
        "device": arguments.models.device,
        "threads": machine::threads(),
        "prompts": prompts.len(),
        "max_tokens": max_tokens,
        "runs": arguments.runs,
        "distinct_outputs": worst.distinct(),
        "most_common": worst.most_common(),
        "first_divergence": worst.divergence(),
        "near_ties": NearTies::new(decisions),
        "spread": spreads,
        "reduction": reductions,
        "price": price,
        "outcomes": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
        "left_out": left_out,
        "passed": passed,
    });
    if let Some(folder) = &arguments.report {
        write(folder, &document, &outputs)?;
    }
    let trees: Vec<Vec<String>> = outcomes.iter().map(Outcome::lines).collect();
    print(arguments, &document, &tables::local(&document, &trees))?;
    Ok(passed)
}

/// The model once more for the other kernels, and once on each other device of this build.
fn open(
    arguments: &NoiseArguments,
    models: Models,
    chosen: Kernels,
    left_out: &mut Vec<String>,
) -> Result<Bench> {
    let name = &arguments.models.model;
    machine::set_kernels(match chosen {
        Kernels::RowInvariant => Kernels::General,
        Kernels::General => Kernels::RowInvariant,
    });
    let other = settings::open_again(name, &arguments.models, &arguments.models.device);
    machine::set_kernels(chosen);
    let rounded = match models.target.weight_type() {
        WeightType::Bf16 => {
            left_out.push("rounded weights: the file has bf16 already".into());
            None
        }
        _ => {
            let mut model =
                settings::open_again(name, &arguments.models, &arguments.models.device)?;
            model.language_model().round_to_bf16().then_some(model)
        }
    };
    let mut elsewhere = Vec::new();
    // One device of each other kind: the best.
    let here = arguments.models.device.split(':').next();
    let kinds = device::available();
    for &device in kinds.iter().filter(|&&kind| Some(kind) != here) {
        match settings::open_again(name, &arguments.models, device) {
            Ok(model) => elsewhere.push((device, model)),
            Err(error) => left_out.push(format!("device {device}: {error:#}")),
        }
    }
    if let [only] = kinds[..] {
        left_out.push(format!("devices: this build has {only} only"));
    }
    machine::set_kernels(Kernels::RowInvariant);
    let facts = device::facts(&arguments.models.device);
    machine::set_kernels(chosen);
    Ok(Bench { models, other: other?, rounded, elsewhere, chosen, promises: facts?.row_invariant })
}

fn encode(
    arguments: &NoiseArguments,
    tokenizer: Option<&Tokenizer>,
    target: &Model,
    context: usize,
) -> Result<Vec<Vec<Token>>> {
    let Some(tokenizer) = tokenizer else {
        bail!("{} has no tokenizer; noise needs one for its prompts", target.name());
    };
    let texts = prompts(arguments, usize::MAX)?;
    let encoded = texts.iter().map(|text| {
        let tokens = tokenizer.encode(text)?;
        ensure!(!tokens.is_empty(), "the prompt {text:?} has no token");
        ensure!(
            tokens.len() < context,
            "the prompt {text:?} has {} tokens; expected fewer than the context of {context}",
            tokens.len()
        );
        Ok(tokens)
    });
    encoded.collect()
}

/// Everything that is compared, with both sets of kernels.
fn comparisons(bench: &Bench, chosen: Kernels) -> Vec<Comparison> {
    let stored = bench.models.target.weight_type();
    let (ours, general) = (base(Kernels::RowInvariant), base(Kernels::General));
    let many = ours.threads.max(2);
    let mut all = Vec::new();
    for launch in [ours, general] {
        let promised = bench.promises && launch.kernels == Kernels::RowInvariant;
        let mut add = |name, change: String, first: Launch, second: Launch, promised| {
            all.push(Comparison::new(name, change, [first, second], promised));
        };
        add("control", "nothing: the same launch again".into(), launch, launch, true);
        let rows = Launch { rows: ROWS, ..launch };
        add("rows", format!("passes of {ROWS} rows instead of 1"), launch, rows, promised);
        let whole = Launch { rows: 0, ..launch };
        add("rows", "all rows in one pass instead of 1".into(), launch, whole, promised);
        let company = Launch { company: COMPANY, ..launch };
        let words = format!("{COMPANY} other sequences in each pass");
        add("batch", words, launch, company, promised);
        let (one, other) = (Launch { threads: 1, ..launch }, Launch { threads: many, ..launch });
        add("threads", format!("{many} threads instead of 1"), one, other, promised);
    }
    let (a, b) = match chosen {
        Kernels::RowInvariant => (ours, general),
        Kernels::General => (general, ours),
    };
    let words = format!("{} kernels instead of {}", kernels_name(b.kernels), kernels_name(chosen));
    all.push(Comparison::new("kernels", words, [a, b], false));
    if stored == WeightType::Bf16 {
        let widened = Launch { weights: Held::Widened, ..ours };
        let words = "the same weights held as f32 instead of bf16".into();
        all.push(Comparison::new("weights", words, [ours, widened], bench.promises));
    }
    if bench.rounded.is_some() {
        let rounded = Launch { weights: Held::Rounded, ..a };
        let words = format!("weights rounded from {stored} to bf16");
        all.push(Comparison::new("weights", words, [a, rounded], false));
    }
    for (i, (device, _)) in bench.elsewhere.iter().enumerate() {
        let there = Launch { weights: Held::Elsewhere(i), ..a };
        all.push(Comparison::new("device", format!("on {device}"), [a, there], false));
    }
    all
}

/// Runs the launches of all comparisons on one text.
fn compare(
    bench: &mut Bench,
    comparisons: &mut [Comparison],
    (index, prompt): (usize, &[Token]),
    text: &[Token],
    before: &dyn Fn(usize) -> String,
) -> Result<()> {
    // Most comparisons begin at the same launch, and come one after another.
    let mut held: Option<(Launch, Vec<Vec<f32>>)> = None;
    for comparison in comparisons {
        let first = match held.take() {
            Some((launch, rows)) if launch == comparison.first => rows,
            _ => bench.rows(comparison.first, prompt, text)?,
        };
        let second = bench.rows(comparison.second, prompt, text)?;
        comparison.add((index, prompt.len()), [&first, &second], before);
        held = Some((comparison.first, first));
    }
    Ok(())
}

fn price(
    bench: &mut Bench,
    chosen: Kernels,
    prompt: &[Token],
    context: usize,
    left_out: &mut Vec<String>,
) -> Result<Option<passes::Determinism>> {
    if context <= passes::MOST_ROWS {
        left_out.push(format!("price: a context of {context} is too short to measure"));
        return Ok(None);
    }
    let (target, other) = (&mut bench.models.target, &mut bench.other);
    let (ours, general) = match chosen {
        Kernels::RowInvariant => (target, other),
        Kernels::General => (other, target),
    };
    passes::determinism(ours, general, prompt).map(Some)
}
