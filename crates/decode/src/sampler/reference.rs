//! The contract written once more, to be read and not to be fast: sort everything, compare
//! rationals, count by looking. The sampler must give the same law, weight for weight, for any row,
//! prefix, settings and order.

use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::{option, prelude::*, sample::subsequence};

use super::*;
use crate::{Decimal, exp::exp, ln::ln};

/// What is left of a row: ids ascending with their logits.
#[derive(Clone, Debug)]
struct Left {
    tokens: Vec<(usize, f64)>,
    temperature: f64,
    /// Parallel to the tokens, once a filter has asked; a filter leaves the rest of them as they are.
    weights: Option<Vec<u64>>,
}

impl Left {
    fn largest(&self) -> f64 {
        self.tokens.iter().map(|t| t.1).fold(f64::NEG_INFINITY, f64::max)
    }

    fn weights(&mut self) -> Vec<u64> {
        if let Some(weights) = &self.weights {
            return weights.clone();
        }
        let max = self.largest();
        let inverse = 1.0 / self.temperature;
        let shares: Vec<f64> =
            self.tokens.iter().map(|t| exp(((t.1 - max) * inverse).min(0.0))).collect();
        let sum: f64 = shares.iter().map(|e| (e * 2f64.powi(32)).round_ties_even()).sum();
        let mut scale = 61;
        while 2f64.powi(32 + 61 - scale) < sum {
            scale -= 1;
        }
        let weight = |e: &f64| (e * 2f64.powi(scale)).round_ties_even() as u64;
        let weights: Vec<u64> = shares.iter().map(weight).collect();
        self.weights = Some(weights.clone());
        weights
    }

    fn set(&mut self, id: usize, change: impl Fn(f64) -> f64) {
        for token in &mut self.tokens {
            if token.0 == id && token.1 > f64::NEG_INFINITY {
                token.1 = change(token.1).clamp(f64::MIN, f64::MAX);
            }
        }
    }

    fn ban(&mut self, id: Token) {
        let banned = self.tokens.iter_mut().filter(|token| token.0 == id.index());
        banned.for_each(|token| token.1 = f64::NEG_INFINITY);
    }

    fn divide(&mut self) {
        let temperature = std::mem::replace(&mut self.temperature, 1.0);
        let all = self.tokens.clone();
        all.iter().for_each(|t| self.set(t.0, |z| z / temperature));
    }

    /// By rank (an order of places), those with less than `mass` of all weight before them.
    fn keep_mass(&mut self, ranked: Vec<usize>, mass: Decimal) {
        let weights = self.weights();
        let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
        let mut before = 0u128;
        let mut kept = Vec::new();
        for place in ranked.into_iter().filter(|&place| weights[place] > 0) {
            // before / total < num / den
            if before * u128::from(mass.denominator()) < total * u128::from(mass.numerator()) {
                kept.push(place);
            }
            before += u128::from(weights[place]);
        }
        self.keep(kept);
    }

    fn keep(&mut self, mut places: Vec<usize>) {
        places.sort_unstable();
        if let Some(weights) = &mut self.weights {
            *weights = places.iter().map(|&place| weights[place]).collect();
        }
        self.tokens = places.iter().map(|&place| self.tokens[place]).collect();
    }

