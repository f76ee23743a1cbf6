//! Sixteen virtual lanes of f32: the one vector type in which every kernel is written.
//!
//! A kernel is generic over [`Simd`] and is compiled once for each instruction set; the trait's
//! operations are exactly rounded on all of them (IEEE add, multiply, divide, fused multiply-add,
//! compares, bit moves), and the one operation with an order, [`Simd::sum`], is the same tree
//! everywhere. So a kernel gives the same bits on every instruction set *by construction*; the
//! tests then only have to catch a wrong intrinsic.
//!
//! # The tree
//! `sum` adds lane `l` to lane `l + 8`, then `l + 4`, `l + 2`, `l + 1`.

use half::bf16;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Avx512, Vbmi};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// The number of virtual lanes.
pub(crate) const LANES: usize = 16;

/// A computation that can be compiled for any instruction set.
///
/// Implementations mark `run` `#[inline(always)]`, so that it is compiled inside the function that
/// enables the instructions.
pub(crate) trait Kernel {
    /// What the computation gives.
    type Output;

    /// Whether it widens bf16, which is all that VBMI is for.
    const BF16: bool = true;

    /// Runs it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set. A value of the type is the proof that this machine has it.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type V: Copy;

    /// Sixteen 32-bit integers.
    type I: Copy;

    /// How many accumulators of sixteen lanes the registers hold, operands aside.
    const ACCUMULATORS: usize;

    /// Compiles and runs `kernel` with these instructions.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::V;

    /// All lanes +0.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// Lanes from memory.
    fn load(self, from: &[f32; LANES]) -> Self::V;

    /// Lanes to memory.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);

    /// Lanes from bf16, widened exactly.
    fn widen(self, from: &[bf16; LANES]) -> Self::V;

    /// The first (0) or second (1) sixteen lanes of a block of bf16.
    #[inline(always)]
    fn widen_half(self, from: &[bf16; 2 * LANES], half: usize) -> Self::V {
        self.widen(&from.as_chunks::<LANES>().0[half])
    }

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;

    /// `a − b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;

    /// `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;

    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;

    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// By lane `yes` where `a < b`, else (also for NaN) `no`.
    fn if_below(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;

    /// `2^n` by lane, where lane = 1.5·2²³ + n and −126 ≤ n ≤ 127: moves the low bits of the
    /// mantissa, where such a sum has its integer, to the exponent.
    fn pow2(self, shifted: Self::V) -> Self::V;

    /// The sum of the lanes by the [tree](self).
    fn sum(self, v: Self::V) -> f32;

    /// Four sums at once, each by the tree.
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        [self.sum(v[0]), self.sum(v[1]), self.sum(v[2]), self.sum(v[3])]
    }

    /// All lanes the f16 of these bits, exactly.
    #[inline(always)]
    fn splat_half(self, bits: u16) -> Self::V {
        let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7FFF));
        // In the binade of 0.5 the last place is 2^-24, as it is below f16's normal range.
        let small = (f32::from_bits(0x3F00_0000 | rest) - 0.5).to_bits();
        let large = (rest << 13) + if rest < 0x7C00 { 112 << 23 } else { 224 << 23 };
        let size = std::hint::select_unpredictable(rest < 0x400, small, large);
        self.splat(f32::from_bits(sign | size))
    }

    /// Lanes from bytes, 0 to 255.
    fn bytes(self, from: &[u8; LANES]) -> Self::I;

    /// Lanes from bytes, −128 to 127.
    fn signed(self, from: &[u8; LANES]) -> Self::I;

    /// `a & mask`.
    fn and(self, a: Self::I, mask: u32) -> Self::I;

    /// `a | b`.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;

    /// `a | value` in the lanes whose bit in `lanes` is set, `a` in the others.
    fn or_where(self, a: Self::I, lanes: u16, value: u32) -> Self::I;

    /// `a << by`, by < 32.
    fn shift_left(self, a: Self::I, by: u32) -> Self::I;

    /// `a >> by` with zeros from above, by < 32.
    fn shift_right(self, a: Self::I, by: u32) -> Self::I;

    /// The lanes as f32; exact up to 2²⁴.
    fn float(self, a: Self::I) -> Self::V;

    /// Asks for the cache line at `at`, which need not be a valid address.
    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        let _ = at;
    }

    /// Lanes from fewer than sixteen values, the rest +0.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::V {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        self.load(&lanes)
    }

    /// Lanes from fewer than sixteen bf16, the rest +0.
    #[inline(always)]
    fn widen_part(self, from: &[bf16]) -> Self::V {
        let mut lanes = [bf16::ZERO; LANES];
        lanes[..from.len()].copy_from_slice(from);
        self.widen(&lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    struct Half(u16);

    impl Kernel for Half {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            simd.store(simd.splat_half(self.0), &mut out);
            out
        }
    }

    #[test]
    fn every_half_is_exact() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            for isa in Isa::available() {
                for found in isa.run(Half(bits)) {
                    let same = found.to_bits() == expected.to_bits();
                    let none = found.is_nan() && expected.is_nan();
                    assert!(same || none, "{isa:?}, {bits:04x}: {found} and {expected}");
                }
            }
        }
    }
}
