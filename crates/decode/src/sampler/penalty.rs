//! Penalties: tokens that occurred are made less likely.
//!
//! # Formula
//! - Repetition θ, for each distinct token of the prompt and the output, once: `z ← z/θ` where
//!   `z > 0`, else `z·θ` (Keskar et al. 1909.05858, §4.1, with the sign rule of transformers).
//! - Frequency f and presence p, for each distinct token of the *output*, c times in it:
//!   `z ← z − f·c − p` (the rule of OpenAI's API).
//!
//! In this order, in f64. At a drafted position the output counts committed *and drafted* tokens:
//! the counts are a function of the prefix, so nothing has to be advanced or rolled back.
//!
//! # Example
//! Logits (2, −2, 0.5) with tokens 0 and 1 in the prompt and θ = 1.25 become (1.6, −2.5, 0.5).
//!
//! # Edge cases
//! θ = 1, f = 0 and p = 0 are off; θ below 1, and f or p below 0, make repetition *more* likely. A
//! banned token (−∞) stays banned under any of them, and a result beyond f64 is the largest finite
//! number of its sign: no penalty bans. A logit 0 is not changed by θ. There is no window: the whole
//! prefix counts (llama.cpp looks back 64 tokens, and counts the prompt for f and p too).

use super::{
    Prefix, RowError, Settings, Step,
    candidates::{Candidates, finite},
};
use crate::Token;

/// Changes the logits of tokens that occurred, by the settings' penalties.
pub(super) fn apply(
    candidates: &mut Candidates<'_>,
    settings: &Settings,
    prefix: Prefix<'_>,
) -> Result<(), RowError> {
    candidates.settle_temperature();
    let theta = settings.repetition_penalty;
    if theta != 1.0 {
        let penalise = |z: f64| finite(if z > 0.0 { z / theta } else { z * theta });
        for (token, _) in counts(candidates.vocab(), prefix.tokens) {
            candidates.change(token, penalise);
        }
    }
    let (presence, frequency) = (settings.presence_penalty, settings.frequency_penalty);
    if presence != 0.0 || frequency != 0.0 {
        for (token, count) in counts(candidates.vocab(), prefix.output()) {
            candidates.change(token, |z| finite(z - frequency * f64::from(count) - presence));
        }
    }
    candidates.changed_by(Step::Penalties)
}

