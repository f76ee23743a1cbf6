//! Wrong samplers that the suite must catch.
//!
//! A test that passes says nothing unless it would have failed. Each mutant is a fault that was shipped
//! by some engine or is one slip away, plugged into the real loop at the seam where the bug would live,
//! and the *law* checks that pass the engine must reject it: the walk over all paths (`==` between
//! rationals), or the e-value of sampled texts. Equal bits and pinned values do not count.
//!
//! Mutants are compiled always and cannot be reached from `generate`: nothing outside this crate
//! names them.
//!
//! What is *not* here: changes that look wrong and do not change the law (a draft at another
//! temperature that reports it truly, a stale draft cache, a drawn token that is called certain). They
//! cost speed only; [`HARMLESS`] keeps some, and the walk must find their law unchanged.

mod blocks;
mod drafters;
mod laws;
mod noises;
mod rules;
mod targets;

use std::collections::BTreeMap;

use draftproof_decode::{
    LanguageModel, Settings, TableModel, Token,
    draft::Drafter,
    noise::{ChaCha, Noise, Seed},
    verify::Verifier,
};
use num_traits::ToPrimitive;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    battery::scene,
    e_value::{EValue, concentration, critical_chi_square_at},
    exact::paths::{distance, try_enumerate},
    goodness::{Cells, Counts, pearson},
    power::{noncentrality_for, noncentrality_per_sample, power},
    scene::{Rule, Scene},
};
use blocks::BlockFault;
pub use laws::LawFault;
use targets::CutFault;

/// The part of the engine that a mutant replaces.
#[derive(Clone, Copy)]
pub enum Plug {
    /// The rule that judges a block.
    Verifier(fn(Rule) -> Box<dyn Verifier>),
    /// Where proposals come from.
    Drafter(fn(&Scene) -> Box<dyn Drafter>),
    /// The source of random choices.
    Noise(fn(&mut dyn Noise) -> Box<dyn Noise + '_>),
    /// The target model.
    Target(fn(TableModel) -> Box<dyn LanguageModel>),
    /// The settings that reach the contract.
    Sampler(fn(&Scene) -> Settings),
    /// The target's laws on their way to the rule.
    Laws(LawFault),
    /// The end of the text: EOS ends it only as the last token of a round.
    EosInsideIgnored,
}

impl Plug {
    /// The seam's name.
    #[must_use]
    pub fn seam(&self) -> &'static str {
        match self {
            Self::Verifier(_) => "verifier",
            Self::Drafter(_) => "drafter",
            Self::Noise(_) => "noise",
            Self::Target(_) => "target model",
            Self::Sampler(_) => "sampler",
            Self::Laws(_) => "target laws",
            Self::EosInsideIgnored => "end of text",
        }
    }
}

impl std::fmt::Debug for Plug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.seam())
    }
}

/// A wrong sampler.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    /// Where such a fault was seen, or the paper whose rule it breaks.
    pub seen: &'static str,
    /// What is replaced.
    pub plug: Plug,
    /// The scene in which it is tried.
    pub scene: &'static str,
    /// Whether a walk over all paths can see it: not if the fault is noise that is spent twice.
    pub enumerable: bool,
}

const fn mutant(name: &'static str, seen: &'static str, scene: &'static str, plug: Plug) -> Mutant {
    Mutant { name, seen, plug, scene, enumerable: true }
}

/// Seen by sampled laws only.
const fn sampled(
    name: &'static str,
    seen: &'static str,
    scene: &'static str,
    plug: Plug,
) -> Mutant {
    Mutant { name, seen, plug, scene, enumerable: false }
}

macro_rules! rule {
    ($rule:ident) => {
        Plug::Verifier(|_| Box::new(rules::$rule))
    };
}

macro_rules! block {
    ($fault:ident) => {
        Plug::Verifier(|_| Box::new(BlockFault::$fault))
    };
}

macro_rules! drafter {
    ($propose:ident) => {
        Plug::Drafter(|scene| drafters::wrong(scene, stringify!($propose), drafters::$propose))
    };
}

