//! The lines of a trace as data, and how their numbers follow from laws.
//!
//! Recorder and replay share these types and the functions that fill them; what replay checks
//! against the *noise* is written apart, in [`check`](super::check).

use ruint::aliases::U256;
use serde::{Deserialize, Serialize};

use super::text::{Exact, Sum, Text};
use crate::{
    Dist, FinishReason, Token,
    dist::{DistError, Fraction},
    law::Law,
    noise::{Lane, PositionKey, RoundKey},
    verify::{
        Origin,
        block::{self, BlockResidual},
    },
};

/// What the header's `format` says.
pub(super) const FORMAT: &str = "draftproof-trace";
/// What the header's `version` says.
pub(super) const VERSION: u32 = 1;

/// A line without its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Record {
    Header(Header),
    Position(Box<Position>),
    Footer(Footer),
}

impl Record {
    /// `{"position":{…}}`: the one way to write the record.
    pub(super) fn body(&self) -> String {
        serde_json::to_string(self).expect("plain data can be written as JSON")
    }
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) verifier: Rule,
    pub(super) contract: Option<String>,
    pub(super) vocab: u32,
    pub(super) context: Text<u64>,
    pub(super) full: bool,
    pub(super) seed: Text<u64>,
    pub(super) sequences: Vec<Opening>,
}

/// A continuation before its first round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Opening {
    pub(super) sequence: Text<u64>,
    pub(super) prompt_len: Text<u64>,
    /// The number of tokens it starts from: more than the prompt's where it was resumed.
    pub(super) start: Text<u64>,
    /// The SHA-256 of those tokens, four bytes each, least significant first.
    pub(super) start_sha256: Text<Sum>,
    pub(super) max_tokens: Text<u64>,
    pub(super) eos: Vec<u32>,
}

/// The rule that judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rule {
    Rejection,
    Block,
    Coupled,
}

/// Where a place's token came from; `rejected` is a place of a block behind the last emitted token,
/// `unusable` one whose target row has no law, behind the end of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    Draft,
    Residual,
    Bonus,
    Rejected,
    Unusable,
}

impl From<Origin> for Source {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Draft => Self::Draft,
            Origin::Residual => Self::Residual,
            Origin::Bonus => Self::Bonus,
        }
    }
}

/// One judged place of one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Position {
    pub(super) sequence: Text<u64>,
    /// Counted within the sequence, from 0.
    pub(super) round: Text<u64>,
    pub(super) round_start: Text<u64>,
    pub(super) offset: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u32>,
    pub(super) origin: Source,
    /// Whether the token was committed: not if one before it ended the text.
    pub(super) kept: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) finish: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drafted: Option<Drafted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<Weights>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block: Option<BlockPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) coin: Option<Coin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) race: Option<Race>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draw: Option<Draw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) q: Option<Whole>,
}

/// A drafted token and its draw from q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drafted {
    pub(super) token: u32,
    pub(super) draw: Draw,
}

/// A draw from a law: the token is that of the `u` on `[0, total)` with `below ≤ u < below + weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Draw {
    pub(super) below: Text<U256>,
    pub(super) weight: Text<U256>,
    pub(super) total: Text<U256>,
    /// `null`: the law has one token only, and no noise was spent.
    pub(super) noise: Option<Key>,
}

impl Draw {
    pub(super) fn of(law: &dyn Law, token: Token, key: RoundKey) -> Self {
        let (mut below, mut weight) = (U256::ZERO, U256::ZERO);
        law.visit(&mut |x, w| {
            if x < token {
                below += w;
            } else if x == token {
                weight = w;
            }
        });
        Self {
            below: Text(below),
            weight: Text(weight),
            total: Text(law.total()),
            noise: law.only().is_none().then(|| key.into()),
        }
    }
}

/// The drafted token in p and in q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Weights {
    pub(super) p: Text<u64>,
    pub(super) p_total: Text<u64>,
    pub(super) q: Text<u64>,
    pub(super) q_total: Text<u64>,
}

impl Weights {
    pub(super) fn of(p: &Dist, q: &Dist, x: Token) -> Self {
        Self {
            p: Text(p.weight(x)),
            p_total: Text(p.total()),
            q: Text(q.weight(x)),
            q_total: Text(q.total()),
        }
    }

    /// `p_x·W_q` and `q_x·W_p`.
    pub(super) fn products(&self) -> (u128, u128) {
        let a = u128::from(self.p.0) * u128::from(self.q_total.0);
        (a, u128::from(self.q.0) * u128::from(self.p_total.0))
    }

    /// `W_p·W_q`.
    pub(super) fn unit(&self) -> U256 {
        U256::from(u128::from(self.p_total.0) * u128::from(self.q_total.0))
    }

