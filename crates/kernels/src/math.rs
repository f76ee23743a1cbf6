//! Elementary functions as fixed sequences of exactly rounded operations.
//!
//! A library's `exp` differs from one libm to the next; these are the same bits wherever fused
//! multiply-add is one rounding.

use crate::simd::Simd;

/// Added to a small number, it moves the integer part to the low bits of the mantissa, rounded half
/// to even.
const SHIFT: f32 = 12_582_912.0;

/// `e^x`, within 2 units in the last place where −87 ≤ x ≤ 88; +0 below, +∞ above.
///
/// `x = n·ln 2 + r` with ln 2 in two parts, a polynomial of degree 7 in r (Cephes' coefficients)
/// and the exponent moved by n.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const LOWEST: f32 = -87.0;
    const HIGHEST: f32 = 88.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let shifted = simd.fma(x, simd.splat(std::f32::consts::LOG2_E), simd.splat(SHIFT));
    let n = simd.sub(shifted, simd.splat(SHIFT));
    let r = simd.fma(n, simd.splat(-LN2_HIGH), x);
    let r = simd.fma(n, simd.splat(-LN2_LOW), r);
    let mut p = simd.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        p = simd.fma(p, r, simd.splat(*coefficient));
    }
    let y = simd.add(simd.fma(p, simd.mul(r, r), r), simd.splat(1.0));
    let y = simd.mul(y, simd.pow2(shifted));
    let y = simd.if_below(x, simd.splat(LOWEST), simd.zero(), y);
    simd.if_below(simd.splat(HIGHEST), x, simd.splat(f32::INFINITY), y)
}

/// `x / (1 + e^(−slope·x))`: silu for slope 1.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::V) -> S::V {
    let e = exp(simd, simd.sub(simd.zero(), x));
    simd.div(x, simd.add(simd.splat(1.0), e))
}

/// GELU in its tanh form, `½x(1 + tanh u)` with `u = √(2/π)·(x + 0.044715x³)`, written as
/// `x / (1 + e^(−2u))`, which is the same without the cancellation.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    const MINUS_2_SQRT_2_OVER_PI: f32 = -1.595_769_2;
    const CUBIC: f32 = MINUS_2_SQRT_2_OVER_PI * 0.044_715;
    let square = simd.mul(x, x);
    let slope = simd.fma(square, simd.splat(CUBIC), simd.splat(MINUS_2_SQRT_2_OVER_PI));
    let e = exp(simd, simd.mul(x, slope));
    simd.div(x, simd.add(simd.splat(1.0), e))
}

/// `tanh x`: an odd polynomial (Cephes') below 0.625, else `±(1 − 2/(e^(2|x|) + 1))`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    const COEFFICIENTS: [f32; 5] =
        [-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1];
    let zero = simd.zero();
    let size = simd.if_below(x, zero, simd.sub(zero, x), x);
    let square = simd.mul(x, x);
    let mut p = simd.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        p = simd.fma(p, square, simd.splat(*coefficient));
    }
    let near = simd.fma(simd.mul(p, square), x, x);
    let one = simd.splat(1.0);
    let e = exp(simd, simd.add(size, size));
    let far = simd.sub(one, simd.div(simd.splat(2.0), simd.add(e, one)));
    let far = simd.if_below(x, zero, simd.sub(zero, far), far);
    simd.if_below(size, simd.splat(0.625), near, far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        isa::Isa,
        simd::{Kernel, LANES},
    };

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Silu,
        Gelu,
        Tanh,
    }

    struct Apply<'a>(Function, &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let mut out = vec![0.0; self.1.len()];
            let (from, _) = self.1.as_chunks::<LANES>();
            let (to, _) = out.as_chunks_mut::<LANES>();
            for (from, to) in from.iter().zip(to) {
                let x = simd.load(from);
                let y = match self.0 {
                    Function::Exp => exp(simd, x),
                    Function::Silu => silu(simd, x),
                    Function::Gelu => gelu_tanh(simd, x),
                    Function::Tanh => tanh(simd, x),
                };
                simd.store(y, to);
            }
            out
        }
    }

    fn points() -> Vec<f32> {
        let grid = (-16_000..16_000).map(|i| i as f32 * 0.0055);
        let odd = [0.0, -0.0, 1e-30, -1e-30, 87.0, 88.0, -87.0, 0.625, -0.625, 1e-4];
        let mut all: Vec<f32> = grid.chain(odd).collect();
        all.resize(all.len().next_multiple_of(LANES), 0.25);
        all
    }

    /// The worst relative error where the reference is a normal f32, after checking that all
    /// instruction sets agree everywhere.
    fn worst(function: Function, reference: impl Fn(f64) -> f64) -> f64 {
        let x = points();
        let first = Isa::Portable.run(Apply(function, &x));
        for isa in Isa::available() {
            let y = isa.run(Apply(function, &x));
            assert!(y.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?}");
        }
        let normal = |y: f64| y.abs() >= f64::from(f32::MIN_POSITIVE) && y.abs() < 1.6e38;
        let error = |(x, y): (&f32, &f32)| {
            let exact = reference(f64::from(*x));
            if normal(exact) { (f64::from(*y) - exact).abs() / exact.abs() } else { 0.0 }
        };
        x.iter().zip(&first).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_close_to_the_reals_and_equal_on_all_sets() {
        let unit = f64::from(f32::EPSILON);
        let exp = worst(Function::Exp, |x| if x < -87.0 { 0.0 } else { x.exp() });
        assert!(exp < 2.0 * unit, "{exp}");
        let tanh = worst(Function::Tanh, f64::tanh);
        assert!(tanh < 2.0 * unit, "{tanh}");
        let silu = worst(Function::Silu, |x| if x < -87.0 { 0.0 } else { x / (1.0 + (-x).exp()) });
        assert!(silu < 4.0 * unit, "{silu}");
        // The error of u is magnified by e^(−2u) where the gate is nearly closed.
        let gelu = worst(Function::Gelu, |x| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            if u < -4.0 { 0.0 } else { x / (1.0 + (-2.0 * u).exp()) }
        });
        assert!(gelu < 16.0 * unit, "{gelu}");
    }

    #[test]
    fn far_arguments_have_limits() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30, f32::NAN, 89.0]);
        for isa in Isa::available() {
            let y = isa.run(Apply(Function::Exp, &x));
            assert_eq!(y[..4], [0.0, f32::INFINITY, 0.0, f32::INFINITY]);
            assert!(y[4].is_nan() && y[5] == f32::INFINITY && y[6] == 1.0);
            let y = isa.run(Apply(Function::Tanh, &x));
            assert_eq!(y[..4], [-1.0, 1.0, -1.0, 1.0]);
            assert!(y[4].is_nan());
        }
    }
}
