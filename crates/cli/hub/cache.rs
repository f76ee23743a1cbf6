//! The folder in which Hugging Face's tools keep what they fetched, for one repository.
//!
//! ```text
//! models--OWNER--NAME/
//!   refs/REVISION             the commit that a branch or tag was last seen at
//!   blobs/ETAG                contents; ETAG.incomplete while they come in
//!   snapshots/COMMIT/FILE     links to blobs
//!   .no_exist/COMMIT/FILE     empty: the commit has no such file
//! ```

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result};

use super::name::{Name, is_commit};

/// A repository's part of the cache; every name given to it has been checked.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub(super) fn new(root: &Path, name: &Name) -> Self {
        let folder = format!("models--{}", name.repository.replace('/', "--"));
        Self { folder: root.join(folder) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit that a branch or tag was last seen at.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim()).filter(|text| is_commit(text)).map(str::to_owned)
    }

    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        write(&self.folder.join("refs").join(revision), commit)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// A file of a commit, if it is there.
    pub(super) fn file(&self, commit: &str, file: &str) -> Option<PathBuf> {
        Some(self.snapshot(commit).join(file)).filter(|path| path.is_file())
    }

    pub(super) fn is_absent(&self, commit: &str, file: &str) -> bool {
        self.absent(commit, file).exists()
    }

    pub(super) fn set_absent(&self, commit: &str, file: &str) -> Result<()> {
        write(&self.absent(commit, file), "")
    }

    fn absent(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(file)
    }

    fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn has_blob(&self, etag: &str, size: u64) -> bool {
        fs::metadata(self.blob(etag)).is_ok_and(|data| data.is_file() && data.len() == size)
    }

    /// What came in so far of a blob, locked against other processes that fetch the same.
    pub(super) fn part(&self, etag: &str) -> Result<Part> {
        let path = self.blob(&format!("{etag}.incomplete"));
        let open = || {
            parent(&path)?;
            let file =
                File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        let file = open().map_err(|error| failed(&path, error))?;
        Ok(Part { file, path, whole: self.blob(etag) })
    }

    /// Makes a blob a file of a commit.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf> {
        let place = self.snapshot(commit).join(file);
        let up = "../".repeat(file.split('/').count() + 1);
        // Made elsewhere and moved, so that a link to a blob that is gone is replaced.
        let made = self.blob(&format!("{etag}.link-{}", process::id()));
        let link = || {
            parent(&place)?;
            match symlink(&format!("{up}blobs/{etag}"), &made) {
                Ok(()) => fs::rename(&made, &place),
                // Where there are no links the file itself moves, as other tools do it.
                Err(_) => fs::rename(self.blob(etag), &place),
            }
        };
        link().map_err(|error| failed(&place, error))?;
        Ok(place)
    }
}

/// A blob on its way in.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: File,
    pub(super) path: PathBuf,
    whole: PathBuf,
}

impl Part {
    /// Gives the blob its final name, once it is known to be right.
    pub(super) fn finish(self) -> Result<()> {
        let finish = || self.file.sync_all().and_then(|()| fs::rename(&self.path, &self.whole));
        finish().map_err(|error| failed(&self.whole, error))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    parent(path).and_then(|()| fs::write(path, text)).with_context(|| path.display().to_string())
}

fn parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::from(error).context(path.display().to_string())
}

#[cfg(unix)]
fn symlink(target: &str, place: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, place)
}

#[cfg(not(unix))]
fn symlink(_: &str, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
