//! Block verification (Sun et al. 2403.10444, algorithm 2), exact in integers.

use ruint::aliases::U256;

use super::{Block, Next, Verdict, Verifier};
use crate::{
    Dist, Token,
    dist::Fraction,
    excess::{BLOCK, Excess},
    exp::{INTEGER_BITS, INTEGERS},
    law::Law,
    noise::{Lane, Noise},
    vector::{Loop, widest},
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
        let (mut laws, mut alphas) = (Vec::new(), vec![ONE]);
        // A row without a law ends the block before it; it decides something only if τ gets there.
        let mut end = Ok(());
        for (i, proposal) in proposals.iter().enumerate() {
            let (alpha, x, q) = (alphas[i], proposal.token(), proposal.q());
            match target.law(i) {
                Ok(p) => {
                    let (p_x, q_x) = ((p.weight(x), p.total()), (q.weight(x), q.total()));
                    alphas.push(next_alpha(alpha, p_x, q_x));
                    laws.push(p);
                }
                Err(unusable) => end = Err(unusable),
            }
            // α = 0 stays 0: no later place can be τ.
            if end.is_err() || alphas.last() == Some(&0) {
                break;
            }
        }
        let last = laws.len();
        if noise.decide(round.key(last, Lane::Accept), h_last(alphas[last])) {
            let next = end.and_then(|()| target.law(last)).map(|p| {
                let next = noise.draw(round.key(last, Lane::Bonus), &p);
                laws.push(p);
                Next::bonus(next)
            });
            return Verdict { accepted: last, next, laws };
        }
        for i in (0..last).rev() {
            let residual = BlockResidual::new(alphas[i], &laws[i], proposals[i].q());
            if noise.decide(round.key(i, Lane::Accept), residual.h()) {
                let next = noise.draw(round.key(i, Lane::Residual), &residual);
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
    Ratio::new(alpha, p.1, q.1).floor(p.0, q.0)
}

/// `α_i·p(x)/q(x)` in units of 2^-40, for the tokens of one place.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    alpha: u64,
    p_total: u64,
    q_total: u64,
    /// `α_i / W_p` and `1 / W_q`, rounded.
    units: [f64; 2],
}

/// Far more than the quotient in f64, with its eight roundings, can be from the true one.
const MARGIN: f64 = 1.0 / (1u64 << 45) as f64;

impl Ratio {
    fn new(alpha: u64, p_total: u64, q_total: u64) -> Self {
        let units = [alpha as f64 / p_total as f64, 1.0 / q_total as f64];
        Self { alpha, p_total, q_total, units }
    }

    /// `α_{i+1}(x)`: not above the quotient, nor above 1.
    fn floor(self, p_x: u64, q_x: u64) -> u64 {
        let (floor, unclear) = self.estimate(p_x, q_x);
        if unclear && self.numerator(p_x) >= self.denominator(q_x) << 40 { ONE } else { floor }
    }

    /// A multiple of 2^-40 below the quotient, without a wide division for every token of the
    /// vocabulary, and whether it may have to be 1. It may be one unit lower than it could: any
    /// value works.
    #[inline(always)]
    fn estimate(self, p_x: u64, q_x: u64) -> (u64, bool) {
        const MOST: f64 = ONE as f64;
        let [p_unit, q_unit] = self.units;
        let quotient = (p_x as f64 * p_unit) / (q_x as f64 * q_unit);
        // Rounded to the nearest of half a unit less.
        let below = quotient * (1.0 - MARGIN) - 0.5;
        let below = if below > 0.0 { below } else { 0.0 };
        let below = if below < MOST { below } else { MOST };
        let floor = (below + INTEGERS).to_bits() & INTEGER_BITS;
        // Never drafted: all of α_i·p(x) is residual.
        let drafted = q_x > 0;
        let above = quotient > MOST * (1.0 + MARGIN);
        let unclear = drafted & !above & (quotient > MOST * (1.0 - 2.0 * MARGIN));
        let floor = if above { ONE } else { floor };
        let floor = if unclear { ONE - 1 } else { floor };
        (if drafted { floor } else { 0 }, unclear)
    }

    fn numerator(self, p_x: u64) -> U256 {
        U256::from(u128::from(p_x) * u128::from(self.q_total)) * U256::from(self.alpha)
    }

    fn denominator(self, q_x: u64) -> U256 {
        U256::from(u128::from(q_x) * u128::from(self.p_total))
    }

    /// `r_i(x)`.
    fn residual(self) -> impl Fn(u64, u64) -> U256 {
        move |p_x, q_x| {
            self.numerator(p_x) - self.denominator(q_x) * U256::from(self.floor(p_x, q_x))
        }
    }
}

/// `r_i(x)` in units of `2^-40 / (W_p·W_q)`; at most 2^164 in all.
#[derive(Debug)]
pub(crate) struct BlockResidual<'a> {
    excess: Excess<'a>,
    ratio: Ratio,
}

