//! What stands before the tensor data of a GGUF file: metadata and the list of tensors.
//!
//! Written here because no crate that is kept up reads the format and nothing else: those of the
//! inference engines bring their tensors along, and take memory on the word of counts in the file.
//! The format is that of `docs/gguf.md` in ggml, versions 2 and 3, little-endian.
//!
//! Every count is compared with what is left of the file before it is used, the header as a whole
//! with [`MAX_HEADER`]. Values stay where they are and are read when they are asked for.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

use draftproof_kernels::quant::BlockFormat;
use sha2::{Digest, Sha256};

use crate::{
    Error,
    load::{WeightType, source::Blob, tensor_error},
};

/// More than any header needs; most of one is the vocabulary.
const MAX_HEADER: u64 = 256 << 20;
const MAX_ITEMS: u64 = 1 << 16;
const MAX_KEY: u64 = (1 << 16) - 1;
const MAX_NAME: u64 = 64;
const DEFAULT_ALIGNMENT: u64 = 32;
/// What is read at once.
const PIECE: u64 = 1 << 16;

/// Metadata and tensors of a file, checked against its length.
#[derive(Debug)]
pub(crate) struct Header {
    label: String,
    bytes: Vec<u8>,
    metadata: BTreeMap<String, Item>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

/// A tensor: where it lies and what it is.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    /// Row-major, the outer dimension first: the file has them the other way round.
    pub(crate) shape: Vec<usize>,
    pub(crate) weight_type: WeightType,
    /// Which of the files of a split one has it, from 0.
    pub(crate) shard: usize,
    /// From the beginning of that file.
    pub(crate) start: u64,
    pub(crate) bytes: usize,
}

/// A value of the metadata.
#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    /// None: a single value.
    count: Option<usize>,
    /// The value, or the elements.
    place: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Bool,
    Text,
}

const ARRAY: u32 = 9;

impl Kind {
    fn of(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            _ => return None,
        })
    }

    /// None: every value has a length of its own.
    fn size(self) -> Option<usize> {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => Some(size),
            Self::Bool => Some(1),
            Self::Text => None,
        }
    }
}

/// The numbers that ggml gives to the types that are read here.
fn weight_type(code: u32) -> Option<WeightType> {
    Some(match code {
        0 => WeightType::F32,
        1 => WeightType::F16,
        2 => WeightType::Blocks(BlockFormat::Q4_0),
        3 => WeightType::Blocks(BlockFormat::Q4_1),
        6 => WeightType::Blocks(BlockFormat::Q5_0),
        7 => WeightType::Blocks(BlockFormat::Q5_1),
        8 => WeightType::Blocks(BlockFormat::Q8_0),
        12 => WeightType::Blocks(BlockFormat::Q4_K),
        13 => WeightType::Blocks(BlockFormat::Q5_K),
        14 => WeightType::Blocks(BlockFormat::Q6_K),
        30 => WeightType::Bf16,
        _ => return None,
    })
}

