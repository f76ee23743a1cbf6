//! [`Dist`]: a next-token distribution that is exact by construction.
//!
//! A distribution is a vector of **integer weights** `w_i` with total `W = Σ w_i`,
//! `0 < W ≤ 2^62`; the probability of token i *is* the rational `w_i / W`. Integer addition is
//! associative, so sums depend neither on order nor on threads; comparison, residual and draws are
//! exact; and the whole exactness argument can be enumerated with rationals and compared with `==`.
//!
//! | operation | formula | source |
//! |---|---|---|
//! | [`acceptance`] | `min(1, p_x·W_q / (q_x·W_p))` | Leviathan et al. 2211.17192, §2.3; Chen et al. 2302.01318, alg. 2 |
//! | [`residual`] | `r_i ∝ max(0, p_i·W_q − q_i·W_p)` | the same |
//! | [`overlap`] | `Σ min(p_i·W_q, q_i·W_p) / (W_p·W_q)` = 1 − TV | 2211.17192, corollary 3.6 |
//!
//! Products are at most 2^124 and stay in `u128`.

use ruint::aliases::U256;

use crate::{
    Token,
    excess::{BLOCK, Excess},
    law::Law,
    ln::rough,
    vector::{Loop, widest},
};

/// The largest total of a [`Dist`].
pub const MAX_TOTAL: u64 = 1 << 62;

/// The most ids a vocabulary may have: generous, and small enough that no sum here can overflow.
pub const MAX_VOCAB: usize = 1 << 24;

/// Why weights are no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DistError {
    /// No token has a positive weight.
    #[error("no token of {vocab} has a positive weight")]
    Empty {
        /// The vocabulary size.
        vocab: usize,
    },
    /// The weights sum to more than [`MAX_TOTAL`].
    #[error("the weights sum to {total}, more than 2^62")]
    TooHeavy {
        /// The sum.
        total: u128,
    },
    /// The vocabulary is larger than [`MAX_VOCAB`].
    #[error("a vocabulary of {vocab} ids is larger than 2^24")]
    TooWide {
        /// The vocabulary size.
        vocab: usize,
    },
    /// Sparse ids must ascend strictly and lie below the vocabulary size.
    #[error("sparse id {id} is out of order, or outside a vocabulary of {vocab} ids")]
    BadId {
        /// The first id that is wrong.
        id: u32,
        /// The vocabulary size.
        vocab: usize,
    },
}

/// A next-token distribution over the ids `0..vocab`: see the [module docs](self).
///
/// Dense (a weight for each id) or sparse (the ids that kept a weight), with one meaning: equality,
/// laws and *draws* do not depend on the form.
///
/// ```
/// use draftproof_decode::{Dist, Token};
/// let p = Dist::dense(vec![1, 2, 3, 4])?;
/// assert_eq!((p.weight(Token(3)), p.total()), (4, 10));
/// assert_eq!(p, Dist::sparse(4, vec![0, 1, 2, 3], vec![1, 2, 3, 4])?);
/// # Ok::<(), draftproof_decode::dist::DistError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dist {
    vocab: usize,
    form: Form,
    total: u64,
}

#[derive(Clone, Debug)]
enum Form {
    Dense(Vec<u64>),
    Sparse { ids: Vec<u32>, weights: Vec<u64> },
}

impl Dist {
    /// The distribution with weight `weights[i]` for token i.
    ///
    /// # Errors
    /// If no weight is positive, or their sum or number is too large.
    pub fn dense(weights: Vec<u64>) -> Result<Self, DistError> {
        let vocab = weights.len();
        let total = checked_total(vocab, &weights)?;
        Ok(Self { vocab, form: Form::Dense(weights), total })
    }

    /// As [`dense`](Self::dense), for weights whose sum is known.
    pub(crate) fn dense_of(weights: Vec<u64>, total: u64) -> Self {
        debug_assert_eq!(checked_total(weights.len(), &weights), Ok(total));
        Self { vocab: weights.len(), form: Form::Dense(weights), total }
    }

    /// The distribution over `0..vocab` with weight `weights[j]` for token `ids[j]`, 0 for others.
    ///
    /// # Errors
    /// As [`dense`](Self::dense), and if the ids do not ascend strictly or leave the vocabulary.
    ///
    /// # Panics
    /// If `ids` and `weights` differ in length.
    pub fn sparse(vocab: usize, ids: Vec<u32>, weights: Vec<u64>) -> Result<Self, DistError> {
        assert_eq!(ids.len(), weights.len(), "one weight an id");
        let misplaced = ids.windows(2).find(|pair| pair[0] >= pair[1]).map(|pair| pair[1]);
        let outside = ids.last().copied().filter(|&id| id as usize >= vocab);
        if let Some(id) = misplaced.or(outside) {
            return Err(DistError::BadId { id, vocab });
        }
        let total = checked_total(vocab, &weights)?;
        Ok(Self { vocab, form: Form::Sparse { ids, weights }, total })
    }

