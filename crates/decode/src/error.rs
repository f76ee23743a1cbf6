//! What can go wrong: what was expected, what was found, where.

use crate::{Token, lm::SequenceId, sampler::RowError};

/// A failure inside a [`LanguageModel`](crate::LanguageModel).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The sequence was never opened, or was closed.
    #[error("{sequence} is not open")]
    NotOpen {
        /// The sequence asked for.
        sequence: SequenceId,
    },
    /// One batch may advance a sequence once.
    #[error("{sequence} occurs twice in one batch")]
    SequenceTwice {
        /// The sequence that occurs twice.
        sequence: SequenceId,
    },
    /// A pass without tokens.
    #[error("the pass over {sequence} has no tokens")]
    EmptyPass {
        /// The sequence of the pass.
        sequence: SequenceId,
    },
    /// More rows were wanted than tokens were given.
    #[error("{rows} rows of logits were wanted of a pass of {tokens} tokens over {sequence}")]
    TooManyRows {
        /// The sequence of the pass.
        sequence: SequenceId,
        /// Rows wanted.
        rows: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// A token that the model does not know.
    #[error("token {token} is outside the vocabulary of {vocab} ids")]
    UnknownToken {
        /// The token.
        token: Token,
        /// The number of usable ids.
        vocab: usize,
    },
    /// The sequence would outgrow the context.
    #[error("{sequence} holds {held} tokens; {new} more do not fit a context of {context}")]
    ContextExceeded {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens held.
        held: usize,
        /// Tokens to append.
        new: usize,
        /// The most it can hold.
        context: usize,
    },
    /// A truncation to more tokens than there are.
    #[error("{sequence} holds {held} tokens and cannot be cut to {len}")]
    TruncateBeyond {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens held.
        held: usize,
        /// Length asked for.
        len: usize,
    },
    /// The backend failed (out of memory, device lost, connection lost…).
    #[error("{0}")]
    Backend(String),
}

/// A failure of decoding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target failed.
    #[error("the target model failed: {0}")]
    Target(#[source] ModelError),
    /// The draft model failed.
    #[error("the draft model failed: {0}")]
    Draft(#[source] ModelError),
    /// Sampler and rule disagree on who carries the watermark.
    #[error(
        "a watermark of mode fast needs the rule that marks draws, and only that mode does; the \
         sampler's mode is {}fast, the rule is `{rule}`", if *fast { "" } else { "not " }
    )]
    WatermarkRule {
        /// The rule's name.
        rule: &'static str,
        /// Whether the sampler's watermark is of mode `fast`.
        fast: bool,
    },
    /// Mode `fast` with a draft length that learns from discarded tokens.
    #[error("a watermark of mode fast needs a fixed draft length, found auto")]
    WatermarkLength,
    /// A row of the target that decides a token has no law.
    #[error("the target's row for position {position} (after {position} tokens): {source}")]
    Row {
        /// The position whose token the row decides: the number of tokens before it.
        position: usize,
        /// What is wrong with the row.
        source: RowError,
    },
    /// Nothing to continue.
    #[error("the prompt is empty; expected at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for a token.
    #[error(
        "the prompt has {prompt} tokens; the context of {context} leaves no room for an answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The target's context.
        context: usize,
    },
    /// Sampler and target disagree on the vocabulary.
    #[error("the sampler is for {sampler} ids, the target has {target}")]
    VocabMismatch {
        /// The sampler's vocabulary.
        sampler: usize,
        /// The target's.
        target: usize,
    },
    /// Whoever receives the tokens failed (a closed pipe, say).
    #[error("the output failed: {0}")]
    Listener(#[source] ListenerError),
}

/// What a [`Listener`](crate::Listener) may fail with.
pub type ListenerError = Box<dyn std::error::Error + Send + Sync>;
