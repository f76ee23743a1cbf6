//! Tensors as kernels take them: in one piece, from their first value on.

use burn::{
    backend::TensorMetadata,
    tensor::{DType, Shape},
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

/// The tensor in one piece; itself if it is already.
pub(super) fn whole(tensor: CubeTensor) -> CubeTensor {
    if tensor.is_contiguous() { tensor } else { into_contiguous(tensor) }
}

/// A new f32 tensor in one piece, with arbitrary contents, where `like` is.
pub(super) fn output(like: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    let shape = shape.into();
    let handle = like.client.empty(shape.num_elements() * size_of::<f32>());
    let (client, device) = (like.client.clone(), like.device.clone());
    CubeTensor::new_contiguous(client, device, shape, handle, DType::F32)
}

/// What is bound where a kernel has an argument that this call does not use. Not another argument:
/// what a kernel writes may be bound only once.
pub(super) fn unused(like: &CubeTensor) -> CubeTensor {
    output(like, [1])
}

/// A kernel's argument: the words of a tensor in one piece.
pub(super) fn input(tensor: &CubeTensor) -> BufferArg {
    debug_assert!(tensor.is_contiguous(), "a tensor in one piece");
    let words = (tensor.shape().num_elements() * tensor.dtype.size()).div_ceil(size_of::<u32>());
    // SAFETY: the handle holds this many words: allocations are whole words.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), words) }
}

/// Units of a cube of an elementwise kernel.
const UNITS: u32 = 128;

/// Cubes of [`UNITS`] that make up at least `units`, `ABSOLUTE_POS` counting them.
pub(super) fn elementwise(client: &Client, units: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(UNITS);
    (cubecl::calculate_cube_count_elemwise(client, units, dim), dim)
}
