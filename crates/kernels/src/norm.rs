//! Normalisation by row.
//!
//! # Order of the sums
//! Sixteen lanes, lane `l` taking elements `l, l + 16, …` in ascending order (squares by fused
//! multiply-add, plain values by addition, the last block padded with +0), then the
//! tree of the lanes. Means divide by the width; the scale is `1 / √(mean + ε)`,
//! both operations exactly rounded.

use crate::{
    isa::Isa,
    simd::{Kernel, LANES, Simd},
    team::{self, Scatter},
};

/// What multiplies a normalised value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmsForm {
    /// `x·r·w`.
    Llama,
    /// `x·r·(1 + w)`.
    Gemma,
}

/// `x / √(mean(x²) + ε)` times the weight, by row.
///
/// # Panics
/// If `x` and `out` differ in length or are no rows of `weight.len()` values.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, form: RmsForm, out: &mut [f32]) {
    check(x, weight.len(), out);
    let norm = Norm::Rms { weight, epsilon, form };
    each_row(x, weight.len(), out, None, &norm);
}

/// Adds `x` to `residual` in place and normalises the sum: the same bits as the two apart.
///
/// # Panics
/// As [`rms_norm`], or if `residual` and `x` differ in length.
pub fn add_rms_norm(
    residual: &mut [f32],
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    form: RmsForm,
    out: &mut [f32],
) {
    check(x, weight.len(), out);
    assert_eq!(residual.len(), x.len(), "the residual has the rows of x");
    let norm = Norm::Rms { weight, epsilon, form };
    each_row(x, weight.len(), out, Some(residual), &norm);
}

/// `(x − mean) / √(variance + ε) · weight + bias`, by row; the variance is the mean of the squared
/// deviations from the rounded mean.
///
/// # Panics
/// As [`rms_norm`], or if `weight` and `bias` differ in length.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    check(x, weight.len(), out);
    assert_eq!(weight.len(), bias.len(), "one bias for each weight");
    let norm = Norm::Layer { weight, bias, epsilon };
    each_row(x, weight.len(), out, None, &norm);
}

fn check(x: &[f32], width: usize, out: &[f32]) {
    assert!(width > 0, "a row has at least one value");
    assert!(x.len().is_multiple_of(width), "{} values are no rows of {width}", x.len());
    assert_eq!(x.len(), out.len(), "as many outputs as inputs");
}

#[derive(Clone, Copy)]
enum Norm<'a> {
    Rms { weight: &'a [f32], epsilon: f32, form: RmsForm },
    Layer { weight: &'a [f32], bias: &'a [f32], epsilon: f32 },
}

/// Values below which a job is not worth a second thread.
const WORTH_SHARING: usize = 1 << 14;

fn each_row(
    x: &[f32],
    width: usize,
    out: &mut [f32],
    residual: Option<&mut [f32]>,
    norm: &Norm<'_>,
) {
    let isa = Isa::current();
    let rows = x.len() / width;
    let chunks = if x.len() < WORTH_SHARING { 1 } else { rows.min(team::threads() * 4) };
    let out = Scatter::new(out);
    let residual = residual.map(Scatter::new);
    let body = |chunk: usize| {
        let rows = rows * chunk / chunks..rows * (chunk + 1) / chunks;
        let range = rows.start * width..rows.end * width;
        // SAFETY: the row ranges of different chunks are disjoint, and each chunk runs once.
        let out = unsafe { out.slice(range.clone()) };
        // SAFETY: as above.
        let residual = residual.as_ref().map(|r| unsafe { r.slice(range.clone()) });
        let x = match residual {
            Some(residual) => {
                for (r, x) in residual.iter_mut().zip(&x[range]) {
                    *r += x;
                }
                &*residual
            }
            None => &x[range],
        };
        isa.run(Rows { x, width, out, norm: *norm });
    };
    match chunks {
        1 => body(0),
        _ => team::run(chunks, &body),
    }
}

struct Rows<'a> {
    x: &'a [f32],
    width: usize,
    out: &'a mut [f32],
    norm: Norm<'a>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.x.chunks_exact(self.width);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(self.width)) {
            match self.norm {
                Norm::Rms { weight, epsilon, form } => {
                    let mean = sum_of_squares(simd, x, 0.0) / self.width as f32;
                    let scale = 1.0 / (mean + epsilon).sqrt();
                    match form {
                        RmsForm::Llama => {
                            for i in 0..x.len() {
                                out[i] = x[i] * scale * weight[i];
                            }
                        }
                        RmsForm::Gemma => {
                            for i in 0..x.len() {
                                out[i] = x[i] * scale * (1.0 + weight[i]);
                            }
                        }
                    }
                }
                Norm::Layer { weight, bias, epsilon } => {
                    let mean = sum(simd, x) / self.width as f32;
                    let variance = sum_of_squares(simd, x, mean) / self.width as f32;
                    let scale = 1.0 / (variance + epsilon).sqrt();
                    for i in 0..x.len() {
                        out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
                    }
                }
            }
        }
    }
}

/// The sum of `x` in the order of the [module](self).
#[inline(always)]
pub(crate) fn sum<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (blocks, part) = x.as_chunks::<LANES>();
    let mut lanes = simd.zero();
    for block in blocks {
        lanes = simd.add(lanes, simd.load(block));
    }
    if !part.is_empty() {
        lanes = simd.add(lanes, simd.load_part(part));
    }
    simd.sum(lanes)
}

/// `Σ (x − mean)²` in the order of the [module](self); padding counts 0.
#[inline(always)]
fn sum_of_squares<S: Simd>(simd: S, x: &[f32], mean: f32) -> f32 {
    let (blocks, part) = x.as_chunks::<LANES>();
    let mean_lanes = simd.splat(mean);
    let mut lanes = simd.zero();
    for block in blocks {
        let d = simd.sub(simd.load(block), mean_lanes);
        lanes = simd.fma(d, d, lanes);
    }
    if !part.is_empty() {
        let mut deviations = [0.0; LANES];
        for (d, x) in deviations.iter_mut().zip(part) {
            *d = x - mean;
        }
        let d = simd.load(&deviations);
        lanes = simd.fma(d, d, lanes);
    }
    simd.sum(lanes)
}
