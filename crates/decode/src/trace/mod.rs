//! The trace: what was decided and why, so that anyone can derive it again without a model.
//!
//! [`Recorder`] turns [judged rounds](crate::session::JudgedRound) into lines of JSON; [`Replayer`]
//! reads them and derives every noise value, decision and token again. Neither does I/O, and a run
//! without a recorder pays nothing.
//!
//! ```
//! use draftproof_decode::{
//!     Engine, Limits, Sampler, Session, Settings, TableModel, Token, generate,
//!     draft::{length::DraftLength, model::ModelDrafter},
//!     error::ListenerError,
//!     noise::{ChaCha, Seed},
//!     session::{Emitted, JudgedRound, Listener},
//!     stats::{Meter, NoClock},
//!     trace::{Recorder, Run, replay},
//!     verify::Rejection,
//! };
//!
//! struct Tape(Recorder, Vec<String>);
//! impl Listener for Tape {
//!     fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
//!         Ok(false)
//!     }
//!     fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
//!         self.1.extend(self.0.round(round)?);
//!         Ok(())
//!     }
//! }
//!
//! let mut target = TableModel::new(4, 16, 1, |last| vec![0.0, 1.0, last[0].0 as f32, 0.5]);
//! let mut draft = TableModel::new(4, 16, 1, |_| vec![0.0; 4]);
//! let limits = Limits { max_tokens: 8, eos: vec![], draft_len: DraftLength::Fixed(3) };
//! let mut sessions = [Session::new(&[Token(1)], Seed { seed: 7, sequence: 0 }, limits)];
//! let run = Run { verifier: "rejection", contract: None, vocab: 4, context: 16, full: true };
//! let mut recorder = Recorder::new(&run, &sessions)?;
//! let header = recorder.header();
//! let mut tape = Tape(recorder, vec![header]);
//! let mut engine = Engine {
//!     target: &mut target,
//!     drafter: &mut ModelDrafter::new(&mut draft),
//!     verifier: &Rejection,
//!     sampler: &Sampler::new(Settings::default(), 4)?,
//!     noise: &mut ChaCha,
//!     meter: &mut Meter::new(NoClock),
//! };
//! generate(&mut engine, &mut sessions, &mut tape)?;
//! let Tape(mut recorder, mut lines) = tape;
//! lines.push(recorder.footer(&sessions));
//!
//! let summary = replay(&lines)?;
//! assert_eq!(summary.sequences[0].tokens, sessions[0].generated());
//! lines[3] = lines[3].replace("\"kept\":true", "\"kept\":false");
//! assert_eq!(replay(&lines).expect_err("a changed line").line, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Lines
//! Each line is one object with one of three members and the `digest`: the SHA-256 of the 32 bytes
//! of the digest before (zeros before the first line) and the line's own text without its digest
//! (`{"position":{…}}`). A record has one spelling: no blanks, fields in this order, optional ones
//! left out. Integers of 64 bits and more are decimal strings, fractions are `"a/b"`.
//!
//! - `header`: format, version, `verifier`, `contract` hash, `vocab`, `context`, `full`, `seed`, and
//!   for each of the `sequences` its start: `prompt_len`, `start` and `start_sha256` (number and
//!   digest of the tokens it starts from, prompt included), `max_tokens`, `eos`.
//! - `position`: a judged place of a round, in order: `sequence`, `round`, `round_start`, `offset`,
//!   `token`, `origin`, `kept`, and `finish` if the text ended here; then, where they apply,
//!
//!   | member | what it decides |
//!   |---|---|
//!   | `drafted` | the drafted `token` and its draw from q; every draw has `below`, `weight`, `total`, and the `noise` key, `null` where the law has one token |
//!   | `weights` | the drafted token in both laws: `p`, `p_total`, `q`, `q_total` |
//!   | `block` | α_i, Z_i and h_i as fractions of 1; no Z at the place after the last judged one |
//!   | `coin` | its `noise` key, `null` where it is certain, and whether it `passed`: u < p·W_q on `[0, q·W_p)`, or u < a on `[0, b)` for h = a/b |
//!   | `race` | the winner's `weight` in p, the `total`, the position's `noise` key |
//!   | `draw` | the draw of a residual or bonus token |
//!   | `p`, `q` | whole laws, in a full trace |
//!
//!   Block verification has also the places behind the last emitted token, with their failed coins:
//!   origin `rejected`, no token. Drafted tokens that were never judged are left out. Tokens of a
//!   verdict behind the end of the text are there, with `kept` false; where the target's row behind
//!   the end has no law, the round ends with a place of origin `unusable`, no token. A round that
//!   such a row brings to an error is not in the trace.
//! - `footer`: the number of `lines` before it, the `last` digest, and for each sequence its
//!   `rounds`, `tokens` and `finish`; `null` if the run was interrupted.
//!
//! # What replay checks
//! Always: form, digests, counts; that rounds follow each other in every sequence, sequences take
//! turns, and offsets ascend; that every key is the one of its place; that every draw's u lies in
//! `[below, below + weight)` and every coin fell as u says; that origin, token, end and `kept` follow;
//! that drafted weights agree with the coin's, α with the α before it, h with α and Z, and a
//! residual's total with its bounds or its Z.
//!
//! From whole laws: all of `below`, `weight`, `total`, `weights` and Z; the residual laws; the winner
//! of each race; the overlaps.
//!
//! Never: that p and q are what the models say, the contract hash, the prompt's digest, and that the
//! caller had a reason to stop. The chain of digests shows a change to anyone who kept the last
//! digest; whoever computes it anew can write another trace, but only one whose noise and arithmetic
//! hold.

mod check;
mod format;
mod record;
mod replay;
mod summary;
mod text;

pub use record::{RecordError, Recorder, Run};
pub use replay::{MAX_LINE, ReplayError, Replayer, replay};
pub use summary::{Choices, ReplayedSequence, Summary};
