//! Thresholds that real texts gave, and the learnt model they belong to: what `watermark calibrate`
//! writes and `detect --calibration` reads.
//!
//! Half of the texts of each kind train [`Bayes`]; the other half, cut into pieces of many lengths,
//! give two thresholds on its log-likelihood ratio for each class of lengths:
//! - at or above `watermarked_from`: with N unmarked pieces it is the smallest of their scores with at
//!   most `⌊(N + 1)·rate⌋ − 1` at or above it. A new unmarked piece that is *exchangeable* with them
//!   (the same kind of text, of lengths spread as theirs) reaches it with probability at most `rate`,
//!   whatever the law of the scores (conformal prediction; Vovk, Gammerman and Shafer 2005). It is
//!   never below 0, where the text speaks against a mark.
//! - below `not_detected_below`, by the same rule from the marked pieces: a marked piece falls there
//!   with probability at most `rate`.
//!
//! Between the two the text is as either kind is: an abstention. A class with fewer than `1/rate`
//! pieces of a kind has no threshold. Texts that share pages or an author are not exchangeable with
//! others; the thresholds are as good as the texts that gave them.

use serde::{Deserialize, Serialize};

use super::{Bayes, Evidence};
use crate::watermark::{Scheme, StoredKey};

/// The class of a length begins at one of these many usable positions.
pub const CLASSES: [usize; 5] = [16, 32, 64, 128, 256];

/// Pieces of the last class are at most this long.
const LONGEST: usize = 512;

/// What a calibration file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    format: String,
    /// The id of the key that it was made with.
    pub key: String,
    /// The SHA-256 of the tokenizer, if text had to be tokenised.
    pub tokenizer: Option<String>,
    /// The key's scheme.
    pub scheme: Scheme,
    /// The rate that both thresholds keep.
    pub rate: f64,
    /// The learnt model.
    pub bayes: Bayes,
    /// Thresholds, by increasing length.
    pub classes: Vec<Class>,
}

/// The thresholds of a class of lengths, on the log-likelihood ratio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// The fewest usable positions.
    pub from: usize,
    /// Scores at or above this are a mark.
    pub watermarked_from: f64,
    /// Scores below this are none. Never above the other.
    pub not_detected_below: f64,
    /// The share of the marked pieces at or above the first.
    pub found: f64,
    /// Unmarked pieces.
    pub unmarked: usize,
    /// Marked pieces.
    pub marked: usize,
}

/// Why a calibration cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// Not a calibration file.
    #[error("expected the JSON of `watermark calibrate`: {0}")]
    Json(#[from] serde_json::Error),
    /// Another format.
    #[error("`format`: expected {:?}, found {found:?}", Calibration::FORMAT)]
    Format {
        /// What was there.
        found: String,
    },
    /// Made for something else.
    #[error("the calibration is for {what} {found}, and this is {expected}: it says nothing here")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// What is in use.
        expected: String,
        /// What the calibration names.
        found: String,
    },
    /// A number that no calibration has.
    #[error("`{name}`: expected {expected}")]
    Range {
        /// Which part.
        name: &'static str,
        /// Its range.
        expected: &'static str,
    },
    /// More than two leaves.
    #[error("the Bayesian score is for 2 leaves; this key's scheme has {leaves}")]
    Leaves {
        /// The scheme's.
        leaves: usize,
    },
    /// Too few texts.
    #[error(
        "a rate of {rate} needs {needed} pieces of {from} usable positions or more of each kind, less \
         half that trains; found {unmarked} of unmarked and {marked} of marked text"
    )]
    TooFew {
        /// The rate.
        rate: f64,
        /// Pieces needed.
        needed: usize,
        /// The shortest class.
        from: usize,
        /// Unmarked pieces.
        unmarked: usize,
        /// Marked pieces.
        marked: usize,
    },
}

impl Calibration {
    /// What `format` says.
    pub const FORMAT: &str = "draftproof watermark calibration 1";

