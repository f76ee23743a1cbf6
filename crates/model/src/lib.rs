//! From a folder of files to a [`LanguageModel`](draftproof_decode::LanguageModel), on burn.
//!
//! ```text
//! config.json ──────────▶ ModelConfig ──┐
//! model.safetensors ────▶ Checkpoint ───┴▶ Transformer ─▶ TransformerModel: LanguageModel
//! tokenizer.json ───────▶ Tokenizer        (+ caches)
//! tokenizer_config.json ▶ ChatTemplate
//! generation_config.json ▶ GenerationConfig
//! ```
//! A [`Model`] is all of it. A [GGUF file](load::Gguf) has all of it in one, or in several that it
//! was split into. Files are hostile input: nothing is allocated on a file's word alone,
//! what is not supported is refused by name, and every failure is an [`Error`] that says what was
//! expected, what was found, and where.
//!
//! # Example
//! ```
//! use draftproof_decode::{LanguageModel, lm::Pass};
//! use draftproof_model::{Model, Role, device};
//!
//! let device = device::open("cpu")?;
//! let mut model = Model::builtin("fable", Role::Target, &device)?;
//! let tokenizer = model.tokenizer().expect("fable has one").clone();
//! let prompt = tokenizer.encode("Once upon a time")?;
//!
//! let lm = model.language_model();
//! let sequence = lm.open()?;
//! let rows = lm.forward(&[Pass { sequence, tokens: &prompt, rows: 1 }])?;
//! assert_eq!(rows[0].row(0).len(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Reading order: [`config`], [`families`], [`transformer`], [`attention`], [`cache`], [`language_model`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod attention;
pub mod builtin;
pub mod cache;
pub mod chat;
pub mod config;
pub mod device;
mod error;
pub mod families;
pub mod generation_config;
pub mod guidance;
pub mod initial_state;
pub mod language_model;
pub mod layers;
pub mod load;
pub mod loops;
pub mod machine;
pub mod mlp;
mod model;
pub mod names;
pub mod pair;
mod place;
pub mod reduction;
#[cfg(feature = "remote")]
pub mod remote;
pub mod rope;
mod runner;
pub mod synthetic;
mod token_bytes;
pub mod tokenizer;
pub mod transformer;

pub use builtin::Role;
pub use burn::tensor::Device;
pub use chat::ChatTemplate;
pub use draftproof_kernels::quant::BlockFormat;
pub use error::Error;
pub use generation_config::GenerationConfig;
pub use guidance::{Form, Guidance, Strength};
pub use initial_state::InitialState;
pub use language_model::TransformerModel;
pub use load::WeightType;
pub use model::{Identity, Model};
pub use place::{Place, REMOTE};
pub use runner::Runner;
pub use tokenizer::{Decoder, Tokenizer};
