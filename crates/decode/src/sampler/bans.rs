//! Bans: tokens that may not come next, by what the text is so far.
//!
//! # Formula
//! Token x gets the logit −∞ when one of these holds for the prefix t₁ … tₙ, prompt included:
//! - *bad words*: a word w₁ … wₘ has `wₘ = x` and the prefix ends with w₁ … wₘ₋₁;
//! - *no-repeat-ngram N*: the N−1 last tokens of the prefix with x after them are an N-gram that the
//!   prefix already has (Paulus et al. 1705.04304, §2.5; transformers' rule);
//! - *min-tokens M*: x is an EOS token and fewer than M tokens were generated, the prompt not counted
//!   (transformers' `min_new_tokens`).
//!
//! At a drafted position the prefix has the drafted tokens in it: a bad word cannot slip through the
//! border of two blocks, and EOS is free exactly from token M + 1 on.
//!
//! # Example
//! After 3 5 3, bad words (3 4) and (7) ban 4 and 7, and no-repeat-ngram 2 bans 5.
//!
//! # Edge cases
//! A word of one token is always banned, one longer than the prefix not until its beginning is
//! there. N = 1 bans every token that occurred; N = 0 and M = 0 are off. When every token is banned,
//! the row is empty and the error names this step.
//!
//! Two differences to transformers' bad words: a word that is just an EOS token is honoured (there it
//! is dropped), and so is a word of m tokens after a prefix of just m − 1 (there it takes m).

use super::{Prefix, RowError, Settings, Step, candidates::Candidates};
use crate::Token;

/// Bans what the settings forbid after `prefix`.
pub(super) fn apply(
    candidates: &mut Candidates<'_>,
    settings: &Settings,
    prefix: Prefix<'_>,
) -> Result<(), RowError> {
    for word in &settings.bad_words {
        if let Some((&last, rest)) = word.split_last()
            && prefix.tokens.ends_with(rest)
        {
            candidates.ban(last);
        }
    }
    for token in repeats(prefix.tokens, settings.no_repeat_ngram) {
        candidates.ban(token);
    }
    if prefix.output().len() < settings.min_tokens {
        for &token in &settings.eos {
            candidates.ban(token);
        }
    }
    candidates.changed_by(Step::Bans)
}

/// The tokens that would repeat an n-gram; none for n = 0.
fn repeats(tokens: &[Token], n: usize) -> impl Iterator<Item = Token> {
    let windows = if n == 0 { &[] } else { tokens }.windows(n.max(1));
    let context = &tokens[tokens.len().saturating_sub(n.saturating_sub(1))..];
    windows.filter_map(move |window| {
        let (&last, rest) = window.split_last()?;
        (rest == context).then_some(last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::Sampler;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    /// The ids of 0..8 that are banned on a flat row.
    fn banned(settings: &Settings, prompt: &[u32], output: &[u32]) -> Result<Vec<u32>, RowError> {
        let tokens = tokens(&[prompt, output].concat());
        let prefix = Prefix { tokens: &tokens, prompt_len: prompt.len() };
        let sampler = Sampler::new(settings.clone(), 8).expect("settings in range");
        let law = sampler.law(prefix, &[0.0; 8])?;
        Ok((0..8).filter(|&id| law.weight(Token(id)) == 0).collect())
    }

    fn words(words: &[&[u32]]) -> Settings {
        Settings {
            bad_words: words.iter().map(|word| tokens(word)).collect(),
            ..Settings::default()
        }
    }

    fn no_repeat(n: usize) -> Settings {
        Settings { no_repeat_ngram: n, ..Settings::default() }
    }

    #[test]
    fn bad_words_ban_their_last_token_after_the_rest() {
        let settings = words(&[&[3, 4], &[7], &[1, 2, 3], &[5, 3, 4, 6]]);
        for (prompt, output, expected) in [
            (&[][..], &[][..], &[7][..]),
            (&[3], &[], &[4, 7]),
            (&[3, 5], &[3], &[4, 7]),
            // The word's beginning may lie across prompt and output.
            (&[1], &[2], &[3, 7]),
            (&[0, 5, 3], &[4], &[6, 7]),
            (&[2], &[1], &[7]),
            (&[3, 4], &[0], &[7]),
        ] {
            let found = banned(&settings, prompt, output);
            assert_eq!(found.as_deref(), Ok(expected), "{prompt:?} {output:?}");
        }
    }

    #[test]
    fn no_ngram_occurs_twice() {
        for (n, text, expected) in [
            (0, &[1, 1, 1][..], &[][..]),
            (1, &[], &[]),
            (1, &[4, 3, 4, 2], &[2, 3, 4]),
            (2, &[3, 5, 3], &[5]),
            (2, &[3], &[]),
            (2, &[3, 3], &[3]),
            (2, &[3, 5, 3, 6, 3, 3], &[3, 5, 6]),
            (3, &[4, 4, 2, 4, 2], &[4]),
            (3, &[4, 2], &[]),
            (3, &[4, 4], &[]),
            (3, &[4, 4, 4], &[4]),
            (9, &[4, 4, 4], &[]),
            (usize::MAX, &[4, 4, 4], &[]),
        ] {
            // The prompt counts, wherever it ends.
            for prompt in 0..=text.len() {
                let found = banned(&no_repeat(n), &text[..prompt], &text[prompt..]);
                assert_eq!(found.as_deref(), Ok(expected), "{n}: {text:?}");
            }
        }
    }

    #[test]
    fn eos_is_free_exactly_from_the_next_token_on() {
        let settings = Settings { min_tokens: 4, eos: tokens(&[2, 6]), ..Settings::default() };
        for n in 0..8 {
            let expected: &[u32] = if n < 4 { &[2, 6] } else { &[] };
            let found = banned(&settings, &[1, 1, 1, 1, 1], &vec![1; n]);
            assert_eq!(found.as_deref(), Ok(expected), "after {n}");
        }
    }

    #[test]
    fn an_emptied_row_names_the_step() {
        let all: Vec<u32> = (0..8).collect();
        let singles: Vec<&[u32]> = all.chunks(1).collect();
        let step = Step::Bans;
        let empty = Err(RowError::Empty { step });
        assert_eq!(banned(&words(&singles), &[], &[]), empty);
        assert_eq!(banned(&no_repeat(1), &all, &[]), empty);
        let message = RowError::Empty { step }.to_string();
        assert_eq!(message, "no token is left after step `bans`");
        // What is left of a filter before it counts.
        let settings = Settings {
            top_k: 1,
            order: "top-k,penalties,bias,bans,temperature,typical,top-p,min-p"
                .parse()
                .expect("an order"),
            ..words(&[&[0]])
        };
        assert_eq!(banned(&settings, &[], &[]), Err(RowError::Empty { step }));
    }
}
