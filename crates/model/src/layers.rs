//! Linear maps, norms and embeddings: weights, their shapes, and the kernels that use them.
//!
//! Matrices stay in the type they were stored in (f32, bf16 or blocks; f16 is widened to f32);
//! vectors are f32.

use burn::{
    module::{Module, Param, ParamId},
    tensor::{Int, Tensor, TensorData},
};
use draftproof_kernels::{
    burn::{self as kernels, Matrix},
    norm::RmsForm,
    quant::BlockFormat,
};

use crate::{Error, load::Weights, transformer::Visitor};

/// Linear maps of one input, which may lie in one tensor.
#[derive(Clone, Debug)]
pub struct LinearsConfig<const N: usize> {
    /// What the names begin with.
    pub prefix: String,
    /// A name for each map, or one for the tensor that holds them all.
    pub names: &'static [&'static str],
    /// Width of the input.
    pub input: usize,
    /// Width of each output.
    pub outputs: [usize; N],
    /// Whether biases are added.
    pub bias: bool,
    /// Whether matrices are stored `[input, output]`.
    pub transposed: bool,
}

/// A [`Matrix`] that belongs to a module.
#[derive(Module, Debug)]
pub enum MatrixParam {
    /// f32 or bf16.
    Float(Param<Tensor<2>>),
    /// Blocks of a few bits a value.
    Blocks(BlockParam),
}

/// Blocks that belong to a module.
#[derive(Module, Debug)]
pub struct BlockParam {
    /// `[output, bytes of a row]`.
    bytes: Param<Tensor<2, Int>>,
    #[module(skip)]
    format: BlockFormat,
}

impl From<Matrix> for MatrixParam {
    fn from(matrix: Matrix) -> Self {
        match matrix {
            Matrix::Float(weight) => Self::Float(Param::from_tensor(weight)),
            Matrix::Blocks(bytes, format) => {
                let bytes = Param::initialized(ParamId::new(), bytes);
                Self::Blocks(BlockParam { bytes, format })
            }
        }
    }
}

impl MatrixParam {
    fn val(&self) -> Matrix {
        match self {
            Self::Float(weight) => Matrix::Float(weight.val()),
            Self::Blocks(BlockParam { bytes, format }) => Matrix::Blocks(bytes.val(), *format),
        }
    }
}

/// `y = x·Wᵀ + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[output, input]`.
    weight: MatrixParam,
    /// `[output]`.
    bias: Option<Param<Tensor<1>>>,
}

impl<const N: usize> LinearsConfig<N> {
    /// The tensors' names, and the outputs in each.
    fn stored(&self) -> impl Iterator<Item = (String, &[usize])> {
        let each = self.outputs.len() / self.names.len();
        let names = self.names.iter().map(|name| format!("{}.{name}", self.prefix));
        names.zip(self.outputs.chunks(each))
    }

    fn shape(&self, output: usize) -> [usize; 2] {
        if self.transposed { [self.input, output] } else { [output, self.input] }
    }

    /// Visits every tensor.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        for (name, parts) in self.stored() {
            let output = parts.iter().sum();
            visit(&format!("{name}.weight"), &self.shape(output))?;
            if self.bias {
                visit(&format!("{name}.bias"), &[output])?;
            }
        }
        Ok(())
    }

    /// Loads the maps, in order.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<[Linear; N], Error> {
        let mut maps = Vec::with_capacity(N);
        for (name, parts) in self.stored() {
            let output = parts.iter().sum();
            let mut start = 0;
            for count in parts {
                let rows = start..start + count;
                start = rows.end;
                let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
                let shape = self.shape(output);
                let weight = match self.transposed {
                    true => {
                        let data = columns(weights.take(&weight, &shape)?, shape, rows.clone());
                        Matrix::Float(Tensor::from_data(data, weights.device()))
                    }
                    false => weights.rows(&weight, shape, rows.clone())?,
                };
                let bias = match self.bias {
                    true => {
                        let all = vector(weights, &bias, output)?.val();
                        Some(Param::from_tensor(all.narrow(0, rows.start, rows.len())))
                    }
                    false => None,
                };
                maps.push(Linear { weight: weight.into(), bias });
            }
        }
        Ok(maps.try_into().expect("a map for each output"))
    }
}

/// The columns of a matrix as rows.
fn columns(
    data: TensorData,
    [rows, width]: [usize; 2],
    wanted: std::ops::Range<usize>,
) -> TensorData {
    let values: Vec<f32> = data.try_to_vec().expect("f32 values");
    let column = |column: usize| (0..rows).map(move |row| row * width + column);
    let shape = [wanted.len(), rows];
    TensorData::new(wanted.flat_map(column).map(|at| values[at]).collect::<Vec<f32>>(), shape)
}