    /// All places, by `before`, ties by id.
    fn ranked(&self, before: impl Fn(usize, usize) -> std::cmp::Ordering) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.tokens.len()).collect();
        places.sort_by(|&a, &b| before(a, b).then(a.cmp(&b)));
        places
    }

    fn step(&mut self, step: Step, settings: &Settings, prefix: Prefix<'_>, vocab: usize) {
        let output = &prefix.tokens[prefix.prompt_len..];
        let count = |text: &[Token], id| text.iter().filter(|t| t.index() == id).count();
        if matches!(step, Step::Penalties | Step::Bias | Step::Bans) {
            self.weights = None;
        }
        match step {
            Step::Logits => unreachable!("no step of an order"),
            Step::Penalties => {
                self.divide();
                for id in 0..vocab {
                    if count(prefix.tokens, id) > 0 && settings.repetition_penalty != 1.0 {
                        let theta = settings.repetition_penalty;
                        self.set(id, |z| if z > 0.0 { z / theta } else { z * theta });
                    }
                    let n = count(output, id);
                    if n > 0 {
                        let frequent = settings.frequency_penalty * n as f64;
                        self.set(id, |z| z - frequent - settings.presence_penalty);
                    }
                }
            }
            Step::Bias => {
                self.divide();
                for &(token, bias) in &settings.logit_bias {
                    if bias == f64::NEG_INFINITY {
                        self.ban(token);
                    } else {
                        self.set(token.index(), |z| z + bias);
                    }
                }
            }
            Step::Bans => {
                for id in (0..vocab).map(Token::at) {
                    let with = [prefix.tokens, &[id]].concat();
                    let word = settings.bad_words.iter().any(|word| with.ends_with(word));
                    let n = settings.no_repeat_ngram;
                    let again = n > 0 && with.len() >= n && {
                        let gram = &with[with.len() - n..];
                        prefix.tokens.windows(n).any(|window| window == gram)
                    };
                    let early = output.len() < settings.min_tokens && settings.eos.contains(&id);
                    if word || again || early {
                        self.ban(id);
                    }
                }
            }
            Step::Temperature if settings.temperature == 0.0 => {
                let max = self.largest();
                let first = self.tokens.iter().position(|t| t.1 == max);
                self.keep(vec![first.expect("a largest")]);
            }
            Step::Temperature => {
                self.temperature = settings.temperature;
                self.weights = None;
            }
            Step::TopK => {
                let z: Vec<f64> = self.tokens.iter().map(|t| t.1).collect();
                let mut ranked = self.ranked(|a, b| z[b].partial_cmp(&z[a]).expect("no NaN"));
                ranked.retain(|&place| z[place] > f64::NEG_INFINITY);
                if settings.top_k < ranked.len() {
                    let kth = z[ranked[settings.top_k - 1]];
                    let all = ranked.clone();
                    ranked.truncate(settings.top_k);
                    if settings.top_k_ties == TopKTies::Keep {
                        ranked = all.into_iter().filter(|&i| z[i] >= kth).collect();
                    }
                    self.keep(ranked);
                }
            }
            Step::Typical => {
                let weights = self.weights();
                let exact = |value: f64| BigRational::from_float(value).expect("finite");
                let logs: Vec<BigRational> =
                    weights.iter().map(|&w| exact(ln(w.max(1) as f64))).collect();
                let whole = |w: u64| BigRational::from_integer(BigInt::from(w));
                let total: BigRational = weights.iter().map(|&w| whole(w)).sum();
                let sum: BigRational = (0..logs.len()).map(|i| whole(weights[i]) * &logs[i]).sum();
                let centre = sum / total;
                let distance: Vec<BigRational> = logs
                    .iter()
                    .map(|l| {
                        let d = &centre - l;
                        if d < exact(0.0) { -d } else { d }
                    })
                    .collect();
                let ranked = self.ranked(|a, b| distance[a].cmp(&distance[b]));
                self.keep_mass(ranked, settings.typical);
            }
            Step::TopP => {
                let weights = self.weights();
                let ranked = self.ranked(|a, b| weights[b].cmp(&weights[a]));
                self.keep_mass(ranked, settings.top_p);
            }
            Step::MinP => {
                let weights = self.weights();
                let (num, den) = (settings.min_p.numerator(), settings.min_p.denominator());
                let largest = u128::from(*weights.iter().max().expect("a token"));
                let ranked = (0..weights.len())
                    .filter(|&i| {
                        u128::from(weights[i]) * u128::from(den) >= u128::from(num) * largest
                    })
                    .collect();
                self.keep(ranked);
            }
        }
    }
}

fn plain(
    settings: &Settings,
    vocab: usize,
    prefix: Prefix<'_>,
    row: &[f32],
) -> Result<Dist, RowError> {
    let mut left = Left {
        tokens: (0..row.len()).map(|i| (i, f64::from(row[i]))).collect(),
        temperature: 1.0,
        weights: None,
    };
    let mut last = Step::Logits;
    for &step in settings.order.steps() {
        if left.largest() == f64::NEG_INFINITY {
            return Err(RowError::Empty { step: last });
        }
        if settings.is_on(step) {
            left.step(step, settings, prefix, vocab);
            last = step;
        }
    }
    if left.largest() == f64::NEG_INFINITY {
        return Err(RowError::Empty { step: last });
    }
    let mut weights = vec![0; vocab];
    for (weight, token) in left.weights().into_iter().zip(&left.tokens) {
        weights[token.0] = weight;
    }
    Ok(Dist::dense(weights).expect("a law"))
}

