//! Goodness of fit: do counts look like draws from a known law?
//!
//! The verdict is the [e-value](crate::e_value)'s, whose level is exact. The classical statistics stand
//! beside it; their p-values are asymptotic and are computed on cells that expect
//! [`LEAST_EXPECTED`] outcomes or more. Cells are pooled **from p only**: pooling by counts would look
//! at the data, and could hide an outcome that must not occur. An outcome of probability 0 belongs to
//! no cell; one is enough to reject.

use std::collections::BTreeMap;

use draftproof_decode::ln::exponential;
use statrs::function::gamma::{gamma_ur, ln_gamma};

use crate::{
    bound,
    e_value::{concentration, ln_e_value},
};

/// The smallest expectation of a cell: then chi-square p-values hold far into the tail. (At 5 the true
/// level of a nominal 1e-3 on 64 cells is several times that.)
pub const LEAST_EXPECTED: f64 = 50.0;

/// The probability that a chi-square with `df` degrees of freedom exceeds `x`.
#[must_use]
pub fn chi_square_sf(x: f64, df: usize) -> f64 {
    if df == 0 || x <= 0.0 {
        return 1.0;
    }
    gamma_ur(df as f64 / 2.0, x / 2.0)
}

/// The x that a chi-square with `df` degrees of freedom exceeds with probability `alpha`.
#[must_use]
pub fn chi_square_quantile(df: usize, alpha: f64) -> f64 {
    let (mut low, mut high) = (0.0, df as f64 + 10.0);
    while chi_square_sf(high, df) > alpha {
        low = high;
        high *= 2.0;
    }
    while high - low > 1e-12 * high {
        let middle = f64::midpoint(low, high);
        if chi_square_sf(middle, df) > alpha {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// A statistic with its degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistic {
    /// Its value.
    pub value: f64,
    /// Degrees of freedom.
    pub df: usize,
}

impl Statistic {
    /// The asymptotic p-value: the chi-square's upper tail.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        chi_square_sf(self.value, self.df)
    }
}

fn total(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64
}

/// Pearson's `X² = Σ (O − E)²/E`, with K − 1 degrees of freedom (Pearson 1900).
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn pearson(p: &[f64], counts: &[u64]) -> Statistic {
    assert_eq!(p.len(), counts.len(), "a count for each cell");
    let n = total(counts);
    let term = |(p, &count): (&f64, &u64)| (count as f64 - n * p).powi(2) / (n * p);
    let value = if n > 0.0 { p.iter().zip(counts).map(term).sum() } else { 0.0 };
    Statistic { value, df: p.len().saturating_sub(1) }
}

/// The likelihood ratio `G = 2 Σ O ln(O/E)`, with K − 1 degrees of freedom (Wilks 1938).
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn likelihood_ratio(p: &[f64], counts: &[u64]) -> Statistic {
    assert_eq!(p.len(), counts.len(), "a count for each cell");
    let n = total(counts);
    let cells = p.iter().zip(counts).filter(|&(_, &count)| count > 0);
    let value = cells.map(|(p, &count)| 2.0 * count as f64 * (count as f64 / (n * p)).ln()).sum();
    Statistic { value, df: p.len().saturating_sub(1) }
}

/// Whether two samples follow one law: `Σ (a√(m/n) − b√(n/m))²/(a+b)` over the cells that occurred, n
/// and m the sizes, with one degree of freedom less than such cells (Press et al., *Numerical Recipes*, §14.3).
///
/// # Panics
/// If the two differ in length.
#[must_use]
pub fn homogeneity(a: &[u64], b: &[u64]) -> Statistic {
    assert_eq!(a.len(), b.len(), "the same cells");
    let (n, m) = (total(a), total(b));
    let seen: Vec<(f64, f64)> = a
        .iter()
        .zip(b)
        .filter(|&(&a, &b)| a + b > 0)
        .map(|(&a, &b)| (a as f64, b as f64))
        .collect();
    if n == 0.0 || m == 0.0 {
        return Statistic { value: 0.0, df: 0 };
    }
    let (up, down) = ((m / n).sqrt(), (n / m).sqrt());
    let value = seen.iter().map(|(a, b)| (a * up - b * down).powi(2) / (a + b)).sum();
    Statistic { value, df: seen.len().saturating_sub(1) }
}

/// The Kolmogorov–Smirnov statistic `√n · sup |F̂ − F|` on cells in id order, and its p-value.
///
/// For a discrete law the p-value is conservative (Conover 1972): the test is exact or too mild, never
/// too strict. It sees shifts along the ids that X² spreads over many cells.
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn kolmogorov_smirnov(p: &[f64], counts: &[u64]) -> (f64, f64) {
    assert_eq!(p.len(), counts.len(), "a count for each cell");
    let n = total(counts);
    if n == 0.0 {
        return (0.0, 1.0);
    }
    let (mut expected, mut observed, mut largest) = (0.0, 0.0, 0.0f64);
    for (p, &count) in p.iter().zip(counts) {
        expected += p;
        observed += count as f64 / n;
        largest = largest.max((observed - expected).abs());
    }
    let statistic = n.sqrt() * largest;
    (statistic, kolmogorov_sf(statistic))
}

/// `Q(x) = 2 Σ_{k≥1} (−1)^{k−1} e^{−2k²x²}` (Kolmogorov 1933); for small x through the theta
/// function's other form, `1 − √(2π)/x · Σ_{k≥1} e^{−(2k−1)²π²/(8x²)}`.
#[must_use]
pub fn kolmogorov_sf(x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let pi = std::f64::consts::PI;
    if x < 1.0 {
        let term = |k: u32| (-(f64::from(2 * k - 1) * pi / x).powi(2) / 8.0).exp();
        return 1.0 - (2.0 * pi).sqrt() / x * (1..=8).map(term).sum::<f64>();
    }
    let term = |k: i32| f64::from(1 - 2 * ((k + 1) % 2)) * (-2.0 * f64::from(k * k) * x * x).exp();
    (2.0 * (1..=12).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

fn ln_multinomial(p: &[f64], counts: &[u64]) -> f64 {
    let n = total(counts);
    let cells = p.iter().zip(counts).filter(|&(_, &count)| count > 0);
    let parts: f64 =
        cells.map(|(p, &count)| count as f64 * p.ln() - ln_gamma(count as f64 + 1.0)).sum();
    ln_gamma(n + 1.0) + parts
}

/// The exact multinomial p-value: the probability of all count vectors that are at most as probable as
/// this one. `None` if there are more than `limit` vectors.
///
/// Vectors whose probabilities differ by less than 1e-9 (relative) count as equally probable, so that
/// rounding cannot make the p-value too small.
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn exact_multinomial(p: &[f64], counts: &[u64], limit: u64) -> Option<f64> {
    assert_eq!(p.len(), counts.len(), "a count for each cell");
    let n: u64 = counts.iter().sum();
    // C(n + K − 1, K − 1) vectors.
    let mut vectors = 1.0;
    for i in 1..p.len() as u64 {
        vectors *= (n + i) as f64 / i as f64;
    }
    if vectors > limit as f64 {
        return None;
    }
    let seen = ln_multinomial(p, counts);
    let mut sum = 0.0;
    let mut vector = vec![0; p.len()];
    each_vector(&mut vector, 0, n, &mut |vector| {
        let ln = ln_multinomial(p, vector);
        if ln <= seen + 1e-9 {
            sum += ln.exp();
        }
    });
    Some(sum.min(1.0))
}

fn each_vector(vector: &mut Vec<u64>, cell: usize, left: u64, each: &mut impl FnMut(&[u64])) {
    if cell + 1 == vector.len() {
        vector[cell] = left;
        each(vector);
        return;
    }
    for count in 0..=left {
        vector[cell] = count;
        each_vector(vector, cell + 1, left - count, each);
    }
}

/// The Monte-Carlo multinomial p-value `(1 + #{G* ≥ G}) / (B + 1)` from B simulated samples: valid at
/// every n and B (Dwass 1957; Davison and Hinkley 1997, §4.2), never below `1/(B + 1)`.
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn monte_carlo_multinomial(p: &[f64], counts: &[u64], draws: u64, seed: u64) -> f64 {
    let seen = likelihood_ratio(p, counts).value;
    let n: u64 = counts.iter().sum();
    let mut uniform = Uniform::new(seed);
    let mut cumulative = Vec::with_capacity(p.len());
    let mut sum = 0.0;
    for p in p {
        sum += p;
        cumulative.push(sum);
    }
    let mut as_large = 0;
    let mut simulated = vec![0; p.len()];
    for _ in 0..draws {
        simulated.fill(0);
        for _ in 0..n {
            let u = uniform.next() * sum;
            let cell = cumulative.partition_point(|&c| c <= u).min(p.len() - 1);
            simulated[cell] += 1;
        }
        as_large += u64::from(likelihood_ratio(p, &simulated).value >= seen - 1e-9);
    }
    (1 + as_large) as f64 / (draws + 1) as f64
}

/// Uniforms for simulations of the statistics themselves (SplitMix64, Steele et al. 2014): unlike the
/// engine's noise they need to be neither addressed nor cryptographic.
#[derive(Clone, Debug)]
pub struct Uniform(u64);

impl Uniform {
    /// A stream that depends on the seed only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform on `[0, 1)`.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponential variate of mean 1.
    pub fn exponential(&mut self) -> f64 {
        exponential(self.bits())
    }
}

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
    /// Outcomes that have it are cells of their own. The others are pooled with their neighbours in the
    /// outcomes' order (texts that begin alike are neighbours), so that what is left of a subtree stays
    /// together; the last pool that stays too small joins the one before. Outcomes of probability 0
    /// are in no cell.
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
    /// Compares counts with the probabilities of their cells; the gate's concentration is the one that
    /// suits a test at level `alpha`.
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
