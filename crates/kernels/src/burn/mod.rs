//! The kernels on burn tensors: [`RowInvariantOps`] as a burn backend extension, and a function for
//! each operation that hides the dispatch.
//!
//! Flex (burn's CPU backend) and CubeCL's devices (wgpu, CUDA) run the kernels of this crate, unless
//! [`set_kernels`] asks for burn's own; [`check`] tells whether a device computes right. Another
//! backend that is listed gets the default bodies, plain burn ops that compute the same but promise
//! no bits; [`row_invariant`] says which it is.
//!
//! Weights are f32, bf16 or [blocks](crate::quant) as they were loaded, `[outputs, inputs]`;
//! everything else is f32. Blocks are for the CPU's kernels only ([`reads_blocks`]): what goes to another
//! device is expanded when it is loaded. A tensor that is not in one piece is copied first, so keep
//! weights and caches whole.
//! Tensors that an operation changes (caches, residuals, heads to rotate) are taken by value and
//! returned, and are changed in place if nobody else holds them: take a cache out of its slot, pass
//! it on, and put the result back.

mod bytes;
pub mod check;
#[cfg(feature = "cube")]
mod cube;
mod facts;
#[cfg(feature = "cpu")]
mod flex;
mod general;
mod layers;
mod matrix;
mod mode;
mod ops;

use ::burn::{
    backend::Dispatch,
    tensor::{Device, Int, Tensor},
};

pub use bytes::{weight_data, weights};
pub use facts::{largest_tensor, memory, reads_blocks};
pub use general::General;
pub use layers::{Layers, LayersOf, TensorsOf};
pub use matrix::{LinearMap, Matrix};
pub use mode::{Kernels, kernels, set_kernels, with_kernels};
pub use ops::{Bias, MatrixOf, RowInvariantOps};

use crate::{attention::AttentionRule, glu::Activation, norm::RmsForm, rope::RopeLayout};

/// Whether rows on this device are independent bit for bit.
#[must_use]
pub fn row_invariant(device: &Device) -> bool {
    Dispatch::row_invariance(Tensor::<1>::zeros([1], device).into_dispatch())
}

fn bias(bias: Option<Tensor<1>>) -> Bias<Dispatch> {
    bias.map_or(Bias::None, |bias| Bias::Some(bias.into_dispatch()))
}

/// `x·Wᵀ + b`.
///
/// # Shapes
/// - x: `[n, input]`; weight: `[output, input]`; bias: `[output]`
/// - output: `[n, output]`
#[must_use]
pub fn linear(x: Tensor<2>, weight: impl Into<Matrix>, b: Option<Tensor<1>>) -> Tensor<2> {
    let y = Dispatch::row_linear(x.into_dispatch(), Matrix::into_dispatch(weight.into()), bias(b));
    Tensor::from_dispatch(y)
}

/// Three linear maps of one input in one go: query, key and value.
///
/// # Shapes
/// - as [`linear`], three times
#[must_use]
pub fn linear3(
    x: Tensor<2>,
    weights: [impl Into<Matrix>; 3],
    biases: [Option<Tensor<1>>; 3],
) -> [Tensor<2>; 3] {
    let [wa, wb, wc] = weights.map(|weight| Matrix::into_dispatch(weight.into()));
    let [ba, bb, bc] = biases.map(bias);
    let (a, b, c) = Dispatch::row_linear3(x.into_dispatch(), wa, wb, wc, ba, bb, bc);
    [a, b, c].map(Tensor::from_dispatch)
}

/// `act(x·Gᵀ + g) · (x·Uᵀ + u)`: the first half of a gated feed-forward block.
///
/// # Shapes
/// - x: `[n, input]`; gate and up: `[output, input]`, biases `[output]`
/// - output: `[n, output]`
#[must_use]
pub fn gated<W: Into<Matrix>>(
    x: Tensor<2>,
    gate: LinearMap<W>,
    up: LinearMap<W>,
    activation: Activation,
) -> Tensor<2> {
    let y = Dispatch::row_gated(
        x.into_dispatch(),
        Matrix::into_dispatch(gate.0.into()),
        bias(gate.1),
        Matrix::into_dispatch(up.0.into()),
        bias(up.1),
        activation,
    );
    Tensor::from_dispatch(y)
}

/// `act(gate) · up`, all of one shape.
#[must_use]
pub fn glu<const D: usize>(gate: Tensor<D>, up: Tensor<D>, activation: Activation) -> Tensor<D> {
    let y = Dispatch::row_glu(gate.into_dispatch(), up.into_dispatch(), activation);
    Tensor::from_dispatch(y)
}

/// `cap·tanh(x / cap)`, value by value, in place if nobody else holds x.
#[must_use]
pub fn softcap<const D: usize>(x: Tensor<D>, cap: f32) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::row_softcap(x.into_dispatch(), cap))
}

