//! Weight matrices as they lie in files: f32, bf16 or blocks, `[outputs, inputs]`, row-major.

use half::bf16;

use crate::{
    quant::Blocks,
    simd::{LANES, Simd},
};

/// A borrowed matrix of weights, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// The upper half of an f32; widened by a shift while it is used, never in memory.
    Bf16(&'a [bf16]),
    /// A few bits for each value and scales for each block; every row is whole blocks. Expanded
    /// while it is used.
    Blocks(Blocks<'a>),
}

impl Weight<'_> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A stored number that loads as f32 lanes.
pub(crate) trait Stored: Copy + Send + Sync + 'static {
    /// The first (0) or second (1) half of a block.
    fn half<S: Simd>(simd: S, from: &[Self; 2 * LANES], half: usize) -> S::V;
    fn lanes<S: Simd>(simd: S, from: &[Self; LANES]) -> S::V;
    /// Fewer than [`LANES`] values, the rest +0.
    fn part<S: Simd>(simd: S, from: &[Self]) -> S::V;
    fn to_f32(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn half<S: Simd>(simd: S, from: &[f32; 2 * LANES], half: usize) -> S::V {
        simd.load(&from.as_chunks::<LANES>().0[half])
    }

    #[inline(always)]
    fn lanes<S: Simd>(simd: S, from: &[f32; LANES]) -> S::V {
        simd.load(from)
    }

    #[inline(always)]
    fn part<S: Simd>(simd: S, from: &[f32]) -> S::V {
        simd.load_part(from)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn half<S: Simd>(simd: S, from: &[bf16; 2 * LANES], half: usize) -> S::V {
        simd.widen_half(from, half)
    }

    #[inline(always)]
    fn lanes<S: Simd>(simd: S, from: &[bf16; LANES]) -> S::V {
        simd.widen(from)
    }

    #[inline(always)]
    fn part<S: Simd>(simd: S, from: &[bf16]) -> S::V {
        simd.widen_part(from)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}
