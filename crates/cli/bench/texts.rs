//! How fast texts come: plain and with drafts, the same prompts in the same run.
//!
//! A text's clock starts after its first round, which also reads the prompt; what is written to a
//! terminal or a pipe is not part of it.

use std::time::Instant;

use anyhow::Result;
use draftproof_decode::{
    Limits, Sampler, Session, Settings, Token,
    draft::length::DraftLength,
    generate::round,
    noise::Seed,
    stats::{Meter, Part, Stats, predicted_speedup},
};
use draftproof_model::Model;
use serde::Serialize;

use super::passes::PassCosts;
use crate::{
    args::{DraftLenArgument, DrafterKind, VerifyRule},
    engine::{draft_len, with_engine},
    measure::{WallClock, median},
    settings::Models,
};

/// A draft length, or plain decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    Plain,
    Drafted(DraftLenArgument),
}

/// What a text took from its second round on.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    seconds: f64,
    tokens: u64,
    rounds: u64,
    drafted: u64,
    /// Of the whole text.
    stats: Stats,
    draft: f64,
    verify: f64,
    sampler: f64,
}

/// How the texts of all prompts are made.
pub(super) struct Task<'a> {
    pub(super) prompts: &'a [Vec<Token>],
    pub(super) temperature: f64,
    pub(super) ways: &'a [Way],
    pub(super) verify: VerifyRule,
    pub(super) max_tokens: usize,
    pub(super) repeats: u32,
    pub(super) seed: u64,
}

impl Task<'_> {
    /// The fastest run of each way (outer) and prompt (inner). The ways take turns on each prompt.
    /// The sampler of all texts.
    pub(super) fn sampler(&self, target: &Model) -> Result<Sampler> {
        let settings = Settings {
            temperature: self.temperature,
            eos: target.eos().to_vec(),
            ..Settings::default()
        };
        Ok(Sampler::new(settings, target.vocab())?)
    }

    pub(super) fn run(&self, models: &mut Models, done: &mut dyn FnMut()) -> Result<Vec<Vec<Run>>> {
        let sampler = self.sampler(&models.target)?;
        let mut best = vec![vec![Run::default(); self.prompts.len()]; self.ways.len()];
        for (i, prompt) in self.prompts.iter().enumerate() {
            for repeat in 0..self.repeats {
                for (way, runs) in self.ways.iter().zip(&mut best) {
                    let run = self.text(models, &sampler, *way, i, prompt)?;
                    if repeat == 0 || run.seconds < runs[i].seconds {
                        runs[i] = run;
                    }
                    done();
                }
            }
        }
        Ok(best)
    }

    fn text(
        &self,
        models: &mut Models,
        sampler: &Sampler,
        way: Way,
        index: usize,
        prompt: &[Token],
    ) -> Result<Run> {
        let (kind, length) = match way {
            Way::Plain => (DrafterKind::None, DraftLength::Fixed(0)),
            Way::Drafted(length) => (models.drafter, draft_len(length, models)),
        };
        let limits = Limits { max_tokens: self.max_tokens, eos: Vec::new(), draft_len: length };
        let seed = Seed { seed: self.seed, sequence: index as u64 };
        let mut sessions = [Session::new(prompt, seed, limits)];
        let mut meter = Meter::new(WallClock::start());
        with_engine(models, kind, self.verify, sampler, &mut meter, |engine| {
            round(engine, &mut sessions, &mut ())?;
            let first = sessions[0].stats().clone();
            let parts = [Part::Draft, Part::Verify, Part::Sampler];
            let before = parts.map(|part| engine.meter.spent(part));
            let begun = Instant::now();
            while round(engine, &mut sessions, &mut ())? {}
            let seconds = begun.elapsed().as_secs_f64();
            let spent = |i: usize| (engine.meter.spent(parts[i]) - before[i]).as_secs_f64();
            let stats = sessions[0].stats().clone();
            Ok(Run {
                seconds,
                tokens: stats.tokens - first.tokens,
                rounds: stats.rounds - first.rounds,
                drafted: stats.drafted - first.drafted,
                stats,
                draft: spent(0),
                verify: spent(1),
                sampler: spent(2),
            })
        })
    }
}

