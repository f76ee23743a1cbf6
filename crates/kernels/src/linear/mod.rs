//! `y[r, n] = Σ_k x[r, k] · w[n, k] (+ bias[n])`.
//!
//! # Order of the sum
//! Sixteen lanes. Lane `l` starts at +0 and takes `k = l, l + 16, l + 32, …` in ascending order,
//! each with one fused multiply-add; `x` and `w` are thought to be padded with +0 to a multiple of
//! sixteen. The lanes are added by the tree `l + (l + 8)`, `l + (l + 4)`, `l + (l + 2)`,
//! `l + (l + 1)`; then the bias is added. That is all that decides the bits of `y[r, n]`: not the
//! number of rows, not the tile, not the threads, not the instruction set, and not whether `w` is
//! bf16, or [blocks](crate::quant), or the same values as f32.
//!
//! Addition in floating point is not associative, so there has to be *one* order. The same three
//! products, whose true sum is 1, in two orders:
//! ```
//! use draftproof_kernels::{linear::linear, weight::Weight};
//!
//! assert_eq!((1e8_f32 - 1e8) + 1.0, 1.0);
//! assert_eq!((1e8_f32 + 1.0) - 1e8, 0.0);
//!
//! // Lane 0 meets lane 2 before lane 1.
//! let sum = |weights: &[f32; 3]| {
//!     let mut y = [0.0];
//!     linear(&[1.0; 3], 3, Weight::F32(weights), None, &mut y);
//!     y[0]
//! };
//! assert_eq!(sum(&[1e8, 1.0, -1e8]), 1.0);
//! assert_eq!(sum(&[1e8, -1e8, 1.0]), 0.0);
//! ```
//!
//! # Why it is fast
//! One row reads every weight once and does two flops for it: memory is the limit. A few rows use
//! each loaded weight for all of them, so they cost little more. Many rows (a prompt) go through
//! register tiles over weights that sit in the first-level cache.

mod blocks;
mod order;
mod tile;
pub mod tiles;

use std::ops::Range;

use half::bf16;

pub use order::Order;
pub(crate) use tile::dots;
use tile::{accumulate, sums};
use tiles::{Amx, Split};

use crate::{
    glu::{self, Activation},
    isa::Isa,
    scratch::{self, Scratch},
    simd::{Kernel, LANES, Simd},
    team::{self, Scatter},
    weight::{Stored, Weight},
};

/// One matrix that a pass multiplies by.
#[derive(Debug)]
pub struct Projection<'a> {
    /// `[outputs, inputs]`.
    pub weight: Weight<'a>,
    /// `[outputs]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, outputs]`, overwritten.
    pub out: &'a mut [f32],
}

/// Multiplications below which a job is not worth a second thread.
const WORTH_SHARING: usize = 1 << 15;

/// Chunks per thread, each half of what is left and the last all of it: few, as each costs something,
/// and the late ones small, as who is done early waits for half of one.
const CHUNKS_PER_THREAD: usize = 3;

/// Chunks start at multiples of this many outputs: a tile of AMX, and a cache line.
const GRAIN: usize = 16;

/// `x·Wᵀ + b`: x `[rows, inputs]` with rows of `inputs` values.
///
/// # Panics
/// If the sizes do not fit together.
pub fn linear(x: &[f32], inputs: usize, weight: Weight<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    linears(x, inputs, &mut [Projection { weight, bias, out }]);
}

/// Several matrices of the same input in one go.
///
/// # Panics
/// If the sizes do not fit together.
pub fn linears(x: &[f32], inputs: usize, projections: &mut [Projection<'_>]) {
    let rows = check_rows(x, inputs);
    let parts: Vec<Part<'_>> =
        projections.iter_mut().map(|projection| Part::new(rows, inputs, projection)).collect();
    run_parts(x, rows, inputs, &parts);
}

/// A checked [`Projection`] that threads can share.
pub(crate) struct Part<'a> {
    weight: Weight<'a>,
    bias: Option<&'a [f32]>,
    out: Scatter<'a, f32>,
    outputs: usize,
}

