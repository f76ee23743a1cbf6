//! Weights in memory: a file's own pages, or large pages of ours.
//!
//! A map of a file costs no memory of its own and no start-up time: pages come from the file when
//! they are touched, and several processes share them. But they are pages of 4 KiB, and a pass that
//! reads hundreds of megabytes then waits for addresses as much as for data. A [resident](Map::resident)
//! map is a copy in memory that the system is asked to back with large pages (2 MiB): passes
//! read it faster, by a fifth to a half where we measured.
//!
//! # What the caller must know
//! The bytes are the file's. If another program *changes* the file while it is mapped, the weights
//! change with it; if it *truncates* the file, touching the lost pages ends this process with a bus
//! error. No check here can exclude that: whoever does it to a model in use is at fault, as with any
//! program that maps its data. Replacing a file by renaming another one over it is safe.

use std::{
    fs::File,
    io,
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
};

/// The alignment that kernels like best: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// A file or a copy of bytes in memory, read-only. Clones share it.
#[derive(Clone, Debug)]
pub struct Map {
    map: Arc<memmap2::Mmap>,
    /// Bytes that mean something.
    len: usize,
}

/// The bytes of a large page.
const LARGE: usize = 2 << 20;

impl Map {
    /// Maps the whole file.
    ///
    /// # Errors
    /// If it cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?)
    }

    /// Maps the whole of an open file.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the map is private to us and never written. That nobody else changes the file
        // while it is mapped is asked of the user (see the module docs); the bytes are only ever
        // read as plain numbers, for which every bit pattern is valid.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self { len: map.len(), map: Arc::new(map) })
    }

    /// Memory of `len` bytes, in large pages where the system has them, with what `fill` writes.
    ///
    /// # Errors
    /// If there is no memory, or `fill` fails.
    pub fn resident(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        // Whole large pages: the system aligns such a map for them, and others it does not. What is small
        // stays small.
        let size = if len < LARGE / 2 { len.max(1) } else { len.next_multiple_of(LARGE) };
        let mut map = memmap2::MmapMut::map_anon(size)?;
        // A wish: a system without large pages has small ones.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        fill(&mut map[..len])?;
        Ok(Self { map: Arc::new(map.make_read_only()?), len })
    }

    /// Part of the map, which keeps the whole of it alive.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> MapView {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of the file");
        MapView { map: self.map.clone(), range }
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

/// Part of a [`Map`].
#[derive(Clone, Debug)]
pub struct MapView {
    map: Arc<memmap2::Mmap>,
    range: Range<usize>,
}

impl AsRef<[u8]> for MapView {
    fn as_ref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

impl Deref for MapView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

/// Bytes aligned to [`ALIGNMENT`]: `static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!(…));`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(
    /// The value.
    pub T,
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_map_is_the_file_and_a_view_outlives_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1, 2, 3, 4, 5]).unwrap();
        let map = Map::open(file.path()).unwrap();
        assert_eq!(*map, [1, 2, 3, 4, 5]);
        assert!(map.as_ptr().addr().is_multiple_of(ALIGNMENT));
        let view = map.view(1..4);
        drop(map);
        assert_eq!(*view, [2, 3, 4]);
    }

    #[test]
    fn a_resident_map_holds_what_was_written() {
        let map = Map::resident(5 << 20, |bytes| {
            bytes.iter_mut().zip(0..).for_each(|(byte, i): (_, u32)| *byte = i as u8);
            Ok(())
        });
        let map = map.unwrap();
        assert!(map.as_ptr().addr().is_multiple_of(ALIGNMENT));
        assert_eq!(*map.view(300..303), [44, 45, 46]);
        // What fills the last large page is nobody's.
        assert_eq!((map.len(), map.view(0..5 << 20).len()), (5 << 20, 5 << 20));
        assert!(std::panic::catch_unwind(|| map.view(0..(5 << 20) + 1)).is_err());
        let failed = Map::resident(8, |_| Err(io::ErrorKind::UnexpectedEof.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(Map::resident(0, |_| Ok(())).unwrap().view(0..0).is_empty());
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Map::open(file.path()).unwrap().is_empty());
    }
}
