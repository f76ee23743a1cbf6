//! [`LanguageModel`]: what decoding asks of a model, and the laws a model must obey.
//!
//! Tokens go in, rows of logits come out; both are host memory, so this crate never sees a tensor.
//! A model holds several *sequences* (a prompt with its continuation), each with its own cache, and
//! one [`forward`](LanguageModel::forward) may serve several of them in one pass over the weights.
//!
//! # Laws
//! 1. **Prefix.** A row depends on the tokens before it in its sequence, bit for bit, and on nothing
//!    else: not on how the prefix was cut into passes, nor on what else shared the pass.
//!    (A model whose arithmetic cannot promise the bits says so; the *law* of the text never
//!    depends on it, since a verdict only uses the rows that were computed.)
//! 2. **Truncation.** `truncate(s, n)` leaves the sequence as if only its first `n` tokens had ever
//!    been seen: `truncate ∘ forward` = a fresh sequence.
//! 3. **Fork.** A fork continues like its origin and shares nothing that either can change.
//! 4. **Failure.** When `forward` fails, every sequence of the batch is as long as before.

use std::fmt;

use crate::{Token, error::ModelError};

/// Names an open sequence of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// One sequence's share of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The sequence that `tokens` continue.
    pub sequence: SequenceId,
    /// The new tokens, at least one; appended to the sequence.
    pub tokens: &'a [Token],
    /// How many rows of logits are wanted: those of the last `rows` of `tokens`. May be 0.
    pub rows: usize,
}

/// Rows of logits, `[rows, vocab]`, row-major.
///
/// Row `i` of a pass that asked for `r` rows of `n` tokens holds the logits of the token that
/// follows the pass's token number `n - r + i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    vocab: usize,
    logits: Vec<f32>,
}

impl Rows {
    /// Rows of `vocab` logits each.
    ///
    /// # Panics
    /// If `logits` is not a whole number of rows, or `vocab` is 0.
    #[must_use]
    pub fn new(vocab: usize, logits: Vec<f32>) -> Self {
        assert!(vocab > 0, "a row has at least one logit");
        assert!(
            logits.len().is_multiple_of(vocab),
            "{} logits are no whole number of rows of {vocab}",
            logits.len()
        );
        Self { vocab, logits }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.logits.len() / self.vocab
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    /// Row `i`.
    ///
    /// # Panics
    /// If there is no row `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.logits[i * self.vocab..(i + 1) * self.vocab]
    }
}

/// A model that continues token sequences; see the [module docs](self) for its laws.
pub trait LanguageModel: fmt::Debug {
    /// The number of *usable* ids: every row has exactly this many logits.
    ///
    /// Rows that only pad the output head (ids without a string in the tokenizer) are cut off by
    /// the model, so that a padding row can never be sampled whatever its logit is.
    fn vocab(&self) -> usize;

    /// Whether a text may hold `token`.
    ///
    /// A model that stands for another one in a part of its ids knows fewer than its rows have.
    fn knows(&self, token: Token) -> bool {
        token.index() < self.vocab()
    }

    /// The most tokens a sequence can hold.
    fn context(&self) -> usize;

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// If no memory for another sequence can be had.
    fn open(&mut self) -> Result<SequenceId, ModelError>;

    /// Appends the tokens of each pass to its sequence and returns the rows wanted, one [`Rows`]
    /// for each pass, in order. No sequence occurs twice in one batch.
    ///
    /// # Errors
    /// An empty pass, more rows than tokens, a sequence that is not open or occurs twice, a token
    /// that the model does not [know](Self::knows), or a sequence longer than the context. Nothing is
    /// appended then.
    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError>;

    /// The number of tokens the sequence holds.
    ///
    /// # Errors
    /// If the sequence is not open.
    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError>;

    /// Forgets all but the first `len` tokens of the sequence.
    ///
    /// # Errors
    /// If the sequence is not open, or shorter than `len`.
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError>;

    /// Opens a new sequence with the same tokens.
    ///
    /// # Errors
    /// If the sequence is not open, or no memory for another one can be had.
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError>;

    /// Closes the sequence and frees what it held. Closing one that is not open does nothing.
    fn close(&mut self, sequence: SequenceId);
}

/// Checks what every [`LanguageModel::forward`] must refuse; models call it first.
///
/// `length` gives the current length of an open sequence.
///
/// # Errors
/// As [`LanguageModel::forward`].
pub fn check_batch(
    batch: &[Pass<'_>],
    vocab: usize,
    context: usize,
    length: impl Fn(SequenceId) -> Result<usize, ModelError>,
) -> Result<(), ModelError> {
    for (i, pass) in batch.iter().enumerate() {
        let sequence = pass.sequence;
        let held = length(sequence)?;
        if batch[..i].iter().any(|other| other.sequence == sequence) {
            return Err(ModelError::SequenceTwice { sequence });
        }
        if pass.tokens.is_empty() {
            return Err(ModelError::EmptyPass { sequence });
        }
        if pass.rows > pass.tokens.len() {
            return Err(ModelError::TooManyRows {
                sequence,
                rows: pass.rows,
                tokens: pass.tokens.len(),
            });
        }
        if let Some(&token) = pass.tokens.iter().find(|token| token.index() >= vocab) {
            return Err(ModelError::UnknownToken { token, vocab });
        }
        if held + pass.tokens.len() > context {
            return Err(ModelError::ContextExceeded {
                sequence,
                held,
                new: pass.tokens.len(),
                context,
            });
        }
    }
    Ok(())
}
