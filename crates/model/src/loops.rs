//! Looped transformers: some layers run several times over the same rows.
//!
//! ```text
//! ids ─ embedding ─ prelude ─▶ core ─▶ core ─▶ … ─▶ core ─▶ coda ─ norm ─ head ─▶ logits
//!                            loop 1  loop 2       loop R
//! ```
//! Families differ in what enters a loop and what leaves it ([`Recurrence`]). Every loop of every layer
//! has its own keys and values: slots are those of the prelude, of loop 1, … of loop R, of the coda,
//! and of a second coda where a reference is read out beside.

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor, TensorData},
};

use crate::{
    Error,
    cache::SequenceCache,
    config::TransformerConfig,
    guidance::{Form, Guidance},
    initial_state::InitialState,
    layers::{Linear, LinearsConfig, Norm, NormConfig, Visit, vector},
    load::Weights,
    transformer::{Transformer, Visitor, Way},
};

/// The most loops.
pub const MAX_LOOPS: usize = 1024;

/// Which layers loop, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopConfig {
    /// How many times the core runs, if nobody says otherwise.
    pub loops: usize,
    /// The number of layers before the core.
    pub prelude: usize,
    /// The number of layers that loop; those that are left are the coda.
    pub core: usize,
    /// What happens between loops.
    pub recurrence: Recurrence,
    /// The standard deviation, before it is cut, of the noise that the state may begin with; None: the
    /// model's code draws none, or other noise than [`initial_state`](crate::initial_state) has.
    pub noise: Option<f64>,
}

/// What enters a loop, and what its state becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recurrence {
    /// The state of the loop before, normed by the last norm (Ouro).
    Normed,
    /// A linear map of the state and the prelude's output, side by side; the state begins with an
    /// [`InitialState`] and is normed before the coda too (Huginn).
    Adapter,
    /// The state, each channel faded, plus a linear map of the prelude's normed output; it begins with
    /// an [`InitialState`] and goes through a linear map before the coda (Parcae).
    Diagonal,
    /// The state, of which the core's output replaces this share (looped Qwen3).
    Damped(f32),
}

impl Recurrence {
    /// Whether the state begins with something that is not the text's.
    #[must_use]
    pub fn has_initial_state(self) -> bool {
        matches!(self, Self::Adapter | Self::Diagonal)
    }
}

/// A [`Looped`] in the making.
pub(crate) struct LoopedParts {
    config: LoopConfig,
    hidden: usize,
    adapter: LinearsConfig<1>,
    out: LinearsConfig<1>,
    prelude_norm: NormConfig,
}

const INJECTION: &str = "transformer.adapter.B";
const DECAY: &str = "transformer.adapter.A_log";
const STEP: &str = "transformer.adapter.dt_bias";

impl TransformerConfig {
    pub(crate) fn looped(&self, loops: &LoopConfig) -> LoopedParts {
        let hidden = self.hidden;
        LoopedParts {
            config: loops.clone(),
            hidden,
            adapter: self.linears("transformer", &["adapter"], (2 * hidden, [hidden]), false),
            out: self.linears("transformer", &["C"], (hidden, [hidden]), false),
            prelude_norm: self.norm("transformer.ln_prelude".into(), hidden),
        }
    }
}

impl LoopedParts {
    pub(crate) fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        match self.config.recurrence {
            Recurrence::Normed | Recurrence::Damped(_) => Ok(()),
            Recurrence::Adapter => self.adapter.tensors(visit),
            Recurrence::Diagonal => {
                self.prelude_norm.tensors(visit)?;
                self.out.tensors(visit)?;
                visit(INJECTION, &[self.hidden; 2])?;
                visit(DECAY, &[self.hidden])?;
                visit(STEP, &[self.hidden])
            }
        }
    }

    pub(crate) fn init(&self, weights: &mut dyn Weights) -> Result<Looped, Error> {
        let LoopConfig { prelude, core, recurrence, .. } = self.config;
        let mut looped = Looped { prelude, core, recurrence, adapter: None, diagonal: None };
        match recurrence {
            Recurrence::Normed | Recurrence::Damped(_) => {}
            Recurrence::Adapter => {
                let [adapter] = self.adapter.init(weights)?;
                looped.adapter = Some(adapter);
            }
            Recurrence::Diagonal => {
                let [out] = self.out.init(weights)?;
                let injection = weights.matrix(INJECTION, [self.hidden; 2])?;
                let mut values = |name| {
                    let data = vector(weights, name, self.hidden)?.val().try_into_vec_as::<f32>();
                    data.map_err(|error| Error::Backend(error.to_string()))
                };
                let (log_decay, bias) = (values(DECAY)?, values(STEP)?);
                let steps: Vec<f64> =
                    bias.iter().map(|&bias| f64::from(bias).exp().ln_1p()).collect();
                let fades = steps.iter().zip(log_decay);
                let fades = fades.map(|(dt, a)| (-dt * f64::from(a).exp()).exp() as f32);
                let device = weights.device().clone();
                let row = |values: Vec<f32>| {
                    let row = Tensor::<1>::from_floats(values.as_slice(), &device);
                    Param::from_tensor(row.unsqueeze::<2>())
                };
                let fade = row(fades.collect());
                let step = row(steps.iter().map(|&step| step as f32).collect());
                let prelude_norm = self.prelude_norm.init(weights)?;
                let injection = Linear::new(injection);
                looped.diagonal = Some(Diagonal { prelude_norm, injection, fade, step, out });
            }
        }
        Ok(looped)
    }
}

