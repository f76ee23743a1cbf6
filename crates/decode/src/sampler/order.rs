//! [`Order`]: in which order the steps of the contract are taken.
//!
//! | preset | order | source |
//! |---|---|---|
//! | `default` | penalties, bias, bans, temperature, top-k, typical, top-p, min-p | this project |
//! | `hf` | bias, penalties, bans, temperature, top-k, top-p, min-p, typical | `_get_logits_processor` of transformers 5 |
//! | `llama.cpp` | bias, bans, penalties, top-k, typical, top-p, min-p, temperature | its default sampler chain, logit bias first |
//!
//! (transformers has no presence and frequency penalty: they stand with the repetition penalty.
//! llama.cpp has no bans but those written as a logit bias: they stand with it. What those engines
//! have and this one has not leaves no gap.)
//!
//! Any other order is a list of all steps. A filter before the temperature step uses weights at
//! T = 1; penalties and bias after it work on the divided logits; temperature 0, at its place, keeps
//! the largest logit *that is left*. Bans commute with penalties and bias, so their place only
//! matters to filters, and to the error that names the step which emptied a row.

use std::{fmt, str::FromStr};

/// A step of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The logits as the model gave them; before all others.
    Logits,
    /// Repetition, presence and frequency penalty.
    Penalties,
    /// The logit bias.
    Bias,
    /// Bad words, no-repeat-ngram, min-tokens.
    Bans,
    /// Division by the temperature.
    Temperature,
    /// The k largest logits.
    TopK,
    /// The locally typical tokens.
    Typical,
    /// The nucleus.
    TopP,
    /// The floor relative to the likeliest token.
    MinP,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Logits => "logits",
            Self::Penalties => "penalties",
            Self::Bias => "bias",
            Self::Bans => "bans",
            Self::Temperature => "temperature",
            Self::TopK => "top-k",
            Self::Typical => "typical",
            Self::TopP => "top-p",
            Self::MinP => "min-p",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An order of all steps but [`Step::Logits`], each of them once.
///
/// ```
/// use draftproof_decode::sampler::Order;
/// let order: Order = "hf".parse()?;
/// assert_eq!(order, Order::HF);
/// assert_eq!(order.to_string(), "bias,penalties,bans,temperature,top-k,top-p,min-p,typical");
/// assert_eq!(order.to_string().parse(), Ok(order));
/// let error = "temperature,top-k".parse::<Order>().unwrap_err();
/// assert_eq!(error.to_string(), "the sampler order lacks step `penalties`; expected every step once");
/// # Ok::<(), draftproof_decode::sampler::OrderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order([Step; 8]);

/// Why a list of steps is no [`Order`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A name that is neither a step nor a preset.
    #[error(
        "`{found}` is no step of the sampler; expected default, hf, llama.cpp, or a list of {}",
        Order::DEFAULT
    )]
    Unknown {
        /// The name.
        found: String,
    },
    /// A step that stands twice.
    #[error("the sampler order has step `{step}` twice; expected every step once")]
    Twice {
        /// The step.
        step: Step,
    },
    /// A step that is missing. To switch a step off, set its value to off.
    #[error("the sampler order lacks step `{step}`; expected every step once")]
    Missing {
        /// The step.
        step: Step,
    },
}

impl Order {
    /// Penalties, bias, bans, temperature, top-k, typical, top-p, min-p.
    pub const DEFAULT: Self = {
        use Step::*;
        Self([Penalties, Bias, Bans, Temperature, TopK, Typical, TopP, MinP])
    };
    /// That of transformers' `generate`.
    pub const HF: Self = {
        use Step::*;
        Self([Bias, Penalties, Bans, Temperature, TopK, TopP, MinP, Typical])
    };
    /// That of llama.cpp's default chain.
    pub const LLAMA_CPP: Self = {
        use Step::*;
        Self([Bias, Bans, Penalties, TopK, Typical, TopP, MinP, Temperature])
    };

    /// The orders that have a name.
    pub const PRESETS: [(&'static str, Self); 3] =
        [("default", Self::DEFAULT), ("hf", Self::HF), ("llama.cpp", Self::LLAMA_CPP)];

    /// The order `steps`.
    ///
    /// # Errors
    /// If a step is missing, stands twice, or is [`Step::Logits`].
    pub fn new(steps: &[Step]) -> Result<Self, OrderError> {
        for (i, &step) in steps.iter().enumerate() {
            if step == Step::Logits {
                let found = step.to_string();
                return Err(OrderError::Unknown { found });
            }
            if steps[..i].contains(&step) {
                return Err(OrderError::Twice { step });
            }
        }
        let mut wanted = Self::DEFAULT.0.into_iter();
        if let Some(step) = wanted.find(|step| !steps.contains(step)) {
            return Err(OrderError::Missing { step });
        }
        let steps = steps.try_into().expect("every step, and none twice");
        Ok(Self(steps))
    }

    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The name of the order, if it is a preset.
    #[must_use]
    pub fn preset(&self) -> Option<&'static str> {
        let mut presets = Self::PRESETS.into_iter();
        presets.find(|(_, order)| order == self).map(|(name, _)| name)
    }
}

impl Default for Order {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for Order {
    type Err = OrderError;

    /// A preset's name, or all steps separated by commas.
    fn from_str(text: &str) -> Result<Self, OrderError> {
        if let Some((_, order)) = Self::PRESETS.into_iter().find(|(name, _)| *name == text) {
            return Ok(order);
        }
        let step = |name: &str| {
            let mut steps = Self::DEFAULT.0.into_iter();
            steps
                .find(|step| step.name() == name.trim())
                .ok_or_else(|| OrderError::Unknown { found: name.trim().to_owned() })
        };
        let steps: Vec<Step> = text.split(',').map(step).collect::<Result<_, _>>()?;
        Self::new(&steps)
    }
}

/// The steps, separated by commas: also of a preset, so that a record does not depend on what the
/// preset means elsewhere.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|step| step.name()).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_and_lists_round_trip() {
        for (name, order) in Order::PRESETS {
            assert_eq!(name.parse(), Ok(order));
            assert_eq!(order.preset(), Some(name));
            assert_eq!(order.to_string().parse(), Ok(order));
            assert_eq!(Order::new(order.steps()), Ok(order));
        }
        let list = "min-p, bans,bias ,typical,penalties,top-p,top-k,temperature";
        let order: Order = list.parse().expect("every step once");
        assert_eq!(order.steps()[0], Step::MinP);
        assert_eq!(order.preset(), None);
        assert_eq!(order.to_string(), list.replace(' ', ""));
    }

    #[test]
    fn anything_but_a_permutation_is_refused() {
        let refused = |text: &str| text.parse::<Order>().expect_err(text).to_string();
        let all = Order::DEFAULT.to_string();
        assert_eq!(
            refused(&format!("{all},top-k")),
            "the sampler order has step `top-k` twice; expected every step once"
        );
        assert_eq!(
            refused(&all.replace(",min-p", "")),
            "the sampler order lacks step `min-p`; expected every step once"
        );
        for (text, found) in [("", ""), ("HF", "HF"), ("logits,bias", "logits")] {
            assert_eq!(
                refused(text),
                format!(
                    "`{found}` is no step of the sampler; expected default, hf, llama.cpp, or a \
                     list of {all}"
                )
            );
        }
        let steps = [&[Step::Logits], Order::DEFAULT.steps()].concat();
        assert!(Order::new(&steps).is_err());
        assert!(Order::new(&[]).is_err());
    }
}
