//! Which instructions this machine has, asked once, and a way for tests to use fewer.

use std::{cell::Cell, sync::OnceLock};

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Vbmi};
use crate::simd::{Kernel, Portable, Simd};

/// An instruction set that the kernels are compiled for.
///
/// All of them give the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// NEON (aarch64).
    Neon,
    /// AVX2 with FMA (x86-64).
    Avx2,
    /// AVX-512 F, BW, DQ, VL (x86-64).
    Avx512,
    /// AVX-512 with VBMI (x86-64).
    Avx512Vbmi,
}

thread_local! {
    static CHOSEN: Cell<Option<Isa>> = const { Cell::new(None) };
}

impl Isa {
    /// Those this machine can run, slowest first.
    #[must_use]
    pub fn available() -> &'static [Isa] {
        static AVAILABLE: OnceLock<Vec<Isa>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let all = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Avx512Vbmi];
            all.into_iter().filter(|isa| isa.detected()).collect()
        })
    }

    /// The one the kernels use on this thread.
    #[must_use]
    pub fn current() -> Isa {
        let fastest = || *Isa::available().last().unwrap_or(&Isa::Portable);
        CHOSEN.get().unwrap_or_else(fastest)
    }

    /// Runs `f` with the kernels that this thread calls using `self`.
    ///
    /// # Panics
    /// If this machine does not have it.
    pub fn scope<T>(self, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Isa>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        assert!(self.detected(), "this machine does not have {self:?}");
        let _restore = Restore(CHOSEN.replace(Some(self)));
        f()
    }

    fn detected(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vbmi => Vbmi::detect().is_some(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => crate::simd::Neon::detect().is_some(),
            #[allow(unreachable_patterns, reason = "which are left depends on the target")]
            _ => false,
        }
    }

    /// Compiles `kernel` for every set and runs the one for `self`, or plain Rust if it is not
    /// there.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        match self {
            Isa::Avx512Vbmi if K::BF16 => {
                if let Some(simd) = Vbmi::detect() {
                    return simd.vectorize(kernel);
                }
            }
            Isa::Avx512 | Isa::Avx512Vbmi => {
                if let Some(simd) = Avx512::detect() {
                    return simd.vectorize(kernel);
                }
            }
            Isa::Avx2 => {
                if let Some(simd) = Avx2::detect() {
                    return simd.vectorize(kernel);
                }
            }
            _ => {}
        }
        #[cfg(target_arch = "aarch64")]
        if self == Isa::Neon
            && let Some(simd) = crate::simd::Neon::detect()
        {
            return simd.vectorize(kernel);
        }
        Portable.vectorize(kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_its_closure() {
        let before = Isa::current();
        Isa::Portable.scope(|| assert_eq!(Isa::current(), Isa::Portable));
        assert_eq!(Isa::current(), before);
        assert_eq!(Isa::available().first(), Some(&Isa::Portable));
    }
}
