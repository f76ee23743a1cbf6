//! Causal attention of query rows, each over its own prefix of a cache.
//!
//! Row `r` with a prefix of `n` positions sees `s..n`, where `s = 0`, or `n − window` (not below 0)
//! with a sliding window. For every query head, in this order:
//! 1. score `j`: the dot product with key `j` in the order of [`linear`](crate::linear), times the
//!    scale; with a softcap `c`, `c·tanh(score / c)`;
//! 2. the largest score; `e_j = exp(score_j − largest)`;
//! 3. `Σ e_j`: sixteen lanes, lane `l` adding `j = s + l, s + l + 16, …`, then the
//!    tree;
//! 4. each output value: `Σ_j e_j · v_j` in ascending order of `j`, one fused multiply-add each,
//!    starting from +0; divided by the sum.
//!
//! All of it in f32, whatever the type of the weights: a softmax in bf16 loses the tail of a long
//! context.
//! ```
//! use half::bf16;
//!
//! // One position of score 0, and 2000 of score −8 that weigh two thirds as much together.
//! let scores: Vec<f32> = std::iter::once(0.0).chain([-8.0; 2000]).collect();
//! let wide: f32 = scores.iter().map(|score| score.exp()).sum();
//! let narrow = scores.iter().map(|score| bf16::from_f32(score.exp()));
//! let narrow = narrow.fold(bf16::ZERO, |sum, weight| sum + weight);
//! assert!((wide - 1.671).abs() < 0.001);
//! assert_eq!(narrow, bf16::ONE, "as if the other 2000 were not there");
//! ```
//!
//! Query vectors that share a key head are taken in tiles, so that keys and values are read once for
//! several of them. Within a tile prefixes differ in length: where they do, each vector goes its own
//! way, and no vector ever touches a position that it does not see, not even with weight zero.
//!
//! The cache is `[kv_heads, capacity, head_dim]` for keys and for values: an append writes rows in
//! place, and the prefix of a head lies in one piece.

mod tile;

use std::ops::Range;

use crate::{
    isa::Isa,
    team::{self, Scatter},
};

/// Shape and rule of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRule {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// What scores are multiplied by; above 0.
    pub scale: f32,
    /// How many positions a row sees at most, its own included.
    pub window: Option<usize>,
    /// Bends scores below this bound.
    pub softcap: Option<f32>,
}

/// One sequence's rows in a pass, and its cache, which already holds their keys and values.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpan<'a> {
    /// The first row of the pass that belongs to the sequence.
    pub start: usize,
    /// How many rows do.
    pub rows: usize,
    /// Positions in the cache that count; row `i` of the span sees `len − rows + i + 1` of them.
    pub len: usize,
    /// Positions the cache has room for.
    pub capacity: usize,
    /// `[kv_heads, capacity, head_dim]`.
    pub keys: &'a [f32],
    /// `[kv_heads, capacity, head_dim]`.
    pub values: &'a [f32],
}

/// Multiplications below which a job is not worth a second thread.
const WORTH_SHARING: usize = 1 << 14;

/// The most chunks of a job; late rows of a long prompt cost more than early ones.
const MOST_CHUNKS: usize = 64;

/// Attends: `query` and `out` are `[rows, heads, head_dim]`, the spans' rows one after the other.
///
/// # Panics
/// If the sizes do not fit together, or the spans are not the rows in order.
pub fn attention(
    rule: &AttentionRule,
    query: &[f32],
    spans: &[AttentionSpan<'_>],
    out: &mut [f32],
) {
    check(rule, query, spans, out);
    let isa = Isa::current();
    let group = rule.heads / rule.kv_heads;
    let work = |span: &AttentionSpan<'_>| span.rows * span.len * rule.heads * rule.head_dim;
    let threads = match spans.iter().map(work).sum::<usize>() {
        work if work < WORTH_SHARING => 1,
        _ => team::threads(),
    };
    let vectors: usize = spans.iter().map(|span| span.rows * group).sum();
    let tile = tile::most_vectors(isa).min((vectors * rule.kv_heads).div_ceil(threads));
    let units = |span: &AttentionSpan<'_>| rule.kv_heads * (span.rows * group).div_ceil(tile);
    let total: usize = spans.iter().map(units).sum();
    let chunks = if threads == 1 { 1 } else { total.min(MOST_CHUNKS) };
    let out = Scatter::new(out);
    let body = |chunk: usize| {
        let (start, end) = (total * chunk / chunks, total * (chunk + 1) / chunks);
        let mut first = 0;
        for span in spans {
            let count = units(span);
            let (from, to) = (start.max(first), end.min(first + count));
            for unit in from..to {
                let tiles = count / rule.kv_heads;
                let (kv_head, index) = ((unit - first) / tiles, (unit - first) % tiles);
                let vectors = split(span.rows * group, index, tiles);
                isa.run(tile::Tile { rule, query, span, kv_head, vectors, out: &out });
            }
            first += count;
        }
    };
    match threads {
        1 => (0..chunks).for_each(body),
        _ => team::run(chunks, &body),
    }
}

fn split(len: usize, index: usize, parts: usize) -> Range<usize> {
    len * index / parts..len * (index + 1) / parts
}

fn check(rule: &AttentionRule, query: &[f32], spans: &[AttentionSpan<'_>], out: &[f32]) {
    let AttentionRule { heads, kv_heads, head_dim, scale, window, softcap } = *rule;
    assert!(kv_heads > 0 && head_dim > 0, "there is at least one head of one value");
    assert!(heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads on {kv_heads}");
    assert!(scale > 0.0, "a scale above 0");
    assert!(window != Some(0), "a row sees itself");
    assert!(softcap.is_none_or(|cap| cap > 0.0), "a softcap above 0");
    let mut rows = 0;
    for span in spans {
        assert_eq!(span.start, rows, "spans in the order of their rows");
        assert!(span.rows <= span.len && span.len <= span.capacity, "rows ≤ len ≤ capacity");
        let size = kv_heads * span.capacity * head_dim;
        assert_eq!((span.keys.len(), span.values.len()), (size, size), "sizes of the cache");
        rows += span.rows;
    }
    let size = rows * heads * head_dim;
    assert_eq!((query.len(), out.len()), (size, size), "sizes of query and output");
}

/// Writes keys or values `[rows, kv_heads, head_dim]` to positions `at..at + rows` of a cache
/// `[kv_heads, capacity, head_dim]`.
///
/// # Panics
/// If the sizes do not fit together.
pub fn append(cache: &mut [f32], new: &[f32], kv_heads: usize, head_dim: usize, at: usize) {
    let width = kv_heads * head_dim;
    assert!(width > 0, "there is at least one head of one value");
    assert!(cache.len().is_multiple_of(width), "a cache of {width} values a position");
    assert!(new.len().is_multiple_of(width), "rows of {width} values");
    let capacity = cache.len() / width;
    assert!(at + new.len() / width <= capacity, "room for the new positions");
    for (row, new) in new.chunks_exact(width).enumerate() {
        for (head, new) in new.chunks_exact(head_dim).enumerate() {
            let start = (head * capacity + at + row) * head_dim;
            cache[start..start + head_dim].copy_from_slice(new);
        }
    }
}
