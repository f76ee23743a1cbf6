//! Level `exact`: **every** path of the real loop on table models, as exact rationals.
//!
//! The emitted law must equal the target's with `==`, whatever the draft, the draft length and the
//! settings are. Nothing is sampled and nothing is rounded, so there is no tolerance and no false
//! alarm. The coupled rule, whose noise has no finite tree of choices, must give the same text bit
//! for bit with any draft; its law is sampled at the level `toy`.

pub mod paths;

use std::collections::BTreeMap;

use draftproof_decode::{
    Dist, Limits, Token,
    dist::Fraction,
    dist::overlap,
    draft::length::DraftLength,
    law::Law,
    noise::{ChaCha, Forbidden, Noise, PositionKey, RoundKey, Seed},
    sampler::Prefix,
};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive};

use crate::{
    Error,
    battery::{self, AUTO, full, table},
    marks::Mark,
    plan::Level,
    report::{Check, Method},
    scene::{DraftSource, Rule, Scene, Stage},
};
use paths::{Exact, Walk, distance, try_enumerate, zero};

/// Cases that make one check.
#[derive(Clone, Debug, PartialEq)]
pub enum Group {
    /// Whole runs of several rounds: a rule, what drafts, a draft length; over all settings.
    WholeRuns(Rule, Drafts, Length),
    /// One round from every text that a round can leave, composed: longer blocks.
    RoundByRound(Rule, Drafts, Length),
    /// Texts under so many keys of a watermark in mode `exact`, each against plain decoding with it.
    WatermarkKeys(Rule, Drafts, Length, u64),
    /// Texts with a watermark in mode `fast`, averaged over all keys, against the law without it.
    WatermarkFast(Drafts, usize),
    /// How many tokens the first round accepts under rejection: Σ min(p, q), exactly.
    Acceptance,
    /// Coupled texts with any draft and draft length against those without.
    CoupledBits,
    /// Greedy texts with any draft against those without, without any noise.
    GreedyBits,
    /// No key of noise is spent twice: what the walk over paths takes for granted.
    FreshKeys,
}

/// What drafts in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafts {
    /// Nothing.
    None,
    /// Prompt lookup: q is certain.
    Ngram,
    /// A table with other rows than the target's.
    Model,
    /// The target itself.
    Twin,
}

impl Drafts {
    const ALL: [Self; 4] = [Self::None, Self::Ngram, Self::Model, Self::Twin];

    fn source(self, target: &draftproof_decode::TableModel) -> DraftSource {
        match self {
            Self::None => DraftSource::None,
            Self::Ngram => DraftSource::Ngram,
            Self::Model => DraftSource::Model(table(77)),
            Self::Twin => DraftSource::Model(target.clone()),
        }
    }
}

/// A draft length of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always this many.
    Fixed(usize),
    /// As many as pay, under costs that make it stop at all places.
    Auto,
}

impl Length {
    fn limits(self, extra: usize) -> Limits {
        let (gamma, draft_len) = match self {
            Self::Fixed(gamma) => (gamma, DraftLength::Fixed(gamma)),
            Self::Auto => (3, AUTO),
        };
        Limits { max_tokens: gamma + extra, eos: vec![Token(3)], draft_len }
    }
}

