//! Block verification (Sun et al. 2403.10444, algorithm 2), exact in integers.

use ruint::aliases::U256;

use super::{Block, Next, Verdict, Verifier};
use crate::{
    Dist, Token,
    dist::{Cursor, Fraction},
    law::Law,
    noise::{Lane, Noise},
};

/// Judges the block as a whole: `τ = max{i : η_i < h_i}`, then a draw from the residual at τ.
///
/// With `α_0 = 1`, `α_{i+1}(x) = min(1, α_i·p_i(x)/q_i(x))` along the drafted tokens, the residual
/// `r_i(x) = α_i·p_i(x) − α_{i+1}(x)·q_i(x)` and its sum `Z_i`, the paper takes
/// `h_i = Z_i / (Z_i + 1 − α_i)` and `h_γ = α_γ`. It accepts at least as many tokens as
/// [`Rejection`](super::Rejection), on average, for every pair of models.
///
/// Here every α is a multiple of 2^-40, rounded **down for every x** (drafted or not), and the same
/// α goes into the residual. Why that is exact: for any `0 ≤ α_{i+1}(x) ≤ min(1, α_i·p_i(x)/q_i(x))`,
/// `P(τ ≥ i | x_1..x_i) = α_i` holds at γ, and backwards by `1 − (1 − h_i)(1 − Σ_x q_i(x)·α_{i+1}(x))
/// = α_i`, which is what defines h_i. So after x_1..x_i the token y is emitted with weight
/// `q(x_1..x_i)·(r_i(y) + q_i(y)·α_{i+1}(y)) = q(x_1..x_i)·α_i·p_i(y)`: the target's law. The
/// rounding costs less than 2^-40 of acceptance a token.
#[derive(Clone, Copy, Debug)]
pub struct BlockRule;

/// α is counted in units of 2^-40.
pub(crate) const ONE: u64 = 1 << 40;

impl Verifier for BlockRule {
    fn name(&self) -> &'static str {
        "block"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let (mut laws, mut steps) = (Vec::new(), Vec::new());
        let mut alpha = ONE;
        // A row without a law ends the block before it; it decides something only if τ gets there.
        let mut end = Ok(());
        for (i, proposal) in proposals.iter().enumerate() {
            match target.law(i) {
                Ok(p) => {
                    let step =
                        Step { alpha, residual: BlockResidual::new(alpha, &p, proposal.q()) };
                    let (x, q) = (proposal.token(), proposal.q());
                    alpha = next_alpha(alpha, (p.weight(x), p.total()), (q.weight(x), q.total()));
                    laws.push(p);
                    steps.push(step);
                }
                Err(unusable) => end = Err(unusable),
            }
            // α = 0 stays 0: no later place can be τ.
            if end.is_err() || alpha == 0 {
                break;
            }
        }
        let last = steps.len();
        if noise.decide(round.key(last, Lane::Accept), h_last(alpha)) {
            let next = end.and_then(|()| target.law(last)).map(|p| {
                let next = noise.draw(round.key(last, Lane::Bonus), &p);
                laws.push(p);
                Next::bonus(next)
            });
            return Verdict { accepted: last, next, laws };
        }
        let places = steps.iter().enumerate().rev();
        for (i, step) in places {
            if noise.decide(round.key(i, Lane::Accept), step.h()) {
                let next = noise.draw(round.key(i, Lane::Residual), &step.residual);
                return Verdict { accepted: i, next: Ok(Next::residual(next)), laws };
            }
        }
        unreachable!("h_0 = 1, since α_0 = 1")
    }
}

/// `h_γ = α_γ`.
pub(crate) fn h_last(alpha: u64) -> Fraction {
    Fraction::new(u128::from(alpha), u128::from(ONE))
}

