//! Block-quantised weights as GGUF files have them: a few bits for each value, and scales for each
//! block of 32 or 256.
//!
//! Every value is a product and perhaps a sum of small numbers, and is rounded at most once on its
//! way to f32, so "the dequantised weight" is one f32, the same in every implementation that
//! computes in f32. [`linear`](crate::linear) over such a matrix gives the bits that it gives over
//! the dequantised one; [`dequantise`] is what that law is about.
//!
//! | format | values | bytes | value |
//! |---|---|---|---|
//! | Q8_0 | 32 | 34 | `d·q`, q from −128 to 127 |
//! | Q4_0 | 32 | 18 | `d·(q − 8)`, 4 bits |
//! | Q4_1 | 32 | 20 | `d·q + m`, 4 bits |
//! | Q5_0 | 32 | 22 | `d·(q − 16)`, 5 bits |
//! | Q5_1 | 32 | 24 | `d·q + m`, 5 bits |
//! | Q4_K | 256 | 144 | `d·s·q − e·m`, 4 bits; s and m (6 bits) for each 32 |
//! | Q5_K | 256 | 176 | the same with 5 bits |
//! | Q6_K | 256 | 210 | `d·s·(q − 32)`, 6 bits; s (8 bits) for each 16 |
//!
//! d, m and e are f16. The layouts are those of `ggml-common.h` in llama.cpp.

mod k;
mod legacy;
mod quantise;

use std::fmt;

pub(crate) use k::{Q4K, Q5K, Q6K};
pub(crate) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use quantise::quantise;

use crate::{
    isa::Isa,
    simd::{Kernel, LANES, Simd},
};

/// How a block of weights is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types, reason = "the names that everybody uses")]
#[non_exhaustive]
pub enum BlockFormat {
    /// 4 bits and a scale for 32 values.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1,
    /// 5 bits and a scale for 32 values.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1,
    /// 8 bits and a scale for 32 values.
    Q8_0,
    /// 4 bits for 256 values, with scales and minima that are themselves quantised.
    Q4_K,
    /// 5 bits for 256 values, with scales and minima that are themselves quantised.
    Q5_K,
    /// 6 bits for 256 values, with scales that are themselves quantised.
    Q6_K,
}

/// Calls `$call` with `$F` the type that implements the format.
macro_rules! with_format {
    ($format:expr, $F:ident => $call:expr) => {
        match $format {
            $crate::quant::BlockFormat::Q4_0 => {
                type $F = $crate::quant::Q4_0;
                $call
            }
            $crate::quant::BlockFormat::Q4_1 => {
                type $F = $crate::quant::Q4_1;
                $call
            }
            $crate::quant::BlockFormat::Q5_0 => {
                type $F = $crate::quant::Q5_0;
                $call
            }
            $crate::quant::BlockFormat::Q5_1 => {
                type $F = $crate::quant::Q5_1;
                $call
            }
            $crate::quant::BlockFormat::Q8_0 => {
                type $F = $crate::quant::Q8_0;
                $call
            }
            $crate::quant::BlockFormat::Q4_K => {
                type $F = $crate::quant::Q4K;
                $call
            }
            $crate::quant::BlockFormat::Q5_K => {
                type $F = $crate::quant::Q5K;
                $call
            }
            $crate::quant::BlockFormat::Q6_K => {
                type $F = $crate::quant::Q6K;
                $call
            }
        }
    };
}
pub(crate) use with_format;

impl BlockFormat {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The values of a block.
    #[must_use]
    pub fn values(self) -> usize {
        with_format!(self, F => F::VALUES)
    }

