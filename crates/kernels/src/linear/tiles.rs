//! Maps of bf16 weights by the matrix tiles of AMX, in the order of their sums.
//!
//! # Order of the sum
//! A value of `x` is, exactly, the sum of three bf16 numbers: `x₁` is `x` without the lower half of its
//! bits, `x₂` is `x − x₁` without, `x₃` is the rest. For each piece `p`, `S_p` starts at +0 and takes the
//! inputs 32 at a time: `S_p += E + O`, where `E` starts at +0 and takes the 16 products `w[k]·x_p[k]`
//! of even `k` in ascending order, each with one fused multiply-add, and `O` those of odd `k`. Both are
//! thought to be padded with +0 to a multiple of 32. Then `y = (S₁ + S₂) + S₃`, and the bias is added.
//! In `S`, `E` and `O` a number below 2⁻¹²⁶ counts as 0. (Intel's *Architecture Instruction Set
//! Extensions Programming Reference*, `TDPBF16PS`.)
//!
//! As with [lanes](super), nothing else decides the bits of a row.
//!
//! # Why it is fast
//! One instruction multiplies 16 rows of weights, as they lie, by 16 columns, and five rows of `x` are
//! 15 columns: they cost what one costs, which is reading the weights. Each further five cost as much
//! arithmetic again, a fraction of the time that the weights take from memory.

use std::{
    cell::Cell,
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
};

use half::bf16;

use super::Part;
use crate::{
    scratch::{self, Scratch},
    team::{self, Scatter},
};

/// Rows of weights in a tile.
const OUTPUTS: usize = 16;

/// Inputs in a tile.
const INPUTS: usize = 32;

/// Rows of `x` in a tile: three columns each, of sixteen.
const ROWS: usize = 5;

/// 32-bit words in a tile of `x`: 16 pairs of inputs by 16 columns.
const WORDS: usize = 256;

/// The most tiles of sums that registers hold.
const SUMS: usize = 4;

/// A processor with AMX for bf16, and the system's leave to use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// The proof, if this machine has the instructions.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(crate) fn detect() -> Option<Self> {
        use std::{arch::x86_64::__cpuid_count, sync::OnceLock};
        /// Asks the system for a component of the processor's state, and the component: tiles.
        const REQUEST: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        static FOUND: OnceLock<bool> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let leaf = __cpuid_count(7, 0);
            let [bf16, tile] = [22, 24].map(|bit| leaf.edx >> bit & 1 == 1);
            let vectors =
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            // SAFETY: the call changes what this process may use and touches no memory.
            let granted =
                || unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 };
            bf16 && tile && vectors && granted()
        });
        found.then_some(Self(()))
    }

    /// The proof, if this machine has the instructions.
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    pub(crate) fn detect() -> Option<Self> {
        None
    }
}

/// Rows of `x` that are multiplied by tiles.
pub(super) struct Split<'a> {
    amx: Amx,
    x: &'a [f32],
    rows: usize,
    inputs: usize,
    /// The pieces of many rows. Those of few each thread makes for itself: that costs less than to fetch
    /// them, who are longer than `x`, from another core's cache.
    shared: Option<Scratch>,
    /// Of this one alone.
    number: u64,
}

thread_local! {
    /// The pieces made last on this thread, and the number of what they are of.
    static PIECES: Cell<(u64, Option<Scratch>)> = const { Cell::new((0, None)) };
}

/// From this many rows on their pieces are shared.
const MANY: usize = 3 * ROWS;

impl<'a> Split<'a> {
    pub(super) fn new(amx: Amx, x: &'a [f32], rows: usize, inputs: usize) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut split = Self { amx, x, rows, inputs, shared: None, number };
        if rows >= MANY {
            let mut pieces = scratch::take(split.words());
            let group = inputs.div_ceil(INPUTS) * WORDS;
            let all = Scatter::new(&mut pieces);
            team::run(rows.div_ceil(ROWS).min(MOST_CHUNKS), &|chunk: usize| {
                let groups = rows.div_ceil(ROWS);
                let chunks = groups.min(MOST_CHUNKS);
                for index in groups * chunk / chunks..groups * (chunk + 1) / chunks {
                    // SAFETY: each group is in one chunk, and each chunk runs once.
                    let pieces = unsafe { all.slice(index * group..(index + 1) * group) };
                    split.fill(index, pieces);
                }
            });
            split.shared = Some(pieces);
        }
        split
    }

