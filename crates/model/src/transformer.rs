//! The decoder-only transformer that all families share.
//!
//! ```text
//! ids ─ embedding ─▶ x ─┬─ norm ─ attention ─┬─ norm ─ mlp ─┬─ … ─▶ norm ─ head ─▶ logits
//!                       └───────── + ────────┴────── + ─────┘
//! ```
//! Some families norm what attention and mlp give too, before it is added, or the sum behind it; some
//! run a part of the layers several times ([`loops`](crate::loops)).
//!
//! A pass serves several sequences: their rows lie one after the other in `[n, hidden]`, go through
//! the linear maps together, and part only in attention, where each sees its own cache.

use std::{fmt::Display, ops::Range};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Int, Tensor},
};
use draftproof_kernels::{
    attention::AttentionRule,
    burn::{self as kernels, Layers, Matrix},
    layers::Layer as Joint,
    map::Map,
    quant::BlockFormat,
};

use crate::{
    Error,
    attention::{Attention, AttentionConfig, HeadNormsConfig, Plain, ValueRows, ValueRowsConfig},
    cache::SequenceCache,
    config::{HeadNorms, LayerConfig, OutNorms, TransformerConfig},
    layers::{Embedding, Linear, LinearsConfig, Norm, NormConfig, Visit},
    load::Weights,
    loops::Looped,
    mlp::{Inward, Mlp, MlpConfig},
};

/// The bytes of a cache line, at which each matrix of blocks begins.
const LINE: usize = 64;

/// The rows of one sequence within a pass.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its first row.
    pub start: usize,
    /// How many rows it has.
    pub count: usize,
}

/// Where the rows of a pass stand in their texts.
#[derive(Clone, Debug)]
pub struct Positions {
    /// The position of each row, `[n]`.
    pub ids: Tensor<1, Int>,
    /// The token of each row, `[n]`.
    pub tokens: Tensor<1, Int>,
    /// The rotation of each row, for each of the configuration's ropes.
    pub rotations: Vec<Rotation>,
}

/// The angles of every row of a pass: cosines and sines, both `[n, head_dim / 2]`.
pub type Rotation = [Tensor<2>; 2];

/// Layers that run one after the other, and perhaps the last norm.
#[derive(Debug)]
pub(crate) struct Section {
    range: Range<usize>,
    /// The same for kernels that run all of it in one go; None: some layer is of another kind.
    joint: Option<Layers>,
    /// Whether the last norm is behind them.
    normed: bool,
}

/// The sections of a transformer. One that is not looped has only the last.
#[derive(Debug)]
pub(crate) struct Sections {
    pub(crate) prelude: Section,
    pub(crate) core: Section,
    pub(crate) last: Section,
}

/// A pass on its way through layers: where its rows stand, and the caches they append to.
#[derive(Debug)]
pub(crate) struct Way<'a> {
    pub(crate) sections: &'a Sections,
    pub(crate) positions: &'a Positions,
    pub(crate) spans: &'a [Span],
    pub(crate) caches: &'a mut [SequenceCache],
}

/// Attention, then the feed-forward block, each added to what came in.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: Norm,
    attention: Attention,
    attention_out_norm: Option<Norm>,
    mlp_norm: Norm,
    mlp: Mlp,
    mlp_out_norm: Option<Norm>,
    /// Whether the norms behind blocks are those of the sums.
    norms_sums: bool,
}

/// Embedding, layers, last norm, head.
#[derive(Module, Debug)]
pub struct Transformer {
    pub(crate) embedding: Embedding,
    embedding_scale: f32,
    /// Learned positions.
    positions: Option<Embedding>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Norm,
    pub(crate) looped: Option<Looped>,
    /// None: the embedding is the head.
    head: Option<Embedding>,
    logit_softcap: Option<f32>,
}

/// What is done with the name and the shape of each tensor.
pub type Visitor<'a> = dyn FnMut(&str, &[usize]) -> Result<(), Error> + 'a;

/// A [`Layer`] in the making.
struct LayerParts {
    attention_norm: NormConfig,
    attention: AttentionConfig,
    attention_out_norm: Option<NormConfig>,
    mlp_norm: NormConfig,
    mlp: MlpConfig,
    mlp_out_norm: Option<NormConfig>,
    norms_sums: bool,
}