/// What a looped transformer has beside its layers.
#[derive(Module, Debug)]
pub struct Looped {
    pub(crate) prelude: usize,
    pub(crate) core: usize,
    #[module(skip)]
    pub(crate) recurrence: Recurrence,
    adapter: Option<Linear>,
    diagonal: Option<Diagonal>,
}

/// Parcae's part between loops.
#[derive(Module, Debug)]
struct Diagonal {
    prelude_norm: Norm,
    injection: Linear,
    /// `[1, hidden]`
    fade: Param<Tensor<2>>,
    /// `[1, hidden]`
    step: Param<Tensor<2>>,
    out: Linear,
}

/// Completed-loop states, `[n, hidden]` each.
#[derive(Debug)]
pub(crate) struct States {
    pub(crate) last: Tensor<2>,
    /// Of the reference loop, if there is guidance.
    pub(crate) reference: Option<Tensor<2>>,
}

/// How deep a pass goes.
#[derive(Clone, Debug)]
pub(crate) struct Depth {
    /// R.
    pub(crate) loops: usize,
    pub(crate) guidance: Option<Guidance>,
    /// What the state of new sequences begins with.
    pub(crate) initial: InitialState,
    /// As [`LoopConfig`] has it.
    pub(crate) noise: Option<f64>,
    /// `[positions, hidden]`: the state that each position begins with, instead.
    pub(crate) given: Option<Tensor<2>>,
}

impl Depth {
    /// What the states of a pass begin with: each row by its absolute position.
    ///
    /// # Shapes
    /// - like, output: `[n, hidden]`
    fn begin(&self, like: &Tensor<2>, way: &Way<'_>) -> Tensor<2> {
        let zeros = |cache: &SequenceCache| cache.initial == InitialState::Zeros;
        let deviation = match self.noise {
            Some(deviation) if !way.caches.iter().all(zeros) => deviation,
            _ => return like.zeros_like(),
        };
        let [rows, hidden] = like.dims();
        let mut states = vec![0.0_f32; rows * hidden];
        let mut rest = states.chunks_exact_mut(hidden);
        for (span, cache) in way.spans.iter().zip(way.caches.iter()) {
            let positions = cache.len()..cache.len() + span.count;
            for (position, row) in positions.zip(rest.by_ref()) {
                cache.initial.fill(position, deviation, row);
            }
        }
        Tensor::from_data(TensorData::new(states, [rows, hidden]), &like.device())
    }
}

impl Looped {
    pub(crate) fn matrices(&mut self, visit: &mut Visit<'_>) {
        let diagonal = self.diagonal.iter_mut();
        let diagonal = diagonal.flat_map(|part| [&mut part.injection, &mut part.out]);
        self.adapter.iter_mut().chain(diagonal).for_each(|map| map.matrices(visit));
    }

    fn prepare(&self, prelude: Tensor<2>) -> Tensor<2> {
        match &self.diagonal {
            // The same for every loop.
            Some(Diagonal { prelude_norm, injection, step, .. }) => {
                injection.forward(prelude_norm.forward(prelude)) * step.val()
            }
            None => prelude,
        }
    }

    /// What the core gets in a loop; `state` is None in the first loop of a model without initial state.
    fn enter(&self, state: Tensor<2>, prelude: &Tensor<2>, norm: &Norm, first: bool) -> Tensor<2> {
        match (self.recurrence, &self.adapter, &self.diagonal) {
            (Recurrence::Normed, ..) if !first => norm.forward(state),
            (_, Some(adapter), _) => adapter.forward(Tensor::cat(vec![state, prelude.clone()], 1)),
            (_, _, Some(Diagonal { fade, .. })) => state * fade.val() + prelude.clone(),
            _ => state,
        }
    }

