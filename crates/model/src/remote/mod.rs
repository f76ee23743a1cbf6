//! A model on another machine: a worker that holds it, and a client that is a
//! [`LanguageModel`](draftproof_decode::LanguageModel) like any other.
//!
//! What crosses the network is what `LanguageModel` says: token ids there, rows of logits back. So a
//! pass is one round trip by construction: opening, cutting, forking and closing sequences cannot
//! fail in ways that decoding waits for, and travel with the next pass. Weights never travel. The
//! rows are computed by the worker's kernels on the worker's device, and arrive bit for bit.
//! (burn has a remote backend of its own. It ships every tensor operation, and the weights at first,
//! and its client panics when the server is gone; decoding needs neither.)
//!
//! # Protocol
//! WebSocket (RFC 6455), one connection for each open model.
//!
//! | message | from | as |
//! |---|---|---|
//! | `Hello` | client | JSON |
//! | `Greeting` | worker | JSON |
//! | `Work` | client | JSON |
//! | the rows of its passes, one after another, f32, little-endian | worker | binary messages |
//! | `Failure`, instead of rows | worker | JSON |
//! | a ping, every second of a pass | worker | ping |
//!
//! A client that hears nothing for [`PATIENCE`] gives up: a slow worker pings, a dead one does not.
//! Both sides can ask for a token (`Authorization: Bearer …` in the handshake). The connection is not
//! encrypted: across an open network it belongs into a tunnel.

mod client;
mod worker;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::InitialState;

pub use client::{Link, RemoteModel};
pub use worker::{Served, serve};

/// Raised when a message changes its meaning.
const VERSION: u32 = 3;
/// How long a client waits for a sign of life.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How often a busy worker gives one.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The most bytes of rows in one message; a pass may need several.
const MOST_BYTES: usize = 4 << 20;

/// Which model is wanted.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    /// What a person calls it; for the worker's messages.
    name: String,
    /// As [`Identity`](crate::Identity) has it.
    config: String,
    tokenizer: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Greeting {
    Welcome(Welcome),
    Refused { reason: String },
}

/// What the client cannot know of the model without its weights.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Welcome {
    /// As [`Identity`](crate::Identity) has it.
    weights: String,
    parameters: u64,
    /// As `TransformerModel::bytes_repeated`.
    bytes_repeated: u64,
    weight_type: crate::WeightType,
    pass_bytes: u64,
    vocab: usize,
    context: usize,
    /// Where it runs, for people.
    device: String,
    row_invariant: bool,
}

/// What one forward pass needs, and what happened to sequences since the last one.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Work {
    changes: Vec<Change>,
    passes: Vec<WirePass>,
}

/// The client names sequences, each name once, and says what a looped transformer's state begins with:
/// clients of one model may differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Open { sequence: u64, initial: InitialState },
    Truncate { sequence: u64, len: usize },
    Fork { from: u64, to: u64 },
    Close(u64),
}

#[derive(Debug, Serialize, Deserialize)]
struct WirePass {
    sequence: u64,
    tokens: Vec<u32>,
    rows: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    reason: String,
}
