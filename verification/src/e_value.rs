//! The gate: an e-value that holds at every sample size.
//!
//! Under the hypothesis that outcomes follow `p`, the expectation of an *e-value* is at most 1, so
//! it reaches `1/α` with probability at most α (Markov; for a sequence looked at after every
//! outcome: Ville 1939). Nothing is asymptotic, so no cell is too small and no n too low.
//!
//! # Formula
//! The likelihood ratio of a Dirichlet mixture against p, with `a_i = A·p_i`:
//!
//! `ln M_n = ln Γ(A) − ln Γ(A+n) + Σ [ln Γ(a_i + O_i) − ln Γ(a_i)] − Σ O_i ln p_i`.
//!
//! It is the product of the predictive ratios `(a_i + O_i) / (A + n) / p_i` of the outcomes as they
//! come, hence a martingale: it may be watched, and stopped, at any time. (The mixture is the
//! classical Bayes factor for multinomial data, Good 1967; as an e-process: Grünwald, de Heide and
//! Koolen 1906.07801.)

use statrs::function::gamma::ln_gamma;

/// The running e-value of outcomes against the cell probabilities `p`.
///
/// ```
/// use draftproof_verification::e_value::EValue;
/// let mut fair = EValue::new(vec![0.5, 0.5], 50.0);
/// let mut biased = fair.clone();
/// for i in 0..2_000 {
///     fair.observe(i % 2);
///     biased.observe(usize::from(i % 3 == 0));
/// }
/// assert!(fair.ln() < 0.0);
/// assert!(biased.rejects(1e-9));
/// ```
#[derive(Clone, Debug)]
pub struct EValue {
    p: Vec<f64>,
    concentration: f64,
    counts: Vec<u64>,
    n: u64,
    ln: f64,
    largest: f64,
}

impl EValue {
    /// No outcome seen yet. `concentration` is A: how near to p the mixture expects an alternative;
    /// see [`concentration`]. It must not depend on the outcomes.
    ///
    /// # Panics
    /// If a cell has no probability (such cells are asserted to be empty apart from this), or A is
    /// not positive.
    #[must_use]
    pub fn new(p: Vec<f64>, concentration: f64) -> Self {
        assert!(p.iter().all(|&p| p > 0.0), "a cell without probability is no cell of a law");
        assert!(concentration > 0.0, "the mixture needs a positive concentration");
        let counts = vec![0; p.len()];
        Self { p, concentration, counts, n: 0, ln: 0.0, largest: 0.0 }
    }

    /// Takes in one outcome.
    ///
    /// # Panics
    /// If there is no such cell.
    pub fn observe(&mut self, cell: usize) {
        let p = self.p[cell];
        let predicted = (self.concentration * p + self.counts[cell] as f64)
            / (self.concentration + self.n as f64);
        self.ln += (predicted / p).ln();
        self.largest = self.largest.max(self.ln);
        self.counts[cell] += 1;
        self.n += 1;
    }

    /// `ln M_n`.
    #[must_use]
    pub fn ln(&self) -> f64 {
        self.ln
    }

    /// The largest `ln M` so far: under the hypothesis it exceeds `ln(1/α)` with probability at
    /// most α.
    #[must_use]
    pub fn largest_ln(&self) -> f64 {
        self.largest
    }

    /// The number of outcomes.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// How often each cell occurred.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Whether the hypothesis is rejected at level `alpha`, at this or any earlier outcome.
    #[must_use]
    pub fn rejects(&self, alpha: f64) -> bool {
        self.largest >= -alpha.ln()
    }
}

/// `ln M_n` of finished counts: the same number without the outcomes' order.
///
/// # Panics
/// If `p` and `counts` differ in length.
#[must_use]
pub fn ln_e_value(p: &[f64], counts: &[u64], concentration: f64) -> f64 {
    assert_eq!(p.len(), counts.len(), "a count for each cell");
    let n: u64 = counts.iter().sum();
    let cells: f64 = p
        .iter()
        .zip(counts)
        .filter(|&(_, &count)| count > 0)
        .map(|(&p, &count)| {
            let (a, count) = (concentration * p, count as f64);
            ln_gamma(a + count) - ln_gamma(a) - count * p.ln()
        })
        .sum();
    ln_gamma(concentration) - ln_gamma(concentration + n as f64) + cells
}