impl<'a> BlockResidual<'a> {
    pub(crate) fn new(alpha: u64, p: &'a Dist, q: &'a Dist) -> Self {
        let ratio = Ratio::new(alpha, p.total(), q.total());
        let blocks = |p: &[u64], q: &[u64]| widest(Blocks { p, q, ratio });
        Self { excess: Excess::new(p, q, ratio.residual(), blocks), ratio }
    }

    fn h(&self) -> Fraction {
        let Ratio { alpha, p_total, q_total, .. } = self.ratio;
        h(alpha, self.total(), U256::from(u128::from(p_total) * u128::from(q_total)))
    }
}

/// `Σ r_i(x)` over each block of two rows.
struct Blocks<'a> {
    p: &'a [u64],
    q: &'a [u64],
    ratio: Ratio,
}

impl Loop for Blocks<'_> {
    type Output = Vec<U256>;

    /// `α_i·W_q·Σ p(x) − W_p·Σ q(x)·α_{i+1}(x)`: the second sum is of products of 62 and 41 bits, added
    /// up in four parts. A block in which a ratio is too close to 1 is summed token by token.
    #[inline(always)]
    fn run(self) -> Vec<U256> {
        let Self { p, q, ratio } = self;
        let mut blocks = Vec::with_capacity(p.len().div_ceil(BLOCK));
        for (p, q) in p.chunks(BLOCK).zip(q.chunks(BLOCK)) {
            let (mut p_sum, mut parts, mut any_unclear) = (0u64, [0u64; 4], 0u64);
            for (&p, &q) in p.iter().zip(q) {
                let (floor, unclear) = ratio.estimate(p, q);
                any_unclear |= u64::from(unclear);
                // No sum can wrap: of p it is part of the total, of a product of 32 and 21 bits 2^59.
                p_sum = p_sum.wrapping_add(p);
                let (high, low) = (q >> 32, q & 0xffff_ffff);
                let (floor_high, floor_low) = (floor >> 20, floor & 0xf_ffff);
                parts[0] = parts[0].wrapping_add(low.wrapping_mul(floor_low));
                parts[1] = parts[1].wrapping_add(low.wrapping_mul(floor_high));
                parts[2] = parts[2].wrapping_add(high.wrapping_mul(floor_low));
                parts[3] = parts[3].wrapping_add(high.wrapping_mul(floor_high));
            }
            blocks.push(if any_unclear == 0 {
                let shifts = [0, 20, 32, 52];
                let taken =
                    parts.iter().zip(shifts).map(|(&part, shift)| u128::from(part) << shift);
                let taken = U256::from(taken.sum::<u128>()) * U256::from(ratio.p_total);
                ratio.numerator(p_sum) - taken
            } else {
                let weight = ratio.residual();
                let weights = p.iter().zip(q).map(|(&p, &q)| weight(p, q));
                weights.fold(U256::ZERO, |sum, weight| sum + weight)
            });
        }
        blocks
    }
}

