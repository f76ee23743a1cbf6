//! The instructions: tiles by inline assembly, since the compiler has no stable names for them, and what
//! AVX-512 does before and after.

use std::arch::{
    asm,
    x86_64::{
        __m512, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_and_si512, _mm512_castpd_ps,
        _mm512_castps_pd, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_i32scatter_epi32,
        _mm512_loadu_ps, _mm512_loadu_si512, _mm512_permutex2var_epi16, _mm512_set1_epi32,
        _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_sub_ps,
        _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    },
};

use half::bf16;

use super::{Amx, INPUTS, OUTPUTS, ROWS, SUMS, Sums, WORDS};

/// What `ldtilecfg` reads: 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight tiles of 16 rows of 64 bytes.
static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// This thread's tiles are set up as long as it lives.
pub(super) struct Configured(());

impl Configured {
    pub(super) fn new(_: Amx) -> Self {
        // SAFETY: there is AMX, as the argument proves; the instruction reads the 64 bytes of a
        // valid configuration and changes no register that the compiler knows of.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION,
                options(nostack, readonly, preserves_flags));
        }
        Self(())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: there is AMX, or there were no `self`.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// The pieces of 32 values of each row into a tile.
pub(super) fn split(_: Amx, x: &[&[f32; INPUTS]], tile: &mut [f32; WORDS]) {
    // SAFETY: a processor with AMX that was detected has AVX-512 F and BW.
    unsafe { split_512(x, tile) }
}

/// The rows' sums of all three pieces, by output.
pub(super) fn combine(_: Amx, sums: &[[f32; 16]; OUTPUTS], rows: usize) -> [[f32; 16]; ROWS] {
    // SAFETY: a processor with AMX that was detected has AVX-512 F and BW.
    unsafe { combine_512(sums, rows) }
}

/// The upper halves of 32 lanes of two vectors, in order.
static UPPER: [u16; 32] = {
    let mut index = [0; 32];
    let mut i = 0;
    while i < 32 {
        index[i] = 2 * i as u16 + 1;
        i += 1;
    }
    index
};

/// Every sixteenth word.
static COLUMN: [i32; 16] = {
    let mut index = [0; 16];
    let mut i = 0;
    while i < 16 {
        index[i] = 16 * i as i32;
        i += 1;
    }
    index
};