impl<'a> Part<'a> {
    fn new(rows: usize, inputs: usize, projection: &'a mut Projection<'_>) -> Self {
        let Projection { weight, bias, out } = projection;
        let outputs = weight.len() / inputs;
        assert_eq!(weight.len(), outputs * inputs, "weights are rows of {inputs}");
        if let Weight::Blocks(blocks) = weight {
            let format = blocks.format();
            assert!(format.row_bytes(inputs).is_some(), "{inputs} inputs are no {format} blocks");
        }
        assert_eq!(out.len(), rows * outputs, "{rows} rows of {outputs} outputs");
        if let Some(bias) = bias {
            assert_eq!(bias.len(), outputs, "one bias for each output");
        }
        Self { weight: *weight, bias: *bias, out: Scatter::new(out), outputs }
    }
}

/// `act(x·Gᵀ + g) · (x·Uᵀ + u)`: two maps of one input and the gate between them, in one go; the
/// bits are those of [`linears`] and [`glu`](crate::glu::glu).
///
/// # Panics
/// If the sizes do not fit together.
pub fn gated(
    x: &[f32],
    inputs: usize,
    gate: (Weight<'_>, Option<&[f32]>),
    up: (Weight<'_>, Option<&[f32]>),
    activation: Activation,
    out: &mut [f32],
) {
    let rows = check_rows(x, inputs);
    let mut ups = scratch::take(out.len());
    let mut gate = Projection { weight: gate.0, bias: gate.1, out };
    let mut up = Projection { weight: up.0, bias: up.1, out: &mut ups };
    let [gate, up] = [&mut gate, &mut up].map(|part| Part::new(rows, inputs, part));
    assert_eq!(gate.outputs, up.outputs, "a gate for each value");
    let (isa, outputs) = (Isa::current(), gate.outputs);
    let mut copy = None;
    let input = Input::new(x, rows, inputs, &mut copy);
    let split = split_for([&gate, &up], x, rows, inputs);
    share(2 * rows * inputs, outputs, &|range| {
        run_part(isa, input, split.as_ref(), &gate, range.clone());
        run_part(isa, input, split.as_ref(), &up, range.clone());
        for row in 0..rows {
            let place = row * outputs + range.start..row * outputs + range.end;
            // SAFETY: the chunk owns these outputs of both, and `run_part` has returned.
            let (gate, up) = unsafe { (gate.out.slice(place.clone()), up.out.slice(place)) };
            glu::glu_in_place(isa, activation, gate, up);
        }
    });
}

fn run_parts(x: &[f32], rows: usize, inputs: usize, parts: &[Part<'_>]) {
    let isa = Isa::current();
    let outputs: usize = parts.iter().map(|part| part.outputs).sum();
    let mut copy = None;
    let input = Input::new(x, rows, inputs, &mut copy);
    let split = split_for(parts, x, rows, inputs);
    share(rows * inputs, outputs, &|range| {
        let mut first = 0;
        for part in parts {
            let from = range.start.max(first);
            let to = range.end.min(first + part.outputs);
            if from < to {
                run_part(isa, input, split.as_ref(), part, from - first..to - first);
            }
            first += part.outputs;
        }
    });
}

/// Calls `body` with disjoint ranges that make up `0..outputs`, on several threads if the work is
/// worth it.
fn share(work_per_output: usize, outputs: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    let work = work_per_output * outputs;
    if work == 0 {
        return;
    }
    let threads = if work < WORTH_SHARING { 1 } else { team::threads() };
    if threads == 1 {
        return body(0..outputs);
    }
    let grains = outputs.div_ceil(GRAIN);
    team::run(threads * CHUNKS_PER_THREAD, &|chunk: usize| {
        let (thread, chunk) = (chunk / CHUNKS_PER_THREAD, chunk % CHUNKS_PER_THREAD);
        let own = split(grains, thread, threads);
        // Before the chunk there are 1 − 2^−chunk of the grains.
        let before = |chunk: usize| match chunk {
            CHUNKS_PER_THREAD => own.end,
            _ => own.end - (own.len() >> chunk),
        };
        let range = before(chunk) * GRAIN..(before(chunk + 1) * GRAIN).min(outputs);
        if !range.is_empty() {
            body(range);
        }
    });
}

fn check_rows(x: &[f32], inputs: usize) -> usize {
    assert!(inputs > 0, "a linear map has at least one input");
    assert!(x.len().is_multiple_of(inputs), "{} inputs are no rows of {inputs}", x.len());
    x.len() / inputs
}

/// The rows of a pass.
#[derive(Clone, Copy)]
struct Input<'a> {
    x: &'a [f32],
    rows: usize,
    /// The values of a row.
    inputs: usize,
    /// From the start of a row to that of the next.
    stride: usize,
    /// The number of the first row.
    first: usize,
}

impl<'a> Input<'a> {
    /// The rows as they are, or, if they are few, in a copy whose rows start with a cache line:
    /// every tile loads them again, and a load that straddles two lines costs two.
    fn new(x: &'a [f32], rows: usize, inputs: usize, copy: &'a mut Option<Scratch>) -> Self {
        let plain = Self { x, rows, inputs, stride: inputs, first: 0 };
        if rows == 1 || rows >= MANY || plain.is_aligned() {
            return plain;
        }
        plain.aligned(0, rows, copy.insert(scratch::take(rows * aligned_stride(inputs))))
    }

    fn is_aligned(&self) -> bool {
        self.x.as_ptr().addr().is_multiple_of(64) && self.stride == aligned_stride(self.inputs)
    }

    /// A copy of `rows` rows from `first` on.
    #[inline(always)]
    fn aligned<'b>(&self, first: usize, rows: usize, copy: &'b mut [f32]) -> Input<'b> {
        let stride = aligned_stride(self.inputs);
        for (r, to) in copy.chunks_exact_mut(stride).take(rows).enumerate() {
            let start = (first - self.first + r) * self.stride;
            to[..self.inputs].copy_from_slice(&self.x[start..start + self.inputs]);
        }
        Input { x: copy, rows, inputs: self.inputs, stride, first }
    }
}

