//! A noise source that branches where production draws: every path of the real code, exactly.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use draftproof_decode::{
    Dist, Token,
    dist::Fraction,
    law::Law,
    noise::{Noise, PositionKey, RoundKey},
};
use num_bigint::{BigInt, BigUint};
use num_rational::BigRational;
use num_traits::{One, Zero};
use ruint::aliases::U256;

/// Exact probabilities of outcomes.
pub type Exact<T> = BTreeMap<T, BigRational>;

/// Runs `run` once for every sequence of random choices it can meet, and adds up the exact
/// probabilities of its outcomes.
///
/// Each run follows the choices of the last one up to the deepest that has an option left, takes
/// the next option there, and first options after it: a depth-first walk of the tree of choices.
///
/// The walk takes for granted that noise is fresh. A key that is asked for twice on one path is one
/// choice and not two, so the law would be worth nothing: see [`Walk::spent_twice`].
///
/// # Errors
/// The first error of `run`.
///
/// # Panics
/// If `run` runs a race (it has no finite tree of choices), or depends on anything but its choices.
pub fn try_enumerate<T: Ord, E>(
    mut run: impl FnMut(&mut Paths) -> Result<T, E>,
) -> Result<Walk<T>, E> {
    let mut paths = Paths::default();
    let tree = Arc::clone(&paths.0);
    let tree = || tree.lock().expect("a run that panics ends the walk");
    // Numerators by denominator: most paths share one, and gcds are what costs.
    let mut sums: BTreeMap<T, HashMap<BigUint, BigUint>> = BTreeMap::new();
    let mut count = 0;
    loop {
        tree().depth = 0;
        let outcome = run(&mut paths)?;
        let (numerator, denominator) = tree().probability();
        *sums.entry(outcome).or_default().entry(denominator).or_default() += numerator;
        count += 1;
        if !tree().advance() {
            break;
        }
    }
    let law = sums.into_iter().map(|(outcome, parts)| (outcome, sum(parts))).collect();
    let spent_twice = tree().spent_twice;
    Ok(Walk { law, paths: count, spent_twice })
}

/// [`try_enumerate`] for runs that cannot fail.
///
/// # Panics
/// As [`try_enumerate`], and if a key is spent twice.
pub fn enumerate<T: Ord>(mut run: impl FnMut(&mut Paths) -> T) -> Exact<T> {
    let walk = try_enumerate(|paths| Ok::<T, std::convert::Infallible>(run(paths)));
    match walk {
        Ok(Walk { spent_twice: Some(key), .. }) => panic!("noise was asked for twice: {key}"),
        Ok(walk) => walk.law,
        Err(never) => match never {},
    }
}

/// What a walk of all paths found.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk<T> {
    /// The exact law of the outcomes.
    pub law: Exact<T>,
    /// How many paths there were.
    pub paths: u64,
    /// A key that was asked for twice on one path, if there was one.
    pub spent_twice: Option<RoundKey>,
}

