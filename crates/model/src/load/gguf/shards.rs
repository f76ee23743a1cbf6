//! A GGUF file that was split into several: `NAME-00001-of-00003.gguf` and so on.
//!
//! Each has tensors of its own, the first the metadata too (and perhaps no tensor). All say which they
//! are, of how many, and how many tensors there are in all; whichever is given, all are read. What the
//! others are called follows from the name of the one that is given, never from what is in a file, so
//! that none leads out of its folder.

use std::{borrow::Cow, collections::btree_map::Entry, ffi::OsStr, path::Path};

use super::{
    super::{
        source::{Blob, Shared, open_file},
        tensor_error,
    },
    header::Header,
};
use crate::Error;

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// What files say about how they are split.
pub(super) const KEYS: [&str; 3] = [NO, COUNT, TENSORS];
/// An entry that is about the file which has it.
const ALIGNMENT: &str = "general.alignment";

/// More than any model has.
const MAX_SHARDS: usize = 4096;

/// One of the files.
#[derive(Debug)]
pub(super) struct Shard {
    label: String,
    blob: Blob,
    /// Where the data begin.
    start: u64,
    /// The data, once a tensor was asked for.
    shared: Option<Shared>,
}

impl Shard {
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn blob(&mut self) -> &mut Blob {
        &mut self.blob
    }

    pub(super) fn read(&mut self, start: u64, count: usize) -> Result<Cow<'static, [u8]>, Error> {
        self.blob.read(start, count)
    }

    /// The name and the data; all files of the model have `total` bytes.
    pub(super) fn shared(&mut self, total: u64) -> Result<(&str, &Shared), Error> {
        let Self { label, blob, start, shared } = self;
        let shared = match shared {
            Some(shared) => shared,
            None => shared.insert(blob.share(*start, total)?),
        };
        Ok((label, shared))
    }
}

/// What one of the files is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardName<'a> {
    stem: &'a str,
    /// From 1.
    number: usize,
    pub(super) count: usize,
}

impl<'a> ShardName<'a> {
    pub(super) fn parse(file: &'a str) -> Option<Self> {
        let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| all)
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let name = Self { stem, number, count };
        (number >= 1 && number <= count && count <= MAX_SHARDS).then_some(name)
    }

    /// The name of the file with another number.
    pub(super) fn of(self, number: usize) -> String {
        let Self { stem, count, .. } = self;
        format!("{stem}-{number:05}-of-{count:05}.gguf")
    }
}

/// What a file says about its place among others.
#[derive(Clone, Copy, Debug)]
struct Split {
    no: usize,
    count: usize,
}

impl Split {
    /// None: it is whole.
    fn read(header: &Header) -> Result<Option<Self>, Error> {
        let (no, count) = (header.size(NO)?, header.size(COUNT)?);
        let Some(count) = count else {
            return match no {
                None => Ok(None),
                Some(no) => Err(header.error(COUNT, format!("more than {NO} {no}"), "none")),
            };
        };
        if !(1..=MAX_SHARDS).contains(&count) {
            return Err(header.error(COUNT, format!("from 1 to {MAX_SHARDS} files"), count));
        }
        let expected = || format!("a number below {COUNT} {count}");
        let no = no.ok_or_else(|| header.error(NO, expected(), "none"))?;
        match no < count {
            true => Ok(Some(Self { no, count })),
            false => Err(header.error(NO, expected(), no)),
        }
    }
}

