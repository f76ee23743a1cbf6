//! The exponential as a fixed sequence of IEEE 754 operations.
//!
//! The weights of a [`Dist`](crate::Dist) must be the same bits on every machine, so they cannot
//! come from a platform's `exp`. Every operation here is correctly rounded by IEEE 754, the fused
//! multiply-adds included ([`f64::mul_add`] is one whether or not the machine has an instruction for
//! it; Rust makes none of its own), and their order is spelt out. So the result is a function of the
//! input alone, whatever the optimiser or the instruction set does.
//!
//! # Error
//! For `x` in `[-708, 0]` the relative error is below [`RELATIVE_ERROR`] `= 2^-52`; the largest one
//! seen against a 192-bit reference is 0.75·2^-52 (see the tests). Below −708, where the true value
//! is smaller than 2^-1021, the result is exactly 0.
//!
//! Method: `x = k·ln 2 + r` with `|r| ≤ ln 2 / 2` (Cody and Waite's two-part reduction), then a
//! polynomial of degree 11 within 2^-55 of `exp(r)`, in two chains so that neither waits for the
//! other, then a scaling by 2^k.

use crate::vector::{Loop, widest};

/// The bound on the relative error of [`exp`] on `[-708, 0]`.
pub const RELATIVE_ERROR: f64 = f64::EPSILON;

/// Arguments below this give 0.
const LOWEST: f64 = -708.0;

/// 2^52: adding it to a smaller non-negative number rounds to an integer, ties to even, and leaves that
/// integer in the low [`INTEGER_BITS`].
pub(crate) const INTEGERS: f64 = 4_503_599_627_370_496.0;
pub(crate) const INTEGER_BITS: u64 = (1 << 52) - 1;

/// 1.5·2^52: adding it rounds to an integer, ties to even, and leaves that integer in the low bits, in
/// two's complement.
pub(crate) const ROUND: f64 = 6_755_399_441_055_744.0;

/// `ln 2` in two parts. The first has 33 significant bits, so that `k` times it is exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// What is `P` in `exp(r) = 1 + r + r²·P(r)` at the ten Chebyshev nodes of `[-ln 2 / 2, ln 2 / 2]`: even
/// and odd powers, the highest first. (Computed with 60 digits: `tests/golden/make_rows.py`.)
const EVEN: [f64; 5] = [
    2.762_007_587_998_336_7e-7,
    2.480_152_132_236_869_2e-5,
    0.001_388_888_891_719_671_9,
    0.041_666_666_666_624_164,
    0.500_000_000_000_000_1,
];
const ODD: [f64; 5] = [
    2.510_037_583_256_123_4e-8,
    2.755_726_848_031_002_4e-6,
    0.000_198_412_698_630_405_45,
    0.008_333_333_333_330_065,
    0.166_666_666_666_666_69,
];

/// `e^x` for `x ≤ 0` (−∞ included), NaN for NaN; see the [module docs](self) for its error.
///
/// ```
/// use draftproof_decode::exp::exp;
/// assert_eq!(exp(0.0), 1.0);
/// assert_eq!(exp(f64::NEG_INFINITY), 0.0);
/// assert!((exp(-1.0) - 0.367_879_441_171_442_33).abs() < 1e-16);
/// ```
#[inline(always)]
#[must_use]
pub fn exp(x: f64) -> f64 {
    debug_assert!(x.is_nan() || x <= 0.0, "exp is specified for x ≤ 0 only, not for {x}");
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = k.mul_add(-LN_2_LOW, k.mul_add(-LN_2_HIGH, x));
    let square = r * r;
    let (mut even, mut odd) = (EVEN[0], ODD[0]);
    for n in 1..EVEN.len() {
        even = even.mul_add(square, EVEN[n]);
        odd = odd.mul_add(square, ODD[n]);
    }
    let value = 1.0 + square.mul_add(odd.mul_add(r, even), r);
    // The low bits of `shifted` hold k, −1021 ≤ k ≤ 0, in two's complement: k + 1023 is the biased
    // exponent of 2^k. Branch-free, so that a loop over a row is vectorised.
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    if x < LOWEST { 0.0 } else { value * scale }
}

/// `Σ exp(z − max)` over a row whose largest value is `max`: in eight lanes, lane l of the values l,
/// l + 8, … in order, which are then added in order. NaN if one of the values is.
#[must_use]
pub fn sum(row: &[f32], max: f64) -> f64 {
    widest(Sum { row, max })
}

struct Sum<'a> {
    row: &'a [f32],
    max: f64,
}

