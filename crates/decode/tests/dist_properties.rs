//! The laws of [`Dist`] that the proof of exactness stands on, for p and q of extreme weights.
//!
//! Each property is checked with `==` against big rationals computed from the raw weights, so no
//! tolerance can hide a wrong comparison, a forgotten total or an overflow: totals reach 2^62
//! exactly, and products 2^124. p and q come in the relations where mistakes live: independent,
//! equal up to scale, one unit apart, disjoint, one-hot. A failure prints the shrunk weights; there
//! is no false alarm.

use draftproof_decode::{
    Dist, Token,
    dist::{
        DistError, Fraction, MAX_TOTAL, MAX_VOCAB, acceptance, overlap, residual, total_variation,
    },
    law::Law,
    noise::{ChaCha, Lane, Noise, RoundNoise, Seed},
};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};
use proptest::{collection::vec, prelude::*, sample::Index};
use ruint::aliases::U256;

/// `n` weights of every magnitude, with a total from 1 to exactly 2^62.
fn weights(n: usize) -> impl Strategy<Value = Vec<u64>> {
    let share = MAX_TOTAL / n as u64;
    let weight = prop_oneof![
        3 => Just(0),
        2 => Just(1),
        2 => 0..10u64,
        2 => 0..=share,
        2 => share - 3..=share,
        1 => (0..62u32).prop_map(move |bits| share >> bits),
    ];
    (vec(weight, n), any::<Index>(), 0..3u8).prop_map(move |(mut weights, place, fill)| {
        let rest = MAX_TOTAL - weights.iter().sum::<u64>();
        weights[place.index(n)] += match fill {
            0 => rest.min(1),
            1 => rest,
            _ => rest / 3,
        };
        if weights.iter().all(|&weight| weight == 0) {
            weights[0] = 1;
        }
        weights
    })
}

/// A weight without regard for the total.
fn extreme_weight() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(MAX_TOTAL - 1), Just(MAX_TOTAL), Just(1 << 63), any::<u64>(),]
}

/// Ids that ascend, or do so but for one place: a repetition, or a step back.
fn nearly_ascending() -> impl Strategy<Value = Vec<u32>> {
    (vec(0..40u32, 2..12), any::<Index>(), 0..4u8).prop_map(|(mut ids, place, fault)| {
        ids.sort_unstable();
        ids.dedup();
        let place = place.index(ids.len());
        match fault {
            0 => ids.insert(place, ids[place]),
            1 => ids.swap(0, place),
            _ => {}
        }
        ids
    })
}

/// Weights of p and q in one of the relations named at the top.
fn pairs(sizes: std::ops::Range<usize>) -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    let parts = |n| (weights(n), weights(n), any::<Index>(), 0..7u8);
    sizes.prop_flat_map(parts).prop_map(|(p, q, place, kind)| {
        let place = place.index(p.len());
        let quarter = |weights: &[u64]| {
            let mut weights: Vec<u64> = weights.iter().map(|weight| weight / 4).collect();
            weights[place] += 1;
            weights
        };
        match kind {
            0..=2 => (p, q),
            3 => {
                let p = quarter(&p);
                let tripled = p.iter().map(|weight| weight * 3).collect();
                (p, tripled)
            }
            4 => {
                let mut nudged = quarter(&p);
                nudged[place] += 1;
                (quarter(&p), nudged)
            }
            5 => disjoint(&p, &q),
            _ => {
                let weight = q[place].max(1);
                (p, one_hot(q.len(), place, weight))
            }
        }
    })
}

/// `2^log` pseudo-random weights on the ids of `holds`, 0 elsewhere, with a total of exactly 2^62.
fn full(log: u32, holds: std::ops::Range<usize>, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut weights = vec![0; 1 << log];
    for weight in &mut weights[holds.clone()] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *weight = state >> (2 + log);
    }
    weights[holds.start] += MAX_TOTAL - weights.iter().sum::<u64>();
    weights
}

/// p on the even ids and q on the odd ones, neither empty.
fn disjoint(p: &[u64], q: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let part = |weights: &[u64], parity| {
        let mut part: Vec<u64> =
            (0..weights.len()).map(|i| if i % 2 == parity { weights[i] } else { 0 }).collect();
        if part.iter().all(|&weight| weight == 0) {
            part[parity] = 1;
        }
        part
    };
    (part(p, 0), part(q, 1))
}

