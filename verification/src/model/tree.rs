//! The exact joint law of the next L tokens, from the target's prefix tree.

use std::collections::{BTreeMap, HashMap};

use draftproof_decode::{
    Dist, LanguageModel, ModelError, Sampler, Token, lm::Pass, sampler::Prefix,
};

use crate::{Error, goodness::Cells};

/// Rows of a model after prefixes, each computed in a fresh sequence in one pass: nothing is ever
/// cut back, so these rows are the reference for those that were.
#[derive(Debug, Default)]
pub struct FreshRows(HashMap<Vec<Token>, Box<[f32]>>);

impl FreshRows {
    /// The row after `text`.
    ///
    /// # Errors
    /// If the model fails.
    pub fn row(
        &mut self,
        model: &mut dyn LanguageModel,
        text: &[Token],
    ) -> Result<&[f32], ModelError> {
        if !self.0.contains_key(text) {
            let sequence = model.open()?;
            let rows = model.forward(&[Pass { sequence, tokens: text, rows: 1 }]);
            model.close(sequence);
            self.0.insert(text.to_vec(), rows?.swap_remove(0).row(0).into());
        }
        Ok(&self.0[text])
    }
}

/// The token that stands for "any other": no vocabulary has it.
const OTHER: Token = Token(u32::MAX);

/// What is continued, under which contract, how far.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The contract.
    pub sampler: &'a Sampler,
    /// The prompt.
    pub prompt: &'a [Token],
    /// Tokens that end a text.
    pub eos: &'a [Token],
    /// Tokens of the joint law.
    pub length: usize,
}

impl Question<'_> {
    /// The law of the token after the prompt and `generated`.
    ///
    /// # Errors
    /// If the model fails, or the row has no law.
    pub fn law(
        &self,
        rows: &mut FreshRows,
        target: &mut dyn LanguageModel,
        generated: &[Token],
    ) -> Result<Dist, Error> {
        let text = [self.prompt, generated].concat();
        let row = rows.row(target, &text)?;
        let prefix = Prefix { tokens: &text, prompt_len: self.prompt.len() };
        let law = self.sampler.law(prefix, row);
        law.map_err(|source| Error::Row { position: text.len(), source })
    }

    /// Whether a text is complete.
    #[must_use]
    pub fn ends(&self, generated: &[Token]) -> bool {
        generated.len() >= self.length
            || generated.last().is_some_and(|last| self.eos.contains(last))
    }
}

/// The law of texts of L tokens (or ended by EOS) on cells.
///
/// Prefixes of probability `least` or more are expanded; at each of them the children below `least`
/// are one outcome, "another token here, and then anything", whose probability is exactly the sum
/// of theirs. So no mass is lost, and outcomes that must not occur (weight 0 at an expanded prefix)
/// are known.
#[derive(Clone, Debug)]
pub struct TextLaw {
    cells: Cells<Vec<Token>>,
    /// For each expanded prefix the children that are told apart, and all that are possible.
    nodes: BTreeMap<Vec<Token>, Node>,
    pooled: f64,
    length: usize,
}

#[derive(Clone, Debug)]
struct Node {
    told_apart: Vec<Token>,
    law: Dist,
}

/// Where a text falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this cell, and every token of it is known to be possible.
    Cell(usize),
    /// In this cell; the tokens after the first `checked` ones are behind the expanded tree.
    Beyond {
        /// The cell.
        cell: usize,
        /// Tokens known to be possible.
        checked: usize,
    },
    /// It has a token of probability 0.
    Impossible,
}

impl TextLaw {
    /// Walks the target's prefix tree.
    ///
    /// # Errors
    /// If the model fails, or a row has no law.
    pub fn walk(
        question: &Question<'_>,
        rows: &mut FreshRows,
        target: &mut dyn LanguageModel,
        least: f64,
    ) -> Result<Self, Error> {
        let mut outcomes = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        let mut pooled = 0.0;
        let mut open = vec![(Vec::new(), 1.0)];
        while let Some((text, probability)) = open.pop() {
            if question.ends(&text) {
                outcomes.insert(text, probability);
                continue;
            }
            let law = question.law(rows, target, &text)?;
            let (mut told_apart, mut rest) = (Vec::new(), 0u64);
            for (token, weight) in law.support() {
                let child = probability * (weight as f64 / law.total() as f64);
                if child >= least {
                    told_apart.push(token);
                    open.push(([&text[..], &[token]].concat(), child));
                } else {
                    rest += weight;
                }
            }
            if rest > 0 {
                let other = probability * (rest as f64 / law.total() as f64);
                pooled += other;
                outcomes.insert([&text[..], &[OTHER]].concat(), other);
            }
            nodes.insert(text, Node { told_apart, law });
        }
        let cells = Cells::new(&outcomes, least);
        Ok(Self { cells, nodes, pooled, length: question.length })
    }

    /// The cells.
    #[must_use]
    pub fn cells(&self) -> &Cells<Vec<Token>> {
        &self.cells
    }

    /// The probability of all "another token here" outcomes.
    #[must_use]
    pub fn pooled(&self) -> f64 {
        self.pooled
    }

    /// The number of expanded prefixes.
    #[must_use]
    pub fn expanded(&self) -> usize {
        self.nodes.len()
    }

    /// The texts that are told apart.
    pub fn leaves(&self) -> impl Iterator<Item = Vec<Token>> {
        let outcomes = self.cells.outcomes().into_iter().flatten();
        outcomes.filter(|outcome| outcome.last() != Some(&OTHER))
    }

    /// Where a text falls. A text that goes on behind an EOS, or stops before the end without one,
    /// is impossible.
    #[must_use]
    pub fn place(&self, text: &[Token]) -> Place {
        if text.len() > self.length {
            return Place::Impossible;
        }
        for (i, &token) in text.iter().enumerate() {
            let Some(node) = self.nodes.get(&text[..i]) else {
                return Place::Impossible;
            };
            if node.law.weight(token) == 0 {
                return Place::Impossible;
            }
            if !node.told_apart.contains(&token) {
                let other = [&text[..i], &[OTHER]].concat();
                return match self.cells.of(&other) {
                    Some(cell) => Place::Beyond { cell, checked: i + 1 },
                    None => Place::Impossible,
                };
            }
        }
        self.cells.of(&text.to_vec()).map_or(Place::Impossible, Place::Cell)
    }
}
