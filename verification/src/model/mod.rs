//! Level `model`: the real pair, on a grid of settings, rules, drafts and draft lengths.
//!
//! For each cell of the grid the *exact* joint law of the next L tokens is walked through the
//! target's prefix tree ([`TextLaw`]), then texts are drawn by the engine's own loop, and compared.
//! Models are seen only through [`LanguageModel`].

mod cached;
mod tree;

use std::collections::BTreeSet;

use draftproof_decode::{
    Engine, LanguageModel, Limits, Listener, Sampler, Session, Settings, TableModel, Token,
    dist::overlap_estimate,
    draft::{
        Drafter, NoDrafter,
        length::{CostModel, DraftLength},
        model::ModelDrafter,
        ngram::NgramDrafter,
    },
    error::ListenerError,
    generate,
    generate::COMPANY,
    lm::Pass,
    noise::{Remembered, Seed},
    sampler::Prefix,
    session::{Emitted, JudgedRound},
    stats::{Meter, NoClock},
};

use crate::{
    Error,
    goodness::{Counts, Fit, LEAST_EXPECTED},
    plan::{DraftKind, GridCell, Level},
    progress::Progress,
    report::{Check, Method, PlacePoint},
    scene::Rule,
    toy::TUNED_FOR,
};

pub use cached::CachedModel;
pub use tree::{FreshRows, Place, Question, TextLaw};

/// What the level `model` is run on.
#[derive(Debug)]
pub struct Pair<'a> {
    /// Its name in the report.
    pub name: String,
    /// The model whose law is claimed.
    pub target: &'a mut dyn LanguageModel,
    /// The draft model, if there is one; without it prompt lookup drafts in all cells.
    pub draft: Option<&'a mut dyn LanguageModel>,
    /// What is continued; at least one token.
    pub prompt: Vec<Token>,
    /// Tokens that end a text.
    pub eos: Vec<Token>,
    /// Text of people, for the level `watermark`; without any the target writes it.
    pub human: Vec<Token>,
    /// The costs that `auto` steers by.
    pub costs: CostModel,
    /// Whether the target promises rows that depend on their prefix only, bit for bit. Only then
    /// are greedy and coupled texts required to be equal; the law is claimed either way.
    pub row_invariant: bool,
    /// Bytes for remembered rows, of each of the two models.
    pub cache_bytes: usize,
}

/// A value for [`Pair::cache_bytes`]: 32 thousand rows of a vocabulary of 4096.
pub const CACHE_BYTES: usize = 1 << 29;

/// The continuations of one setting.
struct Setup<'a> {
    sampler: &'a Sampler,
    prompt: &'a [Token],
    limits: Limits,
    rule: Rule,
    draft: Option<DraftKind>,
}

/// Acceptance by place, as it is counted and as the laws say.
#[derive(Debug, Default)]
pub(crate) struct Places {
    reached: Vec<u64>,
    accepted: Vec<u64>,
    overlap: Vec<f64>,
}

impl Places {
    fn add(&mut self, place: usize, accepted: bool, overlap: f64) {
        if self.reached.len() <= place {
            self.reached.resize(place + 1, 0);
            self.accepted.resize(place + 1, 0);
            self.overlap.resize(place + 1, 0.0);
        }
        self.reached[place] += 1;
        self.accepted[place] += u64::from(accepted);
        self.overlap[place] += overlap;
    }

    /// `ln` of an e-value against "each token was accepted with probability Σ min(p, q)".
    ///
    /// The differences accepted − Σ min(p, q) are those of a martingale and lie in an interval of
    /// length 1, so `E exp(λS − λ²n/8) ≤ 1` for each place (Hoeffding 1963). Mixed over λ ~ N(0,
    /// 1/ρ): `√(ρ/(ρ+v)) · exp(S²/(2(ρ+v)))` with `v = n/4` (Robbins 1970). The mean over the
    /// places is an e-value again.
    fn ln_e(&self, expected: f64) -> f64 {
        let rho = (expected / 4.0 / 25.0).max(1.0);
        let each: Vec<f64> = (0..self.reached.len())
            .map(|place| {
                let v = self.reached[place] as f64 / 4.0;
                let s = self.accepted[place] as f64 - self.overlap[place];
                0.5 * (rho / (rho + v)).ln() + s * s / (2.0 * (rho + v))
            })
            .collect();
        let largest = each.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if each.is_empty() {
            return 0.0;
        }
        let sum: f64 = each.iter().map(|ln| (ln - largest).exp()).sum();
        largest + (sum / each.len() as f64).ln()
    }

