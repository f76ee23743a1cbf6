//! Block verification written once more, in rationals and as the paper prints it, with the two ways
//! in which other engines got it wrong.

use draftproof_decode::{
    Dist, Token,
    dist::Fraction,
    law::Law,
    noise::{Lane, Noise},
    verify::{Block, Next, Verdict, Verifier},
};
use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Zero};
use ruint::aliases::U256;

/// The rule of 2403.10444 in exact rationals, for tables with small weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaperBlock {
    /// One η for the whole block instead of one for each place.
    pub(crate) shared_coin: bool,
    /// The residual of token-wise rejection, max(0, p − q), instead of max(0, α·p − q).
    pub(crate) token_residual: bool,
    /// Token-wise acceptance, with the block's residual.
    pub(crate) token_acceptance: bool,
}

pub(crate) const RIGHT: PaperBlock =
    PaperBlock { shared_coin: false, token_residual: false, token_acceptance: false };

fn p_of(law: &Dist, token: Token) -> BigRational {
    BigRational::new(law.weight(token).into(), law.total().into())
}

fn fraction(value: &BigRational) -> Fraction {
    let wide = |n: &BigInt| n.to_string().parse::<U256>().expect("small tables");
    Fraction { numerator: wide(value.numer()), denominator: wide(value.denom()) }
}

/// max(0, scale·p − q) as a law, and its mass.
fn residual(scale: &BigRational, p: &Dist, q: &Dist) -> (BigRational, Option<Dist>) {
    let excess: Vec<BigRational> = (0..p.vocab())
        .map(Token::at)
        .map(|x| (scale * p_of(p, x) - p_of(q, x)).max(BigRational::zero()))
        .collect();
    let unit = excess.iter().fold(BigInt::one(), |unit, r| unit.lcm(r.denom()));
    let weights: Vec<BigInt> = excess.iter().map(|r| r.numer() * (&unit / r.denom())).collect();
    let divisor = weights.iter().fold(BigInt::zero(), |divisor, weight| divisor.gcd(weight));
    let weights = weights
        .iter()
        .map(|weight| if divisor.is_zero() { weight.clone() } else { weight / &divisor })
        .map(|weight| u64::try_from(weight).expect("small tables"))
        .collect();
    (excess.iter().sum(), Dist::dense(weights).ok())
}

impl Verifier for PaperBlock {
    fn name(&self) -> &'static str {
        "block as printed"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let gamma = proposals.len();
        let laws: Vec<Dist> =
            (0..=gamma).map(|i| target.law(i)).collect::<Result<_, _>>().expect("usable rows");
        let one = BigRational::one();
        let mut alpha = vec![one.clone()];
        for (i, proposal) in proposals.iter().enumerate() {
            let x = proposal.token();
            let ratio = p_of(&laws[i], x) / p_of(proposal.q(), x);
            alpha.push((&alpha[i] * ratio).min(one.clone()));
        }
        let h = |i: usize| {
            if i == gamma {
                return alpha[gamma].clone();
            }
            let (z, _) = residual(&alpha[i], &laws[i], proposals[i].q());
            let whole = &z + &one - &alpha[i];
            if whole.is_zero() { one.clone() } else { z / whole }
        };
        let tau = if self.token_acceptance {
            let ratio = |i: usize| {
                let x = proposals[i].token();
                p_of(&laws[i], x) / p_of(proposals[i].q(), x)
            };
            (0..gamma)
                .find(|&i| !noise.decide(round.key(i, Lane::Accept), fraction(&ratio(i))))
                .unwrap_or(gamma)
        } else {
            // One η: given that it was not below the largest h so far, it is uniform above it.
            let mut above = BigRational::zero();
            (0..=gamma)
                .rev()
                .find(|&i| {
                    let mut chance = h(i);
                    if self.shared_coin {
                        let rest = &one - &above;
                        let more = (&chance - &above).max(BigRational::zero());
                        above = above.clone().max(chance);
                        chance = if rest.is_zero() { one.clone() } else { more / rest };
                    }
                    noise.decide(round.key(i, Lane::Accept), fraction(&chance))
                })
                .expect("h_0 = 1")
        };
        let next = if tau == gamma {
            Next::bonus(noise.draw(round.key(tau, Lane::Bonus), &laws[tau]))
        } else {
            let scale = if self.token_residual { &one } else { &alpha[tau] };
            let law = residual(scale, &laws[tau], proposals[tau].q()).1;
            // The mutants may stop where nothing is left; the target's law is what engines then take.
            let law = law.unwrap_or_else(|| laws[tau].clone());
            Next::residual(noise.draw(round.key(tau, Lane::Residual), &law as &dyn Law))
        };
        Verdict { accepted: tau, next: Ok(next), laws: laws[..=tau].to_vec() }
    }
}
