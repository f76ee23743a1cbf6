//! Contexts: the tokens that a position's bits depend on, and which of them occurred before.

use super::Scheme;
use crate::Token;

/// The context of the position after `generated`: its last `len` tokens, oldest first, with zeros
/// before the first (the reference's rule; the prompt is not in it).
#[must_use]
pub fn context(generated: &[Token], len: usize) -> Vec<Token> {
    (generated.len()..generated.len() + len).map(|at| padded(generated, at, len)).collect()
}

/// The text with `len` zeros before it.
fn padded(generated: &[Token], at: usize, len: usize) -> Token {
    at.checked_sub(len).map_or(Token(0), |at| generated[at])
}

/// The contexts of one text under a scheme.
#[derive(Clone, Copy, Debug)]
pub struct Contexts<'a> {
    scheme: &'a Scheme,
    generated: &'a [Token],
}

impl<'a> Contexts<'a> {
    /// Those of the text `generated`.
    #[must_use]
    pub fn new(scheme: &'a Scheme, generated: &'a [Token]) -> Self {
        Self { scheme, generated }
    }

    /// Whether the watermark leaves the law of position `place` alone (0 is the first generated
    /// token): its context is that of an earlier position that the scheme remembers, or it is one of
    /// the first positions under a scheme that skips them.
    ///
    /// # Panics
    /// If `place` lies behind the end of the text.
    #[must_use]
    pub fn is_masked(&self, place: usize) -> bool {
        assert!(place <= self.generated.len(), "the context of place {place} is not known yet");
        let first = self.scheme.first_place();
        if place < first {
            return true;
        }
        let remembered = self.scheme.history.unwrap_or(place).min(place);
        (first.max(place - remembered)..place).any(|earlier| self.are_equal(earlier, place))
    }

    /// Whether two positions have one context. The newest tokens are compared first: they differ most.
    fn are_equal(&self, a: usize, b: usize) -> bool {
        let len = self.scheme.context_len;
        let token = |place: usize, back: usize| padded(self.generated, place + len - back, len);
        (1..=len).all(|back| token(a, back) == token(b, back))
    }
}
