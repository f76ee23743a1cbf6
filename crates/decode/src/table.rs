//! [`TableModel`]: a model that is only a lookup table, so that the law of whole texts is known.

use std::collections::{BTreeMap, HashMap};

use crate::{
    LanguageModel, ModelError, Token,
    lm::{Pass, Rows, SequenceId, check_batch},
};

/// A model whose row depends on the last `order` tokens and is looked up in a table.
///
/// It obeys every law of [`LanguageModel`] trivially; tests compute the exact law of its texts from
/// the same table.
///
/// ```
/// use draftproof_decode::{LanguageModel, TableModel, Token, lm::Pass};
///
/// let mut model = TableModel::new(4, 16, 1, |last| vec![last[0].0 as f32, 0.0, 0.0, 0.0]);
/// let sequence = model.open()?;
/// let rows = model.forward(&[Pass { sequence, tokens: &[Token(1), Token(3)], rows: 2 }])?;
/// assert_eq!(rows[0].row(1), [3.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), draftproof_decode::ModelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TableModel {
    vocab: usize,
    context: usize,
    order: usize,
    rows: BTreeMap<Vec<Token>, Vec<f32>>,
    sequences: HashMap<SequenceId, Vec<Token>>,
    opened: u64,
}

impl TableModel {
    /// A model over `0..vocab` whose logits after a text that ends in `last` (its last `order`
    /// tokens, or all of a shorter text) are `row(last)`.
    ///
    /// # Panics
    /// If a row does not have `vocab` logits.
    pub fn new(
        vocab: usize,
        context: usize,
        order: usize,
        row: impl Fn(&[Token]) -> Vec<f32>,
    ) -> Self {
        let mut rows = BTreeMap::new();
        let mut level = vec![Vec::new()];
        for _ in 0..order {
            level = level
                .iter()
                .flat_map(|last: &Vec<Token>| {
                    (0..vocab).map(|id| [&last[..], &[Token::at(id)]].concat())
                })
                .collect();
            for last in &level {
                let logits = row(last);
                assert_eq!(logits.len(), vocab, "a row has a logit for each id");
                rows.insert(last.clone(), logits);
            }
        }
        Self { vocab, context, order, rows, sequences: HashMap::new(), opened: 0 }
    }

    /// The logits of the token after `text`, which is not empty.
    ///
    /// # Panics
    /// If the text is empty or holds an id outside the vocabulary.
    #[must_use]
    pub fn logits(&self, text: &[Token]) -> &[f32] {
        &self.rows[&text[text.len().saturating_sub(self.order)..]]
    }

    /// The tokens that an open sequence holds.
    #[must_use]
    pub fn held(&self, sequence: SequenceId) -> Option<&[Token]> {
        self.sequences.get(&sequence).map(Vec::as_slice)
    }

    /// The number of open sequences.
    #[must_use]
    pub fn open_sequences(&self) -> usize {
        self.sequences.len()
    }

    fn insert(&mut self, tokens: Vec<Token>) -> SequenceId {
        let id = SequenceId(self.opened);
        self.opened += 1;
        self.sequences.insert(id, tokens);
        id
    }
}

impl LanguageModel for TableModel {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn context(&self) -> usize {
        self.context
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        Ok(self.insert(Vec::new()))
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        check_batch(batch, self.vocab, self.context, |sequence| self.len(sequence))?;
        let mut results = Vec::with_capacity(batch.len());
        for pass in batch {
            let Some(mut held) = self.sequences.remove(&pass.sequence) else {
                continue;
            };
            let mut logits = Vec::with_capacity(pass.rows * self.vocab);
            for (i, &token) in pass.tokens.iter().enumerate() {
                held.push(token);
                if i >= pass.tokens.len() - pass.rows {
                    logits.extend_from_slice(self.logits(&held));
                }
            }
            self.sequences.insert(pass.sequence, held);
            results.push(Rows::new(self.vocab, logits));
        }
        Ok(results)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.sequences.get(&sequence).map(Vec::len).ok_or(ModelError::NotOpen { sequence })
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        let held = self.len(sequence)?;
        if len > held {
            return Err(ModelError::TruncateBeyond { sequence, held, len });
        }
        if let Some(tokens) = self.sequences.get_mut(&sequence) {
            tokens.truncate(len);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        let tokens =
            self.sequences.get(&sequence).cloned().ok_or(ModelError::NotOpen { sequence })?;
        Ok(self.insert(tokens))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