    /// All mass on `token`: the law of a certain choice.
    ///
    /// # Errors
    /// If the token is outside the vocabulary.
    pub fn one_hot(vocab: usize, token: Token) -> Result<Self, DistError> {
        Self::sparse(vocab, vec![token.0], vec![1])
    }

    /// The same total dealt out anew among tokens of the support: `weights[j]` for `ids[j]`, which
    /// ascend. The form stays.
    pub(crate) fn reweighted(&self, ids: Vec<u32>, weights: Vec<u64>) -> Self {
        debug_assert_eq!(weights.iter().sum::<u64>(), self.total, "weight was lost or made");
        let form = match &self.form {
            Form::Dense(old) => {
                let mut dense = vec![0; old.len()];
                for (id, weight) in ids.into_iter().zip(weights) {
                    dense[id as usize] = weight;
                }
                Form::Dense(dense)
            }
            Form::Sparse { .. } => {
                let kept = ids.into_iter().zip(weights).filter(|&(_, weight)| weight > 0);
                let (ids, weights) = kept.unzip();
                Form::Sparse { ids, weights }
            }
        };
        Self { vocab: self.vocab, form, total: self.total }
    }

    /// The number of ids the distribution is over.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// `W`, the sum of all weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The weight of `token`; 0 outside the vocabulary.
    #[must_use]
    pub fn weight(&self, token: Token) -> u64 {
        match &self.form {
            Form::Dense(weights) => weights.get(token.index()).copied().unwrap_or(0),
            Form::Sparse { ids, weights } => ids.binary_search(&token.0).map_or(0, |j| weights[j]),
        }
    }

    /// The probability of `token`, rounded to `f64`.
    #[must_use]
    pub fn probability(&self, token: Token) -> f64 {
        self.weight(token) as f64 / self.total as f64
    }

    /// The tokens with a positive weight and their weights, by ascending id.
    pub fn support(&self) -> impl Iterator<Item = (Token, u64)> + '_ {
        let (ids, weights): (&[u32], &[u64]) = match &self.form {
            Form::Dense(weights) => (&[], weights),
            Form::Sparse { ids, weights } => (ids, weights),
        };
        let dense = ids.is_empty();
        weights
            .iter()
            .enumerate()
            .filter(|&(_, &weight)| weight > 0)
            .map(move |(j, &weight)| (if dense { Token::at(j) } else { Token(ids[j]) }, weight))
    }

    /// The number of tokens with a positive weight.
    #[must_use]
    pub fn support_len(&self) -> usize {
        widest(Positive(self.weights()))
    }

    /// The largest weight.
    #[must_use]
    pub fn largest(&self) -> u64 {
        widest(Largest(self.weights()))
    }

    /// The only token with a positive weight, if there is just one.
    #[must_use]
    pub fn only(&self) -> Option<Token> {
        let mut support = self.support();
        let (token, weight) = support.next()?;
        (weight == self.total).then_some(token)
    }

    /// The first token, in id order, whose cumulative weight exceeds `u`.
    ///
    /// # Panics
    /// If `u` is not below the total.
    #[must_use]
    pub fn at(&self, u: u64) -> Token {
        assert!(u < self.total, "a draw needs u < W, not {u} of {}", self.total);
        let place = widest(At { weights: self.weights(), u });
        self.id(place.expect("the weights sum to the total, which exceeds u"))
    }

    /// The entropy in bits, `Σ −p log2 p`, to nine digits (a figure for people; no decision uses it).
    #[must_use]
    pub fn entropy_bits(&self) -> f64 {
        // H = log2 W − Σ w·log2 w / W; a weight of 0 adds nothing.
        if self.only().is_some() {
            return 0.0;
        }
        let sum = widest(WeightedLogarithms(self.weights()));
        let total = self.total as f64;
        ((rough(total) - sum / total) * std::f64::consts::LOG2_E).max(0.0)
    }

    /// The weights of all ids, where they are kept so.
    pub(crate) fn row(&self) -> Option<&[u64]> {
        match &self.form {
            Form::Dense(weights) => Some(weights),
            Form::Sparse { .. } => None,
        }
    }

    fn weights(&self) -> &[u64] {
        match &self.form {
            Form::Dense(weights) | Form::Sparse { weights, .. } => weights,
        }
    }

    fn id(&self, j: usize) -> Token {
        match &self.form {
            Form::Dense(_) => Token::at(j),
            Form::Sparse { ids, .. } => Token(ids[j]),
        }
    }
}

