//! Token-by-token rejection (Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318,
//! algorithm 2). The default; at temperature 0 it is greedy verification.

use super::{Block, Next, Verdict, Verifier};
use crate::{
    dist::{acceptance, residual},
    noise::{Lane, Noise},
};

/// Accepts each drafted token x with probability `min(1, p(x)/q(x))`; the first rejection is
/// replaced by a draw from `norm(max(0, p − q))`; after a full block follows a draw from p.
///
/// Why it is exact: x is emitted by acceptance with probability `q(x)·min(1, p(x)/q(x))` =
/// `min(p(x), q(x))`, and by rejection with `(1 − Σ min(p, q)) · (p(x) − min(p(x), q(x))) /
/// (1 − Σ min(p, q))`; the sum is p(x). A drafted token after a rejection is never looked at.
#[derive(Clone, Copy, Debug)]
pub struct Rejection;

impl Verifier for Rejection {
    fn name(&self) -> &'static str {
        "rejection"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let mut laws = Vec::with_capacity(proposals.len() + 1);
        for (i, proposal) in proposals.iter().enumerate() {
            let (x, q) = (proposal.token(), proposal.q());
            let p = match target.law(i) {
                Ok(p) => p,
                Err(unusable) => return Verdict { accepted: i, next: Err(unusable), laws },
            };
            if !noise.decide(round.key(i, Lane::Accept), acceptance(&p, q, x)) {
                let r = residual(&p, q).expect("after a rejection p differs from q");
                let next = noise.draw(round.key(i, Lane::Residual), &r);
                laws.push(p);
                return Verdict { accepted: i, next: Ok(Next::residual(next)), laws };
            }
            laws.push(p);
        }
        let gamma = proposals.len();
        let next = target.law(gamma).map(|p| {
            let next = noise.draw(round.key(gamma, Lane::Bonus), &p);
            laws.push(p);
            Next::bonus(next)
        });
        Verdict { accepted: gamma, next, laws }
    }
}
