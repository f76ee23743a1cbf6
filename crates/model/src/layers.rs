//! Linear maps, norms and embeddings: a weight, its shape, and the kernel that uses it.
//!
//! Matrices stay in the type they were stored in (f32 or bf16); vectors are f32.

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};
use draftproof_kernels::{burn as kernels, norm::RmsForm};

use crate::{Error, load::Weights};

/// Sizes of a [`Linear`].
#[derive(Clone, Copy, Debug)]
pub struct LinearConfig {
    /// Width of the input.
    pub input: usize,
    /// Width of the output.
    pub output: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

/// `y = x·Wᵀ + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[output, input]`, as the files have it.
    weight: Param<Tensor<2>>,
    /// `[output]`.
    bias: Option<Param<Tensor<1>>>,
}

impl LinearConfig {
    /// Loads `prefix.weight` and, if there is one, `prefix.bias`.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights, prefix: &str) -> Result<Linear, Error> {
        let weight = matrix(weights, &format!("{prefix}.weight"), [self.output, self.input])?;
        let bias = match self.bias {
            true => Some(vector(weights, &format!("{prefix}.bias"), self.output)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }
}

impl Linear {
    /// # Shapes
    /// - x: `[n, input]`
    /// - output: `[n, output]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kernels::linear(x, self.weight.val(), self.bias())
    }

    /// The weight, and the bias if there is one.
    pub(crate) fn parts(&self) -> kernels::LinearMap {
        (self.weight(), self.bias())
    }

    /// `[output, input]`.
    pub(crate) fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }

    /// `[output]`.
    pub(crate) fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }
}

/// Sizes of an [`RmsNorm`].
#[derive(Clone, Copy, Debug)]
pub struct RmsNormConfig {
    /// Width of a row.
    pub width: usize,
    /// Added to the mean square.
    pub epsilon: f64,
}

/// `x / sqrt(mean(x²) + epsilon) · weight`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[width]`.
    weight: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNormConfig {
    /// Loads `prefix.weight`.
    ///
    /// # Errors
    /// If the tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights, prefix: &str) -> Result<RmsNorm, Error> {
        let weight = vector(weights, &format!("{prefix}.weight"), self.width)?;
        Ok(RmsNorm { weight, epsilon: self.epsilon })
    }
}

impl RmsNorm {
    /// # Shapes
    /// - x: `[n, width]`
    /// - output: `[n, width]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kernels::rms_norm(x, self.weight.val(), self.epsilon, RmsForm::Llama)
    }

    /// `residual + x`, and its norm.
    ///
    /// # Shapes
    /// - residual, x, both outputs: `[n, width]`
    pub fn forward_sum(&self, residual: Tensor<2>, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        kernels::add_rms_norm(residual, x, self.weight.val(), self.epsilon, RmsForm::Llama)
    }
}

/// A row for every id; serves as the head too when the two are tied.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[vocab, hidden]`.
    weight: Param<Tensor<2>>,
}

impl Embedding {
    /// Loads the table called `name`.
    ///
    /// # Errors
    /// If the tensor is missing or of another shape.
    pub fn init(weights: &mut dyn Weights, name: &str, shape: [usize; 2]) -> Result<Self, Error> {
        Ok(Self { weight: matrix(weights, name, shape)? })
    }

    /// The bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        let table = self.weight.val();
        (table.shape().num_elements() * table.dtype().size()) as u64
    }

    /// # Shapes
    /// - ids: `[n]`
    /// - output: `[n, hidden]`
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        kernels::embedding(self.weight.val(), ids)
    }

    /// Logits of the first `vocab` ids.
    ///
    /// # Shapes
    /// - x: `[n, hidden]`
    /// - output: `[n, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        let logits = kernels::linear(x, self.weight.val(), None);
        // Cut from the result: a part of the table would be copied for every pass.
        match logits.dims() {
            [_, all] if all == vocab => logits,
            _ => logits.narrow(1, 0, vocab),
        }
    }
}

fn matrix(
    weights: &mut dyn Weights,
    name: &str,
    shape: [usize; 2],
) -> Result<Param<Tensor<2>>, Error> {
    Ok(Param::from_tensor(weights.matrix(name, shape)?))
}

fn vector(weights: &mut dyn Weights, name: &str, width: usize) -> Result<Param<Tensor<1>>, Error> {
    let data = weights.take(name, &[width])?;
    Ok(Param::from_tensor(Tensor::from_data(data, weights.device())))
}