/// `h_i = Z_i / (Z_i + 1 − α_i)`, and 1 if that is 0/0: then τ > i with certainty. Z is counted in
/// units of `2^-40 / unit`.
pub(crate) fn h(alpha: u64, z: U256, unit: U256) -> Fraction {
    let rest = U256::from(ONE - alpha) * unit;
    match (z + rest).is_zero() {
        true => Fraction::new(1, 1),
        false => Fraction { numerator: z, denominator: z + rest },
    }
}

/// `α_{i+1}` of a token from α_i and its weight and the total in p and in q.
pub(crate) fn next_alpha(alpha: u64, p: (u64, u64), q: (u64, u64)) -> u64 {
    Ratio::new(alpha, p, q).floor
}

/// One place of the block: α_i and the residual after it.
#[derive(Debug)]
struct Step {
    alpha: u64,
    residual: BlockResidual,
}

impl Step {
    fn h(&self) -> Fraction {
        h(self.alpha, self.residual.total, self.residual.unit)
    }
}

/// `r_i(x)` in units of `2^-40 / (W_p·W_q)`; at most 2^164 in all.
#[derive(Debug)]
pub(crate) struct BlockResidual {
    ids: Vec<u32>,
    weights: Vec<U256>,
    total: U256,
    /// `W_p·W_q`.
    unit: U256,
}

impl BlockResidual {
    pub(crate) fn new(alpha: u64, p: &Dist, q: &Dist) -> Self {
        let unit = U256::from(u128::from(p.total()) * u128::from(q.total()));
        let mut residual = Self { ids: Vec::new(), weights: Vec::new(), total: U256::ZERO, unit };
        let mut q_weights = Cursor::new(q);
        // Where p has no weight, r is 0.
        for (x, p_x) in p.support() {
            let Ratio { numerator, denominator, floor } =
                Ratio::new(alpha, (p_x, p.total()), (q_weights.weight(x), q.total()));
            let weight = numerator - denominator * U256::from(floor);
            if !weight.is_zero() {
                residual.ids.push(x.0);
                residual.weights.push(weight);
                residual.total += weight;
            }
        }
        residual
    }
}

/// `α_i·p(x)/q(x)` in units of 2^-40, as a fraction, and `α_{i+1}(x)`: not above it, nor above 1.
struct Ratio {
    numerator: U256,
    denominator: U256,
    floor: u64,
}

impl Ratio {
    fn new(alpha: u64, (p_x, p_total): (u64, u64), (q_x, q_total): (u64, u64)) -> Self {
        let a = u128::from(p_x) * u128::from(q_total);
        let b = u128::from(q_x) * u128::from(p_total);
        let numerator = U256::from(a) * U256::from(alpha);
        let denominator = U256::from(b);
        let floor = if b == 0 {
            // Never drafted, so all of α_i·p(x) is residual.
            0
        } else if numerator >= denominator << 40 {
            ONE
        } else {
            // A multiple of 2^-40 below the quotient, without a wide division for every token of the
            // vocabulary: the quotient in f64 is within 2^-50 of the true one, and a hair less
            // is safely below. A quotient of an exact multiple may lose one unit; any value works.
            let quotient = alpha as f64 * (a as f64 / b as f64);
            (quotient * (1.0 - 2f64.powi(-48))) as u64
        };
        debug_assert!(denominator * U256::from(floor) <= numerator);
        Self { numerator, denominator, floor }
    }
}

impl Law for BlockResidual {
    fn total(&self) -> U256 {
        self.total
    }

    fn at(&self, u: U256) -> Token {
        let mut cumulative = U256::ZERO;
        for (&id, weight) in self.ids.iter().zip(&self.weights) {
            cumulative += *weight;
            if u < cumulative {
                return Token(id);
            }
        }
        panic!("a draw needs u < W, not {u} of {}", self.total)
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        for (&id, &weight) in self.ids.iter().zip(&self.weights) {
            each(Token(id), weight);
        }
    }

    fn only(&self) -> Option<Token> {
        match self.ids[..] {
            [id] => Some(Token(id)),
            _ => None,
        }
    }
}
