//! safetensors: one file, or shards with an index.
//!
//! Headers are parsed by the `safetensors` crate, which refuses overlaps, holes, and shapes that
//! disagree with their byte ranges; here every file's length, every name and every shape is
//! compared with the configuration before the first tensor is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use ::safetensors::tensor::{Dtype, Metadata};
use burn::tensor::{DType, Device, Tensor, TensorData};
use draftproof_kernels::{
    burn::{self as kernels, Matrix},
    map::MapView,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    Source, WeightType, Weights, check_size, hash_pieces,
    source::{Blob, Shared},
    tensor_error,
};
use crate::{Error, config::TransformerConfig, names::Names};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The limit of the format's own reader.
const MAX_HEADER: u64 = 100_000_000;
const MAX_INDEX: u64 = 100_000_000;
const MAX_SHARDS: usize = 4096;

/// The tensors of a checkpoint, checked against a configuration.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
    device: Device,
    parameters: u64,
    weight_type: WeightType,
}

#[derive(Debug)]
struct Shard {
    label: String,
    blob: Blob,
    data_start: u64,
    /// The data, once a matrix was asked for.
    shared: Option<Shared>,
}

impl Shard {
    fn view(&mut self, start: u64, count: usize) -> Result<MapView, Error> {
        let shared = match &mut self.shared {
            Some(shared) => shared,
            None => self.shared.insert(self.blob.share(self.data_start, self.blob.len())?),
        };
        // The file may have shrunk since its length was read.
        let cut_off = || Error::Io {
            path: (&self.label).into(),
            source: std::io::ErrorKind::UnexpectedEof.into(),
        };
        shared.view(self.data_start + start, count).ok_or_else(cut_off)
    }
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
    bytes: usize,
}

impl Checkpoint {
    /// Opens the weights in `source` and checks that they are those `config` asks for.
    ///
    /// # Errors
    /// If a file is missing, cut off or malformed; if a tensor is missing, of another shape or of a
    /// type that is not f32, f16 or bf16; if there is a tensor that the configuration has no use
    /// for; or if a head that should be the embedding differs from it.
    pub fn open(
        source: &Source,
        config: &TransformerConfig,
        device: &Device,
    ) -> Result<Self, Error> {
        let mut checkpoint = Self {
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            device: device.clone(),
            parameters: 0,
            weight_type: WeightType::F32,
        };
        if let Some(blob) = source.open(SINGLE)? {
            checkpoint.add_shard(source.label(SINGLE), blob)?;
        } else if let Some(bytes) = source.read(INDEX, MAX_INDEX)? {
            checkpoint.add_indexed(source, &bytes)?;
        } else {
            let expected = format!("{SINGLE} or {INDEX}");
            return Err(Error::Missing { place: source.place(), expected });
        }
        checkpoint.complete_names(&config.names);
        if config.tied_head {
            checkpoint.complete_tie(&config.names);
        }
        checkpoint.check(source, config)?;
        Ok(checkpoint)
    }

    /// The digest of the weights in `source`, if there are some.
    #[cfg(feature = "remote")]
    pub(crate) fn digest_if_here(
        source: &Source,
        config: &TransformerConfig,
    ) -> Result<Option<[u8; 32]>, Error> {
        let files = [SINGLE, INDEX].map(|file| source.open(file));
        if files.into_iter().collect::<Result<Vec<_>, _>>()?.iter().all(Option::is_none) {
            return Ok(None);
        }
        // No weight is put on the device.
        Self::open(source, config, &Device::default())?.fingerprint().map(Some)
    }