fn one_hot(n: usize, place: usize, weight: u64) -> Vec<u64> {
    let mut weights = vec![0; n];
    weights[place] = weight;
    weights
}

fn dense(weights: &[u64]) -> Dist {
    Dist::dense(weights.to_vec()).expect("a law")
}

/// The sparse form, with or without entries of weight 0.
fn sparse(weights: &[u64], keep_zeros: bool) -> Dist {
    let (ids, kept): (Vec<u32>, Vec<u64>) = (0..)
        .zip(weights.iter().copied())
        .filter(|&(id, weight)| weight > 0 || (keep_zeros && id % 3 == 0))
        .unzip();
    Dist::sparse(weights.len(), ids, kept).expect("a law")
}

fn forms(weights: &[u64]) -> [Dist; 3] {
    [dense(weights), sparse(weights, false), sparse(weights, true)]
}

fn integer(value: U256) -> BigInt {
    BigInt::from_bytes_le(num_bigint::Sign::Plus, &value.to_le_bytes::<32>())
}

fn rational(fraction: Fraction) -> BigRational {
    BigRational::new(integer(fraction.numerator), integer(fraction.denominator))
}

/// The law of raw weights, as rationals.
fn reference(weights: &[u64]) -> Vec<BigRational> {
    let total: BigInt = weights.iter().copied().map(BigInt::from).sum();
    let ratio = |&weight: &u64| BigRational::new(weight.into(), total.clone());
    weights.iter().map(ratio).collect()
}

/// A [`Law`] as rationals by id.
fn visited(law: &dyn Law, vocab: usize) -> Vec<BigRational> {
    let mut weights = vec![BigRational::zero(); vocab];
    let total = integer(law.total());
    law.visit(&mut |token, weight| {
        weights[token.index()] = BigRational::new(integer(weight), total.clone());
    });
    weights
}

fn sum_of_minima(p: &[BigRational], q: &[BigRational]) -> BigRational {
    p.iter().zip(q).map(|(p, q)| p.min(q).clone()).sum()
}

