//! Log-likelihoods of given tokens, and questions answered by them or by generation.

use anyhow::Result;
use draftproof_decode::{LanguageModel, Sampler, Token, lm::Pass, sampler::Prefix};
use draftproof_model::Tokenizer;
use serde::Serialize;

use super::{
    items::Question,
    metrics::{mean, wilson},
    texts::Way,
};
use crate::{args::ChoiceScore, logprobs::log_normaliser, settings::Models};

/// Rows of logits held at a time.
const ROWS: usize = 16;

/// ln p of a token.
#[derive(Clone, Copy, Debug)]
struct LogLikelihood {
    /// Of the raw logits, before any setting.
    raw: f64,
    /// Under the contract's law; −∞ for a token without mass.
    law: f64,
}

/// The log-likelihoods of all tokens but the first `given`, at least one.
fn likelihoods(
    model: &mut dyn LanguageModel,
    sampler: &Sampler,
    tokens: &[Token],
    given: usize,
) -> Result<Vec<LogLikelihood>> {
    let sequence = model.open()?;
    let mut found = Vec::with_capacity(tokens.len() - given);
    let result = (|| {
        if given > 1 {
            model.forward(&[Pass { sequence, tokens: &tokens[..given - 1], rows: 0 }])?;
        }
        // The rows from the last given token on; the last token's row has nothing to predict.
        let read = &tokens[given - 1..tokens.len() - 1];
        for piece in read.chunks(ROWS) {
            let rows = model.forward(&[Pass { sequence, tokens: piece, rows: piece.len() }])?;
            for i in 0..piece.len() {
                let (logits, at) = (rows[0].row(i), given + found.len());
                let prefix = Prefix { tokens: &tokens[..at], prompt_len: given };
                let law = sampler.law(prefix, logits)?.probability(tokens[at]).ln();
                let raw = f64::from(logits[tokens[at].index()]) - log_normaliser(logits);
                found.push(LogLikelihood { raw, law });
            }
        }
        Ok(found)
    })();
    model.close(sequence);
    result
}

/// How likely a text is.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TextScore {
    /// Tokens predicted.
    pub(super) tokens: usize,
    /// Mean ln p a token, of the raw logits; null if one is impossible.
    pub(super) mean_log_likelihood: Option<f64>,
    /// Mean ln p a token under the contract's law, over the tokens that have mass there.
    pub(super) mean_log_likelihood_under_law: Option<f64>,
    /// Tokens that the contract's law cannot emit.
    pub(super) tokens_without_mass: usize,
}

/// Scores the pieces of a text, each on its own.
pub(super) fn text(
    models: &mut Models,
    sampler: &Sampler,
    pieces: &[&[Token]],
) -> Result<TextScore> {
    let mut all = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.len() > 1) {
        all.extend(likelihoods(models.target.language_model(), sampler, piece, 1)?);
    }
    let with_mass = || all.iter().map(|token| token.law).filter(|law| law.is_finite());
    Ok(TextScore {
        tokens: all.len(),
        mean_log_likelihood: mean(all.iter().map(|token| token.raw)).filter(|x| x.is_finite()),
        mean_log_likelihood_under_law: mean(with_mass()),
        tokens_without_mass: all.len() - with_mass().count(),
    })
}

/// Right answers of all.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Accuracy {
    pub(super) questions: usize,
    pub(super) right: usize,
    pub(super) accuracy: f64,
    /// Wilson's, at 95 %.
    pub(super) interval: [f64; 2],
    /// Questions without any answer: an empty line, no choice with mass, no room in the context. They
    /// count as wrong.
    pub(super) failures: usize,
    pub(super) failure_rate: f64,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Right,
    Wrong,
    Failed,
}

impl Accuracy {
    fn new(outcomes: &[Outcome]) -> Option<Self> {
        let count = |which| outcomes.iter().filter(|&&outcome| outcome == which).count();
        let (questions, right, failures) =
            (outcomes.len(), count(Outcome::Right), count(Outcome::Failed));
        (questions > 0).then(|| Self {
            questions,
            right,
            accuracy: right as f64 / questions as f64,
            interval: wilson(right, questions),
            failures,
            failure_rate: failures as f64 / questions as f64,
        })
    }
}

/// Answers to questions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Answers {
    /// `mean` or `sum` of the log-likelihoods of a choice's tokens.
    choice_score: ChoiceScore,
    /// Multiple choice by the raw logits: no sampler setting matters.
    pub(super) choice: Option<Accuracy>,
    /// Multiple choice by the contract's law: a choice that it cannot emit is out.
    pub(super) choice_under_law: Option<Accuracy>,
    /// The first line of generated text is the answer, letter by letter.
    pub(super) exact: Option<Accuracy>,
}

impl Answers {
    /// Right answers of all: by raw logits, and by generation.
    pub(super) fn score(&self) -> Option<f64> {
        let parts = || [&self.choice, &self.exact].into_iter().flatten();
        let all: usize = parts().map(|part| part.questions).sum();
        (all > 0).then(|| parts().map(|part| part.right).sum::<usize>() as f64 / all as f64)
    }
}

