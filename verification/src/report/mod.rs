//! [`Report`]: what was claimed, what was found, and at which confidence.

pub mod html;
mod junit;
pub mod svg;
mod table;

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    bound::total_variation,
    e_value::critical_chi_square,
    family::holm,
    goodness::Fit,
    mutants::MutantResult,
    plan::{Level, Shard},
    power::{detectable_tv, gate_detectable_tv},
    watermark::Figure,
};

/// The probability that a right engine fails *any* check of a run.
pub const FALSE_ALARM: f64 = 1e-9;

/// One minus the confidence of a certified bound on total variation.
pub const DELTA: f64 = 1e-6;

/// The power at which a deviation counts as detectable.
pub const POWER: f64 = 0.99;

/// The statistic that stands for an outcome that must not occur.
const IMPOSSIBLE: f64 = 1e9;

/// How a check decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Equality of exact rationals over all paths.
    Enumeration,
    /// Equality of texts, bit for bit.
    Equality,
    /// The Dirichlet-mixture e-value of counts on cells.
    EValue,
    /// The e-value of a sum of bounded martingale differences.
    Martingale,
}

impl Method {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Enumeration => "all paths, exact",
            Self::Equality => "equal texts",
            Self::EValue => "e-value of counts",
            Self::Martingale => "e-value of acceptances",
        }
    }
}

/// One cell of a check: what was expected of it and what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellPoint {
    /// Its exact probability.
    pub exact: f64,
    /// The share of samples in it.
    pub observed: f64,
}

/// One place of the drafted block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacePoint {
    /// Rounds whose verdict reached it.
    pub reached: u64,
    /// The share of them that accepted the token drafted there.
    pub accepted: f64,
    /// The mean of Σ min(p, q) there.
    pub overlap: f64,
}

/// One assertion with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// The level it belongs to.
    pub level: Level,
    /// How it decides.
    pub method: Method,
    /// The deciding statistic: a number of differences or an exact distance (0 passes), or the
    /// natural logarithm of an e-value.
    pub statistic: f64,
    /// The p-value of G, reported beside an e-value on cells that expect 50 or more; it decides
    /// nothing.
    pub p_value: Option<f64>,
    /// The check fails if the statistic exceeds this.
    pub threshold: f64,
    /// Samples, or paths of an enumeration, or compared texts.
    pub samples: u64,
    /// The probability that a right engine fails this check.
    pub false_alarm: f64,
    /// The smallest total variation that it sees with probability [`POWER`], whatever the shape.
    pub detectable_tv: Option<f64>,
    /// An upper bound on the total variation on these cells, at `confidence`.
    pub tv_upper_bound: Option<f64>,
    /// See `tv_upper_bound`.
    pub confidence: Option<f64>,
    /// The verdict.
    pub passed: bool,
    /// The gate's p-value, `min(1, 1/e)`: what Holm's rule sorts.
    pub gate_p_value: Option<f64>,
    /// The number of cells.
    pub cells: Option<usize>,
    /// Pearson's p-value.
    pub pearson_p_value: Option<f64>,
    /// Kolmogorov and Smirnov's p-value, cells in order.
    pub ks_p_value: Option<f64>,
    /// The detectable total variation of a chi-square test of the same level.
    pub detectable_tv_chi_square: Option<f64>,
    /// `TV(observed, exact)`.
    pub tv: Option<f64>,
    /// Outcomes that must not occur.
    pub impossible: u64,
    /// Probability that lies in pools of negligible outcomes.
    pub pooled: Option<f64>,
    /// What else to know.
    pub note: String,
    /// The cells.
    #[serde(default)]
    pub points: Vec<CellPoint>,
    /// Acceptance by place.
    #[serde(default)]
    pub places: Vec<PlacePoint>,
}