impl LayerParts {
    fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        self.attention.tensors(visit)?;
        self.mlp.tensors(visit)?;
        let norms = [&self.attention_norm, &self.mlp_norm];
        let more = [&self.attention_out_norm, &self.mlp_out_norm].into_iter().flatten();
        norms.into_iter().chain(more).try_for_each(|norm| norm.tensors(visit))
    }

    fn init(&self, weights: &mut dyn Weights) -> Result<Layer, Error> {
        let maybe = |norm: &Option<NormConfig>, weights: &mut dyn Weights| {
            norm.as_ref().map(|norm| norm.init(weights)).transpose()
        };
        Ok(Layer {
            attention_norm: self.attention_norm.init(weights)?,
            attention: self.attention.init(weights)?,
            attention_out_norm: maybe(&self.attention_out_norm, weights)?,
            mlp_norm: self.mlp_norm.init(weights)?,
            mlp: self.mlp.init(weights)?,
            mlp_out_norm: maybe(&self.mlp_out_norm, weights)?,
            norms_sums: self.norms_sums,
        })
    }
}

impl TransformerConfig {
    /// Calls `visit` with the name and shape of every tensor, and stops at its first error.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        let weight = |name: &str| format!("{name}.weight");
        visit(&weight(self.names.embedding), &[self.vocab, self.hidden])?;
        if let Some(positions) = self.learned_positions {
            visit(&weight(self.names.positions), &[positions, self.hidden])?;
        }
        for layer in 0..self.layers.len() {
            self.layer(layer).tensors(visit)?;
        }
        self.norm(self.names.norm.into(), self.hidden).tensors(visit)?;
        if let Some(loops) = &self.loops {
            self.looped(loops).tensors(visit)?;
        }
        match self.tied_head {
            true => Ok(()),
            false => visit(&weight(self.names.head), &[self.vocab, self.hidden]),
        }
    }

    /// The transformer with its weights.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Transformer, Error> {
        let names = &self.names;
        let table = [self.vocab, self.hidden];
        Ok(Transformer {
            embedding: Embedding::init(weights, names.embedding, table)?,
            embedding_scale: self.embedding_scale,
            positions: match self.learned_positions {
                Some(positions) => {
                    let table = [positions, self.hidden];
                    Some(Embedding::init(weights, names.positions, table)?)
                }
                None => None,
            },
            layers: (0..self.layers.len())
                .map(|layer| self.layer(layer).init(weights))
                .collect::<Result<_, _>>()?,
            norm: self.norm(names.norm.into(), self.hidden).init(weights)?,
            looped: match &self.loops {
                Some(loops) => Some(self.looped(loops).init(weights)?),
                None => None,
            },
            head: match self.tied_head {
                true => None,
                false => Some(Embedding::init(weights, names.head, table)?),
            },
            logit_softcap: self.logit_softcap,
        })
    }

    pub(crate) fn norm(&self, name: String, width: usize) -> NormConfig {
        NormConfig { name, form: self.norm, width, epsilon: self.norm_epsilon }
    }

    pub(crate) fn linears<const N: usize>(
        &self,
        prefix: &str,
        names: &'static [&'static str],
        (input, outputs): (usize, [usize; N]),
        bias: bool,
    ) -> LinearsConfig<N> {
        let (prefix, transposed) = (prefix.into(), self.names.transposed);
        LinearsConfig { prefix, names, input, outputs, bias, transposed }
    }

    /// The name of layer `layer`, counted from the first.
    fn layer_name(&self, layer: usize) -> String {
        let (Some(sections), Some(loops)) = (self.names.sections, &self.loops) else {
            return self.names.layer(layer);
        };
        let coda = loops.prelude + loops.core;
        let [section, first] = match layer {
            _ if layer < loops.prelude => [0, 0],
            _ if layer < coda => [1, loops.prelude],
            _ => [2, coda],
        };
        format!("{}.{}", sections[section], layer - first)
    }

    fn layer(&self, layer: usize) -> LayerParts {
        let (names, prefix) = (&self.names, self.layer_name(layer));
        let norm = |name| self.norm(format!("{prefix}.{name}"), self.hidden);
        let out_norms = self.out_norms != OutNorms::None;
        LayerParts {
            attention_norm: norm(names.attention_norm),
            attention: self.attention(&prefix, self.layers[layer]),
            attention_out_norm: out_norms.then(|| norm(names.attention_out_norm)),
            mlp_norm: norm(names.mlp_norm),
            mlp: self.mlp(&prefix),
            mlp_out_norm: out_norms.then(|| norm(names.mlp_out_norm)),
            norms_sums: self.out_norms == OutNorms::Sum,
        }
    }

    fn attention(&self, prefix: &str, layer: LayerConfig) -> AttentionConfig {
        let (names, hidden) = (&self.names, self.hidden);
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let head_norm = |name| self.norm(format!("{prefix}.{name}"), self.head_dim);
        AttentionConfig {
            query_key_value: self.linears(
                prefix,
                names.query_key_value,
                (hidden, [query, key, key]),
                self.query_key_value_bias,
            ),
            out: self.linears(
                prefix,
                names.attention_out,
                (query, [hidden]),
                self.attention_out_bias,
            ),
            query_key_bias: self
                .query_key_bias
                .then(|| format!("{prefix}.{}", names.query_key_bias)),
            norms: match self.query_key_norms {
                HeadNorms::None => HeadNormsConfig::None,
                HeadNorms::BeforeRope => {
                    HeadNormsConfig::BeforeRope([names.query_norm, names.key_norm].map(head_norm))
                }
                HeadNorms::AfterRope => HeadNormsConfig::AfterRope,
            },
            value_rows: layer.value_table.map(|index| self.value_rows(prefix, index)),
            rule: AttentionRule {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                scale: self.attention_scale,
                window: layer.window,
                softcap: self.attention_softcap,
            },
            rope: layer.rope,
            rope_layout: self.rope_layout,
            context: self.context,
        }
    }

    fn value_rows(&self, prefix: &str, index: usize) -> ValueRowsConfig {
        /// How many values of a row a gate reads; a constant of the public code.
        const INPUT: usize = 32;
        let sizes = (INPUT.min(self.hidden), [self.kv_heads]);
        let gate = self.linears(prefix, self.names.value_gate, sizes, false);
        ValueRowsConfig {
            gate,
            table: format!("{}.{index}", self.names.value_tables),
            shape: [self.vocab, self.kv_heads * self.head_dim],
        }
    }

    fn mlp(&self, prefix: &str) -> MlpConfig {
        let (names, hidden, inner, bias) =
            (&self.names, self.hidden, self.intermediate, self.mlp_bias);
        let inward = match self.gated {
            true => Inward::Gated(self.linears(prefix, names.mlp_in, (hidden, [inner; 2]), bias)),
            false => Inward::Plain(self.linears(prefix, names.mlp_in, (hidden, [inner]), bias)),
        };
        let out = self.linears(prefix, names.mlp_out, (inner, [hidden]), bias);
        MlpConfig { inward, out, activation: self.activation }
    }
}

