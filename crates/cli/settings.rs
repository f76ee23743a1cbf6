//! From what was typed to what a run needs: models loaded, settings checked, prompt read.
//!
//! All failures about input happen here, before the first token.

use std::{
    env, fs, io,
    io::{IsTerminal, Read},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::{Decimal, Sampler, Settings, Token, draft::mapped::TokenMap};
use draftproof_model::{
    BlockFormat, GenerationConfig, Model, Place, Role, builtin, device,
    guidance::{Form, Guidance, Strength},
    loops::Recurrence,
    machine::{self, Kernels, Order},
    pair::{self, Pairing},
};

use serde_json::{Map, Value};

#[cfg(feature = "remote")]
use draftproof_model::Runner;

use crate::{
    args::{
        BiasArgument, DraftType, DrafterKind, EndArguments, GuidanceForm, GuidanceWeight,
        KernelsArgument, LoopArguments, ModelArguments, PromptArguments, SamplerArguments,
    },
    hub,
};

/// The models of a run and what drafts.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: Model,
    /// Present when the drafter is a model: another one, or made of the target.
    pub(crate) draft: Option<Model>,
    /// Present when the draft has other ids.
    pub(crate) map: Option<TokenMap>,
    pub(crate) drafter: DrafterKind,
}

impl Models {
    /// A target without a draft.
    pub(crate) fn alone(name: &str, arguments: &ModelArguments) -> Result<Self> {
        prepare(arguments)?;
        let target = open_again(name, arguments, &arguments.device)?;
        Ok(Self { target, draft: None, map: None, drafter: DrafterKind::None })
    }

    pub(crate) fn load(arguments: &ModelArguments) -> Result<Self> {
        let pair = arguments.model.strip_prefix(BUILTIN).is_some_and(builtin::has_draft);
        let draft_name = match (&arguments.draft_model, arguments.drafter) {
            (Some(name), None | Some(DrafterKind::Model)) => Some(name.clone()),
            (Some(name), Some(other)) => bail!(
                "--draft-model {name} is not used by --drafter {}; drop one of them",
                name_of(other)
            ),
            (None, Some(DrafterKind::Model) | None) if pair => Some(arguments.model.clone()),
            (None, Some(DrafterKind::Model)) => {
                bail!("--drafter model needs --draft-model for {}", arguments.model)
            }
            (None, _) => None,
        };
        let early = arguments.drafter == Some(DrafterKind::EarlyExit);
        if let (Some(loops), false) = (arguments.loops.draft_loops, early) {
            bail!("--draft-loops {loops} is not used without --drafter early-exit; drop it");
        }
        let blocks = match (arguments.draft_type, arguments.drafter) {
            (None, Some(DrafterKind::Quantized)) => Some(BlockFormat::Q4_0),
            (Some(_), _) if draft_name.is_none() && arguments.drafter != QUANTIZED => bail!(
                "--draft-type is not used without a draft model or --drafter quantized; drop it"
            ),
            (draft_type, _) => draft_type.map(block_format),
        };
        let default = if draft_name.is_some() { DrafterKind::Model } else { DrafterKind::Ngram };
        let target = open_target(arguments)?;
        if let (Some(device), None) = (&arguments.draft_device, &draft_name) {
            bail!("--draft-device {device} is not used without a draft model; drop it");
        }
        let mut draft = draft_name.map(|name| open_draft(&name, arguments)).transpose()?;
        let mut map = None;
        if early {
            draft = Some(target.early_exit(arguments.loops.draft_loops.unwrap_or(1))?);
        } else if arguments.drafter == QUANTIZED {
            draft = blocks.map(|format| target.quantised(format)).transpose()?;
        } else if let Some(draft) = &mut draft {
            if let Some(format) = blocks {
                *draft = draft.quantised(format)?;
            }
            let pairing = pair::check(&target, draft)?;
            if let Pairing::OtherIds { map, difference } = &pairing {
                eprintln!(
                    "draftproof: {difference}: ids are translated; {} of the target's {} tokens \
                     are in both and may be drafted",
                    map.shared(),
                    map.vocab()
                );
            }
            map = adapt(pairing, draft);
        }
        Ok(Self { target, draft, map, drafter: arguments.drafter.unwrap_or(default) })
    }
}

/// Makes the draft fit the target: cuts ids that it has beyond, or gives the map that it needs.
pub(crate) fn adapt(pairing: Pairing, draft: &mut Model) -> Option<TokenMap> {
    match pairing {
        Pairing::OtherIds { map, .. } => Some(map),
        same => {
            draft.language_model().limit_vocab(same.shared());
            None
        }
    }
}

