//! Weights in: where files come from, and what a transformer asks of them.
//!
//! Every file is hostile until checked: a size is compared with a limit or with what is really
//! there before memory is taken for it, and no name inside a file can lead out of its folder.

mod gguf;
mod safetensors;
mod source;

use std::{fmt, ops::Range};

use burn::tensor::{Device, Tensor, TensorData};
use draftproof_kernels::{
    burn::{Matrix, largest_tensor},
    quant::{BlockFormat, Blocks, dequantise},
};
use sha2::{Digest, Sha256};

pub use gguf::Gguf;
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
    /// that type (f32; bf16 if they are row-invariant; blocks if those are the CPU's), else as f32.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix, Error> {
        let data = self.take(name, &shape)?;
        Ok(Matrix::Float(Tensor::from_data(data, self.device())))
    }

    /// Some rows of a matrix of `shape`, otherwise as [`matrix`](Self::matrix): some families keep
    /// several maps in one tensor, and what is too large for one tensor of the device is loaded in
    /// parts.
    ///
    /// # Errors
    /// As [`take`](Self::take), or if the rows are more than fit into one tensor.
    fn rows(&mut self, name: &str, shape: [usize; 2], rows: Range<usize>) -> Result<Matrix, Error> {
        Ok(self.matrix(name, shape)?.rows(rows))
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
    /// A few bits for each value, and scales for each block of them.
    Blocks(BlockFormat),
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Blocks(format) => format.fmt(f),
        }
    }
}

#[cfg(feature = "remote")]
impl serde::Serialize for WeightType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "remote")]
impl<'de> serde::Deserialize<'de> for WeightType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let plain = [Self::F32, Self::F16, Self::Bf16].into_iter();
        let mut all = plain.chain(BlockFormat::ALL.map(Self::Blocks));
        all.find(|weight_type| weight_type.to_string() == name).ok_or_else(|| {
            serde::de::Error::custom(format_args!("expected a type of weights, found {name:?}"))
        })
    }
}

impl WeightType {
    /// The bytes of a tensor, if its last dimension is whole blocks and the number is one.
    pub(crate) fn bytes(self, shape: &[usize]) -> Option<usize> {
        let (&width, outer) = shape.split_last()?;
        let row = match self {
            Self::F32 => width.checked_mul(4),
            Self::F16 | Self::Bf16 => width.checked_mul(2),
            Self::Blocks(format) => format.row_bytes(width),
        };
        outer.iter().try_fold(row?, |bytes, &size| bytes.checked_mul(size))
    }

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
            Self::Blocks(format) => {
                let blocks = Blocks::new(format, bytes);
                let mut values = vec![0.0; blocks.len()];
                dequantise(blocks, &mut values);
                values
            }
        }
    }
}

/// Refuses a tensor of more bytes than one may have on the device.
pub(crate) fn check_size(
    device: &Device,
    file: &str,
    name: &str,
    bytes: usize,
) -> Result<(), Error> {
    match largest_tensor(device) {
        Some(limit) if bytes as u64 > limit => Err(tensor_error(
            file,
            name,
            format!("at most {limit} bytes, the device's limit for one buffer"),
            format!("{bytes} bytes"),
        )),
        _ => Ok(()),
    }
}

/// Feeds `count` bytes from `start` to a fingerprint.
///
/// Of more than 4 MiB only 64 KiB at each of 64 evenly spaced places count, so that the cost stays
/// that of a few megabytes whatever the model's size.
fn hash_pieces(
    hash: &mut Sha256,
    blob: &mut source::Blob,
    start: u64,
    count: usize,
) -> Result<(), Error> {
    const WHOLE: usize = 4 << 20;
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 64;
    let mut feed = |offset: usize, count: usize| {
        let piece = blob.read(start + offset as u64, count)?;
        hash.update(&piece);
        Ok(())
    };
    if count <= WHOLE {
        return feed(0, count);
    }
    (0..PIECES).try_for_each(|i| feed((count - PIECE) / (PIECES - 1) * i, PIECE))
}

fn tensor_error(
    file: &str,
    tensor: &str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Error {
    Error::Tensor {
        file: file.into(),
        tensor: tensor.into(),
        expected: expected.into(),
        found: found.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact() {
        let q8 = WeightType::Blocks(BlockFormat::Q8_0);
        assert_eq!((q8.bytes(&[2, 64]), q8.bytes(&[64, 2])), (Some(136), None));
        assert_eq!(WeightType::F16.bytes(&[usize::MAX / 2, 2]), None);
        assert_eq!(WeightType::F32.widen(&1.5_f32.to_le_bytes()), [1.5]);
        assert_eq!(WeightType::Bf16.widen(&[0xC0, 0x3F, 0x80, 0xFF]), [1.5, f32::NEG_INFINITY]);
        assert_eq!(WeightType::F16.widen(&[0x00, 0x3E, 0x01, 0x00]), [1.5, 2_f32.powi(-24)]);
        assert!(WeightType::Bf16.widen(&[0xC0, 0x7F])[0].is_nan());
    }
}
