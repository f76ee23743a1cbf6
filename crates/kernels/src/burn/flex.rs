//! The kernels on Flex tensors.

use std::borrow::Cow;

use ::burn::{
    backend::{
        Flex, TensorMetadata,
        flex::{FlexTensor, Layout},
    },
    tensor::{Bytes, DType, Element, Shape, bf16},
};

use super::{
    Bias, General, Kernels, LayersOf, MatrixOf, RowInvariantOps, TensorsOf, kernels,
    layers::{Parts, one_by_one},
};
use crate::{
    attention::{self, AttentionRule, AttentionSpan},
    embedding::embedding,
    glu::{Activation, glu},
    layers::{Layer, Norm, layers as run_layers},
    linear::{Projection, gated, linears},
    norm::{RmsForm, add_rms_norm, layer_norm, rms_norm},
    quant::{Blocks, dequantise},
    rope::{RopeLayout, rope},
    softcap::softcap,
    weight::Weight,
};

fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape.into()), DType::F32)
}

/// The tensor in one piece; itself if it is already.
fn whole(tensor: &FlexTensor) -> Cow<'_, FlexTensor> {
    match tensor.is_contiguous() {
        true => Cow::Borrowed(tensor),
        false => Cow::Owned(tensor.to_contiguous()),
    }
}

fn view<E: Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[E] {
    let found = tensor.dtype();
    let slice = tensor.as_slice::<E>();
    slice.unwrap_or_else(|| panic!("expected a {:?} tensor, found {found:?}", E::dtype()))
}

fn floats(tensor: &FlexTensor) -> &[f32] {
    view(tensor)
}

fn weight(matrix: &MatrixOf<Flex>) -> Weight<'_> {
    match matrix {
        MatrixOf::Float(tensor) if tensor.dtype() == DType::BF16 => {
            Weight::Bf16(view::<bf16>(tensor))
        }
        MatrixOf::Float(tensor) => Weight::F32(floats(tensor)),
        MatrixOf::Blocks(tensor, format) => {
            Weight::Blocks(Blocks::new(*format, view::<u8>(tensor)))
        }
    }
}

/// The matrix in one piece.
fn whole_matrix(matrix: MatrixOf<Flex>) -> MatrixOf<Flex> {
    let whole = |tensor: FlexTensor| match tensor.is_contiguous() {
        true => tensor,
        false => tensor.to_contiguous(),
    };
    match matrix {
        MatrixOf::Float(tensor) => MatrixOf::Float(whole(tensor)),
        MatrixOf::Blocks(tensor, format) => MatrixOf::Blocks(whole(tensor), format),
    }
}

/// For general kernels, which read floats only: blocks are expanded for the call.
fn wide(matrix: MatrixOf<Flex>) -> FlexTensor {
    match whole_matrix(matrix) {
        MatrixOf::Float(tensor) => tensor,
        MatrixOf::Blocks(tensor, format) => {
            let blocks = Blocks::new(format, view::<u8>(&tensor));
            let mut values = vec![0.0; blocks.len()];
            dequantise(blocks, &mut values);
            let [outputs, _] = dims(&tensor);
            let inputs = values.len().checked_div(outputs).unwrap_or(0);
            self::tensor(values, [outputs, inputs])
        }
    }
}

/// The tensor, or a copy of it, that is whole and that nobody else holds.
fn owned(mut tensor_: FlexTensor) -> FlexTensor {
    let shape = tensor_.shape();
    let own = tensor_.is_contiguous()
        && tensor_.is_unique()
        && tensor_.bytes().len() == shape.num_elements() * size_of::<f32>();
    if own && tensor_.try_storage_mut::<f32>().is_some() {
        return tensor_;
    }
    let values = floats(&whole(&tensor_)).to_vec();
    tensor(values, shape)
}

/// The floats of an [`owned`] tensor.
fn floats_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    tensor.try_storage_mut().expect("nobody else holds it")
}

