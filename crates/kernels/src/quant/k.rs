//! Blocks of 256 values whose scales are quantised too. A step is 64 values.

use super::{BlockOf, Format, half, part};
use crate::simd::Simd;

/// A format whose block is `[u8; $bytes]`.
macro_rules! format256 {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, |$simd:ident, $block:ident, $i:ident| $body:expr) => {
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
            fn step<S: Simd>($simd: S, $block: &[u8; $bytes], $i: usize) -> [S::V; 4] {
                $body
            }
        }
    };
}

/// Scale and minimum of group `j` of 32 values: 6 bits each, those of the last four groups in two
/// pieces.
#[inline(always)]
fn scale_min(packed: &[u8; 12], j: usize) -> (f32, f32) {
    let (scale, min) = match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        }
    };
    (f32::from(scale), f32::from(min))
}

/// `q·(d·s) − e·m` for two groups of 32 values; all products are exact.
#[inline(always)]
fn scaled<S: Simd>(simd: S, q: [S::I; 4], block: &[u8], i: usize) -> [S::V; 4] {
    let (d, e, packed) = (half(block, 0), half(block, 2), part(block, 4));
    let group = |j| {
        let (scale, min) = scale_min(packed, j);
        (simd.splat(d * scale), simd.splat(-(e * min)))
    };
    let ((d0, m0), (d1, m1)) = (group(2 * i), group(2 * i + 1));
    [
        simd.fma(simd.float(q[0]), d0, m0),
        simd.fma(simd.float(q[1]), d0, m0),
        simd.fma(simd.float(q[2]), d1, m1),
        simd.fma(simd.float(q[3]), d1, m1),
    ]
}

/// The lower halves of 32 bytes, then the upper ones.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, bytes: &[u8; 32]) -> [S::I; 4] {
    let (a, b) = (simd.bytes(part(bytes, 0)), simd.bytes(part(bytes, 16)));
    [simd.and(a, 15), simd.and(b, 15), simd.shift_right(a, 4), simd.shift_right(b, 4)]
}

format256!(
    /// d, e, 12 bytes of scales and minima, then 32 bytes for each 64 values: lower halves first.
    Q4K, 144, |simd, block, i| {
        scaled(simd, nibbles(simd, part(block, 16 + 32 * i)), block, i)
    }
);

format256!(
    /// As Q4_K, with the fifth bits in between: bit j of byte l belongs to value 32·j + l.
    Q5K, 176, |simd, block, i| {
        let high: &[u8; 32] = part(block, 16);
        let fifth = |at, j: usize| {
            let moved = simd.shift_left(simd.bytes(part(high, at)), 4);
            simd.and(simd.shift_right(moved, j as u32), 16)
        };
        let [a, b, c, d] = nibbles(simd, part(block, 48 + 32 * i));
        let q = [
            simd.or(a, fifth(0, 2 * i)),
            simd.or(b, fifth(16, 2 * i)),
            simd.or(c, fifth(0, 2 * i + 1)),
            simd.or(d, fifth(16, 2 * i + 1)),
        ];
        scaled(simd, q, block, i)
    }
);

format256!(
    /// Lower four bits of each 128 values in 64 bytes, upper two in 32; 16 signed scales; d.
    Q6K, 210, |simd, block, i| {
        let (half_block, shift) = (i / 2, 4 * (i as u32 % 2));
        let low: &[u8; 64] = part(block, 64 * half_block);
        let high: &[u8; 32] = part(block, 128 + 32 * half_block);
        let d = half(block, 208);
        let scales: &[u8; 4] = part(block, 192 + 4 * i);
        let zero = simd.splat(32.0);
        let group = |v: usize, high_at: usize, high_shift: u32| {
            let low = simd.and(simd.shift_right(simd.bytes(part(low, 16 * v)), shift), 15);
            let high = simd.shift_left(simd.bytes(part(high, high_at)), 4);
            let high = simd.and(simd.shift_right(high, shift + high_shift), 48);
            let scale = simd.splat(d * f32::from(scales[v].cast_signed()));
            simd.mul(simd.sub(simd.float(simd.or(low, high)), zero), scale)
        };
        [group(0, 0, 0), group(1, 16, 0), group(2, 0, 2), group(3, 16, 2)]
    }
);
