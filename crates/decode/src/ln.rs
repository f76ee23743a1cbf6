//! The natural logarithm as a fixed sequence of IEEE 754 operations, and exponential variates by it.
//!
//! Like [`exp`](crate::exp): correctly rounded operations in a fixed order, so the same bits on every
//! machine. None of [`ln`]'s is fused: much of what calls it is no vectorised loop, and where a program
//! was not compiled for such instructions a fused one is a call.
//!
//! # Error
//! For positive normal `x` the relative error of [`ln`] is below [`RELATIVE_ERROR`] `= 2^-51` (the
//! largest seen against a 192-bit reference is in the tests).
//!
//! Method: `x = m·2^k` with `m` in `[√½, √2)`, `s = (m − 1)/(m + 1)`, and
//! `ln m = 2·atanh s = 2s·(1 + s²/3 + s⁴/5 + …)`, whose remainder after twelve terms is below 2^-60.

/// The bound on the relative error of [`ln`].
pub const RELATIVE_ERROR: f64 = 2.0 * f64::EPSILON;

/// `ln 2` in two parts; `k` times the first is exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// `1/(2n + 1)` for n = 12, 11, … 1.
const COEFFICIENTS: [f64; 12] = [
    1.0 / 25.0,
    1.0 / 23.0,
    1.0 / 21.0,
    1.0 / 19.0,
    1.0 / 17.0,
    1.0 / 15.0,
    1.0 / 13.0,
    1.0 / 11.0,
    1.0 / 9.0,
    1.0 / 7.0,
    1.0 / 5.0,
    1.0 / 3.0,
];

/// k and m with `x = m·2^k` and m in `[√½, √2)`.
#[inline(always)]
fn split(x: f64) -> (f64, f64) {
    /// The bits of √½: subtracting them makes the exponent field count from there.
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let k = (x.to_bits().wrapping_sub(SQRT_HALF) as i64) >> 52;
    (k as f64, f64::from_bits(x.to_bits().wrapping_sub((k << 52) as u64)))
}

/// The natural logarithm of a positive normal number.
///
/// ```
/// use draftproof_decode::ln::ln;
/// assert_eq!(ln(1.0), 0.0);
/// assert!((ln(10.0) - std::f64::consts::LN_10).abs() < 1e-15);
/// ```
#[inline(always)]
#[must_use]
pub fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0, "ln is specified for positive normal x, not {x}");
    let (k, m) = split(x);
    let f = m - 1.0;
    let s = f / (m + 1.0);
    let square = s * s;
    let mut series = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        series = series * square + coefficient;
    }
    // ln m = 2s + 2s·s²·series, and 2s = f − f·s exactly: f leads, so that its rounding is not lost.
    let tail = s * (2.0 * square * series) - f * s;
    k * LN_2_HIGH + (f + (tail + k * LN_2_LOW))
}

/// Chebyshev interpolation of `ln(1 + f)/f` on `[√½ − 1, √2 − 1]`, highest power first.
const ROUGH: [f64; 11] = [
    0.06572326890785582,
    -0.1162064838279674,
    0.11945878323161158,
    -0.1242082126731266,
    0.14212291239685343,
    -0.1666655557568226,
    0.20002535640646865,
    -0.2500006237440184,
    0.333333026610103,
    -0.49999999414018015,
    1.00000000060102,
];

/// [`ln`] within 3·10⁻¹⁰ and without its division, for figures shown to people.
#[inline(always)]
pub(crate) fn rough(x: f64) -> f64 {
    let (k, m) = split(x);
    let f = m - 1.0;
    let mut series = ROUGH[0];
    for &coefficient in &ROUGH[1..] {
        series = series.mul_add(f, coefficient);
    }
    k.mul_add(std::f64::consts::LN_2, f * series)
}