/// The tensor after `change` has changed its floats, in place if nobody else holds them.
fn change(tensor: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut tensor = owned(tensor);
    change(floats_mut(&mut tensor));
    tensor
}

fn dims<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    let shape = tensor.layout().shape();
    std::array::from_fn(|i| shape[i])
}

/// Layers as kernels read them. To find the floats of a tensor takes several steps through memory that
/// the weights of a pass have driven out of the caches: microseconds, for all tensors of all layers.
struct Slices<'a> {
    layers: Vec<Layer<Weight<'a>, &'a [f32]>>,
    then: Option<Norm<&'a [f32]>>,
}

impl<'a> Slices<'a> {
    fn new(Parts { layers, then, .. }: &'a Parts<Flex>) -> Self {
        let layers = layers.iter().map(|layer| layer.map(weight, floats)).collect();
        Self { layers, then: then.as_ref().map(|then| then.map(floats)) }
    }

    /// The slices of tensors, found once.
    fn of(parts: &'a Parts<Flex>) -> &'a Self {
        parts.made(|parts| {
            // SAFETY: the reference is lengthened for slices that `parts` keeps beside the tensors they
            // are of, and that nobody gets for longer than `parts` is borrowed. `parts` is behind an
            // `Arc` and is never changed, so its tensors stay where they are, and what they hold is
            // neither written nor freed before them.
            let parts = unsafe { &*std::ptr::from_ref::<Parts<Flex>>(parts) };
            Slices::<'static>::new(parts)
        })
    }
}

fn is_general() -> bool {
    kernels() == Kernels::General
}

struct Map {
    weight: MatrixOf<Flex>,
    bias: Option<FlexTensor>,
}

impl Map {
    fn new(weight: MatrixOf<Flex>, bias: Bias<Flex>) -> Self {
        let bias = match bias {
            Bias::None => None,
            Bias::Some(bias) => Some(whole(&bias).into_owned()),
        };
        Self { weight: whole_matrix(weight), bias }
    }

    fn outputs(&self) -> usize {
        let (MatrixOf::Float(tensor) | MatrixOf::Blocks(tensor, _)) = &self.weight;
        let [outputs, _] = dims(tensor);
        outputs
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().map(floats)
    }

    fn onto<'a>(&'a self, out: &'a mut [f32]) -> Projection<'a> {
        Projection { weight: weight(&self.weight), bias: self.bias(), out }
    }
}

fn run_maps<const M: usize>(x: &FlexTensor, maps: [Map; M]) -> [FlexTensor; M] {
    let [rows, inputs] = dims(x);
    let mut outs: [Vec<f32>; M] = std::array::from_fn(|i| vec![0.0; rows * maps[i].outputs()]);
    let mut projections: Vec<Projection<'_>> =
        outs.iter_mut().zip(&maps).map(|(out, map)| map.onto(out)).collect();
    linears(floats(&whole(x)), inputs, &mut projections);
    let mut maps = maps.iter();
    outs.map(|out| {
        let outputs = maps.next().map_or(0, Map::outputs);
        tensor(out, [rows, outputs])
    })
}

/// Attention of the rows from position `at` on over caches that hold their keys and values already.
fn attend(
    query: &[f32],
    [keys, values]: [&FlexTensor; 2],
    at: usize,
    rule: AttentionRule,
    out: &mut [f32],
) {
    let [_, capacity] = dims(keys);
    let rows = query.len() / (rule.heads * rule.head_dim);
    let (keys, values) = (floats(keys), floats(values));
    let span = AttentionSpan { start: 0, rows, len: at + rows, capacity, keys, values };
    attention::attention(&rule, query, &[span], out);
}

impl RowInvariantOps for Flex {
    fn row_invariance(probe: FlexTensor) -> bool {
        drop(probe);
        !is_general()
    }

    fn row_linear(x: FlexTensor, weight: MatrixOf<Self>, bias: Bias<Self>) -> FlexTensor {
        if is_general() {
            return General::<Self>::linear(x, wide(weight), bias);
        }
        let [y] = run_maps(&x, [Map::new(weight, bias)]);
        y
    }