impl Transformer {
    /// The bytes of the head, tied or not.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head.as_ref().unwrap_or(&self.embedding).bytes()
    }

    /// Whether most of what a pass reads is blocks.
    pub(crate) fn in_blocks(&self) -> bool {
        /// Bytes.
        struct Blocks(u64);
        impl ModuleVisitor for Blocks {
            fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
                self.0 += param.val().shape().num_elements() as u64;
            }
        }
        let mut blocks = Blocks(0);
        self.visit(&mut blocks);
        2 * blocks.0 > bytes(self)
    }

    /// Puts every matrix of which a pass reads all into blocks of `format`, where its inputs are whole
    /// blocks.
    ///
    /// # Errors
    /// If values cannot be read from the device, or there is no memory for the blocks.
    pub(crate) fn quantise(&mut self, format: BlockFormat, device: &Device) -> Result<(), Error> {
        let failed = |error: &dyn Display| Error::Backend(error.to_string());
        let mut parts = Vec::new();
        self.matrices(&mut |matrix| parts.push(matrix.val().quantised(format)));
        let parts: Vec<Option<Vec<u8>>> =
            parts.into_iter().collect::<Result<_, _>>().map_err(|error| failed(&error))?;
        // One behind the other in large pages: see `load` about what small ones cost.
        let size = parts.iter().flatten().map(|part| part.len().next_multiple_of(LINE)).sum();
        let map = Map::resident(size, |mut bytes| {
            for part in parts.iter().flatten() {
                let (here, rest) = bytes.split_at_mut(part.len().next_multiple_of(LINE));
                here[..part.len()].copy_from_slice(part);
                bytes = rest;
            }
            Ok(())
        });
        let map = map.map_err(|error| failed(&error))?;
        let (mut parts, mut start) = (parts.into_iter(), 0);
        self.matrices(&mut |matrix| {
            let Some(part) = parts.next().flatten() else { return };
            let (values, view) = (matrix.val(), map.view(start..start + part.len()));
            start += part.len().next_multiple_of(LINE);
            let shape = [values.outputs(), values.inputs()];
            *matrix = Matrix::blocks(view, shape, format, device).into();
        });
        Ok(())
    }

    /// Shows `visit` every matrix of which a pass reads all.
    fn matrices(&mut self, visit: &mut Visit<'_>) {
        for layer in &mut self.layers {
            layer.attention.matrices(visit);
            layer.mlp.matrices(visit);
        }
        if let Some(looped) = &mut self.looped {
            looped.matrices(visit);
        }
        self.head.as_mut().unwrap_or(&mut self.embedding).matrices(visit);
    }

    /// The bytes of tables of which a pass reads single rows: the embedding, unless it is the head,
    /// learned positions, and rows that are added to values.
    pub(crate) fn table_bytes(&self) -> u64 {
        let embedding = if self.head.is_some() { self.embedding.bytes() } else { 0 };
        let values: u64 = self.layers.iter().map(Layer::table_bytes).sum();
        embedding + self.positions.as_ref().map_or(0, Embedding::bytes) + values
    }

    /// Runs the layers and appends to the caches, whose `len` the caller moves afterwards.
    ///
    /// # Shapes
    /// - ids: `[n]`, the rows of the spans one after the other
    /// - output: `[n, hidden]`, after the last norm
    pub(crate) fn forward(&self, ids: Tensor<1, Int>, way: &mut Way<'_>) -> Tensor<2> {
        let x = self.embed(ids, way.positions);
        self.run(&way.sections.last, 0, x, way)
    }

    /// What a pass runs in one go, as long as the weights stay what they are.
    pub(crate) fn sections(&self) -> Sections {
        let (prelude, core) = self.looped.as_ref().map_or((0, 0), |l| (l.prelude, l.core));
        let section = |range: Range<usize>, then: Option<&Norm>| {
            let layers: Option<Vec<_>> =
                self.layers[range.clone()].iter().map(Layer::joint).collect();
            let joint = match (layers, then.map(Norm::rms)) {
                (Some(layers), None) => Some(Layers::new(&layers, None)),
                (Some(layers), Some(Some(then))) => Some(Layers::new(&layers, Some(&then))),
                _ => None,
            };
            Section { range, joint, normed: then.is_some() }
        };
        let last = prelude + core;
        Sections {
            prelude: section(0..prelude, None),
            core: section(prelude..last, None),
            last: section(last..self.layers.len(), Some(&self.norm)),
        }
    }

    /// Runs the layers of a section, whose caches are the slots from `slot` on, and the norm behind them
    /// if it has one.
    ///
    /// # Shapes
    /// - x, output: `[n, hidden]`
    pub(crate) fn run(
        &self,
        section: &Section,
        slot: usize,
        x: Tensor<2>,
        way: &mut Way<'_>,
    ) -> Tensor<2> {
        let layers = &self.layers[section.range.clone()];
        if let (Some(joint), [_], [cache]) = (&section.joint, way.spans, &mut *way.caches) {
            let (held, device) = (cache.len(), x.device());
            let end = held + x.dims()[0];
            let slots = layers.iter().zip(slot..);
            let stores =
                slots.map(|(layer, slot)| layer.attention.take(cache, slot, end, device.clone()));
            let stores = stores.collect();
            let rotations = &way.positions.rotations;
            let (y, stores) = kernels::layers(x, joint, rotations, stores, held);
            for (cache, stores) in cache.layers[slot..].iter_mut().zip(stores) {
                cache.put(stores);
            }
            return y;
        }
        let then = section.normed.then_some(&self.norm);
        let (x, normed) = stack(layers, slot, x, then, way);
        normed.unwrap_or(x)
    }

    pub(crate) fn embed(&self, ids: Tensor<1, Int>, positions: &Positions) -> Tensor<2> {
        let mut x = self.embedding.forward(ids);
        if self.embedding_scale != 1.0 {
            x = x.mul_scalar(self.embedding_scale);
        }
        match &self.positions {
            Some(table) => x + table.forward(positions.ids.clone()),
            None => x,
        }
    }

    /// Logits of the first `vocab` ids.
    ///
    /// # Shapes
    /// - x: `[rows, hidden]`, rows behind the last norm
    /// - output: `[rows, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        let logits = self.head.as_ref().unwrap_or(&self.embedding).logits(x, vocab);
        match self.logit_softcap {
            Some(cap) => kernels::softcap(logits, cap),
            None => logits,
        }
    }
}

