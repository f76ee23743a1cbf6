//! A few query vectors on one key head.

use std::ops::Range;

use super::{AttentionRule, AttentionSpan};
use crate::{
    isa::Isa,
    linear::dots,
    math, norm, scratch,
    simd::{Kernel, LANES, Simd},
    team::Scatter,
};

/// How many vectors a tile may have.
pub(super) fn most_vectors(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 | Isa::Avx512Vbmi => 6,
        _ => 3,
    }
}

/// Query vectors `vectors` of the span (row by row, and by head within the group of `kv_head`).
pub(super) struct Tile<'a> {
    pub(super) rule: &'a AttentionRule,
    pub(super) query: &'a [f32],
    pub(super) span: &'a AttentionSpan<'a>,
    pub(super) kv_head: usize,
    pub(super) vectors: Range<usize>,
    pub(super) out: &'a Scatter<'a, f32>,
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.vectors.len() {
            0 => {}
            1 => self.attend::<S, 1>(simd),
            2 => self.attend::<S, 2>(simd),
            3 => self.attend::<S, 3>(simd),
            4 => self.attend::<S, 4>(simd),
            5 => self.attend::<S, 5>(simd),
            6 => self.attend::<S, 6>(simd),
            vectors => unreachable!("{vectors} vectors in a tile"),
        }
    }
}

/// What every vector of the tile sees, and what all of them see.
struct Seen<const R: usize> {
    each: [(usize, usize); R],
    all: (usize, usize),
}

