//! `draftproof evaluate`: settings side by side on the same prompts, items and seeds.

mod cost;
mod items;
mod metrics;
mod score;
mod setting;
mod tables;
mod texts;

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::{Limits, Sampler, Settings, Token};
use draftproof_model::{Tokenizer, machine};
use serde::Serialize;

use crate::{
    args::{ChooseArgument, EvaluateArguments},
    contract::Contract,
    engine::draft_len,
    measure::{OutFile, StatusLine},
    settings::{self, Models, PROMPTS},
    watermark,
};
use cost::Cost;
use items::{Question, Side};
use score::{Answers, TextScore};
use setting::Setting;
use texts::{Texts, Way};

/// Prompts taken from the built-in ones.
const OWN_PROMPTS: usize = 4;

/// All that is found; the JSON document.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    seed: String,
    threads: usize,
    /// With `--choose`, `answers` and `text` of each are of the items to choose by.
    settings: Vec<Found>,
    choice: Option<Chosen>,
}

/// A setting and what was found.
#[derive(Debug, Serialize)]
struct Found {
    label: String,
    flags: String,
    model: String,
    /// The hash of its law.
    contract: String,
    answers: Option<Answers>,
    text: Option<TextScore>,
    /// At the setting's own temperature, then at those of `--temperatures`.
    texts: Vec<Texts>,
    cost: Cost,
}

/// Windows of a text, each on its side of the split.
type Pieces = Vec<(Side, Vec<Token>)>;

impl Found {
    fn score(&self, by: ChooseArgument) -> Option<f64> {
        match by {
            ChooseArgument::Questions => self.answers.as_ref().and_then(Answers::score),
            ChooseArgument::Text => self.text.as_ref().and_then(|text| text.mean_log_likelihood),
        }
    }
}

/// The setting that was chosen by a part of the items, on the others.
#[derive(Debug, Serialize)]
struct Chosen {
    by: ChooseArgument,
    /// The share of items to choose by, as asked for; which they are follows from their SHA-256.
    split: f64,
    items_to_choose_by: usize,
    items_held_out: usize,
    /// The first of the best.
    label: String,
    score_to_choose_by: f64,
    /// On the held-out items only; the other settings were never tried on them.
    answers: Option<Answers>,
    text: Option<TextScore>,
}

/// What all settings are tried on.
struct Task<'a> {
    arguments: &'a EvaluateArguments,
    questions: Vec<(Side, Question)>,
    text: Option<String>,
    prompts: String,
}

/// A setting made ready: models loaded, laws known.
struct Ready<'a> {
    models: Models,
    way: Way<'a>,
    contract: String,
}

pub(crate) fn run(arguments: &EvaluateArguments) -> Result<()> {
    let settings = setting::all(arguments)?;
    if let Some(t) = arguments.temperatures.iter().find(|t| !t.is_finite() || **t < 0.0) {
        bail!("--temperatures: expected numbers from 0 on, found {t}");
    }
    let questions = match &arguments.questions {
        Some(path) => items::questions(path, arguments.split)?,
        None => Vec::new(),
    };
    match arguments.choose {
        Some(ChooseArgument::Questions) if questions.is_empty() => {
            bail!("--choose questions needs --questions")
        }
        Some(ChooseArgument::Text) if arguments.text.is_none() => {
            bail!("--choose text needs --text")
        }
        Some(ChooseArgument::Questions) => {
            check_sides(questions.iter().map(|(side, _)| *side), "questions")?;
        }
        _ => {}
    }
    let prompts = match &arguments.prompts {
        Some(path) => settings::read_text(path)?,
        None => PROMPTS.lines().take(OWN_PROMPTS).collect::<Vec<_>>().join("\n"),
    };
    ensure!(!prompts.trim().is_empty(), "--prompts: expected a prompt a line, found none");
    let text = arguments.text.as_deref().map(settings::read_text).transpose()?;
    // What was measured must not end at a file that cannot be written.
    let file = arguments.json.as_deref().filter(|path| *path != Path::new("-"));
    let file = file.map(OutFile::create).transpose()?;
    let report = Task { arguments, questions, text, prompts }.run(&settings)?;
    let json = serde_json::to_string_pretty(&report)?;
    if arguments.json.is_some() && file.is_none() {
        return Ok(writeln!(io::stdout(), "{json}")?);
    }
    if let Some(file) = file {
        file.finish(&(json + "\n"))?;
    }
    Ok(tables::print(&report)?)
}

