//! How fast the kernels are next to what the machine can do: `cargo bench -p draftproof-kernels`.
//!
//! Everything is measured in one run, best of many: the peak of a multiply-add loop, plain readers
//! of the same weights, then linear maps of 1 to 16 rows and of a prompt. Arguments: threads, and
//! which sets (small, fable, big, blocks).

use std::{hint::black_box, time::Instant};

use draftproof_kernels::{
    limits,
    linear::linear,
    quant::{BlockFormat, Blocks},
    team,
    weight::Weight,
};
use half::bf16;

/// Seconds of the fastest call within about `budget` seconds.
fn best(budget: f64, mut f: impl FnMut()) -> f64 {
    let (start, mut best, mut calls) = (Instant::now(), f64::MAX, 0);
    while calls < 3 || start.elapsed().as_secs_f64() < budget {
        let call = Instant::now();
        f();
        best = best.min(call.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

/// Matrices of one shape, one behind the other.
#[derive(Clone, Copy)]
struct Set {
    name: &'static str,
    /// None: bf16.
    format: Option<BlockFormat>,
    outputs: usize,
    inputs: usize,
    copies: usize,
    rows: &'static [usize],
}

const ALL: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 64, 512];
const FEW: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16];

/// The formats that files use most.
const FORMATS: [BlockFormat; 5] =
    [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q5_0, BlockFormat::Q4_K, BlockFormat::Q6_K];

const SETS: [Set; 6] = [
    Set { name: "small", format: None, outputs: 4096, inputs: 256, copies: 1, rows: ALL },
    Set { name: "small", format: None, outputs: 704, inputs: 256, copies: 1, rows: ALL },
    Set { name: "small", format: None, outputs: 256, inputs: 704, copies: 1, rows: ALL },
    Set { name: "fable", format: None, outputs: 1024, inputs: 256, copies: 24, rows: FEW },
    Set { name: "big", format: None, outputs: 2048, inputs: 768, copies: 32, rows: FEW },
    Set { name: "big", format: None, outputs: 2048, inputs: 2048, copies: 24, rows: ALL },
];

enum Weights {
    Bf16(Vec<bf16>),
    Blocks(BlockFormat, Vec<u8>),
}

impl Weights {
    fn new(format: Option<BlockFormat>, count: usize) -> Self {
        match format {
            None => {
                let value = |i| bf16::from_f32((i * 7 % 13) as f32 * 0.1 - 0.6);
                Self::Bf16((0..count).map(value).collect())
            }
            Some(format) => {
                let bytes = format.row_bytes(count).expect("whole blocks");
                // Below 0x48: no f16 of these bytes is large.
                Self::Blocks(format, (0..bytes).map(|i| (i * 7 % 71) as u8).collect())
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Bf16(values) => 2 * values.len(),
            Self::Blocks(_, bytes) => bytes.len(),
        }
    }

    /// Calls `body` with each matrix of `size` values.
    fn each(&self, size: usize, mut body: impl FnMut(Weight<'_>)) {
        match self {
            Self::Bf16(values) => {
                values.chunks(size).for_each(|values| body(Weight::Bf16(values)));
            }
            Self::Blocks(format, bytes) => {
                let size = format.row_bytes(size).expect("whole blocks");
                let each = bytes.chunks(size).map(|bytes| Blocks::new(*format, bytes));
                each.for_each(|blocks| body(Weight::Blocks(blocks)));
            }
        }
    }
}

impl Set {
    fn run(&self, peak: f64) {
        let Self { outputs, inputs, copies, .. } = *self;
        let size = outputs * inputs;
        let weights = Weights::new(self.format, size * copies);
        let length = weights.bytes() as f64;
        let format = self.format.map_or("bf16".into(), |format| format.to_string());
        println!("{outputs} x {inputs}, {copies} times, {format}, {:.1} MB", length / 1e6);
        let readers = limits::Readers::new(weights.bytes());
        let read = readers.expect("memory for a second copy").bandwidth();
        println!("  plain reader {:7.1} GB/s", read / 1e9);
        let mut one = None;
        for &rows in self.rows {
            let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
            let mut y = vec![0.0; rows * outputs];
            let seconds = best(0.4, || {
                weights.each(size, |weight| linear(&x, inputs, weight, None, &mut y));
            });
            let one = *one.get_or_insert(seconds);
            let flops = 2.0 * (size * copies * rows) as f64 / seconds;
            println!(
                "  {rows:3} rows {:5.2}x {:9.1} us {:6.1} GB/s ({:3.0} % of the reader) {:6.1} Gflop/s ({:2.0} % of peak)",
                seconds / one,
                seconds * 1e6,
                length / seconds / 1e9,
                100.0 * length / seconds / read,
                flops / 1e9,
                100.0 * flops / peak,
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let threads = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or_else(team::threads);
    team::set_threads(threads);
    let names: Vec<&String> = arguments.iter().filter(|a| a.parse::<usize>().is_err()).collect();
    let seconds = best(0.3, || {
        (0..100).for_each(|_| team::run(threads, &|i| _ = black_box(i)));
    });
    println!("{threads} threads, job of one empty chunk each: {:.2} us", seconds * 1e4);
    let peak = limits::peak_flops();
    println!("multiply-add loop: {:.1} Gflop/s", peak / 1e9);
    for set in &SETS {
        if names.is_empty() || names.iter().any(|name| *name == set.name) {
            set.run(peak);
        }
    }
    for format in FORMATS {
        let set = Set {
            name: "blocks",
            format: Some(format),
            rows: &[1, 2, 4, 5, 6, 9, 16, 64],
            ..SETS[5]
        };
        if names.is_empty() || names.iter().any(|name| *name == set.name) {
            set.run(peak);
        }
    }
}
