//! The law of a weighted sum of fair bits: p-values without an approximation.

/// The probability that `Σ weight · (ones among count fair bits)` is at least `sum`, over terms
/// `(weight, count)` with positive weights.
///
/// # How
/// With `X = 2·sum − total` the bits are signs, and for any t > 0 (after division by the weights'
/// common divisor)
///
/// `P(X ≥ x) = (1/π) ∫ Π cosh(w(t+iθ))^count · e^{−(t+iθ)x} / (1 − e^{−2(t+iθ)}) dθ` over |θ| < π/2:
///
/// Fourier inversion of the tilted law, summed as a geometric series. The integrand is periodic, so
/// equal steps converge faster than any power; with t at the saddle point all terms that matter have
/// one sign, so small tails keep their digits. `tail_is_exact` compares with convolutions: the
/// relative error is below 1e-8, down to tails of 1e-250; smaller ones come out as
/// [`f64::MIN_POSITIVE`] at least.
///
/// # Panics
/// If the weights' total exceeds `u64`.
#[must_use]
pub fn tail(terms: &[(u64, u64)], sum: u64) -> f64 {
    let divisor = terms.iter().fold(0, |divisor, &(weight, _)| gcd(divisor, weight)).max(1);
    let terms: Vec<(f64, f64)> =
        terms.iter().map(|&(weight, count)| ((weight / divisor) as f64, count as f64)).collect();
    let sum = sum.div_ceil(divisor);
    let total = terms.iter().map(|(weight, count)| weight * count).sum::<f64>();
    let total = total as u64;
    if sum == 0 {
        return 1.0;
    }
    if sum > total {
        return 0.0;
    }
    // P(S ≥ s) = 1 − P(S ≥ total − s + 1): the law is symmetric.
    if 2 * sum <= total {
        return 1.0 - upper(&terms, total - sum + 1, total);
    }
    upper(&terms, sum, total)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The logarithm of what is too small to count, 1e-20.
const GONE: f64 = -46.0;

/// For `sum` above the mean.
fn upper(terms: &[(f64, f64)], sum: u64, total: u64) -> f64 {
    let over = |value: &dyn Fn(f64) -> f64| -> f64 {
        terms.iter().map(|&(weight, count)| count * value(weight)).sum()
    };
    if sum == total {
        return 0.5f64.powf(over(&|_| 1.0)).max(f64::MIN_POSITIVE);
    }
    let x = (2 * sum - total) as f64;
    let sigma = over(&|weight| weight * weight).sqrt();
    let t = saddle(&|t| over(&|weight| weight * (weight * t).tanh()), x).max(1.0 / sigma);
    let cumulant = over(&|weight| {
        let a = weight * t;
        a + (-2.0 * a).exp().ln_1p() - std::f64::consts::LN_2
    });
    // The sum over M steps also counts what lies 2M further on either side; M of this size leaves
    // less than 1e-15 of it. An odd number pairs each θ with −θ.
    let steps = (20.0 * sigma + x / 2.0).ceil() as u64 | 1;
    // With this many bits that are still random the integrand does not come back once it is gone.
    let vanishes = over(&|weight| (weight * t).cosh().powi(-2)) > 400.0;
    let mut integral = 1.0 / (1.0 - (-2.0 * t).exp());
    for step in 1..=steps / 2 {
        let theta = step as f64 * std::f64::consts::PI / steps as f64;
        let (mut ln_size, mut phase) = (0.0, -theta * x);
        for &(weight, count) in terms {
            // Most steps are nothing after a few terms.
            if ln_size < GONE {
                break;
            }
            let (sin, cos) = (weight * theta).sin_cos();
            let tilted = (weight * t).tanh() * sin;
            ln_size += count * 0.5 * (cos * cos + tilted * tilted).ln();
            phase += count * tilted.atan2(cos);
        }
        if ln_size < GONE {
            if vanishes {
                break;
            }
            continue;
        }
        // e^{i phase} / (1 − e^{−2t} e^{−2iθ}), its real part.
        let shrink = (-2.0 * t).exp();
        let (re, im) = (1.0 - shrink * (2.0 * theta).cos(), shrink * (2.0 * theta).sin());
        let (sin, cos) = phase.sin_cos();
        integral += 2.0 * ln_size.exp() * (cos * re + sin * im) / (re * re + im * im);
    }
    ((cumulant - t * x).exp() * integral / steps as f64).clamp(f64::MIN_POSITIVE, 1.0)
}

/// Where the increasing `slope` reaches `x`.
fn saddle(slope: &dyn Fn(f64) -> f64, x: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e-9);
    while slope(high) < x && high < 1e3 {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if slope(middle) < x {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All tails by convolution, one bit at a time.
    fn convolved(terms: &[(u64, u64)]) -> Vec<f64> {
        let mut law = vec![1.0];
        for &(weight, count) in terms {
            for _ in 0..count {
                let mut next = vec![0.0; law.len() + weight as usize];
                for (sum, p) in law.iter().enumerate() {
                    next[sum] += p / 2.0;
                    next[sum + weight as usize] += p / 2.0;
                }
                law = next;
            }
        }
        for sum in (0..law.len() - 1).rev() {
            law[sum] += law[sum + 1];
        }
        law
    }

    #[test]
    fn tail_is_exact() {
        let mut compared = 0;
        for (depth, positions) in [
            (1, 1),
            (1, 900),
            (2, 40),
            (3, 7),
            (4, 30),
            (5, 36),
            (8, 1),
            (10, 12),
            (30, 2),
            (30, 9),
        ] {
            let weighted: Vec<(u64, u64)> = super::super::layer_weights(depth)
                .into_iter()
                .map(|weight| (weight, positions))
                .collect();
            for terms in [weighted, vec![(1, depth as u64 * positions)]] {
                let tails = convolved(&terms);
                let step = (tails.len() / 40).max(1);
                for sum in (0..tails.len()).step_by(step).chain([tails.len() - 1]) {
                    let found = tail(&terms, sum as u64);
                    assert!(
                        (found / tails[sum] - 1.0).abs() < 1e-8,
                        "{terms:?}, {sum}: {found:e}, not {:e}",
                        tails[sum]
                    );
                    compared += usize::from(tails[sum] < 1e-6);
                }
                assert_eq!(tail(&terms, tails.len() as u64), 0.0);
            }
        }
        assert!(compared > 100, "{compared} small tails");
    }

    /// By exact rationals (Python's fractions), and the tail's floor.
    #[test]
    fn pinned_values() {
        for (n, k, expected) in
            [(100, 60, 0.028_443_966_820_490_38), (100, 99, 7.967_495_142_732_36e-29)]
        {
            let found = tail(&[(1, n)], k);
            assert!((found / expected - 1.0).abs() < 1e-9, "{n}, {k}: {found:e}");
        }
        assert_eq!(tail(&[(1, 3000)], 3000), f64::MIN_POSITIVE);
    }
}