impl Group {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        let case = |rule: &Rule, drafts: &Drafts, length: &Length, how: &str| {
            let length = match length {
                Length::Fixed(gamma) => gamma.to_string(),
                Length::Auto => "auto".to_owned(),
            };
            let drafts = format!("{drafts:?}").to_lowercase();
            format!("{}/{drafts}/len={length}/{how}", rule.name())
        };
        match self {
            Self::WholeRuns(rule, drafts, length) => case(rule, drafts, length, "whole runs"),
            Self::RoundByRound(rule, drafts, length) => {
                case(rule, drafts, length, "round by round")
            }
            Self::WatermarkKeys(rule, drafts, length, keys) => {
                case(rule, drafts, length, &format!("watermark, {keys} keys"))
            }
            Self::WatermarkFast(drafts, gamma) => {
                case(&Rule::Rejection, drafts, &Length::Fixed(*gamma), "watermark fast, all keys")
            }
            Self::Acceptance => "rejection/accepted tokens".to_owned(),
            Self::CoupledBits => "coupled/equal bits".to_owned(),
            Self::GreedyBits => "greedy/equal bits".to_owned(),
            Self::FreshKeys => "noise/no key twice".to_owned(),
        }
    }

    /// Walks or compares all cases.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn check(&self) -> Result<Check, Error> {
        let name = format!("exact/{}", self.name());
        let level = Level::Exact;
        match *self {
            Self::WholeRuns(rule, drafts, length) => {
                let found = law_check(rule, drafts, length, 2, whole_runs)?;
                Ok(Check::exact(name, level, Method::Enumeration, found.0, found.1, found.2))
            }
            Self::RoundByRound(rule, drafts, length) => {
                let found = law_check(rule, drafts, length, 2, round_by_round)?;
                Ok(Check::exact(name, level, Method::Enumeration, found.0, found.1, found.2))
            }
            Self::WatermarkKeys(rule, drafts, length, keys) => {
                let found = watermark_keys(rule, drafts, length, keys)?;
                Ok(Check::exact(name, level, Method::Enumeration, found.0, found.1, found.2))
            }
            Self::WatermarkFast(drafts, gamma) => {
                let found = watermark_fast(drafts, gamma)?;
                Ok(Check::exact(name, level, Method::Enumeration, found.0, found.1, found.2))
            }
            Self::Acceptance => {
                let (worst, paths) = acceptance()?;
                let note = "first round, P(accepted ≥ 1) against Σ min(p, q), as rationals";
                let note = note.to_owned();
                Ok(Check::exact(name, level, Method::Enumeration, worst, paths, note))
            }
            Self::CoupledBits => {
                let (different, texts) = equal_bits(Rule::Coupled, 20)?;
                let note = "texts that differ from those without a draft".to_owned();
                Ok(Check::exact(name, level, Method::Equality, different, texts, note))
            }
            Self::GreedyBits => {
                let (different, texts) = equal_bits(Rule::Rejection, 20)?;
                let note = "texts that differ from those without a draft".to_owned();
                Ok(Check::exact(name, level, Method::Equality, different, texts, note))
            }
            Self::FreshKeys => {
                let (twice, keys) = fresh_keys()?;
                let note = "texts in which a key was asked for twice".to_owned();
                Ok(Check::exact(name, level, Method::Equality, twice, keys, note))
            }
        }
    }
}

/// The groups of the level, or the smaller part that `quick` takes.
#[must_use]
pub fn groups(all: bool) -> Vec<Group> {
    let mut groups = Vec::new();
    for rule in [Rule::Rejection, Rule::Block] {
        for drafts in Drafts::ALL {
            if drafts == Drafts::None {
                groups.push(Group::WholeRuns(rule, drafts, Length::Fixed(0)));
                continue;
            }
            for length in [Length::Fixed(1), Length::Fixed(2), Length::Auto] {
                groups.push(Group::WholeRuns(rule, drafts, length));
            }
            let longest = if all { 4 } else { 3 };
            for gamma in 3..=longest {
                groups.push(Group::RoundByRound(rule, drafts, Length::Fixed(gamma)));
            }
        }
    }
    for drafts in [Drafts::Ngram, Drafts::Model] {
        for length in [Length::Fixed(2), Length::Auto] {
            let keys = if all { 20 } else { 4 };
            groups.push(Group::WatermarkKeys(Rule::Rejection, drafts, length, keys));
            groups.push(Group::WatermarkKeys(Rule::Block, drafts, length, keys));
        }
    }
    groups.extend(
        [(Drafts::None, 0), (Drafts::Ngram, 2), (Drafts::Model, 1), (Drafts::Model, 2)]
            .map(|(drafts, gamma)| Group::WatermarkFast(drafts, gamma)),
    );
    groups.extend([Group::Acceptance, Group::CoupledBits, Group::GreedyBits, Group::FreshKeys]);
    groups
}

type Walker = fn(&Scene) -> Result<Walk<Vec<Token>>, Error>;

/// The largest total variation over all settings, the paths walked, and a note.
fn law_check(
    rule: Rule,
    drafts: Drafts,
    length: Length,
    extra: usize,
    walk: Walker,
) -> Result<(f64, u64, String), Error> {
    let (mut worst, mut paths, mut cases) = (0.0f64, 0, 0);
    for (name, settings, watermark) in battery::contracts() {
        let target = if name == "penalties" { full(3, 9, 3.0) } else { table(1) };
        let scene = Scene {
            name: String::new(),
            draft: drafts.source(&target),
            target,
            rule,
            settings,
            watermark,
            prompt: vec![Token(0), Token(2)],
            limits: length.limits(extra),
        };
        let found = walk(&scene)?;
        worst = worst.max(difference(&found.law, &scene.target_law()?));
        paths += found.paths;
        cases += 1;
        if let Some(key) = found.spent_twice {
            return Ok((1.0, paths, format!("{name}: noise was asked for twice: {key}")));
        }
    }
    Ok((worst, paths, format!("{cases} contracts; {paths} paths, compared as rationals")))
}

