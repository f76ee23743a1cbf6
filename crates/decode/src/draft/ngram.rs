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

    /// Where the text that follows that occurrence starts.
    fn lookup(tokens: &[Token]) -> Option<usize> {
        let last = tokens.len().checked_sub(1)?;
        let mut best = (0, None);
        for end in (0..last).rev() {
            let matched = (0..Self::LONGEST.min(end + 1))
                .take_while(|&back| tokens[end - back] == tokens[last - back])
                .count();
            if matched > best.0 {
                best = (matched, Some(end + 1));
                if matched == Self::LONGEST {
                    break;
                }
            }
        }
        best.1
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
        let propose = |request: &Request<'_>| {
            let tokens = request.prefix.tokens;
            let Some(start) = Self::lookup(tokens) else {
                return Draft::default();
            };
            let proposals = tokens[start..]
                .iter()
                .take(request.limit)
                .map_while(|&token| Proposal::certain(sampler.vocab(), token).ok())
                .collect();
            Draft {
                proposals,
                ended: None,
            }
        };
        Ok(meter.time(Part::Draft, || requests.iter().map(propose).collect()))
    }

    fn close(&mut self, _: SessionId) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(tokens: &[u32]) -> Option<usize> {
        NgramDrafter::lookup(&tokens.iter().map(|&id| Token(id)).collect::<Vec<_>>())
    }

    #[test]
    fn finds_the_longest_then_the_most_recent() {
        assert_eq!(lookup(&[]), None);
        assert_eq!(lookup(&[1]), None);
        assert_eq!(lookup(&[1, 2, 3]), None);
        assert_eq!(lookup(&[1, 1]), Some(1));
        // Two occurrences of (1): the later one.
        assert_eq!(lookup(&[1, 5, 1, 6, 1]), Some(3));
        // (1, 2) is longer than the more recent (2).
        assert_eq!(lookup(&[1, 2, 7, 9, 2, 8, 1, 2]), Some(2));
        // A suffix may overlap its earlier occurrence.
        assert_eq!(lookup(&[3, 3, 3]), Some(2));
    }
}