/// Equal weights for equal ids: the form does not matter, the scale of the weights does.
impl PartialEq for Dist {
    fn eq(&self, other: &Self) -> bool {
        self.vocab == other.vocab && self.total == other.total && self.support().eq(other.support())
    }
}

impl Eq for Dist {}

impl Law for Dist {
    fn total(&self) -> U256 {
        U256::from(self.total)
    }

    fn at(&self, u: U256) -> Token {
        self.at(u.to::<u64>())
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        self.support().for_each(|(token, weight)| each(token, U256::from(weight)));
    }

    fn only(&self) -> Option<Token> {
        self.only()
    }
}

fn checked_total(vocab: usize, weights: &[u64]) -> Result<u64, DistError> {
    if vocab > MAX_VOCAB {
        return Err(DistError::TooWide { vocab });
    }
    let (high, low) = widest(Halves(weights));
    let total = (u128::from(high) << 32) + u128::from(low);
    match u64::try_from(total) {
        Ok(0) => Err(DistError::Empty { vocab }),
        Ok(total) if total <= MAX_TOTAL => Ok(total),
        _ => Err(DistError::TooHeavy { total }),
    }
}

/// The sums of the upper and of the lower halves, which no row of at most 2^24 can overflow.
struct Halves<'a>(&'a [u64]);

impl Loop for Halves<'_> {
    type Output = (u64, u64);

    #[inline(always)]
    fn run(self) -> (u64, u64) {
        let (mut high, mut low) = (0u64, 0u64);
        // Unchecked sums vectorise.
        for &weight in self.0 {
            high = high.wrapping_add(weight >> 32);
            low = low.wrapping_add(weight & u64::from(u32::MAX));
        }
        (high, low)
    }
}

/// A probability as an exact fraction; it may exceed 1, which means certainty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// The numerator.
    pub numerator: U256,
    /// The denominator, not 0.
    pub denominator: U256,
}

impl Fraction {
    /// `numerator / denominator`.
    ///
    /// # Panics
    /// If the denominator is 0.
    #[must_use]
    pub fn new(numerator: u128, denominator: u128) -> Self {
        assert!(denominator > 0, "a probability has a positive denominator");
        Self { numerator: U256::from(numerator), denominator: U256::from(denominator) }
    }

    /// The nearest `f64`, near enough for a figure shown to people.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }
}

/// The probability with which token `x`, drawn from `q`, is accepted under target `p`:
/// `min(1, p_x·W_q / (q_x·W_p))`, given as that fraction before the minimum.
///
/// # Panics
/// If `q_x = 0`: such a token cannot have been drawn from `q`.
#[must_use]
pub fn acceptance(p: &Dist, q: &Dist, x: Token) -> Fraction {
    let a = u128::from(p.weight(x)) * u128::from(q.total);
    let b = u128::from(q.weight(x)) * u128::from(p.total);
    assert!(b > 0, "token {x} has no weight in the law that it was drawn from");
    Fraction::new(a, b)
}

/// The law from which the token is drawn after a rejection: `r_i ∝ max(0, p_i·W_q − q_i·W_p)`.
///
/// `None` if that is 0 everywhere, which cannot follow a rejection: all `r_i = 0` means
/// `p_i·W_q ≤ q_i·W_p` for each i; both sides sum to `W_p·W_q`, so they are equal for each i, and
/// then every token that `q` can draw is accepted with certainty.
#[must_use]
pub fn residual<'a>(p: &'a Dist, q: &'a Dist) -> Option<Residual<'a>> {
    let totals = Totals { p: p.total, q: q.total };
    let blocks = |p: &[u64], q: &[u64]| widest(Blocks { p, q, totals });
    let excess = Excess::new(p, q, totals.weight(), blocks);
    (!excess.total().is_zero()).then_some(Residual { excess, totals })
}