/// The metadata and tensors of the file at `path` and of those it was split from.
pub(super) fn open(path: &Path) -> Result<(Header, Vec<Shard>), Error> {
    let label = path.display().to_string();
    let missing = || Error::Missing { place: label.clone(), expected: "a GGUF file".into() };
    let (header, shard) = read(path)?.ok_or_else(missing)?;
    let Some(Split { no, count }) = Split::read(&header)? else {
        return Ok((header, vec![shard]));
    };
    let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let Some(name) = ShardName::parse(file) else {
        if count == 1 {
            check_tensors(&header)?;
            return Ok((header, vec![shard]));
        }
        let expected = format!("a name that ends with -{:05}-of-{count:05}.gguf", no + 1);
        return Err(Error::file(&label, expected, format!("{file:?}")));
    };
    let mut given = Some((header, shard));
    let mut whole: Option<Header> = None;
    let mut shards = Vec::with_capacity(name.count);
    for number in 1..=name.count {
        let path = path.with_file_name(name.of(number));
        let part = if number == name.number { given.take() } else { read(&path)? };
        let missing = || Error::Missing {
            place: path.display().to_string(),
            expected: format!("file {number} of {}", name.count),
        };
        let (header, shard) = part.ok_or_else(missing)?;
        check_place(&header, name, number)?;
        shards.push(shard);
        match &mut whole {
            None => whole = Some(header),
            Some(whole) => join(whole, header, &shards)?,
        }
    }
    let whole = whole.ok_or_else(missing)?;
    check_tensors(&whole)?;
    Ok((whole, shards))
}

fn read(path: &Path) -> Result<Option<(Header, Shard)>, Error> {
    let Some(mut blob) = open_file(path)? else { return Ok(None) };
    let label = path.display().to_string();
    let header = Header::read(&label, &mut blob)?;
    let start = header.tensors.values().map(|info| info.start).min().unwrap_or(blob.len());
    Ok(Some((header, Shard { label, blob, start, shared: None })))
}

/// That a file is the one its name says.
fn check_place(header: &Header, name: ShardName<'_>, number: usize) -> Result<(), Error> {
    let expected = || format!("{}, as in its name", name.count);
    let Some(split) = Split::read(header)? else {
        return Err(header.error(COUNT, expected(), "none"));
    };
    if split.count != name.count {
        return Err(header.error(COUNT, expected(), split.count));
    }
    if split.no + 1 != number {
        let expected = format!("{}, one less than in its name", number - 1);
        return Err(header.error(NO, expected, split.no));
    }
    Ok(())
}

/// Adds the tensors of the last of `shards` to those of the files before it.
fn join(whole: &mut Header, part: Header, shards: &[Shard]) -> Result<(), Error> {
    let own = |key: &str| key == NO || key == ALIGNMENT;
    if let Some(key) = part.keys().find(|key| !own(key) && !part.agrees(whole, key)) {
        let expected = format!("what {} says", whole.label());
        return Err(part.error(key, expected, "something else"));
    }
    let label = part.label().to_owned();
    for (name, mut info) in part.tensors {
        info.shard = shards.len() - 1;
        match whole.tensors.entry(name) {
            Entry::Vacant(place) => _ = place.insert(info),
            Entry::Occupied(other) => {
                let first = shards[other.get().shard].label();
                let expected = "no tensor that another file has";
                return Err(tensor_error(
                    &label,
                    other.key(),
                    expected,
                    format!("that of {first}"),
                ));
            }
        }
    }
    Ok(())
}

/// That there are as many tensors in all as the first file says.
fn check_tensors(whole: &Header) -> Result<(), Error> {
    let count = whole.tensors.len();
    match whole.size(TENSORS)? {
        Some(said) if said != count => {
            let expected = format!("{count}, which is how many tensors there are in all");
            Err(whole.error(TENSORS, expected, said))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_put_together() {
        let name = ShardName::parse("a-b-00002-of-00013.gguf").unwrap();
        assert_eq!(name, ShardName { stem: "a-b", number: 2, count: 13 });
        assert_eq!(name.of(13), "a-b-00013-of-00013.gguf");
        for file in [
            "a.gguf",
            "a-00001-of-00002",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-00001-of-00000.gguf",
            "a-00001-of-04097.gguf",
            "a-1-of-2.gguf",
            "a-+0001-of-00002.gguf",
            "a-00001-of-000002.gguf",
            "a-00001-of-0000\u{b2}.gguf",
            "00001-of-00002.gguf",
            "a-00001-of-00002.GGUF",
        ] {
            assert_eq!(ShardName::parse(file), None, "{file}");
        }
    }
}
