//! Block-quantised weights: the reference's values, and the bits of the same values as f32.

use draftproof_kernels::{
    embedding::embedding,
    linear::linear,
    quant::{BlockFormat, Blocks, dequantise, quantise},
    weight::Weight,
};
use half::f16;
use serde_json::Value;

use super::{bits, everywhere, noise};

fn expanded(blocks: Blocks<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; blocks.len()];
    dequantise(blocks, &mut out);
    out
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = |i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("two digits");
    (0..hex.len() / 2).map(digits).collect()
}

#[test]
fn values_are_those_of_gguf_py() {
    let json: Value =
        serde_json::from_str(include_str!("../golden/gguf_dequant.json")).expect("JSON");
    let mut seen = Vec::new();
    for case in json["cases"].as_array().expect("cases") {
        let name = case["type"].as_str().expect("a name");
        let format = BlockFormat::ALL.into_iter().find(|format| format.to_string() == name);
        let format = format.unwrap_or_else(|| panic!("{name}"));
        let bytes = from_hex(case["raw_hex"].as_str().expect("bytes"));
        let values = case["values"].as_array().expect("values").iter();
        let expected: Vec<f32> = values.map(|v| v.as_f64().expect("a number") as f32).collect();
        let found = everywhere(|| expanded(Blocks::new(format, &bytes)));
        assert_eq!(found, expected, "{name}");
        seen.push(format);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, BlockFormat::ALL);
}

#[test]
fn blocks_are_those_of_gguf_py() {
    let json: Value =
        serde_json::from_str(include_str!("../golden/gguf_quantise.json")).expect("JSON");
    let values = json["values_in_1024ths"].as_array().expect("values").iter();
    let values: Vec<f32> =
        values.map(|v| v.as_i64().expect("a whole number") as f32 / 1024.0).collect();
    for format in BlockFormat::WRITTEN {
        let expected = json["blocks"][format.to_string()].as_str().expect("blocks");
        let found = quantise(&values, format).expect("a format that is written");
        assert_eq!(found, from_hex(expected), "{format}");
        // Half a step of the coarsest block, a whole one where the last step is missing on one side,
        // and what f16 takes from d and m.
        let (steps, most) = match format {
            BlockFormat::Q8_0 => (127.0, 0.51),
            BlockFormat::Q4_0 | BlockFormat::Q4_1 => (7.5, 1.01),
            _ => (15.5, 1.01),
        };
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > most * 2.0 / steps + 2e-3;
        let back = expanded(Blocks::new(format, &found));
        assert_eq!(back.iter().zip(&values).position(far), None, "{format}");
    }
    assert_eq!(quantise(&[0.0; 256], BlockFormat::Q4_K), None);
}

/// A matrix of arbitrary bytes, but for the f16 in it, which are small numbers.
struct Matrix {
    format: BlockFormat,
    inputs: usize,
    outputs: usize,
    bytes: Vec<u8>,
    wide: Vec<f32>,
}

impl Matrix {
    fn new(format: BlockFormat, blocks: usize, outputs: usize) -> Self {
        let size = format.bytes();
        let mut bytes: Vec<u8> =
            noise(blocks * outputs * size, 1).iter().map(|x| (x * 1000.0) as i32 as u8).collect();
        let scales: &[usize] = match format {
            BlockFormat::Q6_K => &[208],
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            _ => &[0, 2],
        };
        for (block, scale) in bytes.chunks_mut(size).zip(noise(blocks * outputs, 2)) {
            for &at in scales {
                // Some are below f16's normal range, as they are in files.
                let scale = f16::from_f32(scale * 2_f32.powi(-8 - 2 * at as i32 % 8));
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        let wide = expanded(Blocks::new(format, &bytes));
        Self { format, inputs: blocks * format.values(), outputs, bytes, wide }
    }

    fn blocks(&self) -> Weight<'_> {
        Weight::Blocks(Blocks::new(self.format, &self.bytes))
    }

    fn run(&self, x: &[f32], weight: Weight<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / self.inputs * self.outputs];
        linear(x, self.inputs, weight, None, &mut out);
        out
    }

    fn check(&self, all_rows: impl IntoIterator<Item = usize>) {
        for rows in all_rows {
            let x = noise(rows * self.inputs, 3);
            let expected = self.run(&x, Weight::F32(&self.wide));
            assert!(expected.iter().all(|y| y.is_finite()));
            let found = everywhere(|| self.run(&x, self.blocks()));
            let Self { format, inputs, outputs, .. } = self;
            let what = format!("{format}, {rows} rows, {inputs} inputs, {outputs} outputs");
            assert_eq!(bits(&found), bits(&expected), "{what}");
        }
    }
}

#[test]
fn a_map_of_blocks_is_that_of_their_values() {
    for format in BlockFormat::ALL {
        let blocks = if format.values() == 32 { [1, 3, 5] } else { [1, 2, 3] };
        for (blocks, outputs) in blocks.into_iter().zip([1, 23, 6]) {
            Matrix::new(format, blocks, outputs).check(1..=33);
        }
    }
}

#[test]
fn a_map_of_blocks_that_is_shared_between_threads() {
    for format in BlockFormat::ALL {
        Matrix::new(format, 512 / format.values(), 131).check([1, 2, 5, 9, 24, 40]);
    }
}

#[test]
fn a_table_of_blocks_gives_its_rows() {
    for format in BlockFormat::ALL {
        let matrix = Matrix::new(format, 2, 9);
        let ids = [4, 0, 8, 4];
        let look_up = |table: Weight<'_>| {
            let mut out = vec![f32::NAN; ids.len() * matrix.inputs];
            embedding(table, matrix.inputs, &ids, &mut out);
            out
        };
        let found = everywhere(|| look_up(matrix.blocks()));
        assert_eq!(bits(&found), bits(&look_up(Weight::F32(&matrix.wide))), "{format}");
    }
}

#[test]
#[should_panic(expected = "33 bytes are no Q8_0 blocks of 34")]
fn bytes_that_are_no_blocks_are_refused() {
    let _ = Blocks::new(BlockFormat::Q8_0, &[0; 33]);
}

#[test]
#[should_panic(expected = "16 inputs are no Q8_0 blocks")]
fn rows_that_are_no_blocks_are_refused() {
    let matrix = Matrix::new(BlockFormat::Q8_0, 1, 1);
    linear(&[0.0; 16], 16, matrix.blocks(), None, &mut [0.0; 2]);
}
