//! Which of two sets of kernels runs where there is a choice.

use std::sync::atomic::{AtomicBool, Ordering};

/// A set of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kernels {
    /// Those of this crate, whose rows are independent bit for bit, on backends that have them.
    #[default]
    RowInvariant,
    /// burn's own operations everywhere: what a backend does when nobody asks for bits.
    General,
}

static GENERAL: AtomicBool = AtomicBool::new(false);

/// Chooses for the whole process, from the next operation on.
///
/// General kernels read f32 only, so choose before weights are loaded: what was loaded as bf16
/// would be widened again for every call.
pub fn set_kernels(kernels: Kernels) {
    GENERAL.store(kernels == Kernels::General, Ordering::Relaxed);
}

/// The present choice.
#[must_use]
pub fn kernels() -> Kernels {
    if GENERAL.load(Ordering::Relaxed) { Kernels::General } else { Kernels::RowInvariant }
}
