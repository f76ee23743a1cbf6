//! [`TransformerModel`]: a transformer with open sequences, as decoding asks for it.

use std::{collections::BTreeMap, fmt};

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Device, Int, Tensor, TensorData},
};
use draftproof_decode::{
    LanguageModel, ModelError,
    lm::{Pass, Rows, SequenceId, check_batch},
};
use draftproof_kernels::{
    burn::{largest_tensor, reads_blocks},
    quant::BlockFormat,
};

use half::bf16;

use crate::{
    Error,
    cache::SequenceCache,
    config::TransformerConfig,
    guidance::{Guidance, extrapolate},
    initial_state::InitialState,
    loops::{Depth, MAX_LOOPS, Recurrence, States},
    rope::Rope,
    transformer::{Positions, Rotation, Sections, Span, Transformer, Way, bytes},
};

/// A transformer and the caches of its open sequences.
///
/// On a device whose kernels are row-invariant
/// ([`row_invariant`](draftproof_kernels::burn::row_invariant)) a row depends on its prefix only, bit
/// for bit: however the prefix was cut into passes, and whatever shared them.
pub struct TransformerModel {
    network: Transformer,
    /// Of the network: made anew when its weights change.
    sections: Sections,
    ropes: Vec<Rope>,
    device: Device,
    /// Of a looped transformer.
    depth: Option<Depth>,
    context: usize,
    vocab: usize,
    /// The most rows of a pass whose activations fit into tensors of the device.
    most_rows: usize,
    /// Usable ids without a string, whose logits become −∞.
    holes: Vec<usize>,
    sequences: BTreeMap<SequenceId, SequenceCache>,
    next: u64,
}

impl fmt::Debug for TransformerModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformerModel")
            .field("parameters", &self.network.num_params())
            .field("vocab", &self.vocab)
            .field("context", &self.context)
            .field("sequences", &self.sequences.len())
            .finish_non_exhaustive()
    }
}

impl TransformerModel {
    /// A model whose ids are all that have a row in the head.
    #[must_use]
    pub fn new(network: Transformer, config: &TransformerConfig, device: &Device) -> Self {
        Self {
            sections: network.sections(),
            network,
            ropes: config
                .ropes
                .iter()
                .map(|rope| rope.init(config.head_dim, config.context, device))
                .collect(),
            device: device.clone(),
            depth: config.loops.as_ref().map(|loops| Depth {
                loops: loops.loops,
                guidance: None,
                initial: InitialState::default(),
                noise: loops.noise,
                given: None,
            }),
            context: config.context,
            vocab: config.vocab,
            most_rows: most_rows(config, largest_tensor(device)),
            holes: Vec::new(),
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    /// Cuts off every id from `vocab` on: they are neither taken nor given. Raising it does nothing.
    pub fn limit_vocab(&mut self, vocab: usize) {
        self.vocab = self.vocab.min(vocab.max(1));
        self.holes.retain(|&id| id < self.vocab);
    }

    /// Rounds every f32 weight to the nearest bf16 number, in f32: the values that a bf16 checkpoint
    /// of this model would have.
    pub fn round_to_bf16(&mut self) {
        struct Round;
        impl ModuleMapper for Round {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|tensor| {
                    let (device, shape) = (tensor.device(), tensor.dims());
                    let data = tensor.clone().into_data();
                    let Ok(values) = data.as_slice::<f32>() else { return tensor };
                    let rounded = values.iter().map(|&value| bf16::from_f32(value).to_f32());
                    let data = TensorData::new(rounded.collect::<Vec<f32>>(), shape);
                    Tensor::from_data(data, &device)
                })
            }
        }
        self.network = self.network.clone().map(&mut Round);
        self.sections = self.network.sections();
    }

    /// Makes the logits of `ids` −∞: rows of the head that mean nothing.
    pub(crate) fn ban(&mut self, ids: Vec<usize>) {
        self.holes = ids;
        self.holes.retain(|&id| id < self.vocab);
    }

    /// How many times the layers of a looped transformer run; None: it is not one.
    #[must_use]
    pub fn loops(&self) -> Option<usize> {
        self.depth.as_ref().map(|depth| depth.loops)
    }

    /// How the last loop is guided, if it is.
    #[must_use]
    pub fn guidance(&self) -> Option<Guidance> {
        self.depth.as_ref().and_then(|depth| depth.guidance)
    }

