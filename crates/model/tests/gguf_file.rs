//! GGUF files that a test takes apart and puts together again.

use std::{fs, io::Write};

use draftproof_kernels::quant::{BlockFormat, Blocks, dequantise};
use draftproof_model::{Error, Model};
use half::f16;
use tempfile::NamedTempFile;

use crate::support::{cpu, golden};

/// Everything a file says, in its order.
#[derive(Clone)]
pub(crate) struct GgufFile {
    /// Key, and type and value as they are stored.
    pub(crate) items: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<GgufTensor>,
}

#[derive(Clone)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    /// The inner dimension first.
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) const ALIGNMENT: usize = 32;
pub(crate) const TEXT: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// The bytes of a text: its length and itself.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Type and value of a number of four bytes.
pub(crate) fn number(number: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), number.to_le_bytes()].concat()
}

/// Type and value of a text.
pub(crate) fn text_item(value: &str) -> Vec<u8> {
    [&TEXT.to_le_bytes()[..], &text(value)].concat()
}

/// Type and value of an array.
pub(crate) fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    let kinds = [ARRAY.to_le_bytes(), kind.to_le_bytes()].concat();
    [&kinds[..], &count.to_le_bytes(), elements].concat()
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8(self.take(len).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            10..=12 => 8,
            TEXT => self.u64() as usize,
            _ => 4,
        };
        self.take(size);
    }

    fn item(&mut self) -> Vec<u8> {
        let start = self.0;
        match self.u32() {
            ARRAY => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip(kind));
            }
            kind => self.skip(kind),
        }
        start[..start.len() - self.0.len()].to_vec()
    }
}

pub(crate) fn bytes_of(name: &str) -> Vec<u8> {
    fs::read(golden("llama-gguf").join(name)).unwrap()
}

impl GgufFile {
    /// A file of golden/llama-gguf.
    pub(crate) fn golden(name: &str) -> Self {
        let all = bytes_of(name);
        let mut bytes = Bytes(&all[8..]);
        let (tensors, items) = (bytes.u64(), bytes.u64());
        let items = (0..items).map(|_| (bytes.text(), bytes.item())).collect();
        let infos: Vec<_> = (0..tensors)
            .map(|_| {
                let (name, rank) = (bytes.text(), bytes.u32());
                let dims: Vec<u64> = (0..rank).map(|_| bytes.u64()).collect();
                (name, dims, bytes.u32(), bytes.u64() as usize)
            })
            .collect();
        let start = (all.len() - bytes.0.len()).next_multiple_of(ALIGNMENT);
        let ends = infos.iter().skip(1).map(|info| info.3).chain([all.len() - start]);
        let tensors = infos.iter().zip(ends).map(|((name, dims, kind, from), to)| {
            let data = all[start + from..start + to].to_vec();
            GgufTensor { name: name.clone(), dims: dims.clone(), kind: *kind, data }
        });
        Self { items, tensors: tensors.collect() }
    }

    pub(crate) fn item(&mut self, key: &str) -> &mut Vec<u8> {
        let found = self.items.iter_mut().find(|(name, _)| name == key);
        &mut found.unwrap_or_else(|| panic!("{key}")).1
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("{name}"))
    }

    /// The file with all tensors in F32.
    pub(crate) fn widened(mut self) -> Self {
        for GgufTensor { dims, kind, data, .. } in &mut self.tensors {
            let count = dims.iter().product::<u64>() as usize;
            let values: Vec<f32> = match kind {
                0 => continue,
                1 => {
                    let pairs = data[..2 * count].chunks_exact(2);
                    pairs.map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
                }
                8 => {
                    let blocks = Blocks::new(BlockFormat::Q8_0, &data[..34 * count / 32]);
                    let mut values = vec![0.0; blocks.len()];
                    dequantise(blocks, &mut values);
                    values
                }
                other => panic!("type {other}"),
            };
            *kind = 0;
            *data = values.into_iter().flat_map(f32::to_le_bytes).collect();
        }
        self
    }

    /// The file, with `spoil` at work on the offsets of the tensors.
    pub(crate) fn bytes_with(&self, spoil: impl Fn(usize, u64) -> u64) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.items.len() as u64).to_le_bytes());
        for (key, item) in &self.items {
            out.extend([&text(key)[..], item].concat());
        }
        let mut offset = 0;
        for (i, tensor) in self.tensors.iter().enumerate() {
            out.extend(text(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(spoil(i, offset).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(ALIGNMENT) as u64;
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.data);
        }
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_with(|_, offset| offset)
    }

    pub(crate) fn open(&self) -> Result<Model, Error> {
        open(&self.bytes())
    }

    /// The message of the refusal, which must be there.
    pub(crate) fn refusal(&self) -> String {
        refusal(&self.bytes())
    }
}

/// A file on disk with these bytes.
pub(crate) fn on_disk(bytes: &[u8]) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

pub(crate) fn open(bytes: &[u8]) -> Result<Model, Error> {
    Model::open(on_disk(bytes).path(), &cpu())
}

/// The message of the refusal, which names the file.
pub(crate) fn refusal(bytes: &[u8]) -> String {
    let message = open(bytes).expect_err("the file must be refused").to_string();
    assert!(message.contains(".gguf"), "{message}");
    message
}
