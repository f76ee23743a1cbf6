//! Whole transformer layers, one after the other, on the rows of one sequence.
//!
//! ```text
//! x ─┬─ norm ─ query, key, value ─ norms ─ rotation ─ cache ─ attention ─ output ─ norm ─┬─ + ─┬─ norm ─ …
//!    └────────────────────────────────────────────────────────────────────────────────────┘     └────────
//! ```
//! Nothing is computed here: the operations of this crate run in their order, so the bits are those
//! of the operations one by one. What is spared is what lies between them. A row of a small model
//! spends microseconds in an operation, and handing tensors from one to the next costs as much.
//!
//! A [`Layer`] is told by what its matrices and vectors are: slices here, tensors in
//! `burn`.

use crate::{
    attention::{self, AttentionRule, AttentionSpan},
    glu::Activation,
    linear::{Projection, gated, linear, linears},
    norm::{RmsForm, add_rms_norm, rms_norm},
    rope::{RopeLayout, rope},
    scratch,
    weight::Weight,
};

/// A root-mean-square norm with its weight.
#[derive(Clone, Copy, Debug)]
pub struct Norm<V> {
    /// `[width]`.
    pub weight: V,
    /// Added to the mean square.
    pub epsilon: f64,
    /// What multiplies.
    pub form: RmsForm,
}

/// `x·Wᵀ + b`.
#[derive(Clone, Copy, Debug)]
pub struct Affine<M, V> {
    /// `[outputs, inputs]`.
    pub weight: M,
    /// `[outputs]`.
    pub bias: Option<V>,
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// By which of a pass's rotations.
    pub by: usize,
    /// Which values of a head are a pair.
    pub layout: RopeLayout,
}

/// A layer: attention and a gated feed-forward block, each behind a norm and added to what came in.
#[derive(Clone, Debug)]
pub struct Layer<M, V> {
    /// Of what attention reads.
    pub attention_norm: Norm<V>,
    /// The map to queries.
    pub query: Affine<M, V>,
    /// The map to keys.
    pub key: Affine<M, V>,
    /// The map to values.
    pub value: Affine<M, V>,
    /// Of each query head and each key head, before they are rotated.
    pub head_norms: Option<[Norm<V>; 2]>,
    /// None: they stay as they are.
    pub rotated: Option<Rotated>,
    /// Heads, scale, window and softcap.
    pub rule: AttentionRule,
    /// The map from attention.
    pub output: Affine<M, V>,
    /// Of what attention gives, before it is added.
    pub attention_out_norm: Option<Norm<V>>,
    /// Of what the feed-forward block reads.
    pub mlp_norm: Norm<V>,
    /// The map to the gate.
    pub gate: Affine<M, V>,
    /// The map to what is gated.
    pub up: Affine<M, V>,
    /// The map back.
    pub down: Affine<M, V>,
    /// The function of the gate.
    pub activation: Activation,
    /// Of what the feed-forward block gives, before it is added.
    pub mlp_out_norm: Option<Norm<V>>,
}

impl<V> Norm<V> {
    /// The norm with another vector in its place.
    pub fn map<'a, W>(&'a self, vector: impl Fn(&'a V) -> W) -> Norm<W> {
        let Self { weight, epsilon, form } = self;
        Norm { weight: vector(weight), epsilon: *epsilon, form: *form }
    }
}

