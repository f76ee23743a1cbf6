//! Weights of a map or a static on their way to burn, without a copy.
//!
//! burn's `Bytes` can stand on shared memory (`Bytes::from_shared` over a `bytes::Bytes`, which
//! takes any owner of bytes): reading is free, the first write copies. Flex keeps such bytes as
//! they are, and reads them in place as numbers of this machine's byte order. So they must lie at a
//! multiple of the number's size, which the safetensors format only recommends; what does not is
//! copied once.

use ::burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, Tensor, TensorData};

use super::facts;

/// The bytes as they lie, or a copy if they are not at a multiple of `size`, 2 or 4.
fn aligned(bytes: bytes::Bytes, size: usize) -> Bytes {
    if bytes.as_ptr().addr().is_multiple_of(size) {
        return Bytes::from_shared(bytes, AllocationProperty::File);
    }
    match size {
        2 => Bytes::from_elems(numbers(&bytes, u16::from_ne_bytes)),
        _ => Bytes::from_elems(numbers(&bytes, u32::from_ne_bytes)),
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|chunk| from(*chunk)).collect()
}

/// f32 or bf16 weights on shared memory, in the type they have.
///
/// # Panics
/// If `dtype` is another one, or the bytes are not as many as `shape` needs.
#[must_use]
pub fn weight_data(
    owner: impl AsRef<[u8]> + Send + 'static,
    shape: impl Into<Shape>,
    dtype: DType,
) -> TensorData {
    let size = match dtype {
        DType::F32 => 4,
        DType::BF16 => 2,
        other => panic!("expected F32 or BF16 weights, found {other:?}"),
    };
    let (shape, bytes) = (shape.into(), bytes::Bytes::from_owner(owner));
    let found = bytes.len();
    assert_eq!(found, shape.num_elements() * size, "bytes of weights of shape {shape:?}");
    TensorData::from_bytes(aligned(bytes, size), shape, dtype)
}

/// The tensor of [`weight_data`]. Where kernels read bf16 by words of two, rows of an odd number of
/// values are widened to f32.
///
/// # Panics
/// As [`weight_data`].
#[must_use]
pub fn weights<const D: usize>(
    owner: impl AsRef<[u8]> + Send + 'static,
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let [.., width] = shape[..] else { panic!("expected a matrix or a vector, found {shape:?}") };
    let data = weight_data(owner, shape, dtype);
    if dtype == DType::BF16 && width % 2 == 1 && facts::reads_words(device) {
        return Tensor::from_data(data.convert_dtype(DType::F32), (device, DType::F32));
    }
    Tensor::from_data(data, (device, dtype))
}
