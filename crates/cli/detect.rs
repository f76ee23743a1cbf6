//! `draftproof detect`: does a text carry the mark of a key?

use std::{
    fs,
    io::{self, IsTerminal, Read, Write},
};

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::{
    LanguageModel, Sampler, Token,
    lm::Pass,
    sampler::Prefix,
    watermark::{
        KeyRing, StoredKey,
        detect::{Calibration, Detector, Evidence, Finding, Room, Verdict, scored_places},
    },
};
use draftproof_model::Model;
use serde_json::json;

use crate::{
    args::DetectArguments,
    settings::{self, DEFAULT_MODEL},
    watermark::{check_tokenizer, open_keys},
};

/// Rows of logits that are held at a time.
const ROWS: usize = 64;

/// What a verdict does not prove, printed with every one.
const POSITIVE: &str = "A positive result says that the tokens agree with this key far more often than \
    chance does. It does not say who wrote the text, or who asked for it: no authorship, no person. Text \
    without the mark comes out positive at the stated rate. Whoever holds the key can forge the mark.";
const NEGATIVE: &str = "A negative result, or none, does not say that a person wrote the text: other \
    models, other keys, low temperatures, edits and rewording leave no mark.";
const PROVENANCE: &str = "The mark is in the words. Where a file comes from is for signatures and \
    provenance metadata to say.";

pub(crate) fn run(arguments: &DetectArguments) -> Result<()> {
    let file = &arguments.watermark_key;
    let ring = open_keys(file)?;
    let mut model = match (&arguments.model, &arguments.ids) {
        (None, Some(_)) => None,
        (name, _) => Some(settings::open_cpu(name.as_deref().unwrap_or(DEFAULT_MODEL))?),
    };
    let text = text(arguments, model.as_ref())?;
    let ends = model.as_ref().map_or_else(Vec::new, |model| model.eos().to_vec());
    let calibration = calibration(arguments)?;
    let keys = keys(&ring, calibration.as_ref()).with_context(|| file.display().to_string())?;
    if let Some(model) = &model {
        keys.iter().try_for_each(|key| check_tokenizer(file, key, model))?;
    }
    let mut teacher = match (&mut model, &arguments.model) {
        (Some(model), Some(_)) => Some(Teacher::new(arguments, model)?),
        _ => None,
    };
    let mut best: Option<Tried> = None;
    for key in &keys {
        let mut detector = Detector::new(key, arguments.false_positive_rate).among(keys.len());
        if let Some(calibration) = &calibration {
            let tokenizer = key.tokenizer.as_deref();
            detector = detector.calibrated(key, calibration.clone(), tokenizer)?;
        }
        let evidence = detector.evidence(&text, &ends);
        let room = match &mut teacher {
            None => None,
            Some(teacher) => Some(teacher.room(&detector, &text, &ends)?),
        };
        let found = detector.judge(&evidence, room.as_ref());
        if best.as_ref().is_none_or(|best| found.p_value < best.found.p_value) {
            best = Some(Tried { detector, evidence, room, found });
        }
    }
    let best = best.context("expected a key, found none")?;
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", best.to_json(keys.len()))?;
    } else {
        best.print(&mut out, keys.len())?;
    }
    Ok(out.flush()?)
}

fn calibration(arguments: &DetectArguments) -> Result<Option<Calibration>> {
    let Some(path) = &arguments.calibration else { return Ok(None) };
    let calibration = Calibration::parse(&settings::read_text(path)?);
    Ok(Some(calibration.with_context(|| path.display().to_string())?))
}

/// The keys to try: with a calibration only its own.
fn keys<'a>(ring: &'a KeyRing, calibration: Option<&Calibration>) -> Result<Vec<&'a StoredKey>> {
    let Some(calibration) = calibration else { return Ok(ring.keys().iter().collect()) };
    let own = ring.keys().iter().find(|key| key.id == calibration.key);
    // Of a ring without the calibration's key, the refusal names the one in use.
    let key = own.unwrap_or(ring.current());
    calibration.check(key, key.tokenizer.as_deref())?;
    Ok(vec![key])
}

/// The tokens to judge.
fn text(arguments: &DetectArguments, model: Option<&Model>) -> Result<Vec<Token>> {
    if let Some(ids) = &arguments.ids {
        if let Some(model) = model {
            let vocab = model.vocab();
            if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
                bail!("--ids: id {id} is outside the vocabulary of {vocab} ids");
            }
        }
        return Ok(ids.iter().copied().map(Token).collect());
    }
    let (name, bytes) = match &arguments.file {
        Some(path) if path.as_os_str() != "-" => {
            let name = path.display().to_string();
            let bytes = fs::read(path).with_context(|| name.clone())?;
            (name, bytes)
        }
        file => {
            ensure!(
                file.is_some() || !io::stdin().is_terminal(),
                "no text: give a file, --ids, or text on standard input"
            );
            let (name, mut bytes) = ("standard input".to_owned(), Vec::new());
            io::stdin().read_to_end(&mut bytes).with_context(|| name.clone())?;
            (name, bytes)
        }
    };
    let text = settings::utf8(bytes).context(name)?;
    let Some(tokenizer) = model.and_then(Model::tokenizer) else {
        bail!("the model has no tokenizer; give the text as ids, with --ids");
    };
    Ok(tokenizer.encode_bare(&text)?)
}

