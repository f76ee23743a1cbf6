//! [`Scene`]: a small world in which everything is known: tables for models, a contract, a rule.
//!
//! The checks of the levels `exact` and `toy` run the *real* loop on scenes, and the mutants run
//! the same loop on the same scenes with one part replaced.

use std::collections::BTreeMap;

use draftproof_decode::{
    Engine, LanguageModel, Limits, Listener, Sampler, Session, Settings, TableModel, Token,
    draft::{Drafter, NoDrafter, model::ModelDrafter, ngram::NgramDrafter},
    error::ListenerError,
    generate::round,
    noise::{Noise, Seed},
    sampler::Prefix,
    session::{Emitted, JudgedRound},
    stats::{Meter, NoClock},
    verify::{BlockRule, Coupled, FastWatermark, Rejection, Verifier},
    watermark::Watermark,
};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::One;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    exact::paths::{Exact, Paths, zero},
    marks::{FreshKeys, Mark, Source},
    mutants::Plug,
};

/// The rule of verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Token by token.
    Rejection,
    /// The block as a whole.
    Block,
    /// With the positions' own noise.
    Coupled,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rejection, Self::Block, Self::Coupled];

    /// The engine's implementation.
    #[must_use]
    pub fn verifier(self) -> &'static dyn Verifier {
        match self {
            Self::Rejection => &Rejection,
            Self::Block => &BlockRule,
            Self::Coupled => &Coupled,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.verifier().name()
    }

    /// The drafter that goes with the rule for a draft model.
    pub fn model_drafter(self, draft: &mut dyn LanguageModel) -> ModelDrafter<'_> {
        match self {
            Self::Rejection | Self::Block => ModelDrafter::new(draft),
            Self::Coupled => ModelDrafter::racing(draft),
        }
    }
}

/// What drafts in a scene.
#[derive(Clone, Debug)]
pub enum DraftSource {
    /// Nothing.
    None,
    /// Prompt lookup.
    Ngram,
    /// A table.
    Model(TableModel),
}

/// A small world: see the [module docs](self).
#[derive(Clone, Debug)]
pub struct Scene {
    /// Its name in reports.
    pub name: String,
    /// The target.
    pub target: TableModel,
    /// What drafts.
    pub draft: DraftSource,
    /// The rule.
    pub rule: Rule,
    /// The contract.
    pub settings: Settings,
    /// The watermark on it.
    pub watermark: Option<Mark>,
    /// What is continued.
    pub prompt: Vec<Token>,
    /// Where it ends, and how far ahead it drafts.
    pub limits: Limits,
}

/// One continuation as it happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Continuation {
    /// The generated tokens.
    pub tokens: Vec<Token>,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

/// One round of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Round {
    /// Tokens drafted.
    pub drafted: usize,
    /// Tokens accepted by the verdict.
    pub accepted: usize,
    /// Tokens committed.
    pub kept: usize,
}

impl Continuation {
    /// For each generated token its place in the block of its round.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        self.rounds.iter().flat_map(|round| 0..round.kept)
    }

    /// How many tokens the verdicts accepted, round by round.
    #[must_use]
    pub fn accepted(&self) -> Vec<usize> {
        self.rounds.iter().map(|round| round.accepted).collect()
    }
}

/// Notes the rounds of a continuation.
#[derive(Debug, Default)]
struct Recorder(Vec<Round>);

impl Listener for Recorder {
    fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
        Ok(false)
    }

    fn round(&mut self, judged: &JudgedRound<'_>) -> Result<(), ListenerError> {
        let drafted = judged.draft.proposals.len();
        self.0.push(Round { drafted, accepted: judged.verdict.accepted, kept: judged.kept });
        Ok(())
    }
}

