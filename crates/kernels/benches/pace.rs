//! How fast the kernels are next to what the machine can do: `cargo bench -p draftproof-kernels`.
//!
//! Everything is measured in one run, best of many: the peak of a multiply-add loop, plain readers
//! of the same weights, then linear maps of 1 to 16 rows and of a prompt. Arguments: threads, and
//! which sets (small, fable, big).

use std::{hint::black_box, time::Instant};

use draftproof_kernels::{linear::linear, team, weight::Weight};
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

#[cfg(target_arch = "x86_64")]
mod limits {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_si512,
        _mm512_reduce_add_ps, _mm512_reduce_or_epi32, _mm512_set1_ps, _mm512_setzero_si512,
        _mm512_xor_si512,
    };

    pub(super) const STEPS: usize = 100_000;
    /// Floating-point operations of one call of [`multiply`].
    pub(super) const FLOPS: f64 = (STEPS * 16 * 32) as f64;

    /// Sixteen independent chains of fused multiply-adds.
    #[target_feature(enable = "avx512f")]
    pub(super) fn multiply(x: f32) -> f32 {
        let x = _mm512_set1_ps(x);
        let mut sums = [x; 16];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(x, x, *sum);
            }
        }
        _mm512_reduce_add_ps(sums.into_iter().fold(x, |a, b| _mm512_add_ps(a, b)))
    }

    /// Reads every line once, asking for those `ahead` bytes later.
    #[target_feature(enable = "avx512f")]
    pub(super) fn read(bytes: &[u8], ahead: usize) -> i32 {
        let mut sums = [_mm512_setzero_si512(); 8];
        for block in bytes.as_chunks::<512>().0 {
            for (line, sum) in block.as_chunks::<64>().0.iter().zip(&mut sums) {
                let at = line.as_ptr();
                // SAFETY: the line is 64 bytes; a prefetch never faults.
                unsafe {
                    if ahead > 0 {
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(ahead).cast());
                    }
                    *sum = _mm512_xor_si512(*sum, _mm512_loadu_si512(at.cast()));
                }
            }
        }
        let zero = _mm512_setzero_si512();
        _mm512_reduce_or_epi32(sums.into_iter().fold(zero, |a, b| _mm512_xor_si512(a, b)))
    }
}

#[cfg(target_arch = "x86_64")]
fn peak(threads: usize) -> Option<f64> {
    if !is_x86_feature_detected!("avx512f") {
        return None;
    }
    let seconds = best(0.3, || {
        team::run(threads, &|_| {
            // SAFETY: the feature was detected.
            black_box(unsafe { limits::multiply(black_box(0.5)) });
        });
    });
    Some(threads as f64 * limits::FLOPS / seconds)
}

#[cfg(target_arch = "x86_64")]
fn reader(threads: usize, bytes: &[u8]) -> Option<f64> {
    if !is_x86_feature_detected!("avx512f") {
        return None;
    }
    let share = bytes.len() / threads;
    let seconds = [0, 1024, 4096, 16384].map(|ahead| {
        best(0.2, || {
            team::run(threads, &|i| {
                // SAFETY: the feature was detected.
                black_box(unsafe { limits::read(&bytes[i * share..(i + 1) * share], ahead) });
            });
        })
    });
    seconds.into_iter().reduce(f64::min)
}

#[cfg(not(target_arch = "x86_64"))]
fn peak(_threads: usize) -> Option<f64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn reader(_threads: usize, _bytes: &[u8]) -> Option<f64> {
    None
}

/// Matrices of one shape, one behind the other.
struct Set {
    name: &'static str,
    outputs: usize,
    inputs: usize,
    copies: usize,
    rows: &'static [usize],
}

const ALL: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 64, 512];
const FEW: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16];

const SETS: [Set; 6] = [
    Set { name: "small", outputs: 4096, inputs: 256, copies: 1, rows: ALL },
    Set { name: "small", outputs: 704, inputs: 256, copies: 1, rows: ALL },
    Set { name: "small", outputs: 256, inputs: 704, copies: 1, rows: ALL },
    Set { name: "fable", outputs: 1024, inputs: 256, copies: 24, rows: FEW },
    Set { name: "big", outputs: 2048, inputs: 768, copies: 32, rows: FEW },
    Set { name: "big", outputs: 2048, inputs: 2048, copies: 24, rows: ALL },
];

impl Set {
    fn run(&self, threads: usize, peak: Option<f64>) {
        let Self { outputs, inputs, copies, .. } = *self;
        let size = outputs * inputs;
        let weights: Vec<bf16> =
            (0..size * copies).map(|i| bf16::from_f32((i * 7 % 13) as f32 * 0.1 - 0.6)).collect();
        // SAFETY: bf16 is two plain bytes.
        let (_, bytes, _) = unsafe { weights.align_to::<u8>() };
        let length = bytes.len() as f64;
        println!("{outputs} x {inputs}, {copies} times, bf16, {:.1} MB", length / 1e6);
        let read = reader(threads, bytes);
        if let Some(seconds) = read {
            println!("  plain reader {:7.1} GB/s", length / seconds / 1e9);
        }
        let mut one = None;
        for &rows in self.rows {
            let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
            let mut y = vec![0.0; rows * outputs];
            let seconds = best(0.4, || {
                for weight in weights.chunks(size) {
                    linear(&x, inputs, Weight::Bf16(weight), None, &mut y);
                }
            });
            let one = *one.get_or_insert(seconds);
            let flops = 2.0 * (size * copies * rows) as f64 / seconds;
            println!(
                "  {rows:3} rows {:5.2}x {:9.1} us {:6.1} GB/s ({:3.0} % of the reader) {:6.1} Gflop/s ({:2.0} % of peak)",
                seconds / one,
                seconds * 1e6,
                length / seconds / 1e9,
                100.0 * read.unwrap_or(f64::NAN) / seconds,
                flops / 1e9,
                100.0 * flops / peak.unwrap_or(f64::NAN),
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
    let peak = peak(threads);
    println!("multiply-add loop: {:.1} Gflop/s", peak.unwrap_or(f64::NAN) / 1e9);
    for set in &SETS {
        if names.is_empty() || names.iter().any(|name| *name == set.name) {
            set.run(threads, peak);
        }
    }
}
