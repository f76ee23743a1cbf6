//! Pinned values, the law on average over keys, and an oracle that draws the tournament literally.

use std::collections::BTreeMap;

use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::*;

fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

/// The values are those of an independent implementation in Python of the reference's hash.
#[test]
fn value_stability() {
    let key = Key::new(vec![654, 400, 836, 123]);
    let scheme = Scheme { depth: 4, ..Scheme::default() };
    let values = Hashed::new(&scheme, &key);
    assert_eq!(g_values::start(key.layers()), 8_697_477_082_750_937_784);
    let context = tokens(&[1, 2, 3, 4]);
    assert_eq!(values.context_hash(&context), 5_791_741_045_803_848_366);
    let bits = |token| values.bits(&context, Token(token));
    // Least significant bit first: 1,1,0,0; 1,1,1,0; 1,1,1,0.
    assert_eq!([bits(5), bits(6), bits(7)], [0b0011, 0b0111, 0b0111]);
}

#[test]
fn the_sampling_table_is_torchs() {
    let table = g_values::sampling_table(1 << 16, 0);
    assert_eq!(table.iter().map(|&bit| u32::from(bit)).sum::<u32>(), 32_743);
    assert_eq!(table[..16], [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0]);
}

/// Bits from a table: of token x after a context, `bits[context][x]`, one context token.
#[derive(Debug)]
struct Tabled {
    depth: usize,
    bits: Vec<Vec<u64>>,
}

impl GValues for Tabled {
    fn depth(&self) -> usize {
        self.depth
    }

    fn fill(&self, context: &[Token], ids: &[u32], bits: &mut [u64]) {
        let row = &self.bits[context[0].index() % self.bits.len()];
        bits.iter_mut().zip(ids).for_each(|(bits, &id)| *bits = row[id as usize]);
    }
}

/// Every assignment of `depth` bits to each of `vocab` tokens in each of `contexts` contexts.
fn all_tables(contexts: usize, vocab: usize, depth: usize) -> impl Iterator<Item = Tabled> {
    let cell = move |table: u64, i: usize| table >> (i * depth) & ((1 << depth) - 1);
    (0..1u64 << (contexts * vocab * depth)).map(move |table| {
        let row = |c: usize| (0..vocab).map(|x| cell(table, c * vocab + x)).collect();
        Tabled { depth, bits: (0..contexts).map(row).collect() }
    })
}

fn marked(law: &Dist, values: &dyn GValues, leaves: usize) -> Vec<u64> {
    let marked = tournament::tournament(law, &[Token(0)], values, leaves);
    assert_eq!(marked.total(), law.total());
    (0..law.vocab()).map(|x| marked.weight(Token::at(x))).collect()
}

/// Over all bits, each token's mean weight is the weight that went in: exactly, at depth 2, for
/// weights of all sizes, dense and sparse. With three leaves it is not.
#[test]
fn two_leaves_keep_the_law_on_average_over_keys() {
    let laws = [
        Dist::dense(vec![5, 3, 2]).expect("a law"),
        Dist::dense(vec![1, 1, 1 << 61]).expect("a law"),
        Dist::dense(vec![(1 << 61) - 987, (1 << 60) + 7, (1 << 59) + 12_345]).expect("a law"),
        Dist::sparse(9, vec![2, 5, 8], vec![7, 1_000_003, 99]).expect("a law"),
        Dist::dense(vec![0, 17, 4]).expect("a law"),
    ];
    for law in &laws {
        for depth in 1..=2 {
            let (mut sums, mut tables, mut moved) = (vec![0u128; law.vocab()], 0, false);
            for values in all_tables(1, law.vocab().min(9), depth) {
                // Of a wide vocabulary only the support's bits matter: run through those alone.
                let idle = (0..law.vocab()).filter(|&x| law.weight(Token::at(x)) == 0);
                if idle.into_iter().any(|x| values.bits[0][x] != 0) {
                    continue;
                }
                let weights = marked(law, &values, 2);
                moved |= weights.iter().enumerate().any(|(x, &w)| w != law.weight(Token::at(x)));
                sums.iter_mut().zip(&weights).for_each(|(sum, &w)| *sum += u128::from(w));
                tables += 1;
            }
            assert!(moved, "depth {depth}: no table moved any weight of {law:?}");
            for (x, sum) in sums.into_iter().enumerate() {
                assert_eq!(sum, tables * u128::from(law.weight(Token::at(x))), "{law:?}, {x}");
            }
        }
    }
    let law = &laws[0];
    let mean = all_tables(1, 3, 1).map(|values| u128::from(marked(law, &values, 3)[0]));
    assert_ne!(mean.sum::<u128>(), 8 * 5, "three leaves are distortionary");
}

