//! `draftproof pair`: what two models have in common, and what the one would gain by the other.

use std::io::{self, Write};

use anyhow::Result;
use draftproof_decode::{
    LanguageModel, Sampler, Token,
    dist::overlap_estimate,
    draft::mapped::Mapped,
    lm::{Pass, SequenceId},
    sampler::Prefix,
};
use draftproof_model::{
    Error, Model,
    pair::{self, Difference, Evidence, Pairing},
};
use serde::Serialize;

use crate::{
    args::PairArguments,
    bench::{self, Optimum, passes::PassCosts},
    settings,
};

/// Tokens of the text that are looked at, at most.
const MOST_TOKENS: usize = 512;
/// Rows of logits held at a time.
const ROWS: usize = 16;

/// All that is found; the JSON object.
#[derive(Debug, Serialize)]
struct Found {
    target: Side,
    draft: Side,
    usable: bool,
    /// Why not, if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vocabulary: Option<Vocabulary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gain: Option<Gain>,
}

#[derive(Debug, Serialize)]
struct Side {
    name: String,
    vocabulary: usize,
}

impl Side {
    fn new(model: &Model) -> Self {
        Self { name: model.name().into(), vocabulary: model.vocab() }
    }
}

/// What the ids mean.
#[derive(Debug, Serialize)]
struct Vocabulary {
    /// `same` (for the same strings), or `other`: tokens are translated.
    ids: &'static str,
    /// `strings`, or `sizes` where a model has no tokenizer.
    compared: &'static str,
    shared: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<Differs>,
}

#[derive(Debug, Serialize)]
struct Differs {
    id: u32,
    in_target: Option<String>,
    in_draft: Option<String>,
}

impl From<&Difference> for Differs {
    fn from(found: &Difference) -> Self {
        let Difference { id, in_target, in_draft } = found.clone();
        Self { id: id.0, in_target, in_draft }
    }
}

impl Vocabulary {
    fn new(pairing: &Pairing) -> Self {
        let (ids, compared, difference) = match pairing {
            Pairing::OtherIds { difference, .. } => ("other", "strings", Some(difference)),
            Pairing::SameIds { evidence: Evidence::SizesOnly, .. } => ("same", "sizes", None),
            _ => ("same", "strings", None),
        };
        Self {
            ids,
            compared,
            shared: pairing.shared(),
            first_difference: difference.map(Differs::from),
        }
    }
}

/// What the draft is worth on a text.
#[derive(Debug, Serialize)]
struct Gain {
    /// The positions of the text at which the two laws were compared.
    positions: usize,
    /// Those from which on the draft knows nothing, since the text holds a token that it lacks.
    lost: usize,
    /// The mean of Σ min(p, q); 0 at lost positions.
    alpha: f64,
    /// A draft step, in target passes of one row.
    c: Option<f64>,
    /// Target passes of 1, 2, … rows, in passes of one row.
    v: Vec<f64>,
    /// The best draft length for these.
    gamma: Option<usize>,
    predicted_speedup: Option<f64>,
}

