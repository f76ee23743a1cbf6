//! The CubeCL kernels on whatever wgpu offers, software Vulkan too: near the CPU over odd shapes, rows
//! alone = rows together to the last bit, the same bits again, and no memory that grows. A machine
//! without an adapter fails these tests: who builds for wgpu has one.

use std::sync::OnceLock;

use burn::{
    backend::{DispatchDevice, Wgpu},
    tensor::{DType, Device, DeviceType, Int, Tensor, TensorData},
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use draftproof_kernels::{
    attention::{self, AttentionRule, AttentionSpan},
    burn::{
        self as kernels, General, Layers, Matrix,
        check::{self, DeviceFault},
    },
    glu::Activation,
    layers::{Affine, Layer, Norm, Rotated},
    linear,
    norm::{self, RmsForm},
    rope::RopeLayout,
    softcap::softcap,
    weight::Weight,
};
use half::bf16;

fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let first = || Device::enumerate(DeviceType::Wgpu).into_iter().next().expect("an adapter");
    DEVICE.get_or_init(first).clone()
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn on<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &device())
}

fn tensor<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    on(&noise(shape.iter().product(), seed), shape)
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().expect("f32 values")
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    host(tensor).into_iter().map(f32::to_bits).collect()
}

/// Within 1e-4, relative above 1; a NaN is near nothing.
fn assert_near(found: &[f32], expected: &[f32], about: &str) {
    assert_eq!(found.len(), expected.len(), "{about}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= check::TOLERANCE * e.abs().max(1.0), "{about}: {i}: {f} {e}");
    }
}

fn near<const D: usize>(a: Tensor<D>, b: Tensor<D>) {
    assert_near(&host(a), &host(b), "general");
}

fn cube<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    tensor.try_into_primitive::<Wgpu>().expect("a cube tensor")
}

fn back<const D: usize>(tensor: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Wgpu>(tensor)
}

#[test]
fn the_device_passes_its_check_and_keeps_the_promise() {
    check::check(&device()).expect("right numbers");
    assert!(kernels::row_invariant(&device()));
    assert!(!kernels::reads_blocks(&device()));
    assert!(kernels::largest_tensor(&device()).is_some_and(|bytes| bytes >= 1 << 27));
}

/// Linear maps that are wrong on purpose: each output misses its last product; or is right for one row
/// and not for others.
#[cube(launch)]
fn wrong_kernel(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    inputs: usize,
    outputs: usize,
    missing: usize,
) {
    if ABSOLUTE_POS < out.len() {
        let (row, output) = (ABSOLUTE_POS / outputs, ABSOLUTE_POS % outputs);
        let mut sum = 0.0f32;
        for i in 0..inputs - missing {
            sum += x[row * inputs + i] * weight[output * inputs + i];
        }
        out[ABSOLUTE_POS] = sum + bias[output];
    }
}

fn wrong(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    missing: usize,
    shift: f32,
) -> Tensor<2> {
    let [rows, inputs] = x.dims();
    let [outputs, _] = weight.dims();
    // The kernel reads f32, which a table of bf16 gives row by row.
    let ids = Tensor::<1, Int>::arange(0..outputs as i64, &device());
    let weight = cube(kernels::embedding(weight, ids));
    let bias = cube(bias.expect("a bias"));
    let out = cube(Tensor::<2>::zeros([rows, outputs], &device()));
    wrong_kernel::launch(
        &weight.client.clone(),
        CubeCount::Static((rows * outputs).div_ceil(64) as u32, 1, 1),
        CubeDim::new_1d(64),
        cube(x).into_buffer_arg(),
        weight.into_buffer_arg(),
        bias.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        inputs,
        outputs,
        missing,
    );
    back(out) + shift
}

