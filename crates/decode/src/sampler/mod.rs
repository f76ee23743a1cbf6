//! The sampler contract: a **pure function** of (prefix, logits, settings) to a [`Dist`].
//!
//! One [`Sampler`] value serves target and draft. It keeps no state: whatever depends on history is
//! computed from the [`Prefix`], so at a drafted position it sees committed and drafted tokens, and
//! rolling back needs no code.
//!
//! | step | file | meaning |
//! |---|---|---|
//! | temperature | [`temperature`] | `w_i = round(2^B · exp((z_i − max)/T))`; 0 is greedy |
//! | top-k | [`top_k`] | the k largest logits |
//! | top-p | [`top_p`] | the smallest set of heaviest tokens with mass ≥ p |
//! | min-p | [`min_p`] | tokens at least `min_p` times as likely as the likeliest |
//!
//! Each step works on what the one before left. A row without a finite logit, or with NaN or +∞, is
//! an error that names the token; it is never a silent token 0.

mod candidates;
pub mod min_p;
pub mod temperature;
pub mod top_k;
pub mod top_p;

use std::fmt;

use crate::{Decimal, Dist, Token, dist::MAX_VOCAB};
use candidates::Candidates;

/// The tokens a position follows: the prompt, then the generated tokens, committed and drafted.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// All tokens.
    pub tokens: &'a [Token],
    /// How many of them are the prompt.
    pub prompt_len: usize,
}

/// A step of the contract, in its default order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The logits as the model gave them.
    Logits,
    /// Division by the temperature.
    Temperature,
    /// The k largest logits.
    TopK,
    /// The nucleus.
    TopP,
    /// The floor relative to the likeliest token.
    MinP,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logits => "logits",
            Self::Temperature => "temperature",
            Self::TopK => "top-k",
            Self::TopP => "top-p",
            Self::MinP => "min-p",
        })
    }
}

/// What the user chose; plain data. [`Sampler::new`] checks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Divides the logits: 0 (greedy) or positive and finite.
    pub temperature: f64,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the heaviest tokens up to this mass, above 0 and at most 1; 1 keeps all.
    pub top_p: Decimal,
    /// Keep tokens at least this many times as likely as the likeliest, 0 to 1; 0 keeps all.
    pub min_p: Decimal,
}

impl Default for Settings {
    /// Temperature 1, no filter: the model's own law.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: Decimal::ONE, min_p: Decimal::ZERO }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: expected {expected}, found {found}")]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// Its range.
    pub expected: &'static str,
    /// The value given.
    pub found: String,
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
}

impl Sampler {
    /// The contract of `settings` over the ids `0..vocab` (the target's).
    ///
    /// # Errors
    /// If a setting is outside its range.
    pub fn new(settings: Settings, vocab: usize) -> Result<Self, SettingError> {
        // Destructured, so that a new setting cannot be forgotten here.
        let Settings { temperature, top_k: _, top_p, min_p } = &settings;
        let refuse = |name, expected, found: &dyn fmt::Display| {
            Err(SettingError { name, expected, found: found.to_string() })
        };
        if !temperature.is_finite() || *temperature < 0.0 {
            return refuse("temperature", "0 (greedy) or a positive number", temperature);
        }
        if *top_p <= Decimal::ZERO || *top_p > Decimal::ONE {
            return refuse("top-p", "a number above 0 and at most 1 (1 keeps all)", top_p);
        }
        if *min_p > Decimal::ONE {
            return refuse("min-p", "a number from 0 (keeps all) to 1", min_p);
        }
        if vocab == 0 || vocab > MAX_VOCAB {
            return refuse("vocabulary", "1 to 2^24 ids", &vocab);
        }
        Ok(Self { settings, vocab })
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
    pub fn law(&self, _prefix: Prefix<'_>, logits: &[f32]) -> Result<Dist, RowError> {
        let Settings { temperature, top_k, top_p, min_p } = &self.settings;
        let mut candidates = Candidates::new(self.vocab, logits)?;
        temperature::apply(&mut candidates, *temperature);
        top_k::apply(&mut candidates, *top_k);
        top_p::apply(&mut candidates, *top_p);
        min_p::apply(&mut candidates, *min_p);
        Ok(candidates.into_dist())
    }
}

#[cfg(test)]
mod tests;