    fn leave(&self, before: Tensor<2>, after: Tensor<2>) -> Tensor<2> {
        match self.recurrence {
            Recurrence::Damped(share) if share != 1.0 => {
                before.mul_scalar(1.0 - share) + after.mul_scalar(share)
            }
            _ => after,
        }
    }
}

impl Transformer {
    /// The layers behind the loop.
    pub(crate) fn coda(&self) -> usize {
        let looped = self.looped.as_ref();
        looped.map_or(0, |looped| self.layers.len() - looped.prelude - looped.core)
    }

    /// How many caches a sequence has.
    pub(crate) fn slots(&self, depth: Option<&Depth>) -> usize {
        match (&self.looped, depth) {
            (Some(looped), Some(depth)) => {
                let codas = if depth.guidance.is_some() { 2 } else { 1 };
                looped.prelude + depth.loops * looped.core + codas * self.coda()
            }
            _ => self.layers.len(),
        }
    }

    /// Runs prelude and loops.
    pub(crate) fn states(
        &self,
        looped: &Looped,
        depth: &Depth,
        tokens: Tensor<1, Int>,
        way: &mut Way<'_>,
    ) -> States {
        let x = self.embed(tokens, way.positions);
        let prelude = self.run(&way.sections.prelude, 0, x, way);
        let mut state = match (&depth.given, looped.recurrence.has_initial_state()) {
            (_, false) => prelude.clone(),
            (Some(rows), true) => rows.clone().select(0, way.positions.ids.clone()),
            (None, true) => depth.begin(&prelude, way),
        };
        let prelude = looped.prepare(prelude);
        let mut reference = None;
        for turn in 0..depth.loops {
            let entered = looped.enter(state, &prelude, &self.norm, turn == 0);
            let slot = looped.prelude + turn * looped.core;
            let left = self.run(&way.sections.core, slot, entered.clone(), way);
            state = looped.leave(entered, left);
            if depth.guidance.is_some_and(|guidance| guidance.reference == turn + 1) {
                reference = Some(state.clone());
            }
        }
        States { last: state, reference }
    }

    /// From a completed loop to the rows that the head takes; `branch` 1 is a second coda with keys and
    /// values of its own.
    ///
    /// # Shapes
    /// - state, output: `[n, hidden]`
    pub(crate) fn read_out(
        &self,
        looped: &Looped,
        depth: &Depth,
        state: Tensor<2>,
        branch: usize,
        way: &mut Way<'_>,
    ) -> Tensor<2> {
        let before = match (&looped.adapter, &looped.diagonal) {
            (Some(_), _) => self.norm.forward(state),
            (_, Some(Diagonal { out, .. })) => out.forward(state),
            _ => state,
        };
        let slot = looped.prelude + depth.loops * looped.core + branch * self.coda();
        self.run(&way.sections.last, slot, before, way)
    }

    /// The rows of the last loop for the head, guided if that is done on states, and those of the
    /// reference if it is done on logits.
    pub(crate) fn branches(
        &self,
        looped: &Looped,
        depth: &Depth,
        states: States,
        way: &mut Way<'_>,
    ) -> Result<States, Error> {
        let States { last, reference } = states;
        let (Some(guidance), Some(reference)) = (depth.guidance, reference) else {
            let last = self.read_out(looped, depth, last, 0, way);
            return Ok(States { last, reference: None });
        };
        if guidance.form == Form::Logits {
            let last = self.read_out(looped, depth, last, 0, way);
            let reference = self.read_out(looped, depth, reference, 1, way);
            return Ok(States { last, reference: Some(reference) });
        }
        let far = last.clone() - reference;
        let far = match guidance.strength {
            crate::guidance::Strength::Fixed(w) => far.mul_scalar(w),
            strength @ crate::guidance::Strength::Adaptive(_) => {
                let unguided = self.read_out(looped, depth, last.clone(), 1, way);
                let device = unguided.device();
                let mut ws: Vec<f32> = Vec::new();
                let [rows, _] = unguided.dims();
                for start in (0..rows).step_by(READ_ROWS) {
                    let count = READ_ROWS.min(rows - start);
                    let logits = self.logits(unguided.clone().narrow(0, start, count), usize::MAX);
                    let [_, vocab] = logits.dims();
                    let logits: Vec<f32> = logits
                        .try_into_vec_as()
                        .map_err(|error| Error::Backend(error.to_string()))?;
                    ws.extend(logits.chunks_exact(vocab).map(|row| strength.at(row)));
                }
                far * Tensor::<1>::from_floats(ws.as_slice(), &device).reshape([rows, 1])
            }
        };
        let last = self.read_out(looped, depth, last + far, 0, way);
        Ok(States { last, reference: None })
    }
}

/// Rows of logits that are read back at a time.
const READ_ROWS: usize = 64;
