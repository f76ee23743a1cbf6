//! The contract card: which law the text follows, said in seven points, and its hash.
//!
//! The hash covers the target law only: the model, the sampler's settings, and what ends a text. Not
//! the drafter, the draft length, the rule or the device: they do not change the law.

use std::io::{self, Write};

use anyhow::Result;
use draftproof_decode::{Sampler, Token, sampler::temperature};
use draftproof_model::{
    InitialState, Model,
    guidance::{Form, Guidance, Strength},
    initial_state::CUT,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    args::{ContractArguments, EndArguments, Mask},
    reproducibility::LINES,
    settings::{self, open_target},
    watermark,
};

/// What defines the law of a text.
#[derive(Clone, Debug)]
pub(crate) struct Contract {
    law: Value,
}

impl Contract {
    pub(crate) fn new(target: &Model, sampler: &Sampler, ends: &EndArguments, mask: Mask) -> Self {
        let identity = target.identity();
        let settings: Map<String, Value> = sampler
            .settings()
            .entries()
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let eos: Vec<u32> = settings::eos(ends, target).iter().map(|token| token.0).collect();
        let mut law = json!({
            "model": {
                "config_sha256": identity.config,
                "weights_sha256": identity.weights,
                "tokenizer_sha256": identity.tokenizer,
                "vocabulary": target.vocab(),
            },
            "sampler": settings,
            "weights": temperature::VERSION,
            "ends": { "eos": eos, "stop": settings::stops(ends, target) },
        });
        // As it was before there were looped models, for those that are not.
        if let Some(loops) = target.loops() {
            law["loops"] = json!({ "loops": loops, "guidance": target.guidance().map(guidance) });
            // As it was before there was noise, for zeros.
            if let Some(state @ InitialState::Noise(_)) = target.initial_state() {
                law["loops"]["initial_state"] = state.to_string().into();
            }
        }
        if let Some(watermark) = sampler.watermark() {
            let entries = watermark.entries().into_iter();
            let mut entries: Map<String, Value> =
                entries.map(|(name, value)| (name.into(), value.into())).collect();
            entries.insert("mask".into(), watermark::mask_name(mask).into());
            law["watermark"] = entries.into();
        }
        Self { law }
    }