/// The number of items on each side, choosing first; each must have some.
fn check_sides(sides: impl Iterator<Item = Side>, what: &str) -> Result<[usize; 2]> {
    let mut counts = [0; 2];
    sides.for_each(|side| counts[usize::from(side == Side::Held)] += 1);
    let [choosing, held] = counts;
    ensure!(
        choosing > 0 && held > 0,
        "--choose: expected {what} on both sides of the split, found {choosing} to choose by and \
         {held} held out; give more of them or another --split"
    );
    Ok(counts)
}

impl Task<'_> {
    fn run(&self, settings: &[Setting]) -> Result<Report> {
        let threads = machine::threads();
        // To choose by, or all.
        let side = self.arguments.choose.map(|_| Side::Choosing);
        let mut status = StatusLine::new();
        let mut found = Vec::with_capacity(settings.len());
        for (i, setting) in settings.iter().enumerate() {
            status.show(&format!("{} ({} of {})", setting.label, i + 1, settings.len()));
            // A setting's own number of threads is no other's.
            machine::set_threads(threads);
            let context = || format!("--setting {}", setting.label);
            found.push(self.evaluate(setting, side).with_context(context)?);
        }
        machine::set_threads(threads);
        let choice = match self.arguments.choose {
            Some(by) => Some(self.choose(by, settings, &found)?),
            None => None,
        };
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            seed: self.arguments.seed.to_string(),
            threads,
            settings: found,
            choice,
        })
    }

    fn evaluate(&self, setting: &Setting, side: Option<Side>) -> Result<Found> {
        cost::reset_peak_memory();
        let models = Models::load(&setting.generate.models)?;
        let tokenizer = tokenizer_of(&models)?;
        let Ready { mut models, mut way, contract } = self.ready(setting, models, &tokenizer)?;
        let answers = self.answers(&mut models, &way, side)?;
        let text = self.text(&mut models, &way, side)?;
        let lines = self.prompts.lines().filter(|line| !line.trim().is_empty());
        let prompts: Vec<Vec<Token>> =
            lines.map(|line| Ok(tokenizer.encode(line)?)).collect::<Result<_>>()?;
        let n = self.arguments.n as usize;
        let own = way.sampler.settings().temperature;
        let mut texts = vec![Texts::new(own, &way.run(&mut models, &prompts, n)?, n)];
        let cost =
            cost::measure(&mut models, &way, &prompts[0], &self.arguments.batch, &texts[0].passes)?;
        for &temperature in &self.arguments.temperatures {
            let settings = Settings { temperature, ..way.sampler.settings().clone() };
            let sampler = Sampler::new(settings, models.target.vocab())?;
            way.sampler = watermark::add(sampler, &setting.generate.watermark, &models.target)?;
            texts.push(Texts::new(temperature, &way.run(&mut models, &prompts, n)?, n));
        }
        Ok(Found {
            label: setting.label.clone(),
            flags: setting.flags.clone(),
            model: models.target.name().into(),
            contract,
            answers,
            text,
            texts,
            cost,
        })
    }

    fn ready<'a>(
        &self,
        setting: &Setting,
        models: Models,
        tokenizer: &'a Tokenizer,
    ) -> Result<Ready<'a>> {
        let arguments = &setting.generate;
        let sampler = settings::sampler(&arguments.sampler, &models.target)?;
        let sampler = watermark::add(sampler, &arguments.watermark, &models.target)?;
        let length = watermark::draft_len(arguments, &sampler)?;
        let mask = arguments.watermark.watermark_mask;
        let contract = Contract::new(&models.target, &sampler, &arguments.ends, mask).hash();
        let way = Way {
            sampler,
            limits: Limits {
                max_tokens: arguments.max_tokens,
                eos: settings::eos(&arguments.ends, &models.target),
                draft_len: draft_len(length, &models),
            },
            drafter: models.drafter,
            rule: arguments.drafts.verify,
            stops: settings::stops(&arguments.ends, &models.target),
            tokenizer,
            seed: self.arguments.seed,
        };
        Ok(Ready { models, way, contract })
    }

    fn answers(
        &self,
        models: &mut Models,
        way: &Way<'_>,
        side: Option<Side>,
    ) -> Result<Option<Answers>> {
        let questions: Vec<&Question> = of_side(&self.questions, side);
        if questions.is_empty() {
            return Ok(None);
        }
        score::answers(models, way, self.arguments.choice_score, &questions).map(Some)
    }

    fn text(
        &self,
        models: &mut Models,
        way: &Way<'_>,
        side: Option<Side>,
    ) -> Result<Option<TextScore>> {
        let Some(pieces) = self.pieces(models)? else { return Ok(None) };
        let pieces: Vec<&[Token]> = of_side(&pieces, side).into_iter().map(Vec::as_slice).collect();
        score::text(models, &way.sampler, &pieces).map(Some)
    }

    fn pieces(&self, models: &Models) -> Result<Option<Pieces>> {
        let Some(text) = &self.text else { return Ok(None) };
        let EvaluateArguments { window, text_tokens, split, .. } = *self.arguments;
        let (window, most) = (window as usize, text_tokens as usize);
        let pieces = items::windows(text, &models.target, window, most, split)?;
        if self.arguments.choose == Some(ChooseArgument::Text) {
            check_sides(pieces.iter().map(|(side, _)| *side), "pieces of text")?;
        }
        Ok(Some(pieces))
    }

    /// The best by the items to choose by is locked here, and only then meets the others.
    fn choose(&self, by: ChooseArgument, settings: &[Setting], found: &[Found]) -> Result<Chosen> {
        let mut best: Option<(usize, f64)> = None;
        for (i, score) in found.iter().enumerate().filter_map(|(i, f)| Some((i, f.score(by)?))) {
            if best.is_none_or(|(_, most)| score > most) {
                best = Some((i, score));
            }
        }
        let Some((chosen, score)) = best else {
            bail!("--choose: no setting gives every token of the text a probability");
        };
        let setting = &settings[chosen];
        let models = Models::load(&setting.generate.models)?;
        let tokenizer = tokenizer_of(&models)?;
        let Ready { mut models, way, .. } = self.ready(setting, models, &tokenizer)?;
        let sides: Vec<Side> = match by {
            ChooseArgument::Questions => self.questions.iter().map(|(side, _)| *side).collect(),
            ChooseArgument::Text => {
                let pieces = self.pieces(&models)?.unwrap_or_default();
                pieces.iter().map(|(side, _)| *side).collect()
            }
        };
        let [items_to_choose_by, items_held_out] = check_sides(sides.into_iter(), "items")?;
        Ok(Chosen {
            by,
            split: self.arguments.split,
            items_to_choose_by,
            items_held_out,
            label: setting.label.clone(),
            score_to_choose_by: score,
            answers: self.answers(&mut models, &way, Some(Side::Held))?,
            text: self.text(&mut models, &way, Some(Side::Held))?,
        })
    }
}

fn tokenizer_of(models: &Models) -> Result<Arc<Tokenizer>> {
    let tokenizer = models.target.tokenizer().cloned();
    tokenizer
        .with_context(|| format!("{} has no tokenizer; evaluate needs one", models.target.name()))
}

/// The items of one side, or all.
fn of_side<T>(items: &[(Side, T)], side: Option<Side>) -> Vec<&T> {
    let wanted = |own: &Side| side.is_none_or(|side| side == *own);
    items.iter().filter(|(own, _)| wanted(own)).map(|(_, item)| item).collect()
}
