//! Per-thread working memory, kept between calls so that no call allocates.
//!
//! A guard and not a closure: code inside a closure may be compiled as a function of its own,
//! without the instruction set of the kernel around it.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

thread_local! {
    static IDLE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Floats on loan from this thread, whatever they were before.
#[derive(Debug)]
pub(crate) struct Scratch {
    floats: Vec<f32>,
    len: usize,
}

/// `len` floats.
pub(crate) fn take(len: usize) -> Scratch {
    let mut floats = IDLE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if floats.len() < len {
        floats.resize(len.next_power_of_two(), 0.0);
    }
    Scratch { floats, len }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.floats[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let floats = std::mem::take(&mut self.floats);
        // A loan that ends while the thread does is simply freed.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(floats));
    }
}