/// Whole cache lines, and not a multiple of 4 KiB, at which all rows would fall on the same few
/// places of the first-level cache.
fn aligned_stride(inputs: usize) -> usize {
    let stride = inputs.next_multiple_of(LANES);
    if stride.is_multiple_of(1024) { stride + LANES } else { stride }
}

/// The rows in pieces, if some part multiplies by tiles.
fn split_for<'a, 'b>(
    parts: impl IntoIterator<Item = &'b Part<'b>>,
    x: &'a [f32],
    rows: usize,
    inputs: usize,
) -> Option<Split<'a>> {
    // Asked for first: who does not want tiles does not ask the system for them.
    let amx = (Order::current() == Order::Tiles).then(Amx::detect)??;
    let narrow = |part: &Part<'_>| matches!(part.weight, Weight::Bf16(_));
    let some = parts.into_iter().any(narrow) && rows > 0;
    some.then(|| Split::new(amx, x, rows, inputs))
}

fn run_part(
    isa: Isa,
    input: Input<'_>,
    split: Option<&Split<'_>>,
    part: &Part<'_>,
    range: Range<usize>,
) {
    let (rows, inputs) = (input.rows, input.inputs);
    let block = Block { input, part, first: range.start };
    let first = range.start;
    let range = range.start * inputs..range.end * inputs;
    match part.weight {
        Weight::Bf16(weight) if let Some(split) = split => {
            split.run(part, first, &weight[range]);
        }
        Weight::F32(weight) if rows >= MANY => isa.run(Many { block, weight: &weight[range] }),
        Weight::F32(weight) => isa.run(Few { block, weight: &weight[range] }),
        Weight::Bf16(weight) if rows >= MANY => many_narrow(isa, block, &weight[range]),
        Weight::Bf16(weight) => isa.run(Few { block, weight: &weight[range] }),
        Weight::Blocks(weight) => blocks::run(isa, block, weight.part(range)),
    }
}

/// Widens the weights into a panel that stays in the second-level cache while the rows pass by.
fn many_narrow(isa: Isa, mut block: Block<'_>, weight: &[bf16]) {
    let inputs = block.input.inputs;
    let fits = (PANEL_BYTES / (inputs * size_of::<f32>())).max(4) & !3;
    let size = (fits * inputs).min(weight.len());
    let mut panel = scratch::take(size);
    for weight in weight.chunks(size.max(1)) {
        let panel = &mut panel[..weight.len()];
        isa.run(Widen { from: weight, to: panel });
        isa.run(Many { block, weight: panel });
        block.first += weight.len() / inputs;
    }
}

struct Widen<'a> {
    from: &'a [bf16],
    to: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (wide, narrow) in self.to.iter_mut().zip(self.from) {
            *wide = narrow.to_f32();
        }
    }
}

/// How many bytes ahead of its use a weight is asked for: what a core must have under way to keep
/// memory busy. (Measured: 2 KiB are too few where weights come from memory, 12 KiB too many where
/// they come from the cache.)
const AHEAD: usize = 6 << 10;

