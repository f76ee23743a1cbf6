//! Table models with context-dependent rows, the law of their texts, and runs of the real loop.

use draftproof_decode::{
    Engine, Limits, Sampler, Session, TableModel, Token,
    draft::Drafter,
    generate::round,
    noise::{Noise, Seed},
    sampler::Prefix,
    stats::{Meter, NoClock},
    verify::Verifier,
};
use num_rational::BigRational;
use num_traits::One;

use crate::paths::{Exact, zero};

pub(crate) const VOCAB: usize = 4;

/// A pseudo-random table: rows depend on the last two tokens, some tokens are banned somewhere, and
/// ties occur.
pub(crate) fn table(seed: u64) -> TableModel {
    TableModel::new(VOCAB, 64, 2, |last| {
        let mut state = last.iter().fold(seed, |hash, token| {
            (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (0..VOCAB)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match state >> 60 {
                    0 => f32::NEG_INFINITY,
                    step => (step as f32 - 8.0) / 3.0,
                }
            })
            .collect::<Vec<f32>>()
    })
}

/// A table whose row is `probabilities` whatever came before (up to f32's rounding of ln).
pub(crate) fn constant(probabilities: [f32; VOCAB]) -> TableModel {
    TableModel::new(VOCAB, 64, 1, |_| probabilities.map(f32::ln).to_vec())
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().map(|&id| Token(id)).collect()
}

/// What is the same for all drafters: the target, its contract, the rule, the text's limits.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) target: &'a TableModel,
    pub(crate) verifier: &'a dyn Verifier,
    pub(crate) sampler: &'a Sampler,
    pub(crate) prompt: &'a [Token],
    pub(crate) limits: &'a Limits,
}

impl Case<'_> {
    /// The exact law of the texts that plain sampling of the target gives.
    pub(crate) fn target_law(&self) -> Exact<Vec<Token>> {
        let mut law = Exact::new();
        let mut open = vec![(self.prompt.to_vec(), BigRational::one())];
        while let Some((text, probability)) = open.pop() {
            let generated = &text[self.prompt.len()..];
            let ended = generated.last().is_some_and(|last| self.limits.eos.contains(last));
            if ended || generated.len() == self.limits.max_tokens {
                *law.entry(generated.to_vec()).or_insert_with(zero) += probability;
                continue;
            }
            let prefix = Prefix { tokens: &text, prompt_len: self.prompt.len() };
            let p = self.sampler.law(prefix, self.target.logits(&text)).expect("a row has a law");
            for (token, weight) in p.support() {
                let share = BigRational::new(weight.into(), p.total().into());
                open.push(([&text[..], &[token]].concat(), &probability * share));
            }
        }
        law
    }

    /// Runs the real loop from `generated` on, for at most `rounds` rounds.
    pub(crate) fn run(
        &self,
        generated: &[Token],
        rounds: usize,
        drafter: &mut dyn Drafter,
        noise: &mut dyn Noise,
    ) -> Session {
        let (mut target, mut meter) = (self.target.clone(), Meter::new(NoClock));
        let mut engine = Engine {
            target: &mut target,
            drafter,
            verifier: self.verifier,
            sampler: self.sampler,
            noise,
            meter: &mut meter,
        };
        let limits = self.limits.clone();
        let mut sessions = [Session::resume(self.prompt, generated, Seed::default(), limits)];
        for _ in 0..rounds {
            if !round(&mut engine, &mut sessions, &mut ()).expect("table models do not fail") {
                break;
            }
        }
        let [session] = sessions;
        session
    }
}