/// The bytes of all weights.
pub(crate) fn bytes(module: &impl Module) -> u64 {
    struct Bytes(u64);
    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }

        /// Blocks.
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let tensor = param.val();
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
    }
    let mut bytes = Bytes(0);
    module.visit(&mut bytes);
    bytes.0
}

/// Runs `layers`, whose caches are the slots from `slot` on, and norms what comes out by `then`.
///
/// # Shapes
/// - x, both outputs: `[n, hidden]`
fn stack(
    layers: &[Layer],
    slot: usize,
    mut x: Tensor<2>,
    then: Option<&Norm>,
    way: &mut Way<'_>,
) -> (Tensor<2>, Option<Tensor<2>>) {
    let Some(first) = layers.first() else {
        let normed = then.map(|norm| norm.forward(x.clone()));
        return (x, normed);
    };
    let mut normed = first.attention_norm.forward(x.clone());
    for (index, layer) in layers.iter().enumerate() {
        let Way { positions, spans, caches, .. } = way;
        let attended = layer.attention.forward(normed, slot + index, positions, spans, caches);
        let out_norm = layer.attention_out_norm.as_ref();
        let next = layer.join(x, attended, out_norm, Some(&layer.mlp_norm));
        let inner = layer.mlp.forward(next.1.expect("there is a norm"));
        let then = layers.get(index + 1).map(|next| &next.attention_norm).or(then);
        let next = layer.join(next.0, inner, layer.mlp_out_norm.as_ref(), then);
        match next {
            (sum, Some(then)) => (x, normed) = (sum, then),
            // The last layer, and nothing is normed behind it.
            last => return last,
        }
    }
    (x, Some(normed))
}