    /// SHA-256 of the law's canonical JSON (keys in order, no spaces).
    pub(crate) fn hash(&self) -> String {
        let digest = Sha256::digest(self.law.to_string());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The points of every contract, and one more if there is a watermark.
    fn points(&self, target: &Model) -> Vec<(&'static str, String)> {
        let mut points = points(target);
        if let Some(loops) = target.loops() {
            points.push(("loops and guidance", depth(target, loops)));
        }
        if self.law.get("watermark").is_some() {
            let text = "SynthID-Text's tournament is the last step, on integer weights. A context is \
                the last generated tokens (zeros before the first, no prompt); one that occurred \
                before within the mask is left unmarked. Mode exact: for this key the text has the \
                law of plain decoding with the mark, with any draft. Mode fast: averaged over keys it \
                has the law without the mark. With two leaves, the whole text as history and mask \
                sequence that mean is the model's law of a text in both modes; with mask batch that \
                of all continuations together. The key is named by its id only, and belongs to one \
                tokenizer's ids. The hash is a linear congruential generator, not a cryptographic \
                pseudorandom function; in variant hf ids a table size apart share their bits. \
                Detection is calibrated apart from generation.";
            points.push(("watermark", text.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        points
    }

    /// The card as JSON.
    fn to_json(&self, target: &Model) -> Value {
        json!({
            "hash": self.hash(),
            "name": target.name(),
            "law": self.law,
            "points": self.points(target).into_iter().map(|(title, text)| json!({
                "title": title,
                "text": text,
            })).collect::<Vec<_>>(),
            "reproducibility": LINES,
        })
    }
}

/// Numbers as their shortest decimals, which are their values.
fn guidance(guidance: Guidance) -> Value {
    let (strength, weight) = match guidance.strength {
        Strength::Fixed(w) => ("fixed", w),
        Strength::Adaptive(w) => ("adaptive", w),
    };
    json!({
        "form": match guidance.form { Form::Logits => "logits", Form::Hidden => "hidden" },
        "reference_loop": guidance.reference,
        "strength": strength,
        "weight": weight.to_string(),
    })
}

/// What is said of a looped target.
fn depth(target: &Model, loops: usize) -> String {
    let mut text = format!("The looped layers run {loops} times for every token.");
    match target.initial_state() {
        None => {}
        Some(InitialState::Zeros) => {
            text +=
                " The state begins with zeros, not with noise: a row depends on its prefix only.";
        }
        Some(InitialState::Noise(seed)) => {
            let config = &target.config().transformer;
            let deviation = config.loops.as_ref().and_then(|loops| loops.noise);
            text += &format!(
                " The state begins with noise, a function of the seed {seed}, the absolute position and \
                 the channel: a row depends on its prefix only. It is normal with standard deviation \
                 {:.4}, cut at {CUT} of them, from ChaCha20.",
                deviation.unwrap_or_default()
            );
        }
    }
    let Some(Guidance { reference, form, strength }) = target.guidance() else { return text };
    let (z, what) = match form {
        Form::Logits => ("z", "logits"),
        Form::Hidden => ("h", "states, read out once"),
    };
    text += &format!(
        " LoopCD (arXiv 2610.02185) changes the target: {z}' = {z}_{loops} + w ({z}_{loops} - \
         {z}_{reference}) on {what}, in f32, before all of the settings"
    );
    text += &match strength {
        Strength::Fixed(w) => format!("; w = {w}."),
        Strength::Adaptive(w) => format!(
            "; w = {w} (1 - (p1 - p2)) for the two largest probabilities of the unguided logits."
        ),
    };
    text
}

/// The seven points that a sampler contract must settle.
fn points(target: &Model) -> Vec<(&'static str, String)> {
    let eos: Vec<String> = target.eos().iter().map(Token::to_string).collect();
    let point = |title, text: &str| (title, text.split_whitespace().collect::<Vec<_>>().join(" "));
    vec![
        point(
            "logits, type, temperature, order",
            &format!(
                "Logits are f32, computed from {} weights, widened to f64 before any setting. The \
                 steps apply in the order given under `order`; each works on what the one before \
                 left. Temperature T > 0 gives the integer weights round(2^B exp((z - max)(1/T))) \
                 with a total of 2^60 to 2^61, nearly; T = 0 puts all mass on the largest logit, ties to \
                 the lowest id.",
                target.weight_type()
            ),
        ),
        point(
            "bans, repetition, end of text",
            &format!(
                "Penalties and bans are functions of the tokens before the position, drafted ones \
                 included. The model ends a text with one of the ids [{}]; a stop string ends it \
                 before its first character; the first reason in token order counts.",
                eos.join(", ")
            ),
        ),
        point(
            "ties, crossing, empty rows",
            "Ranks break ties by the lowest id (or keep all ties, where `top_k_ties` says so). The \
             token that crosses top-p stays, and the first always does. A row without a finite \
             logit, or with NaN or +inf, is an error that names it; never a silent token.",
        ),
        point(
            "normalisation",
            "The probability of a token is its integer weight over the sum of the weights that are \
             left; nothing is rounded after that.",
        ),
        point(
            "what is recorded of a proposal",
            "Each proposed token carries the very law it was drawn from, made by the same settings \
             from the draft's logits (or all mass on the token, if it was not drawn).",
        ),
        point(
            "reproducible, and equal in law",
            "The same seed, models, settings, drafter and draft length give the same tokens on the \
             same device. Rules `rejection` and `block` give the same law with any draft, but other \
             tokens for the same seed; `coupled` gives the same tokens with any draft or none, \
             wherever the logits have the same bits, under a law within V 2^-63 + 2^-48 of this one.",
        ),
        point(
            "how it was evaluated",
            "By enumeration of every path of the decoding loop on table models, in exact rational \
             arithmetic and compared with ==, for each setting, rule and drafter, with known wrong \
             samplers that the same check rejects (cargo test -p draftproof-decode). Exactness is \
             relative to the logits that the target computed.",
        ),
    ]
}

pub(crate) fn run(arguments: &ContractArguments) -> Result<()> {
    let target = open_target(&arguments.models)?;
    let sampler = settings::sampler(&arguments.sampler, &target)?;
    let sampler = watermark::add(sampler, &arguments.watermark, &target)?;
    let mask = arguments.watermark.watermark_mask;
    let contract = Contract::new(&target, &sampler, &arguments.ends, mask);
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", contract.to_json(&target))?;
        return Ok(());
    }
    writeln!(out, "contract {}", contract.hash())?;
    writeln!(out, "model    {}", target.name())?;
    for (section, entries) in contract.law.as_object().into_iter().flatten() {
        writeln!(out, "\n{section}")?;
        for (name, value) in entries.as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            writeln!(out, "  {name:<20} {value}")?;
        }
    }
    for (number, (title, text)) in contract.points(&target).into_iter().enumerate() {
        writeln!(out, "\n{}. {title}\n   {text}", number + 1)?;
    }
    writeln!(out, "\nreproducible across")?;
    for line in LINES {
        writeln!(out, "  {}: {} ({})", line.across, line.holds.words(), line.when)?;
    }
    Ok(())
}
