//! The kernels through burn tensors on the Flex device: the same bits as on slices, rows alone = rows
//! together, nothing copied that should not be, and the plain burn bodies agree nearly.

use burn::{
    backend::Flex,
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use draftproof_kernels::{
    attention::AttentionRule,
    burn::{self as kernels, Bias, General, Kernels, Layers, Matrix, with_kernels},
    glu::Activation,
    layers::{Affine, Layer, Norm, Rotated},
    map::{Aligned, Map},
    norm::RmsForm,
    quant::{BlockFormat, Blocks, dequantise},
    rope::RopeLayout,
};
use half::{bf16, f16};

fn device() -> Device {
    Device::flex()
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

fn tensor<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let values = noise(shape.iter().product(), seed);
    Tensor::from_data(TensorData::new(values, shape), &device())
}

fn narrow_bytes(count: usize, seed: u64) -> Vec<u8> {
    noise(count, seed).into_iter().flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().expect("f32 values")
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    host(tensor).into_iter().map(f32::to_bits).collect()
}

fn near<const D: usize>(a: Tensor<D>, b: Tensor<D>) {
    let worst: f32 = (a - b).abs().max().into_scalar();
    assert!(worst < 2e-5, "{worst}");
}

fn flex<const D: usize>(tensor: Tensor<D>) -> burn::backend::flex::FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("a flex tensor")
}

fn back<const D: usize>(tensor: burn::backend::flex::FlexTensor) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(tensor)
}

#[test]
fn flex_keeps_the_promise() {
    assert!(kernels::row_invariant(&device()));
}

#[test]
fn linear_maps_of_both_types_equal_rows_alone_and_nearly_burn() {
    let (n, input, output) = (9, 70, 45);
    let x = tensor([n, input], 1);
    let narrow =
        kernels::weights(narrow_bytes(output * input, 2), [output, input], DType::BF16, &device());
    assert_eq!(narrow.dtype(), DType::BF16);
    let wide = narrow.clone().cast(DType::F32);
    let bias = tensor([output], 3);
    let y = kernels::linear(x.clone(), narrow.clone(), Some(bias.clone()));
    assert_eq!(y.dims(), [n, output]);
    let same = kernels::linear(x.clone(), wide.clone(), Some(bias.clone()));
    assert_eq!(bits(y.clone()), bits(same));
    for row in 0..n {
        let alone =
            kernels::linear(x.clone().narrow(0, row, 1), narrow.clone(), Some(bias.clone()));
        assert_eq!(bits(alone), bits(y.clone().narrow(0, row, 1)));
    }
    near(y.clone(), x.clone().matmul(wide.clone().transpose()) + bias.clone().unsqueeze());
    let general = General::<Flex>::linear(flex(x), flex(narrow), Bias::Some(flex(bias)));
    near(y, back(general));
}

#[test]
fn joined_maps_are_their_parts() {
    let x = tensor([3, 32], 1);
    let w = [(24, 2), (8, 3), (9, 4)].map(|(rows, seed)| tensor([rows, 32], seed));
    let b = tensor([8], 5);
    let [p, q, r] = kernels::linear3(x.clone(), w.clone(), [None, Some(b.clone()), None]);
    let [wp, wq, wr] = w.clone();
    assert_eq!(bits(p), bits(kernels::linear(x.clone(), wp, None)));
    assert_eq!(bits(q), bits(kernels::linear(x.clone(), wq, Some(b))));
    assert_eq!(bits(r), bits(kernels::linear(x.clone(), wr, None)));
    let (gate, up) = (tensor([40, 32], 6), tensor([40, 32], 7));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let joint = kernels::gated(x.clone(), (gate.clone(), None), (up.clone(), None), activation);
        let [g, u] = [&gate, &up].map(|w| kernels::linear(x.clone(), w.clone(), None));
        let apart = kernels::glu(g.clone(), u.clone(), activation);
        assert_eq!(bits(joint), bits(apart.clone()));
        near(apart, back(General::<Flex>::glu(flex(g), flex(u), activation)));
    }
}

#[test]
fn bent_values_are_nearly_burns_and_shared_ones_stay() {
    let x = tensor([7, 45], 1) * 9.0;
    let before = bits(x.clone());
    let y = kernels::softcap(x.clone(), 3.0);
    assert_eq!(bits(x.clone()), before);
    near(y, back(General::<Flex>::softcap(flex(x), 3.0)));
}

