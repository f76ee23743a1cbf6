//! The sampler contract: a **pure function** of (prefix, logits, settings) to a [`Dist`].
//!
//! One [`Sampler`] value serves target and draft. It keeps no state: whatever depends on history is
//! computed from the [`Prefix`], so at a drafted position it sees committed and drafted tokens, and
//! rolling back needs no code.
//!
//! | step | file | meaning |
//! |---|---|---|
//! | penalties | [`penalty`] | tokens that occurred are made less likely |
//! | bias | [`bias`] | a number added to chosen logits |
//! | bans | [`bans`] | bad words, no n-gram twice, no EOS before so many tokens |
//! | temperature | [`temperature`] | `w_i = round(2^B · exp((z_i − max)/T))`; 0 is greedy |
//! | top-k | [`top_k`] | the k largest logits |
//! | typical | [`typical`] | the tokens whose surprise is nearest to the expected one |
//! | top-p | [`top_p`] | the smallest set of heaviest tokens with mass ≥ p |
//! | min-p | [`min_p`] | tokens at least `min_p` times as likely as the likeliest |
//!
//! Each step works on what the one before left, in the order of the table or any other [`Order`]; a
//! step that is off is not taken. What transforms the finished law, a
//! [`watermark`](crate::watermark), is no step of the order: it comes after all of them. A row
//! without a finite logit, or with NaN or +∞, is an error that names the token; it is never a silent
//! token 0.

pub mod bans;
pub mod bias;
mod candidates;
mod logits;
pub mod min_p;
pub mod order;
pub mod penalty;
mod settings;
pub mod temperature;
pub mod top_k;
pub mod top_p;
pub mod typical;

use std::fmt;

use crate::{
    Dist, Token,
    watermark::{Mode, Watermark},
};
use candidates::Candidates;

pub use order::{Order, OrderError, Step};
pub use settings::{SettingError, Settings};
pub use top_k::TopKTies;

/// The tokens a position follows: the prompt, then the generated tokens, committed and drafted.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// All tokens.
    pub tokens: &'a [Token],
    /// How many of them are the prompt.
    pub prompt_len: usize,
}

impl<'a> Prefix<'a> {
    /// The generated tokens.
    ///
    /// # Panics
    /// If the prompt is longer than the prefix.
    #[must_use]
    pub fn output(&self) -> &'a [Token] {
        &self.tokens[self.prompt_len..]
    }
}

/// Why a row of logits has no law under the contract.
#[derive(Clone, Debug, PartialEq)]
pub enum RowError {
    /// A logit is NaN or +∞.
    NonFinite {
        /// The token of the first such logit.
        token: Token,
        /// NaN or +∞.
        value: f32,
    },
    /// No token is left.
    Empty {
        /// The step that removed the last one.
        step: Step,
    },
}

impl std::error::Error for RowError {}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonFinite { token, value } => {
                write!(f, "the logit of token {token} is {value}; expected a finite number or -inf")
            }
            Self::Empty { step } => write!(f, "no token is left after step `{step}`"),
        }
    }
}

/// The contract: settings that were checked, for a vocabulary.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    vocab: usize,
    /// The steps that do anything, in order.
    steps: Vec<Step>,
    watermark: Option<Watermark>,
}

impl Sampler {
    /// The contract of `settings` over the ids `0..vocab` (the target's).
    ///
    /// # Errors
    /// If a setting is outside its range.
    pub fn new(settings: Settings, vocab: usize) -> Result<Self, SettingError> {
        settings.check(vocab)?;
        let steps = settings.steps();
        Ok(Self { settings, vocab, steps, watermark: None })
    }

    /// The same contract with a watermark on its laws.
    ///
    /// In mode `exact` every law this sampler gives, the target's and the draft's, is marked. In mode
    /// `fast` none is: there the draws are marked, by [`Proposal::draw_marked`] and [`FastWatermark`].
    ///
    /// [`Proposal::draw_marked`]: crate::draft::Proposal::draw_marked
    /// [`FastWatermark`]: crate::verify::FastWatermark
    #[must_use]
    pub fn watermarked(self, watermark: Watermark) -> Self {
        Self { watermark: Some(watermark), ..self }
    }

    /// The watermark, if there is one.
    #[must_use]
    pub fn watermark(&self) -> Option<&Watermark> {
        self.watermark.as_ref()
    }

    /// The watermark, if draws carry it and laws do not.
    #[must_use]
    pub fn fast_watermark(&self) -> Option<&Watermark> {
        self.watermark().filter(|watermark| watermark.mode() == Mode::Fast)
    }

    /// The number of ids of every law this sampler gives.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The law of the token after `prefix`, given the model's `logits` there.
    ///
    /// A draft's row may be wider or narrower than the target's vocabulary: ids beyond the
    /// vocabulary are not looked at, ids beyond the row have no weight. Either way the draft's law
    /// is over the target's ids.
    ///
    /// # Errors
    /// If a logit is NaN or +∞, or no token is left.
    pub fn law(&self, prefix: Prefix<'_>, logits: &[f32]) -> Result<Dist, RowError> {
        let settings = &self.settings;
        let mut candidates = Candidates::new(self.vocab, logits)?;
        for step in &self.steps {
            match step {
                Step::Logits => {}
                Step::Penalties => penalty::apply(&mut candidates, settings, prefix)?,
                Step::Bias => bias::apply(&mut candidates, &settings.logit_bias)?,
                Step::Bans => bans::apply(&mut candidates, settings, prefix)?,
                Step::Temperature => temperature::apply(&mut candidates, settings.temperature),
                Step::TopK => top_k::apply(&mut candidates, settings.top_k, settings.top_k_ties),
                Step::Typical => typical::apply(&mut candidates, settings.typical),
                Step::TopP => top_p::apply(&mut candidates, settings.top_p),
                Step::MinP => min_p::apply(&mut candidates, settings.min_p),
            }
        }
        let law = candidates.into_dist();
        Ok(match self.watermark().filter(|watermark| watermark.mode() == Mode::Exact) {
            None => law,
            Some(watermark) => watermark.mark(prefix.output(), law),
        })
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