const QUANTIZED: Option<DrafterKind> = Some(DrafterKind::Quantized);

fn block_format(draft_type: DraftType) -> BlockFormat {
    match draft_type {
        DraftType::Q4_0 => BlockFormat::Q4_0,
        DraftType::Q4_1 => BlockFormat::Q4_1,
        DraftType::Q5_0 => BlockFormat::Q5_0,
        DraftType::Q5_1 => BlockFormat::Q5_1,
        DraftType::Q8_0 => BlockFormat::Q8_0,
    }
}

const BUILTIN: &str = "builtin:";
/// What runs if no model is named.
pub(crate) const DEFAULT_MODEL: &str = "builtin:fable";
/// Models with arbitrary weights, for `bench`.
pub(crate) const SYNTHETIC: &str = "synthetic:";

/// Openings of tales from fable's held-out text.
pub(crate) const PROMPTS: &str = include_str!("../../models/fable/prompts.txt");

fn name_of(kind: DrafterKind) -> &'static str {
    match kind {
        DrafterKind::Model => "model",
        DrafterKind::Ngram => "ngram",
        DrafterKind::EarlyExit => "early-exit",
        DrafterKind::Quantized => "quantized",
        DrafterKind::None => "none",
    }
}

/// A model by its name alone, on the CPU.
pub(crate) fn open_cpu(name: &str) -> Result<Model> {
    open(name, Role::Target, "cpu")
}

/// The target alone.
pub(crate) fn open_target(arguments: &ModelArguments) -> Result<Model> {
    prepare(arguments)?;
    open_again(&arguments.model, arguments, &arguments.device)
}

/// The draft alone.
pub(crate) fn open_draft(name: &str, arguments: &ModelArguments) -> Result<Model> {
    let device = arguments.draft_device.as_ref().unwrap_or(&arguments.device);
    open(name, Role::Draft, device)
}

/// A target once more, with the kernels chosen by now, on any device.
pub(crate) fn open_again(name: &str, arguments: &ModelArguments, device: &str) -> Result<Model> {
    let mut model = open_with(name, Role::Target, device, &loop_cfg(&arguments.loops)?)?;
    set_loops(&mut model, &arguments.loops)?;
    if let Some(state) = arguments.loops.initial_state {
        model.set_initial_state(state)?;
    }
    Ok(model)
}

/// The field that `--loop-cfg` adds to a configuration.
fn loop_cfg(arguments: &LoopArguments) -> Result<Map<String, Value>> {
    let Some(json) = &arguments.loop_cfg else { return Ok(Map::new()) };
    let object: Map<String, Value> = serde_json::from_str(json)
        .with_context(|| format!("--loop-cfg: expected a JSON object, found {json:?}"))?;
    Ok(Map::from_iter([("loop_cfg".to_owned(), Value::Object(object))]))
}

/// In Huginn's family the first loops still carry the initial state.
const BURN_IN: usize = 6;

/// Sets depth and guidance, if they were asked for.
fn set_loops(model: &mut Model, arguments: &LoopArguments) -> Result<()> {
    let guidance = match (arguments.loop_guidance, arguments.guidance_weight) {
        (Some(form), Some(weight)) => Some(Guidance {
            reference: arguments.reference_loop.unwrap_or(1),
            form: match form {
                GuidanceForm::Logits => Form::Logits,
                GuidanceForm::Hidden => Form::Hidden,
            },
            strength: match weight {
                GuidanceWeight::Fixed(w) => Strength::Fixed(w),
                GuidanceWeight::Adaptive(w) => Strength::Adaptive(w),
            },
        }),
        _ => None,
    };
    if arguments.loops.is_none() && guidance.is_none() {
        return Ok(());
    }
    model.set_loops(arguments.loops, guidance)?;
    if let Some(Guidance { reference, form: Form::Hidden, .. }) = model.guidance()
        && model.recurrence().is_some_and(Recurrence::has_initial_state)
        && reference < BURN_IN
    {
        eprintln!(
            "draftproof: warning: the state of {} begins with something that is not the text's, and \
             loop {reference} still carries it; hidden guidance is meant from about loop {BURN_IN} on",
            model.name()
        );
    }
    Ok(())
}

/// Sets up the machine before weights are loaded for it.
///
/// # Errors
/// If it does not have the kernels.
fn prepare(arguments: &ModelArguments) -> Result<()> {
    prepare_machine(arguments.threads, arguments.kernels)
}