/// Walks through a file from its beginning, keeping what it has seen.
struct Reader<'a> {
    label: &'a str,
    blob: &'a mut Blob,
    bytes: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    /// The next `count` bytes, which are `what`.
    fn take(&mut self, count: u64, what: &str) -> Result<Range<usize>, Error> {
        let len = self.blob.len();
        let at = self.at as u64;
        let short = |expected: String, found| Err(Error::file(self.label, expected, found));
        if count > len - at {
            let found = format!("{} until the end of the file", len - at);
            return short(format!("{count} bytes of {what} at {at}"), found);
        }
        let end = at + count;
        if end > MAX_HEADER {
            return short(format!("a header of at most {MAX_HEADER} bytes"), end.to_string());
        }
        let known = self.bytes.len() as u64;
        if end > known {
            let more = (end - known).max(PIECE).min(len - known);
            let piece = self.blob.read(known, more as usize)?;
            self.bytes.extend_from_slice(&piece);
            // The file may have shrunk since its length was read.
            if (self.bytes.len() as u64) < end {
                let source = std::io::ErrorKind::UnexpectedEof.into();
                return Err(Error::Io { path: self.label.into(), source });
            }
        }
        self.at = end as usize;
        Ok(at as usize..end as usize)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        let place = self.take(4, what)?;
        Ok(little(&self.bytes[place]) as u32)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        let place = self.take(8, what)?;
        Ok(little(&self.bytes[place]))
    }

    /// A length, then so many bytes of UTF-8.
    fn text(&mut self, limit: u64, what: &str) -> Result<String, Error> {
        let len = self.u64(what)?;
        if len > limit {
            let expected = format!("{what} of at most {limit} bytes");
            return Err(Error::file(self.label, expected, len.to_string()));
        }
        let place = self.take(len, what)?;
        String::from_utf8(self.bytes[place].to_vec())
            .map_err(|_| Error::file(self.label, format!("{what} in UTF-8"), "other bytes"))
    }

    fn item(&mut self, key: &str) -> Result<Item, Error> {
        let what = format!("{key:?}");
        let code = self.u32(&what)?;
        let (code, count) = match code {
            ARRAY => (self.u32(&what)?, Some(self.u64(&what)?)),
            _ => (code, None),
        };
        let Some(kind) = Kind::of(code) else {
            // Arrays of arrays are in the format's text, and in no file that a model needs.
            let expected = "a number, a flag, a text, or an array of these";
            return Err(Error::field(self.label, key, expected, format!("type {code}")));
        };
        let start = self.at;
        let number = count.unwrap_or(1);
        match kind.size() {
            Some(size) => _ = self.take(number.saturating_mul(size as u64), &what)?,
            None => {
                // A text has a length of 8 bytes at least, so this ends with the file.
                for _ in 0..number {
                    let len = self.u64(&what)?;
                    self.take(len, &what)?;
                }
            }
        }
        // Elements have a byte at least, so the count is below the file's length.
        Ok(Item { kind, count: count.map(|count| count as usize), place: start..self.at })
    }

    fn tensor(&mut self, name: &str) -> Result<(TensorInfo, u64), Error> {
        let what = format!("tensor {name}");
        let error =
            |expected: &str, found: String| Err(tensor_error(self.label, name, expected, found));
        let rank = self.u32(&what)?;
        if !(1..=4).contains(&rank) {
            return error("1 to 4 dimensions", rank.to_string());
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(self.u64(&what)?);
        }
        let code = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let Some(weight_type) = weight_type(code) else {
            let formats = BlockFormat::ALL.map(|format| format.to_string()).join(", ");
            let expected = format!("type F32, F16, BF16 or {formats}");
            return error(&expected, format!("ggml type {code}"));
        };
        let shape: Option<Vec<usize>> =
            dims.iter().rev().map(|&size| usize::try_from(size).ok().filter(|&s| s > 0)).collect();
        let bytes = shape.as_deref().and_then(|shape| weight_type.bytes(shape));
        let (Some(shape), Some(bytes)) = (shape, bytes) else {
            return error(&format!("rows of whole {weight_type} blocks"), format!("{dims:?}"));
        };
        Ok((TensorInfo { shape, weight_type, shard: 0, start: 0, bytes }, offset))
    }
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Header {
    /// Reads and checks everything before the data.
    ///
    /// # Errors
    /// If the file is none, cut off, or says what cannot be.
    pub(crate) fn read(label: &str, blob: &mut Blob) -> Result<Self, Error> {
        let mut reader = Reader { label, blob, bytes: Vec::new(), at: 0 };
        let magic = reader.take(4, "magic")?;
        let found = String::from_utf8_lossy(&reader.bytes[magic]).into_owned();
        if found != "GGUF" {
            return Err(Error::file(label, "\"GGUF\" at its beginning", format!("{found:?}")));
        }
        let version = reader.u32("version")?;
        if ![2, 3].contains(&version) {
            let expected = "GGUF version 2 or 3, little-endian";
            return Err(Error::file(label, expected, version.to_string()));
        }
        let (tensors, items) = (reader.u64("tensor count")?, reader.u64("metadata count")?);
        for (what, count) in [("tensors", tensors), ("metadata entries", items)] {
            if count > MAX_ITEMS {
                let expected = format!("at most {MAX_ITEMS} {what}");
                return Err(Error::file(label, expected, count.to_string()));
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..items {
            let key = reader.text(MAX_KEY, "a metadata key")?;
            let item = reader.item(&key)?;
            match metadata.entry(key) {
                Entry::Vacant(place) => _ = place.insert(item),
                Entry::Occupied(other) => {
                    let (expected, found) = ("one entry of this name", "another one");
                    return Err(Error::field(label, other.key(), expected, found));
                }
            }
        }
        let mut list = Vec::new();
        for _ in 0..tensors {
            let name = reader.text(MAX_NAME, "a tensor name")?;
            let (info, offset) = reader.tensor(&name)?;
            list.push((offset, name, info));
        }
        let (end, len) = (reader.at, reader.blob.len());
        let mut bytes = reader.bytes;
        bytes.truncate(end);
        let mut header = Self { label: label.into(), bytes, metadata, tensors: BTreeMap::new() };
        header.place(list, end as u64, len)?;
        Ok(header)
    }

    /// Checks that tensors lie one after the other, each at the next multiple of the alignment, and
    /// end within the file.
    fn place(
        &mut self,
        mut list: Vec<(u64, String, TensorInfo)>,
        end: u64,
        len: u64,
    ) -> Result<(), Error> {
        let alignment =
            self.size("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT as usize) as u64;
        if !alignment.is_power_of_two() || !(8..=PIECE).contains(&alignment) {
            let expected = format!("a power of two from 8 to {PIECE}");
            return Err(Error::field(&self.label, "general.alignment", expected, alignment));
        }
        let data = end.next_multiple_of(alignment);
        list.sort_by_key(|(offset, ..)| *offset);
        let mut next = 0;
        for (offset, name, mut info) in list {
            if offset != next {
                let expected = format!("its data at offset {next}, behind the tensor before it");
                return Err(tensor_error(&self.label, &name, expected, offset.to_string()));
            }
            // Offsets are sums of lengths that are within the file, so none overflows.
            info.start = data + offset;
            let left = len.saturating_sub(info.start);
            if info.bytes as u64 > left {
                let expected = format!("{} bytes of data", info.bytes);
                let found = format!("{left} until the end of the file");
                return Err(tensor_error(&self.label, &name, expected, found));
            }
            next = (offset + info.bytes as u64).next_multiple_of(alignment);
            match self.tensors.entry(name) {
                Entry::Vacant(place) => _ = place.insert(info),
                Entry::Occupied(other) => {
                    let (expected, found) = ("no other of this name", "another one");
                    return Err(tensor_error(&self.label, other.key(), expected, found));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The keys of the metadata.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// Whether `other` says the same about `key`.
    pub(crate) fn agrees(&self, other: &Self, key: &str) -> bool {
        self.stored(key) == other.stored(key)
    }

    fn stored(&self, key: &str) -> Option<(Kind, Option<usize>, &[u8])> {
        let Item { kind, count, place } = self.metadata.get(key)?;
        Some((*kind, *count, &self.bytes[place.clone()]))
    }

    /// SHA-256 of the metadata whose keys `choose` wants.
    pub(crate) fn digest(&self, choose: impl Fn(&str) -> bool) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (key, item) in self.metadata.iter().filter(|(key, _)| choose(key)) {
            let Item { kind, count, place } = item;
            hash.update(format!("{key} {kind:?} {count:?}\n"));
            hash.update(&self.bytes[place.clone()]);
        }
        hash.finalize().into()
    }

    pub(crate) fn error(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Error {
        Error::field(&self.label, key, expected, found)
    }

    /// The single value `key`, if it is there, made what is wanted of it.
    fn single<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Kind, &'a [u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(item) = self.metadata.get(key) else { return Ok(None) };
        let value = match item.count {
            None => read(item.kind, &self.bytes[item.place.clone()]),
            Some(_) => None,
        };
        value.map(Some).ok_or_else(|| self.error(key, expected, self.show(item)))
    }

    /// A value for a message.
    fn show(&self, Item { kind, count, place }: &Item) -> String {
        let bytes = &self.bytes[place.clone()];
        match (count, kind) {
            (Some(count), _) => format!("an array of {count}"),
            (None, Kind::Text) => format!("{:.60?}", String::from_utf8_lossy(&bytes[8..])),
            (None, Kind::Float(_)) => format!("{:?}", float(*kind, bytes)),
            (None, _) => whole(*kind, bytes).map_or_else(|| "a flag".into(), |n| n.to_string()),
        }
    }

    /// A whole number from 0.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Error> {
        self.single(key, "a whole number", |kind, bytes| {
            whole(kind, bytes).and_then(|number| usize::try_from(number).ok())
        })
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        self.single(key, "a number", |kind, bytes| {
            float(kind, bytes).or_else(|| whole(kind, bytes).map(|number| number as f64))
        })
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.single(key, "a flag", |kind, bytes| (kind == Kind::Bool).then(|| bytes[0] != 0))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.single(key, "a text", |kind, bytes| {
            (kind == Kind::Text).then(|| std::str::from_utf8(&bytes[8..]).ok()).flatten()
        })
    }

    /// An array of a kind that `fits`, if it is there.
    fn array(
        &self,
        key: &str,
        expected: &str,
        fits: impl FnOnce(Kind) -> bool,
    ) -> Result<Option<(&Item, usize)>, Error> {
        let Some(item) = self.metadata.get(key) else { return Ok(None) };
        match item.count {
            Some(count) if fits(item.kind) => Ok(Some((item, count))),
            _ => Err(self.error(key, expected, self.show(item))),
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        let found = self.array(key, "an array of texts", |kind| kind == Kind::Text)?;
        let Some((item, count)) = found else { return Ok(None) };
        let mut rest = &self.bytes[item.place.clone()];
        let mut texts = Vec::with_capacity(count);
        while let Some((len, more)) = rest.split_first_chunk::<8>() {
            let (text, more) = more.split_at(u64::from_le_bytes(*len) as usize);
            let text = std::str::from_utf8(text);
            let found = || format!("other bytes in entry {}", texts.len());
            texts.push(text.map_err(|_| self.error(key, "texts in UTF-8", found()))?);
            rest = more;
        }
        Ok(Some(texts))
    }

    pub(crate) fn wholes(&self, key: &str) -> Result<Option<Vec<i128>>, Error> {
        let is_whole = |kind| matches!(kind, Kind::Unsigned(_) | Kind::Signed(_));
        let found = self.array(key, "an array of whole numbers", is_whole)?;
        Ok(found.map(|(item, _)| {
            let each = self.bytes[item.place.clone()].chunks_exact(item.kind.size().unwrap_or(1));
            each.filter_map(|bytes| whole(item.kind, bytes)).collect()
        }))
    }

    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, Error> {
        let is_float = |kind| matches!(kind, Kind::Float(_));
        let found = self.array(key, "an array of numbers", is_float)?;
        Ok(found.map(|(item, _)| {
            let each = self.bytes[item.place.clone()].chunks_exact(item.kind.size().unwrap_or(1));
            each.filter_map(|bytes| float(item.kind, bytes)).collect()
        }))
    }
}

fn whole(kind: Kind, bytes: &[u8]) -> Option<i128> {
    let number = little(bytes);
    match kind {
        Kind::Unsigned(_) => Some(number.into()),
        Kind::Signed(size) => {
            let unused = 64 - 8 * size as u32;
            Some((number.cast_signed() << unused >> unused).into())
        }
        _ => None,
    }
}

fn float(kind: Kind, bytes: &[u8]) -> Option<f64> {
    match kind {
        Kind::Float(4) => Some(f32::from_bits(little(bytes) as u32).into()),
        Kind::Float(_) => Some(f64::from_bits(little(bytes))),
        _ => None,
    }
}