impl Law for BlockResidual<'_> {
    fn total(&self) -> U256 {
        self.excess.total()
    }

    fn at(&self, u: U256) -> Token {
        self.excess.at(u, self.ratio.residual())
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        self.excess.visit(self.ratio.residual(), each);
    }

    fn only(&self) -> Option<Token> {
        self.excess.only(self.ratio.residual())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of several blocks: unlike, equal, equal up to scale, equal in one block only, and one unit
    /// apart, which no f64 can tell.
    fn rows(len: usize) -> Vec<[Vec<u64>; 2]> {
        let mut state = 7u64;
        let mut next = |bits: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 8) >> (56 - bits)
        };
        let mut row = |most: u32| -> Vec<u64> {
            let mut weight = |place: usize| match place % 5 {
                0 => 0,
                1 => next(most),
                _ => next(1 + most * (place % 7) as u32 / 7),
            };
            let mut row: Vec<u64> = (0..len).map(&mut weight).collect();
            row[len / 2] += 1;
            row
        };
        let (p, q) = (row(50), row(50));
        let small = row(40);
        let mut part = q.clone();
        part[..len / 2].copy_from_slice(&p[..len / 2]);
        vec![
            [p.clone(), q],
            [p.clone(), p.clone()],
            [small.clone(), small.iter().map(|weight| weight * 3).collect()],
            [p.clone(), part],
            [p.clone(), p.iter().map(|weight| weight + 1).collect()],
            [p.iter().map(|weight| weight + 1).collect(), p],
        ]
    }

    /// Every α is at most what the rule allows and within two units of it, 1 where it may be; the
    /// residual's weights are what is left, their sum is the total, and a draw finds each of them.
    #[test]
    fn wide_rows_are_judged_token_by_token() {
        let mut whole = 0;
        for len in [1, 63, 64, 65, 200] {
            for [p, q] in rows(len) {
                let sparse = |row: &[u64]| {
                    let held = (0..len as u32).zip(row.iter().copied()).filter(|&(_, w)| w > 0);
                    let (ids, weights) = held.unzip();
                    Dist::sparse(len, ids, weights).expect("a law")
                };
                let [p_sparse, q_sparse] = [sparse(&p), sparse(&q)];
                let [p, q] = [p, q].map(|row| Dist::dense(row).expect("a law"));
                for alpha in [ONE, ONE - 1, ONE / 3, 12_345, 1] {
                    let residual = BlockResidual::new(alpha, &p, &q);
                    let mut expected = Vec::new();
                    for x in (0..len).map(Token::at) {
                        let [p_x, q_x] = [&p, &q].map(|law| (law.weight(x), law.total()));
                        let numerator = U256::from(p_x.0) * U256::from(q_x.1) * U256::from(alpha);
                        let denominator = U256::from(q_x.0) * U256::from(p_x.1);
                        let next = U256::from(next_alpha(alpha, p_x, q_x));
                        assert!(denominator * next <= numerator, "{x}");
                        if q_x.0 > 0 {
                            let most = (numerator / denominator).min(U256::from(ONE));
                            assert!(next + U256::from(2) >= most, "{x}: {next} of {most}");
                            let is_whole = numerator >= denominator << 40;
                            assert_eq!(next == U256::from(ONE), is_whole, "{x}");
                            whole += usize::from(is_whole);
                        }
                        let weight = numerator - denominator * next;
                        if !weight.is_zero() {
                            expected.push((x, weight));
                        }
                    }
                    let mut found = Vec::new();
                    residual.visit(&mut |x, weight| found.push((x, weight)));
                    assert_eq!(found, expected);
                    let mut below = U256::ZERO;
                    for &(x, weight) in &expected {
                        assert_eq!(residual.at(below), x);
                        below += weight;
                        assert_eq!(residual.at(below - U256::from(1)), x);
                    }
                    assert_eq!(residual.total(), below);
                    let only = (expected.len() == 1).then(|| expected[0].0);
                    assert_eq!(residual.only(), only);
                    let listed = BlockResidual::new(alpha, &p_sparse, &q_sparse);
                    assert_eq!(listed.total(), below);
                    if let Some(last) = below.checked_sub(U256::from(1)) {
                        assert_eq!(listed.at(last), residual.at(last));
                        assert_eq!(
                            listed.at(last / U256::from(2)),
                            residual.at(last / U256::from(2))
                        );
                    }
                }
            }
        }
        assert!(whole > 1000, "{whole}");
    }
}
