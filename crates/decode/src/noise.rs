//! [`Noise`]: randomness as a function of a key, never of call order.
//!
//! Each random choice names a [`RoundKey`]; the same key gives the same noise, whoever asks and
//! whenever, so batching, rollback and draft length cannot shift a stream. Keys never repeat within
//! a run, because round starts strictly increase: noise that decided one thing never decides
//! another. (Reusing the draft's noise for the residual, or a coin between rounds, biases the text;
//! no test of a single law can see it, so [`Recorded`] guards it apart.)
//!
//! Choices are asked for at the level of exact laws — a coin with probability `a/b`, a token from a
//! [`Law`] — and not as raw uniforms. A test can therefore put a source in place that *branches*
//! where [`ChaCha`] draws, and walk every path of the very code that runs in production.
//!
//! # Addresses
//! ChaCha20 with a 256-bit key, a 64-bit stream and a 66-bit word position, all used as fields, so
//! the mapping is injective:
//!
//! | field | bits | holds |
//! |---|---|---|
//! | key | 64 + 64 + 128 | seed, sequence, the domain: `draftproof round` or `draftproof place` |
//! | stream | 64 | round start (the number of committed tokens when the round began), or position |
//! | word position | 32 + 2 + 32 | offset in the block, lane, word; in a race: twice the token |
//!
//! Unbiased draws consume a variable number of words, hence a range of 2^32 words for each address.
//!
//! # The race
//! A race compares `E_x / w_x` in f64, with E from 64 random bits ([`ln`](crate::ln)). Its law is
//! not the exact w/W: the 64 bits leave tokens of probability near 2^-64 coarse, and each time has a
//! relative error below 2^-49, so the total variation to w/W is below `V·2^-63 + 2^-48`.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
};

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use ruint::aliases::U256;

use crate::{Dist, Token, dist::Fraction, law::Law, race};

/// What a random choice is for. Choices of different lanes are independent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// The draft's token.
    Draft = 0,
    /// The coin that accepts or rejects it.
    Accept = 1,
    /// The token after a rejection.
    Residual = 2,
    /// The token after a fully accepted block.
    Bonus = 3,
}

/// Whose noise: shards and siblings of one run share the seed and differ in the sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed {
    /// The user's seed.
    pub seed: u64,
    /// Which of the run's continuations.
    pub sequence: u64,
}

/// The noise of one round: whose, and the number of committed tokens when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundNoise {
    /// Whose noise.
    pub seed: Seed,
    /// The number of committed tokens, prompt included, when the round began.
    pub round_start: u64,
}

impl RoundNoise {
    /// The address of the choice for `lane` at `offset` in the block.
    ///
    /// # Panics
    /// If `offset` does not fit `u32`.
    #[must_use]
    pub fn key(self, offset: usize, lane: Lane) -> RoundKey {
        let offset = u32::try_from(offset).expect("a block has fewer than 2^32 tokens");
        RoundKey { seed: self.seed, round_start: self.round_start, offset, lane }
    }

    /// The address of the noise of the position at `offset` in the block.
    #[must_use]
    pub fn position(self, offset: usize) -> PositionKey {
        PositionKey { seed: self.seed, position: self.round_start + offset as u64 }
    }
}

/// The address of one random choice of one round, for the `rejection` and `block` rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundKey {
    /// Whose noise.
    pub seed: Seed,
    /// The number of committed tokens, prompt included, when the round began.
    pub round_start: u64,
    /// The position in the drafted block, from 0.
    pub offset: u32,
    /// What the choice is for.
    pub lane: Lane,
}

/// The address of the noise of one position, for the `coupled` rule only: there, draft and target
/// *share* it, and a position keeps its noise in every round that reaches it.
///
/// A type of its own, so that noise which is meant to be fresh cannot be keyed by position: block
/// verification keyed so is biased between rounds, which no test of a single round can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionKey {
    /// Whose noise.
    pub seed: Seed,
    /// The number of tokens before the position, prompt included.
    pub position: u64,
}

impl fmt::Display for RoundKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed: Seed { seed, sequence }, round_start, offset, lane } = self;
        write!(f, "seed {seed}, sequence {sequence}, round {round_start}, +{offset}, {lane:?}")
    }
}

/// A source of random choices.
///
/// Implementors decide choices that are truly open; callers use `decide` and
/// `draw`, which settle the certain ones without any noise. Greedy decoding
/// therefore never touches the source.
pub trait Noise: fmt::Debug {
    /// True with probability `probability`, which is above 0 and below 1.
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool;

    /// A token drawn from `law`, which has at least two tokens.
    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token;

