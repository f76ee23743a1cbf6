//! Texts for the studies: written by the pair with a mark and without, cut from others, and edited.

use draftproof_decode::{
    Dist, Engine, LanguageModel, Limits, Listener, Sampler, Session, Settings, Token,
    draft::{Drafter, NoDrafter, length::DraftLength, model::ModelDrafter},
    generate,
    lm::Pass,
    noise::{ChaCha, Seed},
    sampler::Prefix,
    stats::{Meter, NoClock, Stats},
    verify::{FastWatermark, Rejection, Verifier},
    watermark::{
        Key, Mode, Scheme, StoredKey, Watermark,
        detect::{Detector, Room, scored_places},
    },
};

use crate::{Error, goodness::Uniform, marks::mixed, model::Pair, progress::Progress};

/// Texts that share a key, and the passes of the models.
const COMPANY: u64 = 16;

/// How texts are written.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) temperature: f64,
    /// The mark; none writes plain text.
    pub(super) mode: Option<Mode>,
    pub(super) scheme: Scheme,
    /// Tokens drafted a round; 0 is plain decoding.
    pub(super) gamma: usize,
    pub(super) tokens: usize,
    /// Texts that share a key.
    pub(super) company: u64,
}

impl Way {
    pub(super) fn marked(temperature: f64, tokens: usize) -> Self {
        Self {
            temperature,
            mode: Some(Mode::Exact),
            scheme: Scheme::default(),
            gamma: 0,
            tokens,
            company: COMPANY,
        }
    }
}

/// A text with what was asked of it.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) tokens: Vec<Token>,
    pub(super) key: StoredKey,
    pub(super) stats: Stats,
}

impl Text {
    pub(super) fn detector(&self) -> Detector {
        Detector::new(&self.key, super::RATE)
    }
}

/// A key that depends on its address only.
pub(super) fn key(scheme: &Scheme, seed: u64, number: u64) -> StoredKey {
    let layer = |layer: usize| mixed(&[seed, number, layer as u64, 0x6b65_7973]).cast_signed();
    let key = Key::new((0..scheme.depth).map(layer).collect());
    StoredKey::new(scheme.clone(), key, "2026-01-01".into(), None).expect("one number a layer")
}

/// The settings of all studies: the temperature, and the 100 likeliest tokens, as in the paper. (A
/// mark on all of a vocabulary costs more time than the models.)
fn contract(temperature: f64, target: &dyn LanguageModel) -> Result<Sampler, Error> {
    let top_k = 100.min(target.vocab());
    let settings = Settings { temperature, top_k, ..Settings::default() };
    Ok(Sampler::new(settings, target.vocab())?)
}

/// What texts depend on: the keys on one seed, the noise on another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds {
    pub(super) keys: u64,
    pub(super) noise: u64,
}

impl Seeds {
    /// Both from one.
    pub(super) fn both(seed: u64) -> Self {
        Self { keys: seed, noise: seed }
    }
}

/// Writes `count` texts; those of one company share a key.
pub(super) fn write(
    pair: &mut Pair<'_>,
    way: &Way,
    (seeds, count): (Seeds, u64),
    listener: &mut dyn Listener,
    progress: &mut dyn Progress,
) -> Result<Vec<Text>, Error> {
    let plain = contract(way.temperature, pair.target)?;
    let limits = Limits {
        max_tokens: way.tokens,
        // A story may end and another begin: texts of one length are compared.
        eos: Vec::new(),
        draft_len: DraftLength::Fixed(way.gamma),
    };
    let mut texts = Vec::new();
    let mut next = 0;
    while next < count {
        let company = next..(next + way.company).min(count);
        let key = key(&way.scheme, seeds.keys, next / way.company);
        let sampler = match way.mode {
            Some(mode) => plain.clone().watermarked(Watermark::new(&key, mode)),
            None => plain.clone(),
        };
        let mut sessions: Vec<Session> = company
            .clone()
            .map(|sequence| {
                let seed = Seed { seed: seeds.noise, sequence };
                Session::new(&pair.prompt, seed, limits.clone())
            })
            .collect();
        let mut drafter: Box<dyn Drafter + '_> = match &mut pair.draft {
            Some(draft) if way.gamma > 0 => Box::new(ModelDrafter::new(&mut **draft)),
            _ => Box::new(NoDrafter),
        };
        let fast = sampler.fast_watermark().map(|watermark| FastWatermark { watermark });
        let verifier: &dyn Verifier = match &fast {
            Some(fast) => fast,
            None => &Rejection,
        };
        let mut meter = Meter::new(NoClock);
        let mut engine = Engine {
            target: &mut *pair.target,
            drafter: drafter.as_mut(),
            verifier,
            sampler: &sampler,
            noise: &mut ChaCha,
            meter: &mut meter,
        };
        generate(&mut engine, &mut sessions, listener)?;
        texts.extend(sessions.iter().map(|session| Text {
            tokens: session.generated().to_vec(),
            key: key.clone(),
            stats: session.stats().clone(),
        }));
        next = company.end;
        progress.advance(next, count);
    }
    Ok(texts)
}