#[test]
fn a_kernel_that_is_wrong_on_purpose_is_refused_with_both_numbers() {
    let right = check::check_linear(&device(), |x, w, b| wrong(x, w, b, 0, 0.0));
    assert_eq!(right, Ok(()));
    let fault = check::check_linear(&device(), |x, w, b| wrong(x, w, b, 1, 0.0));
    let Err(fault @ DeviceFault::Wrong { .. }) = fault else { panic!("{fault:?}") };
    let DeviceFault::Wrong { expected, found, tolerance, .. } = fault else { unreachable!() };
    assert!((expected - found).abs() > tolerance);
    let message = fault.to_string();
    assert!(message.contains(&format!("{expected:e}")), "{message}");
    assert!(message.contains(&format!("{found:e}")), "{message}");
    // Within the tolerance, but not the same bits alone and in company.
    let fault = check::check_linear(&device(), |x, w, b| {
        let shift = if x.dims()[0] == 1 { 2e-5 } else { 0.0 };
        wrong(x, w, b, 0, shift)
    });
    assert!(matches!(fault, Err(DeviceFault::Leans { .. })), "{fault:?}");
    // Not a number is not near.
    let fault = check::check_linear(&device(), |x, w, b| wrong(x, w, b, 0, f32::NAN));
    assert!(matches!(fault, Err(DeviceFault::Wrong { .. })), "{fault:?}");
}

#[test]
fn linear_maps_of_odd_shapes_are_near_the_cpu_and_rows_alone_are_rows_together() {
    let mut seed = 0;
    for (inputs, outputs) in
        [(8, 1), (24, 63), (40, 65), (72, 100), (136, 33), (70, 17), (33, 5), (1, 3), (1112, 129)]
    {
        for narrow in [true, false] {
            seed += 10;
            let wide = noise(outputs * inputs, seed);
            let small: Vec<bf16> = wide.iter().map(|&v| bf16::from_f32(v)).collect();
            let bias = noise(outputs, seed + 1);
            let weight = if narrow {
                let bytes: Vec<u8> = small.iter().flat_map(|v| v.to_ne_bytes()).collect();
                kernels::weights(bytes, [outputs, inputs], DType::BF16, &device())
            } else {
                on(&wide, [outputs, inputs])
            };
            for rows in (1..=9).chain([17, 300]) {
                let x = noise(rows * inputs, seed + 2);
                let mut expected = vec![0.0; rows * outputs];
                let host_weight = if narrow { Weight::Bf16(&small) } else { Weight::F32(&wide) };
                linear::linear(&x, inputs, host_weight, Some(&bias), &mut expected);
                let run = |x: &[f32]| {
                    let x = on(x, [x.len() / inputs, inputs]);
                    kernels::linear(x, weight.clone(), Some(on(&bias, [outputs])))
                };
                let about = format!("{rows} rows, {inputs} inputs, {outputs} outputs, {narrow}");
                let together = bits(run(&x));
                let values: Vec<f32> = together.iter().map(|&b| f32::from_bits(b)).collect();
                assert_near(&values, &expected, &about);
                assert_eq!(bits(run(&x)), together, "again: {about}");
                for row in [0, rows / 2, rows - 1] {
                    let alone = bits(run(&x[row * inputs..(row + 1) * inputs]));
                    assert_eq!(alone, together[row * outputs..(row + 1) * outputs], "{about}");
                }
            }
        }
    }
}

#[test]
fn views_and_tables_are_read_as_they_are() {
    let x = tensor([5, 48], 1);
    let weight = tensor([20, 24], 2);
    let y = kernels::linear(x.clone().narrow(1, 24, 24), weight.clone(), None);
    let copy = on(&host(x.narrow(1, 24, 24)), [5, 24]);
    assert_eq!(bits(y), bits(kernels::linear(copy, weight, None)));
    for width in [6, 5] {
        let values: Vec<bf16> = noise(7 * width, 3).into_iter().map(bf16::from_f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let table = kernels::weights(bytes, [7, width], DType::BF16, &device());
        // Rows of an odd number of values are no whole words, so they are widened.
        assert_eq!(table.dtype(), if width == 6 { DType::BF16 } else { DType::F32 });
        let rows = kernels::embedding(table, Tensor::from_data([6, 0, 3], &device()));
        let wide: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
        let row = |i: usize| wide[i * width..(i + 1) * width].to_vec();
        assert_eq!(host(rows), [row(6), row(0), row(3)].concat());
    }
}

#[test]
fn joined_maps_are_their_parts() {
    let x = tensor([3, 32], 1);
    let w = [(24, 2), (8, 3), (9, 4)].map(|(rows, seed)| tensor([rows, 32], seed));
    let b = tensor([8], 5);
    let [p, q, r] = kernels::linear3(x.clone(), w.clone(), [None, Some(b.clone()), None]);
    let [wp, wq, wr] = w;
    assert_eq!(bits(p), bits(kernels::linear(x.clone(), wp, None)));
    assert_eq!(bits(q), bits(kernels::linear(x.clone(), wq, Some(b))));
    assert_eq!(bits(r), bits(kernels::linear(x.clone(), wr, None)));
    let (gate, up) = (tensor([40, 32], 6), tensor([40, 32], 7));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let joint = kernels::gated(x.clone(), (gate.clone(), None), (up.clone(), None), activation);
        let [g, u] = [&gate, &up].map(|w| kernels::linear(x.clone(), w.clone(), None));
        let apart = kernels::glu(g.clone(), u.clone(), activation);
        assert_eq!(bits(joint), bits(apart.clone()));
        near(apart, back(General::<Wgpu>::glu(cube(g), cube(u), activation)));
    }
}

