//! Logit bias: a number added to the logits of chosen tokens.
//!
//! # Formula
//! `z ← z + b`, once, in f64. (OpenAI's `logit_bias`; transformers' `sequence_bias` for sequences of
//! one token.)
//!
//! # Example
//! Logits (0, 0) with the bias ln 3 on token 1 give the law (¼, ¾).
//!
//! # Edge cases
//! −∞ bans the token. A banned token stays banned under any bias. A finite bias never bans: a sum
//! beyond f64 is the largest finite number of its sign. When every token is banned, the row is empty
//! and the error names this step.

use super::{
    RowError, Step,
    candidates::{Candidates, finite},
};
use crate::Token;

/// Adds each bias to the logit of its token.
pub(super) fn apply(
    candidates: &mut Candidates<'_>,
    logit_bias: &[(Token, f64)],
) -> Result<(), RowError> {
    candidates.settle_temperature();
    for &(token, bias) in logit_bias {
        if bias == f64::NEG_INFINITY {
            candidates.ban(token);
        } else {
            candidates.change(token, |z| finite(z + bias));
        }
    }
    candidates.changed_by(Step::Bias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Dist,
        sampler::{Prefix, Sampler, Settings},
    };

    fn law(logit_bias: &[(u32, f64)], row: &[f32]) -> Result<Dist, RowError> {
        let settings = Settings {
            logit_bias: logit_bias.iter().map(|&(id, b)| (Token(id), b)).collect(),
            ..Settings::default()
        };
        let prefix = Prefix { tokens: &[], prompt_len: 0 };
        let sampler = Sampler::new(settings, row.len()).expect("settings in range");
        sampler.law(prefix, row)
    }

    #[test]
    fn is_added_once() {
        let biased = law(&[(1, 3f64.ln())], &[0.0, 0.0]).expect("a law");
        assert!((biased.probability(Token(1)) - 0.75).abs() < 1e-15);
        let shifted = law(&[(2, -1.5), (0, 0.25)], &[1.0, 2.0, 3.0]).expect("a law");
        assert_eq!(Ok(shifted), law(&[], &[1.25, 2.0, 1.5]));
        // Opposite numbers make a plain 0, which ties with 0.
        let zero = law(&[(0, 2.0), (1, -2.0)], &[-2.0, 2.0]).expect("a law");
        assert_eq!(Ok(zero), law(&[], &[0.0, 0.0]));
    }

    #[test]
    fn minus_infinity_bans_and_nothing_lifts_a_ban() {
        const BANNED: f64 = f64::NEG_INFINITY;
        let one = law(&[(0, BANNED)], &[5.0, 0.0]).expect("a law");
        assert_eq!(one.only(), Some(Token(1)));
        let row = [f32::NEG_INFINITY, 0.0];
        let one = law(&[(0, f64::MAX)], &row).expect("a law");
        assert_eq!(one.only(), Some(Token(1)));
        assert_eq!(law(&[(1, BANNED)], &row), Err(RowError::Empty { step: Step::Bias }));
        let finite = law(&[(1, f64::MIN)], &[f32::NEG_INFINITY, -3e38]).expect("a law");
        assert_eq!(finite.only(), Some(Token(1)));
    }
}