impl Check {
    fn new(name: String, level: Level, method: Method) -> Self {
        Self {
            name,
            level,
            method,
            statistic: 0.0,
            p_value: None,
            threshold: 0.0,
            samples: 0,
            false_alarm: 0.0,
            detectable_tv: None,
            tv_upper_bound: None,
            confidence: None,
            passed: true,
            gate_p_value: None,
            cells: None,
            pearson_p_value: None,
            ks_p_value: None,
            detectable_tv_chi_square: None,
            tv: None,
            impossible: 0,
            pooled: None,
            note: String::new(),
            points: Vec::new(),
            places: Vec::new(),
        }
    }

    /// A check without chance: passes iff `statistic` (a distance, a number of differences) is 0.
    #[must_use]
    pub fn exact(
        name: String,
        level: Level,
        method: Method,
        statistic: f64,
        samples: u64,
        note: String,
    ) -> Self {
        let passed = statistic == 0.0;
        Self { statistic, samples, passed, note, ..Self::new(name, level, method) }
    }

    /// A check of counts on cells. The verdict comes with [`Report::judge`].
    #[must_use]
    pub fn fit(name: String, level: Level, p: &[f64], counts: &[u64], fit: &Fit) -> Self {
        let n = fit.n.max(1) as f64;
        let point =
            |(&exact, &count): (&f64, &u64)| CellPoint { exact, observed: count as f64 / n };
        Self {
            statistic: fit.ln_e.min(IMPOSSIBLE),
            p_value: Some(fit.likelihood_ratio.p_value()),
            samples: fit.n,
            gate_p_value: Some(fit.p_value()),
            cells: Some(p.len()),
            pearson_p_value: Some(fit.pearson.p_value()),
            ks_p_value: Some(fit.kolmogorov_smirnov),
            tv: Some(fit.tv),
            tv_upper_bound: Some(total_variation(fit.tv, p.len(), fit.n.max(1), DELTA)),
            confidence: Some(1.0 - DELTA),
            impossible: fit.impossible,
            points: p.iter().zip(counts).map(point).collect(),
            ..Self::new(name, level, Method::EValue)
        }
    }

    /// A check with an e-value of its own.
    #[must_use]
    pub fn martingale(name: String, level: Level, ln_e: f64, samples: u64) -> Self {
        Self {
            statistic: ln_e.min(IMPOSSIBLE),
            samples,
            gate_p_value: Some((-ln_e).exp().min(1.0)),
            ..Self::new(name, level, Method::Martingale)
        }
    }
}

/// What was tested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The version of draftproof.
    pub version: String,
    /// The level asked for.
    pub level: Level,
    /// The seed; in JSON a decimal string, since not every reader keeps 64 bits of a number.
    #[serde(with = "decimal_string")]
    pub seed: u64,
    /// The pair, if one was tested.
    pub pair: Option<String>,
    /// Which shard of how many.
    pub shard: Shard,
    /// Whether the samples are another engine's.
    #[serde(default)]
    pub audited: bool,
}

