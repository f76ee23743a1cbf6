//! Targets whose cache goes wrong when it is cut back.

use std::collections::BTreeMap;

use draftproof_decode::{
    LanguageModel, ModelError, TableModel, Token,
    lm::{Pass, Rows, SequenceId, check_batch},
};

/// What a cut does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutFault {
    /// What it should.
    None,
    /// The entry of the first rejected token stays, and the next token's is not written.
    Stale,
    /// All is forgotten, and the sequence goes on from there.
    Reset,
    /// One entry too many is cut.
    TooMuch,
}

/// A table whose sequences see, instead of their tokens, what a faulty cache would hold.
#[derive(Debug)]
struct Faulty {
    fault: CutFault,
    table: TableModel,
    sequences: BTreeMap<SequenceId, Cache>,
    opened: u64,
}

#[derive(Clone, Debug, Default)]
struct Cache {
    len: usize,
    /// What the rows are computed from.
    entries: Vec<Token>,
    /// Entries of rejected tokens that were not cut off.
    stale: Option<Token>,
}

/// `table` with the fault.
pub(super) fn wrong(table: TableModel, fault: CutFault) -> Box<dyn LanguageModel> {
    Box::new(Faulty { fault, table, sequences: BTreeMap::new(), opened: 0 })
}

impl Faulty {
    fn insert(&mut self, cache: Cache) -> SequenceId {
        let id = SequenceId(self.opened);
        self.opened += 1;
        self.sequences.insert(id, cache);
        id
    }

    fn cache(&self, sequence: SequenceId) -> Result<&Cache, ModelError> {
        self.sequences.get(&sequence).ok_or(ModelError::NotOpen { sequence })
    }
}

impl LanguageModel for Faulty {
    fn vocab(&self) -> usize {
        self.table.vocab()
    }

    fn context(&self) -> usize {
        self.table.context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        Ok(self.insert(Cache::default()))
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        check_batch(batch, self.vocab(), self.context(), |sequence| self.len(sequence))?;
        let mut results = Vec::with_capacity(batch.len());
        for pass in batch {
            let Some(cache) = self.sequences.get_mut(&pass.sequence) else {
                continue;
            };
            let mut logits = Vec::new();
            for (i, &token) in pass.tokens.iter().enumerate() {
                cache.entries.push(cache.stale.take().unwrap_or(token));
                cache.len += 1;
                if i >= pass.tokens.len() - pass.rows {
                    logits.extend_from_slice(self.table.logits(&cache.entries));
                }
            }
            results.push(Rows::new(self.table.vocab(), logits));
        }
        Ok(results)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        Ok(self.cache(sequence)?.len)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        let held = self.len(sequence)?;
        if len > held {
            return Err(ModelError::TruncateBeyond { sequence, held, len });
        }
        let fault = self.fault;
        let Some(cache) = self.sequences.get_mut(&sequence) else {
            return Ok(());
        };
        let cut = held - len;
        let kept = cache.entries.len().saturating_sub(cut);
        if cut > 0 {
            match fault {
                CutFault::None => cache.entries.truncate(kept),
                CutFault::Stale => {
                    cache.stale = cache.entries.get(kept).copied();
                    cache.entries.truncate(kept);
                }
                CutFault::Reset => cache.entries.clear(),
                CutFault::TooMuch => cache.entries.truncate(kept.saturating_sub(1)),
            }
        }
        cache.len = len;
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        let cache = self.cache(sequence)?.clone();
        Ok(self.insert(cache))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
