//! Dot products of `R` rows with `O` weight rows in registers.
//!
//! Every one of the R·O products has its own accumulator of sixteen lanes and the order of
//! [`linear`](super), so the size of the tile cannot show in the result.

use crate::{
    simd::{LANES, Simd},
    weight::Stored,
};

/// `x[r] · w[o]` for all r and o; all slices have the same length. Asks for the weights that are used
/// when `ahead` bytes more were read.
#[inline(always)]
pub(crate) fn dots<S: Simd, E: Stored, const R: usize, const O: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[E]; O],
    ahead: Option<usize>,
) -> [[f32; O]; R] {
    let mut acc = [[simd.zero(); O]; R];
    accumulate(simd, x, w, ahead, &mut acc);
    sums(simd, &acc)
}

/// Adds the lanes of `x[r] · w[o]` to `acc[r][o]`. A product may be added in several pieces, all but
/// the last a multiple of [`LANES`] long.
#[inline(always)]
pub(crate) fn accumulate<S: Simd, E: Stored, const R: usize, const O: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[E]; O],
    ahead: Option<usize>,
    acc: &mut [[S::V; O]; R],
) {
    let width = x[0].len();
    let pairs = width / (2 * LANES);
    let mut x_pairs: [&[[f32; 2 * LANES]]; R] = [&[]; R];
    let mut w_pairs: [&[[E; 2 * LANES]]; O] = [&[]; O];
    for r in 0..R {
        x_pairs[r] = &x[r].as_chunks().0[..pairs];
    }
    for o in 0..O {
        w_pairs[o] = &w[o].as_chunks().0[..pairs];
    }
    // The rows of a tile lie one behind the other. What comes `ahead` bytes after a place in a short row
    // is of another tile; in a long one it is of the same, and asked for by its own row. There each row
    // asks for its part of those bytes, and at its end for the row that will take its place.
    let (step, row) = (2 * LANES * size_of::<E>(), width * size_of::<E>());
    let [near, far, turn] = match ahead {
        Some(ahead) if O * row > ahead => {
            let near = ahead / O;
            [near, near + (O - 1) * row, pairs.saturating_sub(near / step)]
        }
        Some(ahead) => [ahead, ahead, pairs],
        None => [0; 3],
    };
    let mut sum = *acc;
    for p in 0..pairs {
        if ahead.is_some() {
            let ahead = if p < turn { near } else { far };
            for o in 0..O {
                let line = w_pairs[o][p].as_ptr().cast::<u8>().wrapping_add(ahead);
                simd.prefetch(line);
                if size_of::<E>() == 4 {
                    simd.prefetch(line.wrapping_add(64));
                }
            }
        }
        for half in 0..2 {
            let mut wv = [simd.zero(); O];
            for o in 0..O {
                wv[o] = E::half(simd, &w_pairs[o][p], half);
            }
            for r in 0..R {
                let xv = f32::half(simd, &x_pairs[r][p], half);
                for o in 0..O {
                    sum[r][o] = simd.fma(xv, wv[o], sum[r][o]);
                }
            }
        }
    }
    let done = pairs * 2 * LANES;
    if done < width {
        for r in 0..R {
            for o in 0..O {
                sum[r][o] = rest(simd, &x[r][done..width], &w[o][done..width], sum[r][o]);
            }
        }
    }
    *acc = sum;
}

/// Fewer than two vectors at the end.
#[inline(always)]
fn rest<S: Simd, E: Stored>(simd: S, x: &[f32], w: &[E], mut sum: S::V) -> S::V {
    let (x_blocks, x_part) = x.as_chunks::<LANES>();
    let (w_blocks, w_part) = w.as_chunks::<LANES>();
    for (x, w) in x_blocks.iter().zip(w_blocks) {
        sum = simd.fma(simd.load(x), E::lanes(simd, w), sum);
    }
    if !x_part.is_empty() {
        sum = simd.fma(simd.load_part(x_part), E::part(simd, w_part), sum);
    }
    sum
}

/// The sums of the lanes.
#[inline(always)]
pub(crate) fn sums<S: Simd, const R: usize, const O: usize>(
    simd: S,
    acc: &[[S::V; O]; R],
) -> [[f32; O]; R] {
    let mut out = [[0.0; O]; R];
    let mut i = 0;
    while i + 4 <= R * O {
        let at = |i: usize| acc[i / O][i % O];
        let four = simd.sum4([at(i), at(i + 1), at(i + 2), at(i + 3)]);
        for (j, sum) in four.into_iter().enumerate() {
            out[(i + j) / O][(i + j) % O] = sum;
        }
        i += 4;
    }
    while i < R * O {
        out[i / O][i % O] = simd.sum(acc[i / O][i % O]);
        i += 1;
    }
    out
}
