//! [`Excess`]: what two laws leave of each token, known by sums over blocks of tokens.
//!
//! A draw from a residual needs its total and one token. So of two rows only the sums of blocks are
//! computed, which takes few wide products, and token by token only the block that a draw falls into.

use ruint::aliases::U256;

use crate::{Dist, Token, dist::Cursor};

/// Tokens whose weights are summed before one of them is looked at.
pub(crate) const BLOCK: usize = 64;

/// Wide weights by ascending id; `weight` of the methods is the function of the weights in p and in q
/// that they were made with, and 0 where p is.
#[derive(Clone, Debug)]
pub(crate) struct Excess<'a> {
    parts: Parts<'a>,
    total: U256,
}

#[derive(Clone, Debug)]
enum Parts<'a> {
    /// Two rows of the same length and the sum of each block.
    Rows { p: &'a [u64], q: &'a [u64], blocks: Vec<U256> },
    /// The positive ones.
    List(Vec<(Token, U256)>),
}

impl<'a> Excess<'a> {
    /// `blocks` gives the sums of `weight` over each [`BLOCK`] of two rows.
    pub(crate) fn new(
        p: &'a Dist,
        q: &'a Dist,
        weight: impl Fn(u64, u64) -> U256,
        blocks: impl FnOnce(&[u64], &[u64]) -> Vec<U256>,
    ) -> Self {
        let parts = match (p.row(), q.row()) {
            (Some(p), Some(q)) if p.len() == q.len() => Parts::Rows { p, q, blocks: blocks(p, q) },
            _ => {
                let mut q_weights = Cursor::new(q);
                let weights = p.support().map(|(x, p_x)| (x, weight(p_x, q_weights.weight(x))));
                Parts::List(weights.filter(|(_, weight)| !weight.is_zero()).collect())
            }
        };
        let sum = |sum: U256, weight: &U256| sum + *weight;
        let total = match &parts {
            Parts::Rows { blocks, .. } => blocks.iter().fold(U256::ZERO, sum),
            Parts::List(list) => list.iter().map(|(_, weight)| weight).fold(U256::ZERO, sum),
        };
        Self { parts, total }
    }

    pub(crate) fn total(&self) -> U256 {
        self.total
    }

    /// The first token, in id order, whose cumulative weight exceeds `u`.
    pub(crate) fn at(&self, mut u: U256, weight: impl Fn(u64, u64) -> U256) -> Token {
        assert!(u < self.total, "a draw needs u < W, not {u} of {}", self.total);
        let mut holds = |weight: U256| {
            let found = u < weight;
            if !found {
                u -= weight;
            }
            found
        };
        let found = match &self.parts {
            Parts::Rows { p, q, blocks } => {
                let start = BLOCK * blocks.iter().position(|&block| holds(block)).unwrap_or(0);
                let mut weights = p[start..].iter().zip(&q[start..]);
                let place = weights.position(|(&p, &q)| holds(weight(p, q)));
                place.map(|place| Token::at(start + place))
            }
            Parts::List(list) => list.iter().find(|one| holds(one.1)).map(|one| one.0),
        };
        found.expect("the weights sum to the total, which exceeds u")
    }

    /// Calls `each` with every positive weight.
    pub(crate) fn visit(
        &self,
        weight: impl Fn(u64, u64) -> U256,
        each: &mut dyn FnMut(Token, U256),
    ) {
        match &self.parts {
            Parts::Rows { p, q, .. } => {
                for (place, (&p, &q)) in p.iter().zip(*q).enumerate() {
                    let weight = weight(p, q);
                    if !weight.is_zero() {
                        each(Token::at(place), weight);
                    }
                }
            }
            Parts::List(list) => list.iter().for_each(|&(token, weight)| each(token, weight)),
        }
    }

    /// The only token of positive weight, if there is just one.
    pub(crate) fn only(&self, weight: impl Fn(u64, u64) -> U256) -> Option<Token> {
        if let Parts::Rows { blocks, .. } = &self.parts
            && blocks.iter().filter(|block| !block.is_zero()).count() > 1
        {
            return None;
        }
        let mut only = None;
        self.visit(weight, &mut |token, weight| {
            if weight == self.total {
                only = Some(token);
            }
        });
        only
    }
}