impl Linear {
    pub(crate) fn new(weight: Matrix) -> Self {
        Self { weight: weight.into(), bias: None }
    }

    /// The same map with another bias.
    pub(crate) fn with_bias(self, bias: Tensor<1>) -> Self {
        Self { bias: Some(Param::from_tensor(bias)), ..self }
    }

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
    pub(crate) fn weight(&self) -> Matrix {
        self.weight.val()
    }

    /// `[output]`.
    pub(crate) fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }
}

/// What a norm computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormForm {
    /// `x / sqrt(mean(x²) + epsilon)`, times the weight or `1 + weight`.
    Rms(RmsForm),
    /// `(x − mean) / sqrt(variance + epsilon) · weight + bias`.
    Layer,
}

/// A norm in the making.
#[derive(Clone, Debug)]
pub struct NormConfig {
    /// The tensors' names without `.weight` and `.bias`.
    pub name: String,
    /// What it computes.
    pub form: NormForm,
    /// Width of a row.
    pub width: usize,
    /// Added to the mean square, or the variance.
    pub epsilon: f64,
}

/// A norm over rows; see [`NormForm`].
#[derive(Module, Debug)]
pub struct Norm {
    /// `[width]`.
    weight: Param<Tensor<1>>,
    /// `[width]`; layer norms have one.
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    form: NormForm,
    epsilon: f64,
}

impl NormConfig {
    /// Visits every tensor.
    ///
    /// # Errors
    /// What `visit` returned.
    pub fn tensors(&self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        visit(&format!("{}.weight", self.name), &[self.width])?;
        match self.form {
            NormForm::Rms(_) => Ok(()),
            NormForm::Layer => visit(&format!("{}.bias", self.name), &[self.width]),
        }
    }

    /// Loads the norm.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape.
    pub fn init(&self, weights: &mut dyn Weights) -> Result<Norm, Error> {
        let Self { name, form, width, epsilon } = self;
        let weight = vector(weights, &format!("{name}.weight"), *width)?;
        let bias = match form {
            NormForm::Rms(_) => None,
            NormForm::Layer => Some(vector(weights, &format!("{name}.bias"), *width)?),
        };
        Ok(Norm { weight, bias, form: *form, epsilon: *epsilon })
    }
}

impl Norm {
    /// # Shapes
    /// - x: `[…, width]`
    /// - output: the same
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight.val();
        match (self.form, &self.bias) {
            (NormForm::Rms(form), _) => kernels::rms_norm(x, weight, self.epsilon, form),
            (NormForm::Layer, bias) => {
                let bias = bias.as_ref().expect("layer norms have a bias").val();
                kernels::layer_norm(x, weight, bias, self.epsilon)
            }
        }
    }

    /// `residual + x`, and its norm.
    ///
    /// # Shapes
    /// - residual, x, both outputs: `[n, width]`
    pub fn forward_sum(&self, residual: Tensor<2>, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        match self.form {
            NormForm::Rms(form) => {
                kernels::add_rms_norm(residual, x, self.weight.val(), self.epsilon, form)
            }
            NormForm::Layer => {
                let sum = residual + x;
                (sum.clone(), self.forward(sum))
            }
        }
    }
}

/// A row for every id; serves as the head too when the two are tied.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[rows, hidden]`.
    weight: MatrixParam,
}

impl Embedding {
    /// Loads the table called `name.weight`.
    ///
    /// # Errors
    /// If the tensor is missing or of another shape.
    pub fn init(weights: &mut dyn Weights, name: &str, shape: [usize; 2]) -> Result<Self, Error> {
        let weight = weights.matrix(&format!("{name}.weight"), shape)?;
        Ok(Self { weight: weight.into() })
    }

    /// The bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.weight.val().bytes()
    }

    /// # Shapes
    /// - ids: `[n]`
    /// - output: `[n, hidden]`
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        kernels::embedding(self.weight.val(), ids)
    }

    /// Logits of the first `vocab` ids, or of all.
    ///
    /// # Shapes
    /// - x: `[n, hidden]`
    /// - output: `[n, vocab]`
    pub fn logits(&self, x: Tensor<2>, vocab: usize) -> Tensor<2> {
        let logits = kernels::linear(x, self.weight.val(), None);
        // Cut from the result: a part of the table would be copied for every pass.
        match logits.dims() {
            [_, all] if all <= vocab => logits,
            _ => logits.narrow(1, 0, vocab),
        }
    }
}

pub(crate) fn vector(
    weights: &mut dyn Weights,
    name: &str,
    width: usize,
) -> Result<Param<Tensor<1>>, Error> {
    let data = weights.take(name, &[width])?;
    Ok(Param::from_tensor(Tensor::from_data(data, weights.device())))
}
