//! Blocks of 32 values with scales of their own.

use super::{BlockOf, Format, half, part};
use crate::simd::Simd;

/// A format whose block is `[u8; $bytes]` and that gives both its vectors in one step.
macro_rules! format32 {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, |$simd:ident, $block:ident| $body:expr) => {
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
            fn step<S: Simd>($simd: S, $block: &[u8; $bytes], _i: usize) -> [S::V; 4] {
                let [low, high]: [S::V; 2] = $body;
                [low, high, low, high]
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
    let bits = |at: usize| u16::from_le_bytes([high[at], high[at + 1]]);
    [simd.or_where(low, bits(0), 16), simd.or_where(up, bits(2), 16)]
}

/// `(q − zero)·d`.
#[inline(always)]
fn centred<S: Simd>(simd: S, q: [S::I; 2], zero: f32, d: f32) -> [S::V; 2] {
    let (zero, d) = (simd.splat(zero), simd.splat(d));
    [simd.mul(simd.sub(simd.float(q[0]), zero), d), simd.mul(simd.sub(simd.float(q[1]), zero), d)]
}

/// `q·d + m`; the product is exact.
#[inline(always)]
fn lifted<S: Simd>(simd: S, q: [S::I; 2], d: f32, m: f32) -> [S::V; 2] {
    let (d, m) = (simd.splat(d), simd.splat(m));
    [simd.fma(simd.float(q[0]), d, m), simd.fma(simd.float(q[1]), d, m)]
}

format32!(
    /// d, then 32 signed bytes.
    Q8_0, 34, |simd, block| {
        let d = simd.splat(half(block, 0));
        let q = |at| simd.float(simd.signed(part(block, at)));
        [simd.mul(q(2), d), simd.mul(q(18), d)]
    }
);

format32!(
    /// d, then 16 bytes: value i is the lower half of byte i, value i + 16 the upper one.
    Q4_0, 18, |simd, block| centred(simd, nibbles(simd, part(block, 2)), 8.0, half(block, 0))
);

format32!(
    /// d, m, then nibbles as in Q4_0.
    Q4_1, 20, |simd, block| {
        lifted(simd, nibbles(simd, part(block, 4)), half(block, 0), half(block, 2))
    }
);

format32!(
    /// d, the fifth bits of all values, then nibbles as in Q4_0.
    Q5_0, 22, |simd, block| {
        centred(simd, fives(simd, part(block, 6), part(block, 2)), 16.0, half(block, 0))
    }
);

format32!(
    /// d, m, the fifth bits of all values, then nibbles as in Q4_0.
    Q5_1, 24, |simd, block| {
        let q = fives(simd, part(block, 8), part(block, 4));
        lifted(simd, q, half(block, 0), half(block, 2))
    }
);