    /// The number of weights the model uses; a tied head counts once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The type of most weights.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    fn add_shard(&mut self, label: String, mut blob: Blob) -> Result<(), Error> {
        let metadata = read_header(&label, &mut blob)?;
        let (header_end, metadata) = metadata;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = Entry {
                shard: self.shards.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: start as u64,
                bytes: end - start,
            };
            if let Some(other) = self.tensors.insert(name.clone(), entry) {
                let found = format!("another one in {}", self.shards[other.shard].label);
                return Err(tensor_error(&label, &name, "no other of this name", found));
            }
        }
        self.shards.push(Shard { label, blob, data_start: header_end, shared: None });
        Ok(())
    }

    fn add_indexed(&mut self, source: &Source, bytes: &[u8]) -> Result<(), Error> {
        let label = source.label(INDEX);
        let index: Index =
            serde_json::from_slice(bytes).map_err(|source| Error::json(&label, source))?;
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        if files.is_empty() || files.len() > MAX_SHARDS {
            let found = format!("{} shards", files.len());
            return Err(Error::file(&label, format!("1 to {MAX_SHARDS} shards"), found));
        }
        for file in files {
            if !is_plain_name(file) {
                let expected = "names of .safetensors files in the same folder";
                return Err(Error::field(&label, "weight_map", expected, format!("{file:?}")));
            }
            let blob = source.open(file)?.ok_or_else(|| Error::Missing {
                place: source.place(),
                expected: format!("{file}, which {INDEX} names"),
            })?;
            self.add_shard(source.label(file), blob)?;
        }
        for (name, file) in &index.weight_map {
            let home = self.tensors.get(name).map(|entry| &self.shards[entry.shard].label);
            if home != Some(&source.label(file)) {
                let found = home.map_or_else(|| "none".to_owned(), |home| format!("it in {home}"));
                return Err(tensor_error(&label, name, format!("it in {file}"), found));
            }
        }
        let listed = |name: &&String| index.weight_map.contains_key(*name);
        if let Some(name) = self.tensors.keys().find(|name| !listed(name)) {
            let home = &self.shards[self.tensors[name].shard].label;
            return Err(tensor_error(home, name, format!("it listed in {INDEX}"), "it not listed"));
        }
        Ok(())
    }

    /// Puts the family's prefix before the names of a checkpoint that leaves it out; the head never
    /// has it.
    fn complete_names(&mut self, names: &Names) {
        let Some(prefix) = names.prefix else { return };
        if self.tensors.keys().any(|name| name.starts_with(prefix)) {
            return;
        }
        let complete = |(name, entry): (String, Entry)| match name.starts_with(names.head) {
            true => (name, entry),
            false => (format!("{prefix}{name}"), entry),
        };
        self.tensors = std::mem::take(&mut self.tensors).into_iter().map(complete).collect();
    }

    /// Of two names for one tensor a checkpoint may have kept the head's.
    fn complete_tie(&mut self, names: &Names) {
        let [head, embedding] = [names.head, names.embedding].map(|name| format!("{name}.weight"));
        if !self.tensors.contains_key(&embedding)
            && let Some(entry) = self.tensors.remove(&head)
        {
            self.tensors.insert(embedding, entry);
        }
    }

    fn check(&mut self, source: &Source, config: &TransformerConfig) -> Result<(), Error> {
        let mut used = BTreeSet::new();
        let mut parameters = 0_u64;
        let mut by_type = BTreeMap::new();
        config.tensors(&mut |name, shape| {
            let (_, weight_type) = self.find(name, shape, &source.place())?;
            let count = shape.iter().product::<usize>() as u64;
            parameters += count;
            *by_type.entry(weight_type).or_insert(0) += count;
            used.insert(name.to_owned());
            Ok(())
        })?;
        let spare: Vec<String> =
            self.tensors.keys().filter(|name| !used.contains(*name)).cloned().collect();
        let names = &config.names;
        let head = format!("{}.weight", names.head);
        for name in spare {
            if name == head && config.tied_head {
                self.check_tied(config)?;
            } else if !names.buffers.iter().any(|end| name.ends_with(end)) {
                let home = &self.shards[self.tensors[&name].shard].label;
                let expected = "no tensor that config.json has no use for";
                return Err(tensor_error(home, &name, expected, "one"));
            }
        }
        self.parameters = parameters;
        let most = by_type.into_iter().max_by_key(|&(_, count)| count);
        self.weight_type = most.map_or(WeightType::F32, |(weight_type, _)| weight_type);
        Ok(())
    }
    /// SHA-256 over the names, types, shapes and values of all tensors, in the order of their names.
    /// Of a tensor above 4 MiB only pieces count.
    pub(crate) fn fingerprint(&mut self) -> Result<[u8; 32], Error> {
        let mut hash = Sha256::new();
        for (name, Entry { shard, dtype, shape, start, bytes }) in &self.tensors {
            hash.update(format!("{name} {dtype:?} {shape:?}\n"));
            let Shard { blob, data_start, .. } = &mut self.shards[*shard];
            hash_pieces(&mut hash, blob, *data_start + start, *bytes)?;
        }
        Ok(hash.finalize().into())
    }

    /// A tied checkpoint may carry the head as well, if it is the embedding.
    fn check_tied(&mut self, config: &TransformerConfig) -> Result<(), Error> {
        let shape = [config.vocab, config.hidden];
        let [head, tied] =
            [config.names.head, config.names.embedding].map(|name| format!("{name}.weight"));
        // Bits, not values: a NaN is equal to itself here.
        if self.take(&head, &shape)?.as_bytes() != self.take(&tied, &shape)?.as_bytes() {
            let home = &self.shards[self.tensors[&head].shard].label;
            let expected = format!("the values of {tied}, since config.json ties the two");
            return Err(tensor_error(home, &head, expected, "others"));
        }
        Ok(())
    }

    fn find(
        &self,
        name: &str,
        shape: &[usize],
        place: &str,
    ) -> Result<(&Entry, WeightType), Error> {
        let Some(entry) = self.tensors.get(name) else {
            return Err(tensor_error(place, name, format!("shape {shape:?}"), "no such tensor"));
        };
        let home = &self.shards[entry.shard].label;
        if entry.shape != shape {
            let (expected, found) = (format!("shape {shape:?}"), format!("{:?}", entry.shape));
            return Err(tensor_error(home, name, expected, found));
        }
        let weight_type = match entry.dtype {
            Dtype::F32 => WeightType::F32,
            Dtype::F16 => WeightType::F16,
            Dtype::BF16 => WeightType::Bf16,
            other => {
                let found = format!("{other:?}");
                return Err(tensor_error(home, name, "type F32, F16 or BF16", found));
            }
        };
        Ok((entry, weight_type))
    }
}