/// The model's laws along the text.
struct Teacher<'a> {
    model: &'a mut Model,
    sampler: Sampler,
    prompt: Vec<Token>,
}

impl<'a> Teacher<'a> {
    fn new(arguments: &DetectArguments, model: &'a mut Model) -> Result<Self> {
        let sampler = settings::sampler(&arguments.sampler, model)?;
        let prompt = match (&arguments.prompt, model.tokenizer()) {
            (Some(text), Some(tokenizer)) => tokenizer.encode(text)?,
            (Some(_), None) => bail!("{} has no tokenizer; drop --prompt", model.name()),
            // What a text without a prompt begins with.
            (None, tokenizer) => {
                tokenizer.and_then(|tokenizer| tokenizer.bos()).into_iter().collect()
            }
        };
        Ok(Self { model, sampler, prompt })
    }

    /// What the laws leave at the scored places that fit the model's context.
    fn room(&mut self, detector: &Detector, text: &[Token], ends: &[Token]) -> Result<Room> {
        let (scheme, prompt_len) = (detector.scheme(), self.prompt.len());
        let whole = [&self.prompt[..], text].concat();
        let model = self.model.language_model();
        // A row follows each token but the last.
        let fits = (whole.len() - usize::from(!whole.is_empty())).min(model.context());
        let places = scored_places(scheme, text, ends);
        let mut places = places.into_iter().peekable();
        let mut room = Room::default();
        let sequence = model.open()?;
        let mut done = 0;
        while done < fits && places.peek().is_some() {
            let tokens = &whole[done..fits.min(done + ROWS)];
            let rows = model.forward(&[Pass { sequence, tokens, rows: tokens.len() }]);
            let rows = match rows {
                Ok(mut rows) => rows.swap_remove(0),
                Err(error) => {
                    model.close(sequence);
                    return Err(error.into());
                }
            };
            for row in 0..tokens.len() {
                // The row after `done + row + 1` tokens is the law of the text's token number `at`.
                let before = done + row + 1;
                let Some(at) = before.checked_sub(prompt_len) else { continue };
                if places.next_if_eq(&at).is_none() {
                    continue;
                }
                let prefix = Prefix { tokens: &whole[..before], prompt_len };
                let law = self.sampler.law(prefix, rows.row(row)).context("the model's laws")?;
                let context = &text[at - scheme.context_len..at];
                room.add(scheme, detector.values(), context, &law);
            }
            done += tokens.len();
        }
        model.close(sequence);
        Ok(room)
    }
}

/// A key with what it found.
struct Tried {
    detector: Detector,
    evidence: Evidence,
    room: Option<Room>,
    found: Finding,
}

impl Tried {
    fn gain(&self) -> Option<f64> {
        self.room.as_ref().map(|room| room.gain(self.evidence.depth()))
    }

    fn reason(&self) -> Option<String> {
        match &self.found.verdict {
            Verdict::Abstain(abstention) => Some(abstention.to_string()),
            Verdict::Watermarked | Verdict::NotDetected => None,
        }
    }

    fn to_json(&self, keys: usize) -> serde_json::Value {
        let Finding { p_value, mean, weighted_mean, bayesian, usable_positions, .. } = self.found;
        json!({
            "verdict": self.found.verdict.name(),
            "reason": self.reason(),
            "p_value": p_value,
            "p_value_of_mean": self.evidence.p_value_of_mean(),
            "scores": { "mean": mean, "weighted_mean": weighted_mean, "bayesian": bayesian },
            "log_likelihood_ratio": self.found.log_likelihood_ratio,
            "usable_positions": usable_positions,
            "expected_gain": self.gain(),
            "false_positive_rate": self.detector.rate(),
            "key": self.detector.id(),
            "keys_tried": keys,
            "does_not_prove": [POSITIVE, NEGATIVE, PROVENANCE],
        })
    }

    fn print(&self, out: &mut dyn Write, keys: usize) -> Result<()> {
        let found = &self.found;
        let verdict = match found.verdict {
            Verdict::Watermarked => "watermarked",
            Verdict::NotDetected => "not detected",
            Verdict::Abstain(_) => "no verdict",
        };
        writeln!(out, "{verdict}")?;
        if let Some(reason) = self.reason() {
            writeln!(out, "{reason}")?;
        }
        let score = |score: Option<f64>| score.map_or_else(|| "–".into(), |s| format!("{s:.4}"));
        writeln!(
            out,
            "p-value {:.2e} · mean {} · weighted mean {} · bayesian {}",
            found.p_value,
            score(found.mean),
            score(found.weighted_mean),
            score(found.bayesian)
        )?;
        writeln!(
            out,
            "{} usable positions · key {} of {keys} · false-positive rate {}",
            found.usable_positions,
            self.detector.id(),
            self.detector.rate()
        )?;
        if let Some(gain) = self.gain() {
            writeln!(
                out,
                "under the model's laws a mark would raise the weighted mean by {gain:.4}"
            )?;
        }
        for note in [POSITIVE, NEGATIVE, PROVENANCE] {
            writeln!(out, "\n{note}")?;
        }
        Ok(())
    }
}
