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

#[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), path = "nowhere.rs")]
mod machine;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
};

use half::bf16;

use self::machine::{Configured, ask, combine, multiply, split};
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