/// Every boundary of a law: for each token its first and last `u`, with the token.
fn boundaries(law: &dyn Law) -> Vec<(U256, Token)> {
    let mut below = U256::ZERO;
    let mut boundaries = Vec::new();
    law.visit(&mut |token, weight| {
        boundaries.push((below, token));
        below += weight;
        boundaries.push((below - U256::from(1), token));
    });
    assert_eq!(below, law.total());
    boundaries
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// `min(p, q) + (1 − α)·residual = p`: the theorem, token by token.
    #[test]
    fn acceptance_and_residual_make_up_p((p, q) in pairs(4..200)) {
        let (p_law, q_law) = (reference(&p), reference(&q));
        let alpha = sum_of_minima(&p_law, &q_law);
        prop_assert_eq!(rational(overlap(&dense(&p), &dense(&q))), alpha.clone());
        let (p_form, q_form) = (dense(&p), dense(&q));
        let Some(residual) = residual(&p_form, &q_form) else {
            prop_assert_eq!(&p_law, &q_law);
            prop_assert!(alpha.is_one());
            return Ok(());
        };
        let residual = visited(&residual, p.len());
        for i in 0..p.len() {
            let emitted = p_law[i].clone().min(q_law[i].clone())
                + (BigRational::one() - &alpha) * &residual[i];
            prop_assert_eq!(&emitted, &p_law[i], "token {}", i);
        }
    }

    /// `q_x · min(1, acceptance(x)) = min(p_x, q_x)`; summed over x, the overlap.
    #[test]
    fn acceptance_times_q_is_the_overlap((p, q) in pairs(4..200)) {
        let (p_law, q_law) = (reference(&p), reference(&q));
        let (p, q) = (dense(&p), dense(&q));
        let mut sum = BigRational::zero();
        for (x, _) in q.support() {
            let accept = rational(acceptance(&p, &q, x));
            prop_assert_eq!(&accept, &(&p_law[x.index()] / &q_law[x.index()]));
            let mass = &q_law[x.index()] * accept.min(BigRational::one());
            prop_assert_eq!(&mass, (&p_law[x.index()]).min(&q_law[x.index()]));
            sum += mass;
        }
        prop_assert_eq!(sum, rational(overlap(&p, &q)));
    }

    /// TV is `½ Σ |p − q|`, `1 −` the overlap, symmetric, and 0 for equal laws only.
    #[test]
    fn total_variation_is_half_the_distance((p, q) in pairs(4..200)) {
        let (p_law, q_law) = (reference(&p), reference(&q));
        let distance: BigRational = p_law
            .iter()
            .zip(&q_law)
            .map(|(p, q)| if p > q { p - q } else { q - p })
            .sum();
        let (p, q) = (dense(&p), dense(&q));
        let tv = rational(total_variation(&p, &q));
        prop_assert_eq!(&tv, &(distance / BigInt::from(2)));
        prop_assert_eq!(&tv, &rational(total_variation(&q, &p)));
        prop_assert!((&tv + rational(overlap(&p, &q))).is_one());
        prop_assert_eq!(tv.is_zero(), p_law == q_law);
    }

    /// There is a residual unless the laws are the same rationals; it lives where p exceeds q.
    #[test]
    fn residual_is_none_for_equal_laws_only((p, q) in pairs(4..200)) {
        let (p_law, q_law) = (reference(&p), reference(&q));
        let (p, q) = (dense(&p), dense(&q));
        let found = residual(&p, &q);
        prop_assert_eq!(found.is_none(), p_law == q_law);
        prop_assert_eq!(residual(&q, &p).is_none(), p_law == q_law);
        prop_assert!(residual(&p, &p).is_none());
        let Some(residual) = found else { return Ok(()) };
        let mut ids = Vec::new();
        let mut sum = U256::ZERO;
        residual.visit(&mut |token, weight| {
            assert!(weight > U256::ZERO);
            ids.push(token.0);
            sum += weight;
        });
        prop_assert_eq!(sum, residual.total());
        let above: Vec<u32> = (0..)
            .zip(p_law.iter().zip(&q_law))
            .filter(|(_, (p, q))| p > q)
            .map(|(i, _)| i)
            .collect();
        prop_assert_eq!(&ids, &above);
        prop_assert!(ids.iter().all(|&id| p.weight(Token(id)) > 0));
        prop_assert_eq!(residual.only(), (ids.len() == 1).then(|| Token(ids[0])));
        for (u, token) in boundaries(&residual) {
            prop_assert_eq!(residual.at(u), token);
        }
    }

    /// Dense and sparse are one law: weights, equality, overlap, residual and acceptance agree.
    #[test]
    fn the_form_changes_no_law((p, q) in pairs(4..200)) {
        let (plain_p, plain_q) = (dense(&p), dense(&q));
        for p_form in forms(&p) {
            prop_assert_eq!(&p_form, &plain_p);
            prop_assert_eq!(visited(&p_form, p.len()), reference(&p));
            for i in 0..p.len() + 2 {
                let expected = p.get(i).copied().unwrap_or(0);
                prop_assert_eq!(p_form.weight(Token::at(i)), expected);
            }
            for q_form in forms(&q) {
                prop_assert_eq!(p_form == q_form, p == q);
                prop_assert_eq!(residual(&p_form, &q_form), residual(&plain_p, &plain_q));
                prop_assert_eq!(overlap(&p_form, &q_form), overlap(&plain_p, &plain_q));
                for (x, _) in plain_q.support() {
                    let expected = acceptance(&plain_p, &plain_q, x);
                    prop_assert_eq!(acceptance(&p_form, &q_form, x), expected);
                }
            }
        }
    }

    /// Dense and sparse *draw* the same: at both ends of each token's range, and through ChaCha.
    /// Up to 300 tokens, so that the search crosses the borders of its blocks.
    #[test]
    fn the_form_changes_no_draw(p in (1..300usize).prop_flat_map(weights), seed in any::<u64>()) {
        let forms = forms(&p);
        let expected = boundaries(&forms[0]);
        prop_assert_eq!(expected.len(), 2 * p.iter().filter(|&&weight| weight > 0).count());
        for (u, token) in expected {
            for form in &forms {
                prop_assert_eq!(Law::at(form, u), token);
                prop_assert_eq!(form.at(u.to::<u64>()), token);
            }
        }
        let seed = Seed { seed, sequence: 0 };
        let round = RoundNoise { seed, round_start: 5 };
        for offset in 0..8 {
            let key = round.key(offset, Lane::Bonus);
            let [a, b, c] = [0, 1, 2].map(|f| <dyn Noise>::draw(&mut ChaCha, key, &forms[f]));
            prop_assert!(a == b && b == c);
            // By the definition: the first whose cumulative weight exceeds u.
            let u = ChaCha::uniform(key, Law::total(&forms[0])).to::<u64>();
            let mut cumulative = 0;
            let first = p.iter().position(|weight| {
                cumulative += weight;
                cumulative > u
            });
            prop_assert_eq!(Some(a), first.map(Token::at));
        }
    }

    /// `total`, `support`, `support_len`, `only`, `probability` and the bounds of the entropy.
    #[test]
    fn figures_of_one_law(p in (1..64usize).prop_flat_map(weights)) {
        let support: Vec<u32> = (0..).zip(&p).filter(|&(_, &w)| w > 0).map(|(i, _)| i).collect();
        for form in forms(&p) {
            prop_assert_eq!(form.vocab(), p.len());
            prop_assert_eq!(form.total(), p.iter().sum::<u64>());
            prop_assert!(form.support().map(|(token, _)| token.0).eq(support.iter().copied()));
            prop_assert_eq!(form.support_len(), support.len());
            let only = (support.len() == 1).then(|| Token(support[0]));
            prop_assert_eq!(form.only(), only);
            prop_assert_eq!(Law::only(&form), only);
            let largest = p.iter().copied().max().expect("a weight") as f64 / form.total() as f64;
            let bits = form.entropy_bits();
            // Between min-entropy and the logarithm of the support.
            prop_assert!(bits >= -largest.log2() - 1e-9, "{}", bits);
            prop_assert!(bits <= (support.len() as f64).log2() + 1e-9, "{}", bits);
            prop_assert!(bits >= 0.0 && (only.is_none() || bits == 0.0));
        }
    }

    /// A disjoint draft is never accepted, and its residual is p.
    #[test]
    fn disjoint_drafts_leave_p((p, q) in pairs(4..200)) {
        let (p, q) = disjoint(&p, &q);
        let p_law = reference(&p);
        let vocab = p.len();
        let (p, q) = (dense(&p), dense(&q));
        prop_assert!(rational(overlap(&p, &q)).is_zero());
        prop_assert!(q.support().all(|(x, _)| acceptance(&p, &q, x).numerator.is_zero()));
        let residual = residual(&p, &q).expect("disjoint laws differ");
        prop_assert_eq!(visited(&residual, vocab), p_law);
    }

    /// The rule of a certain draft x: accepted with probability `p_x / W`, else p without x.
    #[test]
    fn certain_drafts_are_kept_with_their_probability(
        p in (4..64usize).prop_flat_map(weights),
        place in any::<Index>(),
        scale in 1..=MAX_TOTAL,
    ) {
        let x = place.index(p.len());
        let p_law = reference(&p);
        for q in [
            Dist::one_hot(p.len(), Token::at(x)).expect("an id"),
            dense(&one_hot(p.len(), x, scale)),
        ] {
            let accept = rational(acceptance(&dense(&p), &q, Token::at(x)));
            prop_assert_eq!(&accept, &p_law[x]);
            let mut without = p.clone();
            without[x] = 0;
            match residual(&dense(&p), &q) {
                Some(residual) => prop_assert_eq!(visited(&residual, p.len()), reference(&without)),
                None => prop_assert!(without.iter().all(|&weight| weight == 0)),
            }
        }
    }

    /// Equality is of weights: neither the form nor what stands beyond the ids matters, scale does.
    #[test]
    fn equality_sees_weights_and_vocabulary(p in (1..40usize).prop_flat_map(weights)) {
        let quarter: Vec<u64> = p.iter().map(|weight| weight / 4 + 1).collect();
        let doubled: Vec<u64> = quarter.iter().map(|weight| weight * 2).collect();
        let mut wider = quarter.clone();
        wider.push(0);
        prop_assert_ne!(dense(&quarter), dense(&doubled));
        prop_assert_ne!(dense(&quarter), dense(&wider));
        prop_assert_ne!(sparse(&quarter, false), sparse(&wider, false));
    }

    /// Sparse ids that do not ascend strictly, or leave the vocabulary, are refused by name.
    #[test]
    fn sparse_ids_must_ascend(ids in nearly_ascending(), vocab in 1..40usize) {
        let inside = |id: u32| (id as usize) < vocab;
        let ascend = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let built = Dist::sparse(vocab, ids.clone(), vec![1; ids.len()]);
        if ascend && ids.iter().all(|&id| inside(id)) {
            let dist = built.expect("good ids");
            prop_assert!(dist.support().map(|(token, _)| token.0).eq(ids));
        } else if let Err(DistError::BadId { id, vocab: named }) = built {
            let bad = !inside(id) || (1..ids.len()).any(|j| ids[j] == id && ids[j - 1] >= id);
            prop_assert!(bad && named == vocab, "{} in {:?}", id, ids);
        } else {
            prop_assert!(false, "{:?} of {}: {:?}", ids, vocab, built);
        }
    }

    /// The total decides, also where a sum of `u64` would wrap into the allowed range.
    #[test]
    fn the_sum_decides_even_where_u64_wraps(weights in vec(extreme_weight(), 0..9)) {
        let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        let vocab = weights.len();
        let ids = (0..).take(vocab).collect();
        let expected = match sum {
            0 => Err(DistError::Empty { vocab }),
            total if total > u128::from(MAX_TOTAL) => Err(DistError::TooHeavy { total }),
            total => Ok(total),
        };
        let total = |dist: Dist| u128::from(dist.total());
        prop_assert_eq!(Dist::sparse(vocab, ids, weights.clone()).map(total), expected.clone());
        prop_assert_eq!(Dist::dense(weights).map(total), expected);
    }
}

