//! Watermark keys: files of them, and the watermark they put on a contract.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::{
    Error, Listener, Sampler, Session,
    draft::SessionId,
    error::ListenerError,
    session::{Emitted, JudgedRound},
    watermark::{Key, KeyRing, Mode, Scheme, StoredKey, Variant, Watermark, scheme::Table},
};
use draftproof_model::Model;
use serde::Deserialize;

use crate::{
    args::{
        DraftLenArgument, GenerateArguments, KeygenArguments, Mask, ModeArgument, VariantArgument,
        VerifyRule, WatermarkArguments,
    },
    settings::{open_target, read_text},
};

/// `watermark keygen`.
pub(crate) fn keygen(arguments: &KeygenArguments) -> Result<()> {
    let file = &arguments.file;
    let old = match arguments.rotate {
        true => Some(open_keys(file)?),
        false => None,
    };
    let target = open_target(&arguments.models)?;
    let (scheme, key) = match &arguments.import {
        Some(config) => import(config)?,
        None => {
            let scheme = scheme(arguments);
            let layers = (0..scheme.depth).map(|_| Ok(getrandom::u64()?.cast_signed()));
            let key = Key::new(layers.collect::<Result<_>>()?);
            (scheme, key)
        }
    };
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let tokenizer = target.identity().tokenizer.clone();
    let key = StoredKey::new(scheme, key, today, tokenizer)?;
    if key.scheme.leaves > 2 {
        eprintln!(
            "draftproof: warning: {} leaves are distortionary: averaged over keys the text does not \
             have the model's law",
            key.scheme.leaves
        );
    }
    let (id, keys) = (key.id.clone(), old.as_ref().map_or(1, |old| old.keys().len() + 1));
    match old {
        None => write_new(file, &KeyRing::new(key).to_json())?,
        Some(mut ring) => {
            ring.rotate(key)?;
            // Whole or not at all: the old keys are the only means to detect older texts.
            let next = file.with_extension("next");
            write_new(&next, &ring.to_json())?;
            fs::rename(&next, file).with_context(|| file.display().to_string())?;
        }
    }
    eprintln!(
        "draftproof: {}: key {id} is in use, of {keys}; whoever reads this file can mark texts and \
         remove marks",
        file.display()
    );
    Ok(())
}

fn scheme(arguments: &KeygenArguments) -> Scheme {
    Scheme {
        variant: match arguments.variant {
            VariantArgument::Gdm => Variant::Gdm,
            VariantArgument::Hf => Variant::Hf,
        },
        depth: arguments.depth,
        context_len: arguments.context_len,
        leaves: arguments.leaves,
        history: arguments.history,
        ..Scheme::default()
    }
}

/// transformers' `SynthIDTextWatermarkingConfig`, as its `to_dict` writes it.
#[derive(Deserialize)]
struct Imported {
    ngram_len: usize,
    keys: Key,
    sampling_table_size: Option<usize>,
    sampling_table_seed: Option<u32>,
    context_history_size: Option<usize>,
    skip_first_ngram_calls: Option<bool>,
}

fn import(file: &Path) -> Result<(Scheme, Key)> {
    check_owner_only(file)?;
    let text = read_text(file)?;
    // The parser's own words may quote the keys.
    let config: Imported = serde_json::from_str(&text).map_err(|error| {
        anyhow::anyhow!(
            "{}: line {}: expected a SynthID watermarking config with ngram_len and keys",
            file.display(),
            error.line()
        )
    })?;
    let Some(context_len) = config.ngram_len.checked_sub(1).filter(|&len| len > 0) else {
        bail!("{}: ngram_len: expected 2 or more, found {}", file.display(), config.ngram_len);
    };
    let scheme = Scheme {
        variant: Variant::Hf,
        depth: config.keys.depth(),
        context_len,
        leaves: 2,
        history: Some(config.context_history_size.unwrap_or(1024)),
        skip_first: config.skip_first_ngram_calls.unwrap_or(false),
        table: Some(Table {
            size: config.sampling_table_size.unwrap_or(Scheme::HF_TABLE.size),
            seed: config.sampling_table_seed.unwrap_or(Scheme::HF_TABLE.seed),
        }),
    };
    Ok((scheme, config.keys))
}

/// Creates a file that only its owner can read.
fn write_new(file: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(file).and_then(|mut out: File| {
        out.write_all(text.as_bytes())?;
        out.sync_all()
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow::anyhow!(
            "{}: the file exists; --rotate adds a key to it, and nothing here overwrites one",
            file.display()
        ),
        _ => anyhow::Error::from(error).context(file.display().to_string()),
    })
}