/// The law of the tournament drawn literally: `leaves^depth` tokens i.i.d. from p; in layer 0 groups
/// of `leaves` play, the winners play in layer 1, and so on; a match is won by a uniform choice among
/// those with the largest bit.
fn knock_out(p: &[BigRational], bits: &[u64], depth: usize, leaves: usize) -> Vec<BigRational> {
    let mut law = p.to_vec();
    for layer in 0..depth {
        let mut next = vec![BigRational::zero(); p.len()];
        // Every group of `leaves` tokens, with its probability.
        let mut groups = vec![(vec![], BigRational::one())];
        for _ in 0..leaves {
            groups = groups
                .into_iter()
                .flat_map(|(group, chance)| {
                    law.iter()
                        .enumerate()
                        .map(move |(x, p)| ([&group[..], &[x]].concat(), &chance * p))
                        .collect::<Vec<_>>()
                })
                .collect();
        }
        for (group, chance) in groups {
            let best = group.iter().map(|&x| bits[x] >> layer & 1).max().expect("a group");
            let winners: Vec<_> = group.iter().filter(|&&x| bits[x] >> layer & 1 == best).collect();
            for &&winner in &winners {
                next[winner] += &chance / BigRational::from_integer(winners.len().into());
            }
        }
        law = next;
    }
    law
}

/// The integer rule against the literal tournament, up to its own rounding: in each layer one unit
/// for the move and one for each of the two ends of a token's share.
#[test]
fn the_rule_is_the_literal_tournament() {
    let weights = [1u64 << 59, 3 << 57, 12_345_678_901_234_567];
    let law = Dist::dense(weights.to_vec()).expect("a law");
    let total = BigRational::from_integer(law.total().into());
    let p: Vec<_> = weights.iter().map(|&w| BigRational::from_integer(w.into()) / &total).collect();
    for leaves in 2..=3 {
        for depth in 1..=3 {
            let tolerance = BigRational::from_integer((8 * depth * leaves).into());
            let mut compared = 0;
            for values in all_tables(1, 3, depth).step_by(if depth == 3 { 7 } else { 1 }) {
                let exact = knock_out(&p, &values.bits[0], depth, leaves);
                for (weight, exact) in marked(&law, &values, leaves).into_iter().zip(exact) {
                    let error = BigRational::from_integer(weight.into()) - exact * &total;
                    assert!(error < tolerance && -error.clone() < tolerance, "{error}");
                    compared += 1;
                }
            }
            assert!(compared >= 24);
        }
    }
}

/// The floors with a reciprocal are those of division: the shares sum to the move, whatever the sizes.
#[test]
fn the_move_is_dealt_out_to_the_last_unit() {
    let mut state = 1u64;
    let mut next = |bits: u32| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 3) >> (61 - bits)
    };
    for round in 0..2_000 {
        let size = 1 + round % 56;
        let weights: Vec<u64> = (0..20).map(|_| next(size)).collect();
        let Ok(law) = Dist::dense(weights.clone()) else { continue };
        let values = Tabled { depth: 1, bits: vec![(0..20).map(|_| next(1)).collect()] };
        let sum = |bit| -> u128 {
            let of = weights.iter().zip(&values.bits[0]).filter(|(_, b)| **b == bit);
            of.map(|(&w, _)| u128::from(w)).sum()
        };
        let (zero, one, total) = (sum(0), sum(1), u128::from(law.total()));
        let moved = zero * one / total;
        let after = marked(&law, &values, 2);
        let mut cumulative = [0u128; 2];
        for (x, &w) in weights.iter().enumerate() {
            let bit = values.bits[0][x] as usize;
            let class = [zero, one][bit];
            if class == 0 || one == 0 || zero == 0 {
                assert_eq!(after[x], w);
                continue;
            }
            let before = moved * cumulative[bit] / class;
            cumulative[bit] += u128::from(w);
            let share = (moved * cumulative[bit] / class - before) as u64;
            assert_eq!(after[x], if bit == 1 { w + share } else { w - share });
        }
    }
}

