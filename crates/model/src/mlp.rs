//! The gated feed-forward block.

use burn::{module::Module, tensor::Tensor};
use draftproof_kernels::{burn as kernels, glu::Activation};

use crate::{
    Error,
    layers::{Linear, LinearConfig},
    load::Weights,
};

/// Sizes of an [`Mlp`].
#[derive(Clone, Copy, Debug)]
pub struct MlpConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside.
    pub intermediate: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
}

/// `down(silu(gate(x)) · up(x))`.
#[derive(Module, Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl MlpConfig {
    /// Loads `prefix.{gate,up,down}_proj`.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights, prefix: &str) -> Result<Mlp, Error> {
        let inward =
            LinearConfig { input: self.hidden, output: self.intermediate, bias: self.bias };
        let outward =
            LinearConfig { input: self.intermediate, output: self.hidden, bias: self.bias };
        Ok(Mlp {
            gate: inward.init(weights, &format!("{prefix}.gate_proj"))?,
            up: inward.init(weights, &format!("{prefix}.up_proj"))?,
            down: outward.init(weights, &format!("{prefix}.down_proj"))?,
        })
    }
}

impl Mlp {
    /// # Shapes
    /// - x: `[n, hidden]`
    /// - output: `[n, hidden]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kernels::feed_forward(
            x,
            self.gate.parts(),
            self.up.parts(),
            self.down.parts(),
            Activation::Silu,
        )
    }
}
