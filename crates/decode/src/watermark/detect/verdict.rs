//! [`Detector`]: watermarked, not detected, or no verdict.

use std::fmt;

use super::{
    Calibration, CalibrationError, Evidence, Room,
    room::{is_enough, needed_beyond},
};
use crate::{
    Token,
    watermark::{Hashed, Scheme, StoredKey},
};

/// What the detector says.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The text carries the mark of the key.
    Watermarked,
    /// It shows no sign of it, and a mark as strong as assumed would have shown.
    NotDetected,
    /// The evidence does not carry a verdict.
    Abstain(Abstention),
}

impl Verdict {
    /// In one word, as `detect --json` has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Watermarked => "watermarked",
            Self::NotDetected => "not_detected",
            Self::Abstain(_) => "abstain",
        }
    }
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum Abstention {
    /// Too few usable positions.
    Short {
        /// How many there are.
        positions: usize,
        /// How many it takes.
        needed: usize,
    },
    /// A marked text of these laws would not be told from an unmarked one.
    NoRoom {
        /// The expected gain of the weighted mean.
        gain: f64,
        /// How many positions of this gain it takes; `None` beyond a million.
        needed: Option<usize>,
    },
    /// Between the thresholds of the calibration.
    Between {
        /// The log-likelihood ratio.
        score: f64,
        /// Below this there is no mark.
        low: f64,
        /// From this on there is one.
        high: f64,
    },
}

impl fmt::Display for Abstention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { positions, needed } => {
                write!(f, "too few usable positions: {positions}, and a verdict needs {needed}")
            }
            Self::NoRoom { gain, needed } => {
                write!(
                    f,
                    "the text leaves no room for a mark: under these laws one would raise the \
                     weighted mean by {gain:.4} only"
                )?;
                match needed {
                    Some(needed) => write!(f, ", which takes {needed} positions to see"),
                    None => write!(f, ", which no length would show"),
                }
            }
            Self::Between { score, low, high } => write!(
                f,
                "the log-likelihood ratio {score:.2} lies between the thresholds {low:.2} and \
                 {high:.2}: marked and unmarked text both come there"
            ),
        }
    }
}

/// What was found in a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The chance that text made without the key has a weighted mean as high, times the number of
    /// keys tried, at most 1.
    pub p_value: f64,
    /// The share of ones.
    pub mean: Option<f64>,
    /// The share of ones, early layers weighing more.
    pub weighted_mean: Option<f64>,
    /// The posterior probability of a mark at even prior, with a calibration.
    pub bayesian: Option<f64>,
    /// The log-likelihood ratio, with a calibration.
    pub log_likelihood_ratio: Option<f64>,
    /// The positions that count.
    pub usable_positions: usize,
    /// The verdict.
    pub verdict: Verdict,
}

/// A detector for one key, built from what the generator wrote and nothing else.
#[derive(Clone, Debug)]
pub struct Detector {
    scheme: Scheme,
    id: String,
    values: Hashed,
    rate: f64,
    keys: usize,
    calibration: Option<Calibration>,
}

impl Detector {
    /// The gain of the weighted mean that a verdict on an unknown text assumes of a mark, if there is
    /// one: what decides how many positions are enough. The built-in pair's own texts have 0.16 at
    /// temperature 1, 0.09 at 0.7 and 0.06 at 0.5.
    pub const ASSUMED_GAIN: f64 = 0.05;

    /// A detector that calls a text watermarked if its p-value is at most `rate`.
    #[must_use]
    pub fn new(key: &StoredKey, rate: f64) -> Self {
        let (scheme, id) = (key.scheme.clone(), key.id.clone());
        let values = Hashed::new(&scheme, &key.key);
        Self { scheme, id, values, rate, keys: 1, calibration: None }
    }

    /// One of `keys` detectors that try the same text: each p-value counts `keys` times (Bonferroni).
    #[must_use]
    pub fn among(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    /// The same with thresholds from texts, which then decide, at the calibration's own rate.
    ///
    /// # Errors
    /// If the calibration is for another key, or another tokenizer than `tokenizer`.
    pub fn calibrated(
        self,
        key: &StoredKey,
        calibration: Calibration,
        tokenizer: Option<&str>,
    ) -> Result<Self, CalibrationError> {
        calibration.check(key, tokenizer)?;
        Ok(Self { rate: calibration.rate, calibration: Some(calibration), ..self })
    }

    /// The key's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key's scheme.
    #[must_use]
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The key's bits.
    #[must_use]
    pub fn values(&self) -> &Hashed {
        &self.values
    }

    /// The rate of false positives that it keeps.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The evidence in a text, up to the first token of `ends`.
    #[must_use]
    pub fn evidence(&self, text: &[Token], ends: &[Token]) -> Evidence {
        Evidence::new(&self.scheme, &self.values, text, ends)
    }

    /// The verdict on a text; `room` is what its laws leave, if they are known.
    ///
    /// In this order: too short, abstain; no room, abstain; then the calibration's thresholds, or the
    /// p-value. So a text may get no verdict although its p-value is small: the p-value is exact at any
    /// length, but a rule that stays silent below a stated length is easier to hold to.
    #[must_use]
    pub fn judge(&self, evidence: &Evidence, room: Option<&Room>) -> Finding {
        let positions = evidence.positions();
        let calibration = self.calibration.as_ref();
        let score = calibration.map(|found| found.bayes.log_likelihood_ratio(evidence));
        let p_value = (evidence.p_value() * self.keys as f64).min(1.0);
        let verdict = match self.abstention(positions, room) {
            Some(abstention) => Verdict::Abstain(abstention),
            None => match (calibration.and_then(|found| found.class(positions)), score) {
                (Some(class), Some(score)) => {
                    let (low, high) = (class.not_detected_below, class.watermarked_from);
                    if score >= high {
                        Verdict::Watermarked
                    } else if score >= low {
                        Verdict::Abstain(Abstention::Between { score, low, high })
                    } else {
                        Verdict::NotDetected
                    }
                }
                _ if p_value <= self.rate => Verdict::Watermarked,
                _ => Verdict::NotDetected,
            },
        };
        Finding {
            p_value,
            mean: evidence.mean(),
            weighted_mean: evidence.weighted_mean(),
            bayesian: calibration
                .filter(|_| positions > 0)
                .map(|found| found.bayes.posterior(evidence)),
            log_likelihood_ratio: score,
            usable_positions: positions,
            verdict,
        }
    }

    /// Why a text of this many positions and this room gets no verdict, whatever its bits.
    fn abstention(&self, positions: usize, room: Option<&Room>) -> Option<Abstention> {
        let (depth, rate) = (self.scheme.depth, self.rate / self.keys as f64);
        let short = |needed| Some(Abstention::Short { positions, needed });
        match (&self.calibration, room) {
            (Some(calibration), _) if positions < calibration.classes[0].from => {
                return short(calibration.classes[0].from);
            }
            // How strong a mark would be is known: `NoRoom` says whether it shows.
            (None, Some(_)) if positions == 0 => return short(1),
            (None, None) if !is_enough(depth, positions, Self::ASSUMED_GAIN, rate) => {
                let needed = needed_beyond(positions, depth, Self::ASSUMED_GAIN, rate);
                return short(needed.unwrap_or(usize::MAX));
            }
            _ => {}
        }
        let gain = room?.gain(depth);
        (!is_enough(depth, positions, gain, rate)).then(|| Abstention::NoRoom {
            gain,
            needed: needed_beyond(positions, depth, gain, rate),
        })
    }
}