/// The sum of fractions, halves first: so that few large gcds are taken.
fn sum(parts: HashMap<BigUint, BigUint>) -> BigRational {
    let mut terms: Vec<BigRational> = parts
        .into_iter()
        .map(|(denominator, numerator)| BigRational::new(numerator.into(), denominator.into()))
        .collect();
    while terms.len() > 1 {
        terms = terms.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    terms.pop().unwrap_or_else(zero)
}

/// Panics unless the probabilities sum to 1: no path was lost or walked twice.
///
/// # Panics
/// If they do not.
pub fn assert_is_law<T: Ord + std::fmt::Debug>(law: &Exact<T>) {
    let total: BigRational = law.values().sum();
    assert_eq!(total, BigRational::one(), "{law:?}");
}

/// The total variation distance of two exact laws.
#[must_use]
pub fn distance<T: Ord>(a: &Exact<T>, b: &Exact<T>) -> BigRational {
    let zero = zero();
    let of = |law: &Exact<T>, outcome: &T| law.get(outcome).unwrap_or(&zero).clone();
    let excess = |from: &Exact<T>, to: &Exact<T>| -> BigRational {
        from.keys().map(|key| of(from, key) - of(to, key)).filter(|d| *d > zero).sum()
    };
    // Both sum to 1, so the excess of either over the other is the same; taking the larger also
    // catches laws that do not.
    excess(a, b).max(excess(b, a))
}

/// 0 as a rational.
#[must_use]
pub fn zero() -> BigRational {
    BigRational::new_raw(BigInt::ZERO, BigInt::one())
}

/// The choices on the current path: a source of noise, and of anything else that is random. Clones
/// share the path.
#[derive(Clone, Debug, Default)]
pub struct Paths(Arc<Mutex<Tree>>);

#[derive(Debug, Default)]
struct Tree {
    choices: Vec<Choice>,
    depth: usize,
    spent_twice: Option<RoundKey>,
}

#[derive(Debug)]
struct Choice {
    key: RoundKey,
    /// Weight and meaning of each option (a token, or 1 for heads).
    options: Vec<(BigUint, Token)>,
    taken: usize,
    /// The probability of the choices before this one.
    before: (BigUint, BigUint),
    total: BigUint,
}

impl Choice {
    /// The probability of the path up to and including this choice, not in lowest terms.
    fn after(&self) -> (BigUint, BigUint) {
        (&self.before.0 * &self.options[self.taken].0, &self.before.1 * &self.total)
    }
}

impl Paths {
    fn choose(
        &self,
        key: RoundKey,
        options: impl FnOnce() -> (Vec<(BigUint, Token)>, BigUint),
    ) -> Token {
        self.0.lock().expect("a run that panics ends the walk").choose(key, options)
    }
}

impl Tree {
    fn probability(&self) -> (BigUint, BigUint) {
        assert_eq!(self.depth, self.choices.len(), "a run does not depend on its choices alone");
        self.choices.last().map_or_else(|| (BigUint::one(), BigUint::one()), Choice::after)
    }

    fn advance(&mut self) -> bool {
        while let Some(last) = self.choices.last_mut() {
            last.taken += 1;
            if last.taken < last.options.len() {
                return true;
            }
            self.choices.pop();
        }
        false
    }

    fn choose(
        &mut self,
        key: RoundKey,
        options: impl FnOnce() -> (Vec<(BigUint, Token)>, BigUint),
    ) -> Token {
        if self.depth == self.choices.len() {
            let (mut options, total) = options();
            options.retain(|(weight, _)| !weight.is_zero());
            // Fresh noise is what this walk takes for granted; a key spent twice breaks it.
            if self.choices.iter().any(|choice| choice.key == key) {
                self.spent_twice = Some(key);
            }
            let before = self.probability();
            self.choices.push(Choice { key, options, taken: 0, before, total });
        }
        let choice = &self.choices[self.depth];
        assert_eq!(choice.key, key, "a run does not depend on its choices alone");
        self.depth += 1;
        choice.options[choice.taken].1
    }
}

fn big(value: U256) -> BigUint {
    BigUint::from_bytes_le(&value.to_le_bytes::<32>())
}

impl Noise for Paths {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        let token = self.choose(key, || {
            let heads = big(probability.numerator);
            let total = big(probability.denominator);
            (vec![(heads.clone(), Token(1)), (&total - &heads, Token(0))], total)
        });
        token == Token(1)
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        self.choose(key, || {
            let mut options = Vec::new();
            law.visit(&mut |token, weight| options.push((big(weight), token)));
            (options, big(law.total()))
        })
    }

    /// The variates of one position decide several laws at once: there is nothing to branch over.
    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        panic!("a race has no finite tree of choices: {key:?}, {law:?}")
    }
}

#[cfg(test)]
mod tests {
    use draftproof_decode::noise::{Lane, RoundNoise, Seed};

    use super::*;

    const ROUND: RoundNoise = RoundNoise { seed: Seed { seed: 0, sequence: 0 }, round_start: 1 };

    #[test]
    fn walks_every_path_once() {
        let law = Dist::dense(vec![1, 0, 2, 1]).expect("a law");
        let walk = try_enumerate(|paths| {
            let noise: &mut dyn Noise = paths;
            let first = noise.draw(ROUND.key(0, Lane::Draft), &law);
            let coin =
                first != Token(2) && noise.decide(ROUND.key(0, Lane::Accept), Fraction::new(1, 3));
            Ok::<_, ()>((first.0, coin))
        })
        .expect("no errors");
        assert_eq!(walk.paths, 5);
        let share = |n: i32, d: i32| BigRational::new(n.into(), d.into());
        let expected = [
            ((0, false), share(1, 6)),
            ((0, true), share(1, 12)),
            ((2, false), share(1, 2)),
            ((3, false), share(1, 6)),
            ((3, true), share(1, 12)),
        ];
        assert_eq!(walk.law, expected.into());
        assert_is_law(&walk.law);
        assert_eq!(distance(&walk.law, &walk.law), zero());
    }

    #[test]
    #[should_panic(expected = "noise was asked for twice")]
    fn a_key_spent_twice_is_no_path() {
        enumerate(|paths| {
            let first = paths.coin(ROUND.key(0, Lane::Accept), Fraction::new(1, 2));
            first == paths.coin(ROUND.key(0, Lane::Accept), Fraction::new(1, 2))
        });
    }
}
