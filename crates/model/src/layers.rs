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
    layers::{self as kernels_layers, Affine},
    norm::RmsForm,
    quant::BlockFormat,
};

use crate::{
    Error,
    load::{Weights, check_size},
    transformer::Visitor,
};

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
    pub(crate) fn val(&self) -> Matrix {
        match self {
            Self::Float(weight) => Matrix::Float(weight.val()),
            Self::Blocks(BlockParam { bytes, format }) => Matrix::Blocks(bytes.val(), *format),
        }
    }
}

/// What [`MatrixParam`]s are shown to.
pub(crate) type Visit<'a> = dyn FnMut(&mut MatrixParam) + 'a;

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
                        let bytes = count * self.input * size_of::<f32>();
                        check_size(weights.device(), "the checkpoint", &weight, bytes)?;
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

    pub(crate) fn matrices(&mut self, visit: &mut Visit<'_>) {
        visit(&mut self.weight);
    }

    /// The weight, and the bias if there is one.
    pub(crate) fn parts(&self) -> kernels::LinearMap {
        (self.weight(), self.bias())
    }

    /// The same for whole layers.
    pub(crate) fn affine(&self) -> Affine<Matrix, Tensor<1>> {
        Affine { weight: self.weight(), bias: self.bias() }
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
    /// The norm for whole layers; None: it is not of root mean squares.
    pub(crate) fn rms(&self) -> Option<kernels_layers::Norm<Tensor<1>>> {
        let NormForm::Rms(form) = self.form else { return None };
        Some(kernels_layers::Norm { weight: self.weight.val(), epsilon: self.epsilon, form })
    }

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
///
/// A table that is too large for one tensor of the device is held in parts; the bits are the same.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[rows, hidden]` each, in the order of the ids.
    parts: Vec<MatrixParam>,
    /// Rows of every part but the last, which may have fewer.
    part_rows: usize,
}

impl Embedding {
    /// Loads the table called `name.weight`.
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
        let name = format!("{name}.weight");
        let [vocab, hidden] = shape;
        let most = limit / (hidden.max(1) * size_of::<f32>()) as u64;
        let part_rows = usize::try_from(most).unwrap_or(vocab).clamp(1, vocab.max(1));
        if part_rows >= vocab {
            return Ok(Self { parts: vec![weights.matrix(&name, shape)?.into()], part_rows });
        }
        let parts = (0..vocab).step_by(part_rows).map(|start| {
            let rows = start..vocab.min(start + part_rows);
            Ok(weights.rows(&name, shape, rows)?.into())
        });
        Ok(Self { parts: parts.collect::<Result<_, Error>>()?, part_rows })
    }

    pub(crate) fn matrices(&mut self, visit: &mut Visit<'_>) {
        self.parts.iter_mut().for_each(visit);
    }

    /// The bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.val().bytes()).sum()
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
            let last = part.outputs() as i64 - 1;
            let own = (ids.clone() - (index * self.part_rows) as i64).clamp(0, last);
            kernels::embedding(part, own)
        };
        (1..self.parts.len()).fold(rows(0), |x, index| {
            let later = ids.clone().greater_equal_elem((index * self.part_rows) as i64);
            x.mask_where(later.unsqueeze_dim(1), rows(index))
        })
    }

    /// Logits of the first `vocab` ids, or of all.
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