    /// Whether most weights are blocks in memory, as their file has them or as a copy was made.
    #[must_use]
    pub fn in_blocks(&self) -> bool {
        self.network.in_blocks()
    }

    /// The bytes of weights that a pass uses again: of looped layers once for each loop but the first,
    /// and of what reads out a reference beside the last loop.
    #[must_use]
    pub fn bytes_repeated(&self) -> u64 {
        let (Some(looped), Some(depth)) = (&self.network.looped, &self.depth) else { return 0 };
        let count =
            |layers: &[crate::transformer::Layer]| -> u64 { layers.iter().map(bytes).sum() };
        let core = looped.prelude..looped.prelude + looped.core;
        let coda = count(&self.network.layers[core.end..]);
        let again = if depth.guidance.is_some() { coda + self.network.head_bytes() } else { 0 };
        (depth.loops as u64 - 1) * count(&self.network.layers[core]) + again
    }

    /// Sets depth and guidance; w = 0 is no guidance. A sequence keeps the keys and values of one
    /// setting, so all open ones are closed.
    ///
    /// # Errors
    /// If this is no looped transformer, the loops are not from 1 to [`MAX_LOOPS`], the reference is not
    /// a loop before the last, or w is negative or not finite; `name` is the model's in the message.
    pub fn set_loops(
        &mut self,
        name: &str,
        loops: usize,
        guidance: Option<Guidance>,
    ) -> Result<(), Error> {
        let error = |setting, expected: String, found: &dyn fmt::Display| {
            Err(Error::Setting { model: name.into(), setting, expected, found: found.to_string() })
        };
        let Some(depth) = &mut self.depth else {
            let setting = if guidance.is_some() { "guidance" } else { "loops" };
            return error(setting, "a looped transformer".into(), &"one whose layers run once");
        };
        if !(1..=MAX_LOOPS).contains(&loops) {
            return error("loops", format!("from 1 to {MAX_LOOPS}"), &loops);
        }
        if let Some(Guidance { reference, strength, .. }) = guidance {
            let w = strength.most();
            if !(w >= 0.0 && w.is_finite()) {
                return error("guidance weight", "a finite number from 0 on".into(), &w);
            }
            if reference < 1 || reference >= loops {
                let expected = format!("a completed loop before the last of {loops}");
                return error("reference loop", expected, &reference);
            }
        }
        depth.loops = loops;
        depth.guidance = guidance.filter(|guidance| guidance.strength.most() > 0.0);
        self.sequences.clear();
        Ok(())
    }

    /// What the state of new sequences begins with; None: the architecture has no such state, or its rows
    /// were [given](Self::set_initial_states).
    #[must_use]
    pub fn initial_state(&self) -> Option<InitialState> {
        self.recurrence().filter(|recurrence| recurrence.has_initial_state())?;
        self.depth.as_ref().filter(|depth| depth.given.is_none()).map(|depth| depth.initial)
    }

    fn recurrence(&self) -> Option<Recurrence> {
        self.network.looped.as_ref().map(|looped| looped.recurrence)
    }

    fn noise(&self) -> Option<f64> {
        self.depth.as_ref().and_then(|depth| depth.noise)
    }

    /// Sets what the state of sequences begins with. A sequence keeps the keys and values of one setting,
    /// so all open ones are closed.
    ///
    /// # Errors
    /// If the architecture has no state that does not begin with the text, or the noise of its public
    /// code is of another kind; `name` is the model's in the message.
    pub fn set_initial_state(&mut self, name: &str, state: InitialState) -> Result<(), Error> {
        state.check(name, self.recurrence(), self.noise())?;
        if let Some(depth) = &mut self.depth {
            depth.initial = state;
            depth.given = None;
        }
        self.sequences.clear();
        Ok(())
    }

    /// Opens a sequence that begins with `state`, whatever others begin with.
    ///
    /// # Errors
    /// As [`set_initial_state`](Self::set_initial_state); zeros fit any model.
    pub fn open_from(&mut self, state: InitialState) -> Result<SequenceId, ModelError> {
        if state != InitialState::Zeros {
            state.check("this model", self.recurrence(), self.noise()).map_err(backend)?;
        }
        let slots = self.network.slots(self.depth.as_ref());
        Ok(self.insert(SequenceCache::new(slots, state)))
    }

