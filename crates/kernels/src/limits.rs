//! What this machine can do at best, as a yardstick for the kernels: bytes read and arithmetic done
//! per second, by loops that do nothing else.
//!
//! Both run on the [`team`] and with the instruction set of the kernels, best of many: noise only
//! ever slows a machine down.

use std::{
    hint::black_box,
    io,
    time::{Duration, Instant},
};

use crate::{
    isa::Isa,
    map::Map,
    simd::{Kernel, LANES, Simd},
    team,
};

/// A working set in memory, and several ways to read all of it with all threads of the team, each a
/// part of its own. Memory lies as weights do: in large pages where the system has them.
#[derive(Debug)]
pub struct Readers {
    map: Map,
    threads: usize,
}

impl Readers {
    /// How many bytes ahead each of the readers asks for memory.
    pub const AHEAD: [usize; 4] = [0, 1 << 10, 4 << 10, 16 << 10];

    /// A working set of about `bytes`: whole vectors for each thread.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let threads = team::threads();
        let each = bytes.div_ceil(threads).next_multiple_of(LANES * size_of::<f32>());
        let map = Map::resident(each * threads, |bytes| {
            // Written to: pages that never were are one and the same.
            bytes.as_chunks_mut().0.fill(1.0_f32.to_ne_bytes());
            Ok(())
        })?;
        Ok(Self { map, threads })
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Reads everything once with the reader that asks `ahead` bytes ahead.
    pub fn read(&self, ahead: usize) {
        // SAFETY: every bit pattern is an f32.
        let (_, values, _) = unsafe { self.map.align_to::<f32>() };
        let (isa, each) = (Isa::current(), values.len() / self.threads);
        team::run(self.threads, &|i| {
            black_box(isa.run(Reader { values: &values[i * each..(i + 1) * each], ahead }));
        });
    }

    /// Bytes per second of the fastest reader, best of many. A few tenths of a second.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        let budget = Duration::from_millis(100);
        let seconds = Self::AHEAD.map(|ahead| best(budget, || self.read(ahead)));
        self.bytes() as f64 / seconds.into_iter().fold(f64::MAX, f64::min)
    }
}

/// Floating-point operations per second of independent fused multiply-adds, with all threads of the
/// team. A few tenths of a second.
#[must_use]
pub fn peak_flops() -> f64 {
    let (threads, isa) = (team::threads(), Isa::current());
    let flops = std::sync::atomic::AtomicUsize::new(0);
    let seconds = best(Duration::from_millis(200), || {
        team::run(threads, &|_| {
            let (count, sum) = isa.run(Multiplier { x: black_box(0.5) });
            black_box(sum);
            flops.store(count, std::sync::atomic::Ordering::Relaxed);
        });
    });
    (flops.into_inner() * threads) as f64 / seconds
}

/// Seconds of the fastest of the calls that fit into `budget`, at least three.
fn best(budget: Duration, mut call: impl FnMut()) -> f64 {
    let (start, mut best, mut calls) = (Instant::now(), f64::MAX, 0);
    while calls < 3 || start.elapsed() < budget {
        let begun = Instant::now();
        call();
        best = best.min(begun.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

/// Vectors a reader has under way at once.
const CHAINS: usize = 8;

/// Adds up all values, and asks for those `ahead` bytes later.
struct Reader<'a> {
    values: &'a [f32],
    ahead: usize,
}

impl Kernel for Reader<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.zero(); CHAINS];
        let (blocks, rest) = self.values.as_chunks::<{ CHAINS * LANES }>();
        for block in blocks {
            for (sum, lanes) in sums.iter_mut().zip(block.as_chunks::<LANES>().0) {
                if self.ahead > 0 {
                    simd.prefetch(lanes.as_ptr().cast::<u8>().wrapping_add(self.ahead));
                }
                *sum = simd.add(*sum, simd.load(lanes));
            }
        }
        for (sum, lanes) in sums.iter_mut().zip(rest.as_chunks::<LANES>().0) {
            *sum = simd.add(*sum, simd.load(lanes));
        }
        simd.sum(sums.into_iter().fold(simd.zero(), |a, b| simd.add(a, b)))
    }
}

/// Independent chains of fused multiply-adds, as many as the registers hold.
struct Multiplier {
    x: f32,
}

impl Multiplier {
    const STEPS: usize = 50_000;

    #[inline(always)]
    fn chains<S: Simd, const N: usize>(&self, simd: S) -> (usize, f32) {
        let x = simd.splat(self.x);
        let mut sums = [x; N];
        for _ in 0..Self::STEPS {
            for sum in &mut sums {
                *sum = simd.fma(x, x, *sum);
            }
        }
        let sum = sums.into_iter().fold(x, |a, b| simd.add(a, b));
        (Self::STEPS * N * LANES * 2, simd.sum(sum))
    }
}

impl Kernel for Multiplier {
    type Output = (usize, f32);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (usize, f32) {
        if S::ACCUMULATORS >= 24 { self.chains::<S, 16>(simd) } else { self.chains::<S, 6>(simd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_read_everything() {
        for len in [LANES, 3 * LANES, CHAINS * LANES, (3 * CHAINS + 5) * LANES] {
            let values: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
            let expected: f32 = values.iter().sum();
            for &isa in Isa::available() {
                for ahead in [0, 4096] {
                    assert_eq!(isa.run(Reader { values: &values, ahead }), expected, "{isa:?}");
                }
            }
        }
    }

    #[test]
    fn the_multipliers_result_is_that_of_its_steps() {
        for &isa in Isa::available() {
            let (flops, sum) = isa.run(Multiplier { x: 0.5 });
            let chains = flops / (2 * LANES * Multiplier::STEPS);
            let expected = 0.5 + chains as f32 * (0.5 + 0.25 * Multiplier::STEPS as f32);
            assert_eq!(sum, expected * LANES as f32, "{isa:?}");
        }
    }

    #[test]
    fn figures_are_positive() {
        assert!(Readers::new(1 << 20).unwrap().bandwidth() > 0.0 && peak_flops() > 0.0);
    }
}
