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

fn open_file(path: &Path) -> Result<Option<Blob>, Error> {
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
    Ok(Some(Blob::File { path: path.into(), file, len, map: None }))
}

/// An open file that is read in pieces.
#[derive(Debug)]
pub(crate) enum Blob {
    File { path: PathBuf, file: File, len: u64, map: Option<Map> },
    Static(&'static [u8]),
}

/// Bytes that stay where they are: in the file's map, or in the program.
#[derive(Debug)]
pub(crate) enum Piece {
    Mapped(MapView),
    Static(&'static [u8]),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(view) => view,
            Self::Static(bytes) => bytes,
        }
    }
}

impl Blob {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Static(bytes) => bytes.len() as u64,
        }
    }

    /// As [`read`](Self::read), without a copy: the file is mapped on first use.
    pub(crate) fn share(&mut self, offset: u64, count: usize) -> Result<Piece, Error> {
        let start = offset as usize;
        match self {
            Self::File { path, file, map, .. } => {
                let failed = |source| Error::Io { path: path.clone(), source };
                let map = match map {
                    Some(map) => map,
                    None => map.insert(Map::of(file).map_err(failed)?),
                };
                // The file may have shrunk since its length was read.
                if map.len() < start.saturating_add(count) {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(Piece::Mapped(map.view(start..start + count)))
            }
            Self::Static(bytes) => {
                let piece = bytes.get(start..start.saturating_add(count));
                Ok(Piece::Static(piece.unwrap_or_default()))
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
