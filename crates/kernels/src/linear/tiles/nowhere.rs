//! In place of `machine` where there are no tiles: what is never called, as there is no [`Amx`].

use half::bf16;

use super::{Amx, INPUTS, OUTPUTS, ROWS, Sums, WORDS};

pub(super) struct Configured(());

impl Configured {
    pub(super) fn new(_: Amx) -> Self {
        unreachable!("no AMX")
    }
}

pub(super) fn split(_: Amx, _: &[&[f32; INPUTS]], _: &mut [f32; WORDS]) {
    unreachable!("no AMX")
}

pub(super) fn combine(_: Amx, _: &[[f32; 16]; OUTPUTS], _: usize) -> [[f32; 16]; ROWS] {
    unreachable!("no AMX")
}

pub(super) fn ask(_: Amx, _: &[bf16], _: usize) {
    unreachable!("no AMX")
}

pub(super) fn multiply(_: Amx, _: &[bf16], _: usize, _: &[f32], _: usize, _: &mut Sums) {
    unreachable!("no AMX")
}
