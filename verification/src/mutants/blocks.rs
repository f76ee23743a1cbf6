//! Wrong rules of block verification (Sun et al. 2403.10444).

use draftproof_decode::{
    Dist, Token,
    dist::{Fraction, acceptance, residual},
    law::Law,
    noise::{Lane, Noise},
    verify::{Block, Next, Verdict, Verifier},
};
use ruint::aliases::U256;

/// What is wrong with a block rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockFault {
    /// Nothing: the base that the others differ from.
    None,
    /// One η for the whole block instead of one for each place.
    SharedCoin,
    /// The residual of token-wise rejection, max(0, p − q), instead of max(0, α·p − q).
    TokenResidual,
    /// Token-wise acceptance with the block's residual.
    TokenAcceptance,
    /// The first failure ends the block, though a later success should win.
    FirstFailureEnds,
    /// `Π min(1, p/q) ≥ Π u` with the ordinary residual.
    Cumulative,
}

/// α is counted in units of 2^-40, rounded down, as in the engine's rule.
const ONE: u64 = 1 << 40;

fn next_alpha(alpha: u64, p: &Dist, q: &Dist, x: Token) -> u64 {
    let ratio = acceptance(p, q, x);
    let scaled = U256::from(alpha) * ratio.numerator / ratio.denominator;
    scaled.min(U256::from(ONE)).to::<u64>()
}

/// `α·p(x) − α'(x)·q(x)` in units of 2^-40/(W_p·W_q).
#[derive(Debug)]
struct BlockResidual {
    weights: Vec<(Token, U256)>,
    total: U256,
    unit: U256,
}

impl BlockResidual {
    fn new(alpha: u64, p: &Dist, q: &Dist) -> Self {
        let unit = U256::from(p.total()) * U256::from(q.total());
        let weight = |(x, p_x): (Token, u64)| {
            let a = U256::from(alpha) * U256::from(p_x) * U256::from(q.total());
            let b = U256::from(q.weight(x)) * U256::from(p.total());
            let next = if b.is_zero() { U256::ZERO } else { (a / b).min(U256::from(ONE)) };
            (x, a - next * b)
        };
        let weights: Vec<(Token, U256)> =
            p.support().map(weight).filter(|(_, w)| !w.is_zero()).collect();
        let total = weights.iter().fold(U256::ZERO, |sum, (_, w)| sum + *w);
        Self { weights, total, unit }
    }

    /// `h = Z/(Z + 1 − α)`.
    fn h(&self, alpha: u64) -> Fraction {
        let rest = U256::from(ONE - alpha) * self.unit;
        if (self.total + rest).is_zero() {
            return Fraction::new(1, 1);
        }
        Fraction { numerator: self.total, denominator: self.total + rest }
    }
}

impl Law for BlockResidual {
    fn total(&self) -> U256 {
        self.total
    }

    fn at(&self, u: U256) -> Token {
        let mut cumulative = U256::ZERO;
        let found = self.weights.iter().find(|(_, weight)| {
            cumulative += *weight;
            u < cumulative
        });
        found.expect("a draw needs u < W").0
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        self.weights.iter().for_each(|&(token, weight)| each(token, weight));
    }

    fn only(&self) -> Option<Token> {
        match self.weights[..] {
            [(token, _)] => Some(token),
            _ => None,
        }
    }
}

