//! [`Plan`]: which checks a run makes.

use std::{collections::BTreeSet, fmt, str::FromStr};

use draftproof_decode::{
    Decimal, Settings,
    draft::length::{CostModel, DraftLength},
};
use serde::{Deserialize, Serialize};

use crate::{battery, exact, mutants::MUTANTS, scene::Rule, toy, watermark::Study};

/// How much to check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A part of everything, in about two minutes.
    #[default]
    Quick,
    /// All paths on tables.
    Exact,
    /// Sampled laws on tables.
    Toy,
    /// The real pair, over the whole grid.
    Model,
    /// How well marked text is told from other text, on the pair.
    Watermark,
    /// All of it, with more samples, and the mutants.
    All,
}

impl Level {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Exact => "exact",
            Self::Toy => "toy",
            Self::Model => "model",
            Self::Watermark => "watermark",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is no level or shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}; found `{found}`")]
pub struct PlanError {
    /// What it should be.
    pub expected: &'static str,
    /// The text.
    pub found: String,
}

impl FromStr for Level {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let all = [Self::Quick, Self::Exact, Self::Toy, Self::Model, Self::Watermark, Self::All];
        all.into_iter().find(|level| level.name() == text).ok_or_else(|| PlanError {
            expected: "quick, exact, toy, model, watermark or all",
            found: text.to_owned(),
        })
    }
}

/// Shard `index` (from 1) of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 1, count: 1 }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = PlanError;

    /// ```
    /// use draftproof_verification::plan::Shard;
    /// assert_eq!("2/8".parse(), Ok(Shard { index: 2, count: 8 }));
    /// assert!("0/8".parse::<Shard>().is_err() && "9/8".parse::<Shard>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let numbers = text.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
        match numbers {
            Some((Ok(index), Ok(count))) if (1..=count).contains(&index) => {
                Ok(Self { index, count })
            }
            _ => {
                let found = text.to_owned();
                Err(PlanError { expected: "i/n with 1 ≤ i ≤ n, such as 2/8", found })
            }
        }
    }
}

/// Which checks to make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// How much.
    pub level: Level,
    /// Whether to try the mutants too (level `all` always does).
    pub mutants: bool,
    /// Which part of the checks.
    pub shard: Shard,
    /// Samples of each sampled check, instead of the level's own number.
    pub samples: Option<u64>,
    /// The seed of all noise. The verdicts do not depend on it but with the stated probability.
    pub seed: u64,
}

/// Which real models there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Models {
    /// None: tables only.
    None,
    /// A target without a draft model.
    Target,
    /// A pair.
    Pair,
}

/// What drafts for the real pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DraftKind {
    /// The draft model.
    Model,
    /// Prompt lookup.
    Ngram,
}

/// One cell of the grid of the level `model`.
#[derive(Clone, Debug, PartialEq)]
pub struct GridCell {
    /// The temperature.
    pub temperature: f64,
    /// The name of the filter.
    pub filter: &'static str,
    /// The rule.
    pub rule: Rule,
    /// What drafts.
    pub draft: DraftKind,
    /// How far ahead.
    pub length: GridLength,
    /// Texts to sample.
    pub samples: u64,
    /// The most cells of the joint law.
    pub cells: usize,
    /// Whether rows come from a cache by prefix: see [`CachedModel`](crate::model::CachedModel).
    pub cached: bool,
}

/// A draft length of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GridLength {
    /// Always this many.
    Fixed(usize),
    /// As many as pay.
    Auto,
}

impl GridLength {
    /// The engine's own type.
    #[must_use]
    pub fn draft_length(self, costs: CostModel) -> DraftLength {
        match self {
            Self::Fixed(length) => DraftLength::Fixed(length),
            Self::Auto => DraftLength::Auto(costs),
        }
    }

    /// Tokens of the joint law: two more than the draft length.
    #[must_use]
    pub fn tokens(self) -> usize {
        match self {
            Self::Fixed(length) => length + 2,
            Self::Auto => 6,
        }
    }
}

/// The temperatures of the grid.
pub const TEMPERATURES: [f64; 3] = [0.7, 1.0, 1.3];

/// The draft lengths of the grid.
pub const LENGTHS: [GridLength; 3] = [GridLength::Fixed(1), GridLength::Fixed(4), GridLength::Auto];

