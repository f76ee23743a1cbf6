//! Goodness of fit: do counts look like draws from a known law?
//!
//! The verdict is the [e-value](crate::e_value)'s, whose level is exact. The classical statistics
//! stand beside it; their p-values are asymptotic and are computed on cells that expect
//! [`LEAST_EXPECTED`] outcomes or more. Cells are pooled **from p only**: pooling by counts would
//! look at the data, and could hide an outcome that must not occur. An outcome of probability 0
//! belongs to no cell; one is enough to reject.

mod cells;

use draftproof_decode::ln::exponential;
use statrs::function::gamma::{gamma_ur, ln_gamma};

pub use cells::{Cells, Counts, Fit};

/// The smallest expectation of a cell: then chi-square p-values hold far into the tail. (At 5 the
/// true level of a nominal 1e-3 on 64 cells is several times that.)
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

/// Whether two samples follow one law: `Σ (a√(m/n) − b√(n/m))²/(a+b)` over the cells that occurred,
/// n and m the sizes, with one degree of freedom less than such cells (Press et al., *Numerical
/// Recipes*, §14.3).
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
/// For a discrete law the p-value is conservative (Conover 1972): the test is exact or too mild,
/// never too strict. It sees shifts along the ids that X² spreads over many cells.
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

/// The exact multinomial p-value: the probability of all count vectors that are at most as probable
/// as this one. `None` if there are more than `limit` vectors.
///
/// Vectors whose probabilities differ by less than 1e-9 (relative) count as equally probable, so
/// that rounding cannot make the p-value too small.
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

/// The Monte-Carlo multinomial p-value `(1 + #{G* ≥ G}) / (B + 1)` from B simulated samples: valid
/// at every n and B (Dwass 1957; Davison and Hinkley 1997, §4.2), never below `1/(B + 1)`.
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

/// Uniforms for simulations of the statistics themselves (SplitMix64, Steele et al. 2014): unlike
/// the engine's noise they need to be neither addressed nor cryptographic.
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
