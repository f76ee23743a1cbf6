//! Loops under the widest vectors this machine has.
//!
//! Every operation in them is the same correctly rounded one on all machines, and sums are either of
//! integers or in lanes that are spelt out, so the results are the same bits everywhere.

use pulp::{Arch, Simd, WithSimd};

/// A loop. Its `run` and all that it calls must be `#[inline(always)]`: what is not inlined is
/// compiled for the oldest machines, and there a fused multiply-add is a call. So no iterator that
/// others drive, such as `map` before `collect`, may hold the work: its closure is not inlined.
pub(crate) trait Loop {
    type Output;

    fn run(self) -> Self::Output;
}

struct Widest<L>(L);

impl<L: Loop> WithSimd for Widest<L> {
    type Output = L::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> L::Output {
        self.0.run()
    }
}

pub(crate) fn widest<L: Loop>(body: L) -> L::Output {
    Arch::new().dispatch(Widest(body))
}
