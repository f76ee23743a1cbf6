//! [`Mapped`]: a draft model that has other ids for the strings it shares with the target.
//!
//! What the target wrote is fed to the draft in the draft's ids, and a row of the draft is written
//! in the target's: tokens that only one of the two has get the logit −∞. So they have no weight in
//! q, which the sampler normalises over what is left *before* the draw. A proposal carries that q;
//! the law of the text is the target's as with any other draft, whatever the map says.
//!
//! A text with a token that the draft lacks ends its drafts
//! ([`DraftEnd::UnknownToken`](super::DraftEnd::UnknownToken)).

use crate::{
    LanguageModel, ModelError, Token,
    lm::{Pass, Rows, SequenceId},
};

/// For each id of a target, the id that means the same string in a draft, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMap {
    to_draft: Vec<Option<Token>>,
}

impl TokenMap {
    /// A map of the target's ids `0..to_draft.len()`.
    #[must_use]
    pub fn new(to_draft: Vec<Option<Token>>) -> Self {
        Self { to_draft }
    }

    /// The number of ids of the target.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.to_draft.len()
    }

    /// How many of them the draft has too.
    #[must_use]
    pub fn shared(&self) -> usize {
        self.to_draft.iter().flatten().count()
    }

    /// What the draft calls the target's `token`.
    #[must_use]
    pub fn to_draft(&self, token: Token) -> Option<Token> {
        self.to_draft.get(token.index()).copied().flatten()
    }

    /// A row of the draft, in the target's ids.
    fn row(&self, draft: &[f32]) -> impl Iterator<Item = f32> {
        self.to_draft.iter().map(|token| {
            let logit = token.and_then(|token| draft.get(token.index()));
            logit.copied().unwrap_or(f32::NEG_INFINITY)
        })
    }
}

/// A draft model behind a [`TokenMap`]: ids go in and rows come out as the target has them.
///
/// It holds nothing of its own, so it may be made anew for each run.
#[derive(Debug)]
pub struct Mapped<'a> {
    model: &'a mut dyn LanguageModel,
    map: &'a TokenMap,
}

impl<'a> Mapped<'a> {
    /// `model`, in the ids of the target of `map`.
    pub fn new(model: &'a mut dyn LanguageModel, map: &'a TokenMap) -> Self {
        Self { model, map }
    }

    fn translate(&self, token: Token) -> Result<Token, ModelError> {
        let known = self.map.to_draft(token).filter(|&token| self.model.knows(token));
        known.ok_or(ModelError::UnknownToken { token, vocab: self.vocab() })
    }
}

impl LanguageModel for Mapped<'_> {
    fn vocab(&self) -> usize {
        self.map.vocab()
    }

    fn knows(&self, token: Token) -> bool {
        self.translate(token).is_ok()
    }

    fn context(&self) -> usize {
        self.model.context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.model.open()
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        let translated: Vec<Vec<Token>> = batch
            .iter()
            .map(|pass| pass.tokens.iter().map(|&token| self.translate(token)).collect())
            .collect::<Result<_, _>>()?;
        let passes: Vec<Pass<'_>> =
            batch.iter().zip(&translated).map(|(&pass, tokens)| Pass { tokens, ..pass }).collect();
        let rows = self.model.forward(&passes)?;
        let mapped = |rows: &Rows| {
            let logits = (0..rows.len()).flat_map(|i| self.map.row(rows.row(i))).collect();
            Rows::new(self.map.vocab(), logits)
        };
        Ok(rows.iter().map(mapped).collect())
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.model.len(sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        self.model.truncate(sequence, len)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        self.model.fork(sequence)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.model.close(sequence);
    }
}
