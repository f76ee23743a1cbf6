//! The exponential race: `argmin E_x / w_x`, with logarithms only where a token may win.

use rand_chacha::ChaCha20Rng;
use rand_core::Rng;

use crate::{
    Dist, Token,
    ln::exponential,
    vector::{Loop, widest},
};

/// Tokens that race together, and of which then nobody or everybody is looked at.
pub(crate) const HEAT: usize = 64;

/// The winner over a row of weights; `fill` gives the numbers of the next tokens, a heat at a time.
pub(crate) fn over_row(weights: &[u64], mut fill: impl FnMut(&mut [u64])) -> Token {
    let mut race = Race { time: f64::INFINITY, winner: Token(0) };
    let mut numbers = [0; HEAT];
    for (heat, weights) in weights.chunks(HEAT).enumerate() {
        let numbers = &mut numbers[..weights.len()];
        fill(numbers);
        if widest(AnyAhead { numbers, weights, time: race.time }) {
            for (place, (&number, &weight)) in numbers.iter().zip(weights).enumerate() {
                race.run(Token::at(heat * HEAT + place), number, weight);
            }
        }
    }
    race.winner
}

/// The winner over the support of a law; token x has the two words at 2x.
pub(crate) fn over_list(law: &Dist, words: &mut ChaCha20Rng) -> Token {
    let mut race = Race { time: f64::INFINITY, winner: Token(0) };
    let mut next = 0;
    for (x, weight) in law.support() {
        if x.0 != next {
            words.set_word_pos(2 * u128::from(x.0));
        }
        next = x.0 + 1;
        race.run(x, words.next_u64(), weight);
    }
    race.winner
}

/// The best so far.
struct Race {
    time: f64,
    winner: Token,
}

impl Race {
    fn run(&mut self, x: Token, number: u64, weight: u64) {
        if may_beat(number, weight, self.time) {
            let time = exponential(number) / weight as f64;
            if time < self.time {
                (self.time, self.winner) = (time, x);
            }
        }
    }
}

/// Whether the variate of `number` over `weight` may be below `time`: `−ln(1 − u) ≥ u`, so where `u/w`
/// is above it no logarithm is needed. The margin is far above all roundings.
#[inline(always)]
fn may_beat(number: u64, weight: u64, time: f64) -> bool {
    /// 2^64 and a little.
    const UNITS: f64 = 18_446_744_073_709_551_616.0 * (1.0 + 1e-12);
    number as f64 <= weight as f64 * time * UNITS
}

/// Whether one of a heat may beat the best.
struct AnyAhead<'a> {
    numbers: &'a [u64],
    weights: &'a [u64],
    time: f64,
}

impl Loop for AnyAhead<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut any = 0u64;
        for (&number, &weight) in self.numbers.iter().zip(self.weights) {
            any |= u64::from(may_beat(number, weight, self.time));
        }
        any != 0
    }
}