impl Loop for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [0.0; 8];
        let (blocks, rest) = self.row.as_chunks::<8>();
        for block in blocks {
            for (lane, &z) in lanes.iter_mut().zip(block) {
                *lane += exp(f64::from(z) - self.max);
            }
        }
        for (lane, &z) in lanes.iter_mut().zip(rest) {
            *lane += exp(f64::from(z) - self.max);
        }
        lanes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use astro_float::{BigFloat, Consts, RoundingMode};

    use super::*;

    /// The relative error of `exp(x)` in units of 2^-52, against 192-bit arithmetic.
    fn error(x: f64, constants: &mut Consts) -> f64 {
        const BITS: usize = 192;
        const MODE: RoundingMode = RoundingMode::ToEven;
        let exact = BigFloat::from_f64(x, BITS).exp(BITS, MODE, constants);
        let found = BigFloat::from_f64(exp(x), BITS);
        let relative = found.sub(&exact, BITS, MODE).div(&exact, BITS, MODE);
        let scaled = relative.mul(&BigFloat::from_f64(2f64.powi(52), BITS), BITS, MODE);
        // A decimal string is the crate's road back to f64; its error is far below what matters.
        scaled.to_string().parse::<f64>().expect("a number").abs()
    }

    /// Arguments over the whole range: an even grid, a geometric one towards 0, the borders between
    /// reductions (odd multiples of ln 2 / 2) with their neighbours, and pseudo-random ones.
    fn arguments() -> Vec<f64> {
        let mut xs: Vec<f64> = (0..=7080).map(|i| f64::from(i) * -0.1).collect();
        xs.extend((0..1100).map(|i| -(0.5f64.powi(i / 20)) * (1.0 + f64::from(i % 20) / 20.0)));
        for odd in (1..2043).step_by(2) {
            let border = -f64::from(odd) * std::f64::consts::LN_2 / 2.0;
            xs.extend([border, border.next_up(), border.next_down()]);
        }
        let mut state = 1u64;
        xs.extend((0..20_000).map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (state >> 11) as f64 / 2f64.powi(53);
            -unit * if i % 2 == 0 { 1.0 } else { 708.0 }
        }));
        xs.retain(|x| (LOWEST..=0.0).contains(x));
        xs
    }

    #[test]
    fn error_is_within_the_stated_bound_over_the_whole_range() {
        let mut constants = Consts::new().expect("constants");
        let worst = arguments()
            .into_iter()
            .map(|x| (error(x, &mut constants), x))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("arguments");
        println!("largest relative error {:.3}·2^-52 at {}", worst.0, worst.1);
        assert!(worst.0 < 1.0, "{worst:?}");
        assert!(worst.0 > 0.5, "a reference this close measures nothing: {worst:?}");
    }

    #[test]
    fn below_the_range_is_zero() {
        for x in [-708.000_001, -745.2, -1e300, f64::MIN, f64::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0);
        }
        assert!(exp(LOWEST) > 0.0);
    }

    /// Whatever vectors compute it: lanes of single exponentials, added in order.
    #[test]
    fn sums_are_of_single_values() {
        for len in [1, 7, 8, 9, 100] {
            let row: Vec<f32> = (0..len).map(|i| (i * 37 % 11) as f32 * -0.7).collect();
            let max = row.iter().fold(f32::NEG_INFINITY, |max, &z| max.max(z)).into();
            let mut lanes = [0.0; 8];
            for (i, &z) in row.iter().enumerate() {
                lanes[i % 8] += exp(f64::from(z) - max);
            }
            assert_eq!(sum(&row, max).to_bits(), lanes.iter().sum::<f64>().to_bits(), "{len}");
        }
        assert!(sum(&[0.0, f32::NAN, -1.0], 0.0).is_nan());
    }

    /// The same bits in debug and release, with any target CPU: CI runs this test in each. The
    /// values are those of an independent `exp`: `tests/golden/make_rows.py --pins`.
    #[test]
    fn value_stability() {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        let mut feed = |value: f64| {
            for byte in value.to_bits().to_le_bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        // One at a time and as a vectorised loop.
        arguments().into_iter().for_each(|x| feed(exp(x)));
        let mut row = arguments();
        row.iter_mut().for_each(|x| *x = exp(*x));
        row.into_iter().for_each(&mut feed);
        assert_eq!(exp(-0.5).to_bits(), 0x3fe3_68b2_fc6f_960a);
        assert_eq!(digest, 0xd72f_8617_4afa_c665, "digest {digest:#018x}");
    }
}