    /// The check that they are accepted as the laws say; of `expected` texts.
    pub(crate) fn check(&self, name: String, level: Level, expected: u64) -> Check {
        let judged = self.reached.iter().sum();
        let ln_e = self.ln_e(expected as f64);
        let mut check = Check::martingale(name, level, ln_e, judged);
        check.note = "accepted against Σ min(p, q), place by place".to_owned();
        check.places = self.points();
        check
    }

    fn points(&self) -> Vec<PlacePoint> {
        (0..self.reached.len())
            .map(|place| {
                let n = self.reached[place].max(1) as f64;
                PlacePoint {
                    reached: self.reached[place],
                    accepted: self.accepted[place] as f64 / n,
                    overlap: self.overlap[place] / n,
                }
            })
            .collect()
    }
}

impl Listener for Places {
    fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
        Ok(false)
    }

    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        // The verdict on every judged place counts, kept or not: what is kept depends on the text.
        let verdict = round.verdict;
        let judged = round.draft.proposals.iter().zip(&verdict.laws).take(verdict.accepted + 1);
        for (place, (proposal, p)) in judged.enumerate() {
            self.add(place, place < verdict.accepted, overlap_estimate(p, proposal.q()));
        }
        Ok(())
    }
}

/// Stands where a draft model would, and is never asked.
fn nothing() -> TableModel {
    TableModel::new(1, 1, 1, |_| vec![0.0])
}

fn or<'d>(
    draft: &'d mut Option<&mut dyn LanguageModel>,
    nothing: &'d mut TableModel,
) -> &'d mut dyn LanguageModel {
    match draft {
        Some(draft) => &mut **draft,
        None => nothing,
    }
}

/// Continues the prompt with the noise of each of `sequences`, company by company.
fn continue_all(
    setup: &Setup<'_>,
    target: &mut dyn LanguageModel,
    draft: &mut dyn LanguageModel,
    seed: u64,
    sequences: std::ops::Range<u64>,
    listener: &mut dyn Listener,
    each: &mut dyn FnMut(u64, &[Token]),
) -> Result<(), Error> {
    let mut meter = Meter::new(NoClock);
    let mut drafter: Box<dyn Drafter + '_> = match (setup.draft, setup.rule) {
        (None, _) => Box::new(NoDrafter),
        (Some(DraftKind::Ngram), _) => Box::new(NgramDrafter),
        (Some(DraftKind::Model), Rule::Coupled) => Box::new(ModelDrafter::racing(draft)),
        (Some(DraftKind::Model), _) => Box::new(ModelDrafter::new(draft)),
    };
    let mut engine = Engine {
        target,
        drafter: drafter.as_mut(),
        verifier: setup.rule.verifier(),
        sampler: setup.sampler,
        // The program's own.
        noise: &mut Remembered::default(),
        meter: &mut meter,
    };
    let mut next = sequences.start;
    while next < sequences.end {
        let company = next..(next + COMPANY as u64).min(sequences.end);
        let mut sessions: Vec<Session> = company
            .clone()
            .map(|sequence| {
                Session::new(setup.prompt, Seed { seed, sequence }, setup.limits.clone())
            })
            .collect();
        generate(&mut engine, &mut sessions, listener)?;
        for (sequence, session) in company.clone().zip(&sessions) {
            each(sequence, session.generated());
        }
        next = company.end;
    }
    Ok(())
}