/// From this many rows on, each row tile passes over a panel of weights instead of each weight over
/// the row tiles.
const MANY: usize = 24;

/// Bytes of the panel.
const PANEL_BYTES: usize = 512 << 10;

/// Inputs of a row tile that stay in the first-level cache while the panel passes by.
const DEPTH: usize = 1024;

/// Bytes of weights that stay in the first-level cache while the row tiles pass by.
const WEIGHT_BLOCK_BYTES: usize = 16 << 10;

/// Some outputs of all rows.
#[derive(Clone, Copy)]
struct Block<'a> {
    input: Input<'a>,
    part: &'a Part<'a>,
    /// The output of the first row of weights.
    first: usize,
}

/// Weights that are few enough rows' only use.
struct Few<'a, E> {
    block: Block<'a>,
    weight: &'a [E],
}

/// Weights that many rows use.
struct Many<'a> {
    block: Block<'a>,
    weight: &'a [f32],
}

/// Calls `$block.$name::<S, W, R, O>($args)` with the tile for `$rows` rows.
macro_rules! by_rows {
    ($rows:expr, $block:ident.$name:ident::<$S:ty, $W:ty>($($arg:expr),*)) => {
        if <$S>::ACCUMULATORS >= 24 {
            match $rows {
                1 => $block.$name::<$S, $W, 1, 4>($($arg),*),
                2 => $block.$name::<$S, $W, 2, 4>($($arg),*),
                3 => $block.$name::<$S, $W, 3, 4>($($arg),*),
                4 => $block.$name::<$S, $W, 4, 4>($($arg),*),
                5 => $block.$name::<$S, $W, 5, 4>($($arg),*),
                6 => $block.$name::<$S, $W, 6, 3>($($arg),*),
                7 => $block.$name::<$S, $W, 7, 3>($($arg),*),
                8 => $block.$name::<$S, $W, 8, 2>($($arg),*),
                9 => $block.$name::<$S, $W, 9, 2>($($arg),*),
                rows => unreachable!("{rows} rows in a tile"),
            }
        } else {
            match $rows {
                1 => $block.$name::<$S, $W, 1, 4>($($arg),*),
                2 => $block.$name::<$S, $W, 2, 2>($($arg),*),
                3 => $block.$name::<$S, $W, 3, 2>($($arg),*),
                rows => unreachable!("{rows} rows in a tile"),
            }
        }
    };
}

/// The most rows of a tile of [`Few`].
const fn most_rows<S: Simd>() -> usize {
    if S::ACCUMULATORS >= 24 { 9 } else { 3 }
}

impl<E: Stored> Kernel for Few<'_, E> {
    type Output = ();

    /// Blocks of weights small enough that the second and later row tiles find them in the cache.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut block, weight } = self;
        let Input { rows, inputs, .. } = block.input;
        let tiles = rows.div_ceil(most_rows::<S>());
        let fits = WEIGHT_BLOCK_BYTES / (inputs * size_of::<E>());
        let size = match tiles {
            1 => weight.len(),
            _ => fits.next_multiple_of(12).max(12) * inputs,
        };
        for weight in weight.chunks(size.max(1)) {
            for tile in 0..tiles {
                let rows = split(rows, tile, tiles);
                let ahead = (tile == 0).then_some(AHEAD);
                by_rows!(rows.len(), block.tiles::<S, E>(simd, rows.start, weight, ahead));
            }
            block.first += weight.len() / inputs;
        }
    }
}

impl Kernel for Many<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if S::ACCUMULATORS >= 24 {
            self.passes::<S, 6, 4>(simd);
        } else {
            self.passes::<S, 3, 2>(simd);
        }
    }
}

impl Many<'_> {
    /// Row tiles over the weights. If the rows do not fill the last tile, it starts earlier and
    /// computes some rows again.
    #[inline(always)]
    fn passes<S: Simd, const R: usize, const O: usize>(&self, simd: S) {
        let Block { input, part, first } = self.block;
        let Input { rows, inputs, .. } = input;
        let count = self.weight.len() / inputs;
        let deep = inputs > DEPTH;
        let mut lanes = scratch::take(if deep { R * count * LANES } else { 0 });
        let (lanes, _) = lanes.as_chunks_mut::<LANES>();
        let mut copy = scratch::take(R * aligned_stride(inputs));
        let mut row = 0;
        while row < rows {
            let start = row.min(rows - R);
            let block = Block { input: input.aligned(start, R, &mut copy), part, first };
            if deep {
                block.deep_tiles::<S, R, O>(simd, start, self.weight, lanes);
            } else {
                block.tiles::<S, f32, R, O>(simd, start, self.weight, None);
            }
            row += R;
        }
    }
}

