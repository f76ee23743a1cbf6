//! What it takes to catch a mutant: the walk over all paths, and the e-value of sampled texts.

use std::collections::BTreeMap;

use draftproof_decode::{
    Token,
    noise::{ChaCha, Seed},
};
use num_rational::BigRational;
use num_traits::ToPrimitive;
use serde::{Deserialize, Serialize};

use super::Mutant;
use crate::{
    Error,
    battery::scene,
    e_value::{EValue, concentration, critical_chi_square, critical_chi_square_at},
    exact::paths::{Exact, distance, try_enumerate},
    goodness::{Cells, Counts, LEAST_EXPECTED, pearson},
    power::{noncentrality_for, noncentrality_per_sample, power},
    scene::Stage,
};

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
    /// The number of sampled texts after which the e-value passed 1/α; none if sampling did not
    /// catch it, or was not tried because its power is too small.
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
    let least = (LEAST_EXPECTED / trial.samples as f64).max(1.0 / 128.0);
    let cells = Cells::new(&floats(&target), least);
    let df = cells.probabilities().len() - 1;
    let mut stage = scene.stage(Some(mutant.plug))?;
    let known = match mutant.enumerable {
        true => walked(&mut stage, &target, &scene.tolerance(), &cells)?,
        false => piloted(&mut stage, &cells, trial)?,
    };
    // Suits rejections between a thousand and a hundred thousand texts.
    let mixture = concentration(10_000, df, trial.alpha);
    let n = trial.samples as f64;
    let critical = critical_chi_square_at(n / mixture, df, trial.alpha);
    let by_law = power(critical, df, known.lambda * n);
    let predicted = by_law.max(1.0 - (1.0 - known.impossible).powf(n));
    let samples = match predicted > 0.5 {
        true => caught_at(&mut stage, &cells, mixture, trial)?,
        false => None,
    };
    let caught_by = match (known.tv.is_some_and(|tv| tv > 0.0), samples.is_some()) {
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
        needed_samples: needed_samples(df, trial.alpha, known.lambda, known.impossible),
        tv: known.tv,
        paths: known.paths,
        seam: mutant.plug.seam().to_owned(),
        seen: mutant.seen.to_owned(),
        scene: scene.name,
    })
}

fn floats(law: &Exact<Vec<Token>>) -> BTreeMap<Vec<Token>, f64> {
    law.iter().map(|(text, p)| (text.clone(), p.to_f64().unwrap_or(0.0))).collect()
}

/// What is known of a mutant's law before it is sampled.
struct Known {
    tv: Option<f64>,
    paths: Option<u64>,
    /// The noncentrality of one text on the cells.
    lambda: f64,
    /// The probability of a text that must not occur.
    impossible: f64,
}

/// By a walk over all paths.
fn walked(
    stage: &mut Stage<'_>,
    target: &Exact<Vec<Token>>,
    tolerance: &BigRational,
    cells: &Cells<Vec<Token>>,
) -> Result<Known, Error> {
    let walk = try_enumerate(|paths| Ok::<_, Error>(stage.walk(paths)?.tokens))?;
    let p = cells.probabilities();
    let (mut alternative, mut impossible) = (vec![0.0; p.len()], 0.0);
    for (text, probability) in floats(&walk.law) {
        match cells.of(&text) {
            Some(cell) => alternative[cell] += probability,
            None => impossible += probability,
        }
    }
    // Exact equality decides; the distance is for people. A walk in which a key was spent twice is
    // of no law at all, and catches nothing.
    let found = distance(&walk.law, target);
    let tv = match found <= *tolerance {
        true => 0.0,
        false => found.to_f64().unwrap_or(0.0).max(f64::MIN_POSITIVE),
    };
    Ok(Known {
        tv: walk.spent_twice.is_none().then_some(tv),
        paths: Some(walk.paths),
        lambda: noncentrality_per_sample(p, &alternative),
        impossible,
    })
}

/// By a pilot of sampled texts of their own seed: X² exceeds its degrees of freedom by nλ on
/// average.
fn piloted(
    stage: &mut Stage<'_>,
    cells: &Cells<Vec<Token>>,
    trial: &Trial,
) -> Result<Known, Error> {
    let p = cells.probabilities();
    let mut counts = Counts::new(p.len());
    let seed = trial.seed ^ 0x7069_6c6f_7400;
    for sequence in 0..trial.pilot {
        counts.add(cells.of(&stage.run(Seed { seed, sequence }, &mut ChaCha)?.tokens));
    }
    let n = trial.pilot.max(1) as f64;
    let x2 = pearson(p, &counts.cells);
    let lambda = ((x2.value - x2.df as f64) / n).max(0.0);
    Ok(Known { tv: None, paths: None, lambda, impossible: counts.impossible as f64 / n })
}

fn needed_samples(df: usize, alpha: f64, lambda: f64, impossible: f64) -> Option<u64> {
    // Below 1e-20 it is the rounding of a law that is right.
    let by_law = (lambda > 1e-20).then(|| {
        let critical = critical_chi_square(df, alpha);
        noncentrality_for(critical, df, 0.99) / lambda
    });
    let by_impossible = (impossible > 0.0).then(|| (0.01f64.ln() / (-impossible).ln_1p()).max(1.0));
    let needed = match (by_law, by_impossible) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    needed.map(|n| n.ceil() as u64)
}

/// The number of texts after which the e-value rejects.
fn caught_at(
    stage: &mut Stage<'_>,
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
