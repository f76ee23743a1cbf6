//! The hot operations, each behind one function, in plain burn ops.
//!
//! Nothing else in this crate multiplies matrices or normalises, so these bodies are the only place
//! to change when better kernels come. Plain burn ops are *not* row-invariant: a backend may take
//! another code path for one row than for several, and then the last bits differ.

use burn::tensor::{Int, Tensor, activation};

/// Rows of query that share one score matrix: bounds the memory of a long prompt.
const QUERY_BLOCK: usize = 256;

/// Rows of a table: `[rows, width]`, ids `[n]` → `[n, width]`.
pub(crate) fn embedding(table: Tensor<2>, ids: Tensor<1, Int>) -> Tensor<2> {
    table.select(0, ids)
}

/// `x·Wᵀ + b`: x `[n, input]`, weight `[output, input]`, bias `[output]` → `[n, output]`.
pub(crate) fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let y = x.matmul(weight.transpose());
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

/// `x / sqrt(mean(x²) + epsilon) · weight` by row: x `[n, width]`, weight `[width]` → `[n, width]`.
pub(crate) fn rms_norm(x: Tensor<2>, weight: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let scale = x.clone().square().mean_dim(1).add_scalar(epsilon).sqrt().recip();
    x * scale * weight.unsqueeze()
}

/// Rotates the pairs (i, i + dim/2) of every head: x `[n, heads, dim]`, cos and sin
/// `[n, 1, dim/2]` → `[n, heads, dim]`.
pub(crate) fn rope(x: Tensor<3>, cos: &Tensor<3>, sin: &Tensor<3>) -> Tensor<3> {
    let half = cos.dims()[2];
    let low = x.clone().narrow(2, 0, half);
    let high = x.narrow(2, half, half);
    let rotated_low = low.clone() * cos.clone() - high.clone() * sin.clone();
    let rotated_high = high * cos.clone() + low * sin.clone();
    Tensor::cat(vec![rotated_low, rotated_high], 2)
}

/// `silu(gate) · up`, all `[n, width]`.
pub(crate) fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate) * up
}

/// Causal attention of the last `m` of `n` positions, query heads in groups on key heads.
///
/// # Shapes
/// - query: `[heads, m, dim]`
/// - keys, values: `[kv_heads, n, dim]`, n ≥ m; heads a multiple of kv_heads
/// - output: `[m, heads · dim]`
pub(crate) fn attention(
    query: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    scale: f64,
) -> Tensor<2> {
    let [_, m, _] = query.dims();
    let [_, n, _] = keys.dims();
    if m <= QUERY_BLOCK {
        return attention_block(query, keys, values, scale);
    }
    let blocks = (0..m).step_by(QUERY_BLOCK).map(|start| {
        let rows = QUERY_BLOCK.min(m - start);
        let seen = n - m + start + rows;
        attention_block(
            query.clone().narrow(1, start, rows),
            keys.clone().narrow(1, 0, seen),
            values.clone().narrow(1, 0, seen),
            scale,
        )
    });
    Tensor::cat(blocks.collect(), 0)
}

fn attention_block(query: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, scale: f64) -> Tensor<2> {
    let [heads, m, dim] = query.dims();
    let [kv_heads, n, _] = keys.dims();
    let group = heads / kv_heads;
    let rows = query.reshape([kv_heads, group * m, dim]).mul_scalar(scale);
    let scores = rows.matmul(keys.swap_dims(1, 2));
    // One query row sees every key, so decoding needs no mask.
    let scores = if m == 1 {
        scores
    } else {
        let future = Tensor::<2>::full([m, n], f32::NEG_INFINITY, &scores.device())
            .triu(i64::try_from(n - m + 1).expect("a context fits i64"));
        (scores.reshape([kv_heads, group, m, n]) + future.unsqueeze()).reshape([
            kv_heads,
            group * m,
            n,
        ])
    };
    let mixed = activation::softmax(scores, 2).matmul(values);
    mixed.reshape([heads, m, dim]).swap_dims(0, 1).reshape([m, heads * dim])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn ramp<const D: usize>(shape: [usize; D], step: f32) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| ((i as f32) * step).sin()).collect();
        Tensor::<1>::from_data(values.as_slice(), &Device::default()).reshape(shape)
    }

    #[test]
    fn blocks_of_queries_equal_one_block() {
        let (heads, kv, m, n, dim) = (4, 2, QUERY_BLOCK + 44, QUERY_BLOCK + 51, 8);
        let (q, k, v) =
            (ramp([heads, m, dim], 0.7), ramp([kv, n, dim], 0.3), ramp([kv, n, dim], 1.1));
        let whole = attention_block(q.clone(), k.clone(), v.clone(), 0.5);
        let blocks = attention(q, k, v, 0.5);
        let worst: f32 = (whole - blocks).abs().max().into_scalar();
        assert!(worst < 1e-5, "{worst}");
    }

    #[test]
    fn attention_is_the_formula() {
        let (heads, kv, m, n, dim) = (4, 2, 3, 5, 4);
        let (q, k, v) =
            (ramp([heads, m, dim], 0.7), ramp([kv, n, dim], 0.3), ramp([kv, n, dim], 1.1));
        let out: Vec<f32> =
            attention(q.clone(), k.clone(), v.clone(), 0.5).try_into_vec_as().unwrap();
        let [q, k, v] = [q, k, v].map(|t| t.try_into_vec_as::<f32>().unwrap());
        for h in 0..heads {
            let g = h / (heads / kv);
            for i in 0..m {
                let seen = n - m + i + 1;
                let score = |j: usize| -> f64 {
                    (0..dim)
                        .map(|d| {
                            f64::from(q[(h * m + i) * dim + d])
                                * f64::from(k[(g * n + j) * dim + d])
                        })
                        .sum::<f64>()
                        * 0.5
                };
                let total: f64 = (0..seen).map(|j| score(j).exp()).sum();
                for d in 0..dim {
                    let expected: f64 = (0..seen)
                        .map(|j| score(j).exp() / total * f64::from(v[(g * n + j) * dim + d]))
                        .sum();
                    let found = f64::from(out[(i * heads + h) * dim + d]);
                    assert!((expected - found).abs() < 1e-5, "{expected} {found}");
                }
            }
        }
    }
}
