//! The Bayesian score: a likelihood ratio with a learnt model of the mark.
//!
//! Marked text is modelled layer by layer (the model of the paper's reference code):
//! with probability `s` two *different* candidates met in the match that decided the layer, and then
//! the bit is 1 with probability 3/4; otherwise it is fair. So
//! `P(g | marked) = ½·((g + ½)·s + 1 − s)`, `s = sigmoid(β_l + Σ_{j<l} δ_{lj}·g_j)`, against ½ for
//! text without a mark. The log-likelihood ratio of a position is `Σ_l ln(1 + s·(g − ½))`. For fair bits
//! the ratio has expectation 1, whatever β and δ, so by Markov's inequality unmarked text reaches 1/α
//! with probability at most α: for every length, however well or ill the model was learnt.
//!
//! Only for two leaves: with more, a bit is 1 with another probability than 3/4.

use serde::{Deserialize, Serialize};

use super::Evidence;

/// The model; see the [module docs](self).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bayes {
    /// The probability of a mark before the text is seen; clipped to [1e-5, 1 − 1e-5].
    pub prior: f64,
    /// β, one a layer.
    pub beta: Vec<f64>,
    /// δ, row by row; row l holds the l coefficients of the layers before it.
    pub delta: Vec<Vec<f64>>,
}

/// Positions that a text is cut into for training: longer texts are certain, and teach nothing.
const CUT: usize = 48;

/// Positions of each kind that are looked at.
const MOST: usize = 12_288;

const STEPS: i32 = 150;

impl Bayes {
    /// What training starts from.
    #[must_use]
    pub fn untrained(depth: usize) -> Self {
        Self {
            prior: 0.5,
            beta: vec![-2.5; depth],
            delta: (0..depth).map(|layer| vec![0.0; layer]).collect(),
        }
    }

    /// In millionths: decimals that JSON keeps.
    #[must_use]
    pub fn rounded(mut self) -> Self {
        let numbers = self.beta.iter_mut().chain(self.delta.iter_mut().flatten());
        numbers.for_each(|number| *number = (*number * 1e6).round() / 1e6);
        self
    }

    /// Whether it has a row for each layer, and finite numbers.
    #[must_use]
    pub fn fits(&self, depth: usize) -> bool {
        let rows = self.delta.iter().enumerate().all(|(layer, row)| row.len() == layer);
        let numbers = || self.beta.iter().chain(self.delta.iter().flatten()).chain([&self.prior]);
        let whole = self.beta.len() == depth && self.delta.len() == depth && rows;
        whole && numbers().all(|number| number.is_finite())
    }

    /// δ column by column, with zeros: what a bit adds to the layers after it.
    fn columns(&self) -> Columns {
        let depth = self.beta.len();
        let mut columns =
            Columns { depth, beta: self.beta.clone(), delta: vec![0.0; depth * depth] };
        for (layer, row) in self.delta.iter().enumerate() {
            row.iter().enumerate().for_each(|(j, d)| columns.delta[j * depth + layer] = *d);
        }
        columns
    }

    /// The log-likelihood ratio of a text: marked over unmarked.
    ///
    /// # Panics
    /// If the evidence has another depth.
    #[must_use]
    pub fn log_likelihood_ratio(&self, evidence: &Evidence) -> f64 {
        assert_eq!(self.beta.len(), evidence.depth(), "a model of this depth");
        let columns = self.columns();
        evidence.rows().iter().map(|&bits| columns.log_ratio(bits, &columns.differ(bits))).sum()
    }

    /// The probability of a mark, given the text.
    ///
    /// # Panics
    /// If the evidence has another depth.
    #[must_use]
    pub fn posterior(&self, evidence: &Evidence) -> f64 {
        let prior = self.prior.clamp(1e-5, 1.0 - 1e-5);
        sigmoid((prior / (1.0 - prior)).ln() + self.log_likelihood_ratio(evidence))
    }

    /// Learns from texts of both kinds: cross-entropy of the posterior at even prior, plus
    /// `1e-3·Σδ²`, by 150 full steps of Adam from a fixed start. No chance is in it: the same texts
    /// give the same model.
    ///
    /// # Panics
    /// If there is no text of a kind, or texts differ in depth.
    #[must_use]
    pub fn train(marked: &[Evidence], unmarked: &[Evidence]) -> Self {
        let depth = marked[0].depth();
        let cuts = |texts: &[Evidence]| -> Vec<Vec<u64>> {
            let cuts = texts.iter().flat_map(|text| text.rows().chunks(CUT).map(<[u64]>::to_vec));
            cuts.take(MOST / CUT).collect()
        };
        let (marked, unmarked) = (cuts(marked), cuts(unmarked));
        let weights = [0.5 / marked.len() as f64, 0.5 / unmarked.len() as f64];
        let mut model = Self::untrained(depth);
        let parameters = depth + depth * (depth - 1) / 2;
        let (mut first, mut second) = (vec![0.0; parameters], vec![0.0; parameters]);
        for step in 1..=STEPS {
            let columns = model.columns();
            let mut slopes =
                Columns { depth, beta: vec![0.0; depth], delta: vec![0.0; depth * depth] };
            for (texts, (weight, label)) in
                [&marked, &unmarked].into_iter().zip(weights.into_iter().zip([1.0, 0.0]))
            {
                for text in texts {
                    let differ: Vec<_> = text.iter().map(|&bits| columns.differ(bits)).collect();
                    let each = || text.iter().zip(&differ);
                    let ratio: f64 = each().map(|(&bits, s)| columns.log_ratio(bits, s)).sum();
                    let scale = weight * (sigmoid(ratio) - label);
                    each().for_each(|(&bits, s)| slopes.add_slope(bits, s, scale));
                }
            }
            let mut gradient = Self::untrained(depth);
            gradient.beta.clone_from(&slopes.beta);
            for (layer, row) in gradient.delta.iter_mut().enumerate() {
                row.iter_mut().enumerate().for_each(|(j, d)| *d = slopes.delta[j * depth + layer]);
            }
            let penalised = model.delta.iter().flatten().map(|d| 2e-3 * d);
            gradient.delta.iter_mut().flatten().zip(penalised).for_each(|(g, p)| *g += p);
            let slopes = gradient.beta.iter().chain(gradient.delta.iter().flatten());
            let values = model.beta.iter_mut().chain(model.delta.iter_mut().flatten());
            for (((value, slope), first), second) in
                values.zip(slopes).zip(&mut first).zip(&mut second)
            {
                *first = 0.9 * *first + 0.1 * slope;
                *second = 0.999 * *second + 0.001 * slope * slope;
                let (m, v) =
                    (*first / (1.0 - 0.9f64.powi(step)), *second / (1.0 - 0.999f64.powi(step)));
                *value -= 0.05 * m / (v.sqrt() + 1e-8);
            }
        }
        model
    }
}

