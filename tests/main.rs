//! End-to-end tests, through the binary only (but for the rules of the workspace).

// Runs the program and takes its results apart.
mod harness;
// A small OpenAI-compatible server that a test controls.
mod server;
// Small models, written on the fly, whose logits a test chooses.
mod tiny;

// Who may import whom.
mod architecture;
// Equal bit for bit once all kernels are row-invariant; nearly so until then.
mod bench;
mod bits;
// Looped targets, guidance, early exits.
mod loops;
// Conversations: templates, turns, ends.
mod chat;
// The contract card and its hash.
mod contract;
// Marks that are found, and everything else that is not.
mod detect;
// Devices: what there is, and that a draft changes no text on any of them.
mod devices;
// Where a text ends: EOS inside blocks, stop ids, full contexts.
mod ends;
// A draft changes the speed, not the text.
mod equality;
// Bad flags, files, models and pairs: message and exit code.
mod errors;
// Settings side by side.
mod evaluate;
// GGUF files: the reference's tokens; files that lie.
mod gguf;
// What `generate` prints, where, in which form; each flag when all is well.
mod generate;
// Models by their name on a hub of our own.
mod hub;
// What temperature 0 leaves to chance, here and behind a server of our own.
mod noise;
// Drafts of another vocabulary, and what `pair` finds.
mod pair;
// Faults that came back to us.
mod regression;
// Each line of the contract's statement of what is reproducible.
mod reproducibility;
// Every setting reaches the text.
mod sampler;
// Whole characters, as they are decided; closed pipes.
mod streaming;
// Traces that hold, and edits that do not.
mod trace;
mod verify;
// Marks on texts, and the keys they are made with.
mod watermark;
// Models on other machines.
#[cfg(feature = "remote")]
mod worker;
