//! NEON: a vector is four registers of four lanes.

use std::arch::aarch64::{
    float32x4_t, vadd_f32, vaddq_f32, vaddq_u32, vbslq_f32, vcltq_f32, vdivq_f32, vdupq_n_f32,
    vdupq_n_u32, vfmaq_f32, vget_high_f32, vget_lane_f32, vget_low_f32, vld1_u16, vld1q_f32,
    vmulq_f32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshll_n_u16, vshlq_n_u32, vst1q_f32,
    vsubq_f32,
};

use half::bf16;

use super::{Kernel, LANES, Simd};

/// NEON, which every aarch64 target that Rust compiles `std` for has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, if this machine has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

type V = [float32x4_t; 4];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> V {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Simd for Neon {
    type V = V;
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn inner<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` exists only if the feature was detected.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        // SAFETY: as in `vectorize`.
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        let at = from.as_ptr();
        // SAFETY: as in `vectorize`; the reference covers the four quarters.
        unsafe {
            [vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))]
        }
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        let at = to.as_mut_ptr();
        // SAFETY: as in `vectorize`; the reference covers the four quarters.
        unsafe {
            vst1q_f32(at, v[0]);
            vst1q_f32(at.add(4), v[1]);
            vst1q_f32(at.add(8), v[2]);
            vst1q_f32(at.add(12), v[3]);
        }
    }

    #[inline(always)]
    fn widen(self, from: &[bf16; LANES]) -> V {
        let at: *const u16 = from.as_ptr().cast();
        // SAFETY: as in `vectorize`; bf16 is a transparent u16 and the reference covers all four
        // quarters.
        unsafe {
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.add(4)))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.add(8)))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.add(12)))),
            ]
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        zip(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        zip(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        zip(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        zip(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        let mut out = c;
        for q in 0..4 {
            // SAFETY: as in `vectorize`.
            out[q] = unsafe { vfmaq_f32(c[q], a[q], b[q]) };
        }
        out
    }

    #[inline(always)]
    fn if_below(self, a: V, b: V, yes: V, no: V) -> V {
        let mut out = no;
        for q in 0..4 {
            // SAFETY: as in `vectorize`.
            out[q] = unsafe { vbslq_f32(vcltq_f32(a[q], b[q]), yes[q], no[q]) };
        }
        out
    }

    #[inline(always)]
    fn pow2(self, shifted: V) -> V {
        let mut out = shifted;
        for q in 0..4 {
            // SAFETY: as in `vectorize`.
            out[q] = unsafe {
                let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted[q]));
                vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(0x3F80_0000)))
            };
        }
        out
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: as in `vectorize`.
        unsafe {
            let s = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let s = vadd_f32(vget_low_f32(s), vget_high_f32(s));
            vget_lane_f32::<0>(s) + vget_lane_f32::<1>(s)
        }
    }
}