macro_rules! target {
    ($fault:ident) => {
        Plug::Target(|table| targets::wrong(table, CutFault::$fault))
    };
}

/// Every mutant of the suite.
pub const MUTANTS: &[Mutant] = &[
    // The rule of rejection.
    mutant("F1 everything accepted", "vllm-ascend 13766", "rejection/model", rule!(ALL_ACCEPTED)),
    mutant(
        "F2 residual through a softmax",
        "transformers 28508",
        "rejection/model",
        rule!(SOFTMAX_RESIDUAL),
    ),
    mutant(
        "F3 target's law after a rejection",
        "2211.17192, alg. 1",
        "rejection/model",
        rule!(TARGET_AFTER_REJECTION),
    ),
    mutant(
        "F5 residual only without the drafted token",
        "xllm 2175",
        "rejection/model",
        rule!(ONLY_WITHOUT_DRAFTED),
    ),
    mutant("F8 same token or ratio", "rtp-llm 1295", "rejection/model", rule!(TWO_CHANCES)),
    mutant("F12 ratio upside down", "2211.17192, alg. 1", "rejection/model", rule!(UPSIDE_DOWN)),
    mutant(
        "F13 one coin for all places",
        "2211.17192, alg. 1",
        "rejection/model",
        rule!(SHARED_COIN),
    ),
    mutant(
        "residual by list index",
        "draft and target lists of kept tokens",
        "rejection/model/top-k",
        rule!(BY_INDEX),
    ),
    mutant(
        "bonus row after a rejection",
        "lattice 509",
        "rejection/model",
        rule!(BONUS_AFTER_REJECTION),
    ),
    mutant(
        "first drafted token never checked",
        "lattice 243",
        "rejection/model",
        rule!(FIRST_UNCHECKED),
    ),
    mutant(
        "last drafted token never checked",
        "vllm 29274",
        "rejection/model",
        rule!(LAST_UNCHECKED),
    ),
    mutant("acceptance with <= on 24 bits", "sglang 35771", "rejection/model", rule!(NOT_STRICT)),
    mutant("typical acceptance", "Medusa, 2401.10774", "rejection/model", rule!(TYPICAL)),
    mutant("lenient ratio", "lenience, 2211.17192 app. A.5", "rejection/model", rule!(LENIENT)),
    mutant("draft again until accepted", "2302.01318, alg. 2", "rejection/model", rule!(RETRIED)),
    mutant(
        "exact match, mismatch drawn again",
        "mistral.rs 1027",
        "rejection/model",
        rule!(MATCH_REDRAWN),
    ),
    // The rule of blocks.
    mutant(
        "block: one coin for all places",
        "2403.10444, alg. 2",
        "block/model",
        block!(SharedCoin),
    ),
    mutant("block: ordinary residual", "vllm-ascend 7807", "block/model", block!(TokenResidual)),
    mutant(
        "block: token-wise acceptance",
        "vllm-ascend 7807",
        "block/model",
        block!(TokenAcceptance),
    ),
    mutant(
        "block: first failure ends it",
        "2403.10444, alg. 2",
        "block/model",
        block!(FirstFailureEnds),
    ),
    sampled(
        "block: product of ratios over product of coins",
        "vllm-ascend, old rule",
        "block/model",
        block!(Cumulative),
    ),
    // Drafters.
    mutant(
        "F4 arg-max under a softmax q",
        "transformers 32867",
        "rejection/model",
        drafter!(ARGMAX),
    ),
    mutant(
        "F6 drawn from the top two, whole q reported",
        "transformers 47932",
        "rejection/model",
        drafter!(TOP_TWO),
    ),
    mutant(
        "F7 unlikely draft thrown away",
        "confidence filters on drawn tokens",
        "rejection/model",
        drafter!(UNLIKELY_DROPPED),
    ),
    mutant(
        "q before the transforms",
        "transformers 47932",
        "rejection/model/top-k",
        drafter!(BEFORE_TRANSFORMS),
    ),
    mutant(
        "draft drawn without the temperature",
        "dflash 74",
        "rejection/model/T=0.6",
        drafter!(WITHOUT_TEMPERATURE),
    ),
    mutant(
        "q at another precision",
        "DeepSpec 31",
        "rejection/large logits",
        drafter!(OTHER_PRECISION),
    ),
    mutant(
        "penalties of q frozen in the block",
        "mlx-lm 1175",
        "rejection/model/penalties",
        drafter!(STALE_PENALTIES),
    ),
    mutant("q from another slot", "vllm 53017", "rejection/model", drafter!(OTHER_SLOT)),
    mutant(
        "draft dropped after a look at the target",
        "2302.01318: a draft may not see p",
        "rejection/model",
        drafter!(PEEKED),
    ),
    // The target's laws.
    mutant(
        "row i checked with row i-1",
        "TensorRT-LLM 15098",
        "rejection/model",
        Plug::Laws(laws::ROW_BEFORE),
    ),
    mutant(
        "bonus from the last checked row",
        "vllm 29274",
        "rejection/model",
        Plug::Laws(laws::LAST_ROW_BEFORE),
    ),
    mutant(
        "penalties frozen in the block",
        "sglang 33643",
        "rejection/model/penalties",
        Plug::Laws(laws::FROZEN),
    ),
    mutant(
        "only the last token of a round penalised",
        "sglang 33643",
        "rejection/model/penalties",
        Plug::Laws(laws::LAST_ONLY),
    ),
    mutant(
        "settings for the bonus token only",
        "ATOM 2318, vllm 42744",
        "rejection/model/top-k",
        Plug::Laws(laws::BONUS_ONLY),
    ),
    mutant(
        "target without the temperature",
        "vllm 9834",
        "rejection/model/T=0.6",
        Plug::Laws(laws::WITHOUT_TEMPERATURE),
    ),
    mutant(
        "top-k keeps ties in the target only",
        "vllm 50979",
        "rejection/ties",
        Plug::Laws(laws::TIES_KEPT),
    ),
    mutant(
        "top-p without the crossing token",
        "llama.cpp 1953",
        "rejection/model/top-p",
        Plug::Laws(laws::WITHOUT_CROSSING),
    ),
    mutant(
        "settings dropped when a draft is on",
        "vllm 18902",
        "rejection/model/penalties",
        Plug::Sampler(|_| Settings::default()),
    ),
    // The target's cache, and the end of the text.
    mutant("stale cache entry after a rejection", "mlx-lm 1109", "rejection/model", target!(Stale)),
    mutant("cache reset instead of cut", "aprender 2014", "rejection/model", target!(Reset)),
    mutant("cache cut one entry too far", "mlxcel 994", "rejection/model", target!(TooMuch)),
    mutant(
        "EOS ignored inside a block",
        "transformers 47912",
        "rejection/model",
        Plug::EosInsideIgnored,
    ),
    // Noise.
    sampled(
        "F9 draft's uniform is the coin",
        "fault table of speculative engines",
        "rejection/pair A",
        Plug::Noise(noises::draft_as_coin),
    ),
    sampled(
        "F10 coin draws the residual",
        "fault table of speculative engines",
        "rejection/pair A",
        Plug::Noise(noises::coin_as_residual),
    ),
    sampled(
        "F11 draft's Gumbel noise draws the residual",
        "vllm 47386",
        "rejection/pair A",
        Plug::Noise(noises::draft_race_as_residual),
    ),
    sampled(
        "draft's uniform draws the residual",
        "vllm 47386",
        "rejection/pair A",
        Plug::Noise(noises::draft_as_residual),
    ),
    sampled(
        "block: noise keyed by position",
        "this project's issue on keys",
        "block/ngram/five tokens",
        Plug::Noise(noises::by_position),
    ),
    sampled(
        "noise of the first round in every round",
        "sglang 30822",
        "rejection/pair A",
        Plug::Noise(noises::by_offset),
    ),
    sampled(
        "coins without the seed",
        "vllm 6038",
        "rejection/pair A",
        Plug::Noise(noises::unseeded_coins),
    ),
    sampled(
        "coupled: one race for all positions",
        "2408.07978, sect. 4",
        "coupled/model",
        Plug::Noise(noises::one_race),
    ),
    mutant("uniforms of 24 bits", "f32 uniforms", "rejection/model", Plug::Noise(noises::coarse)),
];

