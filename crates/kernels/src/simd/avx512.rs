//! AVX-512: a vector is one register.

use std::arch::x86_64::{
    __m512, __m512i, _CMP_LT_OQ, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32,
    _mm_loadu_si128, _mm_movehl_ps, _mm_prefetch, _mm_shuffle_ps, _mm_storeu_ps, _mm256_add_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_si256, _mm256_set1_epi16,
    _mm512_add_epi32, _mm512_add_ps, _mm512_and_epi32, _mm512_castps_si512, _mm512_castps512_ps128,
    _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_div_ps, _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_blend_ps, _mm512_mask_or_epi32, _mm512_maskz_loadu_ps,
    _mm512_maskz_permutexvar_epi8, _mm512_mul_ps, _mm512_or_epi32, _mm512_permute_ps,
    _mm512_permutex2var_ps, _mm512_permutexvar_ps, _mm512_set_epi32, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_shuffle_f32x4, _mm512_slli_epi32, _mm512_sllv_epi32, _mm512_srlv_epi32,
    _mm512_storeu_ps, _mm512_sub_ps,
};

use std::hint::black_box;

use half::bf16;

use super::{Kernel, LANES, Simd};

/// AVX-512 F, BW, DQ and VL, with AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// The same with VBMI, which widens bf16 in one instruction instead of two.
///
/// The instruction is a masked permutation of bytes. Its operands are hidden from the compiler,
/// which would otherwise split it into an unmasked permutation and an `and`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vbmi {
    /// The bytes that are moved: the upper two of every lane.
    upper: u64,
    /// Where they come from: lanes 0 to 15 and 16 to 31.
    indices: &'static [[u8; 64]; 2],
}

impl Avx512 {
    /// The proof, if this machine has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }
}

impl Vbmi {
    /// The proof, if this machine has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = Avx512::detect().is_some() && is_x86_feature_detected!("avx512vbmi");
        found.then(|| Self { upper: black_box(0xCCCC_CCCC_CCCC_CCCC), indices: black_box(&SPREAD) })
    }
}

/// For each byte of the widened lanes the byte of the narrow ones: lane l has its two bytes on top.
const fn spread(first: usize) -> [u8; 64] {
    let mut index = [0; 64];
    let mut lane = 0;
    while lane < LANES {
        index[4 * lane + 2] = (2 * (first + lane)) as u8;
        index[4 * lane + 3] = (2 * (first + lane) + 1) as u8;
        lane += 1;
    }
    index
}

static SPREAD: [[u8; 64]; 2] = [spread(0), spread(LANES)];

/// For `sum4`: the quarters (1, 4 + 0, 3, 4 + 2) of two vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters() -> __m512i {
    _mm512_set_epi32(27, 26, 25, 24, 15, 14, 13, 12, 19, 18, 17, 16, 7, 6, 5, 4)
}

/// For `sum4`: the first lanes of the quarters a, c, b, d in the order a, b, c, d.
#[inline]
#[target_feature(enable = "avx512f")]
fn firsts() -> __m512i {
    _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 4, 8, 0)
}