type TextLaw = BTreeMap<Vec<Token>, BigRational>;

/// Rows of three tokens, by the last token.
type Rows = [[u64; 3]; 3];

/// The law of texts of `len` tokens when each law is marked so; the first token follows token 0.
fn text_law(rows: &Rows, len: usize, mark: &dyn Fn(&[Token], Dist) -> Dist) -> TextLaw {
    let mut open = vec![(vec![], BigRational::one())];
    for _ in 0..len {
        let mut longer = Vec::new();
        for (text, chance) in open {
            let last = text.last().map_or(0, |token: &Token| token.index());
            let law = mark(&text, Dist::dense(rows[last].to_vec()).expect("a law"));
            for (x, weight) in law.support() {
                let share = BigRational::new(weight.into(), law.total().into());
                longer.push(([&text[..], &[x]].concat(), &chance * share));
            }
        }
        open = longer;
    }
    open.into_iter().collect()
}

fn tabled(values: Tabled) -> Watermark {
    let scheme = Scheme { depth: values.depth, context_len: 1, ..Scheme::default() };
    let values = Arc::new(values);
    Watermark::from_values(scheme, Mode::Exact, String::new(), values.clone(), values)
}

/// The mean over all tables of bits of what a law of texts is under each.
fn mean_over_keys(contexts: usize, law: &dyn Fn(&Watermark) -> TextLaw) -> TextLaw {
    let (mut mean, mut tables) = (TextLaw::new(), 0);
    for values in all_tables(contexts, 3, 1) {
        for (text, chance) in law(&tabled(values)) {
            *mean.entry(text).or_insert_with(BigRational::zero) += chance;
        }
        tables += 1;
    }
    mean.values_mut().for_each(|chance| *chance /= BigRational::from_integer(tables.into()));
    mean
}

/// The toy of the vLLM threads on repeated contexts (#56233): V = 3, one context token, depth 1,
/// texts of 4 tokens. The weights are so round that no floor of the rule cuts anything off.
const ROWS: Rows = {
    const UNIT: u64 = 1_000_000_000_000;
    [[5 * UNIT, 3 * UNIT, 2 * UNIT], [6 * UNIT, UNIT, 3 * UNIT], [2 * UNIT, 2 * UNIT, 6 * UNIT]]
};

/// Averaged over all 2^9 tables, texts have the model's law, with `==`. The mutant that marks
/// repeated contexts too has a total variation of 0.0672, and P(0,0,0,0) = 0.09925, not 0.0625.
#[test]
fn masking_keeps_the_law_of_texts() {
    let plain = text_law(&ROWS, 4, &|_, law| law);
    let masked =
        mean_over_keys(3, &|watermark| text_law(&ROWS, 4, &|text, law| watermark.mark(text, law)));
    assert_eq!(masked, plain);
    let mutant = mean_over_keys(3, &|watermark| {
        text_law(&ROWS, 4, &|text, law| {
            tournament::tournament(&law, &context(text, 1), &*watermark.values, 2)
        })
    });
    let tv: BigRational = plain.iter().map(|(text, p)| (p - &mutant[text]).abs()).sum();
    let tv = tv.to_f64().expect("a distance") / 2.0;
    assert!((tv - 0.0672).abs() < 5e-5, "{tv}");
    let zeros = mutant[&tokens(&[0, 0, 0, 0])].to_f64().expect("a chance");
    assert!((zeros - 0.09925).abs() < 5e-6, "{zeros}");
}