    fn row_linear3(
        x: FlexTensor,
        weight_a: MatrixOf<Self>,
        weight_b: MatrixOf<Self>,
        weight_c: MatrixOf<Self>,
        bias_a: Bias<Self>,
        bias_b: Bias<Self>,
        bias_c: Bias<Self>,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        if is_general() {
            let (weights, biases) =
                ([weight_a, weight_b, weight_c].map(wide), [bias_a, bias_b, bias_c]);
            return General::<Self>::linear3(x, weights, biases);
        }
        let maps =
            [Map::new(weight_a, bias_a), Map::new(weight_b, bias_b), Map::new(weight_c, bias_c)];
        let [a, b, c] = run_maps(&x, maps);
        (a, b, c)
    }

    fn row_gated(
        x: FlexTensor,
        gate: MatrixOf<Self>,
        gate_bias: Bias<Self>,
        up: MatrixOf<Self>,
        up_bias: Bias<Self>,
        activation: Activation,
    ) -> FlexTensor {
        if is_general() {
            return General::<Self>::gated(
                x,
                (wide(gate), gate_bias),
                (wide(up), up_bias),
                activation,
            );
        }
        let [rows, inputs] = dims(&x);
        let (gate, up) = (Map::new(gate, gate_bias), Map::new(up, up_bias));
        let mut out = vec![0.0; rows * gate.outputs()];
        gated(
            floats(&whole(&x)),
            inputs,
            (weight(&gate.weight), gate.bias()),
            (weight(&up.weight), up.bias()),
            activation,
            &mut out,
        );
        tensor(out, [rows, gate.outputs()])
    }

    fn row_glu(gate: FlexTensor, up: FlexTensor, activation: Activation) -> FlexTensor {
        if is_general() {
            return General::<Self>::glu(gate, up, activation);
        }
        let shape = gate.shape();
        let mut out = vec![0.0; shape.num_elements()];
        glu(activation, floats(&whole(&gate)), floats(&whole(&up)), &mut out);
        tensor(out, shape)
    }

    fn row_softcap(x: FlexTensor, cap: f32) -> FlexTensor {
        if is_general() {
            return General::<Self>::softcap(x, cap);
        }
        change(x, |x| softcap(x, cap))
    }

    fn row_rms_norm(x: FlexTensor, weight: FlexTensor, epsilon: f64, form: RmsForm) -> FlexTensor {
        if is_general() {
            return General::<Self>::rms_norm(x, weight, epsilon, form);
        }
        let shape = x.shape();
        let mut out = vec![0.0; shape.num_elements()];
        rms_norm(floats(&whole(&x)), floats(&weight), epsilon as f32, form, &mut out);
        tensor(out, shape)
    }

    fn row_add_rms_norm(
        residual: FlexTensor,
        x: FlexTensor,
        weight: FlexTensor,
        epsilon: f64,
        form: RmsForm,
    ) -> (FlexTensor, FlexTensor) {
        if is_general() {
            return General::<Self>::add_rms_norm(residual, x, weight, epsilon, form);
        }
        let (shape, epsilon) = (x.shape(), epsilon as f32);
        let mut out = vec![0.0; shape.num_elements()];
        let sum = change(residual, |residual| {
            let (x, weight) = (whole(&x), floats(&weight));
            add_rms_norm(residual, floats(&x), weight, epsilon, form, &mut out);
        });
        (sum, tensor(out, shape))
    }

    fn row_layer_norm(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        epsilon: f64,
    ) -> FlexTensor {
        if is_general() {
            return General::<Self>::layer_norm(x, weight, bias, epsilon);
        }
        let shape = x.shape();
        let mut out = vec![0.0; shape.num_elements()];
        let (weight, bias) = (floats(&weight), floats(&bias));
        layer_norm(floats(&whole(&x)), weight, bias, epsilon as f32, &mut out);
        tensor(out, shape)
    }