impl Verifier for BlockFault {
    fn name(&self) -> &'static str {
        "wrong block rule"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let gamma = proposals.len();
        let laws: Result<Vec<Dist>, _> = (0..=gamma).map(|i| target.law(i)).collect();
        let laws = match laws {
            Ok(laws) => laws,
            Err(unusable) => return Verdict { accepted: 0, next: Err(unusable), laws: Vec::new() },
        };
        let mut alpha = vec![ONE];
        for (i, proposal) in proposals.iter().enumerate() {
            alpha.push(next_alpha(alpha[i], &laws[i], proposal.q(), proposal.token()));
        }
        let h = |i: usize| match i == gamma {
            true => Fraction::new(u128::from(alpha[gamma]), u128::from(ONE)),
            false => BlockResidual::new(alpha[i], &laws[i], proposals[i].q()).h(alpha[i]),
        };
        let ratio = |i: usize| acceptance(&laws[i], proposals[i].q(), proposals[i].token());
        let key = |i: usize| round.key(i, Lane::Accept);
        let tau = match self {
            Self::TokenAcceptance => {
                (0..gamma).find(|&i| !noise.decide(key(i), ratio(i))).unwrap_or(gamma)
            }
            Self::FirstFailureEnds => {
                let failed = (1..=gamma).find(|&i| !noise.decide(key(i), h(i)));
                failed.map_or(gamma, |i| i - 1)
            }
            Self::Cumulative => cumulative(gamma, ratio, |i| noise.pick(key(i), &Grid)),
            Self::SharedCoin => shared(gamma, h, |i, chance| noise.decide(key(i), chance)),
            Self::None | Self::TokenResidual => {
                (0..=gamma).rev().find(|&i| noise.decide(key(i), h(i))).unwrap_or(0)
            }
        };
        let next = if tau == gamma {
            Next::bonus(noise.draw(round.key(tau, Lane::Bonus), &laws[tau]))
        } else {
            let (p, q) = (&laws[tau], proposals[tau].q());
            let ordinary = matches!(self, Self::TokenResidual | Self::Cumulative);
            let law: Box<dyn Law + '_> = if ordinary {
                // The mutants may stop where nothing is left; engines then take the target's law.
                residual(p, q)
                    .map_or_else(|| Box::new(p.clone()) as Box<dyn Law + '_>, |r| Box::new(r))
            } else {
                let residual = BlockResidual::new(alpha[tau], p, q);
                if residual.total.is_zero() { Box::new(p.clone()) } else { Box::new(residual) }
            };
            Next::residual(noise.draw(round.key(tau, Lane::Residual), law.as_ref()))
        };
        Verdict { accepted: tau, next: Ok(next), laws: laws[..=tau].to_vec() }
    }
}

/// τ with one η: given that it was not below the largest h so far, it is uniform above it. In units
/// of 2^-60.
fn shared(
    gamma: usize,
    h: impl Fn(usize) -> Fraction,
    mut decide: impl FnMut(usize, Fraction) -> bool,
) -> usize {
    const UNIT: u128 = 1 << 60;
    let mut above = 0;
    let found = (0..=gamma).rev().find(|&i| {
        let Fraction { numerator, denominator } = h(i);
        let chance = ((numerator << 60usize) / denominator).to::<u128>().min(UNIT);
        if chance <= above {
            return false;
        }
        let accepted = decide(i, Fraction::new(chance - above, UNIT - above));
        above = chance;
        accepted
    });
    found.unwrap_or(0)
}

/// The last place where the product of capped ratios is at least the product of uniforms.
fn cumulative(
    gamma: usize,
    ratio: impl Fn(usize) -> Fraction,
    mut uniform: impl FnMut(usize) -> Token,
) -> usize {
    let (mut ratios, mut uniforms, mut tau) = (1.0, 1.0, 0);
    for i in 0..gamma {
        ratios *= ratio(i).to_f64().min(1.0);
        uniforms *= (f64::from(uniform(i).0) + 0.5) / 2f64.powi(32);
        if ratios >= uniforms {
            tau = i + 1;
        }
    }
    tau
}

/// 32 random bits, through the only door that noise has: each of the 2^32 as likely. (To walk them
/// all would take minutes, so the mutant is for sampled laws.)
#[derive(Debug)]
struct Grid;

impl Law for Grid {
    fn total(&self) -> U256 {
        U256::from(1u64 << 32)
    }

    fn at(&self, u: U256) -> Token {
        Token(u.to::<u32>())
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        (0..=u32::MAX).for_each(|bits| each(Token(bits), U256::from(1)));
    }

    fn only(&self) -> Option<Token> {
        None
    }
}