/// A model, or the slope of the loss in it, laid out so that a bit's share of all layers is added at
/// once.
struct Columns {
    depth: usize,
    beta: Vec<f64>,
    /// δ of layer l and bit j at `j·depth + l`.
    delta: Vec<f64>,
}

/// `s` of each layer.
type Differ = [f64; 64];

impl Columns {
    /// `s` of each layer, given the bits.
    fn differ(&self, bits: u64) -> Differ {
        let mut logits = [0.0; 64];
        let logits_here = &mut logits[..self.depth];
        logits_here.copy_from_slice(&self.beta);
        for (j, column) in self.delta.chunks_exact(self.depth).enumerate() {
            if bits >> j & 1 == 1 {
                logits_here.iter_mut().zip(column).for_each(|(logit, d)| *logit += d);
            }
        }
        logits_here.iter_mut().for_each(|logit| *logit = sigmoid(*logit));
        logits
    }

    /// The log-likelihood ratio of a position.
    fn log_ratio(&self, bits: u64, differ: &Differ) -> f64 {
        (0..self.depth).map(|layer| (1.0 + differ[layer] * half(bits, layer)).ln()).sum()
    }

    /// Adds `scale` times the slope of a position's log-ratio.
    fn add_slope(&mut self, bits: u64, differ: &Differ, scale: f64) {
        let mut slopes = [0.0; 64];
        for (layer, (slope, s)) in slopes[..self.depth].iter_mut().zip(differ).enumerate() {
            let g = half(bits, layer);
            *slope = scale * g * s * (1.0 - s) / (1.0 + s * g);
        }
        self.beta.iter_mut().zip(&slopes).for_each(|(beta, slope)| *beta += slope);
        for (j, column) in self.delta.chunks_exact_mut(self.depth).enumerate() {
            if bits >> j & 1 == 1 {
                column.iter_mut().zip(&slopes).for_each(|(d, slope)| *d += slope);
            }
        }
    }
}

/// `g − ½`.
fn half(bits: u64, layer: usize) -> f64 {
    (bits >> layer & 1) as f64 - 0.5
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows whose layers are 1 with probability 3/4 where a learnable `s` says so.
    fn rows(marked: bool, n: usize, state: &mut u64) -> Vec<u64> {
        let mut uniform = || {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (*state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..n)
            .map(|_| {
                (0..3).fold(0, |bits, layer| {
                    // Layer 1 differs only after a 0 in layer 0; layer 2 never does.
                    let s = [0.9, if bits & 1 == 0 { 0.8 } else { 0.1 }, 0.0][layer];
                    let p = if marked { 0.5 + s / 4.0 } else { 0.5 };
                    bits | u64::from(uniform() < p) << layer
                })
            })
            .collect()
    }

    /// Training finds which layers carry the mark, what they depend on, and does so again.
    #[test]
    fn training_finds_the_mark() {
        let mut state = 7;
        let mut texts = |marked| -> Vec<Evidence> {
            (0..100).map(|_| Evidence::from_rows(3, rows(marked, 100, &mut state))).collect()
        };
        let (marked, unmarked) = (texts(true), texts(false));
        let model = Bayes::train(&marked, &unmarked);
        assert_eq!(model, Bayes::train(&marked, &unmarked));
        let columns = model.columns();
        let s = |bits, layer: usize| columns.differ(bits)[layer];
        assert!(s(0, 0) > 0.7 && s(0, 1) > 0.6 && s(1, 1) < 0.4 && s(0, 2) < 0.35, "{model:?}");
        let right = |texts: &[Evidence], sign: f64| {
            texts.iter().filter(|text| sign * model.log_likelihood_ratio(text) > 0.0).count()
        };
        let (marked, unmarked) = (texts(true), texts(false));
        assert!(right(&marked, 1.0) > 95 && right(&unmarked, -1.0) > 95);
    }

    /// The ratio's expectation over fair bits is 1, for any model: what the bound rests on.
    #[test]
    fn the_ratio_is_an_e_value() {
        let mut model = Bayes::untrained(4);
        model.beta = vec![1.0, -0.3, 2.0, 0.1];
        model.delta = vec![vec![], vec![3.0], vec![-1.0, 0.5], vec![0.2, -4.0, 1.5]];
        let columns = model.columns();
        let ratio = |bits| columns.log_ratio(bits, &columns.differ(bits)).exp();
        let mean: f64 = (0..16).map(|bits| ratio(bits) / 16.0).sum();
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }
}
