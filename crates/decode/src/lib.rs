//! Speculative decoding that provably keeps the target's law.
//!
//! A small *draft* model proposes tokens, a large *target* checks them in one pass, and the emitted
//! text follows **exactly** the law that the target's sampler defines. This crate is the algorithm:
//! it knows tokens, rows of logits and integers, and has never heard of tensors, files or clocks.
//!
//! # The data's way
//! ```text
//! prefix ─ target ─▶ logits ─ sampler ─▶ p ─┐
//!                                           ├─ verifier ─▶ accepted tokens + one more
//! prefix ─ draft ─▶ logits ─ sampler ─▶ q ──┘
//! ```
//! | step | module |
//! |---|---|
//! | the loop | [`generate`](mod@generate), one continuation in [`session`] |
//! | models | [`lm`] |
//! | logits to an exact law | [`sampler`], [`dist`], [`exp`](mod@exp) |
//! | a keyed mark on the finished law | [`watermark`] |
//! | proposals with their q | [`draft`] |
//! | verdicts | [`verify`] |
//! | randomness by key | [`noise`], [`ln`](mod@ln) |
//! | counters | [`stats`] |
//! | every decision written down, and derived again | [`trace`] |
//! | a model that is only a table, for tests and examples | [`table`] |
//!
//! # The theorem
//! With p and q as integer weights ([`Dist`]), a drafted token x is accepted with probability
//! exactly `min(1, p_x·W_q / (q_x·W_p))` and replaced, after a rejection, by a draw from
//! `max(0, p·W_q − q·W_p)`. The emitted token then has the law p, whatever q is
//! (Leviathan et al. 2211.17192, theorem in appendix A.1). Because every number is an integer, the tests enumerate
//! *all* paths of this very code and compare the emitted law with the target's by `==`.
//!
//! # Example
//! ```
//! use draftproof_decode::{Dist, Token, dist::{acceptance, overlap, residual}, law::Law};
//!
//! let p = Dist::dense(vec![1, 2, 3, 4])?;
//! let q = Dist::dense(vec![4, 3, 2, 1])?;
//! // Token 0 is drafted too often: it is accepted one time in four.
//! assert_eq!(acceptance(&p, &q, Token(0)).to_f64(), 0.25);
//! // After a rejection the residual makes up for it: (0, 0, 1, 3) / 4.
//! let mut weights = Vec::new();
//! residual(&p, &q).expect("p ≠ q").visit(&mut |token, w| weights.push((token.0, w.to::<u128>())));
//! assert_eq!(weights, [(2, 10), (3, 30)]);
//! // 1 − TV(p, q): how often a drafted token is accepted.
//! assert_eq!(overlap(&p, &q).to_f64(), 0.6);
//! # Ok::<(), draftproof_decode::dist::DistError>(())
//! ```

pub mod decimal;
pub mod dist;
pub mod draft;
pub mod error;
mod excess;
pub mod exp;
pub mod generate;
pub mod law;
pub mod lm;
pub mod ln;
#[doc(hidden)]
pub mod mutation;
pub mod noise;
mod race;
pub mod sampler;
pub mod session;
pub mod stats;
pub mod table;
mod token;
pub mod trace;
mod vector;
pub mod verify;
pub mod watermark;

pub use decimal::Decimal;
pub use dist::Dist;
pub use error::{Error, ModelError};
pub use generate::{Engine, generate};
pub use lm::LanguageModel;
pub use sampler::{Sampler, Settings};
pub use session::{FinishReason, Limits, Listener, Session};
pub use table::TableModel;
pub use token::Token;