/// The filters of the grid, by name.
pub const FILTERS: [&str; 5] = ["none", "top-k=20", "top-p=0.9", "min-p=0.1", "penalties"];

impl GridCell {
    /// Its name, unique in a plan.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { temperature, filter, rule, draft, length, samples: _, cells: _, cached } = self;
        let draft = match draft {
            DraftKind::Model => "model",
            DraftKind::Ngram => "ngram",
        };
        let length = match length {
            GridLength::Fixed(length) => length.to_string(),
            GridLength::Auto => "auto".to_owned(),
        };
        let cache = if *cached { "" } else { "/no cache" };
        format!("T={temperature}/{filter}/{}/{draft}/len={length}{cache}", rule.name())
    }

    /// Its contract.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let decimal = |text: &str| text.parse::<Decimal>().expect("a decimal");
        let base = Settings { temperature: self.temperature, ..Settings::default() };
        match self.filter {
            "top-k=20" => Settings { top_k: 20, ..base },
            "top-k=4" => Settings { top_k: 4, ..base },
            "top-p=0.9" => Settings { top_p: decimal("0.9"), ..base },
            "min-p=0.1" => Settings { min_p: decimal("0.1"), ..base },
            "penalties" => Settings {
                repetition_penalty: 1.2,
                presence_penalty: 0.2,
                frequency_penalty: 0.3,
                ..base
            },
            _ => base,
        }
    }
}

/// One piece of work; the unit of sharding.
#[derive(Clone, Debug)]
pub enum Task {
    /// All paths of a group of cases.
    Exact(exact::Group),
    /// Sampled laws on a scene of the battery.
    Toy {
        /// Its name.
        scene: String,
        /// Texts to sample.
        samples: u64,
    },
    /// A cell of the grid.
    Cell(GridCell),
    /// Greedy and coupled texts of the pair with and without a draft.
    Equality,
    /// A study of the watermark on the pair.
    Study {
        /// Which.
        study: Study,
        /// Texts an arm.
        samples: u64,
    },
    /// A mutant, by its place in [`MUTANTS`].
    Mutant(usize),
}

impl Task {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Exact(group) => format!("exact/{}", group.name()),
            Self::Toy { scene, .. } => format!("toy/{scene}"),
            Self::Cell(cell) => format!("model/{}", cell.name()),
            Self::Equality => "model/equal texts".to_owned(),
            Self::Study { study, .. } => format!("watermark/{}", study.name()),
            Self::Mutant(index) => format!("mutant/{}", MUTANTS[*index].name),
        }
    }

    /// The number of statistical checks it makes.
    #[must_use]
    pub fn tests(&self) -> usize {
        match self {
            Self::Exact(_) | Self::Equality | Self::Mutant(_) => 0,
            Self::Study { study, .. } => study.tests(),
            Self::Toy { scene, .. } => toy::tests(&battery::scene(scene)),
            Self::Cell(cell) => 1 + usize::from(cell.has_acceptance()),
        }
    }
}

impl GridCell {
    /// Whether acceptance by place is checked against Σ min(p, q): that is the rejection rule's
    /// law.
    #[must_use]
    pub fn has_acceptance(&self) -> bool {
        self.rule == Rule::Rejection
    }
}

impl Plan {
    /// All tasks of the plan, whatever the shard.
    #[must_use]
    pub fn tasks(&self, models: Models) -> Vec<Task> {
        let mut tasks = Vec::new();
        let level = self.level;
        if matches!(level, Level::Quick | Level::Exact | Level::All) {
            let groups = exact::groups(level != Level::Quick);
            tasks.extend(groups.into_iter().map(Task::Exact));
        }
        if matches!(level, Level::Quick | Level::Toy | Level::All) {
            let samples = self.samples.unwrap_or(match level {
                Level::Quick => 40_000,
                Level::All => 2_000_000,
                _ => 400_000,
            });
            let scenes = battery::scenes().into_iter();
            tasks.extend(scenes.map(|scene| Task::Toy { scene: scene.name, samples }));
        }
        if models != Models::None && matches!(level, Level::Quick | Level::Model | Level::All) {
            tasks.push(Task::Equality);
            let mut cells =
                if level == Level::Quick { self.quick_grid() } else { self.whole_grid() };
            if models == Models::Target {
                cells.iter_mut().for_each(|cell| cell.draft = DraftKind::Ngram);
                let mut known = BTreeSet::new();
                cells.retain(|cell| known.insert(cell.name()));
            }
            tasks.extend(cells.into_iter().map(Task::Cell));
        }
        if models != Models::None && matches!(level, Level::Watermark | Level::All) {
            let samples = self.samples.unwrap_or(500);
            let can = |study: &Study| models == Models::Pair || !study.needs_draft();
            let studies = Study::ALL.into_iter().filter(can);
            tasks.extend(studies.map(|study| Task::Study { study, samples }));
        }
        if self.mutants || level == Level::All {
            tasks.extend((0..MUTANTS.len()).map(Task::Mutant));
        }
        tasks
    }