#[test]
fn norms_are_nearly_burns_and_add_is_the_same_bits() {
    let (x, residual) = (tensor([5, 33], 1), tensor([5, 33], 2));
    let (weight, bias) = (tensor([33], 3), tensor([33], 4));
    for form in [RmsForm::Llama, RmsForm::Gemma] {
        let y = kernels::rms_norm(x.clone(), weight.clone(), 1e-5, form);
        let general = General::<Flex>::rms_norm(flex(x.clone()), flex(weight.clone()), 1e-5, form);
        near(y, back(general));
        let sum = residual.clone() + x.clone();
        let normed = kernels::rms_norm(sum.clone(), weight.clone(), 1e-5, form);
        let (s, n) = kernels::add_rms_norm(residual.clone(), x.clone(), weight.clone(), 1e-5, form);
        assert_eq!((bits(s), bits(n)), (bits(sum), bits(normed)));
    }
    let y = kernels::layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-5);
    let general = General::<Flex>::layer_norm(flex(x), flex(weight), flex(bias), 1e-5);
    near(y, back(general));
    // Three dimensions: the norm of every head.
    let heads = tensor([2, 3, 8], 5);
    let y = kernels::rms_norm(heads.clone(), tensor([8], 6), 1e-5, RmsForm::Llama);
    let flat = kernels::rms_norm(heads.reshape([6, 8]), tensor([8], 6), 1e-5, RmsForm::Llama);
    assert_eq!(bits(y), bits(flat));
}

#[test]
fn rotations_are_nearly_burns_in_both_layouts() {
    for (dim, half) in [(8, 4), (11, 3)] {
        let x = tensor([4, 3, dim], 1);
        let (cos, sin) = (tensor([4, half], 2), tensor([4, half], 3));
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let y = kernels::rope(x.clone(), cos.clone(), sin.clone(), layout);
            let [x, cos, sin] = [flex(x.clone()), flex(cos.clone()), flex(sin.clone())];
            near(y, back(General::<Flex>::rope(x, cos, sin, layout)));
        }
    }
}

#[test]
fn a_table_gives_its_rows_as_f32() {
    let table = kernels::weights(narrow_bytes(7 * 5, 1), [7, 5], DType::BF16, &device());
    let ids = Tensor::<1, Int>::from_data([6, 0, 3], &device());
    let rows = kernels::embedding(table.clone(), ids.clone());
    assert_eq!(rows.dtype(), DType::F32);
    assert_eq!(bits(rows), bits(table.cast(DType::F32).select(0, ids)));
}

fn rule() -> AttentionRule {
    AttentionRule { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, window: None, softcap: None }
}

struct Step {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
}

fn steps(n: usize) -> Step {
    Step {
        query: tensor([n, 4, 16], 1) * 3.0,
        key: tensor([n, 2, 16], 2),
        value: tensor([n, 2, 16], 3),
    }
}

fn caches() -> [Tensor<3>; 2] {
    [(); 2].map(|()| Tensor::full([2, 64, 16], f32::NAN, &device()))
}

#[test]
fn attention_in_any_pieces_is_attention_at_once_and_nearly_burns() {
    let all = steps(13);
    for rule in [
        rule(),
        AttentionRule { window: Some(4), ..rule() },
        AttentionRule { softcap: Some(1.5), ..rule() },
    ] {
        let run = |pieces: &[usize]| {
            let (mut caches, mut at, mut out) = (caches(), 0, Vec::new());
            for &n in pieces {
                let own = |t: &Tensor<3>| t.clone().narrow(0, at, n);
                let kv = [own(&all.key), own(&all.value)];
                let (y, back) = kernels::attention(own(&all.query), kv, caches, at, rule);
                (caches, at) = (back, at + n);
                out.extend(bits(y));
            }
            (out, caches)
        };
        let (whole, [keys, values]) = run(&[13]);
        assert_eq!(whole, run(&[1; 13]).0);
        assert_eq!(whole, run(&[5, 1, 7]).0);
        let (query, keys, values) = (flex(all.query.clone()), flex(keys), flex(values));
        let general: Tensor<2> = back(General::<Flex>::attention(query, keys, values, 0, rule));
        let whole = whole.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        near(Tensor::from_data(TensorData::new(whole, [13, 64]), &device()), general);
    }
}

