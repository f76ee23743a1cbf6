//! Plain Rust. `mul_add` is one rounding on every machine, in software where there is no
//! instruction for it: slow, but the same bits.

use half::bf16;

use super::{Kernel, LANES, Simd};

/// No instruction set in particular.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    let mut out = a;
    for l in 0..LANES {
        out[l] = f(a[l], b[l]);
    }
    out
}

impl Simd for Portable {
    type V = V;
    type I = [u32; LANES];
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        *from
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn widen(self, from: &[bf16; LANES]) -> V {
        from.map(|value| f32::from_bits(u32::from(value.to_bits()) << 16))
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        let mut out = c;
        for l in 0..LANES {
            out[l] = a[l].mul_add(b[l], c[l]);
        }
        out
    }

    #[inline(always)]
    fn if_below(self, a: V, b: V, yes: V, no: V) -> V {
        let mut out = no;
        for l in 0..LANES {
            if a[l] < b[l] {
                out[l] = yes[l];
            }
        }
        out
    }

    #[inline(always)]
    fn pow2(self, shifted: V) -> V {
        shifted.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3F80_0000)))
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                v[l] += v[l + half];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn bytes(self, from: &[u8; LANES]) -> Self::I {
        from.map(u32::from)
    }

    #[inline(always)]
    fn signed(self, from: &[u8; LANES]) -> Self::I {
        from.map(|byte| i32::from(byte.cast_signed()).cast_unsigned())
    }

    #[inline(always)]
    fn and(self, a: Self::I, mask: u32) -> Self::I {
        a.map(|a| a & mask)
    }

    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        let mut out = a;
        for l in 0..LANES {
            out[l] |= b[l];
        }
        out
    }

    #[inline(always)]
    fn or_where(self, a: Self::I, lanes: u16, value: u32) -> Self::I {
        let mut out = a;
        for l in 0..LANES {
            if lanes >> l & 1 == 1 {
                out[l] |= value;
            }
        }
        out
    }

    #[inline(always)]
    fn shift_left(self, a: Self::I, by: u32) -> Self::I {
        a.map(|a| a << by)
    }

    #[inline(always)]
    fn shift_right(self, a: Self::I, by: u32) -> Self::I {
        a.map(|a| a >> by)
    }

    #[inline(always)]
    fn float(self, a: Self::I) -> V {
        a.map(|a| a.cast_signed() as f32)
    }
}
