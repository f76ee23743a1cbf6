//! Rejection with a watermark on the draws only (Dathathri et al., Nature 634, 2024: the rule that
//! keeps the acceptance).

use super::{Block, Next, Verdict, Verifier};
use crate::{
    Token,
    dist::{acceptance, residual},
    draft::Proposal,
    noise::{Lane, Noise},
    watermark::Watermark,
};

/// As [`Rejection`](super::Rejection) on the laws without the watermark, but every draw is made from
/// the tournament over its law: the draft's (which the drafter did), the residual's, the target's.
///
/// **Averaged over keys** the text has the target's law; for one key it has neither that law nor that
/// of plain decoding with the watermark. Why: the acceptance looks at p and q alone, and given what
/// was accepted each draw's law is, averaged over the bits of its context, the one without the
/// watermark. That needs
/// - bits that are fresh: a context that occurred before is masked;
/// - *independent* bits for the draft and for the residual of one place, for with the same bits what
///   is rejected and what replaces it depend on each other. So there are two keys. (A third for the
///   bonus draw adds nothing: no token was drafted at its place. It shares the draft's key, and a
///   text decoded without a draft carries the whole signal.)
/// - that nothing which a discarded token influenced decides anything later: a draft length that is
///   learnt from the price of discarded tokens does, so [`Auto`](crate::draft::length::DraftLength)
///   is refused.
#[derive(Clone, Copy, Debug)]
pub struct FastWatermark<'a> {
    /// The watermark, of mode `fast`.
    pub watermark: &'a Watermark,
}

impl Verifier for FastWatermark<'_> {
    /// Not plain `rejection`: a trace of that rule would say that tokens were drawn from the laws.
    fn name(&self) -> &'static str {
        "rejection with marked draws"
    }

    fn marks_draws(&self) -> bool {
        true
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, generated } = *block;
        let drafted = proposals.iter().map(Proposal::token);
        let text: Vec<Token> = generated.iter().copied().chain(drafted).collect();
        let before = |i: usize| &text[..generated.len() + i];
        let mut laws = Vec::with_capacity(proposals.len() + 1);
        for (i, proposal) in proposals.iter().enumerate() {
            let (x, q) = (proposal.token(), proposal.q());
            let p = match target.law(i) {
                Ok(p) => p,
                Err(unusable) => return Verdict { accepted: i, next: Err(unusable), laws },
            };
            if !noise.decide(round.key(i, Lane::Accept), acceptance(&p, q, x)) {
                let r = residual(&p, q).expect("after a rejection p differs from q");
                let marked = self.watermark.mark_residual(before(i), &r, p.vocab());
                let next = noise.draw(round.key(i, Lane::Residual), &marked);
                laws.push(p);
                return Verdict { accepted: i, next: Ok(Next::residual(next)), laws };
            }
            laws.push(p);
        }
        let gamma = proposals.len();
        let next = target.law(gamma).map(|p| {
            let marked = self.watermark.mark(before(gamma), p.clone());
            let next = noise.draw(round.key(gamma, Lane::Bonus), &marked);
            laws.push(p);
            Next::bonus(next)
        });
        Verdict { accepted: gamma, next, laws }
    }
}
