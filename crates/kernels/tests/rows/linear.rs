//! Linear maps and tables.

use draftproof_kernels::{
    embedding::embedding,
    glu::{Activation, glu},
    linear::{Projection, gated, linear, linears},
    weight::Weight,
};
use half::bf16;

use super::{bits, distance, everywhere, noise};

struct Case {
    inputs: usize,
    outputs: usize,
    wide: Vec<f32>,
    narrow: Vec<bf16>,
    bias: Vec<f32>,
}

impl Case {
    fn new(inputs: usize, outputs: usize) -> Self {
        let narrow: Vec<bf16> =
            noise(inputs * outputs, 1).into_iter().map(bf16::from_f32).collect();
        let wide = narrow.iter().map(|w| w.to_f32()).collect();
        Self { inputs, outputs, wide, narrow, bias: noise(outputs, 2) }
    }

    fn run(&self, x: &[f32], weight: Weight<'_>, bias: bool) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / self.inputs * self.outputs];
        linear(x, self.inputs, weight, bias.then_some(&self.bias), &mut out);
        out
    }

    fn reference(&self, x: &[f32], bias: bool) -> Vec<f64> {
        let dot = |x: &[f32], w: &[f32]| -> f64 {
            x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        };
        let row = |x| {
            let products = self.wide.chunks(self.inputs).map(move |w| dot(x, w));
            products.zip(&self.bias).map(|(y, b)| if bias { y + f64::from(*b) } else { y })
        };
        x.chunks(self.inputs).flat_map(row).collect()
    }

    /// The order that the module promises, in the plainest words.
    fn promised(&self, x: &[f32]) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| {
            let mut lanes = [0.0_f32; 16];
            for block in 0..x.len().div_ceil(16) {
                for (l, lane) in lanes.iter_mut().enumerate() {
                    let at = |v: &[f32]| v.get(16 * block + l).copied().unwrap_or(0.0);
                    *lane = at(x).mul_add(at(w), *lane);
                }
            }
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
            }
            lanes[0]
        };
        let row = |x| self.wide.chunks(self.inputs).map(move |w| dot(x, w));
        x.chunks(self.inputs).flat_map(row).collect()
    }

    fn check(&self, all_rows: &[usize]) {
        let most = all_rows.iter().copied().max().unwrap_or(0);
        let x = noise(most * self.inputs, 3);
        let expected = self.promised(&x);
        for &rows in all_rows {
            let x = &x[..rows * self.inputs];
            let expected = &expected[..rows * self.outputs];
            let narrow = everywhere(|| self.run(x, Weight::Bf16(&self.narrow), false));
            let wide = everywhere(|| self.run(x, Weight::F32(&self.wide), false));
            let what = format!("{rows} rows, {} inputs, {} outputs", self.inputs, self.outputs);
            assert_eq!(bits(&narrow), bits(expected), "bf16, {what}");
            assert_eq!(bits(&wide), bits(expected), "f32, {what}");
            let biased = everywhere(|| self.run(x, Weight::Bf16(&self.narrow), true));
            let error = distance(&biased, &self.reference(x, true));
            assert!(error < 2e-6 * self.inputs as f64, "{what}: {error}");
        }
    }
}

#[test]
fn any_rows_any_shape_any_set_any_threads() {
    let rows: Vec<usize> = (1..=33).collect();
    for (inputs, outputs) in [(1, 1), (1, 37), (7, 3), (16, 5), (33, 9), (48, 17), (100, 70)] {
        Case::new(inputs, outputs).check(&rows);
    }
}

#[test]
fn shapes_that_are_shared_between_threads() {
    for (inputs, outputs) in [(257, 131), (320, 200)] {
        Case::new(inputs, outputs).check(&[1, 2, 5, 9, 23, 24, 33, 64]);
    }
}

#[test]
fn inputs_deeper_than_one_piece_of_a_prompt() {
    for inputs in [1024, 1025, 2064, 3091] {
        Case::new(inputs, 21).check(&[1, 6, 25, 31]);
    }
}

#[test]
fn several_matrices_are_each_alone() {
    let (a, b, c) = (Case::new(64, 50), Case::new(64, 3), Case::new(64, 129));
    for rows in [1, 4, 30] {
        let x = noise(rows * 64, 5);
        let joint = everywhere(|| {
            let mut outs = [&a, &b, &c].map(|case| vec![f32::NAN; rows * case.outputs]);
            let [ya, yb, yc] = &mut outs;
            linears(
                &x,
                64,
                &mut [
                    Projection { weight: Weight::Bf16(&a.narrow), bias: None, out: ya },
                    Projection { weight: Weight::F32(&b.wide), bias: Some(&b.bias), out: yb },
                    Projection { weight: Weight::Bf16(&c.narrow), bias: None, out: yc },
                ],
            );
            outs.concat()
        });
        let apart = [
            a.run(&x, Weight::Bf16(&a.narrow), false),
            b.run(&x, Weight::Bf16(&b.narrow), true),
            c.run(&x, Weight::Bf16(&c.narrow), false),
        ];
        assert_eq!(bits(&joint), bits(&apart.concat()));
    }
}

#[test]
fn a_gated_pair_is_its_parts() {
    for (inputs, outputs) in [(5, 7), (64, 130), (300, 90)] {
        let (gate, up) = (Case::new(inputs, outputs), Case::new(inputs, outputs));
        for rows in [1, 3, 9, 33] {
            let x = noise(rows * inputs, 7);
            let joint = everywhere(|| {
                let mut out = vec![f32::NAN; rows * outputs];
                gated(
                    &x,
                    inputs,
                    (Weight::Bf16(&gate.narrow), Some(&gate.bias)),
                    (Weight::F32(&up.wide), None),
                    Activation::Silu,
                    &mut out,
                );
                out
            });
            let mut apart = vec![f32::NAN; rows * outputs];
            let gates = gate.run(&x, Weight::Bf16(&gate.narrow), true);
            let ups = up.run(&x, Weight::F32(&up.wide), false);
            glu(Activation::Silu, &gates, &ups, &mut apart);
            assert_eq!(bits(&joint), bits(&apart));
        }
    }
}

#[test]
fn no_rows_and_no_outputs_are_nothing() {
    let case = Case::new(8, 4);
    assert!(case.run(&[], Weight::F32(&case.wide), false).is_empty());
    let mut out: [f32; 0] = [];
    linear(&[1.0; 8], 8, Weight::F32(&[]), None, &mut out);
}

#[test]
fn a_table_gives_its_rows() {
    let case = Case::new(5, 11);
    let ids = [3, 0, 10, 3];
    let mut out = vec![0.0; 20];
    embedding(Weight::Bf16(&case.narrow), 5, &ids, &mut out);
    for (id, row) in ids.iter().zip(out.chunks(5)) {
        assert_eq!(row, &case.wide[id * 5..(id + 1) * 5]);
    }
    let mut again = vec![0.0; 20];
    embedding(Weight::F32(&case.wide), 5, &ids, &mut again);
    assert_eq!(out, again);
}

#[test]
#[should_panic(expected = "id 11 in a table of 11 rows")]
fn an_id_outside_of_the_table_is_refused() {
    let case = Case::new(5, 11);
    embedding(Weight::F32(&case.wide), 5, &[11], &mut [0.0; 5]);
}
