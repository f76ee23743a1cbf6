//! A noise source that branches where production draws: every path of the real code, exactly.

use std::collections::BTreeMap;

use draftproof_decode::{
    Dist, Token,
    dist::Fraction,
    law::Law,
    noise::{Noise, PositionKey, RoundKey},
};
use num_bigint::{BigInt, BigUint};
use num_rational::BigRational;
use num_traits::One;

/// Exact probabilities of outcomes.
pub(crate) type Exact<T> = BTreeMap<T, BigRational>;

/// Runs `run` once for every sequence of random choices it can meet, and adds up the exact
/// probabilities of its outcomes.
///
/// Each run follows the choices of the last one up to the deepest that has an option left, takes the
/// next option there, and first options after it: a depth-first walk of the tree of choices.
pub(crate) fn enumerate<T: Ord>(mut run: impl FnMut(&mut Paths) -> T) -> Exact<T> {
    let mut paths = Paths::default();
    let mut law = Exact::new();
    loop {
        paths.depth = 0;
        let outcome = run(&mut paths);
        let probability: BigRational =
            paths.choices[..paths.depth].iter().map(Choice::probability).product();
        *law.entry(outcome).or_insert_with(zero) += probability;
        if !paths.advance() {
            return law;
        }
    }
}

/// The sum of all probabilities is 1: no path was lost or walked twice.
pub(crate) fn assert_is_law<T: Ord + std::fmt::Debug>(law: &Exact<T>) {
    let total: BigRational = law.values().sum();
    assert_eq!(total, BigRational::one(), "{law:?}");
}

/// The total variation distance of two exact laws.
pub(crate) fn distance<T: Ord>(a: &Exact<T>, b: &Exact<T>) -> BigRational {
    let zero = zero();
    let of = |law: &Exact<T>, outcome: &T| law.get(outcome).unwrap_or(&zero).clone();
    let excess = |from: &Exact<T>, to: &Exact<T>| -> BigRational {
        from.keys().map(|key| of(from, key) - of(to, key)).filter(|d| *d > zero).sum()
    };
    // Both sum to 1, so the excess of either over the other is the same; taking the larger also
    // catches laws that do not.
    excess(a, b).max(excess(b, a))
}

pub(crate) fn zero() -> BigRational {
    BigRational::new_raw(BigInt::ZERO, BigInt::one())
}

/// The choices on the current path.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    choices: Vec<Choice>,
    depth: usize,
}

#[derive(Debug)]
struct Choice {
    key: RoundKey,
    /// Weight and meaning of each option (a token, or 1 for heads).
    options: Vec<(BigUint, Token)>,
    total: BigUint,
    taken: usize,
}

impl Choice {
    fn probability(&self) -> BigRational {
        let (weight, total) = (self.options[self.taken].0.clone(), self.total.clone());
        BigRational::new(weight.into(), total.into())
    }
}

impl Paths {
    fn advance(&mut self) -> bool {
        assert_eq!(self.depth, self.choices.len(), "a run does not depend on its choices alone");
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
            let (options, total) = options();
            // Fresh noise is what this walk takes for granted; a key spent twice breaks it.
            let spent = self.choices.iter().any(|choice| choice.key == key);
            assert!(!spent, "noise was asked for twice: {key}");
            self.choices.push(Choice { key, options, total, taken: 0 });
        }
        let choice = &self.choices[self.depth];
        assert_eq!(choice.key, key, "a run does not depend on its choices alone");
        self.depth += 1;
        choice.options[choice.taken].1
    }
}

fn big(value: impl ToString) -> BigUint {
    value.to_string().parse().expect("a decimal integer")
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
