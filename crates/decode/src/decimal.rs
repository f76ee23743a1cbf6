//! [`Decimal`]: a setting exactly as it was typed.

use std::{fmt, str::FromStr};

/// A non-negative decimal number, `numerator / 10^digits`, kept as typed.
///
/// `--top-p 0.9` means nine tenths, which no binary float is; the thresholds of the sampler are
/// computed from this fraction in integers.
///
/// ```
/// use draftproof_decode::Decimal;
/// let p: Decimal = "0.90".parse()?;
/// assert_eq!((p.numerator(), p.denominator()), (90, 100));
/// assert_eq!(p.to_string(), "0.90");
/// assert!("0,9".parse::<Decimal>().is_err());
/// # Ok::<(), draftproof_decode::decimal::DecimalError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    numerator: u64,
    digits: u32,
}

/// The most digits a [`Decimal`] may have, before and after the point together.
pub const MAX_DIGITS: usize = 18;

/// Why a text is no [`Decimal`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a decimal number such as 0.95, of at most {MAX_DIGITS} digits; found `{found}`")]
pub struct DecimalError {
    /// The text.
    pub found: String,
}

impl Decimal {
    /// 0.
    pub const ZERO: Self = Self { numerator: 0, digits: 0 };
    /// 1.
    pub const ONE: Self = Self { numerator: 1, digits: 0 };

    /// The numerator: below 10^18.
    #[must_use]
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The denominator: a power of ten, at most 10^18.
    #[must_use]
    pub const fn denominator(self) -> u64 {
        10u64.pow(self.digits)
    }

    /// `⌈self · whole⌉`, exact for `whole ≤ 2^62`.
    #[must_use]
    pub const fn ceil_of(self, whole: u64) -> u128 {
        (self.numerator as u128 * whole as u128).div_ceil(self.denominator() as u128)
    }

    /// The nearest `f64`.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator() as f64
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let error = || DecimalError { found: text.to_owned() };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let all = format!("{whole}{fraction}");
        if all.is_empty() || all.len() > MAX_DIGITS || !all.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let digits = u32::try_from(fraction.len()).map_err(|_| error())?;
        Ok(Self { numerator: all.parse().map_err(|_| error())?, digits })
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) =
            (self.numerator / self.denominator(), self.numerator % self.denominator());
        match self.digits {
            0 => write!(f, "{whole}"),
            digits => write!(f, "{whole}.{fraction:0width$}", width = digits as usize),
        }
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Decimal {}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let left = u128::from(self.numerator) * u128::from(other.denominator());
        let right = u128::from(other.numerator) * u128::from(self.denominator());
        left.cmp(&right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_order() {
        for text in ["0", "1", "0.9", "0.90", "1.0", "12.05", "0.00000000000000001"] {
            assert_eq!(text.parse::<Decimal>().expect(text).to_string(), text);
        }
        let d = |text: &str| text.parse::<Decimal>().expect("a decimal");
        assert_eq!(d("0.9"), d("0.900"));
        assert!(d("0.09") < d("0.1") && d("1.0") == Decimal::ONE && d("0.0") == Decimal::ZERO);
        assert_eq!(d(".5"), d("0.5"));
    }

    #[test]
    fn refuses_what_is_no_plain_decimal() {
        for text in
            ["", ".", "-0.1", "+1", "1e-3", "0,9", "NaN", "inf", "1.2.3", "0.1234567890123456789"]
        {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

    #[test]
    fn ceil_is_exact_where_floats_are_not() {
        let d = |text: &str| text.parse::<Decimal>().expect("a decimal");
        assert_eq!(d("0.9").ceil_of(10), 9);
        assert_eq!(d("0.9").ceil_of(11), 10);
        assert_eq!(d("0.1").ceil_of(1 << 62), 461_168_601_842_738_791);
        assert_eq!(Decimal::ONE.ceil_of(1 << 62), 1 << 62);
        assert_eq!(d(".999999999999999999").denominator(), 10u64.pow(18));
    }
}