/// All texts of one way at one temperature.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Speed {
    /// `auto`, or the number of tokens drafted a round; 0 is plain decoding.
    pub(super) gamma: serde_json::Value,
    pub(super) temperature: f64,
    pub(super) plain_tokens_per_second: f64,
    pub(super) tokens_per_second: f64,
    /// Over plain decoding: the median of the prompts.
    pub(super) speedup: f64,
    /// `E/(γc + v(γ+1))` with the measured tokens and drafts per round: the median of the prompts.
    pub(super) predicted_speedup: Option<f64>,
    /// Achieved over predicted: the median of the prompts.
    pub(super) achieved_share: Option<f64>,
    /// Mean Σ min(p, q).
    pub(super) alpha: Option<f64>,
    pub(super) acceptance_by_position: Vec<f64>,
    pub(super) tokens_per_round: f64,
    pub(super) drafted_per_round: f64,
    /// Bytes of weights read in a second, as a share of what a plain reader reads: on the processor.
    pub(super) roofline_share: Option<f64>,
    pub(super) share: Share,
    /// Whether the median speed-up is above 1.
    pub(super) pays: bool,
}

/// How the time was spent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Share {
    pub(super) draft: f64,
    pub(super) verify: f64,
    pub(super) sampler: f64,
    pub(super) other: f64,
}

/// Bytes that a pass reads, and how fast the machine could.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roofline {
    pub(super) target_bytes: f64,
    pub(super) draft_bytes: f64,
    /// Of the processor; unknown elsewhere.
    pub(super) bandwidth: Option<f64>,
}

impl Speed {
    /// From the runs of one way and the plain ones of the same prompts.
    pub(super) fn new(
        way: Way,
        temperature: f64,
        runs: &[Run],
        plain: &[Run],
        costs: &PassCosts,
        roofline: Roofline,
        has_q: bool,
    ) -> Self {
        let sum = |value: fn(&Run) -> f64, runs: &[Run]| runs.iter().map(value).sum::<f64>();
        let rate = |runs: &[Run]| sum(|run| run.tokens as f64, runs) / sum(|run| run.seconds, runs);
        let speedup = |run: &Run, plain: &Run| run.rate() / plain.rate();
        let pairs = || runs.iter().zip(plain);
        let drafts = way != Way::Plain;
        let predicted = |run: &Run| run.predicted(costs).filter(|_| drafts);
        let achieved = |(run, plain)| Some(speedup(run, plain) / predicted(run)?);
        let mut stats = Stats::default();
        runs.iter().for_each(|run| stats.add(&run.stats));
        let (seconds, rounds) = (sum(|run| run.seconds, runs), sum(|run| run.rounds as f64, runs));
        let drafted = sum(|run| run.drafted as f64, runs);
        let read = rounds * roofline.target_bytes + drafted * roofline.draft_bytes;
        let median_speedup =
            median(pairs().map(|(run, plain)| speedup(run, plain)).collect()).unwrap_or(1.0);
        let [draft, verify, sampler] = [
            sum(|run| run.draft, runs) / seconds,
            sum(|run| run.verify, runs) / seconds,
            sum(|run| run.sampler, runs) / seconds,
        ];
        Self {
            gamma: match way {
                Way::Plain => 0.into(),
                Way::Drafted(DraftLenArgument::Fixed(length)) => length.into(),
                Way::Drafted(DraftLenArgument::Auto) => "auto".into(),
            },
            temperature,
            plain_tokens_per_second: rate(plain),
            tokens_per_second: rate(runs),
            speedup: median_speedup,
            predicted_speedup: median(runs.iter().filter_map(predicted).collect()),
            achieved_share: median(pairs().filter_map(achieved).collect()),
            alpha: stats.alpha().filter(|_| has_q),
            acceptance_by_position: stats
                .by_position
                .iter()
                .map(|at| at.accepted as f64 / at.reached as f64)
                .collect(),
            tokens_per_round: sum(|run| run.tokens as f64, runs) / rounds,
            drafted_per_round: drafted / rounds,
            roofline_share: roofline.bandwidth.map(|bandwidth| read / seconds / bandwidth),
            share: Share { draft, verify, sampler, other: 1.0 - draft - verify - sampler },
            pays: drafts && median_speedup > 1.0,
        }
    }
}

impl Run {
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn predicted(&self, costs: &PassCosts) -> Option<f64> {
        let rounds = self.rounds as f64;
        let drafted = self.drafted as f64 / rounds;
        let c = costs.c.or((self.drafted == 0).then_some(0.0))?;
        let v = costs.v_at(1.0 + drafted);
        Some(predicted_speedup(self.tokens as f64 / rounds, drafted, c, v))
    }
}
