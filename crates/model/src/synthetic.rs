//! Models of a given size with arbitrary weights: to measure speed, where no checkpoint is at hand.
//! Their text means nothing.

use burn::tensor::{DType, Device, Tensor, TensorData};
use draftproof_kernels::{
    burn::{self as kernels, Matrix},
    map::Map,
};
use half::bf16;
use serde_json::json;

use crate::{
    Error,
    config::ModelConfig,
    load::{WeightType, Weights},
};

/// The sizes there are.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &["100m"]
}

/// The shape called `name`: Llama's, with grouped queries and a tied head.
///
/// # Errors
/// If there is none of that name.
pub(crate) fn config(name: &str) -> Result<ModelConfig, Error> {
    let sizes = match name {
        // 100 091 136 weights.
        "100m" => json!({
            "model_type": "llama",
            "vocab_size": 32_000,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true,
        }),
        _ => return Err(Error::Synthetic { name: name.into(), available: names().join(", ") }),
    };
    ModelConfig::parse(name, sizes.to_string().as_bytes())
}

/// Weights that are all over the place, and the same every time: uniform, with the variance that
/// keeps the size of activations.
#[derive(Debug)]
pub(crate) struct Arbitrary {
    state: u64,
    device: Device,
}

impl Arbitrary {
    pub(crate) fn new(device: &Device) -> Self {
        Self { state: 1, device: device.clone() }
    }

    /// The type of its matrices on this device.
    pub(crate) fn weight_type(&self) -> WeightType {
        if kernels::row_invariant(&self.device) { WeightType::Bf16 } else { WeightType::F32 }
    }

    /// Uniform on [−1, 1) (splitmix64).
    pub(crate) fn next(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, shape: [usize; 2]) -> impl Iterator<Item = bf16> {
        let scale = (3.0 / shape[1] as f32).sqrt();
        (0..shape[0] * shape[1]).map(move |_| bf16::from_f32(scale * self.next()))
    }
}

impl Weights for Arbitrary {
    /// Vectors are those of norms: ones.
    fn take(&mut self, _name: &str, shape: &[usize]) -> Result<TensorData, Error> {
        Ok(TensorData::new(vec![1.0_f32; shape.iter().product()], shape.to_vec()))
    }

    fn matrix(&mut self, _name: &str, shape: [usize; 2]) -> Result<Matrix, Error> {
        let device = self.device.clone();
        if self.weight_type() == WeightType::Bf16 {
            let map = Map::resident(2 * shape[0] * shape[1], |bytes| {
                let places = bytes.as_chunks_mut().0.iter_mut();
                places.zip(self.values(shape)).for_each(|(to, value)| *to = value.to_ne_bytes());
                Ok(())
            });
            let map = map.map_err(|source| Error::Io { path: "(memory)".into(), source })?;
            let all = map.view(0..map.len());
            return Ok(Matrix::Float(kernels::weights(all, shape, DType::BF16, &device)));
        }
        let values: Vec<f32> = self.values(shape).map(bf16::to_f32).collect();
        Ok(Matrix::Float(Tensor::from_data(TensorData::new(values, shape), &device)))
    }

    fn device(&self) -> &Device {
        &self.device
    }
}