    /// The very rows that states begin with: `[positions, hidden]`, positions beyond are outside the
    /// context. Instead of an [`InitialState`], until one is set again. Closes open sequences.
    ///
    /// # Errors
    /// If the architecture has no state that does not begin with the text.
    pub fn set_initial_states(&mut self, states: Tensor<2>) -> Result<(), Error> {
        InitialState::Zeros.check("this model", self.recurrence(), self.noise())?;
        self.context = self.context.min(states.dims()[0]);
        if let Some(depth) = &mut self.depth {
            depth.given = Some(states);
        }
        self.sequences.clear();
        Ok(())
    }

    /// The same model, unguided, after its first `loops` loops: a draft that shares the weights. Its
    /// sequences are its own.
    ///
    /// # Errors
    /// As [`set_loops`](Self::set_loops), or if these are not fewer loops than this model's.
    pub fn early_exit(&self, name: &str, loops: usize) -> Result<Self, Error> {
        if let Some(all) = self.loops()
            && loops >= all
        {
            let expected = format!("fewer than the {all} of the target");
            let (model, found) = (name.into(), loops.to_string());
            return Err(Error::Setting { model, setting: "draft loops", expected, found });
        }
        let mut early = self.beside(self.network.clone());
        early.set_loops(name, loops, None)?;
        Ok(early)
    }

    /// The same model with its matrices in blocks of `format` where their inputs are whole blocks: a
    /// draft made of the target. Its sequences are its own.
    ///
    /// # Errors
    /// If the kernels of the device read no blocks, or the format is not one of
    /// [`BlockFormat::WRITTEN`]; `name` is the model's in the message.
    pub fn quantised(&self, name: &str, format: BlockFormat) -> Result<Self, Error> {
        let error = |expected: &str, found: String| {
            let (model, expected) = (name.into(), expected.into());
            Err(Error::Setting { model, setting: "a quantised copy", expected, found })
        };
        if !reads_blocks(&self.device) {
            return error("row-invariant kernels of the CPU", "kernels that read no blocks".into());
        }
        if !BlockFormat::WRITTEN.contains(&format) {
            return error("one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0", format.to_string());
        }
        let mut network = self.network.clone();
        network.quantise(format, &self.device)?;
        Ok(self.beside(network))
    }

    /// A draft made of this model: the same settings, no sequence open.
    fn beside(&self, network: Transformer) -> Self {
        Self {
            sections: network.sections(),
            network,
            ropes: self.ropes.clone(),
            device: self.device.clone(),
            depth: self.depth.clone(),
            holes: self.holes.clone(),
            sequences: BTreeMap::new(),
            ..*self
        }
    }

    pub(crate) fn network(&self) -> &Transformer {
        &self.network
    }

    fn get(&self, sequence: SequenceId) -> Result<&SequenceCache, ModelError> {
        self.sequences.get(&sequence).ok_or(ModelError::NotOpen { sequence })
    }

