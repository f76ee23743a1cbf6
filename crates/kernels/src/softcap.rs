//! Values bent below a bound: `c·tanh(x / c)`, value by value.

use crate::{
    isa::Isa,
    math,
    simd::{Kernel, LANES, Simd},
    team::{self, Scatter},
};

/// Values below which a job is not worth a second thread.
const WORTH_SHARING: usize = 1 << 14;

/// `x = cap·tanh(x / cap)` in place.
///
/// # Panics
/// If `cap` is not above 0.
pub fn softcap(x: &mut [f32], cap: f32) {
    assert!(cap > 0.0, "a softcap above 0");
    let (isa, count) = (Isa::current(), x.len());
    let chunks = if count < WORTH_SHARING { 1 } else { team::threads() };
    let x = Scatter::new(x);
    let body = |chunk: usize| {
        // SAFETY: the ranges of different chunks are disjoint, and each chunk runs once.
        let x = unsafe { x.slice(count * chunk / chunks..count * (chunk + 1) / chunks) };
        isa.run(Bend { x, cap });
    };
    match chunks {
        1 => body(0),
        _ => team::run(chunks, &body),
    }
}

struct Bend<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for Bend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let cap = simd.splat(self.cap);
        let (blocks, part) = self.x.as_chunks_mut::<LANES>();
        for block in blocks {
            simd.store(bent(simd, simd.load(block), cap), block);
        }
        if !part.is_empty() {
            let mut lanes = [0.0; LANES];
            simd.store(bent(simd, simd.load_part(part), cap), &mut lanes);
            part.copy_from_slice(&lanes[..part.len()]);
        }
    }
}

#[inline(always)]
fn bent<S: Simd>(simd: S, x: S::V, cap: S::V) -> S::V {
    simd.mul(cap, math::tanh(simd, simd.div(x, cap)))
}