/// `Σ min(p_i, q_i)` as an exact fraction: the probability that a token drawn from `q` is accepted,
/// and 1 minus the total variation distance.
#[must_use]
pub fn overlap(p: &Dist, q: &Dist) -> Fraction {
    let (p_total, q_total) = (u128::from(p.total), u128::from(q.total));
    let mut q_weights = Cursor::new(q);
    let shared = p
        .support()
        .map(|(token, p_weight)| {
            let b = u128::from(q_weights.weight(token)) * p_total;
            (u128::from(p_weight) * q_total).min(b)
        })
        .sum();
    Fraction::new(shared, p_total * q_total)
}

/// [`overlap`] in `f64`: a figure for people, at a fraction of the cost.
#[must_use]
pub fn overlap_estimate(p: &Dist, q: &Dist) -> f64 {
    let units = [1.0 / p.total as f64, 1.0 / q.total as f64];
    match (&p.form, &q.form) {
        (Form::Dense(p), Form::Dense(q)) => widest(Shared { p, q, units }),
        _ => {
            let [p_unit, q_unit] = units;
            let shared = |p: u64, q: u64| (p as f64 * p_unit).min(q as f64 * q_unit);
            let mut q_weights = Cursor::new(q);
            p.support().map(|(token, weight)| shared(weight, q_weights.weight(token))).sum()
        }
    }
}

/// The first place whose cumulative weight exceeds `u`: the sums of blocks, then the one that holds it.
struct At<'a> {
    weights: &'a [u64],
    u: u64,
}

impl Loop for At<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        let Self { weights, mut u } = self;
        for (b, block) in weights.chunks(BLOCK).enumerate() {
            let sum = sum(block);
            if u >= sum {
                u -= sum;
                continue;
            }
            for (j, &weight) in block.iter().enumerate() {
                if u < weight {
                    return Some(b * BLOCK + j);
                }
                u -= weight;
            }
        }
        None
    }
}

/// How many weights are positive.
struct Positive<'a>(&'a [u64]);

impl Loop for Positive<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let count = self.0.iter().fold(0u64, |count, &w| count.wrapping_add(u64::from(w > 0)));
        count as usize
    }
}

/// The largest weight, 0 of none.
struct Largest<'a>(&'a [u64]);

impl Loop for Largest<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let mut lanes = [0u64; 8];
        let (blocks, rest) = self.0.as_chunks::<8>();
        for block in blocks {
            for (lane, &weight) in lanes.iter_mut().zip(block) {
                *lane = if weight > *lane { weight } else { *lane };
            }
        }
        lanes.iter().chain(rest).copied().max().unwrap_or(0)
    }
}

/// `Σ w·ln w`, in lanes, so that additions do not wait for each other.
struct WeightedLogarithms<'a>(&'a [u64]);

impl Loop for WeightedLogarithms<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [0.0; 8];
        let (blocks, rest) = self.0.as_chunks::<8>();
        let term = |weight: u64| {
            let w = weight as f64;
            w * rough(if weight == 0 { 1.0 } else { w })
        };
        for block in blocks {
            for (lane, &weight) in lanes.iter_mut().zip(block) {
                *lane += term(weight);
            }
        }
        for (lane, &weight) in lanes.iter_mut().zip(rest) {
            *lane += term(weight);
        }
        lanes.iter().sum()
    }
}

/// `Σ min(p·u_p, q·u_q)`, in lanes.
struct Shared<'a> {
    p: &'a [u64],
    q: &'a [u64],
    units: [f64; 2],
}

impl Loop for Shared<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let ([p_unit, q_unit], mut lanes) = (self.units, [0.0; 8]);
        let shared = |p: u64, q: u64| {
            let (p, q) = (p as f64 * p_unit, q as f64 * q_unit);
            if p < q { p } else { q }
        };
        // Beyond the shorter row nothing is shared.
        let len = self.p.len().min(self.q.len());
        let (p, p_rest) = self.p[..len].as_chunks::<8>();
        let (q, q_rest) = self.q[..len].as_chunks::<8>();
        for (p, q) in p.iter().zip(q) {
            for i in 0..8 {
                lanes[i] += shared(p[i], q[i]);
            }
        }
        let rest: f64 = p_rest.iter().zip(q_rest).map(|(&p, &q)| shared(p, q)).sum();
        lanes.iter().sum::<f64>() + rest
    }
}

/// The total variation distance `½ Σ |p_i − q_i|` as an exact fraction.
#[must_use]
pub fn total_variation(p: &Dist, q: &Dist) -> Fraction {
    let overlap = overlap(p, q);
    Fraction {
        numerator: overlap.denominator - overlap.numerator,
        denominator: overlap.denominator,
    }
}