    /// The winner of the exponential race of `key` under `law`, which has at least two tokens:
    /// `argmin E_x / w_x` with one exponential variate for each token of the vocabulary.
    ///
    /// Each winner follows its law; under the same key the winners of two laws agree as often as
    /// their likeness allows (Daliri et al. 2408.07978).
    fn race(&mut self, key: PositionKey, law: &Dist) -> Token;
}

impl dyn Noise + '_ {
    /// True with probability `min(1, probability)`: strictly, `U < a` for U uniform on `[0, b)`.
    pub fn decide(&mut self, key: RoundKey, probability: Fraction) -> bool {
        if probability.numerator >= probability.denominator {
            true
        } else if probability.numerator.is_zero() {
            false
        } else {
            self.coin(key, probability)
        }
    }

    /// A token drawn from `law`.
    pub fn draw(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        law.only().unwrap_or_else(|| self.pick(key, law))
    }

    /// The winner of the race of `key` under `law`.
    pub fn winner(&mut self, key: PositionKey, law: &Dist) -> Token {
        law.only().unwrap_or_else(|| self.race(key, law))
    }
}

/// The noise of production: ChaCha20, addressed by key; see the [module docs](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct ChaCha;

impl ChaCha {
    /// An integer uniform on `[0, bound)`, from the words at `key`, without modulo bias.
    ///
    /// Takes `⌈bits/32⌉` words (least significant first) for the `bits` that `bound − 1` needs, cuts
    /// the excess bits off, and repeats while the result is not below `bound`; the expected number
    /// of attempts is below 2.
    ///
    /// # Panics
    /// If `bound` is 0.
    #[must_use]
    pub fn uniform(key: RoundKey, bound: U256) -> U256 {
        assert!(!bound.is_zero(), "nothing lies below 0");
        let bits = (bound - U256::from(1)).bit_len();
        let mut words = words_at(key);
        loop {
            let mut value = U256::ZERO;
            for word in 0..bits.div_ceil(32) {
                value |= U256::from(words.next_u32()) << (32 * word);
            }
            value &= (U256::from(1) << bits).wrapping_sub(U256::from(1));
            if value < bound {
                return value;
            }
        }
    }
}

fn stream(seed: Seed, domain: &[u8; 16], stream: u64) -> ChaCha20Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.seed.to_le_bytes());
    key[8..16].copy_from_slice(&seed.sequence.to_le_bytes());
    key[16..].copy_from_slice(domain);
    let mut rng = ChaCha20Rng::from_seed(key);
    rng.set_stream(stream);
    rng
}

fn words_at(key: RoundKey) -> ChaCha20Rng {
    let mut rng = stream(key.seed, b"draftproof round", key.round_start);
    rng.set_word_pos(((u128::from(key.offset) << 2) | key.lane as u128) << 32);
    rng
}

impl Noise for ChaCha {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        Self::uniform(key, probability.denominator) < probability.numerator
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        law.at(Self::uniform(key, law.total()))
    }

    /// Token x races with the two words at 2x of the position's stream, so its variate does not
    /// depend on which other tokens the law has. Ties go to the lowest id.
    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        let mut rng = place_words(key);
        let Some(weights) = law.row() else { return race::over_list(law, &mut rng) };
        race::over_row(weights, |words| fill(&mut rng, words))
    }
}

fn place_words(key: PositionKey) -> ChaCha20Rng {
    stream(key.seed, b"draftproof place", key.position)
}

/// The next words of `rng`, two to a number, at most [`HEAT`](race::HEAT) numbers.
fn fill(rng: &mut ChaCha20Rng, numbers: &mut [u64]) {
    let mut bytes = [0; 8 * race::HEAT];
    let bytes = &mut bytes[..8 * numbers.len()];
    rng.fill_bytes(bytes);
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
}

/// [`ChaCha`], which keeps the words of the latest races: under the `coupled` rule the draft runs a
/// position's race and then the target does, perhaps in several rounds, and the words are most of its
/// cost.
#[derive(Debug, Default)]
pub struct Remembered {
    kept: HashMap<PositionKey, Vec<u64>>,
    /// The keys, the oldest first.
    order: VecDeque<PositionKey>,
    held: usize,
}

impl Remembered {
    /// The most numbers kept: 32 MiB.
    const MOST: usize = 4 << 20;

    fn numbers(&mut self, key: PositionKey, len: usize) -> &[u64] {
        if self.kept.get(&key).is_none_or(|numbers| numbers.len() < len) {
            let (mut rng, mut numbers) = (place_words(key), vec![0; len]);
            numbers.chunks_mut(race::HEAT).for_each(|heat| fill(&mut rng, heat));
            if let Some(shorter) = self.kept.insert(key, numbers) {
                self.order.retain(|other| *other != key);
                self.held -= shorter.len();
            }
            self.order.push_back(key);
            self.held += len;
            while self.held > Self::MOST
                && let Some(oldest) = self.order.pop_front_if(|oldest| *oldest != key)
                && let Some(numbers) = self.kept.remove(&oldest)
            {
                self.held -= numbers.len();
            }
        }
        &self.kept[&key]
    }
}