    fn insert(&mut self, cache: SequenceCache) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, cache);
        id
    }

    /// Appends to `caches` without making it count, and returns all rows wanted, one after another.
    fn pass(
        &mut self,
        batch: &[Pass<'_>],
        caches: &mut [SequenceCache],
    ) -> Result<Vec<f32>, ModelError> {
        let mut spans = Vec::with_capacity(batch.len());
        // Ids, then positions: one upload for the two.
        let mut ids: Vec<i64> = Vec::new();
        let mut positions: Vec<i64> = Vec::new();
        for (pass, cache) in batch.iter().zip(caches.iter()) {
            spans.push(Span { start: ids.len(), count: pass.tokens.len() });
            ids.extend(pass.tokens.iter().map(|token| i64::from(token.0)));
            positions.extend((cache.len()..).map(|at| at as i64).take(pass.tokens.len()));
        }
        let end = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let count = ids.len();
        ids.append(&mut positions);
        let input = Tensor::<1, Int>::from_data(TensorData::new(ids, [2 * count]), &self.device);
        let at = input.clone().narrow(0, count, count);
        let rotate = |rope: &mut Rope| match spans.as_slice() {
            [_] => rope.range(end - count..end),
            _ => rope.rows(at.clone(), end),
        };
        let rotations: Vec<Rotation> = self.ropes.iter_mut().map(rotate).collect();
        let ids = input.narrow(0, 0, count);
        let positions = Positions { ids: at, tokens: ids.clone(), rotations };
        let sections = &self.sections;
        let mut way = Way { sections, positions: &positions, spans: &spans, caches };
        let (Some(looped), Some(depth)) = (&self.network.looped, &self.depth) else {
            let hidden = self.network.forward(ids, &mut way);
            let Some(hidden) = wanted(&hidden, batch, &spans) else { return Ok(Vec::new()) };
            let logits = self.network.logits(hidden, self.vocab);
            return logits.try_into_vec_as().map_err(backend);
        };
        let mut states = self.network.states(looped, depth, ids, &mut way);
        // A coda needs all rows, to append their keys and values; without one the others are done.
        let alone = self.network.coda() == 0;
        let select = |states: States| {
            let last = wanted(&states.last, batch, &spans)?;
            let reference = states.reference.and_then(|rows| wanted(&rows, batch, &spans));
            Some(States { last, reference })
        };
        if alone {
            let Some(selected) = select(states) else { return Ok(Vec::new()) };
            states = selected;
        }
        states = self.network.branches(looped, depth, states, &mut way).map_err(backend)?;
        if !alone {
            let Some(selected) = select(states) else { return Ok(Vec::new()) };
            states = selected;
        }
        let (Some(reference), Some(guidance)) = (states.reference, depth.guidance) else {
            let logits = self.network.logits(states.last, self.vocab);
            return logits.try_into_vec_as().map_err(backend);
        };
        // One read of the head for both.
        let [rows, _] = reference.dims();
        let logits = self.network.logits(Tensor::cat(vec![states.last, reference], 0), usize::MAX);
        let [_, all] = logits.dims();
        let mut logits: Vec<f32> = logits.try_into_vec_as().map_err(backend)?;
        let (last, reference) = logits.split_at_mut(rows * all);
        let mut guided = Vec::with_capacity(rows * self.vocab);
        for (last, reference) in last.chunks_exact_mut(all).zip(reference.chunks_exact(all)) {
            let w = guidance.strength.at(last);
            extrapolate(last, reference, w);
            guided.extend_from_slice(&last[..self.vocab]);
        }
        Ok(guided)
    }

    /// Runs what of a pass comes before its last `most` rows, if no row of it is wanted; returns the
    /// rest.
    fn lead_in<'a>(&mut self, pass: Pass<'a>, most: usize) -> Result<Pass<'a>, ModelError> {
        let Pass { sequence, mut tokens, rows } = pass;
        let (most, kept) = (most.max(1), rows.max(1));
        while tokens.len() > most.max(kept) {
            let count = most.min(tokens.len() - kept);
            let (first, rest) = tokens.split_at(count);
            self.forward_at_once(&[Pass { sequence, tokens: first, rows: 0 }])?;
            tokens = rest;
        }
        Ok(Pass { sequence, tokens, rows })
    }

    fn forward_at_once(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        // Out of the map for the pass: several are written at once, and each must be the only owner
        // of its tensors to be written in place.
        let mut caches: Vec<SequenceCache> = batch
            .iter()
            .map(|pass| self.sequences.remove(&pass.sequence).expect("checked to be open"))
            .collect();
        let logits = self.pass(batch, &mut caches);
        for (pass, mut cache) in batch.iter().zip(caches) {
            if logits.is_ok() {
                cache.commit(pass.tokens.len());
            }
            self.sequences.insert(pass.sequence, cache);
        }
        logits.map(|logits| self.split(batch, logits))
    }

    fn split(&self, batch: &[Pass<'_>], mut logits: Vec<f32>) -> Vec<Rows> {
        for row in logits.chunks_exact_mut(self.vocab) {
            for &id in &self.holes {
                row[id] = f32::NEG_INFINITY;
            }
        }
        if let [pass] = batch {
            debug_assert_eq!(logits.len(), pass.rows * self.vocab);
            return vec![Rows::new(self.vocab, logits)];
        }
        let mut rest = logits.as_slice();
        let rows = batch.iter().map(|pass| {
            let (own, others) = rest.split_at(pass.rows * self.vocab);
            rest = others;
            Rows::new(self.vocab, own.to_vec())
        });
        rows.collect()
    }
}

