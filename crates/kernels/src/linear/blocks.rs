//! Linear maps whose weights are [blocks](crate::quant).
//!
//! A few rows: each block becomes vectors in registers, and all rows use them there. More rows: a
//! panel of weights is expanded in the cache and the kernels for f32 pass over it. Either way a
//! product is the one that f32 weights of the same values give, in the same order.

use super::{Block, Few, MANY, Many, PANEL_BYTES, WEIGHT_BLOCK_BYTES, split, tile::sums};
use crate::{
    isa::Isa,
    quant::{self, BlockOf, Blocks, Format, steps, with_format},
    scratch,
    simd::{Kernel, LANES, Simd},
};

/// Up to so many rows pass in [`InRegisters`]: in two tiles, each of which expands all weights.
const FEW_ROWS: usize = 12;

/// How many bytes ahead of its use a block is asked for. A byte of blocks takes more arithmetic than
/// one of bf16, and four outputs lie side by side: at the 6 KiB that are best there, Q8_0 takes twice
/// as long and the others 5 to 10 % more (measured at 2, 6, 16, 32 and 64 KiB).
const AHEAD: usize = 16 << 10;

pub(super) fn run(isa: Isa, block: Block<'_>, weight: Blocks<'_>) {
    if block.input.rows <= FEW_ROWS {
        with_format!(weight.format(), F => {
            isa.run(InRegisters { block, blocks: F::blocks(weight.bytes()) });
        });
    } else {
        panels(isa, block, weight);
    }
}

/// Expands the weights into a panel that stays in the cache while the rows pass by.
fn panels(isa: Isa, mut block: Block<'_>, weight: Blocks<'_>) {
    let (rows, inputs) = (block.input.rows, block.input.inputs);
    let bytes = if rows >= MANY { PANEL_BYTES } else { WEIGHT_BLOCK_BYTES };
    let fits = (bytes / (inputs * size_of::<f32>())).max(4) & !3;
    let outputs = weight.len() / inputs;
    let mut panel = scratch::take(fits.min(outputs) * inputs);
    let mut first = 0;
    while first < outputs {
        let last = (first + fits).min(outputs);
        let panel = &mut panel[..(last - first) * inputs];
        quant::expand(isa, weight.part(first * inputs..last * inputs), panel);
        if rows >= MANY {
            isa.run(Many { block, weight: panel });
        } else {
            isa.run(Few { block, weight: &*panel });
        }
        block.first += last - first;
        first = last;
    }
}

struct InRegisters<'a, B> {
    block: Block<'a>,
    blocks: &'a [B],
}

impl<B: BlockOf> Kernel for InRegisters<'_, B> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { block, blocks } = self;
        let most = if S::ACCUMULATORS >= 24 { 6 } else { 2 };
        let tiles = block.input.rows.div_ceil(most);
        for tile in 0..tiles {
            let rows = split(block.input.rows, tile, tiles);
            let first = rows.start;
            // With more rows there are enough independent sums without more outputs.
            if S::ACCUMULATORS >= 24 {
                match rows.len() {
                    1 => block.block_tiles::<S, B::Format, 1, 4>(simd, first, blocks),
                    2 => block.block_tiles::<S, B::Format, 2, 2>(simd, first, blocks),
                    3 => block.block_tiles::<S, B::Format, 3, 1>(simd, first, blocks),
                    4 => block.block_tiles::<S, B::Format, 4, 1>(simd, first, blocks),
                    5 => block.block_tiles::<S, B::Format, 5, 1>(simd, first, blocks),
                    6 => block.block_tiles::<S, B::Format, 6, 1>(simd, first, blocks),
                    rows => unreachable!("{rows} rows in a tile"),
                }
            } else {
                match rows.len() {
                    1 => block.block_tiles::<S, B::Format, 1, 2>(simd, first, blocks),
                    2 => block.block_tiles::<S, B::Format, 2, 1>(simd, first, blocks),
                    rows => unreachable!("{rows} rows in a tile"),
                }
            }
        }
    }
}

impl Block<'_> {
    /// All outputs of `weights` for `R` rows from `row` on.
    #[inline(always)]
    fn block_tiles<S: Simd, F: Format, const R: usize, const O: usize>(
        &self,
        simd: S,
        row: usize,
        weights: &[F::Block],
    ) {
        let inputs = self.input.inputs;
        let x = self.tile_rows::<R>(row, 0..inputs);
        let width = inputs / F::VALUES;
        let count = weights.len() / width;
        let mut n = 0;
        while n + O <= count {
            let w = tile_blocks::<F, O>(weights, width, n);
            self.put(row, n, dots::<S, F, R, O>(simd, x, w));
            n += O;
        }
        while n < count {
            let w = tile_blocks::<F, 1>(weights, width, n);
            self.put(row, n, dots::<S, F, R, 1>(simd, x, w));
            n += 1;
        }
    }
}

#[inline(always)]
fn tile_blocks<F: Format, const O: usize>(
    weights: &[F::Block],
    width: usize,
    first: usize,
) -> [&[F::Block]; O] {
    let mut w: [&[F::Block]; O] = [&[]; O];
    for o in 0..O {
        let start = (first + o) * width;
        w[o] = &weights[start..start + width];
    }
    w
}

/// `x[r] · w[o]` for all r and o, in the order of [`linear`](super).
#[inline(always)]
fn dots<S: Simd, F: Format, const R: usize, const O: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[F::Block]; O],
) -> [[f32; O]; R] {
    let width = w[0].len();
    let mut x_lanes: [&[[f32; LANES]]; R] = [&[]; R];
    for r in 0..R {
        x_lanes[r] = &x[r].as_chunks().0[..width * (F::VALUES / LANES)];
    }
    let mut acc = [[simd.zero(); O]; R];
    for b in 0..width {
        for o in 0..O {
            let line = (&raw const w[o][b]).cast::<u8>().wrapping_add(AHEAD);
            for piece in 0..size_of::<F::Block>().div_ceil(64) {
                simd.prefetch(line.wrapping_add(64 * piece));
            }
        }
        let mut scales = [F::scales(simd, &w[0][b]); O];
        for o in 1..O {
            scales[o] = F::scales(simd, &w[o][b]);
        }
        for i in 0..steps::<F>() {
            let at = b * (F::VALUES / LANES) + i * F::VECTORS;
            let mut xs: [&[[f32; LANES]]; R] = [&[]; R];
            for r in 0..R {
                xs[r] = &x_lanes[r][at..at + F::VECTORS];
            }
            for o in 0..O {
                let values = F::step(simd, &w[o][b], &scales[o], i);
                for v in 0..F::VECTORS {
                    for r in 0..R {
                        acc[r][o] = simd.fma(simd.load(&xs[r][v]), values[v], acc[r][o]);
                    }
                }
            }
        }
    }
    sums(simd, &acc)
}