/// The keys of a file that nobody but its owner may read.
pub(crate) fn open_keys(file: &Path) -> Result<KeyRing> {
    check_owner_only(file)?;
    KeyRing::parse(&read_text(file)?).with_context(|| file.display().to_string())
}

fn check_owner_only(file: &Path) -> Result<()> {
    let metadata = fs::metadata(file).with_context(|| file.display().to_string())?;
    ensure!(metadata.is_file(), "{}: expected a file", file.display());
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        ensure!(
            mode & 0o077 == 0,
            "{}: expected a file that only its owner can read (mode 0600), found mode {mode:04o}; \
             `chmod 600` it, and take a new key if others may have read it",
            file.display()
        );
    }
    Ok(())
}

/// Refuses a key made for another tokenizer's ids.
pub(crate) fn check_tokenizer(file: &Path, key: &StoredKey, target: &Model) -> Result<()> {
    let found = &target.identity().tokenizer;
    ensure!(
        key.tokenizer == *found,
        "{}: key {}: expected the tokenizer with SHA-256 {}, found {} in {}",
        file.display(),
        key.id,
        shown(&key.tokenizer),
        shown(found),
        target.name()
    );
    Ok(())
}

fn shown(hash: &Option<String>) -> &str {
    hash.as_deref().unwrap_or("of no tokenizer")
}

/// The contract with the watermark that was asked for.
pub(crate) fn add(
    sampler: Sampler,
    arguments: &WatermarkArguments,
    target: &Model,
) -> Result<Sampler> {
    let Some(file) = &arguments.watermark_key else { return Ok(sampler) };
    let ring = open_keys(file)?;
    let key = ring.current();
    check_tokenizer(file, key, target)?;
    let settings = sampler.settings();
    let one_token = match () {
        () if settings.temperature == 0.0 => Some("temperature 0"),
        () if settings.top_k == 1 => Some("top-k 1"),
        () => None,
    };
    if let Some(setting) = one_token {
        eprintln!("draftproof: warning: {setting} leaves no choice, so the text cannot be marked");
    }
    let mode = match arguments.watermark_mode {
        ModeArgument::Exact => Mode::Exact,
        ModeArgument::Fast => Mode::Fast,
    };
    Ok(sampler.watermarked(Watermark::new(key, mode)))
}

/// The draft length, once rule, length and trace go with the mode.
pub(crate) fn draft_len(
    arguments: &GenerateArguments,
    sampler: &Sampler,
) -> Result<DraftLenArgument> {
    let typed = arguments.drafts.draft_len;
    if sampler.fast_watermark().is_none() {
        return Ok(typed.unwrap_or(DraftLenArgument::Auto));
    }
    ensure!(
        arguments.drafts.verify == VerifyRule::Rejection,
        "--watermark-mode fast is a form of --verify rejection; with another rule use mode exact"
    );
    ensure!(
        typed != Some(DraftLenArgument::Auto),
        "--watermark-mode fast needs a fixed --draft-len: auto learns from discarded tokens, and \
         then the law would not hold averaged over keys"
    );
    ensure!(
        arguments.trace.is_none(),
        "--trace does not record the draws of --watermark-mode fast; trace mode exact"
    );
    Ok(typed.unwrap_or(DraftLenArgument::Fixed(4)))
}

/// Makes the continuations one after another; each is masked by the contexts of all before it.
pub(crate) fn one_after_another(
    sampler: &Sampler,
    mut watermark: Watermark,
    sessions: &mut [Session],
    listener: &mut dyn Listener,
    mut generate: impl FnMut(&Sampler, &mut [Session], &mut dyn Listener) -> Result<(), Error>,
) -> Result<(), Error> {
    for (place, session) in sessions.iter_mut().enumerate() {
        let sampler = sampler.clone().watermarked(watermark.clone());
        let mut listener = Shifted { listener, place };
        generate(&sampler, std::slice::from_mut(session), &mut listener)?;
        watermark = watermark.after(session.generated());
    }
    Ok(())
}

/// Hears a continuation that is run alone under its place among all.
struct Shifted<'a> {
    listener: &'a mut dyn Listener,
    place: usize,
}

impl Listener for Shifted<'_> {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        self.listener.token(&Emitted { session: SessionId(self.place), ..*emitted })
    }

    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        self.listener.round(&JudgedRound { session: SessionId(self.place), ..*round })
    }

    fn warning(&mut self, _: SessionId, message: &str) {
        self.listener.warning(SessionId(self.place), message);
    }
}

/// What the mask promises for several continuations of one prompt.
pub(crate) fn mask_name(mask: Mask) -> &'static str {
    match mask {
        Mask::Sequence => "sequence",
        Mask::Batch => "batch",
    }
}
