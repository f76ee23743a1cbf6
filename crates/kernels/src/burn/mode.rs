//! Which of two sets of kernels runs where there is a choice.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

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

thread_local! {
    /// What [`with_kernels`] has chosen on this thread.
    static HERE: Cell<Option<Kernels>> = const { Cell::new(None) };
}

/// Chooses for the operations that `body` starts on this thread, whatever the process has chosen:
/// others that compute at the same time are not touched.
pub fn with_kernels<T>(kernels: Kernels, body: impl FnOnce() -> T) -> T {
    /// Puts back what was there, even if the body panics.
    struct Back(Option<Kernels>);
    impl Drop for Back {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _back = Back(HERE.replace(Some(kernels)));
    body()
}

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
    if let Some(here) = HERE.get() {
        return here;
    }
    if GENERAL.load(Ordering::Relaxed) { Kernels::General } else { Kernels::RowInvariant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_for_one_thread_is_seen_there_only_and_ends_with_its_body() {
        let before = kernels();
        with_kernels(Kernels::General, || {
            assert_eq!(kernels(), Kernels::General);
            let elsewhere = std::thread::spawn(kernels).join();
            assert_eq!(elsewhere.ok(), Some(before));
            with_kernels(Kernels::RowInvariant, || assert_eq!(kernels(), Kernels::RowInvariant));
            assert_eq!(kernels(), Kernels::General);
        });
        let panicked = std::panic::catch_unwind(|| with_kernels(Kernels::General, || panic!("no")));
        assert!(panicked.is_err());
        assert_eq!(kernels(), before);
    }
}