/// Each key by itself. A context is one token of four, so it repeats inside a block, and again after
/// a rejection.
fn watermark_keys(
    rule: Rule,
    drafts: Drafts,
    length: Length,
    keys: u64,
) -> Result<(f64, u64, String), Error> {
    let (mut worst, mut paths, mut effect) = (0.0f64, 0, 0.0f64);
    for key in 0..keys {
        let target = full(3, 9, 3.0);
        let scene = Scene {
            draft: drafts.source(&target),
            target,
            rule,
            watermark: Some(Mark::one_key(key)),
            limits: length.limits(2),
            ..battery::plain("", 2)
        };
        let found = whole_runs(&scene)?;
        let expected = scene.target_law()?;
        worst = worst.max(difference(&found.law, &expected));
        effect =
            effect.max(difference(&expected, &Scene { watermark: None, ..scene }.target_law()?));
        paths += found.paths;
    }
    let note = format!("{paths} paths, compared as rationals; the mark moves up to {effect:.2}");
    // A mark that moves nothing would prove nothing.
    Ok((if effect > 0.05 { worst } else { 1.0 }, paths, note))
}

/// The bits of both keys are branched over like any other choice.
fn watermark_fast(drafts: Drafts, gamma: usize) -> Result<(f64, u64, String), Error> {
    let scene = Scene {
        draft: match drafts {
            Drafts::Model => battery::fast_watermark(gamma).draft,
            other => other.source(&battery::fast_watermark(gamma).target),
        },
        ..battery::fast_watermark(gamma)
    };
    let found = whole_runs(&scene)?;
    let (expected, tolerance) = (scene.target_law()?, scene.tolerance());
    let worst = match distance(&found.law, &expected) <= tolerance {
        true => 0.0,
        false => difference(&found.law, &expected),
    };
    let note = format!(
        "{} paths over tokens, coins and bits; within the {:.1e} of a residual's total of 2^61",
        found.paths,
        tolerance.to_f64().unwrap_or(1.0)
    );
    Ok((worst, found.paths, note))
}

/// 0 iff the laws are equal as rationals, else their distance.
fn difference<T: Ord>(a: &Exact<T>, b: &Exact<T>) -> f64 {
    if a == b {
        return 0.0;
    }
    distance(a, b).to_f64().unwrap_or(1.0).max(f64::MIN_POSITIVE)
}

/// The law of whole texts by walking every path of a whole run: several rounds, one cache.
fn whole_runs(scene: &Scene) -> Result<Walk<Vec<Token>>, Error> {
    let mut stage = scene.stage(None)?;
    try_enumerate(|paths| Ok(stage.walk(paths)?.tokens))
}

/// The law of whole texts by walking every path of one round from every text that a round can
/// leave, and composing: the same claim where whole runs have too many paths.
fn round_by_round(scene: &Scene) -> Result<Walk<Vec<Token>>, Error> {
    let mut stage = scene.stage(None)?;
    let (mut law, mut paths, mut spent_twice) = (Exact::new(), 0, None);
    let mut open = BTreeMap::from([(Vec::new(), BigRational::one())]);
    // Texts only grow, so taking the shortest first sees each one once, with all its probability.
    while let Some(text) = open.keys().min_by_key(|text| text.len()).cloned() {
        let probability = open.remove(&text).unwrap_or_else(zero);
        let walk = try_enumerate::<_, Error>(|noise| {
            Ok(stage.run_from(&text, 1, Seed::default(), noise)?.tokens)
        })?;
        paths += walk.paths;
        spent_twice = spent_twice.or(walk.spent_twice);
        for (longer, share) in walk.law {
            let ended = longer.len() == scene.limits.max_tokens
                || longer.last().is_some_and(|last| scene.limits.eos.contains(last));
            let into = if ended { &mut law } else { &mut open };
            *into.entry(longer).or_insert_with(zero) += &probability * share;
        }
    }
    Ok(Walk { law, paths, spent_twice })
}