pub(crate) fn prepare_machine(threads: Option<u16>, kernels: KernelsArgument) -> Result<()> {
    if let Some(threads) = threads {
        machine::set_threads(usize::from(threads));
    }
    machine::set_kernels(match kernels {
        KernelsArgument::RowInvariant | KernelsArgument::Amx => Kernels::RowInvariant,
        KernelsArgument::General => Kernels::General,
    });
    let order = match kernels {
        KernelsArgument::Amx => Order::Tiles,
        KernelsArgument::RowInvariant | KernelsArgument::General => Order::Lanes,
    };
    if !order.is_available() {
        bail!(
            "--kernels amx: expected an x86-64 processor with AMX for bf16, under Linux, found {}",
            device::processor()
        );
    }
    order.set();
    Ok(())
}

/// The secret of workers, for both sides.
pub(crate) const WORKER_TOKEN: &str = "DRAFTPROOF_WORKER_TOKEN";

pub(crate) fn worker_token() -> Option<String> {
    env::var(WORKER_TOKEN).ok().filter(|token| !token.is_empty())
}

/// The place called `name`: a device of this machine, or a worker.
pub(crate) fn place(name: &str) -> Result<Place> {
    Ok(Place::open(name, worker_token())?)
}

pub(crate) fn open(name: &str, role: Role, device_name: &str) -> Result<Model> {
    open_with(name, role, device_name, &Map::new())
}

fn open_with(
    name: &str,
    role: Role,
    device_name: &str,
    fields: &Map<String, Value>,
) -> Result<Model> {
    let in_folder = ![SYNTHETIC, BUILTIN].iter().any(|prefix| name.starts_with(prefix));
    ensure!(
        fields.is_empty() || in_folder,
        "--loop-cfg is for folders with a config.json, not for {name}"
    );
    if let Some(name) = name.strip_prefix(SYNTHETIC) {
        return Ok(Model::synthetic(name, &device::open(device_name)?)?);
    }
    let place = place(device_name)?;
    let mut model = if let Some(name) = name.strip_prefix(BUILTIN) {
        Model::builtin(name, role, place)?
    } else if let Some(repository) = name.strip_prefix(hub::PREFIX) {
        let path = hub::fetch(repository).with_context(|| name.to_owned())?;
        Model::open_with(&path, place, fields)?.called(name)
    } else {
        let path = Path::new(name);
        ensure!(
            path.exists(),
            "no model at {name}: expected builtin:fable, a folder with config.json and \
             model.safetensors, a GGUF file, or hf:OWNER/NAME"
        );
        Model::open_with(path, place, fields)?
    };
    ensure!(
        fields.is_empty() || model.config().model_type == "qwen3",
        "--loop-cfg: expected a Qwen3 model, found {name} of the family {}",
        model.config().model_type
    );
    if let Some(full) = model.cut_context() {
        eprintln!(
            "note: a buffer of {device_name} holds the cache of {} positions, not of the {full} that \
             {name} has",
            model.config().transformer.context
        );
    }
    #[cfg(feature = "remote")]
    if let Runner::There(worker) = model.language_model()
        && !worker.row_invariant()
    {
        eprintln!(
            "draftproof: warning: the worker runs {name} on {} with kernels whose rows may differ in \
             their last bits with the length of a draft",
            worker.device()
        );
    }
    #[cfg(not(feature = "remote"))]
    let _ = &mut model;
    Ok(model)
}

/// The contract: what was typed, else what the model's authors recommend, else off.
pub(crate) fn sampler(arguments: &SamplerArguments, target: &Model) -> Result<Sampler> {
    let recommended = target.generation_config();
    for name in &recommended.unused {
        eprintln!("draftproof: warning: generation_config.json sets {name}, which is not honoured");
    }
    for id in target.unknown_eos() {
        eprintln!(
            "draftproof: warning: the end-of-text id {id} is outside the vocabulary of {} ids",
            target.vocab()
        );
    }
    let settings = settings(arguments, recommended, target)?;
    Sampler::new(settings, target.vocab()).or_else(|error| {
        // Whose number it was: without the file's there would be no error.
        let typed = self::settings(arguments, &GenerationConfig::default(), target)?;
        match Sampler::new(typed, target.vocab()) {
            Ok(_) => Err(error).context("generation_config.json of the model"),
            Err(_) => Err(error.into()),
        }
    })
}