/// Two texts of two tokens, one after the other. Masked per batch their *joint* law is that of two
/// independent draws of the model; masked per sequence each has the model's law, and the two are
/// correlated, since they begin with the same context.
#[test]
fn a_batch_mask_makes_siblings_independent() {
    let pair = |watermark: &Watermark, batch: bool| {
        let first = text_law(&ROWS, 2, &|text, law| watermark.mark(text, law));
        let mut joint = TextLaw::new();
        for (text, chance) in first {
            let then = if batch { watermark.after(&text) } else { watermark.clone() };
            for (other, p) in text_law(&ROWS, 2, &|text, law| then.mark(text, law)) {
                joint.insert([&text[..], &other[..]].concat(), &chance * p);
            }
        }
        joint
    };
    let plain = text_law(&ROWS, 2, &|_, law| law);
    let independent: TextLaw = plain
        .iter()
        .flat_map(|(a, p)| plain.iter().map(move |(b, q)| ([&a[..], &b[..]].concat(), p * q)))
        .collect();
    assert_eq!(mean_over_keys(3, &|watermark| pair(watermark, true)), independent);
    let correlated = mean_over_keys(3, &|watermark| pair(watermark, false));
    assert_ne!(correlated, independent);
    for (text, p) in &plain {
        let second = |pair: &[Token]| pair[2..] == text[..];
        let marginal: BigRational =
            correlated.iter().filter(|(pair, _)| second(pair)).map(|(_, p)| p).sum();
        assert_eq!(marginal, *p, "each alone has the model's law");
    }
}

/// A context counts as repeated while the scheme remembers it, and the first positions of a scheme
/// that skips them are neither marked nor remembered.
#[test]
fn masks_follow_the_history() {
    let masks = |scheme: Scheme, ids: &[u32]| {
        let text = tokens(ids);
        let contexts = Contexts::new(&scheme, &text);
        (0..=text.len()).map(|place| contexts.is_masked(place)).collect::<Vec<_>>()
    };
    let scheme = |context_len, history, skip_first| Scheme {
        context_len,
        history,
        skip_first,
        ..Scheme::default()
    };
    // One token: contexts 0, 7, 7, 8, 7.
    assert_eq!(masks(scheme(1, None, false), &[7, 7, 8, 7]), [false, false, true, false, true]);
    assert_eq!(masks(scheme(1, Some(1), false), &[7, 7, 8, 7]), [false, false, true, false, false]);
    assert_eq!(masks(scheme(1, None, true), &[7, 7, 8, 7]), [true, false, true, false, true]);
    // Two tokens: 00, 07, 70, 00 (again), 07 (again).
    assert_eq!(masks(scheme(2, None, false), &[7, 0, 0, 7]), [false, false, false, true, true]);
    assert_eq!(masks(scheme(2, None, true), &[7, 0, 0, 7]), [true, true, false, false, false]);
    assert_eq!(context(&tokens(&[5]), 3), tokens(&[0, 0, 5]));
}

#[test]
fn keys_do_not_show_and_are_checked() {
    let secret = 7_390_125_648_331_i64;
    let scheme = Scheme { depth: 2, ..Scheme::default() };
    let key = Key::new(vec![secret, -5]);
    let stored = StoredKey::new(scheme, key.clone(), "2026-11-30".into(), None).expect("a key");
    let ring = KeyRing::new(stored.clone());
    let json = ring.to_json();
    assert!(json.contains(&secret.to_string()));
    assert_eq!(KeyRing::parse(&json).expect("what was written"), ring);
    let watermark = Watermark::new(&stored, Mode::Exact);
    for shown in
        [format!("{ring:?}"), format!("{watermark:?}"), format!("{:?}", watermark.entries())]
    {
        assert!(!shown.contains("7390125") && !shown.contains("-5"), "{shown}");
    }
    // A key, a scheme, a number, a depth or a word that was changed; no error quotes the key.
    for (from, to) in [
        ("7390125648331", "7390125648332"),
        ("\"context_len\": 4", "\"context_len\": 5"),
        ("\"7390125648331\"", "\"7390125648331x\""),
        ("\"-5\"", "\"-5\", \"6\""),
        ("\"depth\": 2", "\"depth\": 0"),
        ("\"gdm\"", "\"hf\""),
        ("draftproof watermark keys 1", "draftproof watermark keys 2"),
        ("\"leaves\": 2", "\"leaves\": 1"),
        ("]\n}", "]"),
    ] {
        let edited = json.replacen(from, to, 1);
        assert_ne!(edited, json, "{from}");
        let error = KeyRing::parse(&edited).expect_err(from).to_string();
        assert!(!error.contains("73901256"), "{error}");
    }
    let residual = key.for_residuals();
    assert_eq!(residual.depth(), 2);
    assert!(residual != key && residual != residual.for_residuals());
}
