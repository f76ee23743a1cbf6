//! What it takes to catch a mutant: the walk over all paths, and the e-value of sampled texts.

use std::collections::BTreeMap;

use draftproof_decode::{
    Token,
    noise::{ChaCha, Seed},
};
use num_traits::ToPrimitive;
use serde::{Deserialize, Serialize};

use super::Mutant;
use crate::{
    Error,
    battery::scene,
    e_value::{EValue, concentration, critical_chi_square, critical_chi_square_at},
    exact::paths::{Exact, distance, try_enumerate},
    goodness::{Cells, Counts, pearson},
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
    let float = |law: &Exact<Vec<Token>>| -> BTreeMap<Vec<Token>, f64> {
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

fn sample(
    stage: &mut Stage<'_>,
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
