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
}
