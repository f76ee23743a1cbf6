//! NEON: a vector is four registers of four lanes.

use std::arch::aarch64::{
    float32x4_t, uint32x4_t, vadd_f32, vaddq_f32, vaddq_u32, vandq_u32, vbslq_f32, vcltq_f32,
    vcvtq_f32_s32, vdivq_f32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u32, vfmaq_f32, vget_high_f32,
    vget_high_s8, vget_high_s16, vget_high_u8, vget_high_u16, vget_lane_f32, vget_low_f32,
    vget_low_s8, vget_low_s16, vget_low_u8, vget_low_u16, vld1_u16, vld1q_f32, vld1q_u8, vld1q_u32,
    vmovl_s8, vmovl_s16, vmovl_u8, vmovl_u16, vmulq_f32, vorrq_u32, vreinterpretq_f32_u32,
    vreinterpretq_s8_u8, vreinterpretq_s32_u32, vreinterpretq_u32_f32, vreinterpretq_u32_s32,
    vshll_n_u16, vshlq_n_u32, vshlq_u32, vst1q_f32, vsubq_f32, vtstq_u32,
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
type I = [uint32x4_t; 4];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> V {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Simd for Neon {
    type V = V;
    type I = I;
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

    #[inline(always)]
    fn bytes(self, from: &[u8; LANES]) -> I {
        // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
        unsafe {
            let all = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(all)), vmovl_u8(vget_high_u8(all)));
            [
                vmovl_u16(vget_low_u16(low)),
                vmovl_u16(vget_high_u16(low)),
                vmovl_u16(vget_low_u16(high)),
                vmovl_u16(vget_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    fn signed(self, from: &[u8; LANES]) -> I {
        // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
        unsafe {
            let all = vreinterpretq_s8_u8(vld1q_u8(from.as_ptr()));
            let (low, high) = (vmovl_s8(vget_low_s8(all)), vmovl_s8(vget_high_s8(all)));
            [
                vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))),
                vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(low))),
                vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))),
                vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }

    #[inline(always)]
    fn and(self, a: I, mask: u32) -> I {
        // SAFETY: as in `vectorize`.
        a.map(|a| unsafe { vandq_u32(a, vdupq_n_u32(mask)) })
    }

    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        let mut out = a;
        for q in 0..4 {
            // SAFETY: as in `vectorize`.
            out[q] = unsafe { vorrq_u32(a[q], b[q]) };
        }
        out
    }

    #[inline(always)]
    fn or_where(self, a: I, lanes: u16, value: u32) -> I {
        let mut out = a;
        for q in 0..4 {
            let bits: [u32; 4] = [1 << (4 * q), 2 << (4 * q), 4 << (4 * q), 8 << (4 * q)];
            // SAFETY: as in `vectorize`; the array covers the four lanes.
            out[q] = unsafe {
                let chosen = vtstq_u32(vdupq_n_u32(lanes.into()), vld1q_u32(bits.as_ptr()));
                vorrq_u32(a[q], vandq_u32(chosen, vdupq_n_u32(value)))
            };
        }
        out
    }

    #[inline(always)]
    fn shift_left(self, a: I, by: u32) -> I {
        // SAFETY: as in `vectorize`.
        a.map(|a| unsafe { vshlq_u32(a, vdupq_n_s32(by.cast_signed())) })
    }

    #[inline(always)]
    fn shift_right(self, a: I, by: u32) -> I {
        // SAFETY: as in `vectorize`; a shift to the left by less than nothing is one to the right.
        a.map(|a| unsafe { vshlq_u32(a, vdupq_n_s32(-by.cast_signed())) })
    }

    #[inline(always)]
    fn float(self, a: I) -> V {
        // SAFETY: as in `vectorize`.
        a.map(|a| unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(a)) })
    }
}
