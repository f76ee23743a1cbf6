//! Drafters that do not draw from the law they report, or drop what they drew.

use draftproof_decode::{
    Dist, Error, Sampler, Settings, TableModel, Token,
    draft::{Draft, Drafter, Proposal, Request, SessionId},
    mutation::forge,
    noise::{Noise, RoundNoise},
    sampler::Prefix,
    stats::Meter,
};

use crate::scene::{DraftSource, Scene};

/// A drafter over a table whose single proposal is replaceable; `None` proposes no (further) token.
struct WrongDrafter {
    name: &'static str,
    table: TableModel,
    target: TableModel,
    propose: Propose,
}

pub(super) type Propose = fn(&Place<'_>, &mut dyn Noise) -> Option<Proposal>;

/// Where a token is to be proposed.
pub(super) struct Place<'a> {
    drafter: &'a WrongDrafter,
    sampler: &'a Sampler,
    /// Committed and drafted tokens.
    tokens: &'a [Token],
    committed: usize,
    prompt_len: usize,
    round: RoundNoise,
    offset: usize,
}

impl std::fmt::Debug for WrongDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Place<'_> {
    fn law(&self, sampler: &Sampler, prefix_len: usize, logits: &[f32]) -> Dist {
        let prefix = Prefix { tokens: &self.tokens[..prefix_len], prompt_len: self.prompt_len };
        sampler.law(prefix, logits).expect("the scenes' tables have laws")
    }

    fn logits(&self) -> &[f32] {
        self.drafter.table.logits(self.tokens)
    }

    /// q as it should be.
    fn q(&self) -> Dist {
        self.law(self.sampler, self.tokens.len(), self.logits())
    }

    /// q under other settings.
    fn under(&self, change: impl FnOnce(&mut Settings)) -> Dist {
        let mut settings = self.sampler.settings().clone();
        change(&mut settings);
        let sampler = Sampler::new(settings, self.sampler.vocab()).expect("settings in range");
        self.law(&sampler, self.tokens.len(), self.logits())
    }

    /// p at this place.
    fn p(&self) -> Dist {
        self.law(self.sampler, self.tokens.len(), self.drafter.target.logits(self.tokens))
    }

    fn draw(&self, law: Dist, noise: &mut dyn Noise) -> Proposal {
        Proposal::draw(law, self.round, self.offset, noise)
    }

    /// Drawn from one law, reported with another.
    fn forged(&self, law: Dist, reported: Dist, noise: &mut dyn Noise) -> Option<Proposal> {
        let token = self.draw(law, noise).token();
        Some(forge(token, covering(reported, token)))
    }
}

/// `reported`, or if it has no weight for the token (an engine would divide by 0), half of it and
/// half the token.
fn covering(reported: Dist, token: Token) -> Dist {
    if reported.weight(token) > 0 {
        return reported;
    }
    let weight = |t: Token| {
        if t == token { reported.total() / 2 } else { reported.weight(t) / 2 }
    };
    Dist::dense((0..reported.vocab()).map(Token::at).map(weight).collect()).expect("positive")
}

impl Drafter for WrongDrafter {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        _: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let mut one = |request: &Request<'_>| {
            let mut draft = Draft::default();
            let mut tokens = request.prefix.tokens.to_vec();
            let committed = tokens.len();
            for offset in 0..request.limit {
                let place = Place {
                    drafter: self,
                    sampler,
                    tokens: &tokens,
                    committed,
                    prompt_len: request.prefix.prompt_len,
                    round: request.round,
                    offset,
                };
                let Some(proposal) = (self.propose)(&place, noise) else {
                    break;
                };
                tokens.push(proposal.token());
                draft.confidence.push(0.5);
                draft.proposals.push(proposal);
                if request.ends.contains(&tokens[tokens.len() - 1]) {
                    break;
                }
            }
            draft
        };
        Ok(requests.iter().map(&mut one).collect())
    }

    fn close(&mut self, _: SessionId) {}
}

/// The scene's drafter, with `propose` in place of the draw.
pub(super) fn wrong(scene: &Scene, name: &'static str, propose: Propose) -> Box<dyn Drafter> {
    let table = match &scene.draft {
        DraftSource::Model(table) => table.clone(),
        DraftSource::None | DraftSource::Ngram => scene.target.clone(),
    };
    Box::new(WrongDrafter { name, table, target: scene.target.clone(), propose })
}

fn heaviest(q: &Dist) -> Token {
    q.support().fold((Token(0), 0), |best, (t, w)| if w > best.1 { (t, w) } else { best }).0
}

fn top_two(q: &Dist) -> Dist {
    let mut ranked: Vec<(Token, u64)> = q.support().collect();
    ranked.sort_by_key(|&(token, weight)| (std::cmp::Reverse(weight), token));
    ranked.truncate(2);
    ranked.sort();
    let (ids, weights) = ranked.into_iter().map(|(t, w)| (t.0, w)).unzip();
    Dist::sparse(q.vocab(), ids, weights).expect("at least one token")
}

fn bf16(logit: f32) -> f32 {
    let bits = logit.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if logit.is_finite() { f32::from_bits(rounded) } else { logit }
}

pub(super) const HONEST: Propose = |place, noise| Some(place.draw(place.q(), noise));
pub(super) const ARGMAX: Propose = |place, _| Some(forge(heaviest(&place.q()), place.q()));
pub(super) const TOP_TWO: Propose =
    |place, noise| place.forged(top_two(&place.q()), place.q(), noise);
pub(super) const UNLIKELY_DROPPED: Propose = |place, noise| {
    let drawn = place.draw(place.q(), noise);
    (drawn.q().probability(drawn.token()) >= 0.25).then_some(drawn)
};
pub(super) const BEFORE_TRANSFORMS: Propose =
    |place, noise| place.forged(place.q(), place.under(|s| *s = Settings::default()), noise);
pub(super) const WITHOUT_TEMPERATURE: Propose =
    |place, noise| place.forged(place.under(|s| s.temperature = 1.0), place.q(), noise);
pub(super) const OTHER_PRECISION: Propose = |place, noise| {
    let logits: Vec<f32> = place.logits().iter().copied().map(bf16).collect();
    let drawn = place.law(place.sampler, place.tokens.len(), &logits);
    place.forged(drawn, place.q(), noise)
};
pub(super) const STALE_PENALTIES: Propose = |place, noise| {
    let reported = place.law(place.sampler, place.committed, place.logits());
    place.forged(place.q(), reported, noise)
};
pub(super) const OTHER_SLOT: Propose = |place, noise| {
    // The slot of the place before; the first place has its own.
    let before = place.tokens.len() - usize::from(place.offset > 0);
    let logits = place.drafter.table.logits(&place.tokens[..before]);
    let reported = place.law(place.sampler, before, logits);
    place.forged(place.q(), reported, noise)
};
pub(super) const PEEKED: Propose = |place, noise| {
    let drawn = place.draw(place.q(), noise);
    let x = drawn.token();
    (place.p().probability(x) >= drawn.q().probability(x)).then_some(drawn)
};

/// Not faults of the law: what the draft draws from is its own affair as long as it says so.
pub(super) const HOTTER_AND_SAID_SO: Propose =
    |place, noise| Some(place.draw(place.under(|s| s.temperature = 2.0), noise));
pub(super) const CALLED_CERTAIN: Propose = |place, noise| {
    let token = place.draw(place.q(), noise).token();
    Proposal::certain(place.sampler.vocab(), token).ok()
};