    fn row_rope(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, layout: RopeLayout) -> FlexTensor {
        if is_general() {
            return General::<Self>::rope(x, cos, sin, layout);
        }
        let [_, heads, head_dim] = dims(&x);
        let (cos, sin) = (whole(&cos), whole(&sin));
        change(x, |x| rope(x, heads, head_dim, floats(&cos), floats(&sin), layout))
    }

    fn row_embedding(table: MatrixOf<Self>, ids: FlexTensor) -> FlexTensor {
        if is_general() {
            return General::<Self>::embedding(wide(table), ids);
        }
        let table = Map::new(table, Bias::None);
        let (rows, table) = (table.outputs(), weight(&table.weight));
        let width = table.len().checked_div(rows).unwrap_or(0);
        let ids = indices(&whole(&ids));
        let mut out = vec![0.0; ids.len() * width];
        embedding(table, width, &ids, &mut out);
        tensor(out, [ids.len(), width])
    }

    fn row_append(cache: FlexTensor, new: FlexTensor, at: usize) -> FlexTensor {
        if is_general() {
            return General::<Self>::append(cache, new, at);
        }
        let [kv_heads, _, head_dim] = dims(&cache);
        let new = whole(&new);
        change(cache, |cache| attention::append(cache, floats(&new), kv_heads, head_dim, at))
    }

    fn row_layers(
        x: FlexTensor,
        layers: LayersOf<Self>,
        TensorsOf(rotations): TensorsOf<Self>,
        TensorsOf(stores): TensorsOf<Self>,
        at: usize,
    ) -> (FlexTensor, Vec<FlexTensor>) {
        if is_general() {
            return one_by_one(x, &layers, &rotations, stores, at);
        }
        let Slices { layers, then } = Slices::of(layers.parts());
        let rotations: Vec<Cow<'_, FlexTensor>> = rotations.iter().map(whole).collect();
        let (pairs, _) = rotations.as_chunks();
        let rotations: Vec<[&[f32]; 2]> = pairs
            .iter()
            .map(|pair: &[_; 2]| pair.each_ref().map(|angles| floats(angles)))
            .collect();
        let mut stores: Vec<FlexTensor> = stores.into_iter().map(owned).collect();
        let (pairs, _) = stores.as_chunks_mut();
        let mut written: Vec<[&mut [f32]; 2]> =
            pairs.iter_mut().map(|pair: &mut [_; 2]| pair.each_mut().map(floats_mut)).collect();
        let (shape, mut x) = (x.shape(), owned(x));
        let mut normed = vec![0.0; shape.num_elements()];
        let (rotations, written) = (&rotations, &mut written);
        run_layers(layers, then.as_ref(), floats_mut(&mut x), rotations, written, at, &mut normed);
        (if then.is_some() { tensor(normed, shape) } else { x }, stores)
    }

    fn row_attention(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        keys: FlexTensor,
        values: FlexTensor,
        at: usize,
        rule: AttentionRule,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        if is_general() {
            return General::<Self>::append_and_attend(
                query,
                [key, value],
                [keys, values],
                at,
                rule,
            );
        }
        let [rows] = dims(&query);
        let keys = Self::row_append(keys, key, at);
        let values = Self::row_append(values, value, at);
        let mut out = vec![0.0; rows * rule.heads * rule.head_dim];
        attend(floats(&whole(&query)), [&keys, &values], at, rule, &mut out);
        (tensor(out, [rows, rule.heads * rule.head_dim]), keys, values)
    }
}

fn indices(ids: &FlexTensor) -> Vec<usize> {
    let index = |id: i64| usize::try_from(id).expect("ids are not negative");
    match ids.dtype() {
        DType::I32 => view::<i32>(ids).iter().map(|&id| index(id.into())).collect(),
        _ => view::<i64>(ids).iter().map(|&id| index(id)).collect(),
    }
}
