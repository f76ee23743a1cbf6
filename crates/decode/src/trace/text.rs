//! Values that a trace writes as JSON strings.

use std::{fmt, str::FromStr};

use ruint::aliases::U256;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};

use crate::{Token, dist::Fraction};

/// A SHA-256 digest, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum([u8; 32]);

impl Sum {
    /// What stands before the first line.
    pub(super) const START: Self = Self([0; 32]);

    /// The digest of a line with this body after a line with digest `self`: the SHA-256 of the 32
    /// bytes of that digest and the body's text.
    pub(super) fn then(&self, body: &str) -> Self {
        let hash = Sha256::new().chain_update(self.0).chain_update(body);
        Self(hash.finalize().into())
    }

    pub(super) fn of_tokens(tokens: impl Iterator<Item = Token>) -> Self {
        let hash =
            tokens.fold(Sha256::new(), |hash, token| hash.chain_update(token.0.to_le_bytes()));
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Sum {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        let mut sum = [0; 32];
        if digits.len() != 64 {
            return Err("a digest has 64 hexadecimal digits");
        }
        for (byte, pair) in sum.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| "a digest is hexadecimal")?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| "a digest is hexadecimal")?;
        }
        Ok(Self(sum))
    }
}

/// An exact fraction, `a/b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact(pub(super) Fraction);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.numerator, self.0.denominator)
    }
}

impl FromStr for Exact {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "a fraction is written a/b in decimal";
        let (a, b) = text.split_once('/').ok_or(FORM)?;
        let number = |digits: &str| U256::from_str_radix(digits, 10).map_err(|_| FORM);
        let (numerator, denominator) = (number(a)?, number(b)?);
        if denominator.is_zero() {
            return Err("a fraction has a positive denominator");
        }
        Ok(Self(Fraction { numerator, denominator }))
    }
}

/// A value written as a JSON string: numbers may exceed the 2^53 that readers of JSON keep exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text<T>(pub(super) T);

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Borrowed: an escaped string is not canonical, and is refused here already.
        let text = <&str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}