/// P(the first round accepts a token) against Σ min(p, q) of the first place.
fn acceptance() -> Result<(f64, u64), Error> {
    let (mut worst, mut paths) = (0.0f64, 0);
    for (_, settings, watermark) in battery::contracts() {
        let scene = Scene { settings, watermark, ..battery::plain("", 2) };
        let mut stage = scene.stage(None)?;
        let walk = try_enumerate::<_, Error>(|noise| {
            let rounds = stage.run_from(&[], 1, Seed::default(), noise)?.rounds;
            Ok(rounds[0].accepted > 0)
        })?;
        paths += walk.paths;
        let DraftSource::Model(draft) = &scene.draft else {
            continue;
        };
        let (sampler, text) = (scene.sampler()?, &scene.prompt);
        let prefix = Prefix { tokens: text, prompt_len: text.len() };
        let law = |logits: &[f32]| {
            sampler
                .law(prefix, logits)
                .map_err(|source| Error::Row { position: text.len(), source })
        };
        let shared = overlap(&law(scene.target.logits(text))?, &law(draft.logits(text))?);
        let big = |n: ruint::aliases::U256| BigInt::from(n.to::<u128>());
        let expected = BigRational::new(big(shared.numerator), big(shared.denominator));
        let found = walk.law.get(&true).cloned().unwrap_or_else(zero);
        if found != expected {
            worst = worst.max((found - expected).to_f64().unwrap_or(1.0).abs());
        }
    }
    Ok((worst, paths))
}

/// Texts with each draft and draft length against those without: how many differ, of how many.
fn equal_bits(rule: Rule, seeds: u64) -> Result<(f64, u64), Error> {
    let (mut different, mut texts) = (0, 0);
    for table_seed in 0..seeds {
        for (_, mut settings, watermark) in battery::contracts() {
            if rule != Rule::Coupled {
                settings.temperature = 0.0;
            }
            let target = full(table_seed, 16, 4.0);
            let of = |draft: DraftSource, draft_len| Scene {
                name: String::new(),
                target: target.clone(),
                draft,
                rule,
                settings: settings.clone(),
                watermark: watermark.clone(),
                prompt: vec![Token(0)],
                limits: Limits { max_tokens: 16, eos: vec![Token(3)], draft_len },
            };
            let text = |scene: &Scene| {
                let mut stage: Stage<'_> = scene.stage(None)?;
                let seed = Seed { seed: 5, sequence: table_seed };
                let run = match rule {
                    Rule::Coupled => stage.run(seed, &mut ChaCha),
                    _ => stage.run(seed, &mut Forbidden),
                };
                Ok::<_, Error>(run?.tokens)
            };
            let plain = text(&of(DraftSource::None, DraftLength::Fixed(0)))?;
            for drafts in Drafts::ALL {
                let lengths = (0..=5).map(DraftLength::Fixed).chain([AUTO]);
                for draft_len in lengths {
                    texts += 1;
                    let found = text(&of(drafts.source(&target), draft_len))?;
                    different += u64::from(found != plain);
                }
            }
        }
    }
    Ok((different as f64, texts))
}

/// Runs under a source that notes its keys: how many spent one twice, and how many keys there were.
fn fresh_keys() -> Result<(f64, u64), Error> {
    let (mut twice, mut keys) = (0u64, 0);
    for rule in [Rule::Rejection, Rule::Block] {
        for drafts in Drafts::ALL {
            let target = full(2, 16, 3.0);
            let scene = Scene {
                draft: drafts.source(&target),
                target,
                rule,
                limits: Limits {
                    max_tokens: 40,
                    eos: Vec::new(),
                    draft_len: DraftLength::Fixed(4),
                },
                ..battery::plain("", 4)
            };
            let mut stage = scene.stage(None)?;
            for sequence in 0..20 {
                let mut noise = KeyList::default();
                stage.run(Seed { seed: 3, sequence }, &mut noise)?;
                keys += noise.keys.len() as u64;
                let count = noise.keys.len();
                noise.keys.sort_unstable();
                noise.keys.dedup();
                twice += u64::from(noise.keys.len() < count);
            }
        }
    }
    Ok((twice as f64, keys))
}

/// The noise of production, with a list of the keys that were asked for.
#[derive(Debug, Default)]
struct KeyList {
    keys: Vec<RoundKey>,
}

impl Noise for KeyList {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        self.keys.push(key);
        ChaCha.coin(key, probability)
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        self.keys.push(key);
        ChaCha.pick(key, law)
    }

    /// Not noted: there, asking twice is the method.
    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        ChaCha.race(key, law)
    }
}
