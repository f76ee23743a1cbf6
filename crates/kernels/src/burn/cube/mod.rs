//! The kernels on CubeCL's devices: wgpu (Vulkan, Metal, DX12, WebGPU) and CUDA.
//!
//! Each operation is one compiled kernel for all row counts: its grid grows with the rows, its code
//! and the order of its sums do not. (A driver may contract two specialisations of one kernel
//! differently, so there are none that depend on the pass.) The orders are stated by module; they
//! are not those of the CPU, and agree with it to rounding.
//!
//! Weights in bf16 lie packed in words of two and are widened by a shift, which is exact: no device
//! feature is needed.

mod attention;
mod launch;
mod linear;
mod rowwise;

use burn::{
    backend::ops::IntTensorOps,
    tensor::{DType, IntDType},
};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use cubecl::{MemoryScope, client::Client};

use self::{launch::whole, linear::Words};
use super::{Bias, General, Kernels, MatrixOf, RowInvariantOps, kernels};
use crate::{attention::AttentionRule, glu::Activation, norm::RmsForm, rope::RopeLayout};

fn dims<const D: usize>(tensor: &CubeTensor) -> [usize; D] {
    let shape = tensor.meta.shape();
    std::array::from_fn(|i| shape[i])
}

/// Bytes in use and bytes set aside for the calling thread's stream.
pub(super) fn memory(client: &Client) -> (u64, u64) {
    let usage = client.memory_report(MemoryScope::CurrentStream).usage();
    (usage.bytes_in_use, usage.bytes_reserved)
}

fn is_general() -> bool {
    kernels() == Kernels::General
}

/// A weight in one piece, and what its words are.
fn weight(tensor: CubeTensor) -> (CubeTensor, Words) {
    let words = match tensor.dtype {
        DType::F32 => Words::F32,
        DType::BF16 => Words::Bf16,
        other => panic!("expected F32 or BF16 weights, found {other:?}"),
    };
    let [_, inputs] = dims(&tensor);
    assert!(inputs.is_multiple_of(words.values()), "rows of whole words, found {inputs} bf16");
    (whole(tensor), words)
}

fn linear(x: &CubeTensor, weights: MatrixOf<CubeBackend>, bias: Bias<CubeBackend>) -> CubeTensor {
    let (weight, words) = weight(weights.floats());
    let bias = match bias {
        Bias::None => None,
        Bias::Some(bias) => Some(whole(bias)),
    };
    linear::linear(x, &weight, words, bias.as_ref())
}

/// The tensor to be written in place: itself if it is whole and nobody else holds it, else a copy.
fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = whole(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

impl RowInvariantOps for CubeBackend {
    fn row_invariance(probe: CubeTensor) -> bool {
        drop(probe);
        !is_general()
    }

    fn row_linear(x: CubeTensor, weight: MatrixOf<Self>, bias: Bias<Self>) -> CubeTensor {
        if is_general() {
            return General::<Self>::linear(x, weight.floats(), bias);
        }
        linear(&whole(x), weight, bias)
    }

    fn row_linear3(
        x: CubeTensor,
        weight_a: MatrixOf<Self>,
        weight_b: MatrixOf<Self>,
        weight_c: MatrixOf<Self>,
        bias_a: Bias<Self>,
        bias_b: Bias<Self>,
        bias_c: Bias<Self>,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        if is_general() {
            let weights = [weight_a, weight_b, weight_c].map(MatrixOf::floats);
            let biases = [bias_a, bias_b, bias_c];
            return General::<Self>::linear3(x, weights, biases);
        }
        let x = whole(x);
        (linear(&x, weight_a, bias_a), linear(&x, weight_b, bias_b), linear(&x, weight_c, bias_c))
    }

    fn row_gated(
        x: CubeTensor,
        gate: MatrixOf<Self>,
        gate_bias: Bias<Self>,
        up: MatrixOf<Self>,
        up_bias: Bias<Self>,
        activation: Activation,
    ) -> CubeTensor {
        if is_general() {
            return General::<Self>::gated(
                x,
                (gate.floats(), gate_bias),
                (up.floats(), up_bias),
                activation,
            );
        }
        let x = whole(x);
        rowwise::glu(&linear(&x, gate, gate_bias), &linear(&x, up, up_bias), activation)
    }

    fn row_glu(gate: CubeTensor, up: CubeTensor, activation: Activation) -> CubeTensor {
        if is_general() {
            return General::<Self>::glu(gate, up, activation);
        }
        rowwise::glu(&whole(gate), &whole(up), activation)
    }

    fn row_softcap(x: CubeTensor, cap: f32) -> CubeTensor {
        if is_general() {
            return General::<Self>::softcap(x, cap);
        }
        rowwise::softcap(&whole(x), cap)
    }

    fn row_rms_norm(x: CubeTensor, weight: CubeTensor, epsilon: f64, form: RmsForm) -> CubeTensor {
        if is_general() {
            return General::<Self>::rms_norm(x, weight, epsilon, form);
        }
        rowwise::rms_norm(&whole(x), &whole(weight), epsilon as f32, form)
    }

    fn row_add_rms_norm(
        residual: CubeTensor,
        x: CubeTensor,
        weight: CubeTensor,
        epsilon: f64,
        form: RmsForm,
    ) -> (CubeTensor, CubeTensor) {
        if is_general() {
            return General::<Self>::add_rms_norm(residual, x, weight, epsilon, form);
        }
        rowwise::add_rms_norm(&whole(residual), &whole(x), &whole(weight), epsilon as f32, form)
    }

    fn row_layer_norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        epsilon: f64,
    ) -> CubeTensor {
        if is_general() {
            return General::<Self>::layer_norm(x, weight, bias, epsilon);
        }
        rowwise::layer_norm(&whole(x), &whole(weight), &whole(bias), epsilon as f32)
    }

    fn row_rope(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, layout: RopeLayout) -> CubeTensor {
        if is_general() {
            return General::<Self>::rope(x, cos, sin, layout);
        }
        rowwise::rope(&whole(x), &whole(cos), &whole(sin), layout)
    }

    fn row_embedding(table: MatrixOf<Self>, ids: CubeTensor) -> CubeTensor {
        let table = table.floats();
        if is_general() {
            return General::<Self>::embedding(table, ids);
        }
        let ids = match ids.dtype {
            DType::I32 | DType::U32 => ids,
            _ => Self::int_cast(ids, IntDType::I32),
        };
        let (table, words) = weight(table);
        rowwise::embedding(&table, words, &whole(ids))
    }

    fn row_append(cache: CubeTensor, new: CubeTensor, at: usize) -> CubeTensor {
        if is_general() {
            return General::<Self>::append(cache, new, at);
        }
        let cache = owned(cache);
        rowwise::append(&cache, &whole(new), at);
        cache
    }

    fn row_attention(
        query: CubeTensor,
        key: CubeTensor,
        value: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        at: usize,
        rule: AttentionRule,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        if is_general() {
            return General::<Self>::append_and_attend(
                query,
                [key, value],
                [keys, values],
                at,
                rule,
            );
        }
        let keys = Self::row_append(keys, key, at);
        let values = Self::row_append(values, value, at);
        let mixed = attention::attention(&whole(query), [&keys, &values], at, rule);
        (mixed, keys, values)
    }
}
