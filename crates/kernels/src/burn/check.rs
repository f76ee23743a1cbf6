//! Is this device to be trusted? Small fixed problems, solved there and on the CPU.
//!
//! Drivers and shader compilers have bugs that return wrong numbers without a word. So before a
//! device is used, every kernel runs on it once, on sizes that meet the edges of its tiles, and is
//! compared with the same operation on slices; rows alone are compared with rows together, bit for
//! bit.

use ::burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::bf16;

use crate::{
    attention::{self, AttentionRule, AttentionSpan},
    embedding::embedding,
    glu::{Activation, glu},
    linear::linear,
    norm::{RmsForm, layer_norm, rms_norm},
    rope::{RopeLayout, rope},
    softcap::softcap,
    weight::Weight,
};

/// The largest difference that passes, for values of size 1; it grows with the value.
pub const TOLERANCE: f32 = 1e-4;

/// Why a device is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// The device computed something else.
    #[error(
        "{operation}: the CPU computes {expected:e} and the device {found:e} at value {index}, \
         expected a difference of at most {tolerance:e}"
    )]
    Wrong {
        /// The operation.
        operation: &'static str,
        /// Where in the result.
        index: usize,
        /// What the CPU computes.
        expected: f32,
        /// What the device computes.
        found: f32,
        /// The difference that would have passed.
        tolerance: f32,
    },
    /// A row alone has other bits than the same row in company.
    #[error("{operation}: a row alone is {alone:e} and in company {together:e} at value {index}")]
    Leans {
        /// The operation.
        operation: &'static str,
        /// Where in the result.
        index: usize,
        /// What it is alone.
        alone: f32,
        /// What it is in company.
        together: f32,
    },
    /// The device computed nothing.
    #[error("{operation}: {message}")]
    Failed {
        /// The operation.
        operation: &'static str,
        /// What it said.
        message: String,
    },
}

/// Solves every problem on the device, with the kernels of this crate whatever is chosen.
///
/// # Errors
/// At the first one that is solved wrongly.
pub fn check(device: &Device) -> Result<(), DeviceFault> {
    super::with_kernels(super::Kernels::RowInvariant, || {
        check_linear(device, super::linear)?;
        check_norms(device)?;
        check_values(device)?;
        check_attention(device)
    })
}

/// Values in [−1, 1), the same every time.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

fn host<const D: usize>(
    operation: &'static str,
    tensor: Tensor<D>,
) -> Result<Vec<f32>, DeviceFault> {
    let values = tensor.try_into_vec_as();
    values.map_err(|error| DeviceFault::Failed { operation, message: error.to_string() })
}

fn near(operation: &'static str, found: &[f32], expected: &[f32]) -> Result<(), DeviceFault> {
    if found.len() != expected.len() {
        let message = format!("expected {} values, found {}", expected.len(), found.len());
        return Err(DeviceFault::Failed { operation, message });
    }
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let tolerance = TOLERANCE * expected.abs().max(1.0);
        // A NaN is near nothing.
        if (found - expected).abs() <= tolerance {
            continue;
        }
        return Err(DeviceFault::Wrong { operation, index, expected, found, tolerance });
    }
    Ok(())
}

fn same(operation: &'static str, alone: &[f32], together: &[f32]) -> Result<(), DeviceFault> {
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    match alone.iter().zip(together).position(differs) {
        None => Ok(()),
        Some(index) => Err(DeviceFault::Leans {
            operation,
            index,
            alone: alone[index],
            together: together[index],
        }),
    }
}

/// A linear map on tensors: x, weight, bias.
type Linear = fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>;

