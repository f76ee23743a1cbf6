//! The two orders of summing, and which is in force.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

use super::tiles::Amx;

/// In which order a map of bf16 weights adds its products. With either, a row depends on its own inputs
/// only, bit for bit; the two differ in their last bits. Other weights know lanes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The order of [`linear`](super), which every processor has.
    #[default]
    Lanes,
    /// The order of [`tiles`](super::tiles), for processors with AMX: rows that are checked together
    /// cost hardly more than one.
    Tiles,
}

static TILES: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HERE: Cell<Option<Order>> = const { Cell::new(None) };
}

impl Order {
    /// Whether this machine computes in this order.
    #[must_use]
    pub fn is_available(self) -> bool {
        self == Self::Lanes || Amx::detect().is_some()
    }

    /// The order of maps that this thread computes.
    #[must_use]
    pub fn current() -> Self {
        let everywhere = || match TILES.load(Ordering::Relaxed) {
            true => Self::Tiles,
            false => Self::Lanes,
        };
        HERE.get().unwrap_or_else(everywhere)
    }

    /// Chooses for the whole process, from the next map on.
    ///
    /// # Panics
    /// If it is not [available](Self::is_available).
    pub fn set(self) {
        assert!(self.is_available(), "this machine does not have {self:?}");
        TILES.store(self == Self::Tiles, Ordering::Relaxed);
    }

    /// Runs `f` with this order for the maps that this thread computes.
    ///
    /// # Panics
    /// If it is not [available](Self::is_available).
    pub fn scope<T>(self, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Order>);
        impl Drop for Restore {
            fn drop(&mut self) {
                HERE.set(self.0);
            }
        }
        assert!(self.is_available(), "this machine does not have {self:?}");
        let _restore = Restore(HERE.replace(Some(self)));
        f()
    }
}
