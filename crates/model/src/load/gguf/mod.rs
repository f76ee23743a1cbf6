//! GGUF: one file with metadata, tokenizer and weights, or several that it was split into.
//!
//! Weights stay as they are stored: blocks of a few bits a value, bf16 or f32, on the file's bytes
//! shared by all tensors. f16 is widened once; so is everything for a device whose kernels read no
//! blocks.

mod config;
mod header;
mod shards;
mod tokenizer;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
};

use burn::tensor::{DType, Device, Tensor, TensorData};
use draftproof_kernels::{
    burn::{self as kernels, Matrix},
    map::{Map, MapView},
};
use sha2::{Digest, Sha256};

use super::{WeightType, Weights, check_size, hash_pieces, tensor_error};
use crate::{
    ChatTemplate, Error, Tokenizer,
    config::{ModelConfig, TransformerConfig},
};
use header::{Header, TensorInfo};
use shards::{Shard, ShardName};

/// A GGUF file, checked against its own metadata; a split one as a whole.
#[derive(Debug)]
pub struct Gguf {
    /// The metadata of the first file, and the tensors of all.
    header: Header,
    shards: Vec<Shard>,
    config: ModelConfig,
    /// Rows of each query and key head, of which the two halves of each pair lie side by side.
    interleaved: bool,
    device: Device,
    parameters: u64,
    weight_type: WeightType,
}

impl Gguf {
    /// Opens a file, and the others if it is one of several, and checks that the tensors are those
    /// the metadata ask for.
    ///
    /// # Errors
    /// If it cannot be read, is no GGUF file of version 2 or 3, is cut off, says what cannot be, or
    /// holds a model that is not supported; if one of several is missing or belongs to others. The
    /// message names file and tensor or entry.
    pub fn open(path: &Path, device: &Device) -> Result<Self, Error> {
        let (header, mut shards) = shards::open(path)?;
        let divisors = || match header.tensors.get(config::ROPE_DIVISORS) {
            None => Ok(None),
            Some(info) => {
                let bytes = shards[info.shard].read(info.start, info.bytes)?;
                Ok(Some(info.weight_type.widen(&bytes)))
            }
        };
        let config::Config { model, interleaved } = config::read(&header, divisors)?;
        let mut gguf = Self {
            header,
            shards,
            config: model,
            interleaved,
            device: device.clone(),
            parameters: 0,
            weight_type: WeightType::F32,
        };
        gguf.check()?;
        Ok(gguf)
    }

    /// The names of all files of a split one, in order, if `file` is what one of them is called
    /// (`NAME-00002-of-00003.gguf`): a path to it leads to the others with their names in its place.
    #[must_use]
    pub fn shards(file: &str) -> Option<Vec<String>> {
        let name = ShardName::parse(file)?;
        Some((1..=name.count).map(|number| name.of(number)).collect())
    }

    /// What the metadata say about the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
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

