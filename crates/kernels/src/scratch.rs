//! Per-thread working memory, kept between calls so that no call allocates.
//!
//! A guard and not a closure: code inside a closure may be compiled as a function of its own,
//! without the instruction set of the kernel around it.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

/// A cache line. Loads of whole vectors never straddle two.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; 16]);

thread_local! {
    static IDLE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Floats on loan from this thread, whatever they were before, from the start of a cache line on.
#[derive(Debug)]
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

/// `len` floats.
pub(crate) fn take(len: usize) -> Scratch {
    let mut lines = IDLE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let needed = len.div_ceil(16);
    if lines.len() < needed {
        lines.resize(needed.next_power_of_two(), Line([0.0; 16]));
    }
    Scratch { lines, len }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is sixteen floats without padding, and there are at least `len / 16`,
        // rounded up.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A loan that ends while the thread does is simply freed.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(lines));
    }
}