    fn words(&self) -> usize {
        self.rows.div_ceil(ROWS) * self.inputs.div_ceil(INPUTS) * WORDS
    }

    /// The pieces of five rows: for 32 inputs, for each pair of inputs, the pair's pieces by column.
    /// Columns are the first pieces of the rows, then the second, then the third.
    fn fill(&self, group: usize, pieces: &mut [f32]) {
        let Self { amx, inputs, .. } = *self;
        let rows = group * ROWS..self.rows.min((group + 1) * ROWS);
        let x = &self.x[rows.start * inputs..rows.end * inputs];
        for (block, tile) in pieces.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
            let range = block * INPUTS..inputs.min((block + 1) * INPUTS);
            // Rows that are not there are columns that nobody reads.
            let mut padded = [[0.0; INPUTS]; ROWS];
            let mut own: [&[f32; INPUTS]; ROWS] = [&[0.0; INPUTS]; ROWS];
            if let Some(padded) = (range.len() < INPUTS).then_some(&mut padded) {
                for (to, x) in padded.iter_mut().zip(x.chunks_exact(inputs)) {
                    to[..range.len()].copy_from_slice(&x[range.clone()]);
                }
                own = padded.each_ref();
            } else {
                for (own, x) in own.iter_mut().zip(x.chunks_exact(inputs)) {
                    *own = x[range.clone()].as_array().expect("whole blocks");
                }
            }
            split(amx, &own[..rows.len()], tile);
        }
    }

    /// The pieces of all rows, made once for each thread or for all.
    fn pieces(&self) -> Pieces<'_> {
        if let Some(pieces) = &self.shared {
            return Pieces { shared: Some(pieces), own: None, number: 0 };
        }
        let (number, last) = PIECES.take();
        let own = match last {
            Some(pieces) if number == self.number => pieces,
            // Back first: what is taken again is what was given back last.
            last => {
                drop(last);
                let mut pieces = scratch::take(self.words());
                let group = self.inputs.div_ceil(INPUTS) * WORDS;
                for (index, pieces) in pieces.chunks_exact_mut(group).enumerate() {
                    self.fill(index, pieces);
                }
                pieces
            }
        };
        Pieces { shared: None, own: Some(own), number: self.number }
    }

    /// Outputs from `first` on, those of `weights`.
    pub(super) fn run(&self, part: &Part<'_>, first: usize, weights: &[bf16]) {
        let pieces = self.pieces();
        let _configured = Configured::new(self.amx);
        let mut sums = Sums([[[0.0; 16]; OUTPUTS]; SUMS]);
        let Self { inputs, .. } = *self;
        let even = inputs.is_multiple_of(INPUTS);
        if even && weights.len() >= OUTPUTS * inputs {
            ask(self.amx, weights, inputs);
        }
        let mut first = first;
        let mut rest = weights;
        while !rest.is_empty() {
            let now = OUTPUTS.min(rest.len() / inputs);
            let (these, later) = rest.split_at(now * inputs);
            if even && now == OUTPUTS {
                self.tile(part, (first, now), these, inputs, &pieces, &mut sums);
            } else {
                // Rows and inputs that are not there are zeros.
                let stride = inputs.next_multiple_of(INPUTS);
                let mut padded = vec![bf16::ZERO; OUTPUTS * stride];
                for (to, from) in padded.chunks_exact_mut(stride).zip(these.chunks_exact(inputs)) {
                    to[..inputs].copy_from_slice(from);
                }
                self.tile(part, (first, now), &padded, stride, &pieces, &mut sums);
            }
            first += now;
            rest = later;
        }
    }

    /// `count` outputs from `first` on by a tile of weights, whose rows are `stride` long.
    #[allow(
        clippy::too_many_arguments,
        reason = "what does not change from tile to tile, and what does"
    )]
    fn tile(
        &self,
        part: &Part<'_>,
        (first, count): (usize, usize),
        weights: &[bf16],
        stride: usize,
        pieces: &[f32],
        sums: &mut Sums,
    ) {
        let blocks = stride / INPUTS;
        for (index, words) in pieces.chunks(SUMS * blocks * WORDS).enumerate() {
            multiply(self.amx, weights, stride, words, blocks, sums);
            let start = index * SUMS * ROWS;
            for (row, sums) in (start..self.rows).step_by(ROWS).zip(&mut sums.0) {
                let rows = ROWS.min(self.rows - row);
                let all = combine(self.amx, sums, rows);
                for r in 0..rows {
                    let at = (row + r) * part.outputs + first;
                    // SAFETY: outputs of this chunk, and the ranges of chunks are disjoint, so no other
                    // thread uses these elements; the slice ends here.
                    let out = unsafe { part.out.slice(at..at + count) };
                    match part.bias {
                        Some(bias) => {
                            let bias = &bias[first..first + count];
                            for ((out, y), bias) in out.iter_mut().zip(&all[r]).zip(bias) {
                                *out = y + bias;
                            }
                        }
                        None => out.copy_from_slice(&all[r][..count]),
                    }
                }
            }
        }
    }
}

