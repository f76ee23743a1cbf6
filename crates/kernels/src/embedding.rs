//! Rows of a table.

use crate::{
    isa::Isa,
    quant::{self, Blocks},
    weight::{Stored, Weight},
};

/// Copies row `ids[i]` of the table, widened, to row `i` of `out`.
///
/// # Panics
/// If the sizes do not fit together or an id is not below the number of rows.
pub fn embedding(table: Weight<'_>, width: usize, ids: &[usize], out: &mut [f32]) {
    assert!(width > 0, "a row has at least one value");
    assert!(table.len().is_multiple_of(width), "the table has rows of {width}");
    assert_eq!(out.len(), ids.len() * width, "a row for each id");
    match table {
        Weight::F32(values) => rows(values, width, ids, out),
        Weight::Bf16(values) => rows(values, width, ids, out),
        Weight::Blocks(blocks) => block_rows(blocks, width, ids, out),
    }
}

fn block_rows(table: Blocks<'_>, width: usize, ids: &[usize], out: &mut [f32]) {
    let count = table.len() / width;
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
        assert!(id < count, "id {id} in a table of {count} rows");
        quant::expand(Isa::current(), table.part(id * width..(id + 1) * width), out);
    }
}

fn rows<E: Stored>(table: &[E], width: usize, ids: &[usize], out: &mut [f32]) {
    let count = table.len() / width;
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
        assert!(id < count, "id {id} in a table of {count} rows");
        for (out, value) in out.iter_mut().zip(&table[id * width..(id + 1) * width]) {
            *out = value.to_f32();
        }
    }
}