fn backend(error: impl fmt::Display) -> ModelError {
    ModelError::Backend(error.to_string())
}

/// The rows of a pass that were asked for, one after another; None if there are none.
fn wanted(rows: &Tensor<2>, batch: &[Pass<'_>], spans: &[Span]) -> Option<Tensor<2>> {
    if let ([pass], [span]) = (batch, spans)
        && pass.rows == span.count
    {
        return Some(rows.clone());
    }
    let wanted = batch.iter().zip(spans).filter(|(pass, _)| pass.rows > 0);
    let mut wanted: Vec<Tensor<2>> = wanted
        .map(|(pass, span)| rows.clone().narrow(0, span.start + span.count - pass.rows, pass.rows))
        .collect();
    match wanted.len() {
        0 => None,
        1 => Some(wanted.remove(0)),
        _ => Some(Tensor::cat(wanted, 0)),
    }
}

impl LanguageModel for TransformerModel {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn context(&self) -> usize {
        self.context
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.open_from(self.depth.as_ref().map(|depth| depth.initial).unwrap_or_default())
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        check_batch(batch, self.vocab, self.context, |sequence| self.len(sequence))?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let most = self.most_rows / batch.len();
        if batch.iter().all(|pass| pass.tokens.len() <= most) {
            return self.forward_at_once(batch);
        }
        let rest: Vec<Pass<'_>> =
            batch.iter().map(|pass| self.lead_in(*pass, most)).collect::<Result<_, _>>()?;
        self.forward_at_once(&rest)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.get(sequence).map(SequenceCache::len)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        let held = self.len(sequence)?;
        if len > held {
            return Err(ModelError::TruncateBeyond { sequence, held, len });
        }
        if let Some(cache) = self.sequences.get_mut(&sequence) {
            cache.truncate(len);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        let cache = self.get(sequence)?.clone();
        Ok(self.insert(cache))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}

/// How many rows of the widest activation are `limit` bytes.
fn most_rows(config: &TransformerConfig, limit: Option<u64>) -> usize {
    let widest = config.hidden.max(config.intermediate).max(config.heads * config.head_dim);
    let rows = limit.map(|limit| limit / (widest * size_of::<f32>()) as u64);
    rows.and_then(|rows| usize::try_from(rows).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use draftproof_decode::Token;
    use serde_json::json;

    use super::*;
    use crate::{config::ModelConfig, synthetic::Arbitrary};

    fn config() -> TransformerConfig {
        let config = json!({
            "model_type": "llama",
            "vocab_size": 40,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "tie_word_embeddings": true,
        });
        ModelConfig::parse("config.json", config.to_string().as_bytes()).unwrap().transformer
    }

    #[test]
    fn a_pass_that_does_not_fit_runs_in_pieces_and_gives_the_same_rows() {
        let (config, device) = (config(), Device::default());
        let network = config.init(&mut Arbitrary::new(&device)).unwrap();
        let run = |most_rows: usize| {
            let mut model = TransformerModel::new(network.clone(), &config, &device);
            model.most_rows = most_rows;
            let text: Vec<Token> = (0..13).map(Token).collect();
            let [a, b] = [(); 2].map(|()| model.open().unwrap());
            let batch = [
                Pass { sequence: a, tokens: &text, rows: 4 },
                Pass { sequence: b, tokens: &text[3..], rows: 0 },
            ];
            let rows = model.forward(&batch).unwrap();
            let more = model.forward(&[Pass { sequence: b, tokens: &text[..2], rows: 1 }]).unwrap();
            assert_eq!((model.len(a).unwrap(), model.len(b).unwrap()), (13, 12));
            let all = rows.iter().chain(&more).map(|rows| (0..rows.len()).map(|i| rows.row(i)));
            all.flatten().flatten().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
        };
        let whole = run(usize::MAX);
        for most_rows in [0, 2, 5, 8, 20, 26] {
            assert_eq!(run(most_rows), whole, "{most_rows}");
        }
    }

    #[test]
    fn the_widest_activation_sets_the_rows() {
        assert_eq!(most_rows(&config(), None), usize::MAX);
        assert_eq!(most_rows(&config(), Some(24 * 4 * 7 + 5)), 7);
    }
}
