//! Agreement with an independent enumeration: `golden/spec_exact.json` (made by a pure-Python
//! program; its tables are multiples of 1/64, so both sides are exact up to its output's rounding).

use std::collections::BTreeMap;

use draftproof_decode::{
    Dist, Token,
    draft::Proposal,
    noise::{Noise, RoundNoise, Seed},
    sampler::RowError,
    verify::{Block, BlockRule, Rejection, TargetLaws, Verifier},
};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::ToPrimitive;
use serde::Deserialize;

use crate::{
    block::{self, PaperBlock},
    mutants,
    paths::{Exact, assert_is_law, distance, enumerate, zero},
};

#[derive(Deserialize)]
struct Golden {
    single_path: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "V")]
    vocab: usize,
    gamma: usize,
    p: BTreeMap<String, Vec<f64>>,
    q: BTreeMap<String, Vec<f64>>,
    algos: BTreeMap<String, Expected>,
    target_joint: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Expected {
    tv: f64,
    #[serde(rename = "E_tau")]
    mean_accepted: f64,
    tau: Vec<f64>,
}

/// The laws of one table by prefix, as weights of 1/64.
#[derive(Debug)]
struct Table(BTreeMap<Vec<Token>, Dist>);

impl Table {
    fn new(rows: &BTreeMap<String, Vec<f64>>) -> Self {
        let law = |row: &Vec<f64>| {
            let weights: Vec<u64> = row.iter().map(|p| (p * 64.0) as u64).collect();
            assert!(row.iter().zip(&weights).all(|(p, w)| *p == *w as f64 / 64.0));
            Dist::dense(weights).expect("a row of the table")
        };
        Self(rows.iter().map(|(prefix, row)| (parse(prefix), law(row))).collect())
    }
}

fn parse(prefix: &str) -> Vec<Token> {
    let ids = prefix.split(',').filter(|id| !id.is_empty());
    ids.map(|id| Token(id.parse().expect("an id"))).collect()
}

/// The target's laws along one drafted block.
#[derive(Debug)]
struct Along<'a> {
    table: &'a Table,
    drafted: Vec<Token>,
}

impl TargetLaws for Along<'_> {
    fn law(&self, i: usize) -> Result<Dist, RowError> {
        Ok(self.table.0[&self.drafted[..i]].clone())
    }
}

/// The law of (tokens of one block, accepted count).
fn block_law(case: &Case, verifier: &dyn Verifier) -> Exact<(Vec<Token>, usize)> {
    let (p, q) = (Table::new(&case.p), Table::new(&case.q));
    let round = RoundNoise { seed: Seed::default(), round_start: 1 };
    enumerate(|noise| {
        let noise: &mut dyn Noise = noise;
        let mut drafted = Vec::new();
        let mut proposals = Vec::new();
        for offset in 0..case.gamma {
            let proposal = Proposal::draw(q.0[&drafted].clone(), round, offset, noise);
            drafted.push(proposal.token());
            proposals.push(proposal);
        }
        let target = Along { table: &p, drafted };
        let block = Block { proposals: &proposals, target: &target, round, generated: &[] };
        let verdict = verifier.verify(&block, noise);
        let mut emitted = target.drafted[..verdict.accepted].to_vec();
        emitted.push(verdict.next.expect("table laws").token);
        (emitted, verdict.accepted)
    })
}

/// The joint law of gamma + 1 tokens, short blocks continued with p.
fn joint(case: &Case, blocks: &Exact<(Vec<Token>, usize)>) -> Exact<Vec<Token>> {
    let p = Table::new(&case.p);
    let mut law = Exact::new();
    let mut open: Vec<(Vec<Token>, BigRational)> =
        blocks.iter().map(|((tokens, _), share)| (tokens.clone(), share.clone())).collect();
    while let Some((tokens, share)) = open.pop() {
        if tokens.len() == case.gamma + 1 {
            *law.entry(tokens).or_insert_with(zero) += share;
            continue;
        }
        let next = &p.0[&tokens];
        for (token, weight) in next.support() {
            let weight = BigRational::new(weight.into(), BigInt::from(next.total()));
            open.push(([&tokens[..], &[token]].concat(), &share * weight));
        }
    }
    law
}

/// The target's own joint law of gamma + 1 tokens: exact, and the file's figures up to rounding.
fn target_joint(case: &Case) -> Exact<Vec<Token>> {
    let law = joint(case, &Exact::from([((Vec::new(), 0), BigRational::from_integer(1.into()))]));
    for (text, expected) in &case.target_joint {
        let found = law[&parse(text)].to_f64().expect("a probability");
        assert!((found - expected).abs() < 1e-12, "{text}: {found} {expected}");
    }
    law
}