impl Pair<'_> {
    /// Checks one cell of the grid: the joint law, and for the rejection rule acceptance by place.
    ///
    /// `rows` keeps the target's reference rows, which do not depend on the settings.
    ///
    /// # Errors
    /// If a model or the engine fails, or a row has no law under the settings.
    pub fn check_cell(
        &mut self,
        cell: &GridCell,
        seed: u64,
        rows: &mut FreshRows,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Check>, Error> {
        if cell.draft == DraftKind::Model && self.draft.is_none() {
            return Err(Error::Plan(format!("{} needs a draft model", cell.name())));
        }
        let sampler = Sampler::new(cell.settings(), self.target.vocab())?;
        let question = Question {
            sampler: &sampler,
            prompt: &self.prompt,
            eos: &self.eos,
            length: cell.length.tokens(),
        };
        let least = (LEAST_EXPECTED / cell.samples as f64).max(1.0 / cell.cells as f64);
        let law = TextLaw::walk(&question, rows, self.target, least)?;
        let setup = Setup {
            sampler: &sampler,
            prompt: &self.prompt,
            limits: Limits {
                max_tokens: question.length,
                eos: self.eos.clone(),
                draft_len: cell.length.draft_length(self.costs),
            },
            rule: cell.rule,
            draft: Some(cell.draft),
        };
        let counts = Counts::new(law.cells().probabilities().len());
        let mut tally = Tally { law: &law, counts, behind: BTreeSet::new() };
        let mut places = Places::default();
        let mut nothing = nothing();
        let (target, draft) = (&mut *self.target, or(&mut self.draft, &mut nothing));
        if cell.cached {
            let target = &mut CachedModel::new(target, self.cache_bytes);
            let draft = &mut CachedModel::new(draft, self.cache_bytes);
            tally.sample(&setup, target, draft, (seed, cell.samples), &mut places, progress)?;
            tally.look_behind(&question, target)?;
        } else {
            tally.sample(&setup, target, draft, (seed, cell.samples), &mut places, progress)?;
            tally.look_behind(&question, target)?;
        }
        let p = law.cells().probabilities();
        let fit = Fit::new(p, &tally.counts, TUNED_FOR);
        let name = |what: &str| format!("model/{}/{what}", cell.name());
        let mut joint = Check::fit(name("joint law"), Level::Model, p, &tally.counts.cells, &fit);
        joint.pooled = Some(law.pooled());
        let mut checks = vec![joint];
        if cell.has_acceptance() {
            checks.push(places.check(name("acceptance by place"), Level::Model, cell.samples));
        }
        Ok(checks)
    }

    /// Greedy texts, and coupled texts, with each draft and draft length against those without; no
    /// cache, and sequences share passes.
    ///
    /// # Errors
    /// If a model or the engine fails.
    pub fn check_equality(&mut self, seed: u64, texts: u64) -> Result<Vec<Check>, Error> {
        let mut checks = Vec::new();
        for (what, rule, temperature) in
            [("greedy", Rule::Rejection, 0.0), ("coupled", Rule::Coupled, 1.0)]
        {
            let settings = Settings { temperature, ..Settings::default() };
            let sampler = Sampler::new(settings, self.target.vocab())?;
            let texts = if temperature == 0.0 { 1 } else { texts };
            let room = self.target.context().saturating_sub(self.prompt.len());
            let has_draft = self.draft.is_some();
            let mut run = |draft, draft_len| {
                let setup = Setup {
                    sampler: &sampler,
                    prompt: &self.prompt,
                    limits: Limits { max_tokens: room.min(32), eos: self.eos.clone(), draft_len },
                    rule,
                    draft,
                };
                let mut found = Vec::new();
                let mut each = |_, text: &[Token]| found.push(text.to_vec());
                let mut nothing = nothing();
                let (target, draft) = (&mut *self.target, or(&mut self.draft, &mut nothing));
                continue_all(&setup, target, draft, seed, 0..texts, &mut (), &mut each)?;
                Ok::<_, Error>(found)
            };
            let plain = run(None, DraftLength::Fixed(0))?;
            let (mut different, mut compared) = (0, 0);
            let drafts = [DraftKind::Ngram, DraftKind::Model];
            for draft in drafts.into_iter().take(1 + usize::from(has_draft)) {
                let lengths = [1, 4].map(DraftLength::Fixed);
                for length in lengths.into_iter().chain([DraftLength::Auto(self.costs)]) {
                    let found = run(Some(draft), length)?;
                    compared += texts;
                    different += plain.iter().zip(&found).filter(|(a, b)| a != b).count();
                }
            }
            let name = format!("model/{what}/equal texts");
            let note = "texts that differ from those without a draft".to_owned();
            let (level, method) = (Level::Model, Method::Equality);
            let mut check = Check::exact(name, level, method, different as f64, compared, note);
            if !self.row_invariant {
                check.passed = true;
                check.note = format!(
                    "{different} texts differ; equality is not claimed: rows depend on their company"
                );
            }
            checks.push(check);
        }
        Ok(checks)
    }
}