impl Tile<'_> {
    #[inline(always)]
    fn attend<S: Simd, const R: usize>(&self, simd: S) {
        let (rule, span) = (self.rule, self.span);
        let dim = rule.head_dim;
        let head = self.kv_head * span.capacity * dim;
        let keys = &span.keys[head..head + span.len * dim];
        let values = &span.values[head..head + span.len * dim];
        let seen = self.seen::<R>();
        // Room for the longest prefix in whole vectors, for each query vector.
        let stride = (span.len - seen.each[0].0).next_multiple_of(LANES);
        let mut scratch = scratch::take(R * stride);
        let mut weights: [&mut [f32]; R] = std::array::from_fn(|_| Default::default());
        for (slot, floats) in weights.iter_mut().zip(scratch.chunks_exact_mut(stride)) {
            *slot = floats;
        }
        self.scores(simd, keys, &seen, &mut weights);
        let mut sums = [0.0; R];
        for r in 0..R {
            let (start, end) = seen.each[r];
            sums[r] = soften(simd, rule, weights[r], end - start);
        }
        let mut shared: [&[f32]; R] = [&[]; R];
        for (shared, weights) in shared.iter_mut().zip(&weights) {
            *shared = weights;
        }
        self.mix(simd, values, &seen, shared, sums);
    }

    #[inline(always)]
    fn seen<const R: usize>(&self) -> Seen<R> {
        let group = self.rule.heads / self.rule.kv_heads;
        let mut each = [(0, 0); R];
        let mut all = (0, usize::MAX);
        for (r, seen) in each.iter_mut().enumerate() {
            let row = (self.vectors.start + r) / group;
            let end = self.span.len - self.span.rows + row + 1;
            let start = self.rule.window.map_or(0, |window| end.saturating_sub(window));
            *seen = (start, end);
            all = (start.max(all.0), end.min(all.1));
        }
        // Windows that do not meet have nothing in common.
        all.1 = all.1.max(all.0);
        Seen { each, all }
    }

    /// Where vector `r` is in the query and in the output.
    #[inline(always)]
    fn place(&self, r: usize) -> Range<usize> {
        let (rule, vector) = (self.rule, self.vectors.start + r);
        let group = rule.heads / rule.kv_heads;
        let row = self.span.start + vector / group;
        let head = self.kv_head * group + vector % group;
        let start = (row * rule.heads + head) * rule.head_dim;
        start..start + rule.head_dim
    }

    #[inline(always)]
    fn scores<S: Simd, const R: usize>(
        &self,
        simd: S,
        keys: &[f32],
        seen: &Seen<R>,
        out: &mut [&mut [f32]; R],
    ) {
        let mut query: [&[f32]; R] = [&[]; R];
        for (r, query) in query.iter_mut().enumerate() {
            *query = &self.query[self.place(r)];
        }
        let dim = self.rule.head_dim;
        let (from, to) = seen.all;
        for r in 0..R {
            let (start, end) = seen.each[r];
            let one = &mut [&mut *out[r]];
            // With nothing in common, `from == to` may lie beyond this vector's end.
            let (from, to) = (from.min(end), to.min(end).max(start));
            score(simd, [query[r]], keys, dim, start..from, [start], one);
            score(simd, [query[r]], keys, dim, to.max(from)..end, [start], one);
        }
        let mut starts = [0; R];
        for (start, seen) in starts.iter_mut().zip(&seen.each) {
            *start = seen.0;
        }
        score(simd, query, keys, dim, from..to, starts, out);
    }

    #[inline(always)]
    fn mix<S: Simd, const R: usize>(
        &self,
        simd: S,
        values: &[f32],
        seen: &Seen<R>,
        weights: [&[f32]; R],
        sums: [f32; R],
    ) {
        let dim = self.rule.head_dim;
        let mut d = 0;
        while d + 4 * LANES <= dim {
            self.mix_block::<S, R, 4>(simd, values, seen, weights, sums, d, LANES);
            d += 4 * LANES;
        }
        if d + 2 * LANES <= dim {
            self.mix_block::<S, R, 2>(simd, values, seen, weights, sums, d, LANES);
            d += 2 * LANES;
        }
        while d < dim {
            let lanes = LANES.min(dim - d);
            self.mix_block::<S, R, 1>(simd, values, seen, weights, sums, d, lanes);
            d += lanes;
        }
    }

    /// `C` vectors of output values from `d` on, of which the last has `lanes` values.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "one inlined step of `mix`")]
    fn mix_block<S: Simd, const R: usize, const C: usize>(
        &self,
        simd: S,
        values: &[f32],
        seen: &Seen<R>,
        weights: [&[f32]; R],
        sums: [f32; R],
        d: usize,
        lanes: usize,
    ) {
        let dim = self.rule.head_dim;
        let (from, to) = seen.all;
        let mut acc = [[simd.zero(); C]; R];
        for r in 0..R {
            let (start, end) = seen.each[r];
            let mut one = [acc[r]];
            let range = start..from.min(end);
            gather(simd, values, dim, d, lanes, range, [(weights[r], start)], &mut one);
            acc[r] = one[0];
        }
        let mut all: [(&[f32], usize); R] = [(&[], 0); R];
        for r in 0..R {
            all[r] = (weights[r], seen.each[r].0);
        }
        gather(simd, values, dim, d, lanes, from..to, all, &mut acc);
        for r in 0..R {
            let (start, end) = seen.each[r];
            let mut one = [acc[r]];
            let range = to.min(end).max(start).max(from.min(end))..end;
            gather(simd, values, dim, d, lanes, range, [(weights[r], start)], &mut one);
            let place = self.place(r);
            // SAFETY: a tile owns the output of its vectors, tiles are disjoint and each runs once;
            // the slice ends with this iteration.
            let out = unsafe { self.out.slice(place) };
            for c in 0..C {
                let mut y = [0.0; LANES];
                simd.store(simd.div(one[0][c], simd.splat(sums[r])), &mut y);
                let width = if c + 1 == C { lanes } else { LANES };
                let at = d + c * LANES;
                out[at..at + width].copy_from_slice(&y[..width]);
            }
        }
    }
}