/// Linear maps of f32 and bf16 weights, by `run`: any kernel that claims to be one can be tried.
///
/// # Errors
/// If it solves one of the problems wrongly.
pub fn check_linear(device: &Device, run: Linear) -> Result<(), DeviceFault> {
    // Rows beyond a tile, outputs beyond one, inputs that are 8·odd and that are no whole vectors.
    for (operation, rows, inputs, outputs, narrow) in [
        ("linear, bf16", 9, 1112, 21, true),
        ("linear, bf16", 3, 70, 21, true),
        ("linear, f32", 9, 132, 17, false),
        ("linear, f32", 2, 7, 17, false),
    ] {
        let x = noise(rows * inputs, 1);
        let wide: Vec<f32> = noise(outputs * inputs, 2);
        let bits: Vec<bf16> = wide.iter().map(|&value| bf16::from_f32(value)).collect();
        let bias = noise(outputs, 3);
        let mut expected = vec![0.0; rows * outputs];
        let weight = if narrow { Weight::Bf16(&bits) } else { Weight::F32(&wide) };
        linear(&x, inputs, weight, Some(&bias), &mut expected);
        let weight = if narrow {
            let bytes: Vec<u8> = bits.iter().flat_map(|value| value.to_ne_bytes()).collect();
            super::weights(bytes, [outputs, inputs], DType::BF16, device)
        } else {
            tensor(&wide, [outputs, inputs], device)
        };
        let bias = tensor(&bias, [outputs], device);
        let run = |x: &[f32]| {
            let x = tensor(x, [x.len() / inputs, inputs], device);
            host(operation, run(x, weight.clone(), Some(bias.clone())))
        };
        let together = run(&x)?;
        near(operation, &together, &expected)?;
        for row in [0, rows - 1] {
            let alone = run(&x[row * inputs..(row + 1) * inputs])?;
            same(operation, &alone, &together[row * outputs..(row + 1) * outputs])?;
        }
    }
    Ok(())
}

fn check_norms(device: &Device) -> Result<(), DeviceFault> {
    let (rows, width) = (3, 133);
    let [x, residual] = [4, 5].map(|seed| noise(rows * width, seed));
    let [weight, bias] = [6, 7].map(|seed| noise(width, seed));
    let on = |values: &[f32]| tensor(values, [rows, width], device);
    let vector = |values: &[f32]| tensor(values, [width], device);
    let mut expected = vec![0.0; rows * width];
    for form in [RmsForm::Llama, RmsForm::Gemma] {
        rms_norm(&x, &weight, 1e-5, form, &mut expected);
        let found = super::rms_norm(on(&x), vector(&weight), 1e-5, form);
        near("rms_norm", &host("rms_norm", found)?, &expected)?;
    }
    let sums: Vec<f32> = residual.iter().zip(&x).map(|(r, x)| r + x).collect();
    rms_norm(&sums, &weight, 1e-5, RmsForm::Llama, &mut expected);
    let (sum, found) =
        super::add_rms_norm(on(&residual), on(&x), vector(&weight), 1e-5, RmsForm::Llama);
    near("add_rms_norm", &host("add_rms_norm", sum)?, &sums)?;
    near("add_rms_norm", &host("add_rms_norm", found)?, &expected)?;
    layer_norm(&x, &weight, &bias, 1e-5, &mut expected);
    let found = super::layer_norm(on(&x), vector(&weight), vector(&bias), 1e-5);
    near("layer_norm", &host("layer_norm", found)?, &expected)
}

