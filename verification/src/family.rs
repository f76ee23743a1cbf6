//! Many tests at once: Holm's step-down rule.

/// Which hypotheses Holm's rule rejects, so that the probability of *any* false rejection is at
/// most `alpha`, whatever the dependence between the tests (Holm 1979), and the level each was held
/// to.
///
/// The p-values are sorted; the i-th smallest of m (from 0) is held to `alpha / (m − i)`, and the
/// first that is not rejected ends the rejections. `family` is m; it may exceed the number of
/// values when the rest of the family was tested elsewhere (on another shard): then the rule is
/// stricter.
///
/// ```
/// use draftproof_verification::family::holm;
/// let verdicts = holm(&[0.01, 0.04, 0.011], 0.05, 3);
/// let rejected: Vec<bool> = verdicts.iter().map(|verdict| verdict.rejected).collect();
/// assert_eq!(rejected, [true, true, true]);
/// assert_eq!(verdicts[1].level, 0.05);
/// ```
///
/// # Panics
/// If `family` is smaller than the number of values.
#[must_use]
pub fn holm(p_values: &[f64], alpha: f64, family: usize) -> Vec<Verdict> {
    assert!(family >= p_values.len(), "a family of {family} with {} tests", p_values.len());
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut verdicts = vec![Verdict { rejected: false, level: alpha }; p_values.len()];
    let mut rejecting = true;
    for (rank, &test) in order.iter().enumerate() {
        let level = alpha / (family - rank) as f64;
        rejecting &= p_values[test] <= level;
        verdicts[test] = Verdict { rejected: rejecting, level };
    }
    verdicts
}

/// What became of one hypothesis of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it is rejected.
    pub rejected: bool,
    /// The level that its p-value was held to.
    pub level: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(p_values: &[f64], family: usize) -> Vec<bool> {
        holm(p_values, 0.05, family).iter().map(|verdict| verdict.rejected).collect()
    }

    #[test]
    fn steps_down_and_stops() {
        // 0.03 > 0.05/2, and so 0.04 is not looked at, though 0.04 ≤ 0.05.
        assert_eq!(rejected(&[0.04, 0.01, 0.03], 3), [false, true, false]);
        assert_eq!(rejected(&[0.0, 1.0], 2), [true, false]);
        assert_eq!(rejected(&[], 0), Vec::<bool>::new());
    }

    #[test]
    fn a_larger_family_is_stricter() {
        assert_eq!(rejected(&[0.04], 1), [true]);
        assert_eq!(rejected(&[0.04], 2), [false]);
    }
}
