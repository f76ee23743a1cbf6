//! [`Runner`]: what computes a model's rows.

use draftproof_decode::{
    LanguageModel, Token,
    error::ModelError,
    lm::{Pass, Rows, SequenceId},
};

#[cfg(feature = "remote")]
use crate::remote::RemoteModel;
use crate::{InitialState, TransformerModel};

/// A transformer in this process, or a worker's elsewhere.
#[derive(Debug)]
pub enum Runner {
    /// On a device of this machine.
    Here(Box<TransformerModel>),
    /// On a worker.
    #[cfg(feature = "remote")]
    There(Box<RemoteModel>),
}

impl Runner {
    /// Cuts off every id from `vocab` on: they are neither taken nor given. Raising it does nothing.
    pub fn limit_vocab(&mut self, vocab: usize) {
        match self {
            Self::Here(model) => model.limit_vocab(vocab),
            #[cfg(feature = "remote")]
            Self::There(model) => model.limit_vocab(vocab),
        }
    }

    /// Rounds every f32 weight to the nearest bf16 number, as
    /// [`TransformerModel::round_to_bf16`]. False if the weights are a worker's.
    #[must_use]
    pub fn round_to_bf16(&mut self) -> bool {
        match self {
            Self::Here(model) => {
                model.round_to_bf16();
                true
            }
            #[cfg(feature = "remote")]
            Self::There(_) => false,
        }
    }

    /// The transformer, if it is in this process.
    #[must_use]
    pub fn here(&self) -> Option<&TransformerModel> {
        match self {
            Self::Here(model) => Some(model),
            #[cfg(feature = "remote")]
            Self::There(_) => None,
        }
    }

    /// The transformer, if it is in this process, to be changed.
    pub fn here_mut(&mut self) -> Option<&mut TransformerModel> {
        match self {
            Self::Here(model) => Some(model),
            #[cfg(feature = "remote")]
            Self::There(_) => None,
        }
    }

    /// As [`TransformerModel::open_from`]; a worker checks it with the next pass.
    ///
    /// # Errors
    /// As there.
    pub fn open_from(&mut self, state: InitialState) -> Result<SequenceId, ModelError> {
        match self {
            Self::Here(model) => model.open_from(state),
            #[cfg(feature = "remote")]
            Self::There(model) => Ok(model.open_from(state)),
        }
    }

    /// As [`TransformerModel::bytes_repeated`].
    #[must_use]
    pub fn bytes_repeated(&self) -> u64 {
        match self {
            Self::Here(model) => model.bytes_repeated(),
            #[cfg(feature = "remote")]
            Self::There(model) => model.bytes_repeated(),
        }
    }

    fn model(&self) -> &dyn LanguageModel {
        match self {
            Self::Here(model) => &**model,
            #[cfg(feature = "remote")]
            Self::There(model) => &**model,
        }
    }

    fn model_mut(&mut self) -> &mut dyn LanguageModel {
        match self {
            Self::Here(model) => &mut **model,
            #[cfg(feature = "remote")]
            Self::There(model) => &mut **model,
        }
    }
}

impl LanguageModel for Runner {
    fn vocab(&self) -> usize {
        self.model().vocab()
    }

    fn knows(&self, token: Token) -> bool {
        self.model().knows(token)
    }

    fn context(&self) -> usize {
        self.model().context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.model_mut().open()
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        self.model_mut().forward(batch)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.model().len(sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        self.model_mut().truncate(sequence, len)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        self.model_mut().fork(sequence)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.model_mut().close(sequence);
    }
}
