//! Weights of linear maps, in the types that kernels read.

use std::ops::Range;

use ::burn::{
    backend::Dispatch,
    tensor::{AllocationProperty, Bytes, DType, Device, Int, Tensor, TensorData, TensorReadError},
};

use super::MatrixOf;
use crate::quant::{BlockFormat, Blocks, dequantise, quantise};

/// A matrix of weights, `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// f32 or bf16.
    Float(Tensor<2>),
    /// Blocks of a format: `[outputs, bytes of a row]`, u8.
    Blocks(Tensor<2, Int>, BlockFormat),
}

/// A linear map: its weight, and its bias if it has one.
pub type LinearMap<W = Matrix> = (W, Option<Tensor<1>>);

impl From<Tensor<2>> for Matrix {
    fn from(weight: Tensor<2>) -> Self {
        Self::Float(weight)
    }
}

impl Matrix {
    /// Blocks on shared memory, as they lie.
    ///
    /// # Panics
    /// If the inputs are not whole blocks, or the bytes are not as many as `shape` needs.
    #[must_use]
    pub fn blocks(
        owner: impl AsRef<[u8]> + Send + 'static,
        [outputs, inputs]: [usize; 2],
        format: BlockFormat,
        device: &Device,
    ) -> Self {
        let bytes = bytes::Bytes::from_owner(owner);
        let row = format.row_bytes(inputs);
        let row = row.unwrap_or_else(|| panic!("{inputs} inputs are no {format} blocks"));
        assert_eq!(bytes.len(), outputs * row, "bytes of {format} weights [{outputs}, {inputs}]");
        let bytes = Bytes::from_shared(bytes, AllocationProperty::File);
        let data = TensorData::from_bytes(bytes, [outputs, row], DType::U8);
        Self::Blocks(Tensor::from_data(data, (device, DType::U8)), format)
    }

    /// The bytes of all weights.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let (count, size) = match self {
            Self::Float(weight) => (weight.shape().num_elements(), weight.dtype().size()),
            Self::Blocks(bytes, _) => (bytes.shape().num_elements(), 1),
        };
        (count * size) as u64
    }

    /// The number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self {
            Self::Float(weight) => weight.dims()[0],
            Self::Blocks(bytes, _) => bytes.dims()[0],
        }
    }

    /// Some of the outputs.
    #[must_use]
    pub fn rows(self, rows: Range<usize>) -> Self {
        match self {
            Self::Float(weight) => Self::Float(weight.narrow(0, rows.start, rows.len())),
            Self::Blocks(bytes, format) => {
                Self::Blocks(bytes.narrow(0, rows.start, rows.len()), format)
            }
        }
    }

    /// The number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        match self {
            Self::Float(weight) => weight.dims()[1],
            Self::Blocks(bytes, format) => bytes.dims()[1] / format.bytes() * format.values(),
        }
    }

    /// The bytes of the same values in blocks of `format`, or None if the inputs are not whole blocks,
    /// they are in blocks of this format already, or it is not one of [`BlockFormat::WRITTEN`].
    ///
    /// # Errors
    /// If the values cannot be read from the device.
    pub fn quantised(&self, format: BlockFormat) -> Result<Option<Vec<u8>>, TensorReadError> {
        if format.row_bytes(self.inputs()).is_none() {
            return Ok(None);
        }
        let values = match self {
            Self::Blocks(_, held) if *held == format => return Ok(None),
            Self::Blocks(bytes, held) => {
                let data = bytes.clone().try_into_vec_as::<u8>()?;
                let blocks = Blocks::new(*held, &data);
                let mut values = vec![0.0; blocks.len()];
                dequantise(blocks, &mut values);
                values
            }
            Self::Float(weight) => weight.clone().try_into_vec_as::<f32>()?,
        };
        Ok(quantise(&values, format))
    }

    pub(super) fn into_dispatch(self) -> MatrixOf<Dispatch> {
        match self {
            Self::Float(weight) => MatrixOf::Float(weight.into_dispatch()),
            Self::Blocks(bytes, format) => MatrixOf::Blocks(bytes.into_dispatch(), format),
        }
    }
}