/// A norm with weights about one.
fn norm(width: usize, seed: u64, form: RmsForm) -> Norm<Tensor<1>> {
    Norm { weight: tensor([width], seed) + 1.0, epsilon: 1e-5, form }
}

/// Layers of `width`, the second with all that a layer may have, the first with nothing that it need not.
fn some_layers(width: usize, inner: usize, layout: RopeLayout) -> [Layer<Matrix, Tensor<1>>; 2] {
    [false, true].map(|full| {
        let rule = match full {
            true => AttentionRule { window: Some(4), softcap: Some(1.5), ..rule() },
            false => rule(),
        };
        let form = if full { RmsForm::Gemma } else { RmsForm::Llama };
        let (query, kv) = (rule.heads * rule.head_dim, rule.kv_heads * rule.head_dim);
        let seed = if full { 200 } else { 100 };
        let affine = |outputs: usize, inputs: usize, seed: u64| Affine {
            weight: Matrix::from(tensor([outputs, inputs], seed) * 0.3),
            bias: full.then(|| tensor([outputs], seed + 50)),
        };
        Layer {
            attention_norm: norm(width, seed, form),
            query: affine(query, width, seed + 1),
            key: affine(kv, width, seed + 2),
            value: affine(kv, width, seed + 3),
            head_norms: full.then(|| [4, 5].map(|n| norm(rule.head_dim, seed + n, form))),
            rotated: full.then_some(Rotated { by: 1, layout }),
            rule,
            output: affine(width, query, seed + 6),
            attention_out_norm: full.then(|| norm(width, seed + 7, form)),
            mlp_norm: norm(width, seed + 8, form),
            gate: affine(inner, width, seed + 9),
            up: affine(inner, width, seed + 10),
            down: affine(width, inner, seed + 11),
            activation: if full { Activation::GeluTanh } else { Activation::Silu },
            mlp_out_norm: full.then(|| norm(width, seed + 12, form)),
        }
    })
}

/// A layer by the operations of this module, one by one.
fn layer_by_hand(
    x: Tensor<2>,
    layer: &Layer<Matrix, Tensor<1>>,
    rotations: &[[Tensor<2>; 2]],
    stores: [Tensor<3>; 2],
    at: usize,
) -> (Tensor<2>, [Tensor<3>; 2]) {
    let [n, _] = x.dims();
    let norm = |norm: &Norm<Tensor<1>>, x: Tensor<2>| {
        kernels::rms_norm(x, norm.weight.clone(), norm.epsilon, norm.form)
    };
    let map = |affine: &Affine<Matrix, Tensor<1>>, x: Tensor<2>| {
        kernels::linear(x, affine.weight.clone(), affine.bias.clone())
    };
    let heads = |affine, norms: Option<&Norm<Tensor<1>>>, heads: usize, x: Tensor<2>| {
        let y = map(affine, x).reshape([n, heads, layer.rule.head_dim]);
        match norms {
            Some(Norm { weight, epsilon, form }) => {
                kernels::rms_norm(y, weight.clone(), *epsilon, *form)
            }
            None => y,
        }
    };
    let turn = |y: Tensor<3>| match layer.rotated {
        Some(Rotated { by, layout }) => {
            let [cos, sin] = rotations[by].clone();
            kernels::rope(y, cos, sin, layout)
        }
        None => y,
    };
    let AttentionRule { heads: many, kv_heads: few, .. } = layer.rule;
    let norms = layer.head_norms.as_ref();
    let read = norm(&layer.attention_norm, x.clone());
    let query = turn(heads(&layer.query, norms.map(|n| &n[0]), many, read.clone()));
    let key = turn(heads(&layer.key, norms.map(|n| &n[1]), few, read.clone()));
    let value = heads(&layer.value, None, few, read);
    let (y, stores) = kernels::attention(query, [key, value], stores, at, layer.rule);
    let add = |x: Tensor<2>, y: Tensor<2>, out_norm: &Option<Norm<Tensor<1>>>| match out_norm {
        Some(out_norm) => x + norm(out_norm, y),
        None => x + y,
    };
    let x = add(x, map(&layer.output, y), &layer.attention_out_norm);
    let read = norm(&layer.mlp_norm, x.clone());
    let (gate, up) = (map(&layer.gate, read.clone()), map(&layer.up, read));
    let y = map(&layer.down, kernels::glu(gate, up, layer.activation));
    (add(x, y, &layer.mlp_out_norm), stores)
}