impl Scene {
    /// The contract over the scene's vocabulary.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn sampler(&self) -> Result<Sampler, Error> {
        self.contract(self.settings.clone(), self.watermark.as_ref().map(Mark::watermark))
    }

    fn contract(&self, settings: Settings, watermark: Option<Watermark>) -> Result<Sampler, Error> {
        let sampler = Sampler::new(settings, self.target.vocab())?;
        Ok(match watermark {
            Some(watermark) => sampler.watermarked(watermark),
            None => sampler,
        })
    }

    /// The exact law of the texts that plain sampling of the target gives: by its definition, one
    /// law after the other, without the engine.
    ///
    /// # Errors
    /// If a row has no law.
    pub fn target_law(&self) -> Result<Exact<Vec<Token>>, Error> {
        let sampler = self.sampler()?;
        let mut law = Exact::new();
        let mut open = vec![(self.prompt.clone(), BigRational::one())];
        while let Some((text, probability)) = open.pop() {
            let generated = &text[self.prompt.len()..];
            let ended = generated.last().is_some_and(|last| self.limits.eos.contains(last));
            if ended || generated.len() == self.limits.max_tokens {
                *law.entry(generated.to_vec()).or_insert_with(zero) += probability;
                continue;
            }
            let prefix = Prefix { tokens: &text, prompt_len: self.prompt.len() };
            let p = sampler
                .law(prefix, self.target.logits(&text))
                .map_err(|source| Error::Row { position: text.len(), source })?;
            for (token, weight) in p.support() {
                let share = BigRational::new(weight.into(), p.total().into());
                open.push(([&text[..], &[token]].concat(), &probability * share));
            }
        }
        Ok(law)
    }

    /// How far the law of texts may be from the target's, in total variation: 0, except under a
    /// watermark of mode `fast`, where each residual is brought to a total of 2^61.
    #[must_use]
    pub fn tolerance(&self) -> BigRational {
        match self.watermark {
            None | Some(Mark::OneKey(_)) => zero(),
            Some(Mark::AnyKey(_)) => {
                let units = self.limits.max_tokens * self.target.vocab();
                BigRational::new(units.into(), BigInt::from(1u64 << 61))
            }
        }
    }

    /// The law of the next token after `generated`, in `f64`.
    ///
    /// # Errors
    /// If the row has no law.
    pub fn next_law(&self, generated: &[Token]) -> Result<BTreeMap<Token, f64>, Error> {
        let text = [&self.prompt[..], generated].concat();
        let prefix = Prefix { tokens: &text, prompt_len: self.prompt.len() };
        let p = self
            .sampler()?
            .law(prefix, self.target.logits(&text))
            .map_err(|source| Error::Row { position: text.len(), source })?;
        Ok(p.support().map(|(token, _)| (token, p.probability(token))).collect())
    }

    fn fresh_keys(&self) -> Option<&FreshKeys> {
        match &self.watermark {
            Some(Mark::AnyKey(keys)) => Some(keys),
            Some(Mark::OneKey(_)) | None => None,
        }
    }

    /// Sets the scene up for runs; with a `plug`, one part is the mutant's.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn stage(&self, plug: Option<Plug>) -> Result<Stage<'_>, Error> {
        let right = self.watermark.as_ref().map(Mark::watermark);
        let sampler = match plug {
            Some(Plug::Sampler(wrong)) => self.contract(wrong(self), right)?,
            Some(Plug::Watermark(wrong)) => {
                let mark = self.watermark.as_ref().expect("the scene has a watermark");
                self.contract(self.settings.clone(), Some(wrong(mark)))?
            }
            _ => self.sampler()?,
        };
        let target = match plug {
            Some(Plug::Target(wrong)) => wrong(self.target.clone()),
            _ => Box::new(self.target.clone()),
        };
        Ok(Stage { scene: self, plug, sampler, target, draft: self.draft.clone() })
    }
}

/// A scene that is set up, to be run many times.
#[derive(Debug)]
pub struct Stage<'s> {
    scene: &'s Scene,
    plug: Option<Plug>,
    sampler: Sampler,
    target: Box<dyn LanguageModel>,
    draft: DraftSource,
}