fn check(case: &Case, name: &str, verifier: &dyn Verifier) {
    let Expected { tv, mean_accepted, tau } = &case.algos[name];
    let blocks = block_law(case, verifier);
    assert_is_law(&blocks);
    let mut accepted = vec![zero(); case.gamma + 1];
    for ((_, count), share) in &blocks {
        accepted[*count] += share;
    }
    for (found, expected) in accepted.iter().zip(tau) {
        let found = found.to_f64().expect("a probability");
        // `BlockRule` rounds α down to multiples of 2^-40, which costs that much acceptance a token.
        assert!((found - expected).abs() < 1e-11, "{name}: P(tau) {found} {expected}");
    }
    let mean: BigRational = accepted
        .iter()
        .enumerate()
        .map(|(n, share)| BigRational::from_integer(n.into()) * share)
        .sum();
    let mean = mean.to_f64().expect("a mean");
    assert!((mean - mean_accepted).abs() < 1e-11, "{name}: E[tau] {mean} {mean_accepted}");
    let distance = distance(&joint(case, &blocks), &target_joint(case));
    if name.ends_with("_WRONG") {
        let distance = distance.to_f64().expect("a distance");
        assert!((distance - tv).abs() < 1e-12, "{name}: TV {distance} {tv}");
    } else {
        assert_eq!(distance, zero(), "{name} changes the law");
    }
}

#[test]
fn golden_laws_and_accepted_counts() {
    let file = include_str!("../golden/spec_exact.json");
    let golden: Golden = serde_json::from_str(file).expect("the golden file");
    assert_eq!(golden.single_path.len(), 4);
    for case in &golden.single_path {
        assert!(case.p.values().all(|row| row.len() == case.vocab));
        check(case, "token", &Rejection);
        check(case, "token_resid_p_WRONG", &mutants::RULES[2]);
        check(case, "block", &BlockRule);
        check(case, "block", &block::RIGHT);
        let shared_coin = PaperBlock { shared_coin: true, ..block::RIGHT };
        check(case, "block_shared_eta_WRONG", &shared_coin);
        let token_residual = PaperBlock { token_residual: true, ..block::RIGHT };
        check(case, "block_std_residual_WRONG", &token_residual);
    }
}

/// The same law at every place.
#[derive(Debug)]
struct Everywhere(Dist);

impl TargetLaws for Everywhere {
    fn law(&self, _: usize) -> Result<Dist, RowError> {
        Ok(self.0.clone())
    }
}

/// The mean number of accepted tokens for `gamma` drafts from q where p holds at every place.
fn mean_accepted(p: &[u64], q: &[u64], gamma: usize, verifier: &dyn Verifier) -> BigRational {
    let law = |weights: &[u64]| Dist::dense(weights.to_vec()).expect("a law");
    let (target, q) = (Everywhere(law(p)), law(q));
    let round = RoundNoise { seed: Seed::default(), round_start: 1 };
    let accepted = enumerate(|noise| {
        let noise: &mut dyn Noise = noise;
        let draw = |offset| Proposal::draw(q.clone(), round, offset, noise);
        let proposals: Vec<Proposal> = (0..gamma).map(draw).collect();
        let block = Block { proposals: &proposals, target: &target, round, generated: &[] };
        verifier.verify(&block, noise).accepted
    });
    let times = |(count, share): (&usize, &BigRational)| share * BigInt::from(*count);
    accepted.iter().map(times).sum()
}

/// p = (1/3, 2/3), q = (2/3, 1/3): the block rule accepts 11/9 of 2 and 5/3 of 3 on average, the
/// token rule 10/9 and 38/27 (2403.10444, §2).
#[test]
fn block_accepts_more_than_token_by_token() {
    let ratio = |n: i64, d: i64| BigRational::new(n.into(), d.into());
    for (gamma, block, token) in [(2, ratio(11, 9), ratio(10, 9)), (3, ratio(5, 3), ratio(38, 27))]
    {
        assert_eq!(mean_accepted(&[1, 2], &[2, 1], gamma, &Rejection), token);
        assert_eq!(mean_accepted(&[1, 2], &[2, 1], gamma, &block::RIGHT), block);
        // α in multiples of 2^-40, rounded down.
        let short = block - mean_accepted(&[1, 2], &[2, 1], gamma, &BlockRule);
        assert!(short >= zero() && short < ratio(1, 1 << 36), "{short}");
    }
}