/// Up to 2^20 ids with totals of exactly 2^62: products of exactly 2^124, and no overflow.
#[test]
fn wide_laws_do_not_overflow() {
    for log in [14, 17, 20] {
        let half = 1 << (log - 1);
        let (all, last) = (0..2 * half, 2 * half - 1..2 * half);
        for (p, q) in [
            (full(log, all.clone(), 1), full(log, all.clone(), 2)),
            (full(log, 0..half, 3), full(log, half..2 * half, 4)),
            (full(log, all, 5), full(log, last, 6)),
        ] {
            check_wide(&p, &q);
        }
    }
}

fn check_wide(p: &[u64], q: &[u64]) {
    let whole = BigInt::from(1) << 124u32;
    let total = BigInt::from(MAX_TOTAL);
    let minima = p.iter().zip(q).map(|(p, q)| BigInt::from(*p.min(q)));
    let minima = minima.sum::<BigInt>() * total;
    let (p, q) = (dense(p), sparse(q, false));
    let shared = overlap(&p, &q);
    assert_eq!(integer(shared.numerator), minima);
    assert_eq!(integer(shared.denominator), whole);
    let residual = residual(&p, &q).expect("these laws differ");
    assert_eq!(integer(residual.total()), whole - minima);
    for law in [&residual as &dyn Law, &p, &q] {
        let mut last = None;
        law.visit(&mut |token, _| last = Some(token));
        assert_eq!(Some(law.at(law.total() - U256::from(1))), last);
    }
}