/// `x / √(mean(x²) + ε)` times the weight, over the last dimension.
///
/// # Shapes
/// - x: `[…, width]`; weight: `[width]`
#[must_use]
pub fn rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
    form: RmsForm,
) -> Tensor<D> {
    let y = Dispatch::row_rms_norm(x.into_dispatch(), weight.into_dispatch(), epsilon, form);
    Tensor::from_dispatch(y)
}

/// `residual + x`, and its [`rms_norm`].
///
/// # Shapes
/// - residual, x: `[…, width]`; weight: `[width]`
#[must_use]
pub fn add_rms_norm<const D: usize>(
    residual: Tensor<D>,
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
    form: RmsForm,
) -> (Tensor<D>, Tensor<D>) {
    let (sum, y) = Dispatch::row_add_rms_norm(
        residual.into_dispatch(),
        x.into_dispatch(),
        weight.into_dispatch(),
        epsilon,
        form,
    );
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(y))
}

/// `(x − mean) / √(variance + ε) · weight + bias`, over the last dimension.
///
/// # Shapes
/// - x: `[…, width]`; weight, bias: `[width]`
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let y = Dispatch::row_layer_norm(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        epsilon,
    );
    Tensor::from_dispatch(y)
}

/// Rotates the heads of every row by the angles of its position.
///
/// # Shapes
/// - x: `[n, heads, head_dim]`; cos, sin: `[n, half]` with 2·half ≤ head_dim
#[must_use]
pub fn rope(x: Tensor<3>, cos: Tensor<2>, sin: Tensor<2>, layout: RopeLayout) -> Tensor<3> {
    let y = Dispatch::row_rope(x.into_dispatch(), cos.into_dispatch(), sin.into_dispatch(), layout);
    Tensor::from_dispatch(y)
}

/// Rows of a table, as f32.
///
/// # Shapes
/// - table: `[rows, width]`; ids: `[n]`
/// - output: `[n, width]`
#[must_use]
pub fn embedding(table: impl Into<Matrix>, ids: Tensor<1, Int>) -> Tensor<2> {
    let y = Dispatch::row_embedding(Matrix::into_dispatch(table.into()), ids.into_dispatch());
    Tensor::from_dispatch(y)
}

/// Writes `new` to positions `at..at + n` of a cache, in place if nobody else holds it.
///
/// # Shapes
/// - cache: `[kv_heads, capacity, head_dim]`; new: `[n, kv_heads, head_dim]`
#[must_use]
pub fn append(cache: Tensor<3>, new: Tensor<3>, at: usize) -> Tensor<3> {
    Tensor::from_dispatch(Dispatch::row_append(cache.into_dispatch(), new.into_dispatch(), at))
}

/// Whole layers on the rows of one sequence, bit for bit what their operations give one by one:
/// appends keys and values to the stores of each layer, and returns the rows, normed if there is a
/// norm behind the layers, and the stores.
///
/// # Shapes
/// - x, output: `[n, width]`
/// - rotations: cosines and sines as in [`rope`], for each that a layer names
/// - stores: keys and values of each layer as in [`attention`]
#[must_use]
pub fn layers(
    x: Tensor<2>,
    layers: &Layers,
    rotations: &[[Tensor<2>; 2]],
    stores: Vec<[Tensor<3>; 2]>,
    at: usize,
) -> (Tensor<2>, Vec<[Tensor<3>; 2]>) {
    let rotations = rotations.iter().flatten().map(|angles| angles.clone().into_dispatch());
    let stores = stores.into_iter().flatten().map(Tensor::into_dispatch);
    let (y, stores) = Dispatch::row_layers(
        x.into_dispatch(),
        layers.clone().into_dispatch(),
        TensorsOf(rotations.collect()),
        TensorsOf(stores.collect()),
        at,
    );
    let mut stores = stores.into_iter().map(Tensor::from_dispatch);
    let pairs = std::iter::from_fn(|| Some([stores.next()?, stores.next()?]));
    (Tensor::from_dispatch(y), pairs.collect())
}

/// Appends the keys and values of `n` new positions to a sequence that holds `at`, and attends
/// from each of them over its own prefix. Returns the output and the caches.
///
/// # Shapes
/// - query: `[n, heads, head_dim]`; key, value: `[n, kv_heads, head_dim]`
/// - keys, values: `[kv_heads, capacity, head_dim]`, capacity ≥ at + n
/// - output: `[n, heads · head_dim]`
#[must_use]
pub fn attention(
    query: Tensor<3>,
    [key, value]: [Tensor<3>; 2],
    [keys, values]: [Tensor<3>; 2],
    at: usize,
    rule: AttentionRule,
) -> (Tensor<2>, [Tensor<3>; 2]) {
    let (y, keys, values) = Dispatch::row_attention(
        query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
        keys.into_dispatch(),
        values.into_dispatch(),
        at,
        rule,
    );
    (Tensor::from_dispatch(y), [keys, values].map(Tensor::from_dispatch))
}
