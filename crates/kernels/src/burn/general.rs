//! The operations in plain burn ops: correct on every backend, and without a promise about bits,
//! since a backend may take another code path for one row than for several.

use std::{f64::consts::PI, marker::PhantomData};

use ::burn::backend::{
    Backend, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use ::burn::tensor::{FloatDType, Shape, Slice, TensorData};

use super::Bias;
use crate::{attention::AttentionRule, glu::Activation, norm::RmsForm, rope::RopeLayout};

/// The bodies for backend `B`.
#[derive(Debug)]
pub struct General<B>(PhantomData<B>);

fn dims<T: TensorMetadata>(tensor: &T) -> Vec<usize> {
    tensor.shape().to_vec()
}

/// All of `dims`, except `range` of dimension `dim`.
fn part(dims: &[usize], dim: usize, range: std::ops::Range<usize>) -> Vec<Slice> {
    let slice = |(i, &size): (usize, &usize)| {
        let range = if i == dim { range.clone() } else { 0..size };
        Slice::from(range)
    };
    dims.iter().enumerate().map(slice).collect()
}

impl<B: Backend> General<B> {
    /// `x·Wᵀ + b`; a bf16 weight is widened for the call.
    pub fn linear(x: FloatTensor<B>, weight: FloatTensor<B>, bias: Bias<B>) -> FloatTensor<B> {
        let weight = B::float_cast(weight, FloatDType::F32);
        let y = B::float_matmul(x, B::float_transpose(weight));
        match bias {
            Bias::None => y,
            Bias::Some(bias) => B::float_add(y, Self::row(bias)),
        }
    }

    /// Three linear maps of one input.
    pub fn linear3(
        x: FloatTensor<B>,
        weights: [FloatTensor<B>; 3],
        biases: [Bias<B>; 3],
    ) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
        let ([a, b, c], [bias_a, bias_b, bias_c]) = (weights, biases);
        (
            Self::linear(x.clone(), a, bias_a),
            Self::linear(x.clone(), b, bias_b),
            Self::linear(x, c, bias_c),
        )
    }

    /// `act(x·Gᵀ + g) · (x·Uᵀ + u)`.
    pub fn gated(
        x: FloatTensor<B>,
        gate: (FloatTensor<B>, Bias<B>),
        up: (FloatTensor<B>, Bias<B>),
        activation: Activation,
    ) -> FloatTensor<B> {
        let gate = Self::linear(x.clone(), gate.0, gate.1);
        Self::glu(gate, Self::linear(x, up.0, up.1), activation)
    }

    /// `[width]` → `[1, width]`.
    fn row(vector: FloatTensor<B>) -> FloatTensor<B> {
        let width = dims(&vector)[0];
        B::float_reshape(vector, Shape::from([1, width]))
    }

    /// `act(gate) · up`.
    pub fn glu(gate: FloatTensor<B>, up: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
        let slope = match activation {
            Activation::Silu => gate.clone(),
            Activation::GeluTanh => {
                let square = B::float_mul(gate.clone(), gate.clone());
                let bend = B::float_add_scalar(
                    B::float_mul_scalar(square, 0.044_715_f64.into()),
                    1.0_f64.into(),
                );
                let scale = 2.0 * (2.0 / PI).sqrt();
                B::float_mul_scalar(B::float_mul(bend, gate.clone()), scale.into())
            }
        };
        B::float_mul(B::float_mul(gate, B::sigmoid(slope)), up)
    }

    /// `cap·tanh(x / cap)`.
    pub fn softcap(x: FloatTensor<B>, cap: f32) -> FloatTensor<B> {
        B::float_mul_scalar(B::float_tanh(B::float_div_scalar(x, cap.into())), cap.into())
    }

    /// `x` as `[rows, width]`, and its own shape.
    fn flat(x: FloatTensor<B>) -> (FloatTensor<B>, Shape) {
        let shape = x.shape();
        let width = shape.to_vec().last().copied().unwrap_or(1).max(1);
        let rows = shape.num_elements() / width;
        (B::float_reshape(x, Shape::from([rows, width])), shape)
    }

    /// Root-mean-square norm over the last dimension.
    pub fn rms_norm(
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        epsilon: f64,
        form: RmsForm,
    ) -> FloatTensor<B> {
        let (x, shape) = Self::flat(x);
        let weight = match form {
            RmsForm::Llama => weight,
            RmsForm::Gemma => B::float_add_scalar(weight, 1.0_f64.into()),
        };
        let y = B::float_mul(Self::scaled(x, epsilon), Self::row(weight));
        B::float_reshape(y, shape)
    }

    /// `residual + x` and its norm.
    pub fn add_rms_norm(
        residual: FloatTensor<B>,
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        epsilon: f64,
        form: RmsForm,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let sum = B::float_add(residual, x);
        (sum.clone(), Self::rms_norm(sum, weight, epsilon, form))
    }

    /// `x / √(mean(x²) + ε)` for rows.
    fn scaled(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
        let mean = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 1);
        let scale = B::float_sqrt(B::float_add_scalar(mean, epsilon.into()));
        B::float_div(x, scale)
    }

    /// Layer norm over the last dimension.
    pub fn layer_norm(
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
        epsilon: f64,
    ) -> FloatTensor<B> {
        let (x, shape) = Self::flat(x);
        let mean = B::float_mean_dim(x.clone(), 1);
        let y = Self::scaled(B::float_sub(x, mean), epsilon);
        let y = B::float_add(B::float_mul(y, Self::row(weight)), Self::row(bias));
        B::float_reshape(y, shape)
    }

    /// Rotary embedding.
    pub fn rope(
        x: FloatTensor<B>,
        cos: FloatTensor<B>,
        sin: FloatTensor<B>,
        layout: RopeLayout,
    ) -> FloatTensor<B> {
        let shape = dims(&x);
        let (n, heads, dim, half) = (shape[0], shape[1], shape[2], dims(&cos)[1]);
        let pairs = B::float_slice(x.clone(), &part(&shape, 2, 0..2 * half));
        let (inner, axis) = match layout {
            RopeLayout::HalfSplit => ([n, heads, 2, half], 2),
            RopeLayout::Interleaved => ([n, heads, half, 2], 3),
        };
        let pairs = B::float_reshape(pairs, Shape::from(inner));
        let pick = |i: usize| {
            let one = B::float_slice(pairs.clone(), &part(&inner, axis, i..i + 1));
            B::float_reshape(one, Shape::from([n, heads, half]))
        };
        let angle = |t| B::float_reshape(t, Shape::from([n, 1, half]));
        let (a, b, cos, sin) = (pick(0), pick(1), angle(cos), angle(sin));
        let mul = B::float_mul;
        let low = B::float_sub(mul(a.clone(), cos.clone()), mul(b.clone(), sin.clone()));
        let high = B::float_add(mul(b, cos), mul(a, sin));
        let slot = match layout {
            RopeLayout::HalfSplit => [n, heads, 1, half],
            RopeLayout::Interleaved => [n, heads, half, 1],
        };
        let halves = [low, high].map(|t| B::float_reshape(t, Shape::from(slot)));
        let turned = B::float_cat(halves.into(), axis);
        let turned = B::float_reshape(turned, Shape::from([n, heads, 2 * half]));
        if 2 * half == dim {
            return turned;
        }
        let rest = B::float_slice(x, &part(&shape, 2, 2 * half..dim));
        B::float_cat(vec![turned, rest], 2)
    }

    /// Rows of a table, as f32.
    pub fn embedding(table: FloatTensor<B>, ids: IntTensor<B>) -> FloatTensor<B> {
        B::float_cast(B::float_select(table, 0, ids), FloatDType::F32)
    }

    /// New positions into a cache.
    pub fn append(cache: FloatTensor<B>, new: FloatTensor<B>, at: usize) -> FloatTensor<B> {
        let (shape, n) = (dims(&cache), dims(&new)[0]);
        let new = B::float_swap_dims(new, 0, 1);
        B::float_slice_assign(cache, &part(&shape, 1, at..at + n), new)
    }

    /// New positions into the caches, and attention from each over its own prefix.
    pub fn append_and_attend(
        query: FloatTensor<B>,
        [key, value]: [FloatTensor<B>; 2],
        [keys, values]: [FloatTensor<B>; 2],
        at: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
        let keys = Self::append(keys, key, at);
        let values = Self::append(values, value, at);
        let y = Self::attention(query, keys.clone(), values.clone(), at, rule);
        (y, keys, values)
    }

    /// Attention of the `n` positions from `at` on.
    pub fn attention(
        query: FloatTensor<B>,
        keys: FloatTensor<B>,
        values: FloatTensor<B>,
        at: usize,
        rule: AttentionRule,
    ) -> FloatTensor<B> {
        let AttentionRule { heads, kv_heads, head_dim, scale, window, softcap } = rule;
        let (n, store, group) = (dims(&query)[0], dims(&keys), heads / kv_heads);
        let len = at + n;
        let seen = |cache| B::float_slice(cache, &part(&store, 1, 0..len));
        let rows = Shape::from([kv_heads, group * n, head_dim]);
        let query = B::float_reshape(B::float_swap_dims(query, 0, 1), rows);
        let scores = B::float_matmul(query, B::float_transpose(seen(keys)));
        let mut scores = B::float_mul_scalar(scores, scale.into());
        if let Some(cap) = softcap {
            scores = Self::softcap(scores, cap);
        }
        let hidden = |row: usize, j: usize| {
            j > at + row || window.is_some_and(|window| j + window <= at + row)
        };
        let mask: Vec<f32> = (0..group * n)
            .flat_map(|i| (0..len).map(move |j| (i % n, j)))
            .map(|(row, j)| if hidden(row, j) { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let mask = TensorData::new(mask, [1, group * n, len]);
        let scores = B::float_add(scores.clone(), B::float_from_data(mask, &scores.device()));
        let weights = B::float_exp(B::float_sub(scores.clone(), B::float_max_dim(scores, 2)));
        let total = B::float_sum_dim(weights.clone(), 2);
        let mixed = B::float_div(B::float_matmul(weights, seen(values)), total);
        let mixed = B::float_reshape(mixed, Shape::from([heads, n, head_dim]));
        B::float_reshape(B::float_swap_dims(mixed, 0, 1), Shape::from([n, heads * head_dim]))
    }
}