#[test]
fn vocabularies_have_a_limit() {
    let wide = MAX_VOCAB + 1;
    let refusal = Err(DistError::TooWide { vocab: wide });
    assert_eq!(Dist::dense(vec![1; wide]), refusal);
    assert_eq!(Dist::sparse(wide, vec![3], vec![1]), refusal);
    assert!(Dist::sparse(MAX_VOCAB, vec![3], vec![1]).is_ok());
    assert_eq!(Dist::one_hot(7, Token(7)), Err(DistError::BadId { id: 7, vocab: 7 }));
    assert_eq!(Dist::dense(vec![]), Err(DistError::Empty { vocab: 0 }));
}

#[test]
#[should_panic(expected = "a draw needs u < W, not 10 of 10")]
fn drawing_at_the_total_is_a_bug() {
    let _ = dense(&[1, 2, 3, 4]).at(10);
}

#[test]
#[should_panic(expected = "a draw needs u < W, not 40 of 40")]
fn drawing_at_the_residuals_total_is_a_bug() {
    let (p, q) = (dense(&[1, 2, 3, 4]), dense(&[4, 3, 2, 1]));
    let residual = residual(&p, &q).expect("they differ");
    assert_eq!(residual.at(U256::from(39)), Token(3));
    let _ = residual.at(U256::from(40));
}

#[test]
#[should_panic(expected = "no weight in the law that it was drawn from")]
fn a_token_that_q_cannot_draw_is_a_bug() {
    let _ = acceptance(&dense(&[1, 1]), &dense(&[0, 1]), Token(0));
}