    /// The bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        with_format!(self, F => size_of::<<F as Format>::Block>())
    }

    /// The bytes of a row of `values`, if they are whole blocks.
    #[must_use]
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let blocks = values.is_multiple_of(self.values()).then(|| values / self.values())?;
        blocks.checked_mul(self.bytes())
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A borrowed run of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    format: BlockFormat,
    bytes: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// The blocks that `bytes` are.
    ///
    /// # Panics
    /// If they are not whole blocks.
    #[must_use]
    pub fn new(format: BlockFormat, bytes: &'a [u8]) -> Self {
        let (size, found) = (format.bytes(), bytes.len());
        assert!(found.is_multiple_of(size), "{found} bytes are no {format} blocks of {size}");
        Self { format, bytes }
    }

    /// How they are stored.
    #[must_use]
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// The bytes of all.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / self.format.bytes() * self.format.values()
    }

    /// Whether there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The blocks of values `range`.
    ///
    /// # Panics
    /// If it does not begin and end with a block.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Self {
        let place = |value| {
            let place = self.format.row_bytes(value);
            place.unwrap_or_else(|| panic!("value {value} is within a {} block", self.format))
        };
        let bytes = &self.bytes[place(range.start)..place(range.end)];
        Self { format: self.format, bytes }
    }
}

/// Writes the values of the blocks to `out`.
///
/// # Panics
/// If there are not as many places as values.
pub fn dequantise(blocks: Blocks<'_>, out: &mut [f32]) {
    assert_eq!(out.len(), blocks.len(), "a place for each value");
    expand(Isa::current(), blocks, out);
}

pub(crate) fn expand(isa: Isa, blocks: Blocks<'_>, out: &mut [f32]) {
    with_format!(blocks.format, F => isa.run(Expand { blocks: F::blocks(blocks.bytes), out }));
}

/// A format that the kernels read: how the bytes of a block become vectors.
pub(crate) trait Format: Copy + Send + Sync + 'static {
    /// The bytes of a block.
    type Block: Send + Sync + 'static;
    /// The values of a block.
    const VALUES: usize;
    /// The vectors of a step: the first so many that [`step`](Self::step) returns.
    const VECTORS: usize;

    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// What all steps of a block need.
    fn scales<S: Simd>(simd: S, block: &Self::Block) -> Scales<S>;

    /// The vectors number `VECTORS·i` and following of the block.
    fn step<S: Simd>(simd: S, block: &Self::Block, scales: &Scales<S>, i: usize) -> [S::V; 4];
}

/// The scales of a block, as f32.
#[derive(Clone, Copy)]
pub(crate) struct Scales<S: Simd> {
    /// What a value is multiplied by, and what is added, of a block with one of each.
    whole: [S::V; 2],
    /// The same by groups of values.
    groups: [[f32; LANES]; 2],
}

/// Steps of a block.
pub(crate) const fn steps<F: Format>() -> usize {
    F::VALUES / (F::VECTORS * LANES)
}

struct Expand<'a, B> {
    blocks: &'a [B],
    out: &'a mut [f32],
}

/// Says which type a block belongs to.
pub(crate) trait BlockOf: Sized + Send + Sync + 'static {
    type Format: Format<Block = Self>;
}

impl<B: BlockOf> Kernel for Expand<'_, B> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let vectors = <B::Format as Format>::VECTORS;
        let (lanes, _) = self.out.as_chunks_mut::<LANES>();
        let places = lanes.chunks_exact_mut(vectors * steps::<B::Format>());
        for (block, out) in self.blocks.iter().zip(places) {
            let scales = B::Format::scales(simd, block);
            for i in 0..steps::<B::Format>() {
                let values = B::Format::step(simd, block, &scales, i);
                for v in 0..vectors {
                    simd.store(values[v], &mut out[vectors * i + v]);
                }
            }
        }
    }
}

/// `N` bytes from `at` on.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let part: Option<&[u8; N]> = bytes[at..].first_chunk();
    match part {
        Some(part) => part,
        None => panic!("{N} bytes from {at} on"),
    }
}

/// The bits of the f16 at `at`.
#[inline(always)]
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*part(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_format() {
        let sizes = BlockFormat::ALL.map(|format| (format.values(), format.bytes()));
        let expected =
            [(32, 18), (32, 20), (32, 22), (32, 24), (32, 34), (256, 144), (256, 176), (256, 210)];
        assert_eq!(sizes, expected);
        assert_eq!(BlockFormat::Q6_K.row_bytes(512), Some(420));
        assert_eq!(BlockFormat::Q6_K.row_bytes(500), None);
        assert_eq!(BlockFormat::Q8_0.row_bytes(usize::MAX - 31), None);
    }
}
