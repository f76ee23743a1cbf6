//! One place of a round against its noise: is the decision the one that noise and numbers force?

use std::fmt;

use ruint::aliases::U256;
use serde::Serialize;

use super::{
    format::{
        BlockPlace, Coin, Drafted, Draw, Position, Race, Rule, Source, Weights, Whole, is_open,
    },
    summary::Choices,
    text::{Exact, Text},
};
use crate::{
    Dist, Token,
    dist::{Fraction, MAX_TOTAL, overlap, residual},
    noise::{ChaCha, Lane, Noise, RoundKey, RoundNoise},
    verify::block,
};

/// What is wrong with a field.
#[derive(Debug)]
pub(super) struct Fail {
    pub(super) field: String,
    pub(super) expected: String,
    pub(super) found: String,
}

pub(super) type Checked<T = ()> = Result<T, Fail>;

impl Fail {
    pub(super) fn new(field: &str, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        Self { field: field.into(), expected: expected.to_string(), found: found.to_string() }
    }

    fn within(mut self, outer: &str) -> Self {
        self.field = format!("{outer}.{}", self.field);
        self
    }
}

/// Values as the trace writes them.
fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

pub(super) fn same<T: PartialEq + Serialize>(field: &str, expected: &T, found: &T) -> Checked {
    if expected == found { Ok(()) } else { Err(Fail::new(field, json(expected), json(found))) }
}

fn holds(condition: bool, field: &str, expected: &str, found: impl fmt::Display) -> Checked {
    if condition { Ok(()) } else { Err(Fail::new(field, expected, found)) }
}

fn required<'a, T>(field: &str, value: &'a Option<T>) -> Checked<&'a T> {
    value.as_ref().ok_or_else(|| Fail::new(field, "a value", "none"))
}

fn absent<T: Serialize>(field: &str, value: &Option<T>) -> Checked {
    match value {
        None => Ok(()),
        Some(value) => Err(Fail::new(field, "none", json(value))),
    }
}

/// What a round carries from place to place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Block verification's α at the next place.
    alpha: u64,
    /// Whether the round's last token was emitted; places of a block may follow.
    emitted_all: bool,
}

impl Walk {
    pub(super) const START: Self = Self { alpha: block::ONE, emitted_all: false };
}

/// One place, and where it stands.
#[derive(Debug)]
pub(super) struct At<'a> {
    pub(super) rule: Rule,
    pub(super) vocab: u32,
    pub(super) full: bool,
    pub(super) noise: RoundNoise,
    pub(super) place: &'a Position,
}

/// What a place that holds has told.
#[derive(Debug)]
pub(super) struct Held {
    /// No further place of this round follows.
    pub(super) last: bool,
    /// `Σ min(p, q)`, of a full trace where a drafted token was judged.
    pub(super) overlap: Option<f64>,
}