/// Changes that keep the law, and the bases that mutants differ from in one thing: the suite must
/// *not* reject these.
pub const HARMLESS: &[Mutant] = &[
    mutant("rejection, written again", "base", "rejection/model", rule!(BASE)),
    mutant("block rule, written again", "base", "block/model", block!(None)),
    mutant("drafter, written again", "base", "rejection/model", drafter!(HONEST)),
    mutant(
        "target laws, built again",
        "base",
        "rejection/model/penalties",
        Plug::Laws(laws::RIGHT),
    ),
    mutant("cache, written again", "base", "rejection/model", target!(None)),
    mutant(
        "draft at another temperature that says so",
        "q is the drafter's affair",
        "rejection/model",
        drafter!(HOTTER_AND_SAID_SO),
    ),
    mutant("drawn token called certain", "vllm 40149", "rejection/model", drafter!(CALLED_CERTAIN)),
    sampled(
        "inverse distribution function, fresh noise",
        "base",
        "rejection/pair A",
        Plug::Noise(noises::fresh),
    ),
    sampled("races, fresh noise", "base", "rejection/pair A", Plug::Noise(noises::fresh_races)),
];

/// How hard mutants are tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The level of the e-value.
    pub alpha: f64,
    /// The most texts sampled.
    pub samples: u64,
    /// Texts of the pilot from which power is predicted where the walk gives no law.
    pub pilot: u64,
    /// The seed.
    pub seed: u64,
}