impl Layer {
    /// The layer for kernels that run it whole; None: something about it is of another kind.
    fn joint(&self) -> Option<Joint<Matrix, Tensor<1>>> {
        let Plain { maps, head_norms, rotated, rule } = self.attention.plain()?;
        let ([gate, up, down], activation) = self.mlp.gated()?;
        let maybe = |norm: &Option<Norm>| match norm {
            Some(norm) => norm.rms().map(Some),
            None => Some(None),
        };
        if self.norms_sums {
            return None;
        }
        let [query, key, value, output] = maps.map(Linear::affine);
        Some(Joint {
            attention_norm: self.attention_norm.rms()?,
            query,
            key,
            value,
            head_norms: match head_norms {
                Some((query, key)) => Some([query.rms()?, key.rms()?]),
                None => None,
            },
            rotated,
            rule,
            output,
            attention_out_norm: maybe(&self.attention_out_norm)?,
            mlp_norm: self.mlp_norm.rms()?,
            gate: gate.affine(),
            up: up.affine(),
            down: down.affine(),
            activation,
            mlp_out_norm: maybe(&self.mlp_out_norm)?,
        })
    }

    /// Adds what a block gave to the residual stream; the sum, and its norm by `then`.
    fn join(
        &self,
        x: Tensor<2>,
        branch: Tensor<2>,
        out_norm: Option<&Norm>,
        then: Option<&Norm>,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        if let (true, Some(norm)) = (self.norms_sums, out_norm) {
            let (_, sum) = norm.forward_sum(x, branch);
            let normed = then.map(|then| then.forward(sum.clone()));
            return (sum, normed);
        }
        let branch = match out_norm {
            Some(norm) => norm.forward(branch),
            None => branch,
        };
        match then {
            Some(then) => {
                let (sum, normed) = then.forward_sum(x, branch);
                (sum, Some(normed))
            }
            None => (x + branch, None),
        }
    }

    /// The bytes of tables of which a pass reads single rows.
    fn table_bytes(&self) -> u64 {
        self.attention.value_rows().map_or(0, ValueRows::table_bytes)
    }
}