/// Layers in one go are their operations one by one, to the last bit, and write caches in place.
#[test]
fn layers_are_their_parts() {
    let (width, inner, at) = (24, 40, 3);
    let then = norm(width, 90, RmsForm::Llama);
    // With a past, which must be numbers for the outputs to be.
    let caches = || [80, 82].map(|seed| [0, 1].map(|part| tensor([2, 64, 16], seed + part)));
    for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
        let parts = some_layers(width, inner, layout);
        for n in [1, 5] {
            let x = tensor([n, width], 60);
            let half = rule().head_dim / 2;
            let rotations =
                [62, 64].map(|seed| [0, 1].map(|part| tensor::<2>([n, half], seed + part)));
            let (mut y, mut stores) = (x.clone(), Vec::new());
            for (layer, cache) in parts.iter().zip(caches()) {
                let cache = {
                    let (sum, cache) = layer_by_hand(y, layer, &rotations, cache, at);
                    y = sum;
                    cache
                };
                stores.push(cache.map(bits));
            }
            let normed = kernels::rms_norm(y.clone(), then.weight.clone(), then.epsilon, then.form);
            for then in [None, Some(&then)] {
                let joint = Layers::new(&parts, then);
                // Twice: what is kept the first time serves the second.
                for _ in 0..2 {
                    let fresh = Vec::from(caches());
                    let before: Vec<_> =
                        fresh.iter().map(|cache| cache.each_ref().map(address)).collect();
                    let (z, written) = kernels::layers(x.clone(), &joint, &rotations, fresh, at);
                    let after: Vec<_> =
                        written.iter().map(|cache| cache.each_ref().map(address)).collect();
                    assert_eq!(before, after);
                    assert!(host(z.clone()).iter().all(|z| z.is_finite()));
                    let expected = if then.is_some() { normed.clone() } else { y.clone() };
                    assert_eq!(bits(z), bits(expected));
                    assert_eq!(
                        written.into_iter().map(|c| c.map(bits)).collect::<Vec<_>>(),
                        stores
                    );
                }
                // The same on burn's own operations, nearly.
                let general = with_kernels(Kernels::General, || {
                    kernels::layers(x.clone(), &joint, &rotations, Vec::from(caches()), at).0
                });
                let (z, _) = kernels::layers(x.clone(), &joint, &rotations, caches().into(), at);
                let worst: f32 = (z - general).abs().max().into_scalar();
                assert!(worst < 2e-4, "{worst}");
            }
        }
    }
    // No layers: the norm alone, or nothing.
    let x = tensor([2, width], 61);
    let (y, none) = kernels::layers(x.clone(), &Layers::new(&[], Some(&then)), &[], vec![], 0);
    assert!(none.is_empty());
    let Norm { weight, epsilon, form } = then;
    assert_eq!(bits(y), bits(kernels::rms_norm(x.clone(), weight, epsilon, form)));
    let (y, _) = kernels::layers(x.clone(), &Layers::new(&[], None), &[], vec![], 0);
    assert_eq!(bits(y), bits(x));
}

/// A fork's cache is not written by the other.
#[test]
fn layers_copy_a_store_that_somebody_else_holds() {
    let parts = some_layers(24, 40, RopeLayout::HalfSplit);
    let joint = Layers::new(&parts[..1], None);
    let caches = || [tensor([2, 64, 16], 80), tensor([2, 64, 16], 81)];
    let mine = caches();
    let held = mine.clone();
    let (_, written) = kernels::layers(tensor([1, 24], 60), &joint, &[], vec![mine], 5);
    assert_eq!(held.map(bits), caches().map(bits));
    assert_ne!(written[0].clone().map(bits), caches().map(bits));
}

fn address<const D: usize>(tensor: &Tensor<D>) -> usize {
    flex(tensor.clone()).bytes().as_ptr().addr()
}

