//! Rotary position embedding.
//!
//! A pair `(a, b)` of a head becomes `(a·cos − b·sin, b·cos + a·sin)`, every product and sum rounded
//! by itself, as in the reference implementations. Nothing is summed across pairs, so there is no
//! order to state.

use crate::{
    isa::Isa,
    simd::{Kernel, Simd},
};

/// Which values of a head are a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// `i` and `i + half`: Llama in Hugging Face's layout.
    HalfSplit,
    /// `2i` and `2i + 1`: GPT-J, and Llama in Meta's layout.
    Interleaved,
}

/// Rotates every head of every row in place.
///
/// `x` is `[rows, heads, head_dim]`; `cos` and `sin` are `[rows, half]`, the angles of each row's
/// position. If `2·half < head_dim`, the values from `2·half` on stay as they are.
///
/// # Panics
/// If the sizes do not fit together.
pub fn rope(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    layout: RopeLayout,
) {
    let width = heads * head_dim;
    assert!(width > 0, "a row has at least one value");
    assert!(x.len().is_multiple_of(width), "{} values are no rows of {width}", x.len());
    let rows = x.len() / width;
    if rows == 0 {
        return;
    }
    assert_eq!(cos.len(), sin.len(), "as many sines as cosines");
    assert!(cos.len().is_multiple_of(rows), "{} cosines for {rows} rows", cos.len());
    let half = cos.len() / rows;
    assert!(2 * half <= head_dim, "{half} pairs in a head of {head_dim} values");
    if half > 0 {
        Isa::current().run(Rotate { x, width, head_dim, half, cos, sin, layout });
    }
}

struct Rotate<'a> {
    x: &'a mut [f32],
    width: usize,
    head_dim: usize,
    half: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    layout: RopeLayout,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half));
        for (row, (cos, sin)) in self.x.chunks_exact_mut(self.width).zip(angles) {
            for head in row.chunks_exact_mut(self.head_dim) {
                let rotated = &mut head[..2 * self.half];
                match self.layout {
                    RopeLayout::HalfSplit => half_split(rotated, cos, sin),
                    RopeLayout::Interleaved => interleaved(rotated, cos, sin),
                }
            }
        }
    }
}

#[inline(always)]
fn half_split(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let (low, high) = head.split_at_mut(half);
    let (high, sin) = (&mut high[..half], &sin[..half]);
    for i in 0..half {
        let (a, b) = (low[i], high[i]);
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

#[inline(always)]
fn interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * cos - b * sin, b * cos + a * sin];
    }
}