    /// Learns from texts without a mark and with it, under one key.
    ///
    /// # Errors
    /// If the scheme has more than two leaves, the rate is outside (0, 1/2], or no class of lengths
    /// has enough pieces.
    pub fn fit(
        key: &StoredKey,
        tokenizer: Option<String>,
        rate: f64,
        unmarked: &[Evidence],
        marked: &[Evidence],
    ) -> Result<Self, CalibrationError> {
        let scheme = key.scheme.clone();
        if scheme.leaves != 2 {
            return Err(CalibrationError::Leaves { leaves: scheme.leaves });
        }
        check_rate(rate)?;
        let (train_unmarked, test_unmarked) = halves(unmarked);
        let (train_marked, test_marked) = halves(marked);
        let needed = (1.0 / rate).ceil() as usize;
        let too_few = |unmarked, marked| {
            let from = CLASSES[0];
            Err(CalibrationError::TooFew { rate, needed, from, unmarked, marked })
        };
        let has_rows = |texts: &[Evidence]| texts.iter().any(|text| text.positions() > 0);
        if !has_rows(&train_unmarked) || !has_rows(&train_marked) {
            return too_few(test_unmarked.len(), test_marked.len());
        }
        let bayes = Bayes::train(&train_marked, &train_unmarked).rounded();
        let mut most = (0, 0);
        let mut classes = Vec::new();
        for (i, &from) in CLASSES.iter().enumerate() {
            let to = CLASSES.get(i + 1).copied().unwrap_or(LONGEST);
            let scores = |texts: &[Evidence]| -> Vec<f64> {
                let score = |piece: &Evidence| bayes.log_likelihood_ratio(piece);
                let mut scores: Vec<f64> = pieces(texts, from, to).iter().map(score).collect();
                scores.sort_by(f64::total_cmp);
                scores
            };
            let (unmarked, marked) = (scores(&test_unmarked), scores(&test_marked));
            most = (most.0.max(unmarked.len()), most.1.max(marked.len()));
            let allowed = |scores: &[f64]| ((scores.len() + 1) as f64 * rate).floor() as usize;
            let (above, below) = (allowed(&unmarked), allowed(&marked));
            if above == 0 || below == 0 {
                continue;
            }
            // In millionths, which JSON keeps; strictly above the score that just `above` reach.
            let limit = ((unmarked[unmarked.len() - above] * 1e6).floor() + 1.0) / 1e6;
            let watermarked_from = limit.max(0.0);
            let low = (marked[below - 1] * 1e6).floor() / 1e6;
            let not_detected_below = low.min(watermarked_from);
            let found = marked.iter().filter(|&&score| score >= watermarked_from).count();
            classes.push(Class {
                from,
                watermarked_from,
                not_detected_below,
                found: found as f64 / marked.len() as f64,
                unmarked: unmarked.len(),
                marked: marked.len(),
            });
        }
        if classes.is_empty() {
            return too_few(most.0, most.1);
        }
        let (format, key) = (Self::FORMAT.to_owned(), key.id.clone());
        Ok(Self { format, key, tokenizer, scheme, rate, bayes, classes })
    }

    /// The thresholds for a text; `None` if it is shorter than all classes.
    #[must_use]
    pub fn class(&self, positions: usize) -> Option<&Class> {
        self.classes.iter().rev().find(|class| class.from <= positions)
    }

    /// # Errors
    /// If it is not the JSON of a calibration file, or a number in it is out of range.
    pub fn parse(json: &str) -> Result<Self, CalibrationError> {
        let found: Self = serde_json::from_str(json)?;
        if found.format != Self::FORMAT {
            return Err(CalibrationError::Format { found: found.format });
        }
        check_rate(found.rate)?;
        let require = |holds, name, expected| match holds {
            true => Ok(()),
            false => Err(CalibrationError::Range { name, expected }),
        };
        require(found.bayes.fits(found.scheme.depth), "bayes", "a finite number for each layer")?;
        let ordered = found.classes.windows(2).all(|pair| pair[0].from < pair[1].from);
        let right = |class: &Class| class.not_detected_below <= class.watermarked_from;
        require(
            !found.classes.is_empty() && ordered && found.classes.iter().all(right),
            "classes",
            "at least one, by increasing length, each with its thresholds in order",
        )?;
        Ok(found)
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("plain data can be written as JSON");
        json.push('\n');
        json
    }

    /// # Errors
    /// If it was made with another key, or another tokenizer than `tokenizer`.
    pub fn check(&self, key: &StoredKey, tokenizer: Option<&str>) -> Result<(), CalibrationError> {
        let same = |what, expected: &str, found: &str| match expected == found {
            true => Ok(()),
            false => Err(CalibrationError::Mismatch {
                what,
                expected: expected.to_owned(),
                found: found.to_owned(),
            }),
        };
        same("key", &key.id, &self.key)?;
        // The id covers the scheme; a file that was edited by hand may still disagree.
        same("scheme", &format!("{:?}", key.scheme), &format!("{:?}", self.scheme))?;
        if let (Some(expected), Some(found)) = (tokenizer, &self.tokenizer) {
            same("tokenizer", expected, found)?;
        }
        Ok(())
    }
}

fn check_rate(rate: f64) -> Result<(), CalibrationError> {
    let holds = rate > 0.0 && rate <= 0.5;
    let range = CalibrationError::Range { name: "rate", expected: "above 0, at most 0.5" };
    if holds { Ok(()) } else { Err(range) }
}

/// Every other text, from the first and from the second.
fn halves(texts: &[Evidence]) -> (Vec<Evidence>, Vec<Evidence>) {
    let half = |first: usize| texts.iter().skip(first).step_by(2).cloned().collect();
    (half(0), half(1))
}

/// Texts cut into pieces of `from` positions or more and fewer than `to`, lengths spread evenly.
fn pieces(texts: &[Evidence], from: usize, to: usize) -> Vec<Evidence> {
    let mut pieces = Vec::new();
    for text in texts {
        let mut rows = text.rows();
        loop {
            // The golden ratio's multiples are spread evenly, without chance.
            let share = (pieces.len() as f64 * 0.618_033_988_749_895).fract();
            let length = from + (share * (to - from) as f64) as usize;
            // A text's last piece is as long as it is, if that is a length of this class.
            let length = if rows.len() < length { rows.len() } else { length };
            if length < from {
                break;
            }
            pieces.push(Evidence::from_rows(text.depth(), rows[..length].to_vec()));
            rows = &rows[length..];
        }
    }
    pieces
}