/// Part `index` of `parts` nearly equal ones.
fn split(len: usize, index: usize, parts: usize) -> Range<usize> {
    len * index / parts..len * (index + 1) / parts
}

impl Block<'_> {
    /// All outputs of `weights` for `R` rows from `row` on.
    #[inline(always)]
    fn tiles<S: Simd, W: Stored, const R: usize, const O: usize>(
        &self,
        simd: S,
        row: usize,
        weights: &[W],
        ahead: Option<usize>,
    ) {
        let inputs = self.input.inputs;
        let x = self.tile_rows::<R>(row, 0..inputs);
        let count = weights.len() / inputs;
        let mut n = 0;
        while n + O <= count {
            let w = tile_weights::<W, O>(weights, inputs, n, 0..inputs);
            self.put(row, n, dots(simd, x, w, ahead));
            n += O;
        }
        while n < count {
            let w = tile_weights::<W, 1>(weights, inputs, n, 0..inputs);
            self.put(row, n, dots(simd, x, w, ahead));
            n += 1;
        }
    }

    /// The same in pieces of [`DEPTH`] inputs, the lanes kept in `lanes` between two pieces.
    #[inline(always)]
    fn deep_tiles<S: Simd, const R: usize, const O: usize>(
        &self,
        simd: S,
        row: usize,
        weights: &[f32],
        lanes: &mut [[f32; LANES]],
    ) {
        let inputs = self.input.inputs;
        let count = weights.len() / inputs;
        let tiled = count - count % O;
        let mut start = 0;
        while start < inputs {
            let end = (start + DEPTH).min(inputs);
            let x = self.tile_rows::<R>(row, start..end);
            let mut n = 0;
            while n < tiled {
                let w = tile_weights::<f32, O>(weights, inputs, n, start..end);
                let kept = &mut lanes[n * R..(n + O) * R];
                let mut acc = [[simd.zero(); O]; R];
                if start > 0 {
                    for r in 0..R {
                        for o in 0..O {
                            acc[r][o] = simd.load(&kept[r * O + o]);
                        }
                    }
                }
                accumulate(simd, x, w, None, &mut acc);
                if end == inputs {
                    self.put(row, n, sums(simd, &acc));
                } else {
                    for r in 0..R {
                        for o in 0..O {
                            simd.store(acc[r][o], &mut kept[r * O + o]);
                        }
                    }
                }
                n += O;
            }
            start = end;
        }
        let x = self.tile_rows::<R>(row, 0..inputs);
        for n in tiled..count {
            let w = tile_weights::<f32, 1>(weights, inputs, n, 0..inputs);
            self.put(row, n, dots(simd, x, w, None));
        }
    }

    #[inline(always)]
    fn tile_rows<const R: usize>(&self, row: usize, inputs: Range<usize>) -> [&[f32]; R] {
        let mut x: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            let start = (row - self.input.first + r) * self.input.stride;
            x[r] = &self.input.x[start + inputs.start..start + inputs.end];
        }
        x
    }

    /// Stores what weight rows `n..n + O` gave for rows `row..row + R`.
    #[inline(always)]
    fn put<const R: usize, const O: usize>(&self, row: usize, n: usize, y: [[f32; O]; R]) {
        let output = self.first + n;
        for r in 0..R {
            let at = (row + r) * self.part.outputs + output;
            // SAFETY: outputs `output..output + O` lie in this chunk's range, and the ranges of
            // chunks are disjoint, so no other thread uses these elements; the slice ends here.
            let out = unsafe { self.part.out.slice(at..at + O) };
            match self.part.bias {
                Some(bias) => {
                    let bias = &bias[output..output + O];
                    for o in 0..O {
                        out[o] = y[r][o] + bias[o];
                    }
                }
                None => out.copy_from_slice(&y[r]),
            }
        }
    }
}

#[inline(always)]
fn tile_weights<W, const O: usize>(
    weights: &[W],
    inputs: usize,
    first: usize,
    range: Range<usize>,
) -> [&[W]; O] {
    let mut w: [&[W]; O] = [&[]; O];
    for o in 0..O {
        let start = (first + o) * inputs;
        w[o] = &weights[start + range.start..start + range.end];
    }
    w
}