impl Noise for Remembered {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        ChaCha.coin(key, probability)
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        ChaCha.pick(key, law)
    }

    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        let Some(weights) = law.row() else { return ChaCha.race(key, law) };
        let mut rest = self.numbers(key, weights.len());
        race::over_row(weights, |heat| {
            let (numbers, behind) = rest.split_at(heat.len());
            heat.copy_from_slice(numbers);
            rest = behind;
        })
    }
}

/// Guards the rule that no key is spent twice: panics when one is.
///
/// For tests: enumeration takes fresh noise for granted and cannot see a key that is used twice.
#[derive(Debug)]
pub struct Recorded<N> {
    inner: N,
    spent: HashSet<RoundKey>,
}

impl<N: Noise> Recorded<N> {
    /// Records what is asked of `inner`.
    pub fn new(inner: N) -> Self {
        Self { inner, spent: HashSet::new() }
    }

    /// The number of keys spent.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.spent.len()
    }

    fn spend(&mut self, key: RoundKey) {
        assert!(self.spent.insert(key), "noise was asked for twice: {key}");
    }
}

impl<N: Noise> Noise for Recorded<N> {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        self.spend(key);
        self.inner.coin(key, probability)
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        self.spend(key);
        self.inner.pick(key, law)
    }

    /// Not counted: there, asking twice is the method.
    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        self.inner.race(key, law)
    }
}

/// Panics when asked: for runs that must not need noise, such as greedy ones.
#[derive(Clone, Copy, Debug)]
pub struct Forbidden;

