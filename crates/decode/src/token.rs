//! [`Token`]: an id in a vocabulary, and nothing else.

use std::fmt;

/// An id in the target's vocabulary.
///
/// ```
/// use draftproof_decode::Token;
/// assert_eq!(Token(7).index(), 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

impl Token {
    /// The id as an index into a row of logits.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The token at `index` of a row of logits.
    ///
    /// # Panics
    /// If `index` does not fit `u32`: no row is that wide, see [`MAX_VOCAB`](crate::dist::MAX_VOCAB).
    #[must_use]
    pub const fn at(index: usize) -> Self {
        assert!(index <= u32::MAX as usize, "a row of logits has at most 2^32 entries");
        #[allow(clippy::cast_possible_truncation)]
        Self(index as u32)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