impl At<'_> {
    /// Checks the place; `walk` moves on to the next.
    pub(super) fn check(&self, walk: &mut Walk, choices: &mut Choices) -> Checked<Held> {
        let before = walk.alpha;
        self.token_ids()?;
        if let Some(Drafted { draw, .. }) = &self.place.drafted {
            self.draw(draw, Lane::Draft, choices)
                .map_err(|fail| fail.within("draw").within("drafted"))?;
        }
        let last = match self.rule {
            Rule::Rejection => self.rejection(choices),
            Rule::Block => self.block(walk, choices),
            Rule::Coupled => self.coupled(choices),
        }?;
        let overlap = if self.full {
            self.laws(before)?
        } else {
            absent("p", &self.place.p)?;
            absent("q", &self.place.q)?;
            None
        };
        Ok(Held { last, overlap })
    }

    fn token_ids(&self) -> Checked {
        let drafted = self.place.drafted.map(|drafted| drafted.token);
        for (field, token) in [("token", self.place.token), ("drafted.token", drafted)] {
            let known = token.is_none_or(|token| token < self.vocab);
            let expected = format!("an id below {}", self.vocab);
            holds(known, field, &expected, token.unwrap_or(0))?;
        }
        Ok(())
    }

    fn key(&self, lane: Lane) -> RoundKey {
        self.noise.key(self.place.offset as usize, lane)
    }

    fn rejection(&self, choices: &mut Choices) -> Checked<bool> {
        let place = self.place;
        absent("block", &place.block)?;
        absent("race", &place.race)?;
        if place.origin == Source::Unusable {
            absent("weights", &place.weights)?;
            absent("coin", &place.coin)?;
            return self.unusable();
        }
        let Some(drafted) = &place.drafted else {
            absent("weights", &place.weights)?;
            absent("coin", &place.coin)?;
            return self.bonus(choices);
        };
        let weights = self.weights(drafted)?;
        let (a, b) = weights.products();
        if self.coin(Fraction::new(a, b), choices)? {
            self.accepted(drafted)?;
            return Ok(false);
        }
        let draw = self.replaced(Some(drafted.token), choices)?;
        // Σ max(0, p·W_q − q·W_p) over all tokens is what the tokens with q above p lack.
        let range = U256::from(b - a)..=weights.unit();
        let expected = format!("{} to {}", range.start(), range.end());
        holds(range.contains(&draw.total.0), "draw.total", &expected, draw.total)?;
        Ok(true)
    }

    fn block(&self, walk: &mut Walk, choices: &mut Choices) -> Checked<bool> {
        let place = self.place;
        absent("race", &place.race)?;
        let at = required("block", &place.block)?;
        let alpha = walk.alpha;
        let Some(Text(Exact(z))) = at.z else {
            same("block", &BlockPlace::last(alpha), at)?;
            absent("weights", &place.weights)?;
            absent("drafted", &place.drafted)?;
            if self.coin(at.h.0.0, choices)? {
                holds(!walk.emitted_all, "coin.passed", "false, behind the last token", true)?;
                return match place.origin {
                    Source::Unusable => self.unusable(),
                    _ => self.bonus(choices),
                };
            }
            self.rejected(walk)?;
            return Ok(true);
        };
        let drafted = required("drafted", &place.drafted)?;
        let weights = self.weights(drafted)?;
        // r_i(x) of the drafted token ≤ Z_i ≤ α_i.
        let (a, b) = weights.products();
        walk.alpha = weights.next_alpha(alpha);
        let least = U256::from(a) * U256::from(alpha) - U256::from(b) * U256::from(walk.alpha);
        let range = least..=U256::from(alpha) * weights.unit();
        let expected = format!("Z from {} to {}", range.start(), range.end());
        holds(alpha > 0 && range.contains(&z.numerator), "block.z", &expected, z.numerator)?;
        same("block", &BlockPlace::judged(alpha, z.numerator, weights.unit()), at)?;
        match place.origin {
            Source::Draft if !walk.emitted_all => {
                absent("coin", &place.coin)?;
                self.accepted(drafted)?;
            }
            _ if self.coin(at.h.0.0, choices)? => {
                holds(!walk.emitted_all, "coin.passed", "false, behind the last token", true)?;
                let draw = self.replaced(None, choices)?;
                same("draw.total", &Text(z.numerator), &draw.total)?;
                walk.emitted_all = true;
            }
            _ => self.rejected(walk)?,
        }
        Ok(false)
    }

    fn coupled(&self, choices: &mut Choices) -> Checked<bool> {
        let place = self.place;
        absent("weights", &place.weights)?;
        absent("block", &place.block)?;
        absent("coin", &place.coin)?;
        absent("draw", &place.draw)?;
        if place.origin == Source::Unusable {
            absent("race", &place.race)?;
            return self.unusable();
        }
        let race = required("race", &place.race)?;
        let token = *required("token", &place.token)?;
        let (weight, total) = (race.weight.0, race.total.0);
        let possible = 0 < weight && weight <= total && total <= MAX_TOTAL;
        holds(possible, "race.weight", &format!("1 to {total}"), weight)?;
        let key = self.noise.position(place.offset as usize);
        let noise = (weight < total).then(|| key.into());
        same("race.noise", &noise, &race.noise)?;
        match noise {
            Some(_) => choices.races += 1,
            None => choices.certain += 1,
        }
        let origin = match place.drafted {
            None => Source::Bonus,
            Some(drafted) if drafted.token == token => Source::Draft,
            Some(_) => Source::Residual,
        };
        same("origin", &origin, &place.origin)?;
        Ok(origin != Source::Draft)
    }

    /// The drafted token stays.
    fn accepted(&self, drafted: &Drafted) -> Checked {
        same("origin", &Source::Draft, &self.place.origin)?;
        absent("draw", &self.place.draw)?;
        same("token", &Some(drafted.token), &self.place.token)
    }

    /// The place lies behind the last emitted token.
    fn rejected(&self, walk: &Walk) -> Checked {
        holds(walk.emitted_all, "coin.passed", "true, for no token behind it stays", false)?;
        same("origin", &Source::Rejected, &self.place.origin)?;
        absent("token", &self.place.token)?;
        absent("draw", &self.place.draw)
    }

    /// The place has no law; that the text ended before it is for the caller to see.
    fn unusable(&self) -> Checked<bool> {
        absent("token", &self.place.token)?;
        absent("draw", &self.place.draw)?;
        Ok(true)
    }

    /// The token is drawn from the residual law, which does not hold `but`.
    fn replaced(&self, but: Option<u32>, choices: &mut Choices) -> Checked<&Draw> {
        same("origin", &Source::Residual, &self.place.origin)?;
        let token = *required("token", &self.place.token)?;
        holds(but != Some(token), "token", "another than the rejected one", token)?;
        let draw = required("draw", &self.place.draw)?;
        self.draw(draw, Lane::Residual, choices).map_err(|fail| fail.within("draw"))?;
        Ok(draw)
    }

    /// The token is drawn from p; nothing was drafted here.
    fn bonus(&self, choices: &mut Choices) -> Checked<bool> {
        same("origin", &Source::Bonus, &self.place.origin)?;
        required("token", &self.place.token)?;
        let draw = required("draw", &self.place.draw)?;
        self.draw(draw, Lane::Bonus, choices).map_err(|fail| fail.within("draw"))?;
        Ok(true)
    }

    /// The drafted token's weights: within the laws' limits, and those in q are those of its draw.
    fn weights(&self, drafted: &Drafted) -> Checked<&Weights> {
        let weights = required("weights", &self.place.weights)?;
        let Weights { p, p_total, q, q_total } = *weights;
        let total = |total: u64| 0 < total && total <= MAX_TOTAL;
        holds(total(p_total.0), "weights.p_total", "1 to 2^62", p_total)?;
        holds(total(q_total.0), "weights.q_total", "1 to 2^62", q_total)?;
        holds(p.0 <= p_total.0, "weights.p", "at most its total", p)?;
        let Draw { weight, total, .. } = drafted.draw;
        same("weights.q", &weight, &Text(U256::from(q.0)))?;
        same("weights.q_total", &total, &Text(U256::from(q_total.0)))?;
        Ok(weights)
    }

    /// Whether the coin passes.
    fn coin(&self, chance: Fraction, choices: &mut Choices) -> Checked<bool> {
        let coin = required("coin", &self.place.coin)?;
        let Fraction { numerator: a, denominator: b } = chance;
        let key = self.key(Lane::Accept);
        same("coin.noise", &Coin::new(chance, key, true).noise, &coin.noise)?;
        if !is_open(chance) {
            choices.certain += 1;
            same("coin.passed", &(a >= b), &coin.passed)?;
            return Ok(coin.passed);
        }
        choices.coins += 1;
        let u = ChaCha::uniform(key, b);
        let expected = format!("{} (u = {u} on [0, {b}) against {a})", u < a);
        holds(coin.passed == (u < a), "coin.passed", &expected, coin.passed)?;
        Ok(coin.passed)
    }

    fn draw(&self, draw: &Draw, lane: Lane, choices: &mut Choices) -> Checked {
        let (Text(below), Text(weight), Text(total)) = (draw.below, draw.weight, draw.total);
        holds(!weight.is_zero(), "weight", "at least 1", weight)?;
        let end = below.checked_add(weight).filter(|end| *end <= total);
        let found = format_args!("{below} + {weight} of {total}");
        let Some(end) = end else {
            return Err(Fail::new("total", "at least below + weight", found));
        };
        let key = self.key(lane);
        let open = weight < total;
        same("noise", &open.then(|| key.into()), &draw.noise)?;
        if !open {
            choices.certain += 1;
            return Ok(());
        }
        choices.draws += 1;
        let u = ChaCha::uniform(key, total);
        let expected = format!("an interval with u = {u} of {total}");
        let found = format_args!("[{below}, {end})");
        holds(below <= u && u < end, "below", &expected, found)
    }

    /// From whole laws: all that the other checks take as given.
    fn laws(&self, alpha: u64) -> Checked<Option<f64>> {
        let place = self.place;
        let q = self.law("q", place.drafted.is_some(), &place.q)?;
        if let (Some(drafted), Some(q)) = (&place.drafted, &q) {
            let draw = Draw::of(q, Token(drafted.token), self.key(Lane::Draft));
            same("drafted.draw", &draw, &drafted.draw)?;
        }
        // Block verification may end at a place whose target law it never looked at.
        let judged = match place.block {
            Some(block) => block.z.is_some() || place.origin == Source::Bonus,
            None => place.origin != Source::Unusable,
        };
        let p = self.law("p", judged, &place.p)?;
        let Some(p) = p else { return Ok(None) };
        let token = place.token.map(Token);
        if let (Some(race), Some(token)) = (&place.race, token) {
            let key = self.noise.position(place.offset as usize);
            let noise: &mut dyn Noise = &mut ChaCha;
            same("token", &noise.winner(key, &p).0, &token.0)?;
            same("race", &Race::of(&p, token, key), race)?;
        }
        let (Some(drafted), Some(q)) = (&place.drafted, &q) else {
            self.drawn_from(&p, Lane::Bonus)?;
            return Ok(None);
        };
        if place.race.is_none() {
            let weights = Weights::of(&p, q, Token(drafted.token));
            same("weights", &Some(weights), &place.weights)?;
        }
        if place.block.is_some() {
            let (at, residual) = BlockPlace::of(alpha, &p, q);
            same("block", &Some(at), &place.block)?;
            self.drawn_from(&residual, Lane::Residual)?;
        } else if let Some(residual) = residual(&p, q) {
            self.drawn_from(&residual, Lane::Residual)?;
        }
        Ok(Some(overlap(&p, q).to_f64()))
    }

    /// If the token was drawn, it was drawn from `law`.
    fn drawn_from(&self, law: &dyn crate::law::Law, lane: Lane) -> Checked {
        match (&self.place.draw, self.place.token) {
            (Some(draw), Some(token)) => {
                same("draw", &Draw::of(law, Token(token), self.key(lane)), draw)
            }
            _ => Ok(()),
        }
    }

    fn law(&self, field: &str, wanted: bool, law: &Option<Whole>) -> Checked<Option<Dist>> {
        if !wanted {
            absent(field, law)?;
            return Ok(None);
        }
        let law = required(field, law)?.law(self.vocab);
        let law = law.ok_or_else(|| Fail::new(field, "a positive weight for each id", "others"))?;
        law.map(Some).map_err(|error| Fail::new(field, "a law", error))
    }
}
