//! Keys and values of one sequence: appended in place, cut in O(1).
//!
//! A layer's store is `[kv_heads, capacity, head_dim]`; only the first `len` positions mean
//! anything. Truncation moves `len` and touches no tensor: what lies behind it is overwritten by
//! the next append before anyone reads it. Appending is in place only while nobody else holds the
//! store, so it is taken out of its slot first, and the views that attention reads are dropped
//! before the next pass.

use burn::tensor::Tensor;

/// Up to this context the whole of it is allocated at once; beyond, capacity grows in such steps.
const CHUNK: usize = 1024;

/// Keys and values of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    keys: Option<Tensor<3>>,
    values: Option<Tensor<3>>,
}

impl LayerCache {
    /// Writes positions `at .. at + m` and returns all up to there. `context` bounds the capacity.
    ///
    /// # Shapes
    /// - keys, values: `[kv_heads, m, head_dim]`
    /// - output: twice `[kv_heads, at + m, head_dim]`
    pub fn append(
        &mut self,
        at: usize,
        keys: Tensor<3>,
        values: Tensor<3>,
        context: usize,
    ) -> (Tensor<3>, Tensor<3>) {
        (write(&mut self.keys, at, keys, context), write(&mut self.values, at, values, context))
    }
}

fn write(slot: &mut Option<Tensor<3>>, at: usize, new: Tensor<3>, context: usize) -> Tensor<3> {
    let [heads, m, dim] = new.dims();
    let end = at + m;
    let store = match slot.take() {
        Some(store) if store.dims()[1] >= end => store,
        old => grow(old, at, end, context, &new),
    };
    let store = store.slice_assign([0..heads, at..end, 0..dim], new);
    let seen = store.clone().narrow(1, 0, end);
    *slot = Some(store);
    seen
}

fn grow(
    old: Option<Tensor<3>>,
    len: usize,
    end: usize,
    context: usize,
    like: &Tensor<3>,
) -> Tensor<3> {
    let [heads, _, dim] = like.dims();
    let held = old.as_ref().map_or(0, |store| store.dims()[1]);
    // Doubling keeps the copying of all growths proportional to the text.
    let capacity = end.next_multiple_of(CHUNK).max(2 * held).min(context.max(end));
    let store = Tensor::zeros([heads, capacity, dim], &like.device());
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
    len: usize,
}

impl SequenceCache {
    /// An empty cache of `layers` layers. Memory is taken by the first append.
    #[must_use]
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![LayerCache::default(); layers], len: 0 }
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
    use burn::tensor::{Device, TensorData};

    fn block(values: &[f32]) -> Tensor<3> {
        // Two heads of one value: head 1 holds the negated values.
        let all: Vec<f32> = values.iter().copied().chain(values.iter().map(|v| -v)).collect();
        Tensor::from_data(TensorData::new(all, [2, values.len(), 1]), &Device::default())
    }

    fn host(tensor: Tensor<3>) -> Vec<f32> {
        tensor.try_into_vec_as().unwrap()
    }

    #[test]
    fn appends_overwrite_what_was_cut_off() {
        let mut cache = LayerCache::default();
        drop(cache.append(0, block(&[1.0, 2.0, 3.0]), block(&[1.0, 2.0, 3.0]), 8));
        let (keys, values) = cache.append(1, block(&[7.0]), block(&[9.0]), 8);
        assert_eq!(host(keys), [1.0, 7.0, -1.0, -7.0]);
        assert_eq!(host(values), [1.0, 9.0, -1.0, -9.0]);
    }

    #[test]
    fn growth_keeps_what_counts() {
        let mut cache = LayerCache::default();
        let long: Vec<f32> = (0..CHUNK).map(|i| i as f32).collect();
        drop(cache.append(0, block(&long), block(&long), 10 * CHUNK));
        let (keys, _) = cache.append(CHUNK, block(&[-5.0]), block(&[-5.0]), 10 * CHUNK);
        let keys = host(keys);
        assert_eq!(keys.len(), 2 * (CHUNK + 1));
        assert_eq!(keys[..CHUNK], long);
        assert_eq!(keys[CHUNK], -5.0);
        assert_eq!(cache.keys.as_ref().unwrap().dims()[1], 2 * CHUNK);
    }

    #[test]
    fn the_store_stays_unique_so_that_appends_are_in_place() {
        let mut cache = LayerCache::default();
        drop(cache.append(0, block(&[1.0]), block(&[1.0]), 8));
        assert!(cache.keys.as_ref().unwrap().can_mut());
    }

    #[test]
    fn a_clone_shares_nothing_that_can_change() {
        let mut one = LayerCache::default();
        drop(one.append(0, block(&[1.0, 2.0]), block(&[1.0, 2.0]), 8));
        let mut two = one.clone();
        let (b, _) = two.append(1, block(&[5.0]), block(&[5.0]), 8);
        let (a, _) = one.append(2, block(&[3.0]), block(&[3.0]), 8);
        assert_eq!(host(a), [1.0, 2.0, 3.0, -1.0, -2.0, -3.0]);
        assert_eq!(host(b), [1.0, 5.0, -1.0, -5.0]);
    }
}
