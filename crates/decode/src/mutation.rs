//! Forged proposals, for the negative controls of the verification suite.
//!
//! A wrong sampler that draws from one law and reports another cannot be written through
//! [`Proposal`]'s constructors. The suite must show that it would be caught, so it forges one here.
//! Nothing but the suite and this crate's tests may name this module; `tests/architecture.rs` of
//! the workspace checks that.

use crate::{Dist, Token, draft::Proposal};

/// A proposal of `token` that claims to be drawn from `q`.
#[must_use]
pub fn forge(token: Token, q: Dist) -> Proposal {
    Proposal::forged(token, q)
}
