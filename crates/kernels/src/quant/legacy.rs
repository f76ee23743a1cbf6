//! Blocks of 32 values with scales of their own. Every value is `q·d + m` with m = 0, −8·d or −16·d
//! where the block has none; the product is exact, and so is the sum where m is a multiple of d.

use super::{BlockOf, Format, Scales, half, part};
use crate::simd::{LANES, Simd};

/// A format whose block is `[u8; $bytes]` and that gives both its vectors in one step.
macro_rules! format32 {
    (
        $(#[$doc:meta])* $name:ident, $bytes:literal, $simd:ident, $block:ident,
        scales $scales:expr, values $values:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(non_camel_case_types, reason = "the names that everybody uses")]
        pub(crate) struct $name;

        impl BlockOf for [u8; $bytes] {
            type Format = $name;
        }

        impl Format for $name {
            type Block = [u8; $bytes];
            const VALUES: usize = 32;
            const VECTORS: usize = 2;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[[u8; $bytes]] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn scales<S: Simd>($simd: S, $block: &[u8; $bytes]) -> Scales<S> {
                Scales { whole: $scales, groups: [[0.0; LANES]; 2] }
            }

            #[inline(always)]
            fn step<S: Simd>(
                $simd: S,
                $block: &[u8; $bytes],
                scales: &Scales<S>,
                _i: usize,
            ) -> [S::V; 4] {
                let ([low, up], [d, m]) = ($values, scales.whole);
                let low = $simd.fma($simd.float(low), d, m);
                let up = $simd.fma($simd.float(up), d, m);
                [low, up, low, up]
            }
        }
    };
}

/// The lower and the upper halves of sixteen bytes.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, bytes: &[u8; 16]) -> [S::I; 2] {
    let both = simd.bytes(bytes);
    [simd.and(both, 15), simd.shift_right(both, 4)]
}

/// Nibbles with a fifth bit from `high`, bit by bit in the order of the values.
#[inline(always)]
fn fives<S: Simd>(simd: S, bytes: &[u8; 16], high: &[u8; 4]) -> [S::I; 2] {
    let [low, up] = nibbles(simd, bytes);
    [simd.or_where(low, half(high, 0), 16), simd.or_where(up, half(high, 2), 16)]
}

/// d, and what makes values of which `zero` is the middle.
#[inline(always)]
fn centred<S: Simd>(simd: S, d: u16, zero: f32) -> [S::V; 2] {
    let d = simd.splat_half(d);
    [d, simd.mul(d, simd.splat(-zero))]
}

format32!(
    /// d, then 32 signed bytes.
    Q8_0, 34, simd, block,
    scales [simd.splat_half(half(block, 0)), simd.zero()],
    values [simd.signed(part(block, 2)), simd.signed(part(block, 18))]
);

format32!(
    /// d, then 16 bytes: value i is the lower half of byte i, value i + 16 the upper one.
    Q4_0, 18, simd, block,
    scales centred(simd, half(block, 0), 8.0),
    values nibbles(simd, part(block, 2))
);

format32!(
    /// d, m, then nibbles as in Q4_0.
    Q4_1, 20, simd, block,
    scales [simd.splat_half(half(block, 0)), simd.splat_half(half(block, 2))],
    values nibbles(simd, part(block, 4))
);

format32!(
    /// d, the fifth bits of all values, then nibbles as in Q4_0.
    Q5_0, 22, simd, block,
    scales centred(simd, half(block, 0), 16.0),
    values fives(simd, part(block, 6), part(block, 2))
);

format32!(
    /// d, m, the fifth bits of all values, then nibbles as in Q4_0.
    Q5_1, 24, simd, block,
    scales [simd.splat_half(half(block, 0)), simd.splat_half(half(block, 2))],
    values fives(simd, part(block, 8), part(block, 4))
);