mod decimal_string {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whether every check passed and every mutant was caught.
    pub passed: bool,
    /// What was tested.
    pub subject: Subject,
    /// The number of statistical checks of the whole plan, all shards together.
    pub family: usize,
    /// The probability that a right engine fails any of them.
    pub false_alarm: f64,
    /// The checks.
    pub checks: Vec<Check>,
    /// The mutants.
    pub mutants: Vec<MutantResult>,
    /// What the level `watermark` measured, as curves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

impl Report {
    /// Gives every statistical check its verdict, by Holm's rule over the family, and with it what
    /// it could have seen; then the report its own.
    ///
    /// On one shard the rule counts the tests of the other shards too, so no shard is judged more
    /// mildly than the whole.
    pub fn judge(&mut self) {
        self.false_alarm = FALSE_ALARM;
        // One order, however the work was cut, so that equal p-values get equal limits.
        self.checks.sort_by(|a, b| (a.level, &a.name).cmp(&(b.level, &b.name)));
        self.mutants.sort_by(|a, b| a.name.cmp(&b.name));
        self.figures.sort_by(|a, b| a.title.cmp(&b.title));
        let tests = self.checks.iter().filter(|check| check.gate_p_value.is_some()).count();
        self.family = self.family.max(tests);
        let p_values: Vec<f64> =
            self.checks.iter().filter_map(|check| check.gate_p_value).collect();
        let verdicts = holm(&p_values, FALSE_ALARM, self.family);
        let judged = self.checks.iter_mut().filter(|check| check.gate_p_value.is_some());
        // What a check can see is stated at the strictest level that Holm's rule may hold it to.
        let strictest = FALSE_ALARM / self.family.max(1) as f64;
        for (check, verdict) in judged.zip(verdicts) {
            check.passed = !verdict.rejected && check.impossible == 0;
            check.false_alarm = verdict.level;
            check.threshold = -verdict.level.ln();
            if let Some(df) = check.cells.map(|cells| cells.saturating_sub(1)).filter(|&df| df > 0)
            {
                let n = check.samples.max(1);
                check.detectable_tv = Some(gate_detectable_tv(df, strictest, POWER, n));
                check.detectable_tv_chi_square = Some(detectable_tv(df, strictest, POWER, n));
                check.note = format!(
                    "the e-value rejects at X² of about {:.1} on {df} degrees of freedom",
                    critical_chi_square(df, strictest)
                );
            }
        }
        self.passed = self.checks.iter().all(|check| check.passed)
            && self.mutants.iter().all(MutantResult::caught);
    }

    /// Joins the reports of the shards of one run and judges the whole.
    ///
    /// # Errors
    /// If they are not of one run, or a shard is missing or occurs twice.
    pub fn merge(reports: Vec<Self>) -> Result<Self, Error> {
        let mut reports = reports.into_iter();
        let mut whole = reports.next().ok_or_else(|| Error::Merge("there are none".to_owned()))?;
        let mut shards = vec![whole.subject.shard];
        for report in reports {
            let ours = Subject { shard: Shard::default(), ..whole.subject.clone() };
            let theirs = Subject { shard: Shard::default(), ..report.subject.clone() };
            if ours != theirs || whole.family != report.family {
                return Err(Error::Merge(format!(
                    "shard {} is of another run: {theirs:?}, not {ours:?}",
                    report.subject.shard
                )));
            }
            shards.push(report.subject.shard);
            whole.checks.extend(report.checks);
            whole.mutants.extend(report.mutants);
            whole.figures.extend(report.figures);
        }
        let count = whole.subject.shard.count;
        let mut indices: Vec<usize> = shards.iter().map(|shard| shard.index).collect();
        indices.sort_unstable();
        if shards.iter().any(|shard| shard.count != count)
            || indices != (1..=count).collect::<Vec<_>>()
        {
            return Err(Error::Merge(format!("expected shards 1 to {count}, found {indices:?}")));
        }
        whole.subject.shard = Shard::default();
        whole.judge();
        Ok(whole)
    }

    /// Writes `report.json`, `junit.xml` and `report.html` into `folder`, which is made if need be.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let file = |path: &Path, source| Error::File { path: path.to_owned(), source };
        fs::create_dir_all(folder).map_err(|source| file(folder, source))?;
        let files = [
            ("report.json", self.json()),
            ("junit.xml", self.junit()),
            ("report.html", self.html()),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|source| file(&path, source))?;
        }
        Ok(())
    }

    /// Reads the `report.json` of a folder.
    ///
    /// # Errors
    /// If it cannot be read, or is no report.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("report.json");
        let text = fs::read_to_string(&path)
            .map_err(|source| Error::File { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| Error::Json { path, source })
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has no map with odd keys")
    }

    /// As JUnit XML, for CI.
    #[must_use]
    pub fn junit(&self) -> String {
        junit::write(self)
    }

    /// As one HTML page that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        html::write(self)
    }

    /// As a table for a terminal, `width` columns wide.
    #[must_use]
    pub fn table(&self, width: usize) -> String {
        table::write(self, width)
    }

    /// What the run shows, in plain sentences: for the terminal and the head of the page.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        table::summary(self)
    }
}
