//! Weights in: where files come from, and what a transformer asks of them.
//!
//! Every file is hostile until checked: a size is compared with a limit or with what is really
//! there before memory is taken for it, and no name inside a file can lead out of its folder.

mod safetensors;
mod source;

use std::{fmt, ops::Range};

use burn::tensor::{Device, Tensor, TensorData};

pub use safetensors::Checkpoint;
pub use source::Source;

use crate::Error;

/// Named tensors on their way to a device.
pub trait Weights {
    /// The values of one tensor as f32, row-major.
    ///
    /// # Errors
    /// If there is no such tensor, or not of this shape, or its file cannot be read.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorData, Error>;

    /// A matrix `[output, input]`, in the type it is stored in where the kernels of the device read
    /// that type (f32; bf16 if they are row-invariant), else as f32.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Tensor<2>, Error> {
        let data = self.take(name, &shape)?;
        Ok(Tensor::from_data(data, self.device()))
    }

    /// Some rows of a matrix of `shape`, otherwise as [`matrix`](Self::matrix): some families keep
    /// several maps in one tensor.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn rows(
        &mut self,
        name: &str,
        shape: [usize; 2],
        rows: Range<usize>,
    ) -> Result<Tensor<2>, Error> {
        Ok(self.matrix(name, shape)?.narrow(0, rows.start, rows.len()))
    }

    /// The device that will hold them.
    fn device(&self) -> &Device;
}

/// The number format of weights in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WeightType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

impl WeightType {
    /// Widens little-endian values to f32; every value of the narrow types has an exact f32.
    pub(crate) fn widen(self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match self {
            Self::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Self::F16 => pairs().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            Self::Bf16 => pairs().map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact() {
        assert_eq!(WeightType::F32.widen(&1.5_f32.to_le_bytes()), [1.5]);
        assert_eq!(WeightType::Bf16.widen(&[0xC0, 0x3F, 0x80, 0xFF]), [1.5, f32::NEG_INFINITY]);
        assert_eq!(WeightType::F16.widen(&[0x00, 0x3E, 0x01, 0x00]), [1.5, 2_f32.powi(-24)]);
        assert!(WeightType::Bf16.widen(&[0xC0, 0x7F])[0].is_nan());
    }
}