/// Answers all questions.
pub(super) fn answers(
    models: &mut Models,
    way: &Way<'_>,
    score: ChoiceScore,
    questions: &[&Question],
) -> Result<Answers> {
    let tokenizer = way.tokenizer;
    let (mut raw, mut law, mut prompts, mut wanted) = (vec![], vec![], vec![], vec![]);
    for question in questions {
        match question {
            Question::Choice { question, choices, answer } => {
                let scores = choose(models, tokenizer, &way.sampler, score, question, choices)?;
                raw.push(outcome(scores.as_deref(), |score| score.raw, *answer));
                law.push(outcome(scores.as_deref(), |score| score.law, *answer));
            }
            Question::Exact { prompt, answer } => {
                prompts.push(tokenizer.encode(prompt)?);
                wanted.push(answer.trim());
            }
        }
    }
    let mut exact = Vec::new();
    let context = models.target.config().transformer.context;
    let fits = |prompt: &Vec<Token>| !prompt.is_empty() && prompt.len() < context;
    let asked: Vec<Vec<Token>> = prompts.iter().filter(|prompt| fits(prompt)).cloned().collect();
    let texts = way.run(models, &asked, 1)?;
    let mut written = texts.iter().map(|written| first_line(&written.text));
    for (prompt, wanted) in prompts.iter().zip(wanted) {
        let line = if fits(prompt) { written.next() } else { None }.unwrap_or_default();
        exact.push(match line {
            "" => Outcome::Failed,
            line if line == wanted => Outcome::Right,
            _ => Outcome::Wrong,
        });
    }
    Ok(Answers {
        choice_score: score,
        choice: Accuracy::new(&raw),
        choice_under_law: Accuracy::new(&law),
        exact: Accuracy::new(&exact),
    })
}

/// The first line with anything on it, without the spaces around it; empty if there is none.
fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

/// The score of each choice as a continuation of the question; none if one does not fit the context.
fn choose(
    models: &mut Models,
    tokenizer: &Tokenizer,
    sampler: &Sampler,
    score: ChoiceScore,
    question: &str,
    choices: &[String],
) -> Result<Option<Vec<LogLikelihood>>> {
    let context = models.target.config().transformer.context;
    let begun = tokenizer.encode(question)?;
    let mut scores = Vec::with_capacity(choices.len());
    for choice in choices {
        // Words follow after one space, unless the question ends with white space of its own.
        let apart = !question.is_empty() && !question.ends_with(char::is_whitespace);
        let tail = tokenizer.encode_bare(&[if apart { " " } else { "" }, choice].concat())?;
        let tokens = [&begun[..], &tail].concat();
        if begun.is_empty() || tail.is_empty() || tokens.len() > context {
            return Ok(None);
        }
        let model = models.target.language_model();
        let all = likelihoods(model, sampler, &tokens, begun.len())?;
        let over = match score {
            ChoiceScore::Mean => all.len() as f64,
            ChoiceScore::Sum => 1.0,
        };
        scores.push(LogLikelihood {
            raw: all.iter().map(|token| token.raw).sum::<f64>() / over,
            law: all.iter().map(|token| token.law).sum::<f64>() / over,
        });
    }
    Ok(Some(scores))
}

/// The best choice is the answer; the first of several that are equally good.
fn outcome(
    scores: Option<&[LogLikelihood]>,
    by: impl Fn(&LogLikelihood) -> f64,
    answer: usize,
) -> Outcome {
    let mut best = None;
    for (i, score) in scores.into_iter().flatten().map(by).enumerate() {
        if score.is_finite() && best.is_none_or(|(_, most)| score > most) {
            best = Some((i, score));
        }
    }
    match best {
        None => Outcome::Failed,
        Some((i, _)) if i == answer => Outcome::Right,
        Some(_) => Outcome::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_without_mass_are_no_answers() {
        let score = |raw, law| LogLikelihood { raw, law };
        let scores = [score(-1.0, f64::NEG_INFINITY), score(-2.0, -0.5), score(-2.0, -0.5)];
        assert_eq!(outcome(Some(&scores), |score| score.raw, 0), Outcome::Right);
        assert_eq!(outcome(Some(&scores), |score| score.law, 0), Outcome::Wrong);
        assert_eq!(outcome(Some(&scores), |score| score.law, 1), Outcome::Right);
        assert_eq!(outcome(Some(&scores[..1]), |score| score.law, 0), Outcome::Failed);
        assert_eq!(outcome(None, |score| score.raw, 0), Outcome::Failed);
    }

    #[test]
    fn failures_count_as_wrong() {
        use Outcome::{Failed, Right, Wrong};
        let found = Accuracy::new(&[Right, Failed, Wrong, Right]).expect("questions");
        assert_eq!((found.questions, found.right, found.failures), (4, 2, 1));
        assert!((found.accuracy - 0.5).abs() < 1e-12 && (found.failure_rate - 0.25).abs() < 1e-12);
        assert!(Accuracy::new(&[]).is_none());
    }
}
