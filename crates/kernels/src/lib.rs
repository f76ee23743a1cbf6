//! Kernels whose output rows are functions of their own inputs, bit for bit.
//!
//! A model that checks drafted tokens runs several rows where plain decoding runs one. If the last
//! bit of a row depends on how many others share the pass, the two may disagree on the text. Here
//! they cannot: **every output is computed in one fixed order, stated in the docs of its module**,
//! whatever the number of rows, the split into threads ([`team`]: threads split outputs, never a
//! sum) or the instruction set ([`isa`]: portable, AVX2, AVX-512 and NEON give the same bits).
//!
//! ```
//! use draftproof_kernels::{linear::linear, weight::Weight};
//!
//! // Two outputs of three inputs, for two rows; then the second row alone.
//! let weight = Weight::F32(&[1.0, 2.0, 3.0, 0.1, 0.2, 0.3]);
//! let x = [1.0, 1.0, 1.0, 0.5, 0.25, 0.125];
//! let (mut both, mut alone) = ([0.0; 4], [0.0; 2]);
//! linear(&x, 3, weight, None, &mut both);
//! linear(&x[3..], 3, weight, None, &mut alone);
//! assert_eq!(both[2..], alone);
//! ```
//!
//! Two layers: plain slices ([`linear`], [`attention`], [`norm`], [`rope`], [`glu`], [`softcap`],
//! [`embedding`], and [`layers`] of all these), with a yardstick for their speed ([`limits`]), and,
//! behind the feature `burn`, the same on burn tensors (module `burn`), where the features `wgpu` and
//! `cuda` add kernels for GPUs, which keep the promise in an order of their own.
//! This is the only crate of the workspace with `unsafe` code: intrinsics in `simd` and
//! [`linear::tiles`], disjoint writes and jobs in [`team`], the memory map in [`map`], slices that are
//! kept beside their tensors in `burn`, and launches of GPU kernels.

pub mod attention;
#[cfg(feature = "burn")]
pub mod burn;
pub mod embedding;
pub mod glu;
pub mod isa;
pub mod layers;
pub mod limits;
pub mod linear;
pub mod map;
mod math;
pub mod norm;
pub mod quant;
pub mod rope;
mod scratch;
mod simd;
pub mod softcap;
pub mod team;
pub mod weight;
