//! AVX2 with FMA: a vector is two registers, lanes 0 to 7 and 8 to 15.

use std::arch::x86_64::{
    __m256, __m256i, _CMP_LT_OQ, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32,
    _mm_loadu_si128, _mm_movehl_ps, _mm_prefetch, _mm_shuffle_ps, _mm_srli_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_and_si256, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_or_si256,
    _mm256_set_epi32, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_sllv_epi32,
    _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use half::bf16;

use super::{Kernel, LANES, Simd};

/// AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if this machine has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }
}

type V = [__m256; 2];
type I = [__m256i; 2];

impl Simd for Avx2 {
    type V = V;
    type I = I;
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` exists only if the features were detected.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        // SAFETY: as in `vectorize`.
        let v = unsafe { _mm256_set1_ps(value) };
        [v, v]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        let at = from.as_ptr();
        // SAFETY: as in `vectorize`; the reference covers both halves, unaligned is fine.
        unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] }
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        let at = to.as_mut_ptr();
        // SAFETY: as in `vectorize`; the reference covers both halves.
        unsafe {
            _mm256_storeu_ps(at, v[0]);
            _mm256_storeu_ps(at.add(8), v[1]);
        }
    }

    #[inline(always)]
    fn widen(self, from: &[bf16; LANES]) -> V {
        let at = from.as_ptr();
        // SAFETY: as in `vectorize`; the reference covers both halves of 16 bytes.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn if_below(self, a: V, b: V, yes: V, no: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]);
            [_mm256_blendv_ps(no[0], yes[0], low), _mm256_blendv_ps(no[1], yes[1], high)]
        }
    }

    #[inline(always)]
    fn pow2(self, shifted: V) -> V {
        // SAFETY: as in `vectorize`.
        unsafe {
            let one = _mm256_set1_epi32(0x3F80_0000);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[1]));
            [
                _mm256_castsi256_ps(_mm256_add_epi32(low, one)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, one)),
            ]
        }
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: as in `vectorize`.
        unsafe {
            let s = _mm256_add_ps(v[0], v[1]);
            let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps::<1>(s, s)))
        }
    }

    #[inline(always)]
    fn bytes(self, from: &[u8; LANES]) -> I {
        // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
        unsafe {
            let all = _mm_loadu_si128(from.as_ptr().cast());
            [_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(all))]
        }
    }

    #[inline(always)]
    fn signed(self, from: &[u8; LANES]) -> I {
        // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
        unsafe {
            let all = _mm_loadu_si128(from.as_ptr().cast());
            [_mm256_cvtepi8_epi32(all), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(all))]
        }
    }

    #[inline(always)]
    fn and(self, a: I, mask: u32) -> I {
        // SAFETY: as in `vectorize`.
        unsafe {
            let mask = _mm256_set1_epi32(mask.cast_signed());
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
    }

    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn or_where(self, a: I, lanes: u16, value: u32) -> I {
        // SAFETY: as in `vectorize`.
        unsafe {
            let value = _mm256_set1_epi32(value.cast_signed());
            let bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
            let chosen = |byte: u8| {
                let set = _mm256_and_si256(_mm256_set1_epi32(byte.into()), bits);
                _mm256_and_si256(_mm256_cmpeq_epi32(set, bits), value)
            };
            let [low, high] = lanes.to_le_bytes();
            [_mm256_or_si256(a[0], chosen(low)), _mm256_or_si256(a[1], chosen(high))]
        }
    }

    #[inline(always)]
    fn shift_left(self, a: I, by: u32) -> I {
        // SAFETY: as in `vectorize`.
        unsafe {
            let by = _mm256_set1_epi32(by.cast_signed());
            [_mm256_sllv_epi32(a[0], by), _mm256_sllv_epi32(a[1], by)]
        }
    }

    #[inline(always)]
    fn shift_right(self, a: I, by: u32) -> I {
        // SAFETY: as in `vectorize`.
        unsafe {
            let by = _mm256_set1_epi32(by.cast_signed());
            [_mm256_srlv_epi32(a[0], by), _mm256_srlv_epi32(a[1], by)]
        }
    }

    #[inline(always)]
    fn float(self, a: I) -> V {
        // SAFETY: as in `vectorize`.
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch is a hint and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