#[target_feature(enable = "avx512f,avx512bw")]
fn split_512(x: &[&[f32; INPUTS]], tile: &mut [f32; WORDS]) {
    let mut columns = [_mm512_setzero_ps(); 16];
    // SAFETY: the loads are of references to 64 bytes each (and of halves of 128).
    let upper = unsafe { _mm512_loadu_si512(UPPER.as_ptr().cast()) };
    let mask = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
    for (row, x) in x.iter().enumerate().take(ROWS) {
        // SAFETY: as above.
        let (mut low, mut high) =
            unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
        for piece in 0..3 {
            let l = _mm512_and_si512(_mm512_castps_si512(low), mask);
            let h = _mm512_and_si512(_mm512_castps_si512(high), mask);
            let pairs = _mm512_permutex2var_epi16(l, upper, h);
            columns[ROWS * piece + row] = _mm512_castsi512_ps(pairs);
            // Exact: the difference has the lower bits of the minuend.
            low = _mm512_sub_ps(low, _mm512_castsi512_ps(l));
            high = _mm512_sub_ps(high, _mm512_castsi512_ps(h));
        }
    }
    if x.len() == 1 {
        // SAFETY: as above; a word is stored at 16·i + column of 256, for i from 0 to 15 and columns
        // 0, 5 and 10.
        unsafe {
            let places = _mm512_loadu_si512(COLUMN.as_ptr().cast());
            for piece in 0..3 {
                let to = tile.as_mut_ptr().add(ROWS * piece);
                let words = _mm512_castps_si512(columns[ROWS * piece]);
                _mm512_i32scatter_epi32::<4>(to.cast(), places, words);
            }
        }
        return;
    }
    for (pair, words) in transpose(columns).into_iter().zip(tile.as_chunks_mut::<16>().0) {
        // SAFETY: the reference covers the 64 bytes.
        unsafe { _mm512_storeu_ps(words.as_mut_ptr(), pair) };
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn combine_512(sums: &[[f32; 16]; OUTPUTS], rows: usize) -> [[f32; 16]; ROWS] {
    let mut all = [[0.0; 16]; ROWS];
    if rows <= 2 {
        for r in 0..rows {
            for (y, sums) in all[r].iter_mut().zip(sums) {
                *y = (sums[r] + sums[ROWS + r]) + sums[2 * ROWS + r];
            }
        }
        return all;
    }
    let mut by_output = [_mm512_setzero_ps(); OUTPUTS];
    for (own, sums) in by_output.iter_mut().zip(sums) {
        // SAFETY: the reference covers the 64 bytes.
        *own = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
    }
    let columns = transpose(by_output);
    for r in 0..ROWS {
        let y = _mm512_add_ps(columns[r], columns[ROWS + r]);
        let y = _mm512_add_ps(y, columns[2 * ROWS + r]);
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(all[r].as_mut_ptr(), y) };
    }
    all
}

/// Lane j of vector i becomes lane i of vector j. (No closures here: `array::map` is compiled without
/// these instructions, and its closures would be calls.)
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // Quarter q of vector 4·i + j: lane 4·q + j of rows 4·i to 4·i + 3.
    let mut fours = pairs;
    for i in 0..4 {
        let (a, b) = (_mm512_castps_pd(pairs[4 * i]), _mm512_castps_pd(pairs[4 * i + 1]));
        let (c, d) = (_mm512_castps_pd(pairs[4 * i + 2]), _mm512_castps_pd(pairs[4 * i + 3]));
        fours[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        fours[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        fours[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        fours[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    let mut columns = fours;
    for j in 0..4 {
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let (ab, cd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d));
        columns[j] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
        columns[8 + j] = _mm512_shuffle_f32x4::<0xDD>(ab, cd);
        let (ab, cd) = (_mm512_shuffle_f32x4::<0xDD>(a, b), _mm512_shuffle_f32x4::<0xDD>(c, d));
        columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
        columns[12 + j] = _mm512_shuffle_f32x4::<0xDD>(ab, cd);
    }
    columns
}

/// How many steps of 32 inputs ahead of their use weights are asked for.
const AHEAD: usize = 8;

/// Asks for the weights that are used first.
pub(super) fn ask(_: Amx, weights: &[bf16], stride: usize) {
    for step in 0..AHEAD.min(stride / INPUTS) {
        for row in 0..OUTPUTS {
            let line = weights.as_ptr().wrapping_add(row * stride + step * INPUTS);
            // SAFETY: a prefetch is a hint and never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
    }
}

/// The sums of a tile of weights with each group of `words`, at most [`SUMS`]. Weights that lie behind
/// are asked for.
pub(super) fn multiply(
    _: Amx,
    weights: &[bf16],
    stride: usize,
    words: &[f32],
    blocks: usize,
    sums: &mut Sums,
) {
    let groups = words.len() / (blocks * WORDS);
    assert!(blocks > 0 && blocks * INPUTS == stride, "rows of whole blocks");
    assert_eq!(weights.len(), OUTPUTS * stride, "a whole tile of weights");
    assert_eq!(words.len(), groups * blocks * WORDS, "whole groups");
    assert!(groups <= SUMS, "at most {SUMS} tiles of sums");
    let row_bytes = 2 * stride;
    let tile = weights.as_ptr();
    // From the end of the first row on, it is the first row of the next tile.
    let jump = (OUTPUTS - 1) * row_bytes;
    let (ahead, turn) = match blocks > AHEAD {
        true => (tile.wrapping_add(AHEAD * INPUTS), AHEAD),
        false => (tile.wrapping_add(OUTPUTS * stride), 0),
    };
    let group = |index: usize| words.as_ptr().wrapping_add(index * blocks * WORDS);
    let to = sums.0.as_mut_ptr();
    // What the assertions above make sure of: block `b` of the weights is 16 rows of 64 bytes from
    // `tile + 64·b` on, `row_bytes` apart, in `weights`; block `b` of a group is 1024 bytes from
    // `group + 1024·b` on, in `words`; a tile of sums is 1024 bytes of `sums`. Prefetches never fault.
    macro_rules! run {
        ($zero:literal, $step:literal, $store:literal, $($name:ident = $value:expr),*) => {
            // SAFETY: as above; tiles are set up (`Configured` lives in `Split::run`), and no other
            // register is written than those named.
            unsafe {
                asm!(
                    $zero,
                    "2:",
                    $step,
                    "cmp {count}, {turn}
                    lea {walk}, [{ahead} + {jump}]
                    cmove {ahead}, {walk}
                    lea {walk}, [{ahead} + {row_bytes}]
                    prefetcht0 [{ahead}]
                    prefetcht0 [{ahead} + {row_bytes}*2]
                    prefetcht0 [{ahead} + {row_bytes}*4]
                    prefetcht0 [{ahead} + {row_bytes}*8]
                    prefetcht0 [{walk}]
                    prefetcht0 [{walk} + {row_bytes}*2]
                    prefetcht0 [{walk} + {row_bytes}*4]
                    prefetcht0 [{walk} + {row_bytes}*8]
                    lea {walk}, [{walk} + {row_bytes}*4]
                    lea {walk}, [{walk} + {row_bytes}*1]
                    prefetcht0 [{walk}]
                    prefetcht0 [{walk} + {row_bytes}*1]
                    prefetcht0 [{walk} + {row_bytes}*4]
                    prefetcht0 [{walk} + {row_bytes}*8]
                    lea {walk}, [{walk} + {row_bytes}*1]
                    prefetcht0 [{walk} + {row_bytes}*4]
                    prefetcht0 [{walk} + {row_bytes}*8]
                    lea {walk}, [{walk} + {row_bytes}*4]
                    prefetcht0 [{walk} + {row_bytes}*1]
                    prefetcht0 [{walk} + {row_bytes}*2]
                    add {ahead}, 64
                    add {tile}, 64
                    dec {count}
                    jnz 2b",
                    $store,
                    tile = inout(reg) tile => _,
                    row_bytes = in(reg) row_bytes,
                    line = in(reg) 64_usize,
                    count = inout(reg) blocks => _,
                    turn = in(reg) turn,
                    ahead = inout(reg) ahead => _,
                    jump = in(reg) jump,
                    walk = out(reg) _,
                    to = in(reg) to,
                    $($name = inout(reg) $value => _,)*
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        };
    }
    match groups {
        1 => run!(
            "tilezero tmm0",
            "tileloadd tmm4, [{tile} + {row_bytes}*1]
            tileloadd tmm5, [{a} + {line}*1]
            tdpbf16ps tmm0, tmm4, tmm5
            add {a}, 1024",
            "tilestored [{to} + {line}*1], tmm0",
            a = group(0)
        ),
        2 => run!(
            "tilezero tmm0
            tilezero tmm1",
            "tileloadd tmm4, [{tile} + {row_bytes}*1]
            tileloadd tmm5, [{a} + {line}*1]
            tdpbf16ps tmm0, tmm4, tmm5
            tileloadd tmm6, [{b} + {line}*1]
            tdpbf16ps tmm1, tmm4, tmm6
            add {a}, 1024
            add {b}, 1024",
            "tilestored [{to} + {line}*1], tmm0
            tilestored [{to} + {line}*1 + 1024], tmm1",
            a = group(0),
            b = group(1)
        ),
        3 => run!(
            "tilezero tmm0
            tilezero tmm1
            tilezero tmm2",
            "tileloadd tmm4, [{tile} + {row_bytes}*1]
            tileloadd tmm5, [{a} + {line}*1]
            tdpbf16ps tmm0, tmm4, tmm5
            tileloadd tmm6, [{b} + {line}*1]
            tdpbf16ps tmm1, tmm4, tmm6
            tileloadd tmm7, [{c} + {line}*1]
            tdpbf16ps tmm2, tmm4, tmm7
            add {a}, 1024
            add {b}, 1024
            add {c}, 1024",
            "tilestored [{to} + {line}*1], tmm0
            tilestored [{to} + {line}*1 + 1024], tmm1
            tilestored [{to} + {line}*1 + 2048], tmm2",
            a = group(0),
            b = group(1),
            c = group(2)
        ),
        4 => run!(
            "tilezero tmm0
            tilezero tmm1
            tilezero tmm2
            tilezero tmm3",
            "tileloadd tmm4, [{tile} + {row_bytes}*1]
            tileloadd tmm5, [{a} + {line}*1]
            tdpbf16ps tmm0, tmm4, tmm5
            tileloadd tmm6, [{b} + {line}*1]
            tdpbf16ps tmm1, tmm4, tmm6
            tileloadd tmm7, [{c} + {line}*1]
            tdpbf16ps tmm2, tmm4, tmm7
            tileloadd tmm5, [{d} + {line}*1]
            tdpbf16ps tmm3, tmm4, tmm5
            add {a}, 1024
            add {b}, 1024
            add {c}, 1024
            add {d}, 1024",
            "tilestored [{to} + {line}*1], tmm0
            tilestored [{to} + {line}*1 + 1024], tmm1
            tilestored [{to} + {line}*1 + 2048], tmm2
            tilestored [{to} + {line}*1 + 3072], tmm3",
            a = group(0),
            b = group(1),
            c = group(2),
            d = group(3)
        ),
        groups => unreachable!("{groups} groups"),
    }
}
