//! AVX2 with FMA: a vector is two registers, lanes 0 to 7 and 8 to 15.

use std::arch::x86_64::{
    __m256, _CMP_LT_OQ, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_movehl_ps, _mm_prefetch, _mm_shuffle_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_blendv_ps,
    _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps,
    _mm256_cvtepu16_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps,
    _mm256_sub_ps,
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

impl Simd for Avx2 {
    type V = V;
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
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch is a hint and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
