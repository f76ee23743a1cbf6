//! Coupled sampling (Daliri, Musco and Suresh 2408.07978, §4): the draft cannot change the text.

use super::{Block, Next, Verdict, Verifier};
use crate::noise::Noise;

/// The token at each position is the winner of that position's exponential race under p; a drafted
/// token stays iff it is that winner.
///
/// The emitted text is a function of (seed, sequence, position, p) alone: bit-equal with any drafter,
/// any draft length, or none. A drafter that races with the same noise agrees with probability
/// `Σ_i 1 / Σ_j max(p_j/p_i, q_j/q_i) ≥ (1 − TV)/(1 + TV)`, a few per cent less than rejection accepts.
/// The law of the race is within the bound stated in [`noise`](crate::noise) of p.
#[derive(Clone, Copy, Debug)]
pub struct Coupled;

impl Verifier for Coupled {
    fn name(&self) -> &'static str {
        "coupled"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let mut laws = Vec::with_capacity(proposals.len() + 1);
        loop {
            let i = laws.len();
            let p = match target.law(i) {
                Ok(p) => p,
                Err(unusable) => return Verdict { accepted: i, next: Err(unusable), laws },
            };
            let next = noise.winner(round.position(i), &p);
            laws.push(p);
            let next = match proposals.get(i) {
                Some(proposal) if proposal.token() == next => continue,
                Some(_) => Next::residual(next),
                None => Next::bonus(next),
            };
            return Verdict { accepted: i, next: Ok(next), laws };
        }
    }
}