/// An exponential variate, `−ln(1 − U)` with `U = (n + ½)/2^64`, accurate to a few units of 2^-52
/// also where U is tiny: the winner of a race over a large vocabulary is decided there.
#[inline]
#[must_use]
pub fn exponential(n: u64) -> f64 {
    /// 2^-64.
    const UNIT: f64 = 1.0 / 18_446_744_073_709_551_616.0;
    if n >= 1 << 63 {
        // 1 − U from the complement, without cancellation.
        return -ln(((!n) as f64 + 0.5) * UNIT);
    }
    let u = (n as f64 + 0.5) * UNIT;
    // ln(1 − u) = ln y + ln((1 − u)/y) with y the rounded 1 − u; the second term is its rounding.
    let y = 1.0 - u;
    let rounding = (1.0 - y) - u;
    -(ln(y) + rounding / y)
}

#[cfg(test)]
mod tests {
    use astro_float::{BigFloat, Consts, RoundingMode};

    use super::*;

    const BITS: usize = 192;
    const MODE: RoundingMode = RoundingMode::ToEven;

    fn relative(found: f64, exact: &BigFloat) -> f64 {
        let found = BigFloat::from_f64(found, BITS);
        let error = found.sub(exact, BITS, MODE).div(exact, BITS, MODE);
        error.to_string().parse::<f64>().expect("a number").abs()
    }

    fn arguments() -> Vec<f64> {
        let mut xs = vec![f64::MIN_POSITIVE, f64::MAX, 0.5, 2.0, 3.0];
        // Around 1, where the result is near 0, and around the borders of the reduction.
        for exponent in 1..53 {
            xs.extend([1.0 + 0.5f64.powi(exponent), 1.0 - 0.5f64.powi(exponent)]);
        }
        for k in -1020..1020 {
            let border = std::f64::consts::FRAC_1_SQRT_2 * 2f64.powi(k);
            xs.extend([border, border.next_up(), border.next_down(), 2f64.powi(k)]);
        }
        let mut state = 9u64;
        for i in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (state >> 11) as f64 / 2f64.powi(53) + 1e-9;
            xs.push(unit * if i % 2 == 0 { 2.0 } else { 2f64.powi((state % 2000) as i32 - 1000) });
        }
        xs.retain(|x| x.is_normal() && *x != 1.0);
        xs
    }

    #[test]
    fn rough_is_near() {
        for i in 0..200_000 {
            let x = 2f64.powf(f64::from(i) / 200_000.0 * 124.0 - 62.0);
            assert!((rough(x) - ln(x)).abs() < 3e-10 + 1e-14 * ln(x).abs(), "{x}");
        }
        assert_eq!(rough(1.0), 0.0);
    }

    #[test]
    fn error_is_within_the_stated_bound() {
        let mut constants = Consts::new().expect("constants");
        let worst = arguments()
            .into_iter()
            .map(|x| {
                let exact = BigFloat::from_f64(x, BITS).ln(BITS, MODE, &mut constants);
                (relative(ln(x), &exact) / f64::EPSILON, x)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("arguments");
        println!("largest relative error {:.3}·2^-52 at {}", worst.0, worst.1);
        assert!(worst.0 * f64::EPSILON < RELATIVE_ERROR, "{worst:?}");
    }

    #[test]
    fn exponentials_are_accurate_in_both_tails() {
        let mut constants = Consts::new().expect("constants");
        let cases = (0..64).flat_map(|bit| [1u64 << bit, !(1 << bit), (1 << bit) - 1]);
        for n in cases.chain([0, u64::MAX]) {
            // 1 − (n + ½)/2^64 = (2^65 − 2n − 1)/2^65.
            let numerator = (1u128 << 65) - 2 * u128::from(n) - 1;
            let numerator = BigFloat::from_u128(numerator, BITS);
            let rest = numerator.div(&BigFloat::from_u128(1 << 65, BITS), BITS, MODE);
            let exact = rest.ln(BITS, MODE, &mut constants).neg();
            let error = relative(exponential(n), &exact);
            assert!(error < 4.0 * f64::EPSILON, "{n}: {error:e}");
        }
    }

    #[test]
    fn exponentials_are_monotone_and_positive() {
        let mut last = 0.0;
        for n in (0..64).map(|bit| 1u64 << bit).chain([u64::MAX]) {
            let e = exponential(n);
            assert!(e > last && e.is_finite(), "{n}: {e}");
            last = e;
        }
        assert!(exponential(0) > 0.0);
    }
}