#[test]
fn norms_are_near_the_cpu_and_rows_alone_are_rows_together() {
    for width in [1, 33, 64, 130, 1025] {
        let (rows, epsilon) = (5, 1e-5);
        let [x, residual] = [1, 2].map(|seed| noise(rows * width, seed));
        let [weight, bias] = [3, 4].map(|seed| noise(width, seed));
        let [tx, tr] = [&x, &residual].map(|values| on(values, [rows, width]));
        let [tw, tb] = [&weight, &bias].map(|values| on(values, [width]));
        let mut expected = vec![0.0; rows * width];
        for form in [RmsForm::Llama, RmsForm::Gemma] {
            norm::rms_norm(&x, &weight, epsilon as f32, form, &mut expected);
            let y = kernels::rms_norm(tx.clone(), tw.clone(), epsilon, form);
            assert_near(&host(y.clone()), &expected, "rms_norm");
            let alone = kernels::rms_norm(tx.clone().narrow(0, 2, 1), tw.clone(), epsilon, form);
            assert_eq!(bits(alone), bits(y.narrow(0, 2, 1)));
            let sum = tr.clone() + tx.clone();
            let normed = kernels::rms_norm(sum.clone(), tw.clone(), epsilon, form);
            let (s, n) = kernels::add_rms_norm(tr.clone(), tx.clone(), tw.clone(), epsilon, form);
            assert_eq!((bits(s), bits(n)), (bits(sum), bits(normed)));
        }
        norm::layer_norm(&x, &weight, &bias, epsilon as f32, &mut expected);
        let y = kernels::layer_norm(tx.clone(), tw.clone(), tb.clone(), epsilon);
        // One value less its mean is 0, of which nothing but the bias is left.
        assert_near(&host(y.clone()), &expected, "layer_norm");
        let alone = kernels::layer_norm(tx.narrow(0, 4, 1), tw, tb, epsilon);
        assert_eq!(bits(alone), bits(y.narrow(0, 4, 1)));
    }
    // Three dimensions: the norm of every head.
    let heads = tensor([2, 3, 8], 5);
    let y = kernels::rms_norm(heads.clone(), tensor([8], 6), 1e-5, RmsForm::Llama);
    let flat = kernels::rms_norm(heads.reshape([6, 8]), tensor([8], 6), 1e-5, RmsForm::Llama);
    assert_eq!(bits(y), bits(flat));
}

#[test]
fn softcaps_are_near_the_cpu_and_rows_alone_are_rows_together() {
    let (rows, width) = (3, 133);
    // From well inside the bound to where the exponential overflows.
    let x: Vec<f32> = noise(rows * width, 1).into_iter().map(|v| v * v * v * 5000.0).collect();
    for cap in [1.5, 30.0] {
        let mut expected = x.clone();
        softcap(&mut expected, cap);
        let y = kernels::softcap(on(&x, [rows, width]), cap);
        assert_near(&host(y.clone()), &expected, "softcap");
        let alone = kernels::softcap(on(&x[width..2 * width], [1, width]), cap);
        assert_eq!(bits(alone), bits(y.narrow(0, 1, 1)));
    }
}

