//! Attention and its cache.

use draftproof_kernels::attention::{AttentionRule, AttentionSpan, append, attention};

use super::{bits, distance, everywhere, noise};

/// A whole sequence: queries, keys and values of every position.
struct Sequence {
    rule: AttentionRule,
    len: usize,
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Sequence {
    fn new(rule: AttentionRule, len: usize, seed: u64) -> Self {
        let (q, kv) = (rule.heads * rule.head_dim, rule.kv_heads * rule.head_dim);
        Self {
            rule,
            len,
            query: noise(len * q, seed).iter().map(|x| x * 3.0).collect(),
            keys: noise(len * kv, seed + 1),
            values: noise(len * kv, seed + 2),
        }
    }

    /// A cache of the first `len` positions; beyond lies poison.
    fn cache(&self, all: &[f32], len: usize, capacity: usize) -> Vec<f32> {
        let width = self.rule.kv_heads * self.rule.head_dim;
        let mut cache = vec![f32::NAN; capacity * width];
        append(&mut cache, &all[..len * width], self.rule.kv_heads, self.rule.head_dim, 0);
        cache
    }

    /// Rows `from..to` in one pass.
    fn rows(&self, from: usize, to: usize, capacity: usize) -> Vec<f32> {
        let width = self.rule.heads * self.rule.head_dim;
        let keys = self.cache(&self.keys, to, capacity);
        let values = self.cache(&self.values, to, capacity);
        let span = AttentionSpan {
            start: 0,
            rows: to - from,
            len: to,
            capacity,
            keys: &keys,
            values: &values,
        };
        let mut out = vec![f32::NAN; (to - from) * width];
        attention(&self.rule, &self.query[from * width..to * width], &[span], &mut out);
        out
    }

    fn reference(&self) -> Vec<f64> {
        let AttentionRule { heads, kv_heads, head_dim, scale, window, softcap } = self.rule;
        let mut out = Vec::new();
        for row in 0..self.len {
            let start = window.map_or(0, |w| (row + 1).saturating_sub(w));
            for head in 0..heads {
                let kv = head / (heads / kv_heads);
                let q = &self.query[(row * heads + head) * head_dim..][..head_dim];
                let at = |all: &[f32], j: usize, d: usize| {
                    f64::from(all[(j * kv_heads + kv) * head_dim + d])
                };
                let score = |j: usize| {
                    let dot: f64 =
                        (0..head_dim).map(|d| f64::from(q[d]) * at(&self.keys, j, d)).sum();
                    let score = dot * f64::from(scale);
                    softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let e: Vec<f64> = (start..=row).map(|j| score(j).exp()).collect();
                let total: f64 = e.iter().sum();
                for d in 0..head_dim {
                    let mixed: f64 =
                        (start..=row).zip(&e).map(|(j, e)| e * at(&self.values, j, d)).sum();
                    out.push(mixed / total);
                }
            }
        }
        out
    }
}

fn rules() -> Vec<AttentionRule> {
    let plain = AttentionRule {
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: None,
        softcap: None,
    };
    vec![
        plain,
        AttentionRule { heads: 1, kv_heads: 1, head_dim: 1, ..plain },
        AttentionRule { heads: 3, kv_heads: 3, head_dim: 7, window: Some(5), ..plain },
        AttentionRule { heads: 7, kv_heads: 1, head_dim: 40, softcap: Some(2.0), ..plain },
        AttentionRule { heads: 6, kv_heads: 2, head_dim: 64, window: Some(1), ..plain },
        AttentionRule { heads: 2, kv_heads: 1, head_dim: 100, window: Some(19), ..plain },
        AttentionRule { heads: 8, kv_heads: 2, head_dim: 128, softcap: Some(30.0), ..plain },
    ]
}

#[test]
fn rows_alone_are_rows_together_and_nearly_the_formula() {
    for rule in rules() {
        let len = 37;
        let sequence = Sequence::new(rule, len, 1);
        let width = rule.heads * rule.head_dim;
        let whole = everywhere(|| sequence.rows(0, len, len));
        let error = distance(&whole, &sequence.reference());
        assert!(error < 1e-5, "{rule:?}: {error}");
        for (from, to, capacity) in
            [(0, 1, 1), (0, 2, 64), (1, 6, 40), (5, 14, 37), (36, 37, 50), (4, 37, 37)]
        {
            let part = everywhere(|| sequence.rows(from, to, capacity));
            assert_eq!(
                bits(&part),
                bits(&whole[from * width..to * width]),
                "{rule:?} {from}..{to}"
            );
        }
        for row in 0..len {
            let alone = sequence.rows(row, row + 1, 64);
            assert_eq!(bits(&alone), bits(&whole[row * width..(row + 1) * width]));
        }
    }
}

#[test]
fn long_prompts_share_the_work_and_keep_the_bits() {
    let rule = AttentionRule { heads: 4, kv_heads: 2, head_dim: 32, ..rules()[0] };
    for window in [None, Some(50)] {
        let sequence = Sequence::new(AttentionRule { window, ..rule }, 200, 3);
        let whole = everywhere(|| sequence.rows(0, 200, 256));
        assert!(distance(&whole, &sequence.reference()) < 1e-5);
        let last = everywhere(|| sequence.rows(199, 200, 256));
        assert_eq!(bits(&last), bits(&whole[199 * 128..]));
    }
}

#[test]
fn sequences_that_share_a_pass_do_not_see_each_other() {
    for rule in rules() {
        let (a, b) = (Sequence::new(rule, 20, 1), Sequence::new(rule, 9, 9));
        let width = rule.heads * rule.head_dim;
        let (ka, va) = (a.cache(&a.keys, 20, 32), a.cache(&a.values, 20, 32));
        let (kb, vb) = (b.cache(&b.keys, 9, 9), b.cache(&b.values, 9, 9));
        let spans = [
            AttentionSpan { start: 0, rows: 3, len: 20, capacity: 32, keys: &ka, values: &va },
            AttentionSpan { start: 3, rows: 9, len: 9, capacity: 9, keys: &kb, values: &vb },
        ];
        let query = [&a.query[17 * width..], &b.query[..]].concat();
        let joint = everywhere(|| {
            let mut out = vec![f32::NAN; query.len()];
            attention(&rule, &query, &spans, &mut out);
            out
        });
        assert_eq!(bits(&joint), bits(&[a.rows(17, 20, 20), b.rows(0, 9, 16)].concat()));
    }
}

#[test]
fn an_append_writes_its_positions_and_no_others() {
    let mut cache = vec![0.0; 2 * 4 * 3];
    let new: Vec<f32> = (1..=12).map(|i| i as f32).collect();
    append(&mut cache, &new, 2, 3, 1);
    let head = |h: usize| cache[h * 12..(h + 1) * 12].to_vec();
    assert_eq!(head(0), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 7.0, 8.0, 9.0, 0.0, 0.0, 0.0]);
    assert_eq!(head(1), [0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 10.0, 11.0, 12.0, 0.0, 0.0, 0.0]);
}
