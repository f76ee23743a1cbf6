//! The feed-forward block, gated or not.

use burn::{module::Module, tensor::Tensor};
use draftproof_kernels::{burn as kernels, glu::Activation};

use crate::{
    Error,
    layers::{Linear, LinearsConfig, Visit},
    load::Weights,
    transformer::Visitor,
};

/// An [`Mlp`] in the making.
#[derive(Clone, Debug)]
pub struct MlpConfig {
    /// The maps in.
    pub inward: Inward,
    /// The map out.
    pub out: LinearsConfig<1>,
    /// The function between.
    pub activation: Function,
}

/// The function inside a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// One that kernels have, with a gate or without.
    Kernel(Activation),
    /// `max(x, 0)² / 2`; as it has no kernel, without a gate only.
    HalfSquaredRelu,
}

/// The maps into a feed-forward block.
#[derive(Clone, Debug)]
pub enum Inward {
    /// Gate and up.
    Gated(LinearsConfig<2>),
    /// Up alone.
    Plain(LinearsConfig<1>),
}

/// `out(act(gate(x)) · up(x))`, or `out(act(up(x)))` without a gate.
#[derive(Module, Debug)]
pub struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    out: Linear,
    #[module(skip)]
    activation: Function,
}

impl MlpConfig {
    /// Visits every tensor.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        match &self.inward {
            Inward::Gated(maps) => maps.tensors(visit)?,
            Inward::Plain(map) => map.tensors(visit)?,
        }
        self.out.tensors(visit)
    }

    /// Loads the block.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Mlp, Error> {
        let (gate, up) = match &self.inward {
            Inward::Gated(maps) => {
                let [gate, up] = maps.init(weights)?;
                (Some(gate), up)
            }
            Inward::Plain(map) => {
                let [up] = map.init(weights)?;
                (None, up)
            }
        };
        let [out] = self.out.init(weights)?;
        Ok(Mlp { gate, up, out, activation: self.activation })
    }
}

impl Mlp {
    pub(crate) fn matrices(&mut self, visit: &mut Visit<'_>) {
        let maps = self.gate.iter_mut().chain([&mut self.up, &mut self.out]);
        maps.for_each(|map| map.matrices(visit));
    }

    /// Gate, up and out, and the function of the gate, if kernels have it; None: there is no gate, or no
    /// kernel.
    pub(crate) fn gated(&self) -> Option<([&Linear; 3], Activation)> {
        match (&self.gate, self.activation) {
            (Some(gate), Function::Kernel(activation)) => {
                Some(([gate, &self.up, &self.out], activation))
            }
            _ => None,
        }
    }

    /// # Shapes
    /// - x: `[n, hidden]`
    /// - output: `[n, hidden]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match (&self.gate, self.activation) {
            (Some(gate), Function::Kernel(activation)) => {
                let inner = kernels::gated(x, gate.parts(), self.up.parts(), activation);
                self.out.forward(inner)
            }
            (None, Function::Kernel(activation)) => {
                let inner = self.up.forward(x);
                // Times one: the function alone, from the kernel that has it.
                let ones = inner.ones_like();
                self.out.forward(kernels::glu(inner, ones, activation))
            }
            (_, Function::HalfSquaredRelu) => {
                let inner = self.up.forward(x).clamp_min(0.0);
                self.out.forward((inner.clone() * inner).mul_scalar(0.5))
            }
        }
    }
}
