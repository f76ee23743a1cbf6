//! Causal attention of query rows, each over its own prefix of a cache: one cube for each row and
//! query head.
//!
//! # Order
//! Positions are taken in blocks of 64 that begin at multiples of 64, whatever the pass. In a block,
//! each unit computes one score: products in vectors of up to four values, lane by lane in ascending
//! order, then the lanes, then the scale and the softcap. The largest score so far becomes the new
//! reference; the sum and the outputs are scaled to it and the block's weights added in ascending
//! order of the position. A row therefore computes the same whatever shares the pass, and a position
//! that it does not see is never read, not even with weight zero.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    dims,
    launch::{input, output},
};
use crate::attention::AttentionRule;

/// Units of a cube, and positions of a block.
const BLOCK: usize = 64;
/// Rows in the second dimension of the grid; a dimension has at least 65 535 cubes everywhere.
const GRID: usize = 1 << 15;

/// Attention of the rows from position `at` on over caches that hold their keys and values already.
///
/// # Shapes
/// - query: `[n, heads, head_dim]`; keys, values: `[kv_heads, capacity, head_dim]`
/// - output: `[n, heads · head_dim]`
pub(super) fn attention(
    query: &CubeTensor,
    [keys, values]: [&CubeTensor; 2],
    at: usize,
    rule: AttentionRule,
) -> CubeTensor {
    let AttentionRule { heads, kv_heads, head_dim, scale, window, softcap } = rule;
    let ([rows, _, _], [_, capacity, _]) = (dims(query), dims(keys));
    let out = output(query, [rows, heads * head_dim]);
    // SAFETY: `rows` rows of the query are read, positions below `at + rows` ≤ `capacity` of each
    // head, and `rows` rows of the output written.
    unsafe {
        attention_kernel::launch_unchecked(
            &query.client,
            CubeCount::Static(heads as u32, rows.min(GRID) as u32, rows.div_ceil(GRID) as u32),
            CubeDim::new_1d(BLOCK as u32),
            if head_dim.is_multiple_of(4) { 4 } else { 1 },
            input(query),
            input(keys),
            input(values),
            input(&out),
            rows,
            at,
            capacity,
            heads,
            heads / kv_heads,
            window.unwrap_or(usize::MAX >> 33),
            scale,
            softcap.unwrap_or(1.0),
            head_dim,
            softcap.is_some(),
        );
    }
    out
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "what a kernel binds")]
fn attention_kernel<N: Size>(
    query: &[Vector<f32, N>],
    keys: &[Vector<f32, N>],
    values: &[f32],
    out: &mut [f32],
    rows: usize,
    at: usize,
    capacity: usize,
    heads: usize,
    group: usize,
    window: usize,
    scale: f32,
    cap: f32,
    #[comptime] head_dim: usize,
    #[comptime] capped: bool,
) {
    let size = N::value();
    let vectors = comptime!(head_dim / size);
    let own = comptime!(head_dim.div_ceil(BLOCK));
    let unit = UNIT_POS_X as usize;
    let head = CUBE_POS_X as usize;
    let row = CUBE_POS_Y as usize + CUBE_POS_Z as usize * GRID;
    if row >= rows {
        terminate!();
    }
    let store = head / group * capacity;
    let row_start = (row * heads + head) * head_dim;

    let mut vector = Shared::<[Vector<f32, N>]>::new_slice(vectors);
    let mut scores = Shared::<[f32]>::new_slice(BLOCK);
    let mut weights = Shared::<[f32]>::new_slice(BLOCK);
    let mut i = unit;
    while i < vectors {
        vector[i] = query[row_start / size + i];
        i += BLOCK;
    }
    sync_cube();

    let end = at + row + 1;
    let mut first = 0usize.runtime();
    if end > window {
        first = end - window;
    }
    let mut sums = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        sums[i] = 0.0;
    }
    let mut largest = f32::MIN.runtime();
    let mut total = 0.0f32;
    let mut block = first / BLOCK * BLOCK;
    while block < end {
        let position = block + unit;
        let seen = position >= first && position < end;
        let mut score = f32::MIN.runtime();
        if seen {
            let key = (store + position) * vectors;
            let mut lanes = Vector::<f32, N>::new(0.0);
            for i in 0..vectors {
                lanes = fma(vector[i], keys[key + i], lanes);
            }
            score = 0.0f32;
            #[unroll]
            for i in 0..size {
                score += lanes.extract(i);
            }
            score *= scale;
            if capped {
                // c·tanh(s / c), in a form that no driver overflows in.
                score = cap * (1.0 - 2.0 / (f32::exp(2.0 * score / cap) + 1.0));
            }
        }
        scores[unit] = score;
        sync_cube();
        let mut top = largest;
        for i in 0..BLOCK {
            top = max(top, scores[i]);
        }
        weights[unit] = select(seen, f32::exp(score - top), 0.0f32);
        sync_cube();
        let shrink = f32::exp(largest - top);
        let from = select(block < first, first - block, 0usize);
        let to = select(end - block < BLOCK, end - block, BLOCK);
        let mut part = 0.0f32;
        for i in from..to {
            part += weights[i];
        }
        total = fma(total, shrink, part);
        #[unroll]
        for n in 0..own {
            let d = unit + comptime!(n * BLOCK);
            if d < head_dim {
                let mut sum = sums[n] * shrink;
                for i in from..to {
                    sum = fma(weights[i], values[(store + block + i) * head_dim + d], sum);
                }
                sums[n] = sum;
            }
        }
        largest = top;
        block += BLOCK;
        // Nobody may write scores or weights of the next block before all have read these.
        sync_cube();
    }
    #[unroll]
    for n in 0..own {
        let d = unit + comptime!(n * BLOCK);
        if d < head_dim {
            out[row_start + d] = sums[n] / total;
        }
    }
}
