//! Blocks of 256 values whose scales are quantised too. A step is 64 values. Every value is
//! `q·s + m` with s and m exact, the product exact, and the sum rounded.

use super::{BlockOf, Format, Scales, half, part};
use crate::simd::{LANES, Simd};

/// A format whose block is `[u8; $bytes]`.
macro_rules! format256 {
    (
        $(#[$doc:meta])* $name:ident, $bytes:literal, $simd:ident, $block:ident, $i:ident,
        scales $scales:expr, group $group:expr, values $values:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl BlockOf for [u8; $bytes] {
            type Format = $name;
        }

        impl Format for $name {
            type Block = [u8; $bytes];
            const VALUES: usize = 256;
            const VECTORS: usize = 4;

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[[u8; $bytes]] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn scales<S: Simd>($simd: S, $block: &[u8; $bytes]) -> Scales<S> {
                Scales { whole: [$simd.zero(); 2], groups: $scales }
            }

            #[inline(always)]
            fn step<S: Simd>(
                $simd: S,
                $block: &[u8; $bytes],
                scales: &Scales<S>,
                $i: usize,
            ) -> [S::V; 4] {
                let values: [S::I; 4] = $values;
                let mut out = [$simd.zero(); 4];
                for v in 0..4 {
                    // Of the groups that the block has, the one that vector 4·i + v belongs to.
                    let group = (4 * $i + v) / $group;
                    let s = $simd.splat(scales.groups[0][group]);
                    let m = $simd.splat(scales.groups[1][group]);
                    out[v] = $simd.fma($simd.float(values[v]), s, m);
                }
                out
            }
        }
    };
}

/// Scales and minima of the eight groups of 32 values, 6 bits each: those of the first four groups
/// are the lower six bits of four bytes each, the others lie in the next four and in what is left.
#[inline(always)]
fn scales_and_minima<S: Simd>(simd: S, block: &[u8]) -> [[f32; LANES]; 2] {
    let word = |at| u32::from_le_bytes(*part(block, at));
    let [a, b, c] = [word(4), word(8), word(12)];
    let last = |low: u32, high: u32| low & 0x0F0F_0F0F | (high >> 6 & 0x0303_0303) << 4;
    let words = [a & 0x3F3F_3F3F, last(c, a), b & 0x3F3F_3F3F, last(c >> 4, b)];
    let mut bytes = [0; LANES];
    for w in 0..4 {
        bytes[4 * w..4 * w + 4].copy_from_slice(&words[w].to_le_bytes());
    }
    let numbers = simd.float(simd.bytes(&bytes));
    let mut out = [[0.0; LANES]; 2];
    simd.store(simd.mul(numbers, simd.splat_half(half(block, 0))), &mut out[0]);
    let mut minima = [0.0; LANES];
    simd.store(simd.mul(numbers, simd.splat_half(half(block, 2) ^ 0x8000)), &mut minima);
    out[1][..8].copy_from_slice(&minima[8..]);
    out
}

/// The lower halves of 32 bytes, then the upper ones.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, bytes: &[u8; 32]) -> [S::I; 4] {
    let (a, b) = (simd.bytes(part(bytes, 0)), simd.bytes(part(bytes, 16)));
    [simd.and(a, 15), simd.and(b, 15), simd.shift_right(a, 4), simd.shift_right(b, 4)]
}

/// Bits `from` and following of sixteen bytes, moved to bit 4; those of `mask` are kept.
#[inline(always)]
fn upper<S: Simd>(simd: S, bytes: &[u8; 16], from: u32, mask: u32) -> S::I {
    simd.and(simd.shift_right(simd.shift_left(simd.bytes(bytes), 4), from), mask)
}

/// Four bits of each of sixteen bytes from bit `from` on, and two from bit `high_from` on.
#[inline(always)]
fn six<S: Simd>(simd: S, low: &[u8; 16], from: u32, high: &[u8; 16], high_from: u32) -> S::I {
    let low = simd.and(simd.shift_right(simd.bytes(low), from), 15);
    simd.or(low, upper(simd, high, high_from, 48))
}

/// The scales of sixteen groups of 16 values, and what makes 32 the middle.
#[inline(always)]
fn signed_scales<S: Simd>(simd: S, scales: &[u8; 16], d: u16) -> [[f32; LANES]; 2] {
    let scales = simd.mul(simd.float(simd.signed(scales)), simd.splat_half(d));
    let mut out = [[0.0; LANES]; 2];
    simd.store(scales, &mut out[0]);
    simd.store(simd.mul(scales, simd.splat(-32.0)), &mut out[1]);
    out
}

format256!(
    /// d, e, 12 bytes of scales and minima, then 32 bytes for each 64 values: lower halves first.
    Q4K, 144, simd, block, i,
    scales scales_and_minima(simd, block),
    group 2,
    values nibbles(simd, part(block, 16 + 32 * i))
);

format256!(
    /// As Q4_K, with the fifth bits in between: bit j of byte l belongs to value 32·j + l.
    Q5K, 176, simd, block, i,
    scales scales_and_minima(simd, block),
    group 2,
    values {
        let (high_a, high_b) = (part(block, 16), part(block, 32));
        let (first, second) = (2 * i as u32, 2 * i as u32 + 1);
        let [a, b, c, d] = nibbles(simd, part(block, 48 + 32 * i));
        [
            simd.or(a, upper(simd, high_a, first, 16)),
            simd.or(b, upper(simd, high_b, first, 16)),
            simd.or(c, upper(simd, high_a, second, 16)),
            simd.or(d, upper(simd, high_b, second, 16)),
        ]
    }
);

format256!(
    /// Lower four bits of each 128 values in 64 bytes, upper two in 32; 16 signed scales; d.
    Q6K, 210, simd, block, i,
    scales signed_scales(simd, part(block, 192), half(block, 208)),
    group 1,
    values {
        let (half_block, shift) = (i / 2, 4 * (i as u32 % 2));
        let low: &[u8; 64] = part(block, 64 * half_block);
        let high: &[u8; 32] = part(block, 128 + 32 * half_block);
        let (high_a, high_b) = (part(high, 0), part(high, 16));
        [
            six(simd, part(low, 0), shift, high_a, shift),
            six(simd, part(low, 16), shift, high_b, shift),
            six(simd, part(low, 32), shift, high_a, shift + 2),
            six(simd, part(low, 48), shift, high_b, shift + 2),
        ]
    }
);