impl Noise for Forbidden {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        panic!("noise was asked for a coin of probability {probability:?} at {key}")
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        panic!("noise was asked for a draw from {law:?} at {key}")
    }

    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        panic!("noise was asked for a race of {law:?} at {key:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ln::exponential;

    const KEY: RoundKey = RoundKey {
        seed: Seed { seed: 7, sequence: 1 },
        round_start: 12,
        offset: 3,
        lane: Lane::Draft,
    };

    /// The values are those of an independent ChaCha20: `tests/golden/make_rows.py --pins`.
    #[test]
    fn value_stability() {
        let pick = |bound: u128| ChaCha::uniform(KEY, U256::from(bound));
        assert_eq!(pick(1), U256::ZERO);
        assert_eq!(pick(10), U256::from(4));
        assert_eq!(pick(1 << 61), U256::from(1_597_143_259_623_115_108u64));
        assert_eq!(
            pick(u128::MAX),
            U256::from(157_697_505_000_553_455_554_736_209_257_060_813_156u128)
        );
    }

    /// Each field of a key moves the words, and addresses that differ share no block of them.
    #[test]
    fn addresses_are_injective() {
        let mut keys = vec![KEY];
        for bit in 0..64 {
            keys.push(RoundKey { round_start: KEY.round_start ^ (1 << bit), ..KEY });
            let seed = KEY.seed.seed ^ (1 << bit);
            keys.push(RoundKey { seed: Seed { seed, ..KEY.seed }, ..KEY });
            let sequence = KEY.seed.sequence ^ (1 << bit);
            keys.push(RoundKey { seed: Seed { sequence, ..KEY.seed }, ..KEY });
        }
        keys.extend((0..32).map(|bit| RoundKey { offset: KEY.offset ^ (1 << bit), ..KEY }));
        keys.extend(
            [Lane::Accept, Lane::Residual, Lane::Bonus].map(|lane| RoundKey { lane, ..KEY }),
        );
        let addresses: HashSet<_> = keys
            .iter()
            .map(|&key| {
                let rng = words_at(key);
                (rng.get_seed(), rng.get_stream(), rng.get_word_pos())
            })
            .collect();
        assert_eq!(addresses.len(), keys.len());
        assert!(addresses.iter().all(|(.., word)| word % (1 << 32) == 0));
        let words: HashSet<_> = keys.iter().map(|&key| words_at(key).next_u64()).collect();
        assert_eq!(words.len(), keys.len());
    }

    /// No modulo bias: with 3·2^30 outcomes of 32 bits, `% bound` would hit the lower third of the
    /// range half of the time. 20 000 draws; false alarm below 1e-9 (18 standard deviations).
    #[test]
    fn uniform_is_not_biased_by_the_bound() {
        let bound = U256::from(3u64 << 30);
        let third = U256::from(1u64 << 30);
        let low = (0..20_000u64)
            .filter(|&round_start| ChaCha::uniform(RoundKey { round_start, ..KEY }, bound) < third)
            .count();
        let expected = 20_000 / 3;
        assert!(low.abs_diff(expected) < 420, "{low} of 20 000 in the lower third");
    }

    #[test]
    fn wide_bounds_use_all_their_bits() {
        let bound = U256::MAX;
        let value = ChaCha::uniform(KEY, bound);
        assert!(value < bound && value >> 200 != U256::ZERO);
        assert!(value & (U256::from(1) << 56usize).wrapping_sub(U256::from(1)) != U256::ZERO);
    }

    /// The strict comparison at both ends: probability 0 never passes, 1 always does, and neither
    /// asks the source.
    #[test]
    fn certain_choices_need_no_noise() {
        let mut forbidden = Forbidden;
        let noise: &mut dyn Noise = &mut forbidden;
        assert!(!noise.decide(KEY, Fraction::new(0, 5)));
        assert!(noise.decide(KEY, Fraction::new(5, 5)));
        assert!(noise.decide(KEY, Fraction::new(9, 5)));
        let only = Dist::dense(vec![0, 0, 3, 0]).expect("a law");
        assert_eq!(noise.draw(KEY, &only), Token(2));
    }

    /// A race of every token with its own words, one after the other.
    fn plain_race(key: PositionKey, law: &Dist) -> Token {
        let time = |(x, weight): (Token, u64)| {
            let mut rng = stream(key.seed, b"draftproof place", key.position);
            rng.set_word_pos(2 * u128::from(x.0));
            (exponential(rng.next_u64()) / weight as f64, x)
        };
        let times = law.support().map(time);
        times.fold((f64::INFINITY, Token(0)), |best, one| if one.0 < best.0 { one } else { best }).1
    }

    /// Leaving out what cannot win changes no winner: rows of several heats, flat, steep, with one
    /// likely token at either end, and with holes.
    #[test]
    fn heats_find_the_winner() {
        let shapes: [fn(u64) -> u64; 5] = [
            |_| 1 << 40,
            |x| (1 << 58) >> (x / 4).min(57),
            |x| if x == 0 { 1 << 60 } else { 1 << 45 },
            |x| if x == 299 { 1 << 60 } else { 1 },
            |x| if x % 3 == 0 { 0 } else { x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12 },
        ];
        let (mut winners, mut kept) = (HashSet::new(), Remembered::default());
        for (shape, weight) in shapes.into_iter().enumerate() {
            for len in [2, 63, 64, 65, 300] {
                let row: Vec<u64> = (0..len).map(weight).collect();
                let ids = (0..len as u32).filter(|&x| row[x as usize] > 0).collect();
                let held = row.iter().copied().filter(|&weight| weight > 0).collect();
                let sparse = Dist::sparse(row.len(), ids, held).expect("a law");
                let law = Dist::dense(row).expect("a law");
                for position in 0..200 {
                    let key = PositionKey { seed: KEY.seed, position };
                    let winner = plain_race(key, &law);
                    assert_eq!(ChaCha.race(key, &law), winner, "shape {shape}, {len} tokens");
                    assert_eq!(ChaCha.race(key, &sparse), winner, "shape {shape}, {len} tokens");
                    assert_eq!(kept.race(key, &law), winner, "shape {shape}, {len} tokens");
                    assert_eq!(kept.race(key, &sparse), winner, "shape {shape}, {len} tokens");
                    winners.insert(winner);
                }
            }
        }
        assert!(winners.len() > 100, "only {} different winners", winners.len());
    }

    /// What is forgotten is computed again, and no more is kept than may be.
    #[test]
    fn memory_is_bounded() {
        let law = Dist::dense(vec![1; 1 << 16]).expect("a law");
        let mut kept = Remembered::default();
        for position in (0..100).chain(0..3).chain(98..100) {
            let key = PositionKey { seed: KEY.seed, position };
            assert_eq!(kept.race(key, &law), ChaCha.race(key, &law), "{position}");
            let held: usize = kept.kept.values().map(Vec::len).sum();
            assert_eq!((held, kept.order.len()), (kept.held, kept.kept.len()));
            assert!(held <= Remembered::MOST);
        }
        assert_eq!(kept.order.len(), Remembered::MOST >> 16);
        let wide = Dist::dense(vec![1; Remembered::MOST + 1]).expect("a law");
        let key = PositionKey { seed: KEY.seed, position: 0 };
        assert_eq!(kept.race(key, &wide), ChaCha.race(key, &wide));
        assert_eq!(kept.order, [key]);
    }

    #[test]
    #[should_panic(expected = "noise was asked for twice")]
    fn a_key_spent_twice_is_caught() {
        let mut recorded = Recorded::new(ChaCha);
        recorded.coin(KEY, Fraction::new(1, 2));
        recorded.coin(KEY, Fraction::new(1, 2));
    }
}
