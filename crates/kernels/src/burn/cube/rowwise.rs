//! Norms by row, and what works value by value.
//!
//! # Order of a norm's sums
//! Sixty-four lanes, lane `l` taking values `l, l + 64, …` in ascending order (squares by fused
//! multiply-add), then the lanes in ascending order.

use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    dims,
    launch::{elementwise, input, output, unused},
    linear::Words,
};
use crate::{glu::Activation, norm::RmsForm, rope::RopeLayout};

/// Units of a cube that norms a row.
const LANES: usize = 64;
/// Rows in the first dimension of a grid; a dimension has at least 65 535 cubes everywhere.
const GRID: usize = 1 << 15;

/// One cube for each row.
fn by_row(rows: usize) -> (CubeCount, CubeDim) {
    let count = CubeCount::Static(rows.min(GRID) as u32, rows.div_ceil(GRID) as u32, 1);
    (count, CubeDim::new_1d(LANES as u32))
}

fn rows_of(x: &CubeTensor) -> (usize, usize) {
    let shape = x.meta.shape();
    let width = shape.last().copied().unwrap_or(1).max(1);
    (shape.num_elements() / width, width)
}

fn shape(x: &CubeTensor) -> Shape {
    x.meta.shape().clone()
}

/// `x / √(mean(x²) + ε)` times the weight.
pub(super) fn rms_norm(
    x: &CubeTensor,
    weight: &CubeTensor,
    epsilon: f32,
    form: RmsForm,
) -> CubeTensor {
    let out = output(x, shape(x));
    launch_rms_norm([x, &unused(x), weight], [&unused(x), &out], epsilon, (false, form));
    out
}

/// `residual + x`, and its norm.
pub(super) fn add_rms_norm(
    residual: &CubeTensor,
    x: &CubeTensor,
    weight: &CubeTensor,
    epsilon: f32,
    form: RmsForm,
) -> (CubeTensor, CubeTensor) {
    let (sum, out) = (output(x, shape(x)), output(x, shape(x)));
    launch_rms_norm([x, residual, weight], [&sum, &out], epsilon, (true, form));
    (sum, out)
}

fn launch_rms_norm(
    [x, residual, weight]: [&CubeTensor; 3],
    [sum, out]: [&CubeTensor; 2],
    epsilon: f32,
    (added, form): (bool, RmsForm),
) {
    let (rows, width) = rows_of(x);
    let (count, dim) = by_row(rows);
    // SAFETY: rows below `rows` of `width` values are read and written, and weights below `width`.
    unsafe {
        rms_norm_kernel::launch_unchecked(
            &x.client,
            count,
            dim,
            input(x),
            input(residual),
            input(weight),
            input(sum),
            input(out),
            rows,
            width,
            epsilon,
            added,
            form == RmsForm::Gemma,
        );
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "what a kernel binds")]
fn rms_norm_kernel(
    x: &[f32],
    residual: &[f32],
    weight: &[f32],
    sum: &mut [f32],
    out: &mut [f32],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] added: bool,
    #[comptime] gemma: bool,
) {
    let unit = UNIT_POS_X as usize;
    let row = CUBE_POS_X as usize + CUBE_POS_Y as usize * GRID;
    let mut lanes = Shared::<[f32]>::new_slice(LANES);
    let mut squares = 0.0f32;
    if row < rows {
        let mut i = unit;
        while i < width {
            let place = row * width + i;
            let mut value = x[place];
            if added {
                value += residual[place];
                sum[place] = value;
            }
            squares = fma(value, value, squares);
            i += LANES;
        }
    }
    lanes[unit] = squares;
    sync_cube();
    if row < rows {
        let mean = total(&lanes) / f32::cast_from(width);
        let scale = 1.0 / f32::sqrt(mean + epsilon);
        let mut i = unit;
        while i < width {
            let place = row * width + i;
            let mut value = x[place];
            if added {
                value += residual[place];
            }
            let mut factor = weight[i];
            if gemma {
                factor += 1.0;
            }
            out[place] = value * scale * factor;
            i += LANES;
        }
    }
}

#[cube]
fn total(lanes: &Shared<[f32]>) -> f32 {
    let mut total = 0.0f32;
    for lane in 0..LANES {
        total += lanes[lane];
    }
    total
}

