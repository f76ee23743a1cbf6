//! `draftproof verify` and `draftproof audit`: the statistical suite on real models.

use std::{
    fs::File,
    io::{self, BufReader, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use draftproof_decode::{LanguageModel, Token, draft::mapped::Mapped};
use draftproof_model::{
    Model,
    machine::{self, Kernels},
};
use draftproof_verification::{
    Pair, Plan, Progress, Report, audit as law,
    model::{CACHE_BYTES, Question},
    plan::Level,
};

use crate::{
    args::{AuditArguments, PromptArguments, VerifyArguments, VerifyCommand},
    engine,
    measure::StatusLine,
    settings::{self, Models},
};

/// What a pair continues if nothing else was given.
const PROMPT: &str = "Once upon a time";

/// Text of people: what was held out when fable was trained.
const HUMAN: &str = include_str!("../../models/fable/heldout.txt");

/// Exit code 1 is for a check that did not pass.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<bool> {
    if let Some(VerifyCommand::Merge { folders, report: folder }) = &arguments.command {
        let reports = folders.iter().map(|folder| Report::read(folder));
        let whole = Report::merge(reports.collect::<Result<_, _>>()?)?;
        return finish(&whole, folder.as_deref());
    }
    let plan = Plan {
        level: arguments.level,
        mutants: arguments.mutants,
        shard: arguments.shard,
        samples: arguments.samples,
        seed: arguments.seed,
    };
    // A folder that cannot be made is told before minutes of work.
    if let Some(folder) = &arguments.report {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut bar = Bar::new();
    if matches!(plan.level, Level::Exact | Level::Toy) {
        let PromptArguments { prompt, prompt_file, prompt_ids } = &arguments.prompt;
        let named = arguments.models.draft_model.is_some() || arguments.models.drafter.is_some();
        ensure!(
            !named && prompt.is_none() && prompt_file.is_none() && prompt_ids.is_none(),
            "--level {} runs on tables: a draft model, a drafter or a prompt is not used; drop it",
            plan.level
        );
        let report = draftproof_verification::run(&plan, None, &mut bar)?;
        drop(bar);
        return finish(&report, arguments.report.as_deref());
    }
    let mut models = Models::load(&arguments.models)?;
    let prompt = prompt(&arguments.prompt, &models.target)?;
    let costs = engine::costs(&models);
    let Models { target, draft, map, .. } = &mut models;
    let name = match draft {
        Some(draft) => format!("{} with {}", target.name(), draft.name()),
        None => target.name().to_owned(),
    };
    let eos = target.eos().to_vec();
    let human = match target.tokenizer() {
        Some(tokenizer) => tokenizer.encode_bare(HUMAN)?,
        None => Vec::new(),
    };
    let mut mapped;
    let draft: Option<&mut dyn LanguageModel> = match (draft, &*map) {
        (None, _) => None,
        (Some(draft), None) => Some(draft.language_model()),
        (Some(draft), Some(map)) => {
            mapped = Mapped::new(draft.language_model(), map);
            Some(&mut mapped)
        }
    };
    let mut pair = Pair {
        name,
        target: target.language_model(),
        draft,
        prompt,
        eos,
        human,
        costs,
        row_invariant: machine::kernels() == Kernels::RowInvariant,
        cache_bytes: CACHE_BYTES,
    };
    let report = draftproof_verification::run(&plan, Some(&mut pair), &mut bar)?;
    drop(bar);
    finish(&report, arguments.report.as_deref())
}

fn prompt(arguments: &PromptArguments, target: &Model) -> Result<Vec<Token>> {
    let PromptArguments { prompt, prompt_file, prompt_ids } = arguments;
    if prompt.is_some() || prompt_file.is_some() || prompt_ids.is_some() {
        return settings::prompt(arguments, target);
    }
    let prompt = Some(PROMPT.to_owned());
    settings::prompt(&PromptArguments { prompt, prompt_file: None, prompt_ids: None }, target)
}

/// Exit code 1 is for samples that do not follow the law.
pub(crate) fn audit(arguments: &AuditArguments) -> Result<bool> {
    let path = &arguments.samples;
    let name = || path.display().to_string();
    let samples = law::Samples::read(BufReader::new(File::open(path).with_context(name)?));
    let samples = samples.with_context(name)?;
    let mut target = settings::open_target(&arguments.models)?;
    let sampler = settings::sampler(&arguments.sampler, &target)?;
    let prompt = settings::prompt(&arguments.prompt, &target)?;
    let eos = settings::eos(&arguments.ends, &target);
    let question = Question {
        sampler: &sampler,
        prompt: &prompt,
        eos: &eos,
        length: usize::from(arguments.length),
    };
    let tokenizer = target.tokenizer().cloned();
    let decode = tokenizer.map(|tokenizer| {
        move |tokens: &[Token]| {
            let mut decoder = tokenizer.decoder();
            let text: String = tokens.iter().map(|&token| decoder.push(token)).collect();
            text + &decoder.finish()
        }
    });
    let decode = decode.as_ref().map(|decode| decode as law::Decode<'_>);
    let report = law::audit(&name(), &question, target.language_model(), &samples, decode)?;
    finish(&report, arguments.report.as_deref())
}

/// Shows and writes the report; whether it passed.
fn finish(report: &Report, folder: Option<&Path>) -> Result<bool> {
    const WIDTH: usize = 110;
    if let Some(folder) = folder {
        report.write(folder)?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{}", report.table(WIDTH).trim_end())?;
    if let Some(folder) = folder {
        writeln!(out, "report: {}", folder.join("report.html").display())?;
    }
    out.flush()?;
    Ok(report.passed)
}

/// The task under way, on the terminal's last line.
struct Bar {
    status: StatusLine,
    task: String,
}

impl Bar {
    fn new() -> Self {
        Self { status: StatusLine::new(), task: String::new() }
    }
}

impl Progress for Bar {
    fn begin(&mut self, task: &str, index: usize, total: usize) {
        self.task = format!("{} of {total}: {task}", index + 1);
        self.status.show(&self.task);
    }

    fn advance(&mut self, done: u64, all: u64) {
        let share = 100.0 * done as f64 / all.max(1) as f64;
        self.status.refresh(&format_args!("{} {share:.0} %", self.task));
    }
}
