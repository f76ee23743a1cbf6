//! [`run`]: a plan, from the first check to the report.

use crate::{
    Error, battery,
    model::{FreshRows, Pair},
    mutants::{MUTANTS, Trial, try_mutant},
    plan::{Level, Models, Plan, Task},
    progress::Progress,
    report::{Report, Subject},
    toy,
};

/// Coupled texts of the pair that are compared with each draft.
const EQUAL_TEXTS: u64 = 16;

/// With fewer samples most checks would have a single cell and could not fail.
pub const FEWEST_SAMPLES: u64 = 500;

/// As [`FEWEST_SAMPLES`], for the level `watermark`, where a sample is a text of hundreds of tokens.
pub const FEWEST_TEXTS: u64 = 100;

/// Runs the checks of a plan; those of the level `model` only if there is a pair.
///
/// A check that fails is no error: it stands in the report.
///
/// # Errors
/// If the engine or a model fails, a row has no law, the pair's prompt leaves no room, the level
/// needs a pair and there is none, or the samples are too few to see anything.
pub fn run(
    plan: &Plan,
    mut pair: Option<&mut Pair<'_>>,
    progress: &mut dyn Progress,
) -> Result<Report, Error> {
    let models = match &pair {
        None => Models::None,
        Some(pair) if pair.draft.is_none() => Models::Target,
        Some(_) => Models::Pair,
    };
    if matches!(plan.level, Level::Model | Level::Watermark) && models == Models::None {
        return Err(Error::Plan(format!("the level `{}` needs a pair of models", plan.level)));
    }
    let fewest = if plan.level == Level::Watermark { FEWEST_TEXTS } else { FEWEST_SAMPLES };
    if let Some(samples) = plan.samples.filter(|&samples| samples < fewest) {
        return Err(Error::Plan(format!(
            "expected at least {fewest} samples, fewer see nothing; found {samples}"
        )));
    }
    let tasks = plan.shard_tasks(models);
    let mut report = Report {
        subject: Subject {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            level: plan.level,
            seed: plan.seed,
            pair: pair.as_ref().map(|pair| pair.name.clone()),
            shard: plan.shard,
            audited: false,
        },
        family: plan.family(models),
        ..Report::default()
    };
    let mut rows = FreshRows::default();
    for (index, task) in tasks.iter().enumerate() {
        progress.begin(&task.name(), index, tasks.len());
        let seed = own_seed(plan.seed, &task.name());
        let checks = match (task, pair.as_deref_mut()) {
            (Task::Exact(group), _) => vec![group.check()?],
            (Task::Toy { scene, samples }, _) => {
                toy::check(&battery::scene(scene), None, *samples, seed, progress)?
            }
            (Task::Cell(cell), Some(pair)) => pair.check_cell(cell, seed, &mut rows, progress)?,
            (Task::Equality, Some(pair)) => pair.check_equality(seed, EQUAL_TEXTS)?,
            (Task::Study { study, samples }, Some(pair)) => {
                let findings = pair.study(*study, *samples, seed, progress)?;
                report.figures.extend(findings.figures);
                findings.checks
            }
            (Task::Mutant(index), _) => {
                let trial = Trial { seed, ..Trial::default() };
                let result = try_mutant(&MUTANTS[*index], &trial)?;
                progress.mutant(&result);
                report.mutants.push(result);
                Vec::new()
            }
            (Task::Cell(_) | Task::Equality | Task::Study { .. }, None) => Vec::new(),
        };
        checks.iter().for_each(|check| progress.check(check));
        report.checks.extend(checks);
    }
    report.judge();
    Ok(report)
}

/// A seed for each task, so that tasks are independent and a task is the same on every shard
/// (FNV-1a of its name).
fn own_seed(seed: u64, task: &str) -> u64 {
    task.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
