//! Keys and values of one sequence: appended in place, cut in O(1).
//!
//! A layer's store is `[kv_heads, capacity, head_dim]`; only the first `len` positions mean
//! anything. Truncation moves `len` and touches no tensor: what lies behind it is overwritten by
//! the next append before anyone reads it. Appending is in place only while nobody else holds the
//! store, so it is taken out of its slot first, and the views that attention reads are dropped
//! before the next pass.

use burn::tensor::{Device, Tensor};

use crate::initial_state::InitialState;

/// Up to this context the whole of it is allocated at once; beyond, capacity grows in such steps.
const CHUNK: usize = 1024;

/// Keys and values of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    keys: Option<Tensor<3>>,
    values: Option<Tensor<3>>,
}

impl LayerCache {
    /// Takes the stores of keys and values out, with room up to position `end`; the caller gives them
    /// back with [`put`](Self::put). What is out of its slot has one owner, so it is written in place.
    ///
    /// # Shapes
    /// - output: `[kv_heads, capacity, head_dim]` each
    pub(crate) fn take(
        &mut self,
        held: usize,
        end: usize,
        context: usize,
        like: &StoreShape,
    ) -> [Tensor<3>; 2] {
        [&mut self.keys, &mut self.values].map(|slot| match slot.take() {
            Some(store) if store.dims()[1] >= end => store,
            old => grow(old, held, end, context, like),
        })
    }

    /// Puts back what [`take`](Self::take) took.
    pub(crate) fn put(&mut self, [keys, values]: [Tensor<3>; 2]) {
        self.keys = Some(keys);
        self.values = Some(values);
    }
}

/// What a store is like, but for its capacity.
#[derive(Clone, Debug)]
pub(crate) struct StoreShape {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) device: Device,
}

fn grow(
    old: Option<Tensor<3>>,
    len: usize,
    end: usize,
    context: usize,
    like: &StoreShape,
) -> Tensor<3> {
    let (heads, dim) = (like.kv_heads, like.head_dim);
    let held = old.as_ref().map_or(0, |store| store.dims()[1]);
    // Doubling keeps the copying of all growths proportional to the text.
    let capacity = end.next_multiple_of(CHUNK).max(2 * held).min(context.max(end));
    let store = Tensor::zeros([heads, capacity, dim], &like.device);
    match old {
        Some(old) if len > 0 => {
            store.slice_assign([0..heads, 0..len, 0..dim], old.narrow(1, 0, len))
        }
        _ => store,
    }
}

/// The cache of one sequence.
///
/// A clone is a fork: burn's tensors are values, so the two share memory until one of them writes.
#[derive(Clone, Debug, Default)]
pub struct SequenceCache {
    pub(crate) layers: Vec<LayerCache>,
    /// Here, so that no sequence goes on under another one than its keys and values were made with.
    pub(crate) initial: InitialState,
    len: usize,
}

impl SequenceCache {
    /// An empty cache of `layers` layers, for a sequence that begins with `initial` if it is a looped
    /// transformer's. Memory is taken by the first append.
    #[must_use]
    pub fn new(layers: usize, initial: InitialState) -> Self {
        Self { layers: vec![LayerCache::default(); layers], initial, len: 0 }
    }

    /// The number of positions that count.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes `new` positions count that every layer has appended.
    pub(crate) fn commit(&mut self, new: usize) {
        self.len += new;
    }

    /// Forgets all but the first `len` positions; `len` is at most [`len`](Self::len).
    pub(crate) fn truncate(&mut self, len: usize) {
        debug_assert!(len <= self.len);
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;
    use draftproof_kernels::burn as kernels;

    /// `[m, 2, 1]`: two heads of one value; head 1 holds the negated values.
    fn block(values: &[f32]) -> Tensor<3> {
        let all: Vec<f32> = values.iter().flat_map(|&v| [v, -v]).collect();
        Tensor::from_data(TensorData::new(all, [values.len(), 2, 1]), &Device::default())
    }

    fn append(cache: &mut LayerCache, at: usize, values: &[f32], context: usize) -> Vec<f32> {
        let new = block(values);
        let end = at + values.len();
        let shape = StoreShape { kv_heads: 2, head_dim: 1, device: Device::default() };
        let stores = cache.take(at, end, context, &shape);
        let stores = stores.map(|store| kernels::append(store, new.clone(), at));
        let seen = stores[0].clone().narrow(1, 0, end).try_into_vec_as().unwrap();
        cache.put(stores);
        seen
    }

    #[test]
    fn appends_overwrite_what_was_cut_off() {
        let mut cache = LayerCache::default();
        append(&mut cache, 0, &[1.0, 2.0, 3.0], 8);
        assert_eq!(append(&mut cache, 1, &[7.0], 8), [1.0, 7.0, -1.0, -7.0]);
    }

    #[test]
    fn growth_keeps_what_counts() {
        let mut cache = LayerCache::default();
        let long: Vec<f32> = (0..CHUNK).map(|i| i as f32).collect();
        append(&mut cache, 0, &long, 10 * CHUNK);
        let keys = append(&mut cache, CHUNK, &[-5.0], 10 * CHUNK);
        assert_eq!(keys.len(), 2 * (CHUNK + 1));
        assert_eq!(keys[..CHUNK], long);
        assert_eq!(keys[CHUNK], -5.0);
        assert_eq!(cache.keys.as_ref().unwrap().dims()[1], 2 * CHUNK);
    }

    #[test]
    fn the_store_stays_unique_so_that_appends_are_in_place() {
        let mut cache = LayerCache::default();
        append(&mut cache, 0, &[1.0], 8);
        assert!(cache.keys.as_ref().unwrap().can_mut());
    }

    #[test]
    fn a_clone_shares_nothing_that_can_change() {
        let mut one = LayerCache::default();
        append(&mut one, 0, &[1.0, 2.0], 8);
        let mut two = one.clone();
        let b = append(&mut two, 1, &[5.0], 8);
        let a = append(&mut one, 2, &[3.0], 8);
        assert_eq!(a, [1.0, 2.0, 3.0, -1.0, -2.0, -3.0]);
        assert_eq!(b, [1.0, 5.0, -1.0, -5.0]);
    }
}
