//! A certificate: how far the sampled law can be from the claimed one.

/// An upper bound on the total variation between the law that was sampled and `p`, on these cells,
/// that holds with probability `1 − delta` whatever the sampled law is:
///
/// `TV(p̂, p) + ½·√((K−1)/n) + √(ln(1/δ) / (2n))`.
///
/// Why: `TV(p', p) ≤ TV(p̂, p) + TV(p̂, p')`. One outcome moves `TV(p̂, p')` by at most `1/n`, so
/// it exceeds its mean by more than the last term with probability at most δ (McDiarmid 1989), and
/// its mean is at most `½ Σ √(p'_i(1−p'_i)/n) ≤ ½ √((K−1)/n)` (Jensen; Cauchy–Schwarz).
///
/// `empirical` is `TV(p̂, p)` with all impossible outcomes counted in full.
///
/// ```
/// use draftproof_verification::bound::total_variation;
/// // Two cells, a million outcomes, none of them off: 0.0005 + 0.0026 at confidence 1 − 1e-6.
/// let bound = total_variation(0.0, 2, 1_000_000, 1e-6);
/// assert!((bound - 0.003_128).abs() < 1e-6);
/// ```
#[must_use]
pub fn total_variation(empirical: f64, cells: usize, n: u64, delta: f64) -> f64 {
    let n = n as f64;
    let mean = 0.5 * (cells.saturating_sub(1) as f64 / n).sqrt();
    let deviation = (-delta.ln() / (2.0 * n)).sqrt();
    (empirical + mean + deviation).min(1.0)
}

/// `TV(p̂, p) = ½ Σ |O_i/n − p_i|`, with `impossible` outcomes outside all cells.
#[must_use]
pub fn empirical(p: &[f64], counts: &[u64], impossible: u64) -> f64 {
    let n = (counts.iter().sum::<u64>() + impossible).max(1) as f64;
    let inside: f64 = p.iter().zip(counts).map(|(p, &count)| (count as f64 / n - p).abs()).sum();
    0.5 * (inside + impossible as f64 / n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the usual table: 64 cells, δ = 1e-6.
    #[test]
    fn usual_sizes() {
        for (n, expected) in [(100_000, 0.012_55 + 0.008_31), (1_000_000, 0.003_97 + 0.002_63)] {
            let bound = total_variation(0.0, 64, n, 1e-6);
            assert!((bound - expected).abs() < 2e-5, "{n}: {bound}");
        }
        assert_eq!(total_variation(0.9, 4, 1, 1e-6), 1.0);
    }

    #[test]
    fn impossible_outcomes_count() {
        assert_eq!(empirical(&[0.5, 0.5], &[5, 5], 0), 0.0);
        assert_eq!(empirical(&[0.5, 0.5], &[25, 25], 50), 0.5);
    }
}