impl Stage<'_> {
    /// One continuation through the real loop, with the noise of `seed` from `noise`.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run(&mut self, seed: Seed, noise: &mut dyn Noise) -> Result<Continuation, Error> {
        if let Some(keys) = self.scene.fresh_keys() {
            keys.begin(Source::Seed(seed));
        }
        self.run_from(&[], usize::MAX, seed, noise)
    }

    /// One continuation on a walk over all paths; a scene whose keys are drawn anew for each text
    /// branches over their bits too.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn walk(&mut self, paths: &mut Paths) -> Result<Continuation, Error> {
        if let Some(keys) = self.scene.fresh_keys() {
            keys.begin(Source::Paths(paths.clone()));
        }
        self.run_from(&[], usize::MAX, Seed::default(), paths)
    }

    /// As [`run`](Self::run), from `generated` on and for at most `rounds` rounds.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run_from(
        &mut self,
        generated: &[Token],
        rounds: usize,
        seed: Seed,
        noise: &mut dyn Noise,
    ) -> Result<Continuation, Error> {
        let Self { scene, plug, sampler, target, draft } = self;
        let mut plain: Box<dyn Drafter + '_> = match draft {
            DraftSource::None => Box::new(NoDrafter),
            DraftSource::Ngram => Box::new(NgramDrafter),
            DraftSource::Model(model) => Box::new(scene.rule.model_drafter(model)),
        };
        let mut wrong_drafter;
        let mut drafter: &mut dyn Drafter = plain.as_mut();
        if let Some(Plug::Drafter(wrong)) = *plug {
            wrong_drafter = wrong(scene);
            drafter = wrong_drafter.as_mut();
        }
        let mut wrong_verifier: Option<Box<dyn Verifier + '_>> = None;
        if let Some(Plug::Verifier(wrong)) = *plug {
            wrong_verifier = Some(wrong(scene.rule));
        }
        let mut noting: Box<dyn Drafter + '_>;
        let drafter: &mut dyn Drafter = match *plug {
            Some(Plug::Laws(fault)) => {
                let (watched, misled) = fault.plug(drafter, scene);
                wrong_verifier = Some(misled);
                noting = watched;
                noting.as_mut()
            }
            _ => drafter,
        };
        let mut wrong_noise: Box<dyn Noise + '_>;
        let noise: &mut dyn Noise = match *plug {
            Some(Plug::Noise(wrong)) => {
                wrong_noise = wrong(noise);
                wrong_noise.as_mut()
            }
            _ => noise,
        };
        let ignore_eos = matches!(plug, Some(Plug::EosInsideIgnored));
        let fast = sampler.fast_watermark().map(|watermark| FastWatermark { watermark });
        let right = match &fast {
            Some(fast) => fast,
            None => scene.rule.verifier(),
        };
        let verifier = wrong_verifier.as_deref().unwrap_or(right);
        let mut meter = Meter::new(NoClock);
        let mut engine = Engine {
            target: target.as_mut(),
            drafter,
            verifier,
            sampler,
            noise,
            meter: &mut meter,
        };
        let mut limits = scene.limits.clone();
        if ignore_eos {
            limits.eos.clear();
        }
        let mut sessions = [Session::resume(&scene.prompt, generated, seed, limits)];
        let mut recorder = Recorder::default();
        for _ in 0..rounds {
            if !round(&mut engine, &mut sessions, &mut recorder)? {
                break;
            }
            let last = sessions[0].generated().last();
            if ignore_eos && last.is_some_and(|last| scene.limits.eos.contains(last)) {
                break;
            }
        }
        let [mut session] = sessions;
        session.close(engine.target);
        engine.drafter.close(draftproof_decode::draft::SessionId(0));
        Ok(Continuation { tokens: session.generated().to_vec(), rounds: recorder.0 })
    }
}
