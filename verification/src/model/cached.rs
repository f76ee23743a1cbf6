//! [`CachedModel`]: rows by prefix, so that hundreds of thousands of samples are affordable.

use std::collections::HashMap;

use draftproof_decode::{
    LanguageModel, ModelError, Token,
    lm::{Pass, Rows, SequenceId, check_batch},
};

/// A model that remembers each row it has computed, by its prefix.
///
/// # What is cached, and what is not
/// Only the map from a prefix to its row of logits. Everything else happens as in production: the
/// loop opens, forks, cuts and closes sequences, asks for the rows of whole blocks, and the
/// contract, the drafter and the rule work on every row anew.
///
/// # Why cache bugs still show
/// A row that is not known yet is computed by the model in *one* long-lived sequence of its own,
/// which is cut back to the common beginning and extended by the very pass the engine asked for,
/// several rows at once. So every remembered row was computed after cuts, from a cache with a
/// history; if such a row is wrong, it stays wrong for all samples through that prefix. The law
/// that the samples are compared with is walked apart, from sequences that were never cut. What the
/// cache does hide is a row that is right the first time and wrong later, and several sequences in
/// one pass: a smaller run without the cache looks for those.
#[derive(Debug)]
pub struct CachedModel<'m> {
    inner: &'m mut dyn LanguageModel,
    rows: HashMap<Vec<Token>, Box<[f32]>>,
    /// The most rows to remember.
    capacity: usize,
    sequences: HashMap<SequenceId, Vec<Token>>,
    opened: u64,
    /// The sequence of `inner` that computes, and what it holds.
    work: Option<(SequenceId, Vec<Token>)>,
    computed: u64,
    served: u64,
}

impl<'m> CachedModel<'m> {
    /// Remembers rows of `inner`, up to about `bytes` of them; what does not fit is computed again.
    pub fn new(inner: &'m mut dyn LanguageModel, bytes: usize) -> Self {
        let row = size_of::<f32>() * inner.vocab() + 128;
        Self {
            capacity: bytes / row,
            inner,
            rows: HashMap::new(),
            sequences: HashMap::new(),
            opened: 0,
            work: None,
            computed: 0,
            served: 0,
        }
    }

    /// Rows computed by the model, and rows served in all.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.computed, self.served)
    }

    fn insert(&mut self, tokens: Vec<Token>) -> SequenceId {
        let id = SequenceId(self.opened);
        self.opened += 1;
        self.sequences.insert(id, tokens);
        id
    }

    fn held(&self, sequence: SequenceId) -> Result<&Vec<Token>, ModelError> {
        self.sequences.get(&sequence).ok_or(ModelError::NotOpen { sequence })
    }

    /// The rows after the last `wanted` beginnings of `text`, from the model itself.
    fn compute(&mut self, text: &[Token], wanted: usize) -> Result<Rows, ModelError> {
        let (sequence, mut tokens) = match self.work.take() {
            Some(work) => work,
            None => (self.inner.open()?, Vec::new()),
        };
        let shared = tokens.iter().zip(text).take_while(|(a, b)| a == b).count();
        let keep = shared.min(text.len() - wanted);
        if keep < tokens.len() {
            self.inner.truncate(sequence, keep)?;
            tokens.truncate(keep);
        }
        let pass = Pass { sequence, tokens: &text[keep..], rows: wanted };
        let rows = self.inner.forward(&[pass])?.swap_remove(0);
        tokens.extend_from_slice(&text[keep..]);
        self.work = Some((sequence, tokens));
        self.computed += wanted as u64;
        Ok(rows)
    }

    fn rows_after(&mut self, text: &[Token], wanted: usize) -> Result<Rows, ModelError> {
        let vocab = self.inner.vocab();
        let first = text.len() + 1 - wanted;
        let known = (first..=text.len()).all(|len| self.rows.contains_key(&text[..len]));
        if !known {
            let rows = self.compute(text, wanted)?;
            for (i, len) in (first..=text.len()).enumerate() {
                if self.rows.len() < self.capacity && !self.rows.contains_key(&text[..len]) {
                    self.rows.insert(text[..len].to_vec(), rows.row(i).into());
                }
            }
            return Ok(rows);
        }
        let mut logits = Vec::with_capacity(wanted * vocab);
        for len in first..=text.len() {
            logits.extend_from_slice(&self.rows[&text[..len]]);
        }
        Ok(Rows::new(vocab, logits))
    }
}

impl Drop for CachedModel<'_> {
    fn drop(&mut self) {
        if let Some((sequence, _)) = self.work.take() {
            self.inner.close(sequence);
        }
    }
}

impl LanguageModel for CachedModel<'_> {
    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn knows(&self, token: Token) -> bool {
        self.inner.knows(token)
    }

    fn context(&self) -> usize {
        self.inner.context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        Ok(self.insert(Vec::new()))
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        check_batch(batch, self.vocab(), self.context(), |sequence| self.len(sequence))?;
        let mut texts = Vec::with_capacity(batch.len());
        let mut results = Vec::with_capacity(batch.len());
        for pass in batch {
            let text = [self.held(pass.sequence)?, pass.tokens].concat();
            results.push(match pass.rows {
                0 => Rows::new(self.vocab(), Vec::new()),
                wanted => self.rows_after(&text, wanted)?,
            });
            self.served += pass.rows as u64;
            texts.push(text);
        }
        for (pass, text) in batch.iter().zip(texts) {
            self.sequences.insert(pass.sequence, text);
        }
        Ok(results)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.held(sequence).map(Vec::len)
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
        let tokens = self.held(sequence)?.clone();
        Ok(self.insert(tokens))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
