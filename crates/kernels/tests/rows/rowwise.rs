//! Norms, rotations and gates.

use draftproof_kernels::{
    glu::{Activation, glu},
    norm::{RmsForm, add_rms_norm, layer_norm, rms_norm},
    rope::{RopeLayout, rope},
    softcap::softcap,
};

use super::{bits, distance, everywhere, noise};

const WIDTHS: [usize; 7] = [1, 5, 16, 33, 64, 100, 257];

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn rms_norms_rows_alone_and_nearly_the_formula() {
    for width in WIDTHS {
        let weight = noise(width, 1);
        for rows in [1, 2, 7, 33, 100] {
            let x = noise(rows * width, 2);
            for form in [RmsForm::Llama, RmsForm::Gemma] {
                let run = |x: &[f32]| {
                    let mut out = vec![f32::NAN; x.len()];
                    rms_norm(x, &weight, 1e-5, form, &mut out);
                    out
                };
                let all = everywhere(|| run(&x));
                let alone: Vec<f32> = x.chunks(width).flat_map(run).collect();
                assert_eq!(bits(&all), bits(&alone));
                let row = |x: &[f32]| -> Vec<f64> {
                    let x = wide(x);
                    let mean = x.iter().map(|v| v * v).sum::<f64>() / width as f64;
                    let scale = (mean + 1e-5).sqrt().recip();
                    let shift = f64::from(u8::from(form == RmsForm::Gemma));
                    x.iter().zip(wide(&weight)).map(|(x, w)| x * scale * (w + shift)).collect()
                };
                let reference: Vec<f64> = x.chunks(width).flat_map(row).collect();
                assert!(distance(&all, &reference) < 1e-5);
            }
        }
    }
}

#[test]
fn add_and_norm_are_the_two_apart() {
    for (rows, width) in [(1, 33), (5, 64), (300, 100)] {
        let (residual, x, weight) =
            (noise(rows * width, 1), noise(rows * width, 2), noise(width, 3));
        let sum: Vec<f32> = residual.iter().zip(&x).map(|(a, b)| a + b).collect();
        let mut normed = vec![0.0; x.len()];
        rms_norm(&sum, &weight, 1e-6, RmsForm::Llama, &mut normed);
        let both = everywhere(|| {
            let (mut residual, mut out) = (residual.clone(), vec![0.0; x.len()]);
            add_rms_norm(&mut residual, &x, &weight, 1e-6, RmsForm::Llama, &mut out);
            residual.extend(out);
            residual
        });
        assert_eq!(bits(&both), bits(&[sum, normed].concat()));
    }
}

#[test]
fn layer_norms_rows_alone_and_nearly_the_formula() {
    for width in WIDTHS {
        let (weight, bias) = (noise(width, 1), noise(width, 4));
        for rows in [1, 3, 33] {
            let x: Vec<f32> = noise(rows * width, 2).iter().map(|x| x * 3.0 + 2.0).collect();
            let run = |x: &[f32]| {
                let mut out = vec![f32::NAN; x.len()];
                layer_norm(x, &weight, &bias, 1e-5, &mut out);
                out
            };
            let all = everywhere(|| run(&x));
            let alone: Vec<f32> = x.chunks(width).flat_map(run).collect();
            assert_eq!(bits(&all), bits(&alone));
            let row = |x: &[f32]| -> Vec<f64> {
                let x = wide(x);
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                let scale = (variance + 1e-5).sqrt().recip();
                let affine = wide(&weight).into_iter().zip(wide(&bias));
                x.iter().zip(affine).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
            };
            let reference: Vec<f64> = x.chunks(width).flat_map(row).collect();
            assert!(distance(&all, &reference) < 3e-5);
        }
    }
}

#[test]
fn rotations_are_the_formula_in_both_layouts() {
    for (heads, dim, half) in [(1, 2, 1), (3, 10, 5), (2, 64, 32), (2, 20, 7), (1, 3, 0)] {
        let rows = 5;
        let x = noise(rows * heads * dim, 1);
        let angles = noise(rows * half, 2);
        let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let all = everywhere(|| {
                let mut x = x.clone();
                rope(&mut x, heads, dim, &cos, &sin, layout);
                x
            });
            let mut expected = x.clone();
            for (i, head) in expected.chunks_mut(dim).enumerate() {
                let row = i / heads;
                for p in 0..half {
                    let (a, b) = match layout {
                        RopeLayout::HalfSplit => (p, p + half),
                        RopeLayout::Interleaved => (2 * p, 2 * p + 1),
                    };
                    let (c, s) = (cos[row * half + p], sin[row * half + p]);
                    let (low, high) = (head[a], head[b]);
                    head[a] = low * c - high * s;
                    head[b] = high * c + low * s;
                }
            }
            assert_eq!(bits(&all), bits(&expected), "{heads} heads of {dim}, {layout:?}");
        }
    }
}

#[test]
fn gates_are_nearly_the_formula() {
    for count in [1, 15, 16, 17, 1000] {
        let gate: Vec<f32> = noise(count, 1).iter().map(|x| x * 9.0).collect();
        let up = noise(count, 2);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let all = everywhere(|| {
                let mut out = vec![f32::NAN; count];
                glu(activation, &gate, &up, &mut out);
                out
            });
            let act = |x: f64| match activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::GeluTanh => {
                    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    0.5 * x * (1.0 + u.tanh())
                }
            };
            let reference: Vec<f64> =
                wide(&gate).into_iter().zip(wide(&up)).map(|(g, u)| act(g) * u).collect();
            assert!(distance(&all, &reference) < 2e-6);
            // A value does not depend on where it stands.
            for i in [0, count / 2, count - 1] {
                let mut one = [0.0];
                glu(activation, &gate[i..=i], &up[i..=i], &mut one);
                assert_eq!(one[0].to_bits(), all[i].to_bits());
            }
        }
    }
}

#[test]
fn bent_values_are_nearly_the_formula_and_below_the_bound() {
    for count in [1, 15, 16, 17, 1000, 40_000] {
        let x: Vec<f32> = noise(count, 1).iter().map(|x| x * 90.0).collect();
        for cap in [0.5, 30.0] {
            let all = everywhere(|| {
                let mut x = x.clone();
                softcap(&mut x, cap);
                x
            });
            let bend = |x: f64| f64::from(cap) * (x / f64::from(cap)).tanh();
            let reference: Vec<f64> = wide(&x).into_iter().map(bend).collect();
            assert!(distance(&all, &reference) < 1e-5);
            assert!(all.iter().all(|y| y.abs() <= cap));
            // A value does not depend on where it stands.
            for i in [0, count / 2, count - 1] {
                let mut one = [x[i]];
                softcap(&mut one, cap);
                assert_eq!(one[0].to_bits(), all[i].to_bits());
            }
        }
    }
}