macro_rules! simd512 {
    ($name:ident, $features:literal, { $($widen:tt)* }) => {
        impl Simd for $name {
            type V = __m512;
            type I = __m512i;
            const ACCUMULATORS: usize = 24;

            #[inline(always)]
            fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
                #[target_feature(enable = $features)]
                fn inner<K: Kernel>(simd: $name, kernel: K) -> K::Output {
                    kernel.run(simd)
                }
                // SAFETY: `self` exists only if the features were detected.
                unsafe { inner(self, kernel) }
            }

            #[inline(always)]
            fn splat(self, value: f32) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_set1_ps(value) }
            }

            #[inline(always)]
            fn load(self, from: &[f32; LANES]) -> __m512 {
                // SAFETY: as in `vectorize`; the reference covers the 64 bytes, unaligned is fine.
                unsafe { _mm512_loadu_ps(from.as_ptr()) }
            }

            #[inline(always)]
            fn load_part(self, from: &[f32]) -> __m512 {
                debug_assert!(from.len() < LANES);
                let mask = (1_u16 << from.len()) - 1;
                // SAFETY: as in `vectorize`; only the lanes of the mask, which lie in `from`, are
                // read (the mask of a longer slice selects fewer lanes, or none).
                unsafe { _mm512_maskz_loadu_ps(mask, from.as_ptr()) }
            }

            #[inline(always)]
            fn store(self, v: __m512, to: &mut [f32; LANES]) {
                // SAFETY: as in `vectorize`; the reference covers the 64 bytes.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
            }

            #[inline(always)]
            fn widen(self, from: &[bf16; LANES]) -> __m512 {
                // SAFETY: as in `vectorize`; the reference covers the 32 bytes.
                unsafe {
                    let narrow = _mm256_loadu_si256(from.as_ptr().cast());
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
                }
            }

            $($widen)*

            #[inline(always)]
            fn add(self, a: __m512, b: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_add_ps(a, b) }
            }

            #[inline(always)]
            fn sub(self, a: __m512, b: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_sub_ps(a, b) }
            }

            #[inline(always)]
            fn mul(self, a: __m512, b: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_mul_ps(a, b) }
            }

            #[inline(always)]
            fn div(self, a: __m512, b: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_div_ps(a, b) }
            }

            #[inline(always)]
            fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_fmadd_ps(a, b, c) }
            }

            #[inline(always)]
            fn if_below(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
            }

            #[inline(always)]
            fn pow2(self, shifted: __m512) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe {
                    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
                    _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3F80_0000)))
                }
            }

            #[inline(always)]
            fn sum(self, v: __m512) -> f32 {
                // SAFETY: as in `vectorize`.
                unsafe {
                    let s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
                    let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
                    let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
                    _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps::<1>(s, s)))
                }
            }

            #[inline(always)]
            fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
                let [a, b, c, d] = v;
                let mut out = [0.0; 4];
                // SAFETY: as in `vectorize`; `out` covers the 16 bytes stored.
                unsafe {
                    // l + (l + 8) of a in the lower half, of b in the upper; then l + (l + 4) of
                    // a, c, b, d by quarters. A blend costs less than a second shuffle.
                    let halves = |a, b| {
                        let crossed = _mm512_shuffle_f32x4::<0x4E>(a, b);
                        _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a, b), crossed)
                    };
                    let (ab, cd) = (halves(a, b), halves(c, d));
                    let crossed = _mm512_permutex2var_ps(ab, quarters(), cd);
                    let s = _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, ab, cd), crossed);
                    let s = _mm512_add_ps(s, _mm512_permute_ps::<0x4E>(s));
                    let s = _mm512_add_ps(s, _mm512_permute_ps::<0xB1>(s));
                    let s = _mm512_permutexvar_ps(firsts(), s);
                    _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(s));
                }
                out
            }

            #[inline(always)]
            fn splat_half(self, bits: u16) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits.cast_signed())) }
            }

            #[inline(always)]
            fn bytes(self, from: &[u8; LANES]) -> __m512i {
                // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
                unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
            }

            #[inline(always)]
            fn signed(self, from: &[u8; LANES]) -> __m512i {
                // SAFETY: as in `vectorize`; the reference covers the 16 bytes.
                unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
            }

            #[inline(always)]
            fn and(self, a: __m512i, mask: u32) -> __m512i {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_and_epi32(a, _mm512_set1_epi32(mask.cast_signed())) }
            }

            #[inline(always)]
            fn or(self, a: __m512i, b: __m512i) -> __m512i {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_or_epi32(a, b) }
            }

            #[inline(always)]
            fn or_where(self, a: __m512i, lanes: u16, value: u32) -> __m512i {
                // SAFETY: as in `vectorize`.
                unsafe {
                    _mm512_mask_or_epi32(a, lanes, a, _mm512_set1_epi32(value.cast_signed()))
                }
            }

            #[inline(always)]
            fn shift_left(self, a: __m512i, by: u32) -> __m512i {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(by.cast_signed())) }
            }

            #[inline(always)]
            fn shift_right(self, a: __m512i, by: u32) -> __m512i {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(by.cast_signed())) }
            }

            #[inline(always)]
            fn float(self, a: __m512i) -> __m512 {
                // SAFETY: as in `vectorize`.
                unsafe { _mm512_cvtepi32_ps(a) }
            }

            #[inline(always)]
            fn prefetch<T>(self, at: *const T) {
                // SAFETY: a prefetch is a hint and never faults, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
            }
        }
    };
}

simd512!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", {});
simd512!(Vbmi, "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma", {
    #[inline(always)]
    fn widen_half(self, from: &[bf16; 2 * LANES], half: usize) -> __m512 {
        // SAFETY: as in `vectorize`; the references cover the 64 bytes each.
        unsafe {
            let narrow = _mm512_loadu_si512(from.as_ptr().cast());
            let index = _mm512_loadu_si512(self.indices[half].as_ptr().cast());
            _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(self.upper, index, narrow))
        }
    }
});
