//! Level `toy`: sampled laws on table models, through the real loop with the noise of production.
//!
//! What enumeration cannot see is the noise itself: it takes every key for fresh. Here texts are
//! drawn with ChaCha20, and checked are
//! - the **joint** law of `gamma + 2` tokens or more, over several rounds, with rows that depend on
//!   what came before (a wrong block residual leaves every first token right);
//! - the law of the number of accepted tokens, round by round;
//! - for each place of the block, the law of (what came before, the token there) at the first time
//!   the text reaches that place: a fault at one place cannot hide in the others.
//!
//! The target's law comes from its definition; the laws of acceptances and places come from a walk
//! over all paths, whose texts the level `exact` compares with the target's law.

use std::collections::BTreeMap;

use draftproof_decode::{
    Token,
    draft::length::DraftLength,
    noise::{ChaCha, Seed},
};
use num_traits::ToPrimitive;

use crate::{
    Error,
    exact::paths::{Exact, try_enumerate},
    goodness::{Cells, Counts, Fit, LEAST_EXPECTED},
    mutants::Plug,
    plan::Level,
    progress::Progress,
    report::{Check, FALSE_ALARM},
    scene::{Continuation, Rule, Scene},
};

/// The most cells of a check: more would see less.
const MOST_CELLS: f64 = 128.0;

/// The level for which the e-values' mixtures are chosen: that of one test among a few hundred.
pub(crate) const TUNED_FOR: f64 = FALSE_ALARM / 256.0;

/// What the text was when it first reached a place of a block, and the token there; none if it
/// never did.
type Reached = Option<(Vec<Token>, Token)>;

/// The number of statistical checks of a scene.
#[must_use]
pub fn tests(scene: &Scene) -> usize {
    if scene.rule == Rule::Coupled { 1 } else { 2 + places(scene) }
}

fn places(scene: &Scene) -> usize {
    match scene.limits.draft_len {
        DraftLength::Fixed(gamma) => gamma + 1,
        DraftLength::Auto(_) => 3,
    }
}

fn floats<T: Ord + Clone>(law: &Exact<T>) -> BTreeMap<T, f64> {
    law.iter().map(|(key, p)| (key.clone(), p.to_f64().unwrap_or(0.0))).collect()
}

/// One statistic of a continuation, with its law on cells and its counts.
struct Watch<T> {
    what: String,
    cells: Cells<T>,
    counts: Counts,
}

impl<T: Ord + Clone> Watch<T> {
    fn new(what: String, law: &Exact<T>, samples: u64) -> Self {
        let least = (LEAST_EXPECTED / samples as f64).max(1.0 / MOST_CELLS);
        let cells = Cells::new(&floats(law), least);
        let counts = Counts::new(cells.probabilities().len());
        Self { what, cells, counts }
    }

    fn add(&mut self, outcome: &T) {
        self.counts.add(self.cells.of(outcome));
    }

    fn check(&self, scene: &Scene) -> Check {
        let p = self.cells.probabilities();
        let fit = Fit::new(p, &self.counts, TUNED_FOR);
        let name = format!("toy/{}/{}", scene.name, self.what);
        Check::fit(name, Level::Toy, p, &self.counts.cells, &fit)
    }
}

fn reached(continuation: &Continuation, prompt_and: usize, place: usize) -> Reached {
    let at = continuation.offsets().position(|offset| offset == place)?;
    let (before, token) = (&continuation.tokens[..at], continuation.tokens[at]);
    // The rows depend on the last tokens only.
    Some((before[before.len().saturating_sub(prompt_and)..].to_vec(), token))
}

/// Samples `samples` texts of the scene and checks their laws.
///
/// With a `plug` the texts are a mutant's, and the laws stay those of the engine: the negative
/// control of each check.
///
/// # Errors
/// If the engine fails.
pub fn check(
    scene: &Scene,
    plug: Option<Plug>,
    samples: u64,
    seed: u64,
    progress: &mut dyn Progress,
) -> Result<Vec<Check>, Error> {
    const CONTEXT: usize = 2;
    let mut stage = scene.stage(None)?;
    let mut texts = Watch::new("joint law".to_owned(), &scene.target_law()?, samples);
    let (mut accepted, mut at_places) = (None, Vec::new());
    if scene.rule != Rule::Coupled {
        let walk = try_enumerate::<_, Error>(|paths| stage.walk(paths))?;
        let marginal = |of: &dyn Fn(&Continuation) -> Vec<usize>| {
            let mut law = Exact::new();
            for (run, p) in &walk.law {
                *law.entry(of(run)).or_insert_with(crate::exact::paths::zero) += p;
            }
            law
        };
        let law = marginal(&Continuation::accepted);
        accepted = Some(Watch::new("accepted tokens".to_owned(), &law, samples));
        for place in 0..places(scene) {
            let mut law: Exact<Reached> = Exact::new();
            for (run, p) in &walk.law {
                let outcome = reached(run, CONTEXT, place);
                *law.entry(outcome).or_insert_with(crate::exact::paths::zero) += p;
            }
            at_places.push(Watch::new(format!("place {place}"), &law, samples));
        }
    }
    let mut stage = scene.stage(plug)?;
    for sequence in 0..samples {
        let run = stage.run(Seed { seed, sequence }, &mut ChaCha)?;
        texts.add(&run.tokens);
        if let Some(accepted) = &mut accepted {
            accepted.add(&run.accepted());
        }
        for (place, watch) in at_places.iter_mut().enumerate() {
            watch.add(&reached(&run, CONTEXT, place));
        }
        if sequence.is_multiple_of(4096) {
            progress.advance(sequence, samples);
        }
    }
    let mut checks = vec![texts.check(scene)];
    checks.extend(accepted.iter().map(|watch| watch.check(scene)));
    checks.extend(at_places.iter().map(|watch| watch.check(scene)));
    Ok(checks)
}
