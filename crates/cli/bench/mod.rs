//! `draftproof bench`: what passes cost on this machine, what speculation should gain with these
//! costs, and what it does gain.

mod compare;
mod page;
pub(crate) mod passes;
mod tables;
mod texts;

use std::{
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use draftproof_decode::{Token, stats::expected_tokens};
use draftproof_model::{
    Model, REMOTE, device,
    machine::{self, Kernels, Order},
};
use serde::Serialize;

use crate::{
    args::{BenchArguments, EndArguments, Mask, ModelArguments, VerifyRule},
    contract::Contract,
    measure::{OutFile, StatusLine, median},
    settings::{self, Models, PROMPTS, SYNTHETIC},
};
use passes::{Determinism, PassCosts, Prefill};
use texts::{Roofline, Speed, Task, Way};

/// All that is measured; the JSON document.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// The kinds of device in this build.
    build: Vec<&'static str>,
    machine: Machine,
    target: ModelFacts,
    draft: Option<ModelFacts>,
    verify: String,
    kernels: &'static str,
    prompts: usize,
    max_tokens: u32,
    repeats: u32,
    seed: String,
    passes: PassCosts,
    prefill: Prefill,
    #[serde(skip_serializing_if = "Option::is_none")]
    determinism: Option<Determinism>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    optimum: Vec<Optimum>,
    results: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Machine {
    device: String,
    draft_device: String,
    cpu: String,
    threads: usize,
    /// Of the fastest of several readers of as many bytes as the target has weights, on all threads,
    /// in turn with passes. None if the target runs on another device.
    read_bandwidth_gb_s: Option<f64>,
    /// Of independent multiply-adds on all threads. None if the target runs on another device.
    peak_gflops: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct ModelFacts {
    name: String,
    parameters: u64,
    dtype: String,
    pass_bytes: u64,
}

impl ModelFacts {
    fn new(model: &Model) -> Self {
        // General kernels hold f32 whatever the file has.
        let dtype = match machine::kernels() {
            Kernels::RowInvariant => model.weight_type().to_string(),
            Kernels::General => "f32".into(),
        };
        let (parameters, pass_bytes) = (model.parameters(), model.pass_bytes());
        Self { name: model.name().into(), parameters, dtype, pass_bytes }
    }
}

/// The draft length that should be best at a temperature, from alpha, c and v.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Optimum {
    temperature: f64,
    alpha: f64,
    pub(crate) gamma: usize,
    pub(crate) speedup: f64,
}

/// A [`Speed`] and what was run.
#[derive(Debug, Serialize)]
struct Outcome {
    device: String,
    model: String,
    draft: Option<String>,
    dtype: String,
    /// The hash of the law that the texts follow.
    contract: String,
    #[serde(flatten)]
    speed: Speed,
    c: Option<f64>,
    v: Vec<f64>,
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    if let Some([a, b]) = arguments.compare.as_deref() {
        return compare::run(a, b);
    }
    ensure!(
        arguments.temperature.iter().all(|t| t.is_finite() && *t >= 0.0),
        "--temperature: expected numbers from 0 on"
    );
    // Minutes of measuring must not end at a device that is not there, nor at a file that cannot be
    // written.
    let devices: Vec<&str> = arguments.models.device.split(',').collect();
    devices.iter().try_for_each(|device| settings::place(device).map(drop))?;
    let file = arguments.json.as_deref().filter(|path| *path != Path::new("-"));
    let file = file.map(OutFile::create).transpose()?;
    let folder = arguments.report.as_deref();
    let pages = folder.map(|folder| {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let create = |name: &str| OutFile::create(&folder.join(name));
        anyhow::Ok((create("bench.json")?, create("bench.html")?))
    });
    let pages = pages.transpose()?;
    let mut reports = Vec::new();
    for device in devices {
        let models = ModelArguments { device: device.into(), ..arguments.models.clone() };
        reports.push(bench(arguments, &models)?);
    }
    if let Some((document, html)) = pages {
        document.finish(&(json(&reports)? + "\n"))?;
        let runs: Vec<_> = reports.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        html.finish(&page::write(&runs))?;
    }
    if arguments.json.is_some() && file.is_none() {
        return Ok(writeln!(io::stdout(), "{}", json(&reports)?)?);
    }
    if let Some(file) = file {
        file.finish(&(json(&reports)? + "\n"))?;
    }
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            writeln!(io::stdout())?;
        }
        tables::print(report)?;
    }
    if let Some(folder) = folder {
        writeln!(io::stdout(), "report: {}", folder.join("bench.html").display())?;
    }
    Ok(())
}

/// All that is measured on one device, with the same prompts and seeds as on others.
fn bench(arguments: &BenchArguments, on: &ModelArguments) -> Result<Report> {
    let mut models = match &arguments.synthetic {
        Some(size) => Models::alone(&format!("{SYNTHETIC}{size}"), on)?,
        None => Models::load(on)?,
    };
    let prompts = prompts(arguments, &models.target)?;
    let text = prompts.first().cloned().unwrap_or_else(|| (0..64).map(Token).collect());
    measure((arguments, on), &mut models, &prompts, &text)
}

/// The document: of one device, or `{"runs": […]}` of several.
fn json(reports: &[Report]) -> Result<String> {
    Ok(match reports {
        [report] => serde_json::to_string_pretty(report)?,
        runs => serde_json::to_string_pretty(&serde_json::json!({ "runs": runs }))?,
    })
}