impl Weights for Checkpoint {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorData, Error> {
        let (entry, weight_type) = self.find(name, shape, "the checkpoint")?;
        let (index, start, bytes) = (entry.shard, entry.start, entry.bytes);
        let shard = &mut self.shards[index];
        let bytes = shard.blob.read(shard.data_start + start, bytes)?;
        Ok(TensorData::new(weight_type.widen(&bytes), shape.to_vec()))
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix, Error> {
        self.rows(name, shape, 0..shape[0])
    }

    /// On the bytes as they are stored, shared by all tensors: nothing is widened.
    fn rows(&mut self, name: &str, shape: [usize; 2], rows: Range<usize>) -> Result<Matrix, Error> {
        let (entry, weight_type) = self.find(name, &shape, "the checkpoint")?;
        let width = entry.bytes / shape[0];
        let (index, start) = (entry.shard, entry.start + (rows.start * width) as u64);
        let (count, shape) = (rows.len() * width, [rows.len(), shape[1]]);
        let shard = &mut self.shards[index];
        let dtype = match weight_type {
            WeightType::F32 => Some(DType::F32),
            WeightType::Bf16 if kernels::row_invariant(&self.device) => Some(DType::BF16),
            // General kernels would widen it for every call.
            _ => None,
        };
        let held = shape.iter().product::<usize>() * dtype.map_or(4, |dtype| dtype.size());
        check_size(&self.device, &shard.label, name, held)?;
        let Some(dtype) = dtype else {
            let bytes = shard.blob.read(shard.data_start + start, count)?;
            let data = TensorData::new(weight_type.widen(&bytes), shape);
            return Ok(Matrix::Float(Tensor::from_data(data, &self.device)));
        };
        let weights = kernels::weights(shard.view(start, count)?, shape, dtype, &self.device);
        Ok(Matrix::Float(weights))
    }

    fn device(&self) -> &Device {
        &self.device
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The header and where the data begins; the data ends exactly where the file does.
fn read_header(label: &str, blob: &mut Blob) -> Result<(u64, Metadata), Error> {
    let len = blob.len();
    if len < 8 {
        let found = format!("{len} bytes in all");
        return Err(Error::file(label, "8 bytes of header length", found));
    }
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&blob.read(0, 8)?);
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER || header > len - 8 {
        let expected = format!("a header of at most {} bytes", MAX_HEADER.min(len - 8));
        return Err(Error::file(label, expected, header.to_string()));
    }
    let bytes = blob.read(8, header as usize)?;
    let metadata: Metadata =
        serde_json::from_slice(&bytes).map_err(|source| Error::json(label, source))?;
    let data = metadata.tensors().values().map(|info| info.data_offsets.1 as u64).max();
    let expected = data.unwrap_or(0);
    let found = len - 8 - header;
    if expected != found {
        let found = format!("{found} bytes");
        return Err(Error::file(label, format!("{expected} bytes of tensor data"), found));
    }
    Ok((8 + header, metadata))
}

/// No separators, no parent, nothing hidden: the name cannot lead out of the folder.
fn is_plain_name(file: &str) -> bool {
    file.ends_with(".safetensors")
        && !file.starts_with('.')
        && file.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        for name in ["model.safetensors", "model-00001-of-00002.safetensors", "a_b.safetensors"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in [
            "../x.safetensors",
            "/etc/x.safetensors",
            "a/b.safetensors",
            "a\\b.safetensors",
            "..safetensors",
            ".x.safetensors",
            "model.safetensors.index.json",
            "x\0.safetensors",
            "c:x.safetensors",
            "",
        ] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