/// `(x − mean) / √(variance + ε) · weight + bias`.
pub(super) fn layer_norm(
    x: &CubeTensor,
    weight: &CubeTensor,
    bias: &CubeTensor,
    epsilon: f32,
) -> CubeTensor {
    let (rows, width) = rows_of(x);
    let out = output(x, shape(x));
    let (count, dim) = by_row(rows);
    // SAFETY: rows below `rows` of `width` values are read and written, weights and biases below
    // `width` read.
    unsafe {
        layer_norm_kernel::launch_unchecked(
            &x.client,
            count,
            dim,
            input(x),
            input(weight),
            input(bias),
            input(&out),
            rows,
            width,
            epsilon,
        );
    }
    out
}

#[cube(launch_unchecked)]
fn layer_norm_kernel(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    rows: usize,
    width: usize,
    epsilon: f32,
) {
    let unit = UNIT_POS_X as usize;
    let row = CUBE_POS_X as usize + CUBE_POS_Y as usize * GRID;
    let mut lanes = Shared::<[f32]>::new_slice(LANES);
    let mut squares = Shared::<[f32]>::new_slice(LANES);
    let mut sum = 0.0f32;
    if row < rows {
        let mut i = unit;
        while i < width {
            sum += x[row * width + i];
            i += LANES;
        }
    }
    lanes[unit] = sum;
    sync_cube();
    let mean = total(&lanes) / f32::cast_from(width);
    sum = 0.0f32;
    if row < rows {
        let mut i = unit;
        while i < width {
            let deviation = x[row * width + i] - mean;
            sum = fma(deviation, deviation, sum);
            i += LANES;
        }
    }
    squares[unit] = sum;
    sync_cube();
    if row < rows {
        let variance = total(&squares) / f32::cast_from(width);
        let scale = 1.0 / f32::sqrt(variance + epsilon);
        let mut i = unit;
        while i < width {
            let place = row * width + i;
            out[place] = fma((x[place] - mean) * scale, weight[i], bias[i]);
            i += LANES;
        }
    }
}

/// `act(gate) · up`.
pub(super) fn glu(gate: &CubeTensor, up: &CubeTensor, activation: Activation) -> CubeTensor {
    let out = output(gate, shape(gate));
    let values = shape(gate).num_elements();
    let (count, dim) = elementwise(&gate.client, values);
    // SAFETY: values below `values` are read and written.
    unsafe {
        glu_kernel::launch_unchecked(
            &gate.client,
            count,
            dim,
            input(gate),
            input(up),
            input(&out),
            values,
            activation == Activation::GeluTanh,
        );
    }
    out
}

#[cube(launch_unchecked)]
fn glu_kernel(gate: &[f32], up: &[f32], out: &mut [f32], values: usize, #[comptime] gelu: bool) {
    let i = ABSOLUTE_POS;
    if i < values {
        let x = gate[i];
        let mut slope = x;
        if gelu {
            // gelu(x) = x · sigmoid(2·√(2/π) · (x + 0.044715·x³)).
            let bend = fma(0.044_715f32, x * x, 1.0f32);
            slope = 1.595_769_1f32 * x * bend;
        }
        out[i] = x / (1.0 + f32::exp(-slope)) * up[i];
    }
}

/// `cap·tanh(x / cap)`.
pub(super) fn softcap(x: &CubeTensor, cap: f32) -> CubeTensor {
    let out = output(x, shape(x));
    let values = shape(x).num_elements();
    let (count, dim) = elementwise(&x.client, values);
    // SAFETY: values below `values` are read and written.
    unsafe {
        softcap_kernel::launch_unchecked(&x.client, count, dim, input(x), input(&out), values, cap);
    }
    out
}

#[cube(launch_unchecked)]
fn softcap_kernel(x: &[f32], out: &mut [f32], values: usize, cap: f32) {
    let i = ABSOLUTE_POS;
    if i < values {
        // In a form that no driver overflows in.
        out[i] = cap * (1.0 - 2.0 / (f32::exp(2.0 * x[i] / cap) + 1.0));
    }
}

