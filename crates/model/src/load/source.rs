//! Where a model's files are: a folder, or inside the program.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use draftproof_kernels::map::{Map, MapView};

use crate::Error;

/// A set of files with one name each.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder on disk.
    Folder(PathBuf),
    /// Files that are part of the program.
    Embedded {
        /// What errors call it.
        name: String,
        /// Name and content of each file.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl Source {
    /// How errors name `file`.
    #[must_use]
    pub fn label(&self, file: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(file).display().to_string(),
            Self::Embedded { name, .. } => format!("{name}/{file}"),
        }
    }

    /// How errors name the whole.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded { name, .. } => name.clone(),
        }
    }

    /// The whole of a file of at most `limit` bytes, or None if there is none.
    ///
    /// # Errors
    /// If the file is larger, is no ordinary file, or cannot be read.
    pub fn read(&self, file: &str, limit: u64) -> Result<Option<Cow<'static, [u8]>>, Error> {
        let Some(mut blob) = self.open(file)? else {
            return Ok(None);
        };
        if blob.len() > limit {
            let (expected, found) = (format!("at most {limit} bytes"), blob.len().to_string());
            return Err(Error::file(&self.label(file), expected, found));
        }
        let all = blob.len() as usize;
        blob.read(0, all).map(Some)
    }

    /// Opens a file, or None if there is none.
    ///
    /// # Errors
    /// If it is no ordinary file, or cannot be opened.
    pub(crate) fn open(&self, file: &str) -> Result<Option<Blob>, Error> {
        match self {
            Self::Folder(folder) => open_file(&folder.join(file)),
            Self::Embedded { files, .. } => {
                let found = files.iter().find(|(name, _)| *name == file);
                Ok(found.map(|(_, bytes)| Blob::Static(bytes)))
            }
        }
    }
}

pub(super) fn open_file(path: &Path) -> Result<Option<Blob>, Error> {
    let failed = |source| Error::Io { path: path.into(), source };
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Opening a pipe would wait for a writer, and a device has no length.
    if !kind.is_file() {
        let found = if kind.is_dir() { "a folder" } else { "a special file" };
        return Err(Error::file(&path.display().to_string(), "a file", found));
    }
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    Ok(Some(Blob::File { path: path.into(), file, len }))
}

/// An open file that is read in pieces.
#[derive(Debug)]
pub(crate) enum Blob {
    File { path: PathBuf, file: File, len: u64 },
    Static(&'static [u8]),
}

/// Files up to this size are copied into large pages; a copy of more would compete with the rest of
/// the machine for its memory, and takes seconds.
const RESIDENT: u64 = 2 << 30;

/// What lies behind some offset of a blob, in memory for many readers: a copy in large pages, or,
/// of a large file or where the system has none, the file's own.
#[derive(Debug)]
pub(crate) struct Shared {
    map: Map,
    /// The offset in the blob at which the map begins.
    origin: u64,
}

impl Shared {
    /// `count` bytes from `offset` of the blob, if the map has them.
    pub(crate) fn view(&self, offset: u64, count: usize) -> Option<MapView> {
        let start = usize::try_from(offset.checked_sub(self.origin)?).ok()?;
        let end = start.checked_add(count).filter(|&end| end <= self.map.len())?;
        Some(self.map.view(start..end))
    }
}

impl Blob {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Static(bytes) => bytes.len() as u64,
        }
    }

    /// Everything from `origin` on, to be shared; it begins at a cache line if it was copied, which
    /// files are not if all that a model has, `total` bytes, are too many.
    pub(crate) fn share(&mut self, origin: u64, total: u64) -> Result<Shared, Error> {
        let size = self.len().saturating_sub(origin) as usize;
        let failed = |path: &Path, source| Error::Io { path: path.into(), source };
        match self {
            Self::File { path, file, .. } if cfg!(target_os = "linux") && total <= RESIDENT => {
                let map = Map::resident(size, |bytes| {
                    file.seek(SeekFrom::Start(origin))?;
                    file.read_exact(bytes)
                });
                Ok(Shared { map: map.map_err(|source| failed(path, source))?, origin })
            }
            Self::File { path, file, .. } => {
                let map = Map::of(file).map_err(|source| failed(path, source))?;
                Ok(Shared { map, origin: 0 })
            }
            Self::Static(bytes) => {
                let map = Map::resident(size, |copy| {
                    copy.copy_from_slice(&bytes[bytes.len() - size..]);
                    Ok(())
                });
                let map = map.map_err(|source| failed(Path::new("(memory)"), source))?;
                Ok(Shared { map, origin })
            }
        }
    }

    /// `count` bytes from `offset`; the caller has checked that they are within [`len`](Self::len).
    pub(crate) fn read(&mut self, offset: u64, count: usize) -> Result<Cow<'static, [u8]>, Error> {
        match self {
            Self::File { path, file, .. } => {
                let mut bytes = vec![0; count];
                file.seek(SeekFrom::Start(offset))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .map_err(|source| Error::Io { path: path.clone(), source })?;
                Ok(Cow::Owned(bytes))
            }
            Self::Static(bytes) => {
                let start = offset as usize;
                let piece = bytes.get(start..start.saturating_add(count));
                Ok(Cow::Borrowed(piece.unwrap_or_default()))
            }
        }
    }
}