#[test]
fn rotations_are_near_burns_in_both_layouts() {
    for (dim, half) in [(8, 4), (11, 3)] {
        let x = tensor([4, 3, dim], 1);
        let (cos, sin) = (tensor([4, half], 2), tensor([4, half], 3));
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let y = kernels::rope(x.clone(), cos.clone(), sin.clone(), layout);
            let [x, cos, sin] = [cube(x.clone()), cube(cos.clone()), cube(sin.clone())];
            near(y, back(General::<Wgpu>::rope(x, cos, sin, layout)));
        }
    }
}

/// The whole text at once, on the CPU.
fn attention_on_cpu(rule: &AttentionRule, len: usize, new: &[Vec<f32>; 3]) -> Vec<f32> {
    let [query, keys, values] = new;
    let store = |new: &[f32]| {
        let mut store = vec![f32::NAN; len * rule.kv_heads * rule.head_dim];
        attention::append(&mut store, new, rule.kv_heads, rule.head_dim, 0);
        store
    };
    let (keys, values) = (store(keys), store(values));
    let span =
        AttentionSpan { start: 0, rows: len, len, capacity: len, keys: &keys, values: &values };
    let mut out = vec![0.0; query.len()];
    attention::attention(rule, query, &[span], &mut out);
    out
}

/// In pieces of these sizes, on the device, over a cache that is NaN where nothing was written.
fn attention_in_pieces(rule: &AttentionRule, pieces: &[usize], new: &[Vec<f32>; 3]) -> Vec<f32> {
    let AttentionRule { heads, kv_heads, head_dim, .. } = *rule;
    let capacity = pieces.iter().sum::<usize>() + 3;
    let empty =
        || on(&vec![f32::NAN; kv_heads * capacity * head_dim], [kv_heads, capacity, head_dim]);
    let (mut stores, mut at, mut out) = ([empty(), empty()], 0, Vec::new());
    for &n in pieces {
        let part = |values: &[f32], heads: usize| {
            let width = heads * head_dim;
            on(&values[at * width..(at + n) * width], [n, heads, head_dim])
        };
        let kv = [part(&new[1], kv_heads), part(&new[2], kv_heads)];
        let y;
        (y, stores) = kernels::attention(part(&new[0], heads), kv, stores, at, *rule);
        out.extend(host(y));
        at += n;
    }
    out
}

#[test]
fn attention_in_any_pieces_is_attention_at_once_and_near_the_cpu() {
    let plain = AttentionRule {
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: None,
        softcap: None,
    };
    let rules = [
        plain,
        AttentionRule { window: Some(1), ..plain },
        AttentionRule { window: Some(70), ..plain },
        AttentionRule { softcap: Some(1.5), ..plain },
        AttentionRule { heads: 3, kv_heads: 1, head_dim: 6, ..plain },
        AttentionRule { heads: 2, kv_heads: 2, head_dim: 80, ..plain },
    ];
    for rule in rules {
        for prompt in [1, 2, 63, 64, 65, 127, 129, 300] {
            let widths = 1..=9_usize;
            let mut pieces = vec![prompt];
            pieces.extend(widths);
            let len: usize = pieces.iter().sum();
            let width = |heads: usize| len * heads * rule.head_dim;
            let query: Vec<f32> =
                noise(width(rule.heads), 1).into_iter().map(|v| 3.0 * v).collect();
            let [keys, values] = [2, 3].map(|seed| noise(width(rule.kv_heads), seed));
            let new = [query, keys, values];
            let about = format!("{rule:?}, prompt of {prompt}");
            let found = attention_in_pieces(&rule, &pieces, &new);
            assert_near(&found, &attention_on_cpu(&rule, len, &new), &about);
            let whole = attention_in_pieces(&rule, &[len], &new);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&found) == bits(&whole), "{about}");
        }
    }
}

