//! `x·Wᵀ + b`: one kernel for every number of rows.
//!
//! # Order of the sum
//! Thirty-two lanes share an output. The row of the weight is cut into vectors of [`width`] words (a
//! word is one f32 or two bf16); lane `l` takes vectors `l, l + 32, …` and adds their products in
//! ascending order, one fused multiply-add each, starting from +0. The lanes' sums are added in
//! ascending order of the lane, then the bias. Nothing of this depends on the number of rows.
//!
//! A cube computes a tile of 8 rows and 16 outputs: a group of 32 units holds the sums of 8 rows and
//! 4 outputs, so a word of the weight is read once for 8 rows, a value of `x` once for 4 outputs.
//! Rows that the pass does not have are skipped, by a branch that all units of a cube take alike.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{input, output, unused};

/// Units that share an output.
const LANES: usize = 32;
/// Rows of a cube's tile.
const ROWS: usize = 8;
/// Outputs of a group of lanes.
const OUTPUTS: usize = 4;
/// Groups of a cube.
const GROUPS: usize = 4;
/// Sums of a cube's tile: as many as its units, so that each finishes one.
const SUMS: usize = ROWS * OUTPUTS * GROUPS;

/// What the words of a weight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Words {
    /// One f32.
    F32,
    /// Two bf16, the earlier in the lower half.
    Bf16,
}

impl Words {
    /// Values of a word.
    pub(super) fn values(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// Words that a lane reads at a time: a property of the weight, so that an output is summed alike in
/// every pass.
fn width(words: usize) -> usize {
    if words.is_multiple_of(4) { 4 } else { 1 }
}

/// # Shapes
/// - x: `[rows, inputs]`; weight: `[outputs, inputs]`; bias: `[outputs]`
/// - output: `[rows, outputs]`
pub(super) fn linear(
    x: &CubeTensor,
    weight: &CubeTensor,
    words: Words,
    bias: Option<&CubeTensor>,
) -> CubeTensor {
    let ([rows, inputs], [outputs, _]) = (super::dims(x), super::dims(weight));
    let row_words = inputs / words.values();
    let width = width(row_words);
    let out = output(x, [rows, outputs]);
    // SAFETY: the kernel reads `rows` rows of x and rows below `outputs` of the weight, all of
    // `inputs` values, biases below `outputs`, and writes below `rows · outputs`: what there is.
    unsafe {
        linear_kernel::launch_unchecked(
            &x.client,
            CubeCount::Static(
                outputs.div_ceil(OUTPUTS * GROUPS) as u32,
                rows.div_ceil(ROWS) as u32,
                1,
            ),
            CubeDim::new_1d((LANES * GROUPS) as u32),
            width,
            input(x),
            input(weight),
            input(bias.unwrap_or(&unused(x))),
            input(&out),
            rows,
            row_words / width,
            outputs,
            words,
            bias.is_some(),
        );
    }
    out
}

#[cube(launch_unchecked)]
fn linear_kernel<N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<u32, N>],
    bias: &[f32],
    out: &mut [f32],
    rows: usize,
    vectors: usize,
    outputs: usize,
    #[comptime] words: Words,
    #[comptime] biased: bool,
) {
    let values = comptime!(words.values());
    let unit = UNIT_POS_X as usize;
    let (lane, group) = (unit % LANES, unit / LANES);
    let first_output = CUBE_POS_X as usize * comptime!(OUTPUTS * GROUPS) + group * OUTPUTS;
    let first_row = CUBE_POS_Y as usize * ROWS;

    let mut sums = Array::<f32>::new(comptime!(ROWS * OUTPUTS));
    #[unroll]
    for i in 0..comptime!(ROWS * OUTPUTS) {
        sums[i] = 0.0;
    }
    let mut vector = lane;
    while vector < vectors {
        let mut parts = Array::<Vector<u32, N>>::new(OUTPUTS);
        #[unroll]
        for o in 0..comptime!(OUTPUTS) {
            // Beyond the last output the last one's weight is read, and its sum not written.
            let output = min_usize(first_output + o, outputs - 1);
            parts[o] = weight[output * vectors + vector];
        }
        #[unroll]
        for r in 0..comptime!(ROWS) {
            if first_row + r < rows {
                let place = ((first_row + r) * vectors + vector) * values;
                let early = x[place];
                let late = x[place + comptime!(values - 1)];
                #[unroll]
                for o in 0..comptime!(OUTPUTS) {
                    let at = comptime!(r * OUTPUTS + o);
                    sums[at] = add_products::<N>(sums[at], parts[o], early, late, words);
                }
            }
        }
        vector += LANES;
    }

    // One row of lanes for each sum, turned by the sum's index so that units that read or write
    // together meet different banks.
    let mut shared = Shared::<[f32]>::new_slice(comptime!(SUMS * LANES));
    #[unroll]
    for r in 0..comptime!(ROWS) {
        #[unroll]
        for o in 0..comptime!(OUTPUTS) {
            let sum = (group * OUTPUTS + o) * ROWS + r;
            shared[sum * LANES + (lane ^ (sum % LANES))] = sums[comptime!(r * OUTPUTS + o)];
        }
    }
    sync_cube();
    let mut total = 0.0f32;
    for lane in 0..LANES {
        total += shared[unit * LANES + (lane ^ (unit % LANES))];
    }
    let output = CUBE_POS_X as usize * comptime!(OUTPUTS * GROUPS) + unit / ROWS;
    let row = first_row + unit % ROWS;
    if output < outputs && row < rows {
        if biased {
            total += bias[output];
        }
        out[row * outputs + output] = total;
    }
}

#[cube]
fn min_usize(a: usize, b: usize) -> usize {
    select(a < b, a, b)
}

/// `sum` plus the products of the values of a vector of words with theirs of x, which lie in `early`
/// and, if there are twice as many, in `late`.
#[cube]
fn add_products<N: Size>(
    sum: f32,
    part: Vector<u32, N>,
    early: Vector<f32, N>,
    late: Vector<f32, N>,
    #[comptime] words: Words,
) -> f32 {
    let size = N::value();
    let mut sum = sum;
    #[unroll]
    for i in 0..size {
        let word = part.extract(i);
        match comptime!(words) {
            Words::F32 => {
                sum = fma(f32::reinterpret(word), early.extract(i), sum);
            }
            Words::Bf16 => {
                let low = f32::reinterpret(word << 16);
                let high = f32::reinterpret(word & 0xFFFF_0000);
                if comptime!(2 * i < size) {
                    sum = fma(low, early.extract(comptime!(2 * i)), sum);
                } else {
                    sum = fma(low, late.extract(comptime!(2 * i - size)), sum);
                }
                if comptime!(2 * i + 1 < size) {
                    sum = fma(high, early.extract(comptime!(2 * i + 1)), sum);
                } else {
                    sum = fma(high, late.extract(comptime!(2 * i + 1 - size)), sum);
                }
            }
        }
    }
    sum
}