#[test]
fn caches_residuals_and_rotations_change_in_place() {
    let Step { query, key, value } = steps(1);
    let [keys, values] = caches();
    let before = [address(&keys), address(&values)];
    let kv = [key.clone(), value];
    let (_, [keys, values]) = kernels::attention(query.clone(), kv, [keys, values], 7, rule());
    assert_eq!(before, [address(&keys), address(&values)]);
    let keys = kernels::append(keys, key.clone(), 8);
    assert_eq!(before[0], address(&keys));
    // A cache that somebody else holds is copied, and theirs stays.
    let (old, held) = (bits(keys.clone()), keys.clone());
    let fork = kernels::append(keys, key, 9);
    assert_ne!(address(&fork), address(&held));
    assert_eq!(bits(held), old);

    let before = address(&query);
    let (cos, sin) = (tensor([1, 8], 4), tensor([1, 8], 5));
    assert_eq!(before, address(&kernels::rope(query, cos, sin, RopeLayout::HalfSplit)));
    let residual = tensor([2, 8], 6);
    let before = address(&residual);
    let x = tensor([2, 8], 7);
    let (sum, _) = kernels::add_rms_norm(residual, x, tensor([8], 8), 1e-5, RmsForm::Llama);
    assert_eq!(before, address(&sum));
}

static EMBEDDED: Aligned<[u8; 16]> =
    Aligned([0x80, 0x3F, 0, 0x40, 0x40, 0x40, 0x80, 0x40, 1, 2, 3, 4, 5, 6, 7, 8]);

#[test]
fn mapped_and_embedded_weights_are_used_where_they_lie() {
    let embedded: &'static [u8] = &EMBEDDED.0;
    let weights = kernels::weights(&embedded[..8], [2, 2], DType::BF16, &device());
    assert_eq!(address(&weights), embedded.as_ptr().addr());
    let y = kernels::linear(Tensor::from_data([[1.0, 10.0]], &device()), weights.clone(), None);
    assert_eq!(host(y), [21.0, 43.0]);
    // A clone, and a kernel's use, copy nothing.
    assert_eq!(address(&weights.clone()), embedded.as_ptr().addr());

    let mut file = tempfile::NamedTempFile::new().expect("a file");
    std::io::Write::write_all(&mut file, embedded).expect("a file");
    let map = Map::open(file.path()).expect("a file");
    let start = map.as_ptr().addr();
    let mapped = kernels::weights(map.view(2..8), [3, 1], DType::BF16, &device());
    assert_eq!(address(&mapped), start + 2);
    assert_eq!(host(mapped.cast(DType::F32)), [2.0, 3.0, 4.0]);
    // What is not aligned is copied, and is the same.
    let copied = kernels::weights(map.view(1..5), [2, 1], DType::BF16, &device());
    assert_ne!(address(&copied), start + 1);
    let expected = [[0x3F, 0x00], [0x40, 0x40]].map(|b| bf16::from_le_bytes(b).to_f32());
    assert_eq!(host(copied.cast(DType::F32)), expected);
}

/// A row of whole blocks for every output, on bytes that nobody copies.
#[test]
fn blocks_are_used_where_they_lie() {
    let (outputs, inputs, format) = (5, 64, BlockFormat::Q8_0);
    let mut bytes: Vec<u8> = (0..outputs * 2 * 34).map(|i| (i * 37 % 251) as u8).collect();
    for block in bytes.chunks_mut(34) {
        block[..2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
    }
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    std::io::Write::write_all(&mut file, &bytes).expect("a file");
    let map = Map::open(file.path()).expect("a file");
    let blocks = Matrix::blocks(map.view(0..bytes.len()), [outputs, inputs], format, &device());
    assert_eq!(blocks.bytes(), bytes.len() as u64);
    let Matrix::Blocks(bytes_of, _) = blocks.clone() else { panic!("blocks") };
    let held = bytes_of.try_into_primitive::<Flex>().expect("a flex tensor");
    assert_eq!(held.bytes().as_ptr().addr(), map.as_ptr().addr());

    let mut values = vec![0.0; outputs * inputs];
    dequantise(Blocks::new(format, &bytes), &mut values);
    let wide = Tensor::<2>::from_data(TensorData::new(values, [outputs, inputs]), &device());
    let x = tensor([3, inputs], 1);
    let y = kernels::linear(x.clone(), blocks.clone(), None);
    assert_eq!(bits(y), bits(kernels::linear(x.clone(), wide.clone(), None)));
    let some = kernels::linear(x.clone(), blocks.clone().rows(1..3), None);
    assert_eq!(bits(some), bits(kernels::linear(x, wide.clone().narrow(0, 1, 2), None)));
    let ids = Tensor::<1, Int>::from_data([4, 0], &device());
    let rows = kernels::embedding(blocks, ids.clone());
    assert_eq!(bits(rows), bits(wide.select(0, ids)));
}
