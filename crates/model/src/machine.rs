//! The machine that the CPU's kernels run on: how many threads share the work, which kernels do it,
//! and what the hardware could do at best.

use std::io;

pub use draftproof_kernels::{
    burn::{Kernels, kernels, set_kernels},
    limits::{Readers, peak_flops},
    linear::Order,
    team::{MAX_THREADS, threads},
};

/// Sets how many threads share the work, cut to 1..=[`MAX_THREADS`]: those of the row-invariant
/// kernels from now on, and those of burn's own if none of them has run yet.
///
/// With row-invariant kernels the number changes no bit of any result.
pub fn set_threads(threads: usize) {
    let threads = threads.clamp(1, MAX_THREADS);
    draftproof_kernels::team::set_threads(threads);
    // Fails if burn's pool is running already; it stays as it is then.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

/// Runs `work` with so many threads, cut to 1..=[`MAX_THREADS`]: for the row-invariant kernels and
/// for burn's own, whatever ran before. Then the number is as it was.
///
/// # Errors
/// If the threads cannot be started; `work` has not run then.
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let (before, threads) = (self::threads(), threads.clamp(1, MAX_THREADS));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(io::Error::other)?;
    draftproof_kernels::team::set_threads(threads);
    let result = pool.install(work);
    draftproof_kernels::team::set_threads(before);
    Ok(result)
}