/// A layer with biases, norms of heads and norms behind its blocks: on this device nearly what it is on
/// the CPU, and the same bits for rows alone.
#[test]
fn layers_are_near_the_cpu_and_rows_alone_are_rows_together() {
    let rule = AttentionRule {
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: None,
        softcap: None,
    };
    let (width, inner, at, n) = (24, 40, 3, 5);
    let run = |device: &Device, pieces: &[usize]| -> [Vec<f32>; 2] {
        fn here<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
            let values = noise(shape.iter().product(), seed);
            Tensor::from_data(TensorData::new(values, shape), device)
        }
        let norm = |width: usize, seed: u64| Norm {
            weight: here([width], seed, device) + 1.0,
            epsilon: 1e-5,
            form: RmsForm::Llama,
        };
        let affine = |outputs: usize, inputs: usize, seed: u64| Affine {
            weight: Matrix::from(here([outputs, inputs], seed, device) * 0.3),
            bias: Some(here([outputs], seed + 50, device)),
        };
        let (query, kv) = (rule.heads * rule.head_dim, rule.kv_heads * rule.head_dim);
        let layer = Layer {
            attention_norm: norm(width, 1),
            query: affine(query, width, 2),
            key: affine(kv, width, 3),
            value: affine(kv, width, 4),
            head_norms: Some([5, 6].map(|seed| norm(rule.head_dim, seed))),
            rotated: Some(Rotated { by: 0, layout: RopeLayout::HalfSplit }),
            rule,
            output: affine(width, query, 7),
            attention_out_norm: Some(norm(width, 8)),
            mlp_norm: norm(width, 9),
            gate: affine(inner, width, 10),
            up: affine(inner, width, 11),
            down: affine(width, inner, 12),
            activation: Activation::Silu,
            mlp_out_norm: None,
        };
        let layers = Layers::new(&[layer], Some(&norm(width, 13)));
        let x = here([n, width], 60, device);
        let angles = [65, 66].map(|seed| here([n, rule.head_dim / 2], seed, device));
        let mut caches = vec![[80, 81].map(|seed| here([2, 64, 16], seed, device))];
        let (mut done, mut rows) = (0, Vec::new());
        for &piece in pieces {
            let part = |t: &Tensor<2>| t.clone().narrow(0, done, piece);
            let rotations = [angles.each_ref().map(part)];
            let (y, written) = kernels::layers(part(&x), &layers, &rotations, caches, at + done);
            (caches, done) = (written, done + piece);
            rows.extend(host(y));
        }
        let [keys, _] = caches.remove(0);
        [rows, host(keys)]
    };
    let whole = run(&device(), &[n]);
    let cpu = run(&Device::flex(), &[n]);
    for (found, expected) in whole.iter().zip(&cpu) {
        assert_near(found, expected, "layers");
    }
    let same = |a: &[Vec<f32>; 2], b: &[Vec<f32>; 2]| {
        let bits = |x: &[Vec<f32>; 2]| -> Vec<u32> {
            x.iter().flatten().map(|value| value.to_bits()).collect()
        };
        assert_eq!(bits(a), bits(b));
    };
    same(&run(&device(), &[1; 5]), &whole);
    same(&run(&device(), &[2, 3]), &whole);
}

#[test]
fn a_cache_that_somebody_else_holds_is_copied() {
    let cache = tensor([2, 8, 4], 1);
    let before = bits(cache.clone());
    let new = tensor([3, 2, 4], 2);
    let changed = kernels::append(cache.clone(), new.clone(), 4);
    assert_eq!(bits(cache), before);
    let changed = host(changed);
    for (row, head, d) in [(0, 0, 0), (2, 1, 3), (1, 0, 2)] {
        let expected = host(new.clone())[(row * 2 + head) * 4 + d];
        assert_eq!(changed[(head * 8 + 4 + row) * 4 + d], expected);
    }
    assert_eq!(changed[0].to_bits(), before[0]);
}

#[test]
fn a_device_knows_its_own_memory() {
    let before = kernels::memory(&device()).expect("wgpu counts");
    let held = Tensor::<1>::zeros([1 << 20], &device());
    assert!(matches!(device().as_dispatch(), DispatchDevice::Cube(_)));
    assert_eq!(host(held.clone().narrow(0, 5, 1)), [0.0]);
    let after = kernels::memory(&device()).expect("wgpu counts");
    assert!(after.1 >= before.1 && after.0 >= 4 << 20, "{before:?} {after:?}");
    drop(held);
}