/// Exit code 1 is for models that make no pair.
pub(crate) fn run(arguments: &PairArguments) -> Result<bool> {
    let models = arguments.models();
    let mut target = settings::open_target(&models)?;
    let mut draft = settings::open_draft(&arguments.draft, &models)?;
    let sides = [Side::new(&target), Side::new(&draft)];
    let pairing = match pair::check(&target, &draft) {
        Ok(pairing) => pairing,
        Err(error @ (Error::PairToken { .. } | Error::PairSize { .. })) => {
            let [target, draft] = sides;
            let reason = Some(error.to_string());
            let found =
                Found { target, draft, usable: false, reason, vocabulary: None, gain: None };
            found.show(arguments.json)?;
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let vocabulary = Some(Vocabulary::new(&pairing));
    let sampler = settings::sampler(&arguments.sampler, &target)?;
    let gain = match text(arguments, &target)? {
        Some(text) => Some(gain((&mut target, &mut draft), pairing, &sampler, text)?),
        None => None,
    };
    let [target, draft] = sides;
    Found { target, draft, usable: true, reason: None, vocabulary, gain }.show(arguments.json)?;
    Ok(true)
}

/// The tokens of the text; none without a tokenizer.
fn text(arguments: &PairArguments, target: &Model) -> Result<Option<Vec<Token>>> {
    let Some(tokenizer) = target.tokenizer() else {
        anyhow::ensure!(
            arguments.prompt_file.is_none(),
            "{} has no tokenizer; --prompt-file needs one",
            target.name()
        );
        return Ok(None);
    };
    let text = match &arguments.prompt_file {
        Some(path) => settings::read_text(path)?,
        None => settings::PROMPTS.to_owned(),
    };
    let tokens = tokenizer.encode(&text)?;
    anyhow::ensure!(!tokens.is_empty(), "--prompt-file: expected a text, found none");
    Ok(Some(tokens))
}

fn gain(
    (target, draft): (&mut Model, &mut Model),
    pairing: Pairing,
    sampler: &Sampler,
    mut text: Vec<Token>,
) -> Result<Gain> {
    let map = settings::adapt(pairing, draft);
    let fits = |model: &mut Model| model.language_model().context().min(MOST_TOKENS);
    text.truncate(fits(target).min(fits(draft)));
    let mut mapped;
    let guess: &mut dyn LanguageModel = match &map {
        None => draft.language_model(),
        Some(map) => {
            mapped = Mapped::new(draft.language_model(), map);
            &mut mapped
        }
    };
    let known = text.iter().take_while(|&&token| guess.knows(token)).count();
    let shared = overlaps(target.language_model(), guess, sampler, &text[..known])?;
    let alpha = shared.iter().sum::<f64>() / text.len() as f64;
    let costs = bench::passes::measure(target, Some(draft), &text, false)?;
    let best = bench::optimum(sampler.settings().temperature, Some(alpha), &costs);
    let PassCosts { v, c, .. } = costs;
    Ok(Gain {
        positions: text.len(),
        lost: text.len() - known,
        alpha,
        c,
        v,
        gamma: best.as_ref().map(|best: &Optimum| best.gamma),
        predicted_speedup: best.map(|best| best.speedup),
    })
}

/// Σ min(p, q) after each prefix of the text: the chance that a token drawn from q is accepted. 0
/// where the draft has no law.
fn overlaps(
    target: &mut dyn LanguageModel,
    draft: &mut dyn LanguageModel,
    sampler: &Sampler,
    text: &[Token],
) -> Result<Vec<f64>> {
    let (ours, theirs) = (target.open()?, draft.open()?);
    let mut shared = Vec::with_capacity(text.len());
    for tokens in text.chunks(ROWS) {
        let rows = |model: &mut dyn LanguageModel, sequence: SequenceId| {
            model.forward(&[Pass { sequence, tokens, rows: tokens.len() }])
        };
        let (target, draft) = (rows(target, ours)?, rows(draft, theirs)?);
        for i in 0..tokens.len() {
            let held = shared.len() + 1;
            let prefix = Prefix { tokens: &text[..held], prompt_len: held };
            let p = sampler.law(prefix, target[0].row(i))?;
            let q = sampler.law(prefix, draft[0].row(i));
            shared.push(q.map_or(0.0, |q| overlap_estimate(&p, &q)));
        }
    }
    target.close(ours);
    draft.close(theirs);
    Ok(shared)
}

impl Found {
    fn show(&self, json: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        if json {
            writeln!(out, "{}", serde_json::to_string(self)?)?;
        } else {
            self.print(&mut out)?;
        }
        Ok(out.flush()?)
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { target, draft, .. } = self;
        writeln!(out, "target: {}, {} tokens", target.name, target.vocabulary)?;
        writeln!(out, "draft: {}, {} tokens", draft.name, draft.vocabulary)?;
        if let Some(reason) = &self.reason {
            return writeln!(out, "no pair: {reason}");
        }
        if let Some(vocabulary) = &self.vocabulary {
            vocabulary.print(out, target, draft)?;
        }
        match &self.gain {
            Some(gain) => gain.print(out),
            None => writeln!(out, "gain: not measured, since the target has no tokenizer"),
        }
    }
}

impl Vocabulary {
    fn print(&self, out: &mut impl Write, target: &Side, draft: &Side) -> io::Result<()> {
        let shared = self.shared;
        match (&self.first_difference, self.compared) {
            (Some(Differs { id, in_target, in_draft }), _) => {
                let quote = |string: &Option<String>| match string {
                    Some(string) => format!("{string:?}"),
                    None => "nothing".into(),
                };
                let percent = |vocabulary| 100.0 * shared as f64 / vocabulary as f64;
                writeln!(
                    out,
                    "ids: other ones for the same strings; the first is {id}, {} in the target and \
                     {} in the draft",
                    quote(in_target),
                    quote(in_draft)
                )?;
                writeln!(
                    out,
                    "in both: {shared} tokens, {:.1} % of the target's and {:.1} % of the draft's; \
                     others are never drafted",
                    percent(target.vocabulary),
                    percent(draft.vocabulary)
                )
            }
            (None, "sizes") => writeln!(
                out,
                "ids: {shared}, taken for the same: without a tokenizer only sizes can be compared"
            ),
            (None, _) if target.vocabulary == draft.vocabulary => {
                writeln!(out, "ids: the same for the same strings")
            }
            (None, _) => {
                writeln!(out, "ids: the same for the same strings below {shared}; others are cut")
            }
        }
    }
}

impl Gain {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "alpha: {:.3}, the mean chance that a drafted token is accepted over {} positions",
            self.alpha, self.positions
        )?;
        if self.lost > 0 {
            writeln!(
                out,
                "lost: {} positions, since the text holds a token that the draft lacks",
                self.lost
            )?;
        }
        let v: Vec<String> = self.v.iter().take(9).map(|v| format!("{v:.2}")).collect();
        writeln!(out, "v(1) to v({}): {}", v.len(), v.join(" "))?;
        if let (Some(c), Some(gamma), Some(speedup)) = (self.c, self.gamma, self.predicted_speedup)
        {
            writeln!(out, "draft step c: {c:.3}")?;
            writeln!(out, "best draft length: {gamma}, predicted speed-up {speedup:.2}")?;
        }
        Ok(())
    }
}