    pub(super) fn next_alpha(&self, alpha: u64) -> u64 {
        let (p, q) = ((self.p.0, self.p_total.0), (self.q.0, self.q_total.0));
        block::next_alpha(alpha, p, q)
    }
}

/// `α_i`, `Z_i` and `h_i` of block verification; the place after the last judged one has no Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockPlace {
    pub(super) alpha: Text<Exact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) z: Option<Text<Exact>>,
    pub(super) h: Text<Exact>,
}

impl BlockPlace {
    /// A place with its residual's total, in units of `2^-40 / (W_p·W_q)`.
    pub(super) fn judged(alpha: u64, z: U256, unit: U256) -> Self {
        Self {
            alpha: Text(Exact(block::h_last(alpha))),
            z: Some(Text(Exact(Fraction {
                numerator: z,
                denominator: unit * U256::from(block::ONE),
            }))),
            h: Text(Exact(block::h(alpha, z, unit))),
        }
    }

    /// The place after them.
    pub(super) fn last(alpha: u64) -> Self {
        let alpha = Text(Exact(block::h_last(alpha)));
        Self { alpha, z: None, h: alpha }
    }

    /// A place from its laws, and the residual there.
    pub(super) fn of<'a>(alpha: u64, p: &'a Dist, q: &'a Dist) -> (Self, BlockResidual<'a>) {
        let residual = BlockResidual::new(alpha, p, q);
        let unit = U256::from(u128::from(p.total()) * u128::from(q.total()));
        (Self::judged(alpha, residual.total(), unit), residual)
    }
}

/// A coin: whether `u < a` for u uniform on `[0, b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Coin {
    /// `null`: `a = 0` or `a ≥ b`, and no noise was spent.
    pub(super) noise: Option<Key>,
    pub(super) passed: bool,
}

impl Coin {
    pub(super) fn new(chance: Fraction, key: RoundKey, passed: bool) -> Self {
        Self { noise: is_open(chance).then(|| key.into()), passed }
    }
}

/// Whether noise decides a coin.
pub(super) fn is_open(chance: Fraction) -> bool {
    !chance.numerator.is_zero() && chance.numerator < chance.denominator
}

/// A race that the token won: its weight in p, and p's total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Race {
    pub(super) weight: Text<u64>,
    pub(super) total: Text<u64>,
    /// `null`: p has one token only, and no noise was spent.
    pub(super) noise: Option<Place>,
}

impl Race {
    pub(super) fn of(p: &Dist, token: Token, key: PositionKey) -> Self {
        Self {
            weight: Text(p.weight(token)),
            total: Text(p.total()),
            noise: p.only().is_none().then(|| key.into()),
        }
    }
}

/// A [`RoundKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    seed: Text<u64>,
    sequence: Text<u64>,
    round_start: Text<u64>,
    offset: u32,
    lane: Lane,
}

impl From<RoundKey> for Key {
    fn from(key: RoundKey) -> Self {
        Self {
            seed: Text(key.seed.seed),
            sequence: Text(key.seed.sequence),
            round_start: Text(key.round_start),
            offset: key.offset,
            lane: key.lane,
        }
    }
}

/// A [`PositionKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    seed: Text<u64>,
    sequence: Text<u64>,
    position: Text<u64>,
}

impl From<PositionKey> for Place {
    fn from(key: PositionKey) -> Self {
        Self {
            seed: Text(key.seed.seed),
            sequence: Text(key.seed.sequence),
            position: Text(key.position),
        }
    }
}

/// A whole law, sparse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {
    ids: Vec<u32>,
    weights: Vec<Text<u64>>,
}

impl Whole {
    pub(super) fn of(law: &Dist) -> Self {
        let (ids, weights) = law.support().map(|(x, w)| (x.0, Text(w))).unzip();
        Self { ids, weights }
    }

    /// The law again; `None` if ids and weights do not pair up or a weight is 0.
    pub(super) fn law(&self, vocab: u32) -> Option<Result<Dist, DistError>> {
        let weights: Vec<u64> = self.weights.iter().map(|w| w.0).collect();
        let pairs = weights.len() == self.ids.len() && !weights.contains(&0);
        pairs.then(|| Dist::sparse(vocab as usize, self.ids.clone(), weights))
    }
}

/// The last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Footer {
    /// How many lines stand before it.
    pub(super) lines: Text<u64>,
    pub(super) sequences: Vec<Closing>,
    /// The digest of the line before.
    pub(super) last: Text<Sum>,
}

/// A continuation after its last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Closing {
    pub(super) sequence: Text<u64>,
    pub(super) rounds: Text<u64>,
    pub(super) tokens: Text<u64>,
    /// `null`: it was not ended.
    pub(super) finish: Option<FinishReason>,
}
