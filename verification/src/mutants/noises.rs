//! Sources of noise that spend a key twice, or give too few bits.
//!
//! Except for [`coarse`], a walk over all paths cannot see them, since it takes fresh noise for
//! granted; sampled laws do.

use draftproof_decode::{
    Dist, Token,
    dist::Fraction,
    law::Law,
    ln::exponential,
    noise::{ChaCha, Lane, Noise, PositionKey, RoundKey, Seed},
};
use ruint::aliases::U256;

/// Engines that draw one uniform of 64 bits for each address, and use it as a coin or through the
/// inverse distribution function; addresses may be wrong.
#[derive(Debug)]
struct Rekeyed {
    address: fn(RoundKey) -> RoundKey,
    position: fn(PositionKey) -> PositionKey,
    /// Tokens are winners of a race instead.
    races: bool,
}

impl Rekeyed {
    fn uniform(&self, key: RoundKey) -> U256 {
        ChaCha::uniform((self.address)(key), U256::from(1) << 64usize)
    }
}

impl Noise for Rekeyed {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        self.uniform(key) * probability.denominator < probability.numerator << 64usize
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        if !self.races {
            return law.at((self.uniform(key) * law.total()) >> 64usize);
        }
        let key = (self.address)(key);
        let mut best = (f64::INFINITY, Token(0));
        law.visit(&mut |token, weight| {
            let own = RoundKey { offset: (key.offset << 16) | token.0, ..key };
            let bits = ChaCha::uniform(own, U256::from(1) << 64usize).to::<u64>();
            let time = exponential(bits) / f64::from(weight);
            if time < best.0 {
                best = (time, token);
            }
        });
        best.1
    }

    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        ChaCha.race((self.position)(key), law)
    }
}

type Shim<'n> = Box<dyn Noise + 'n>;

const RIGHT: Rekeyed = Rekeyed { address: |key| key, position: |key| key, races: false };

/// No fault: the base that the others differ from.
pub(super) fn fresh(_: &mut dyn Noise) -> Shim<'_> {
    Box::new(RIGHT)
}

/// No fault either: the same with races.
pub(super) fn fresh_races(_: &mut dyn Noise) -> Shim<'_> {
    Box::new(Rekeyed { races: true, ..RIGHT })
}

fn moved(key: RoundKey, from: Lane, to: Lane) -> RoundKey {
    if key.lane == from { RoundKey { lane: to, ..key } } else { key }
}

/// F9: the uniform that drew the draft is the acceptance coin.
pub(super) fn draft_as_coin(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key| moved(key, Lane::Accept, Lane::Draft);
    Box::new(Rekeyed { address, ..RIGHT })
}

/// F10: the coin that rejected draws the residual.
pub(super) fn coin_as_residual(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key| moved(key, Lane::Residual, Lane::Accept);
    Box::new(Rekeyed { address, ..RIGHT })
}

/// F11: the draft's Gumbel noise decides the residual too.
pub(super) fn draft_race_as_residual(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key| moved(key, Lane::Residual, Lane::Draft);
    Box::new(Rekeyed { address, races: true, ..RIGHT })
}

/// The draft's uniform draws the residual too, through the inverse distribution function.
pub(super) fn draft_as_residual(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key| moved(key, Lane::Residual, Lane::Draft);
    Box::new(Rekeyed { address, ..RIGHT })
}

/// Keyed by absolute position: a token behind the cut failed its coin, and the next round spends
/// that coin again.
pub(super) fn by_position(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key: RoundKey| {
        let offset = u32::try_from(key.round_start).unwrap_or(u32::MAX).wrapping_add(key.offset);
        RoundKey { round_start: 0, offset, ..key }
    };
    Box::new(Rekeyed { address, ..RIGHT })
}

/// The round is not part of the address: each round spends the first one's noise.
pub(super) fn by_offset(_: &mut dyn Noise) -> Shim<'_> {
    Box::new(Rekeyed { address: |key| RoundKey { round_start: 0, ..key }, ..RIGHT })
}

/// The seed reaches every draw but the coins.
pub(super) fn unseeded_coins(_: &mut dyn Noise) -> Shim<'_> {
    let address = |key: RoundKey| match key.lane {
        Lane::Accept => RoundKey { seed: Seed::default(), ..key },
        _ => key,
    };
    Box::new(Rekeyed { address, ..RIGHT })
}

/// Coupled: one race for all positions.
pub(super) fn one_race(_: &mut dyn Noise) -> Shim<'_> {
    let position = |key| PositionKey { position: 0, ..key };
    Box::new(Rekeyed { position, ..RIGHT })
}

/// Uniforms of 24 bits, as from an f32: every probability becomes a multiple of 2^-24.
#[derive(Debug)]
struct Coarse<'n>(&'n mut dyn Noise);

const POINTS: usize = 24;

fn points_below(numerator: U256, denominator: U256) -> u64 {
    ((numerator << POINTS) + denominator - U256::from(1)).wrapping_div(denominator).to::<u64>()
}

impl Noise for Coarse<'_> {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        let heads = points_below(probability.numerator, probability.denominator);
        self.0.decide(key, Fraction::new(u128::from(heads), 1 << POINTS))
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        let (mut cumulative, mut before) = (U256::ZERO, 0);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        law.visit(&mut |token, weight| {
            cumulative += weight;
            let below = points_below(cumulative, law.total());
            ids.push(token.0);
            weights.push(below - before);
            before = below;
        });
        let vocab = ids.last().map_or(1, |&id| id as usize + 1);
        let grid = Dist::sparse(vocab, ids, weights).expect("2^24 points in all");
        self.0.draw(key, &grid)
    }

    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        self.0.race(key, law)
    }
}

/// See [`Coarse`].
pub(super) fn coarse(noise: &mut dyn Noise) -> Shim<'_> {
    Box::new(Coarse(noise))
}
