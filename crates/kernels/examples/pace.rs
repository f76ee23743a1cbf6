//! scratch
use draftproof_kernels::{linear::linear, team, weight::Weight};
use half::bf16;
use std::arch::x86_64::*;
use std::time::Instant;
fn best(secs: f64, mut f: impl FnMut()) -> f64 {
    let mut b = f64::MAX;
    let s = Instant::now();
    let mut i = 0;
    while i < 3 || s.elapsed().as_secs_f64() < secs {
        let t = Instant::now();
        f();
        b = b.min(t.elapsed().as_secs_f64());
        i += 1;
    }
    b
}
#[target_feature(enable = "avx512f")]
fn peak() -> f32 {
    let mut a = [_mm512_set1_ps(0.0); 16];
    let x = _mm512_set1_ps(std::hint::black_box(0.5));
    for _ in 0..100_000 {
        for i in 0..16 {
            a[i] = _mm512_fmadd_ps(x, x, a[i]);
        }
    }
    let mut s = a[0];
    for i in 1..16 {
        s = _mm512_add_ps(s, a[i]);
    }
    _mm512_reduce_add_ps(s)
}
#[target_feature(enable = "avx512f")]
unsafe fn read(p: *const u8, n: usize, ahead: usize) -> i32 {
    unsafe {
        let mut a = [_mm512_setzero_si512(); 8];
        let mut i = 0;
        while i + 512 <= n {
            for j in 0..8 {
                if ahead > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(i + 64 * j + ahead).cast());
                }
                a[j] = _mm512_xor_si512(a[j], _mm512_loadu_si512(p.add(i + 64 * j).cast()));
            }
            i += 512;
        }
        let mut s = a[0];
        for j in 1..8 {
            s = _mm512_xor_si512(s, a[j]);
        }
        _mm512_reduce_or_epi32(s)
    }
}
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    team::set_threads(threads);
    let which = std::env::args().nth(2).unwrap_or("0123456789".into());
    let t = best(0.2, || {
        for _ in 0..100 {
            team::run(threads, &|i| {
                std::hint::black_box(i);
            })
        }
    });
    println!("hand-over {:.2} us", t / 100.0 * 1e6);
    let t = best(0.3, || {
        std::hint::black_box(unsafe { peak() });
    });
    println!("peak one thread {:.1} GFLOP/s", 100_000.0 * 16.0 * 32.0 / t / 1e9);
    let t = best(0.3, || {
        team::run(threads, &|_| {
            std::hint::black_box(unsafe { peak() });
        })
    });
    println!(
        "peak {threads} threads {:.1} GFLOP/s",
        threads as f64 * 100_000.0 * 16.0 * 32.0 / t / 1e9
    );
    for (id, (n, k, copies)) in [
        (4096usize, 256usize, 1usize),
        (704, 256, 1),
        (256, 704, 1),
        (2048, 768, 32),
        (2048, 2048, 24),
    ]
    .into_iter()
    .enumerate()
    {
        if !which.contains(&id.to_string()) {
            continue;
        }
        let all: Vec<bf16> = (0..n * k * copies)
            .map(|i| bf16::from_f32(((i * 7) % 13) as f32 * 0.1 - 0.6))
            .collect();
        let w: Vec<&[bf16]> = all.chunks(n * k).collect();
        let bytes = (n * k * copies * 2) as f64;
        for ahead in [0, 1024, 4096] {
            let t = best(0.2, || {
                team::run(threads, &|i| {
                    let per = n * k * copies * 2 / threads;
                    std::hint::black_box(unsafe {
                        read(all.as_ptr().cast::<u8>().add(i * per), per, ahead)
                    });
                })
            });
            println!(
                "{n}x{k}x{copies} reader ahead {ahead}: {:.1} us {:.1} GB/s",
                t * 1e6,
                bytes / t / 1e9
            );
        }
        let mut one = 0.0;
        for rows in [1usize, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 64, 512] {
            if rows > 16 && copies > 1 {
                continue;
            }
            let x: Vec<f32> = (0..rows * k).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
            let mut y = vec![0.0; rows * n];
            let t = best(0.3, || {
                for w in &w {
                    linear(&x, k, Weight::Bf16(w), None, &mut y)
                }
            });
            if rows == 1 {
                one = t
            }
            println!(
                "{n}x{k}x{copies} rows {rows}: {:.2}x  {:.1} us {:.1} GB/s {:.1} GFLOP/s",
                t / one,
                t * 1e6,
                bytes / t / 1e9,
                2.0 * (n * k * copies * rows) as f64 / t / 1e9
            );
        }
    }
}