fn settings(
    arguments: &SamplerArguments,
    recommended: &GenerationConfig,
    target: &Model,
) -> Result<Settings> {
    let off = Settings::default();
    // Authors who say "do not sample" mean greedy.
    let greedy = (recommended.do_sample == Some(false)).then_some(0.0);
    let count = |number: Option<u64>| {
        number.map(usize::try_from).transpose().context("generation_config.json of the model")
    };
    let bias = |bias: &BiasArgument| (Token(bias.token), bias.bias);
    Ok(Settings {
        repetition_penalty: arguments
            .repetition_penalty
            .or(recommended.repetition_penalty)
            .unwrap_or(off.repetition_penalty),
        presence_penalty: arguments.presence_penalty,
        frequency_penalty: arguments.frequency_penalty,
        logit_bias: arguments.logit_bias.iter().map(bias).collect(),
        bad_words: bad_words(arguments.bad_words.as_deref(), target)?,
        no_repeat_ngram: arguments
            .no_repeat_ngram
            .or(count(recommended.no_repeat_ngram_size)?)
            .unwrap_or(off.no_repeat_ngram),
        min_tokens: arguments.min_tokens,
        eos: target.eos().to_vec(),
        temperature: arguments
            .temperature
            .or(greedy)
            .or(recommended.temperature)
            .unwrap_or(off.temperature),
        top_k: arguments.top_k.or(count(recommended.top_k)?).unwrap_or(off.top_k),
        top_k_ties: arguments.top_k_ties,
        typical: either(arguments.typical, recommended.typical_p)?.unwrap_or(off.typical),
        top_p: either(arguments.top_p, recommended.top_p)?.unwrap_or(off.top_p),
        min_p: either(arguments.min_p, recommended.min_p)?.unwrap_or(off.min_p),
        order: arguments.sampler_order,
    })
}

/// The token sequences of the words in a file: as they stand at the beginning of a text, and after a
/// space, where most vocabularies have other tokens.
fn bad_words(file: Option<&Path>, target: &Model) -> Result<Vec<Vec<Token>>> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let Some(tokenizer) = target.tokenizer() else {
        bail!("{} has no tokenizer; --bad-words needs one", target.name());
    };
    let text = read_text(file)?;
    let words = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty());
    let mut sequences = Vec::new();
    for word in words {
        for form in [word.to_owned(), format!(" {word}")] {
            let tokens = tokenizer.encode_bare(&form)?;
            if !tokens.is_empty() && !sequences.contains(&tokens) {
                sequences.push(tokens);
            }
        }
    }
    ensure!(!sequences.is_empty(), "{}: expected a word a line, found none", file.display());
    Ok(sequences)
}

/// The typed value, or the recommended one: a JSON number, whose shortest decimal is what its author
/// wrote.
fn either(typed: Option<Decimal>, recommended: Option<f64>) -> Result<Option<Decimal>> {
    if typed.is_some() {
        return Ok(typed);
    }
    recommended
        .map(|number| number.to_string().parse().context("generation_config.json of the model"))
        .transpose()
}

/// The tokens that end the text.
pub(crate) fn eos(arguments: &EndArguments, target: &Model) -> Vec<Token> {
    if arguments.ignore_eos { Vec::new() } else { target.eos().to_vec() }
}

/// The strings that end the text: those typed and, unless the ends that come with the model are
/// ignored, its own.
pub(crate) fn stops(arguments: &EndArguments, target: &Model) -> Vec<String> {
    let mut stops = arguments.stop.clone();
    // Without a tokenizer there is no text to look for them in.
    if !arguments.ignore_eos && target.tokenizer().is_some() {
        let own = &target.generation_config().stop_strings;
        stops.extend(own.iter().filter(|stop| !arguments.stop.contains(stop)).cloned());
    }
    stops
}

/// The prompt's tokens, from wherever it was given.
pub(crate) fn prompt(arguments: &PromptArguments, target: &Model) -> Result<Vec<Token>> {
    if let Some(ids) = &arguments.prompt_ids {
        let vocab = target.vocab();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            bail!("--prompt-ids: id {id} is outside the vocabulary of {vocab} ids");
        }
        return Ok(ids.iter().copied().map(Token).collect());
    }
    let text = prompt_text(arguments)?;
    let Some(tokenizer) = target.tokenizer() else {
        bail!("{} has no tokenizer; give the prompt with --prompt-ids", target.name());
    };
    Ok(tokenizer.encode(&text)?)
}

/// The prompt's text, from wherever it was given.
pub(crate) fn prompt_text(arguments: &PromptArguments) -> Result<String> {
    match (&arguments.prompt, &arguments.prompt_file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) if path != Path::new("-") => read_text(path),
        (None, file) => {
            ensure!(
                file.is_some() || !io::stdin().is_terminal(),
                "no prompt: give it as an argument, with --prompt-file or --prompt-ids, or on \
                 standard input"
            );
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).context("standard input")?;
            utf8(bytes).context("standard input")
        }
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    fs::read(path).map_err(Into::into).and_then(utf8).with_context(|| path.display().to_string())
}

pub(crate) fn utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("expected UTF-8 text, found an invalid byte at offset {at}")
    })
}