const VOCAB: usize = 12;

fn token() -> impl Strategy<Value = Token> {
    (0..VOCAB as u32).prop_map(Token)
}

fn mass() -> impl Strategy<Value = Decimal> {
    (1u32..=1000).prop_map(|n| {
        let text = format!("{}.{:03}", n / 1000, n % 1000);
        text.parse().expect("a decimal")
    })
}

/// `value` half of the time, else what is off.
fn maybe<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T>,
    off: T,
) -> impl Strategy<Value = T> {
    option::of(value).prop_map(move |value| value.unwrap_or(off.clone()))
}

fn settings() -> impl Strategy<Value = Settings> {
    let penalty = || prop_oneof![-2.0..2.0, Just(0.5), Just(1e308)];
    let bias = prop_oneof![8 => -3.0..3.0, 1 => Just(f64::NEG_INFINITY), 1 => Just(1e308)];
    let ids: Vec<u32> = (0..VOCAB as u32).collect();
    let history = (
        maybe(prop_oneof![0.2..3.0, Just(1e-300)], 1.0),
        maybe(penalty(), 0.0),
        maybe(penalty(), 0.0),
        maybe(
            subsequence(ids, 0..4).prop_flat_map(move |ids| {
                let biases = prop::collection::vec(bias.clone(), ids.len());
                biases.prop_map(move |b| ids.iter().copied().map(Token).zip(b).collect())
            }),
            Vec::new(),
        ),
        maybe(prop::collection::vec(prop::collection::vec(token(), 1..4), 1..4), Vec::new()),
        maybe(0usize..4, 0),
        maybe((0usize..9, prop::collection::vec(token(), 1..3)), (0, Vec::new())),
    );
    let filters = (
        maybe(prop_oneof![0.1..4.0, Just(0.0), Just(1e-310), Just(1e300)], 1.0),
        maybe(0usize..VOCAB + 2, 0),
        any::<bool>(),
        maybe(mass(), Decimal::ONE),
        maybe(mass(), Decimal::ONE),
        maybe(mass(), Decimal::ZERO),
        Just(Order::DEFAULT.steps().to_vec()).prop_shuffle(),
        0usize..4,
    );
    (history, filters).prop_map(|(history, filters)| {
        let (
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            bad_words,
            no_repeat_ngram,
            (min_tokens, eos),
        ) = history;
        let (temperature, top_k, keep, typical, top_p, min_p, steps, preset) = filters;
        Settings {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            bad_words,
            no_repeat_ngram,
            min_tokens,
            eos,
            temperature,
            top_k,
            top_k_ties: if keep { TopKTies::Keep } else { TopKTies::LowestId },
            typical,
            top_p,
            min_p,
            order: match Order::PRESETS.get(preset) {
                Some(&(_, order)) => order,
                None => Order::new(&steps).expect("every step once"),
            },
        }
    })
}

/// On a coarse grid, so that ties abound, with banned tokens; sometimes huge; sometimes narrow.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        12 => (-12i8..12).prop_map(|z| f32::from(z) / 4.0),
        2 => Just(f32::NEG_INFINITY),
        1 => -60f32..60.0,
        1 => prop_oneof![Just(3e38f32), Just(-3e38f32), Just(-0.0f32), Just(-1e-38f32)],
    ];
    prop::collection::vec(logit, 1..=VOCAB)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn the_law_is_that_of_the_plain_version(
        settings in settings(),
        row in row(),
        tokens in prop::collection::vec(token(), 0..14),
        cut in 0usize..14,
    ) {
        let prefix = Prefix { tokens: &tokens, prompt_len: cut.min(tokens.len()) };
        let sampler = Sampler::new(settings.clone(), VOCAB).expect("settings in range");
        let expected = plain(&settings, VOCAB, prefix, &row);
        let found = sampler.law(prefix, &row);
        prop_assert_eq!(found, expected);
    }
}