/// Scores of `R` vectors at the positions of `range`; vector `r` keeps that of position `j` at
/// `j − starts[r]`.
#[inline(always)]
fn score<S: Simd, const R: usize>(
    simd: S,
    query: [&[f32]; R],
    keys: &[f32],
    dim: usize,
    range: Range<usize>,
    starts: [usize; R],
    out: &mut [&mut [f32]; R],
) {
    let mut j = range.start;
    while j + 4 <= range.end {
        let mut key: [&[f32]; 4] = [&[]; 4];
        for (o, key) in key.iter_mut().enumerate() {
            *key = &keys[(j + o) * dim..(j + o + 1) * dim];
        }
        let y = dots(simd, query, key, None);
        for r in 0..R {
            out[r][j - starts[r]..][..4].copy_from_slice(&y[r]);
        }
        j += 4;
    }
    while j < range.end {
        let y = dots(simd, query, [&keys[j * dim..(j + 1) * dim]], None);
        for r in 0..R {
            out[r][j - starts[r]] = y[r][0];
        }
        j += 1;
    }
}

/// Scores to `e_j`, in place; returns their sum.
#[inline(always)]
fn soften<S: Simd>(simd: S, rule: &AttentionRule, weights: &mut [f32], count: usize) -> f32 {
    let (blocks, _) = weights.as_chunks_mut::<LANES>();
    let blocks = &mut blocks[..count.div_ceil(LANES)];
    let scale = simd.splat(rule.scale);
    for block in blocks.iter_mut() {
        let mut score = simd.mul(simd.load(block), scale);
        if let Some(cap) = rule.softcap {
            let cap = simd.splat(cap);
            score = simd.mul(cap, math::tanh(simd, simd.div(score, cap)));
        }
        simd.store(score, block);
    }
    // What lies behind the last score weighs nothing: e^−∞ = +0, and +0 changes no sum here.
    if let Some(last) = blocks.last_mut() {
        let used = count - count.div_ceil(LANES).saturating_sub(1) * LANES;
        last[used..].fill(f32::NEG_INFINITY);
    }
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for block in blocks.iter() {
        let score = simd.load(block);
        largest = simd.if_below(largest, score, score, largest);
    }
    let mut lanes = [0.0; LANES];
    simd.store(largest, &mut lanes);
    let mut largest = lanes[0];
    for &lane in &lanes[1..] {
        if largest < lane {
            largest = lane;
        }
    }
    let largest = simd.splat(largest);
    for block in blocks.iter_mut() {
        let e = math::exp(simd, simd.sub(simd.load(block), largest));
        simd.store(e, block);
    }
    norm::sum(simd, blocks.as_flattened())
}

/// Adds `e_j · v_j` for the positions of `range` in ascending order.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "one inlined step of `mix_block`")]
fn gather<S: Simd, const R: usize, const C: usize>(
    simd: S,
    values: &[f32],
    dim: usize,
    d: usize,
    lanes: usize,
    range: Range<usize>,
    weights: [(&[f32], usize); R],
    acc: &mut [[S::V; C]; R],
) {
    if range.is_empty() {
        return;
    }
    let mut own: [&[f32]; R] = [&[]; R];
    for (own, (weights, start)) in own.iter_mut().zip(weights) {
        *own = &weights[range.start - start..range.end - start];
    }
    let width = (C - 1) * LANES + lanes;
    let mut sum = *acc;
    for j in 0..range.len() {
        let at = (range.start + j) * dim + d;
        let row = &values[at..at + width];
        let mut v = [simd.zero(); C];
        if lanes == LANES {
            let (blocks, _) = row.as_chunks::<LANES>();
            for c in 0..C {
                v[c] = simd.load(&blocks[c]);
            }
        } else {
            v[C - 1] = simd.load_part(row);
        }
        for r in 0..R {
            let e = simd.splat(own[r][j]);
            for c in 0..C {
                sum[r][c] = simd.fma(e, v[c], sum[r][c]);
            }
        }
    }
    *acc = sum;
}