impl<M, V> Affine<M, V> {
    /// The map with another matrix and vector in their places.
    pub fn map<'a, N, W>(
        &'a self,
        matrix: impl Fn(&'a M) -> N,
        vector: impl Fn(&'a V) -> W,
    ) -> Affine<N, W> {
        Affine { weight: matrix(&self.weight), bias: self.bias.as_ref().map(vector) }
    }
}

impl<M, V> Layer<M, V> {
    /// The layer with other matrices and vectors in the same places.
    pub fn map<'a, N, W>(
        &'a self,
        matrix: impl Fn(&'a M) -> N,
        vector: impl Fn(&'a V) -> W,
    ) -> Layer<N, W> {
        let norm = |norm: &'a Norm<V>| norm.map(&vector);
        let affine = |affine: &'a Affine<M, V>| affine.map(&matrix, &vector);
        Layer {
            attention_norm: norm(&self.attention_norm),
            query: affine(&self.query),
            key: affine(&self.key),
            value: affine(&self.value),
            head_norms: self.head_norms.as_ref().map(|[query, key]| [norm(query), norm(key)]),
            rotated: self.rotated,
            rule: self.rule,
            output: affine(&self.output),
            attention_out_norm: self.attention_out_norm.as_ref().map(norm),
            mlp_norm: norm(&self.mlp_norm),
            gate: affine(&self.gate),
            up: affine(&self.up),
            down: affine(&self.down),
            activation: self.activation,
            mlp_out_norm: self.mlp_out_norm.as_ref().map(norm),
        }
    }
}

impl Norm<&[f32]> {
    /// The norm of rows.
    ///
    /// # Panics
    /// As [`rms_norm`].
    pub fn run(&self, x: &[f32], out: &mut [f32]) {
        rms_norm(x, self.weight, self.epsilon as f32, self.form, out);
    }
}

impl<'a> Affine<Weight<'a>, &'a [f32]> {
    fn onto<'b>(&'b self, out: &'b mut [f32]) -> Projection<'b> {
        Projection { weight: self.weight, bias: self.bias, out }
    }
}

/// Runs `layers` on the rows of a sequence that holds `at` positions: adds what they give to `x`,
/// appends to their `stores`, and writes the sum's norm by `then`, if there is one, to `normed`.
///
/// # Shapes
/// - x, normed: `[rows, width]`
/// - rotations: cosines and sines, `[rows, half]` each
/// - stores: keys and values of each layer, `[kv_heads, capacity, head_dim]`, capacity ≥ at + rows
///
/// # Panics
/// If the sizes do not fit together, or there is no store for a layer, or no rotation that it names.
pub fn layers(
    layers: &[Layer<Weight<'_>, &[f32]>],
    then: Option<&Norm<&[f32]>>,
    x: &mut [f32],
    rotations: &[[&[f32]; 2]],
    stores: &mut [[&mut [f32]; 2]],
    at: usize,
    normed: &mut [f32],
) {
    assert_eq!(layers.len(), stores.len(), "keys and values for each layer");
    if let Some(norm) = layers.first().map(|first| &first.attention_norm).or(then) {
        norm.run(x, normed);
    }
    let mut branch = scratch::take(x.len());
    for (index, (layer, stores)) in layers.iter().zip(stores).enumerate() {
        layer.attend(normed, rotations, stores, at, &mut branch);
        let next = Some(&layer.mlp_norm);
        add(x, &mut branch, layer.attention_out_norm.as_ref(), next, normed);
        layer.feed_forward(normed, &mut branch);
        let next = layers.get(index + 1).map(|next| &next.attention_norm).or(then);
        add(x, &mut branch, layer.mlp_out_norm.as_ref(), next, normed);
    }
}

/// Adds what a block gave, normed by `out_norm`, to x, and norms the sum by `then`.
fn add(
    x: &mut [f32],
    branch: &mut [f32],
    out_norm: Option<&Norm<&[f32]>>,
    then: Option<&Norm<&[f32]>>,
    normed: &mut [f32],
) {
    if let Some(norm) = out_norm {
        let mut plain = scratch::take(branch.len());
        plain.copy_from_slice(branch);
        norm.run(&plain, branch);
    }
    match then {
        Some(Norm { weight, epsilon, form }) => {
            add_rms_norm(x, branch, weight, *epsilon as f32, *form, normed);
        }
        None => {
            for (x, branch) in x.iter_mut().zip(branch) {
                *x += *branch;
            }
        }
    }
}

impl Layer<Weight<'_>, &[f32]> {
    fn attend(
        &self,
        x: &[f32],
        rotations: &[[&[f32]; 2]],
        [keys, values]: &mut [&mut [f32]; 2],
        at: usize,
        out: &mut [f32],
    ) {
        let AttentionRule { heads, kv_heads, head_dim, .. } = self.rule;
        let width = self.attention_norm.weight.len();
        let rows = x.len() / width;
        let [query_size, size] = [heads, kv_heads].map(|heads| rows * heads * head_dim);
        let mut query = scratch::take(query_size);
        let [mut key, mut value] = [(); 2].map(|()| scratch::take(size));
        linears(
            x,
            width,
            &mut [
                self.query.onto(&mut query),
                self.key.onto(&mut key),
                self.value.onto(&mut value),
            ],
        );
        if let Some([query_norm, key_norm]) = &self.head_norms {
            for (norm, heads) in [(query_norm, &mut query), (key_norm, &mut key)] {
                let mut plain = scratch::take(heads.len());
                plain.copy_from_slice(heads);
                norm.run(&plain, heads);
            }
        }
        if let Some(Rotated { by, layout }) = self.rotated {
            let [cos, sin] = rotations[by];
            rope(&mut query, heads, head_dim, cos, sin, layout);
            rope(&mut key, kv_heads, head_dim, cos, sin, layout);
        }
        attention::append(keys, &key, kv_heads, head_dim, at);
        attention::append(values, &value, kv_heads, head_dim, at);
        let capacity = keys.len() / (kv_heads * head_dim);
        let span = AttentionSpan { start: 0, rows, len: at + rows, capacity, keys, values };
        let mut mixed = scratch::take(query_size);
        attention::attention(&self.rule, &query, &[span], &mut mixed);
        let Affine { weight, bias } = self.output;
        linear(&mixed, heads * head_dim, weight, bias, out);
    }

    fn feed_forward(&self, x: &[f32], out: &mut [f32]) {
        let width = self.mlp_norm.weight.len();
        let inner_width = self.gate.weight.len() / width;
        let mut inner = scratch::take(x.len() / width * inner_width);
        let (gate, up) = (&self.gate, &self.up);
        let (gate, up) = ((gate.weight, gate.bias), (up.weight, up.bias));
        gated(x, width, gate, up, self.activation, &mut inner);
        linear(&inner, inner_width, self.down.weight, self.down.bias, out);
    }
}