/// Weights of one distribution at ascending ids: a merge, not a search for each id.
pub(crate) struct Cursor<'a> {
    dist: &'a Dist,
    next: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(dist: &'a Dist) -> Self {
        Self { dist, next: 0 }
    }

    /// The weight of `token`, which is not below any asked for before.
    pub(crate) fn weight(&mut self, token: Token) -> u64 {
        match &self.dist.form {
            Form::Dense(weights) => weights.get(token.index()).copied().unwrap_or(0),
            Form::Sparse { ids, weights } => {
                while self.next < ids.len() && ids[self.next] < token.0 {
                    self.next += 1;
                }
                match ids.get(self.next) {
                    Some(&id) if id == token.0 => weights[self.next],
                    _ => 0,
                }
            }
        }
    }
}

/// What [`residual`] gives: wide weights by ascending id, total at most 2^124.
#[derive(Clone, Debug)]
pub struct Residual<'a> {
    excess: Excess<'a>,
    totals: Totals,
}

/// `W_p` and `W_q`.
#[derive(Clone, Copy, Debug)]
struct Totals {
    p: u64,
    q: u64,
}

impl Totals {
    /// `max(0, p·W_q − q·W_p)` of two weights, or of their sums over tokens where p exceeds q.
    #[inline(always)]
    fn excess(self, p: u64, q: u64) -> u128 {
        let a = u128::from(p) * u128::from(self.q);
        a.saturating_sub(u128::from(q) * u128::from(self.p))
    }

    fn weight(self) -> impl Fn(u64, u64) -> U256 {
        move |p, q| U256::from(self.excess(p, q))
    }
}

/// The excess of each block of two rows.
struct Blocks<'a> {
    p: &'a [u64],
    q: &'a [u64],
    totals: Totals,
}

impl Loop for Blocks<'_> {
    type Output = Vec<U256>;

    /// Where p exceeds q is found in `f64`, and the excess is that of two sums: two wide products a
    /// block. A block with weights too close for `f64` is computed token by token.
    #[inline(always)]
    fn run(self) -> Vec<U256> {
        // Far above the four roundings.
        const MARGIN: f64 = 1.0 + 1e-12;
        let Self { p, q, totals } = self;
        let [p_unit, q_unit] = [1.0 / totals.p as f64, 1.0 / totals.q as f64];
        let mut blocks = Vec::with_capacity(p.len().div_ceil(BLOCK));
        for (p, q) in p.chunks(BLOCK).zip(q.chunks(BLOCK)) {
            let (mut p_sum, mut q_sum, mut unclear) = (0u64, 0u64, 0u64);
            for (&p, &q) in p.iter().zip(q) {
                let (a, b) = (p as f64 * p_unit, q as f64 * q_unit);
                let (above, not) = (a > b * MARGIN, (a * MARGIN < b) | (p == 0));
                unclear |= u64::from(!above & !not);
                let mask = u64::from(above).wrapping_neg();
                // Parts of the totals, so they cannot wrap; unchecked sums vectorise.
                p_sum = p_sum.wrapping_add(p & mask);
                q_sum = q_sum.wrapping_add(q & mask);
            }
            blocks.push(U256::from(if unclear == 0 {
                totals.excess(p_sum, q_sum)
            } else {
                p.iter().zip(q).map(|(&p, &q)| totals.excess(p, q)).sum::<u128>()
            }));
        }
        blocks
    }
}

/// The sum of weights that are part of a total, so that it cannot overflow; unchecked sums vectorise.
#[inline(always)]
fn sum(weights: &[u64]) -> u64 {
    weights.iter().fold(0u64, |sum, &weight| sum.wrapping_add(weight))
}

/// Equal weights for equal ids.
impl PartialEq for Residual<'_> {
    fn eq(&self, other: &Self) -> bool {
        let weights = |residual: &Self| {
            let mut weights = Vec::new();
            residual.visit(&mut |token, weight| weights.push((token, weight)));
            weights
        };
        weights(self) == weights(other)
    }
}

impl Eq for Residual<'_> {}

impl Law for Residual<'_> {
    fn total(&self) -> U256 {
        self.excess.total()
    }

    fn at(&self, u: U256) -> Token {
        self.excess.at(u, self.totals.weight())
    }

    fn visit(&self, each: &mut dyn FnMut(Token, U256)) {
        self.excess.visit(self.totals.weight(), each);
    }

    fn only(&self) -> Option<Token> {
        self.excess.only(self.totals.weight())
    }
}