/// The concentration A under which a test of `n` outcomes on `df + 1` cells needs the smallest
/// deviation to reject at level `alpha`.
///
/// With `r = n/A`, in the Gaussian approximation `2 ln M = X²·r/(1+r) − df·ln(1+r)`, so a rejection
/// needs `X² ≥ (1 + 1/r)·(2 ln(1/α) + df·ln(1+r))`: see [`critical_chi_square`]. The level of the
/// test does not rest on this approximation, only the choice of A and the predicted power do.
#[must_use]
pub fn concentration(n: u64, df: usize, alpha: f64) -> f64 {
    n as f64 / best_ratio(df, alpha)
}

/// The X² that the gate needs to reject at level `alpha`, when A was chosen by [`concentration`].
///
/// A little more than the chi-square quantile: 165 instead of 155 for 63 degrees of freedom and
/// α = 1e-9. That is the price of a level that holds exactly.
#[must_use]
pub fn critical_chi_square(df: usize, alpha: f64) -> f64 {
    needed(best_ratio(df, alpha), df, alpha)
}

/// The X² that the gate needs when n/A is `r`.
#[must_use]
pub fn critical_chi_square_at(r: f64, df: usize, alpha: f64) -> f64 {
    needed(r, df, alpha)
}

fn needed(r: f64, df: usize, alpha: f64) -> f64 {
    (1.0 + 1.0 / r) * (-2.0 * alpha.ln() + df as f64 * r.ln_1p())
}

/// The r with the smallest [`needed`], by golden-section search over ln r (it has one minimum).
fn best_ratio(df: usize, alpha: f64) -> f64 {
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = ((1e-3f64).ln(), (1e9f64).ln());
    let at = |t: f64| needed(t.exp(), df, alpha);
    while high - low > 1e-9 {
        let (a, b) = (high - golden * (high - low), low + golden * (high - low));
        if at(a) < at(b) {
            high = b;
        } else {
            low = a;
        }
    }
    f64::midpoint(low, high).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By mpmath 1.4.1, 40 digits, from the formula above.
    #[test]
    fn pinned_values() {
        let ln = ln_e_value(&[0.1, 0.2, 0.3, 0.4], &[130, 180, 310, 380], 50.0);
        assert!((ln - PINNED_SMALL).abs() < 1e-9, "{ln}");
        let ln = ln_e_value(&[0.25; 4], &[3000, 2400, 2300, 2300], 50.0);
        assert!((ln - PINNED_LARGE).abs() < 1e-7, "{ln}");
    }

    const PINNED_SMALL: f64 = 0.887_382_925_918_516_5;
    const PINNED_LARGE: f64 = 57.154_892_576_274_14;

    /// The martingale's product and the closed form are one number, in any order.
    #[test]
    fn order_does_not_matter() {
        let p = vec![0.1, 0.2, 0.3, 0.4];
        let counts = [40, 31, 60, 19];
        let mut e = EValue::new(p.clone(), 50.0);
        let mut left = counts;
        while left.iter().any(|&count| count > 0) {
            for (cell, count) in left.iter_mut().enumerate() {
                if *count > 0 {
                    *count -= 1;
                    e.observe(cell);
                }
            }
        }
        assert_eq!(e.counts(), counts);
        assert!((e.ln() - ln_e_value(&p, &counts, 50.0)).abs() < 1e-9);
    }

    /// The expectation under the hypothesis is 1, exactly: summed over all outcomes of six draws.
    #[test]
    fn expectation_is_one() {
        let p = [0.5, 0.3, 0.2];
        let mut expectation = 0.0;
        for outcome in 0..3usize.pow(6) {
            let (mut counts, mut probability, mut rest) = ([0u64; 3], 1.0, outcome);
            for _ in 0..6 {
                counts[rest % 3] += 1;
                probability *= p[rest % 3];
                rest /= 3;
            }
            expectation += probability * ln_e_value(&p, &counts, 7.0).exp();
        }
        assert!((expectation - 1.0).abs() < 1e-12, "{expectation}");
    }

    #[test]
    fn critical_value_is_a_little_above_the_quantile() {
        // Quantiles by scipy 1.17.1: chi2.isf(1e-9, df).
        for (df, quantile) in [(1, 37.324_893), (15, 73.630_000), (63, 155.074_257)] {
            let critical = critical_chi_square(df, 1e-9);
            assert!(critical > quantile && critical < 1.35 * quantile, "{df}: {critical}");
        }
    }
}