impl Default for Trial {
    fn default() -> Self {
        Self { alpha: 1e-9, samples: 200_000, pilot: 20_000, seed: 1 }
    }
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MutantResult {
    /// Its name.
    pub name: String,
    /// The law check that caught it; none if it survived.
    pub caught_by: Option<String>,
    /// The number of sampled texts after which the e-value passed 1/α; none if sampling did not catch
    /// it, or was not tried because its power is too small.
    pub samples: Option<u64>,
    /// The predicted probability that the e-value catches it within the budget of samples.
    pub power: Option<f64>,
    /// The number of texts with which that probability is 0.99.
    pub needed_samples: Option<u64>,
    /// The exact total variation distance to the target's law of whole texts, where it was walked.
    pub tv: Option<f64>,
    /// The number of paths that were walked.
    pub paths: Option<u64>,
    /// The part that was replaced.
    pub seam: String,
    /// Where such a fault was seen.
    pub seen: String,
    /// The scene.
    pub scene: String,
}

impl MutantResult {
    /// Whether a law check caught it.
    #[must_use]
    pub fn caught(&self) -> bool {
        self.caught_by.is_some()
    }
}

/// Runs the law checks on a mutant.
///
/// # Errors
/// If the engine fails.
pub fn try_mutant(mutant: &Mutant, trial: &Trial) -> Result<MutantResult, Error> {
    let scene = scene(mutant.scene);
    let target = scene.target_law()?;
    let float = |law: &crate::exact::paths::Exact<Vec<Token>>| -> BTreeMap<Vec<Token>, f64> {
        law.iter().map(|(text, p)| (text.clone(), p.to_f64().unwrap_or(0.0))).collect()
    };
    let expected = float(&target);
    let cells = Cells::new(&expected, (50.0 / trial.samples as f64).max(1.0 / 128.0));
    let p = cells.probabilities().to_vec();
    let df = p.len() - 1;
    // Suits rejections between a thousand and a hundred thousand texts.
    let mixture = concentration(10_000, df, trial.alpha);
    let critical = critical_chi_square_at(trial.samples as f64 / mixture, df, trial.alpha);

    let mut stage = scene.stage(Some(mutant.plug))?;
    let (mut tv, mut paths, mut per_sample) = (None, None, None);
    if mutant.enumerable {
        let walk =
            try_enumerate(|noise| Ok::<_, Error>(stage.run(Seed::default(), noise)?.tokens))?;
        let found = distance(&walk.law, &target).to_f64().unwrap_or(0.0);
        // Exact equality decides; the distance is for people.
        tv = Some(if walk.law == target { 0.0 } else { found.max(f64::MIN_POSITIVE) });
        paths = Some(walk.paths);
        let mut alternative = vec![0.0; p.len()];
        let mut impossible = 0.0;
        for (text, probability) in float(&walk.law) {
            match cells.of(&text) {
                Some(cell) => alternative[cell] += probability,
                None => impossible += probability,
            }
        }
        per_sample = Some((noncentrality_per_sample(&p, &alternative), impossible));
    }
    if per_sample.is_none() {
        let counts = sample(&mut stage, &cells, trial.seed ^ 0x7069_6c6f_7400, trial.pilot)?;
        let n = trial.pilot as f64;
        let excess = (pearson(&p, &counts.cells).value - df as f64) / n;
        per_sample = Some((excess.max(0.0), counts.impossible as f64 / n));
    }
    let (lambda, impossible) = per_sample.unwrap_or_default();
    let n = trial.samples as f64;
    let predicted = power(critical, df, lambda * n).max(1.0 - (1.0 - impossible).powf(n));
    let needed = needed_samples(df, trial.alpha, lambda, impossible);

    let mut samples = None;
    if predicted > 0.5 {
        samples = caught_at(&mut stage, &cells, mixture, trial)?;
    }
    let walked = tv.is_some_and(|tv| tv > 0.0);
    let caught_by = match (walked, samples.is_some()) {
        (true, true) => Some("enumeration, sampled e-value"),
        (true, false) => Some("enumeration"),
        (false, true) => Some("sampled e-value"),
        (false, false) => None,
    };
    Ok(MutantResult {
        name: mutant.name.to_owned(),
        caught_by: caught_by.map(str::to_owned),
        samples,
        power: Some(predicted),
        needed_samples: needed,
        tv,
        paths,
        seam: mutant.plug.seam().to_owned(),
        seen: mutant.seen.to_owned(),
        scene: scene.name,
    })
}

fn needed_samples(df: usize, alpha: f64, lambda: f64, impossible: f64) -> Option<u64> {
    // Below 1e-20 it is the rounding of a law that is right.
    let by_law = (lambda > 1e-20).then(|| {
        let critical = crate::e_value::critical_chi_square(df, alpha);
        noncentrality_for(critical, df, 0.99) / lambda
    });
    let by_impossible = (impossible > 0.0).then(|| (0.01f64.ln() / (-impossible).ln_1p()).max(1.0));
    let needed = match (by_law, by_impossible) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    needed.map(|n| n.ceil() as u64)
}

fn sample(
    stage: &mut crate::scene::Stage<'_>,
    cells: &Cells<Vec<Token>>,
    seed: u64,
    n: u64,
) -> Result<Counts, Error> {
    let mut counts = Counts::new(cells.probabilities().len());
    for sequence in 0..n {
        let text = stage.run(Seed { seed, sequence }, &mut ChaCha)?.tokens;
        counts.add(cells.of(&text));
    }
    Ok(counts)
}

/// The number of texts after which the e-value rejects.
fn caught_at(
    stage: &mut crate::scene::Stage<'_>,
    cells: &Cells<Vec<Token>>,
    mixture: f64,
    trial: &Trial,
) -> Result<Option<u64>, Error> {
    let mut e = EValue::new(cells.probabilities().to_vec(), mixture);
    for sequence in 0..trial.samples {
        let text = stage.run(Seed { seed: trial.seed, sequence }, &mut ChaCha)?.tokens;
        let Some(cell) = cells.of(&text) else {
            return Ok(Some(sequence + 1));
        };
        e.observe(cell);
        if e.rejects(trial.alpha) {
            return Ok(Some(sequence + 1));
        }
    }
    Ok(None)
}