    /// The number of statistical checks of the whole plan.
    #[must_use]
    pub fn family(&self, models: Models) -> usize {
        self.tasks(models).iter().map(Task::tests).sum()
    }

    /// The tasks of this plan's shard: every `count`-th, so that shards take about equally long.
    #[must_use]
    pub fn shard_tasks(&self, models: Models) -> Vec<Task> {
        let Shard { index, count } = self.shard;
        self.tasks(models).into_iter().skip(index - 1).step_by(count).collect()
    }

    /// Every value of every dimension of the grid, and every pair of temperature and filter, once;
    /// one cell with samples enough to see a shift of 0.01; and one without the cache.
    fn quick_grid(&self) -> Vec<GridCell> {
        let mut cells = Vec::new();
        for (t, &temperature) in TEMPERATURES.iter().enumerate() {
            for (f, &filter) in FILTERS.iter().enumerate() {
                cells.push(GridCell {
                    temperature,
                    filter,
                    rule: Rule::ALL[(t + f) % 3],
                    draft: [DraftKind::Model, DraftKind::Ngram][usize::from((2 * t + f) % 4 == 3)],
                    length: LENGTHS[(2 * t + f + f / 3) % 3],
                    samples: self.samples.unwrap_or(2_000),
                    cells: 32,
                    cached: true,
                });
            }
        }
        let first = cells[0].clone();
        cells.push(GridCell {
            filter: "top-k=4",
            rule: Rule::Rejection,
            draft: DraftKind::Model,
            length: GridLength::Fixed(1),
            samples: self.samples.unwrap_or(320_000),
            cells: 12,
            ..first.clone()
        });
        cells.push(GridCell {
            rule: Rule::Block,
            draft: DraftKind::Model,
            length: GridLength::Fixed(4),
            samples: self.samples.unwrap_or(1_000),
            cells: 16,
            cached: false,
            ..first
        });
        cells
    }

    fn whole_grid(&self) -> Vec<GridCell> {
        let samples =
            self.samples.unwrap_or(if self.level == Level::All { 50_000 } else { 10_000 });
        let mut cells = Vec::new();
        for temperature in TEMPERATURES {
            for filter in FILTERS {
                for rule in Rule::ALL {
                    for draft in [DraftKind::Model, DraftKind::Ngram] {
                        for length in LENGTHS {
                            cells.push(GridCell {
                                temperature,
                                filter,
                                rule,
                                draft,
                                length,
                                samples,
                                cells: 64,
                                cached: true,
                            });
                        }
                    }
                }
            }
        }
        let uncached = |cell: &GridCell| {
            let chosen = cell.temperature == 1.0 && cell.length == GridLength::Fixed(4);
            chosen && cell.draft == DraftKind::Model && ["none", "penalties"].contains(&cell.filter)
        };
        let fresh: Vec<GridCell> = cells
            .iter()
            .filter(|cell| uncached(cell))
            .map(|cell| GridCell { cached: false, samples: samples / 5, ..cell.clone() })
            .collect();
        cells.extend(fresh);
        // The cell in which the smallest deviation is seen.
        if let Some(headline) = (Self { level: Level::Quick, ..self.clone() })
            .quick_grid()
            .into_iter()
            .find(|cell| cell.filter == "top-k=4")
        {
            cells.push(headline);
        }
        cells
    }
}