fn check_values(device: &Device) -> Result<(), DeviceFault> {
    let count = 301;
    let [gate, up] = [8, 9].map(|seed| noise(count, seed));
    // Gates of the size where activations saturate as well.
    let gate: Vec<f32> = gate.iter().map(|value| 20.0 * value).collect();
    let mut expected = vec![0.0; count];
    for activation in [Activation::Silu, Activation::GeluTanh] {
        glu(activation, &gate, &up, &mut expected);
        let [gate, up] = [&gate, &up].map(|values| tensor(values, [count], device));
        let found = super::glu(gate, up, activation);
        near("glu", &host("glu", found)?, &expected)?;
    }
    for cap in [1.5, 30.0] {
        let mut expected = gate.clone();
        softcap(&mut expected, cap);
        let found = super::softcap(tensor(&gate, [count], device), cap);
        near("softcap", &host("softcap", found)?, &expected)?;
    }

    let (rows, heads, dim, half) = (3, 2, 11, 4);
    let x = noise(rows * heads * dim, 10);
    let [cos, sin] = [11, 12].map(|seed| noise(rows * half, seed));
    for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
        let mut expected = x.clone();
        rope(&mut expected, heads, dim, &cos, &sin, layout);
        let angle = |values: &[f32]| tensor(values, [rows, half], device);
        let x = tensor(&x, [rows, heads, dim], device);
        let found = super::rope(x, angle(&cos), angle(&sin), layout);
        near("rope", &host("rope", found)?, &expected)?;
    }

    let (rows, width) = (5, 6);
    let table: Vec<bf16> = noise(rows * width, 13).into_iter().map(bf16::from_f32).collect();
    let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let mut expected = vec![0.0; 3 * width];
    embedding(Weight::Bf16(&table), width, &[4, 0, 3], &mut expected);
    let table = super::weights(bytes, [rows, width], DType::BF16, device);
    let ids = Tensor::<1, Int>::from_data([4, 0, 3], device);
    near("embedding", &host("embedding", super::embedding(table, ids))?, &expected)
}

fn check_attention(device: &Device) -> Result<(), DeviceFault> {
    let operation = "attention";
    let (held, rows, capacity) = (67, 3, 80);
    let plain = AttentionRule {
        heads: 4,
        kv_heads: 2,
        head_dim: 12,
        scale: 0.5,
        window: None,
        softcap: None,
    };
    let [query_width, width] = [plain.heads, plain.kv_heads].map(|heads| heads * plain.head_dim);
    let len = held + rows;
    let [new_keys, new_values] = [14, 15].map(|seed| noise(len * width, seed));
    let query: Vec<f32> = noise(rows * query_width, 16).iter().map(|value| 3.0 * value).collect();
    let store = |new: &[f32]| {
        let mut store = vec![f32::NAN; capacity * width];
        attention::append(&mut store, new, plain.kv_heads, plain.head_dim, 0);
        store
    };
    let (keys, values) = (store(&new_keys), store(&new_values));
    let span = AttentionSpan { start: 0, rows, len, capacity, keys: &keys, values: &values };
    for rule in [
        plain,
        AttentionRule { window: Some(66), ..plain },
        AttentionRule { softcap: Some(1.5), ..plain },
    ] {
        let mut expected = vec![0.0; rows * query_width];
        attention::attention(&rule, &query, &[span], &mut expected);
        // The first positions are in the cache before; the rest goes in row by row, or at once.
        let part = |new: &[f32], at: usize, n: usize, width: usize, heads: usize| {
            let own = &new[at * width..(at + n) * width];
            tensor(own, [n, heads, rule.head_dim], device)
        };
        let run = |rows_at_once: usize| -> Result<Vec<f32>, DeviceFault> {
            let empty = || {
                let shape = [rule.kv_heads, capacity, rule.head_dim];
                tensor(&vec![f32::NAN; capacity * width], shape, device)
            };
            let first =
                |new: &[f32]| super::append(empty(), part(new, 0, held, width, rule.kv_heads), 0);
            let mut stores = [first(&new_keys), first(&new_values)];
            let mut out = Vec::new();
            for row in (0..rows).step_by(rows_at_once) {
                let at = held + row;
                let new = [&new_keys, &new_values]
                    .map(|new| part(new, at, rows_at_once, width, rule.kv_heads));
                let query = part(&query, row, rows_at_once, query_width, rule.heads);
                let found;
                (found, stores) = super::attention(query, new, stores, at, rule);
                out.extend(host(operation, found)?);
            }
            Ok(out)
        };
        let together = run(rows)?;
        near(operation, &together, &expected)?;
        same(operation, &run(1)?, &together)?;
    }
    Ok(())
}