    /// The tokenizer in the file, if there is one.
    ///
    /// # Errors
    /// If it is of a kind that is not supported, or contradicts itself.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        tokenizer::read(&self.header)
    }

    /// The chat template in the file, if there is one.
    ///
    /// # Errors
    /// If it is no text, or the ids of its special tokens lie outside the vocabulary.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        tokenizer::chat_template(&self.header)
    }

    /// SHA-256 of the metadata about the model, and of those about the tokenizer: the same however
    /// a file is split.
    pub(crate) fn digests(&self) -> [[u8; 32]; 2] {
        let about_text = |key: &str| key.starts_with("tokenizer.");
        let about_model = |key: &str| !about_text(key) && !shards::KEYS.contains(&key);
        [self.header.digest(about_model), self.header.digest(about_text)]
    }

    /// SHA-256 over the names, types, shapes and values of all tensors, as for a checkpoint.
    pub(crate) fn fingerprint(&mut self) -> Result<[u8; 32], Error> {
        let mut hash = Sha256::new();
        for (name, TensorInfo { shape, weight_type, shard, start, bytes }) in &self.header.tensors {
            hash.update(format!("{name} {weight_type:?} {shape:?}\n"));
            hash_pieces(&mut hash, self.shards[*shard].blob(), *start, *bytes)?;
        }
        Ok(hash.finalize().into())
    }

    fn check(&mut self) -> Result<(), Error> {
        let transformer: &TransformerConfig = &self.config.transformer;
        let (mut used, mut by_type) = (BTreeSet::new(), BTreeMap::new());
        transformer.tensors(&mut |name, shape| {
            let info = self.find(name, shape)?;
            *by_type.entry(info.weight_type).or_insert(0) += shape.iter().product::<usize>() as u64;
            used.insert(name.to_owned());
            Ok(())
        })?;
        let buffers = transformer.names.buffers;
        let spare = |name: &&String| !used.contains(*name) && !buffers.contains(&name.as_str());
        if let Some(name) = self.header.tensors.keys().find(spare) {
            let expected = "no tensor that the metadata have no use for";
            let label = self.shards[self.header.tensors[name].shard].label();
            return Err(tensor_error(label, name, expected, "one"));
        }
        self.parameters = by_type.values().sum();
        let most = by_type.into_iter().max_by_key(|&(_, count)| count);
        self.weight_type = most.map_or(WeightType::F32, |(weight_type, _)| weight_type);
        Ok(())
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, Error> {
        let expected = format!("shape {shape:?}");
        let Some(info) = self.header.tensors.get(name) else {
            return Err(tensor_error(self.header.label(), name, expected, "no such tensor"));
        };
        if info.shape != shape {
            let (label, found) = (self.shards[info.shard].label(), format!("{:?}", info.shape));
            return Err(tensor_error(label, name, expected, found));
        }
        Ok(info)
    }

    /// Where rows of the tensor lie: heads whose pairs lie side by side are put in the order of
    /// pairs' halves. None: in order.
    fn order(&self, name: &str) -> Option<impl Fn(usize) -> usize + use<>> {
        let part = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias"))?;
        let turned = part.ends_with(".attn_q") || part.ends_with(".attn_k");
        let dim = self.config.transformer.head_dim;
        (self.interleaved && turned).then_some(move |row: usize| {
            let (head, row) = (row / dim, row % dim);
            let (half, pair) = (row / (dim / 2), row % (dim / 2));
            head * dim + 2 * pair + half
        })
    }

    /// The bytes of some rows of `width` bytes of a tensor that begins at `start` of `shard`, as they
    /// lie or in [`order`](Self::order).
    fn view(
        &mut self,
        name: &str,
        (shard, start): (usize, u64),
        width: usize,
        rows: Range<usize>,
    ) -> Result<MapView, Error> {
        let order = self.order(name);
        let total = self.shards.iter_mut().map(|shard| shard.blob().len()).sum();
        let (label, shared) = self.shards[shard].shared(total)?;
        let failed = |source| Error::Io { path: label.into(), source };
        let Some(order) = order else {
            let start = start + (rows.start * width) as u64;
            // The file may have shrunk since its length was read.
            let cut_off = || failed(std::io::ErrorKind::UnexpectedEof.into());
            return shared.view(start, rows.len() * width).ok_or_else(cut_off);
        };
        let from = |row: usize| shared.view(start + (order(row) * width) as u64, width);
        let map = Map::resident(rows.len() * width, |out| {
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(width)) {
                let row = from(row).ok_or(std::io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(&row);
            }
            Ok(())
        });
        let map = map.map_err(failed)?;
        Ok(map.view(0..rows.len() * width))
    }
}

impl Weights for Gguf {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorData, Error> {
        let &TensorInfo { weight_type, shard, start, bytes, .. } = self.find(name, shape)?;
        let rows = shape[0];
        let bytes = self.view(name, (shard, start), bytes / rows, 0..rows)?;
        Ok(TensorData::new(weight_type.widen(&bytes), shape.to_vec()))
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix, Error> {
        self.rows(name, shape, 0..shape[0])
    }

    fn rows(&mut self, name: &str, shape: [usize; 2], rows: Range<usize>) -> Result<Matrix, Error> {
        let &TensorInfo { weight_type, shard, start, bytes, .. } = self.find(name, &shape)?;
        let (width, shape) = (bytes / shape[0], [rows.len(), shape[1]]);
        let bytes = self.view(name, (shard, start), width, rows)?;
        let device = &self.device;
        let dtype = match weight_type {
            WeightType::F32 => Some(DType::F32),
            WeightType::Bf16 if kernels::row_invariant(device) => Some(DType::BF16),
            WeightType::Blocks(format) if kernels::reads_blocks(device) => {
                return Ok(Matrix::blocks(bytes, shape, format, device));
            }
            _ => None,
        };
        let held = shape.iter().product::<usize>() * dtype.map_or(4, |dtype| dtype.size());
        check_size(device, self.shards[shard].label(), name, held)?;
        let Some(dtype) = dtype else {
            let data = TensorData::new(weight_type.widen(&bytes), shape);
            return Ok(Matrix::Float(Tensor::from_data(data, device)));
        };
        Ok(Matrix::Float(kernels::weights(bytes, shape, dtype, device)))
    }

    fn device(&self) -> &Device {
        &self.device
    }
}
