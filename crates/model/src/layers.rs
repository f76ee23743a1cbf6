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
///
/// A table that is too large for one tensor of the device is held in parts; the bits are the same.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[rows, hidden]` each, in the order of the ids.
    parts: Vec<Param<Tensor<2>>>,
    /// Rows of every part but the last, which may have fewer.
    part_rows: usize,
}

impl Embedding {
    /// Loads the table called `name`.
    ///
    /// # Errors
    /// If the tensor is missing or of another shape.
    pub fn init(weights: &mut dyn Weights, name: &str, shape: [usize; 2]) -> Result<Self, Error> {
        let limit = kernels::largest_tensor(weights.device()).unwrap_or(u64::MAX);
        Self::init_in_parts(weights, name, shape, limit)
    }

    /// As [`init`](Self::init), in parts of at most `limit` bytes as f32, but of at least a row.
    fn init_in_parts(
        weights: &mut dyn Weights,
        name: &str,
        shape: [usize; 2],
        limit: u64,
    ) -> Result<Self, Error> {
        let [vocab, hidden] = shape;
        let most = limit / (hidden.max(1) * size_of::<f32>()) as u64;
        let part_rows = usize::try_from(most).unwrap_or(vocab).clamp(1, vocab.max(1));
        if part_rows >= vocab {
            return Ok(Self { parts: vec![matrix(weights, name, shape)?], part_rows });
        }
        let parts = (0..vocab).step_by(part_rows).map(|start| {
            let rows = start..vocab.min(start + part_rows);
            Ok(Param::from_tensor(weights.rows(name, shape, rows)?))
        });
        Ok(Self { parts: parts.collect::<Result<_, Error>>()?, part_rows })
    }

    /// The bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |part: &Param<Tensor<2>>| {
            let part = part.val();
            (part.shape().num_elements() * part.dtype().size()) as u64
        };
        self.parts.iter().map(bytes).sum()
    }

    /// # Shapes
    /// - ids: `[n]`
    /// - output: `[n, hidden]`
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        let rows = |index: usize| {
            let part = self.parts[index].val();
            if self.parts.len() == 1 {
                return kernels::embedding(part, ids.clone());
            }
            // An id of another part reads some row of this one, which is not taken.
            let last = part.dims()[0] as i64 - 1;
            let own = (ids.clone() - (index * self.part_rows) as i64).clamp(0, last);
            kernels::embedding(part, own)
        };
        (1..self.parts.len()).fold(rows(0), |x, index| {
            let later = ids.clone().greater_equal_elem((index * self.part_rows) as i64);
            x.mask_where(later.unsqueeze_dim(1), rows(index))
        })
    }

    /// Logits of the first `vocab` ids.
    ///
    /// # Shapes
    /// - x: `[n, hidden]`
    /// - output: `[n, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        let parts = self.parts.iter().map(|part| kernels::linear(x.clone(), part.val(), None));
        let mut parts: Vec<Tensor<2>> = parts.collect();
        let logits = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 1) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    struct Counting(Device);

    impl Weights for Counting {
        fn take(&mut self, _name: &str, shape: &[usize]) -> Result<TensorData, Error> {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
            Ok(TensorData::new(values, shape.to_vec()))
        }

        fn device(&self) -> &Device {
            &self.0
        }
    }

    #[test]
    fn a_table_in_parts_is_the_table() {
        for name in crate::device::available() {
            let Ok(device) = crate::device::open(name) else { continue };
            let shape = [7, 3];
            let mut weights = Counting(device.clone());
            let whole = Embedding::init(&mut weights, "table", shape).unwrap();
            assert_eq!(whole.parts.len(), 1);
            let ids = Tensor::<1, Int>::from_data([6, 0, 3, 4, 2, 5, 1], &device);
            let x = Tensor::<2>::from_data([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], &device);
            // Of 1, 2, 3 rows, and the last part cut off; a limit below a row is a row.
            for (limit, count) in [(11, 7), (12, 7), (24, 4), (36, 3), (83, 2)] {
                let parts = Embedding::init_in_parts(&mut weights, "table", shape, limit).unwrap();
                assert_eq!(parts.parts.len(), count, "{limit}");
                assert_eq!(parts.bytes(), whole.bytes());
                let same = |a: Tensor<2>, b: Tensor<2>| {
                    let [a, b] = [a, b].map(|t| t.try_into_vec_as::<f32>().unwrap());
                    assert_eq!(a, b, "{name}, {limit}");
                };
                same(parts.forward(ids.clone()), whole.forward(ids.clone()));
                for vocab in [7, 6] {
                    same(parts.logits(x.clone(), vocab), whole.logits(x.clone(), vocab));
                }
            }
        }
    }
}
