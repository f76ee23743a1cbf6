//! Tests through the public interface of the crate; one binary, so that burn is linked once.

#![allow(clippy::unwrap_used)]

/// The promise *Bits*: a row depends on its prefix only, to the last bit.
mod bits;
/// Chat templates: as transformers renders them.
mod chat;
/// Devices other than the processor.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod devices;
/// The built-in pair.
mod fable;
/// What the configuration of each family means, and what it may not ask for.
mod families;
/// GGUF files: the same logits as a folder's; files that lie are refused.
mod gguf;
/// Golden folders as GGUF files.
mod gguf_convert;
/// GGUF files of other families: the same logits as their folders'.
mod gguf_families;
/// GGUF files to take apart.
mod gguf_file;
/// GGUF files in several: the same as the whole; files that do not belong together are refused.
mod gguf_split;
/// The reference checkpoints: same logits, same greedy text as transformers.
mod golden;
/// Files that lie: refused with a message, never a panic.
mod hostile;
/// The laws of `LanguageModel`.
mod laws;
/// Looped transformers: every loop, guidance, early exits.
mod looped;
/// What a folder's tokenizer does to a model, and pairs.
mod pairs;
/// Drafts made of the target by rounding its weights.
mod quantised;
/// Models of workers.
#[cfg(feature = "remote")]
mod remote;
/// Drafts never change greedy or coupled text.
mod speculation;
/// Folders, checkpoints and comparisons that the tests share.
mod support;
/// Text to ids and back.
mod text;