fn prompts(arguments: &BenchArguments, target: &Model) -> Result<Vec<Vec<Token>>> {
    let Some(tokenizer) = target.tokenizer() else {
        ensure!(
            arguments.prompts.is_none(),
            "{} has no tokenizer; --prompts needs one",
            target.name()
        );
        return Ok(Vec::new());
    };
    let text = match &arguments.prompts {
        Some(path) => settings::read_text(path)?,
        None => PROMPTS.to_owned(),
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let prompts: Vec<Vec<Token>> =
        lines.map(|line| Ok(tokenizer.encode(line)?)).collect::<Result<_>>()?;
    ensure!(!prompts.is_empty(), "--prompts: expected a prompt a line, found none");
    Ok(prompts)
}

fn measure(
    (arguments, on): (&BenchArguments, &ModelArguments),
    models: &mut Models,
    prompts: &[Vec<Token>],
    text: &[Token],
) -> Result<Report> {
    let (target, draft) = (&mut models.target, &mut models.draft);
    let on_processor = on.device == device::CPU;
    let peak = on_processor.then(machine::peak_flops);
    let facts = ModelFacts::new(target);
    let draft_facts = draft.as_ref().map(ModelFacts::new);
    let passes = passes::measure(target, draft.as_mut(), text, on_processor)?;
    let bandwidth = passes.read_bandwidth;
    let prefill = passes::prefill(target, text, peak)?;
    let roofline = Roofline {
        target_bytes: target.bytes_run() as f64,
        draft_bytes: draft.as_ref().map_or(0.0, |draft| draft.bytes_run() as f64),
        bandwidth,
    };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        build: device::available(),
        machine: Machine {
            device: on.device.clone(),
            draft_device: on.draft_device.as_ref().unwrap_or(&on.device).clone(),
            cpu: device::processor(),
            threads: machine::threads(),
            read_bandwidth_gb_s: bandwidth.map(|bandwidth| bandwidth / 1e9),
            peak_gflops: peak.map(|peak| peak / 1e9),
        },
        target: facts.clone(),
        draft: draft_facts.clone(),
        verify: format!("{:?}", arguments.verify).to_lowercase(),
        kernels: match machine::kernels() {
            Kernels::RowInvariant if Order::current() == Order::Tiles => "amx",
            Kernels::RowInvariant => "row-invariant",
            Kernels::General => "general",
        },
        prompts: prompts.len(),
        max_tokens: arguments.max_tokens,
        repeats: arguments.repeats,
        seed: arguments.seed.to_string(),
        passes,
        prefill,
        determinism: determinism((arguments, on), &mut models.target, text)?,
        optimum: Vec::new(),
        results: Vec::new(),
    };
    if !prompts.is_empty() {
        let ways: Vec<Way> = std::iter::once(Way::Plain)
            .chain(arguments.draft_len.iter().map(|&length| Way::Drafted(length)))
            .collect();
        let repeats = arguments.repeats as usize;
        let texts = arguments.temperature.len() * ways.len() * prompts.len() * repeats;
        let (mut status, mut done) = (StatusLine::new(), 0);
        for &temperature in &arguments.temperature {
            let task = Task {
                prompts,
                temperature,
                ways: &ways,
                verify: arguments.verify,
                max_tokens: arguments.max_tokens as usize,
                repeats: arguments.repeats,
                seed: arguments.seed,
            };
            let runs = task.run(models, &mut || {
                done += 1;
                status.refresh(&format_args!("{done} of {texts} texts"));
            })?;
            let sampler = task.sampler(&models.target)?;
            // No text ends early: all have the same number of tokens.
            let ends = EndArguments { ignore_eos: true, stop: Vec::new() };
            let contract = Contract::new(&models.target, &sampler, &ends, Mask::Sequence).hash();
            let has_q = arguments.verify != VerifyRule::Coupled;
            let costs = &report.passes;
            let speed = |way: &Way, own: &Vec<_>| {
                Speed::new(*way, temperature, own, &runs[0], costs, roofline, has_q)
            };
            let speeds: Vec<Speed> =
                ways.iter().zip(&runs).map(|(way, own)| speed(way, own)).collect();
            let alphas: Vec<f64> = speeds.iter().filter_map(|speed| speed.alpha).collect();
            report.optimum.extend(optimum(temperature, median(alphas), costs));
            report.results.extend(speeds.into_iter().map(|speed| Outcome {
                device: on.device.clone(),
                model: facts.name.clone(),
                draft: draft_facts.as_ref().map(|draft| draft.name.clone()),
                dtype: facts.dtype.clone(),
                contract: contract.clone(),
                speed,
                c: report.passes.c,
                v: report.passes.v.clone(),
            }));
        }
    }
    Ok(report)
}

/// Only where both sets of kernels can be chosen from here; the model is loaded once more for it.
fn determinism(
    (arguments, on): (&BenchArguments, &ModelArguments),
    target: &mut Model,
    text: &[Token],
) -> Result<Option<Determinism>> {
    if machine::kernels() == Kernels::General || on.device.starts_with(REMOTE) {
        return Ok(None);
    }
    machine::set_kernels(Kernels::General);
    let name = match &arguments.synthetic {
        Some(size) => &format!("{SYNTHETIC}{size}"),
        None => &on.model,
    };
    let general = settings::open_again(name, on, &on.device);
    machine::set_kernels(Kernels::RowInvariant);
    passes::determinism(target, &mut general?, text).map(Some)
}

pub(crate) fn optimum(temperature: f64, alpha: Option<f64>, costs: &PassCosts) -> Option<Optimum> {
    let (alpha, c) = (alpha?, costs.c?);
    let speedup = |gamma: usize| {
        expected_tokens(alpha, gamma) / (gamma as f64 * c + costs.v_at(gamma as f64 + 1.0))
    };
    let gamma = (0..passes::MOST_ROWS).max_by(|&a, &b| speedup(a).total_cmp(&speedup(b)))?;
    Some(Optimum { temperature, alpha, gamma, speedup: speedup(gamma) })
}
