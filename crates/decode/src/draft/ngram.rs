//! [`NgramDrafter`]: prompt lookup. What followed the last few tokens before will follow them again.
//!
//! Nothing is drawn, so q is all on the proposed token and the acceptance probability is p of it.

use super::{Draft, Drafter, Proposal, Request, SessionId};
use crate::{
    Error, Token,
    noise::Noise,
    sampler::Sampler,
    stats::{Meter, Part},
};

/// Proposes what followed the most recent earlier occurrence of the longest suffix, of at most
/// [`LONGEST`](Self::LONGEST) tokens, that occurred before. A pure function of the prefix.
#[derive(Clone, Copy, Debug, Default)]
pub struct NgramDrafter;

impl NgramDrafter {
    /// The longest suffix looked for.
    pub const LONGEST: usize = 4;

    /// The length of the longest suffix that occurred before, and where the text after its most
    /// recent earlier occurrence starts.
    fn lookup(tokens: &[Token]) -> Option<(usize, usize)> {
        let last = tokens.len().checked_sub(1)?;
        let mut best = None;
        for end in (0..last).rev() {
            let matched = (0..Self::LONGEST.min(end + 1))
                .take_while(|&back| tokens[end - back] == tokens[last - back])
                .count();
            if matched > best.map_or(0, |(longest, _)| longest) {
                best = Some((matched, end + 1));
                if matched == Self::LONGEST {
                    break;
                }
            }
        }
        best
    }

    /// The tokens that followed, as long as one more is worth its row.
    fn draft(request: &Request<'_>, vocab: usize) -> Draft {
        let mut draft = Draft::default();
        let tokens = request.prefix.tokens;
        let Some((matched, start)) = Self::lookup(tokens) else {
            return draft;
        };
        // The longer the match, the surer: one class of confidence for each length.
        let confidence = matched as f64 / Self::LONGEST as f64 - 0.125;
        let mut so_far = 1.0;
        for &token in tokens[start..].iter().take(request.limit) {
            let Ok(proposal) = Proposal::certain(vocab, token) else {
                break;
            };
            if !request.pace.worth_proposing(so_far, confidence) {
                break;
            }
            so_far *= request.pace.chance(confidence);
            draft.proposals.push(proposal);
            draft.confidence.push(confidence);
            if request.ends.contains(&token) {
                break;
            }
        }
        draft
    }
}

impl Drafter for NgramDrafter {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        _: &mut dyn Noise,
        meter: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let vocab = sampler.vocab();
        let drafts = || requests.iter().map(|request| Self::draft(request, vocab)).collect();
        Ok(meter.time(Part::Draft, drafts))
    }

    fn close(&mut self, _: SessionId) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(tokens: &[u32]) -> Option<(usize, usize)> {
        NgramDrafter::lookup(&tokens.iter().map(|&id| Token(id)).collect::<Vec<_>>())
    }

    #[test]
    fn finds_the_longest_then_the_most_recent() {
        assert_eq!(lookup(&[]), None);
        assert_eq!(lookup(&[1]), None);
        assert_eq!(lookup(&[1, 2, 3]), None);
        assert_eq!(lookup(&[1, 1]), Some((1, 1)));
        // Two occurrences of (1): the later one.
        assert_eq!(lookup(&[1, 5, 1, 6, 1]), Some((1, 3)));
        // (1, 2) is longer than the more recent (2).
        assert_eq!(lookup(&[1, 2, 7, 9, 2, 8, 1, 2]), Some((2, 2)));
        // A suffix may overlap its earlier occurrence.
        assert_eq!(lookup(&[3, 3, 3]), Some((2, 2)));
    }
}