/// Each distinct token with the number of times it occurs, by first occurrence.
///
/// One pass to count and one to collect: linear in the text, beside one zeroed word for each id.
fn counts(vocab: usize, tokens: &[Token]) -> Vec<(Token, u32)> {
    let mut counts = vec![0u32; vocab];
    for token in tokens {
        if let Some(count) = counts.get_mut(token.index()) {
            *count += 1;
        }
    }
    let mut distinct = Vec::new();
    for &token in tokens {
        if let Some(count) = counts.get_mut(token.index()).filter(|count| **count > 0) {
            distinct.push((token, std::mem::take(count)));
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::Sampler;

    const BANNED: f32 = f32::NEG_INFINITY;

    fn probabilities(settings: &Settings, prompt: &[u32], output: &[u32], row: &[f32]) -> Vec<f64> {
        let tokens: Vec<Token> = [prompt, output].concat().into_iter().map(Token).collect();
        let prefix = Prefix { tokens: &tokens, prompt_len: prompt.len() };
        let sampler = Sampler::new(settings.clone(), row.len()).expect("settings in range");
        let law = sampler.law(prefix, row).expect("a law");
        (0..row.len()).map(|id| law.probability(Token::at(id))).collect()
    }

    fn softmax(logits: &[f64]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|z| z.exp()).sum();
        logits.iter().map(|z| z.exp() / sum).collect()
    }

    #[track_caller]
    fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance;
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(near),
            "{found:?}, not {expected:?}"
        );
    }

    fn penalties(repetition: f64, presence: f64, frequency: f64) -> Settings {
        Settings {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            ..Settings::default()
        }
    }

    #[test]
    fn repetition_goes_by_the_sign_and_once() {
        let settings = penalties(1.25, 0.0, 0.0);
        let row = [2.0, -2.0, 0.5];
        let expected = [0.74105, 0.01228, 0.24667];
        // In the prompt, in the output, in both, twice.
        for (prompt, output) in
            [(&[0, 1][..], &[][..]), (&[], &[1, 0]), (&[0], &[1, 1, 0]), (&[0, 0, 1, 0], &[])]
        {
            let found = probabilities(&settings, prompt, output, &row);
            assert_near(&found, &expected, 5e-6);
            assert_near(&found, &softmax(&[1.6, -2.5, 0.5]), 1e-15);
        }
    }

    #[test]
    fn frequency_counts_and_presence_does_not_and_the_prompt_neither() {
        let row = [1.0, 1.0, 1.0];
        let (prompt, output) = ([2, 2, 0], [0, 1, 0, 0]);
        let found = probabilities(&penalties(1.0, 0.0, 0.5), &prompt, &output, &row);
        assert_near(&found, &softmax(&[-0.5, 0.5, 1.0]), 1e-15);
        let found = probabilities(&penalties(1.0, 0.5, 0.0), &prompt, &output, &row);
        assert_near(&found, &softmax(&[0.5, 0.5, 1.0]), 1e-15);
        // Repetition first: 1/2, then 1/2 − 3·0.25 − 1.
        let found = probabilities(&penalties(2.0, 1.0, 0.25), &prompt, &output, &row);
        assert_near(&found, &softmax(&[-1.25, -0.75, 0.5]), 1e-15);
        // Below 0, and below 1: a reward.
        let found = probabilities(&penalties(0.5, -1.0, -0.25), &prompt, &output, &row);
        assert_near(&found, &softmax(&[3.75, 3.25, 2.0]), 1e-15);
    }

    /// Two tokens with logits 0, frequency penalty 1: the chance of A falls with each A.
    #[test]
    fn the_chance_of_a_run() {
        let settings = penalties(1.0, 0.0, 1.0);
        let mut chance = 1.0;
        for (n, expected) in [0.5, 0.2689, 0.1192, 0.0474].into_iter().enumerate() {
            let p = probabilities(&settings, &[0], &vec![0; n], &[0.0, 0.0])[0];
            assert!((p - expected).abs() < 5e-5, "{n}: {p}");
            chance *= p;
        }
        assert!((chance - 7.60e-4).abs() < 5e-7, "{chance}");
    }

    #[test]
    fn banned_tokens_stay_banned_and_huge_penalties_stay_finite() {
        for repetition in [1e-300, 0.5, 2.0, 1e300] {
            for penalty in [-f64::MAX, -1.0, 1.0, f64::MAX] {
                let settings = penalties(repetition, penalty, penalty);
                let row = [BANNED, 3e38, -3e38, 0.0];
                let found = probabilities(&settings, &[0, 1], &[0, 2, 2, 3], &row);
                assert_eq!(found[0], 0.0, "{settings:?}");
                let sum: f64 = found.iter().sum();
                assert!((sum - 1.0).abs() < 1e-12, "{settings:?}: {found:?}");
            }
        }
        // A penalty beyond f64 bans nothing: alone, the token stays.
        let found = probabilities(&penalties(1.0, 0.0, f64::MAX), &[1], &[1, 1], &[BANNED, 0.0]);
        assert_eq!(found, [0.0, 1.0]);
        // An underflow to −0 still ties with 0.
        let one = Settings { top_k: 1, ..penalties(1e-300, 0.0, 0.0) };
        let found = probabilities(&one, &[0], &[], &[-1e-38, 0.0]);
        assert_eq!(found, [1.0, 0.0]);
    }

    #[test]
    fn tokens_that_a_narrow_row_lacks_are_passed_over() {
        let settings = penalties(2.0, 1.0, 1.0);
        let tokens = [5, 1, 5].map(Token);
        let prefix = Prefix { tokens: &tokens, prompt_len: 1 };
        let sampler = Sampler::new(settings, 6).expect("settings in range");
        let law = sampler.law(prefix, &[1.0, 4.0]).expect("a law");
        assert_eq!(law.vocab(), 6);
        assert!((law.probability(Token(0)) - softmax(&[1.0, 0.0])[0]).abs() < 1e-15);
    }
}
