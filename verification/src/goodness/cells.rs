//! [`Cells`] of a known law, [`Counts`] on them, and their [`Fit`].

use std::collections::BTreeMap;

use super::{Statistic, kolmogorov_smirnov, likelihood_ratio, pearson};
use crate::{
    bound,
    e_value::{concentration, ln_e_value},
};

/// Outcomes of a known law, pooled into cells.
///
/// ```
/// use draftproof_verification::goodness::Cells;
/// let law = [("a", 0.5), ("b", 0.3), ("c", 0.12), ("d", 0.08)].into();
/// // 400 outcomes, at least 50 in each cell: c and d share one.
/// let cells = Cells::new(&law, 0.125);
/// assert_eq!(cells.probabilities(), [0.5, 0.3, 0.2]);
/// assert_eq!(cells.of(&"d"), Some(2));
/// assert_eq!(cells.of(&"z"), None);
/// ```
#[derive(Clone, Debug)]
pub struct Cells<T> {
    index: BTreeMap<T, usize>,
    probabilities: Vec<f64>,
    single: usize,
}

impl<T: Ord + Clone> Cells<T> {
    /// Cells of probability at least `least` each (if the law has that much in all).
    ///
    /// Outcomes that have it are cells of their own. The others are pooled with their neighbours in
    /// the outcomes' order (texts that begin alike are neighbours), so that what is left of a
    /// subtree stays together; the last pool that stays too small joins the one before. Outcomes of
    /// probability 0 are in no cell.
    #[must_use]
    pub fn new(law: &BTreeMap<T, f64>, least: f64) -> Self {
        let mut cells = Self { index: BTreeMap::new(), probabilities: Vec::new(), single: 0 };
        let positive = || law.iter().filter(|&(_, &p)| p > 0.0);
        for (outcome, &p) in positive().filter(|&(_, &p)| p >= least) {
            cells.index.insert(outcome.clone(), cells.probabilities.len());
            cells.probabilities.push(p);
        }
        cells.single = cells.probabilities.len();
        let mut open = false;
        for (outcome, &p) in positive().filter(|&(_, &p)| p < least) {
            if !open {
                cells.probabilities.push(0.0);
            }
            let last = cells.probabilities.len() - 1;
            cells.index.insert(outcome.clone(), last);
            cells.probabilities[last] += p;
            open = cells.probabilities[last] < least;
        }
        if open && cells.probabilities.len() > 1 {
            cells.join_last();
        }
        cells
    }

    /// The last pool joins the pool before it, or else the least probable cell.
    fn join_last(&mut self) {
        let last = self.probabilities.len() - 1;
        let into = if last > self.single {
            last - 1
        } else {
            let least =
                |a: &usize, b: &usize| self.probabilities[*a].total_cmp(&self.probabilities[*b]);
            (0..last).min_by(least).unwrap_or(0)
        };
        self.probabilities[into] += self.probabilities[last];
        self.probabilities.truncate(last);
        self.index.values_mut().filter(|cell| **cell == last).for_each(|cell| *cell = into);
    }

    /// The cell of an outcome; `None` if it has probability 0.
    #[must_use]
    pub fn of(&self, outcome: &T) -> Option<usize> {
        self.index.get(outcome).copied()
    }

    /// The probability of each cell.
    #[must_use]
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// The outcomes of each cell.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Vec<T>> {
        let mut outcomes = vec![Vec::new(); self.probabilities.len()];
        self.index.iter().for_each(|(outcome, &cell)| outcomes[cell].push(outcome.clone()));
        outcomes
    }
}

/// Counts on cells, and of outcomes that must not occur.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// By cell.
    pub cells: Vec<u64>,
    /// Outcomes of probability 0.
    pub impossible: u64,
}

impl Counts {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![0; cells], impossible: 0 }
    }

    /// Counts one outcome.
    pub fn add(&mut self, cell: Option<usize>) {
        match cell {
            Some(cell) => self.cells[cell] += 1,
            None => self.impossible += 1,
        }
    }

    /// All outcomes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.cells.iter().sum::<u64>() + self.impossible
    }
}

/// Everything there is to say about counts against a law.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The gate, `ln M_n`; infinite if an impossible outcome occurred.
    pub ln_e: f64,
    /// Pearson's X².
    pub pearson: Statistic,
    /// G.
    pub likelihood_ratio: Statistic,
    /// The Kolmogorov–Smirnov p-value on cells in order.
    pub kolmogorov_smirnov: f64,
    /// `TV(p̂, p)`.
    pub tv: f64,
    /// Outcomes counted.
    pub n: u64,
    /// Of these, outcomes that must not occur.
    pub impossible: u64,
}

impl Fit {
    /// Compares counts with the probabilities of their cells; the gate's concentration is the one
    /// that suits a test at level `alpha`.
    #[must_use]
    pub fn new(p: &[f64], counts: &Counts, alpha: f64) -> Self {
        let n = counts.total();
        let concentration = concentration(n.max(1), p.len().saturating_sub(1), alpha);
        let ln_e = if counts.impossible > 0 {
            f64::INFINITY
        } else {
            ln_e_value(p, &counts.cells, concentration)
        };
        Self {
            ln_e,
            pearson: pearson(p, &counts.cells),
            likelihood_ratio: likelihood_ratio(p, &counts.cells),
            kolmogorov_smirnov: kolmogorov_smirnov(p, &counts.cells).1,
            tv: bound::empirical(p, &counts.cells, counts.impossible),
            n,
            impossible: counts.impossible,
        }
    }

    /// The gate as a p-value: `min(1, 1/M_n)`, never below the true one.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        (-self.ln_e).exp().min(1.0)
    }
}
