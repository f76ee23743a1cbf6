//! Power: what a test of n outcomes would have seen.
//!
//! If outcomes follow p' instead of p, Pearson's X² is close to a noncentral chi-square with
//! noncentrality `λ = n Σ (p'_i − p_i)²/p_i`. By Cauchy–Schwarz `λ ≥ 4n·TV(p', p)²` for *every*
//! alternative on the cells, so a test that sees λ sees every shift of `√(λ/(4n))` or more.

use statrs::function::gamma::{gamma_lr, ln_gamma};

use crate::{e_value::critical_chi_square, goodness::chi_square_quantile};

/// The probability that a noncentral chi-square with `df` degrees of freedom and noncentrality
/// `lambda` is at most `x`.
///
/// `Σ_j Poisson(j; λ/2) · P(df/2 + j, x/2)`: a Poisson mixture of central laws (Johnson, Kotz and
/// Balakrishnan, *Continuous Univariate Distributions* 2, eq. 29.3). The regularised gamma
/// functions come from one of them by `P(a, y) = P(a+1, y) + y^a e^{-y}/Γ(a+1)`, downwards, where
/// all terms add.
#[must_use]
pub fn noncentral_cdf(x: f64, df: usize, lambda: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let (y, half) = (x / 2.0, lambda / 2.0);
    if lambda == 0.0 {
        return gamma_lr(df as f64 / 2.0, y);
    }
    // Beyond twelve standard deviations (and a little) the Poisson weights are below 1e-25.
    let spread = 12.0 * half.sqrt() + 30.0;
    let (first, last) = ((half - spread).max(0.0).floor() as u64, (half + spread).ceil() as u64);
    let weight = |j: u64| (j as f64 * half.ln() - half - ln_gamma(j as f64 + 1.0)).exp();
    let mut central = gamma_lr(df as f64 / 2.0 + last as f64, y);
    let mut sum = 0.0;
    for j in (first..=last).rev() {
        sum += weight(j) * central;
        if j > first {
            let a = df as f64 / 2.0 + (j - 1) as f64;
            central += (a * y.ln() - y - ln_gamma(a + 1.0)).exp();
        }
    }
    sum.min(1.0)
}

/// The probability that X² exceeds `critical` when the noncentrality is `lambda`.
#[must_use]
pub fn power(critical: f64, df: usize, lambda: f64) -> f64 {
    1.0 - noncentral_cdf(critical, df, lambda)
}

/// The noncentrality at which X² exceeds `critical` with probability `power`.
#[must_use]
pub fn noncentrality_for(critical: f64, df: usize, power: f64) -> f64 {
    let (mut low, mut high) = (0.0, critical.max(1.0));
    while self::power(critical, df, high) < power {
        high *= 2.0;
    }
    while high - low > 1e-9 * high {
        let middle = f64::midpoint(low, high);
        if self::power(critical, df, middle) < power {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// `λ(df, α, power)`: the noncentrality that a chi-square test of level `alpha` sees with
/// probability `power`.
///
/// ```
/// use draftproof_verification::power::noncentrality;
/// assert!((noncentrality(7, 1e-6, 0.999) - 82.0).abs() < 0.5);
/// ```
#[must_use]
pub fn noncentrality(df: usize, alpha: f64, power: f64) -> f64 {
    noncentrality_for(chi_square_quantile(df, alpha), df, power)
}

/// `√(λ(df, α, power) / (4n))`: the smallest total variation that a chi-square test of n outcomes
/// sees with probability `power`, whatever its shape.
#[must_use]
pub fn detectable_tv(df: usize, alpha: f64, power: f64, n: u64) -> f64 {
    shift(noncentrality(df, alpha, power), n)
}

/// The same for the gate, the [e-value](crate::e_value), which needs a little more.
#[must_use]
pub fn gate_detectable_tv(df: usize, alpha: f64, power: f64, n: u64) -> f64 {
    shift(noncentrality_for(critical_chi_square(df, alpha), df, power), n)
}

fn shift(lambda: f64, n: u64) -> f64 {
    (lambda / (4.0 * n as f64)).sqrt().min(1.0)
}

/// How many outcomes the gate needs to see a shift of `tv` with probability `power`.
#[must_use]
pub fn needed_samples(df: usize, alpha: f64, power: f64, tv: f64) -> u64 {
    let lambda = noncentrality_for(critical_chi_square(df, alpha), df, power);
    (lambda / (4.0 * tv * tv)).ceil() as u64
}

/// `Σ (p'_i − p_i)²/p_i`, the noncentrality of one outcome.
///
/// # Panics
/// If the two differ in length.
#[must_use]
pub fn noncentrality_per_sample(p: &[f64], alternative: &[f64]) -> f64 {
    assert_eq!(p.len(), alternative.len(), "the same cells");
    p.iter().zip(alternative).map(|(p, other)| (other - p).powi(2) / p).sum()
}
