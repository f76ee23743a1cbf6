//! [`Law`]: anything a token can be drawn from.

use std::fmt;

use ruint::aliases::U256;

use crate::Token;

/// A law over tokens with exact integer weights.
///
/// Implemented by [`Dist`](crate::Dist) and by the residual laws of the verifiers, whose weights
/// are wider. All of them draw alike: `u` is uniform on `[0, W)`, and the token is the first, in id
/// order, whose cumulative weight exceeds `u`.
pub trait Law: fmt::Debug {
    /// `W`, the sum of all weights; not 0.
    fn total(&self) -> U256;

    /// The first token, in id order, whose cumulative weight exceeds `u`, for `u < W`.
    fn at(&self, u: U256) -> Token;

    /// Calls `each` with every token of positive weight, by ascending id.
    fn visit(&self, each: &mut dyn FnMut(Token, U256));

    /// The only token of positive weight, if there is just one: then a draw needs no noise.
    fn only(&self) -> Option<Token>;
}