/// Counts of sampled texts on the cells of their exact law.
struct Tally<'a> {
    law: &'a TextLaw,
    counts: Counts,
    /// Texts that leave the expanded tree, and how many of their tokens were checked there.
    behind: BTreeSet<(Vec<Token>, usize)>,
}

impl Tally<'_> {
    fn add(&mut self, text: &[Token]) {
        match self.law.place(text) {
            Place::Cell(cell) => self.counts.add(Some(cell)),
            Place::Beyond { cell, checked } => {
                self.counts.add(Some(cell));
                self.behind.insert((text.to_vec(), checked));
            }
            Place::Impossible => self.counts.add(None),
        }
    }

    /// Draws texts, with the noise of a seed, and counts them.
    fn sample(
        &mut self,
        setup: &Setup<'_>,
        target: &mut dyn LanguageModel,
        draft: &mut dyn LanguageModel,
        (seed, samples): (u64, u64),
        places: &mut Places,
        progress: &mut dyn Progress,
    ) -> Result<(), Error> {
        let mut each = |sequence: u64, text: &[Token]| {
            self.add(text);
            if sequence.is_multiple_of(1024) {
                progress.advance(sequence, samples);
            }
        };
        continue_all(setup, target, draft, seed, 0..samples, places, &mut each)
    }

    /// Counts as impossible the texts with a token of probability 0 behind the expanded tree. Their
    /// rows come from `target`, the one that served the samples.
    fn look_behind(
        &mut self,
        question: &Question<'_>,
        target: &mut dyn LanguageModel,
    ) -> Result<(), Error> {
        let mut impossible = 0;
        let mut seen = BTreeSet::new();
        for (text, checked) in &self.behind {
            let whole = [question.prompt, text].concat();
            let sequence = target.open()?;
            let tokens = &whole[..whole.len() - 1];
            let rows = target.forward(&[Pass { sequence, tokens, rows: text.len() }]);
            target.close(sequence);
            let rows = rows?.swap_remove(0);
            for i in *checked..text.len() {
                if !seen.insert(text[..=i].to_vec()) {
                    continue;
                }
                let tokens = &whole[..question.prompt.len() + i];
                let prefix = Prefix { tokens, prompt_len: question.prompt.len() };
                let law = question.sampler.law(prefix, rows.row(i));
                let law = law.map_err(|source| Error::Row { position: tokens.len(), source })?;
                if law.weight(text[i]) == 0 || question.ends(&text[..i]) {
                    impossible += 1;
                    break;
                }
            }
            impossible += u64::from(!question.ends(text));
        }
        self.counts.impossible += impossible;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use crate::goodness::Uniform;

    /// Coins of known chances, all accepted `bias` more often than they should be.
    fn ln_e(n: u64, bias: f64) -> f64 {
        let (mut places, mut uniform) = (Places::default(), Uniform::new(4));
        for i in 0..n {
            let overlap = 0.3 + 0.4 * uniform.next();
            places.add((i % 3) as usize, uniform.next() < overlap + bias, overlap);
        }
        places.ln_e(n as f64)
    }

    /// Right coins pass; at 20 000 a bias of 0.05 is far beyond 1e-9, where ln e = 20.7.
    #[test]
    fn acceptance_is_judged() {
        assert!(ln_e(20_000, 0.0) < 3.0, "{}", ln_e(20_000, 0.0));
        assert!(ln_e(20_000, 0.05) > 25.0, "{}", ln_e(20_000, 0.05));
        assert!(ln_e(20_000, -0.05) > 25.0);
        assert_eq!(Places::default().ln_e(100.0), 0.0);
    }
}