/// Rotates heads.
///
/// # Shapes
/// - x: `[n, heads, dim]`; cos, sin: `[n, half]`
pub(super) fn rope(
    x: &CubeTensor,
    cos: &CubeTensor,
    sin: &CubeTensor,
    layout: RopeLayout,
) -> CubeTensor {
    let ([_, heads, dim], [_, half]) = (dims(x), dims(cos));
    let out = output(x, shape(x));
    let values = shape(x).num_elements();
    let (count, cube) = elementwise(&x.client, values);
    // SAFETY: values below `values`, and angles of their rows, are read; values are written.
    unsafe {
        rope_kernel::launch_unchecked(
            &x.client,
            count,
            cube,
            input(x),
            input(cos),
            input(sin),
            input(&out),
            values,
            heads,
            dim,
            half,
            layout == RopeLayout::Interleaved,
        );
    }
    out
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "what a kernel binds")]
fn rope_kernel(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    out: &mut [f32],
    values: usize,
    heads: usize,
    dim: usize,
    half: usize,
    #[comptime] interleaved: bool,
) {
    let i = ABSOLUTE_POS;
    if i < values {
        let d = i % dim;
        let row = i / dim / heads;
        if d >= 2 * half {
            out[i] = x[i];
        } else {
            let mut pair = d % half;
            let mut second = d >= half;
            let mut step = half;
            if interleaved {
                pair = d / 2;
                second = d % 2 == 1;
                step = 1usize.runtime();
            }
            let (c, s) = (cos[row * half + pair], sin[row * half + pair]);
            if second {
                out[i] = fma(x[i], c, x[i - step] * s);
            } else {
                out[i] = fma(x[i], c, -(x[i + step] * s));
            }
        }
    }
}

/// Rows of a table as f32.
///
/// # Shapes
/// - table: `[rows, width]`; ids: `[n]`, i32; output: `[n, width]`
pub(super) fn embedding(table: &CubeTensor, words: Words, ids: &CubeTensor) -> CubeTensor {
    let ([rows, width], [n]) = (dims(table), dims(ids));
    let out = output(table, [n, width]);
    let (count, dim) = elementwise(&table.client, n * width);
    // SAFETY: `n` ids are read, rows of the table below `rows` (an id beyond reads the last), and
    // `n · width` values are written.
    unsafe {
        embedding_kernel::launch_unchecked(
            &table.client,
            count,
            dim,
            input(table),
            input(ids),
            input(&out),
            n * width,
            rows,
            width,
            words,
        );
    }
    out
}

#[cube(launch_unchecked)]
fn embedding_kernel(
    table: &[u32],
    ids: &[u32],
    out: &mut [f32],
    values: usize,
    rows: usize,
    width: usize,
    #[comptime] words: Words,
) {
    let i = ABSOLUTE_POS;
    if i < values {
        let id = ids[i / width] as usize;
        let place = select(id < rows, id, rows - 1) * width + i % width;
        match comptime!(words) {
            Words::F32 => out[i] = f32::reinterpret(table[place]),
            Words::Bf16 => {
                let word = table[place / 2];
                let bits = select(place % 2 == 1, word & 0xFFFF_0000, word << 16);
                out[i] = f32::reinterpret(bits);
            }
        }
    }
}

/// Writes keys or values to positions `at..at + n` of a cache, in place.
///
/// # Shapes
/// - cache: `[kv_heads, capacity, head_dim]`; new: `[n, kv_heads, head_dim]`
pub(super) fn append(cache: &CubeTensor, new: &CubeTensor, at: usize) {
    let ([kv_heads, capacity, head_dim], [n, _, _]) = (dims(cache), dims(new));
    assert!(at + n <= capacity, "room for {n} positions from {at} on in {capacity}");
    let values = n * kv_heads * head_dim;
    let (count, dim) = elementwise(&cache.client, values);
    // SAFETY: `values` values are read, and positions below `capacity` of each head written.
    unsafe {
        append_kernel::launch_unchecked(
            &cache.client,
            count,
            dim,
            input(new),
            input(cache),
            values,
            at,
            kv_heads,
            capacity,
            head_dim,
        );
    }
}

#[cube(launch_unchecked)]
fn append_kernel(
    new: &[f32],
    cache: &mut [f32],
    values: usize,
    at: usize,
    kv_heads: usize,
    capacity: usize,
    head_dim: usize,
) {
    let i = ABSOLUTE_POS;
    if i < values {
        let (d, head, row) = (i % head_dim, i / head_dim % kv_heads, i / head_dim / kv_heads);
        cache[(head * capacity + at + row) * head_dim + d] = new[i];
    }
}