/// Pieces that go back to where this thread keeps them.
struct Pieces<'a> {
    shared: Option<&'a [f32]>,
    own: Option<Scratch>,
    number: u64,
}

impl Deref for Pieces<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.shared.or(self.own.as_deref()).unwrap_or(&[])
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            PIECES.set((self.number, Some(own)));
        }
    }
}

/// The most chunks in which pieces are made.
const MOST_CHUNKS: usize = 64;

/// Tiles of sums: outputs by columns.
#[repr(align(64))]
struct Sums([[[f32; 16]; OUTPUTS]; SUMS]);

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use machine::{Configured, ask, combine, multiply, split};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine {
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
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use nowhere::{Configured, ask, combine, multiply, split};

/// What is never called: there is no [`Amx`].
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod nowhere {
    use half::bf16;

    use super::{Amx, INPUTS, OUTPUTS, ROWS, Sums, WORDS};

    pub(super) struct Configured(());

    impl Configured {
        pub(super) fn new(_: Amx) -> Self {
            unreachable!("no AMX")
        }
    }

    pub(super) fn split(_: Amx, _: &[&[f32; INPUTS]], _: &mut [f32; WORDS]) {
        unreachable!("no AMX")
    }

    pub(super) fn combine(_: Amx, _: &[[f32; 16]; OUTPUTS], _: usize) -> [[f32; 16]; ROWS] {
        unreachable!("no AMX")
    }

    pub(super) fn ask(_: Amx, _: &[bf16], _: usize) {
        unreachable!("no AMX")
    }

    pub(super) fn multiply(_: Amx, _: &[bf16], _: usize, _: &[f32], _: usize, _: &mut Sums) {
        unreachable!("no AMX")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Order, linear};
    use crate::weight::Weight;

    /// The order, word by word.
    fn by_hand(x: &[f32], w: &[bf16]) -> f32 {
        let small = |v: f32| if v.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(v) } else { v };
        let upper = |v: f32| f32::from_bits(v.to_bits() & 0xFFFF_0000);
        let mut pieces: Vec<[f32; 3]> = Vec::new();
        for &x in x {
            let first = upper(x);
            let second = upper(x - first);
            pieces.push([first, second, x - first - second]);
        }
        let sums = [0, 1, 2].map(|piece| {
            let mut sum = 0.0;
            for start in (0..x.len()).step_by(INPUTS) {
                let mut parts = [0.0_f32; 2];
                for k in start..x.len().min(start + INPUTS) {
                    let [x, w] = [pieces[k][piece], w[k].to_f32()].map(small);
                    parts[k % 2] = small(w.mul_add(x, parts[k % 2]));
                }
                sum = small(sum + small(parts[0] + parts[1]));
            }
            sum
        });
        (sums[0] + sums[1]) + sums[2]
    }

    fn noise(count: usize, seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..count).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    /// Numbers of any sign and fraction with `exponents`.
    fn numbers(count: usize, seed: u64, exponents: std::ops::Range<u32>) -> Vec<f32> {
        let number = |bits: u64| {
            let exponent = exponents.start + (bits >> 40) as u32 % exponents.len() as u32;
            f32::from_bits(bits as u32 & 0x807F_FFFF | exponent << 23)
        };
        noise(count, seed).map(number).collect()
    }

    /// Whatever the sizes, and the size of the numbers, down to those that count as 0. (On a machine
    /// without AMX only that nothing is chosen that is not there.)
    #[test]
    fn tiles_compute_their_order_and_rows_alone_are_rows_together() {
        if !Order::Tiles.is_available() {
            assert!(std::panic::catch_unwind(|| Order::Tiles.scope(|| ())).is_err());
            return;
        }
        let sizes = [(32, 16), (64, 32), (256, 48), (96, 7), (40, 33), (1, 1), (31, 80), (33, 17)];
        let exponents = [120..130, 90..160, 30..70, 1..40];
        for (inputs, outputs) in sizes {
            for (seed, exponents) in exponents.iter().enumerate() {
                let seed = seed as u64 + 1;
                let most = 33;
                let x = numbers(most * inputs, seed, exponents.clone());
                let w = numbers(outputs * inputs, seed + 10, exponents.clone());
                let w: Vec<bf16> =
                    w.iter().map(|w| bf16::from_bits((w.to_bits() >> 16) as u16)).collect();
                let bias = numbers(outputs, seed + 20, exponents.clone());
                let expected: Vec<u32> = x
                    .chunks_exact(inputs)
                    .flat_map(|x| w.chunks_exact(inputs).map(|w| by_hand(x, w)))
                    .zip(bias.iter().cycle())
                    .map(|(y, bias)| (y + bias).to_bits())
                    .collect();
                for rows in [1, 2, 4, 5, 6, 9, 10, 11, 15, 16, 20, 21, 33] {
                    let mut y = vec![f32::NAN; rows * outputs];
                    let x = &x[..rows * inputs];
                    Order::Tiles.scope(|| {
                        linear(x, inputs, Weight::Bf16(&w), Some(&bias), &mut y);
                    });
                    let y: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                    assert_eq!(y, expected[..rows * outputs], "{rows} × {inputs} × {outputs}");
                }
            }
        }
    }

    /// As near to the true sums as lanes are.
    #[test]
    fn tiles_are_as_exact_as_lanes() {
        if !Order::Tiles.is_available() {
            return;
        }
        let (inputs, outputs) = (704, 64);
        let x = numbers(inputs, 1, 120..128);
        let w = numbers(outputs * inputs, 2, 118..126);
        let w: Vec<bf16> = w.iter().map(|&w| bf16::from_f32(w)).collect();
        let error = |order: Order| -> f64 {
            let mut y = vec![0.0; outputs];
            order.scope(|| linear(&x, inputs, Weight::Bf16(&w), None, &mut y));
            let exact = w.chunks_exact(inputs).map(|w| -> f64 {
                w.iter().zip(&x).map(|(w, &x)| w.to_f64() * f64::from(x)).sum()
            });
            y.iter()
                .zip(exact)
                .map(|(&y, exact)| (f64::from(y) - exact).powi(2))
                .sum::<f64>()
                .sqrt()
        };
        let (tiles, lanes) = (error(Order::Tiles), error(Order::Lanes));
        assert!(tiles > 0.0 && tiles < 3.0 * lanes, "{tiles:e} and {lanes:e}");
    }
}