/// What the target's laws at a temperature leave for a mark in a text it wrote.
pub(super) fn room(
    target: &mut dyn LanguageModel,
    prompt: &[Token],
    text: &Text,
    temperature: f64,
) -> Result<Room, Error> {
    let detector = text.detector();
    let scheme = detector.scheme();
    let laws = laws(target, prompt, &text.tokens, temperature)?;
    let mut room = Room::default();
    for place in scored_places(scheme, &text.tokens, &[]) {
        let context = &text.tokens[place - scheme.context_len..place];
        room.add(scheme, detector.values(), context, &laws[place]);
    }
    Ok(room)
}

/// The mean entropy, in bits, of the target's laws without a mark along a text.
pub(super) fn entropy(
    target: &mut dyn LanguageModel,
    prompt: &[Token],
    text: &[Token],
    temperature: f64,
) -> Result<f64, Error> {
    let laws = laws(target, prompt, text, temperature)?;
    Ok(laws.iter().map(Dist::entropy_bits).sum::<f64>() / laws.len() as f64)
}

/// The law of each token of a text.
fn laws(
    target: &mut dyn LanguageModel,
    prompt: &[Token],
    text: &[Token],
    temperature: f64,
) -> Result<Vec<Dist>, Error> {
    let sampler = contract(temperature, target)?;
    let whole = [prompt, text].concat();
    let sequence = target.open()?;
    let tokens = &whole[..whole.len() - 1];
    let rows = target.forward(&[Pass { sequence, tokens, rows: text.len() }]);
    target.close(sequence);
    let rows = rows?.swap_remove(0);
    let law = |place: usize| {
        let tokens = &whole[..prompt.len() + place];
        let prefix = Prefix { tokens, prompt_len: prompt.len() };
        let law = sampler.law(prefix, rows.row(place));
        law.map_err(|source| Error::Row { position: tokens.len(), source })
    };
    (0..text.len()).map(law).collect()
}

/// A stretch of `source`, from anywhere.
pub(super) fn stretch(source: &[Token], length: usize, dice: &mut Uniform) -> Vec<Token> {
    let start = below(source.len() - length.min(source.len()) + 1, dice);
    source[start..].iter().take(length).copied().collect()
}

/// Text from six sentences with a gap each, over and over with other fillings: as forms, lists and
/// poor models write.
pub(super) fn templated(source: &[Token], length: usize, dice: &mut Uniform) -> Vec<Token> {
    let sentences: Vec<Vec<Token>> = (0..6).map(|_| stretch(source, 14, dice)).collect();
    let fillings = stretch(source, 20, dice);
    let mut text = Vec::new();
    while text.len() < length {
        let mut sentence = sentences[below(6, dice)].clone();
        let gap = sentence.len() / 2;
        sentence[gap] = fillings[below(fillings.len(), dice)];
        text.extend(sentence);
    }
    text.truncate(length);
    text
}

/// A way to change a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit {
    Substitute,
    Delete,
    Insert,
}

/// Changes each token with probability `share`, taking new ones from `source`.
pub(super) fn edited(
    text: &[Token],
    edit: Edit,
    share: f64,
    source: &[Token],
    dice: &mut Uniform,
) -> Vec<Token> {
    let mut changed = Vec::new();
    for &token in text {
        if dice.next() >= share {
            changed.push(token);
            continue;
        }
        let other = source[below(source.len(), dice)];
        match edit {
            Edit::Substitute => changed.push(other),
            Edit::Delete => {}
            Edit::Insert => changed.extend([token, other]),
        }
    }
    changed
}

/// Pieces of 25 tokens, each of the marked text with probability `share`, else of other text.
pub(super) fn mingled(
    text: &[Token],
    share: f64,
    source: &[Token],
    dice: &mut Uniform,
) -> Vec<Token> {
    let piece = |piece: &[Token]| {
        if dice.next() < share { piece.to_vec() } else { stretch(source, piece.len(), dice) }
    };
    text.chunks(25).flat_map(piece).collect()
}

/// Uniform on `0..n`.
pub(super) fn below(n: usize, dice: &mut Uniform) -> usize {
    ((dice.next() * n as f64) as usize).min(n - 1)
}
