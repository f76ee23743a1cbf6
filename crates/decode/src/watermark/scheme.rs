//! [`Scheme`]: all of a watermark but its key. Generator and detector must agree on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a key, a context and a token become bits; the two are not interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// google-deepmind/synthid-text at commit addb4a1: iterated hashing.
    Gdm,
    /// Hugging Face transformers 5.24: the low bits of the hash index a table. Ids that are a table
    /// size (65 536) apart have the same bits.
    Hf,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gdm => "gdm",
            Self::Hf => "hf",
        })
    }
}

/// All of a watermark but its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// The hash.
    pub variant: Variant,
    /// The number of layers, 1 to 64: one bit and one number of the key each.
    pub depth: usize,
    /// How many generated tokens the bits depend on, beside the token itself: 1 or more (the
    /// reference's `ngram_len` less 1).
    pub context_len: usize,
    /// How many candidates meet in a match. 2 keeps the law on average over keys; more do not: they
    /// are *distortionary*, and mark more strongly.
    pub leaves: usize,
    /// How many positions back a context counts as repeated; `None`: the whole text, which the
    /// promise about the text's law needs.
    pub history: Option<usize>,
    /// Whether the first `context_len` tokens stay unmarked (the reference's
    /// `skip_first_ngram_calls`).
    pub skip_first: bool,
    /// The table of variant `hf`: its size, and the seed it is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
}

/// The sampling table of variant `hf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its length.
    pub size: usize,
    /// The seed of the generator (MT19937) that fills it.
    pub seed: u32,
}

impl Default for Scheme {
    /// The paper's depth and context, and masking over the whole text.
    fn default() -> Self {
        Self {
            variant: Variant::Gdm,
            depth: 30,
            context_len: 4,
            leaves: 2,
            history: None,
            skip_first: false,
            table: None,
        }
    }
}

/// A part of a scheme outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: expected {expected}, found {found}")]
pub struct SchemeError {
    /// Which part.
    pub name: &'static str,
    /// Its range.
    pub expected: &'static str,
    /// What was there.
    pub found: String,
}

impl Scheme {
    /// The reference's table: 65 536 bits from seed 0.
    pub const HF_TABLE: Table = Table { size: 1 << 16, seed: 0 };

    /// # Errors
    /// If a part is outside its range.
    pub fn check(&self) -> Result<(), SchemeError> {
        let require = |holds: bool, name, expected, found: usize| {
            let found = found.to_string();
            if holds { Ok(()) } else { Err(SchemeError { name, expected, found }) }
        };
        require((1..=64).contains(&self.depth), "depth", "1 to 64 layers", self.depth)?;
        require(
            (1..=64).contains(&self.context_len),
            "context_len",
            "1 to 64 tokens (with none, every context is repeated and nothing is marked)",
            self.context_len,
        )?;
        require((2..=16).contains(&self.leaves), "leaves", "2 to 16", self.leaves)?;
        let history = self.history.unwrap_or(1);
        require(history > 0, "history", "1 or more positions, or null for all", history)?;
        match (self.variant, self.table) {
            (Variant::Gdm, None) => Ok(()),
            (Variant::Gdm, Some(table)) => {
                require(false, "table", "none: variant gdm has no table", table.size)
            }
            (Variant::Hf, table) => {
                let size = table.unwrap_or(Self::HF_TABLE).size;
                require((1..=1 << 24).contains(&size), "table.size", "1 to 2^24", size)
            }
        }
    }

    /// The first position that can be marked.
    #[must_use]
    pub fn first_place(&self) -> usize {
        if self.skip_first { self.context_len } else { 0 }
    }

    /// Its parts by name, to print and to hash.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        // Destructured, so that a new part cannot be forgotten here.
        let Self { variant, depth, context_len, leaves, history, skip_first, table } = self;
        let mut entries = vec![
            ("variant", variant.to_string()),
            ("depth", depth.to_string()),
            ("context", context_len.to_string()),
            ("leaves", leaves.to_string()),
            ("history", history.map_or_else(|| "whole text".into(), |n| n.to_string())),
            ("skip-first", skip_first.to_string()),
        ];
        if *variant == Variant::Hf {
            let Table { size, seed } = table.unwrap_or(Self::HF_TABLE);
            entries.push(("table", format!("{size} bits of seed {seed}")));
        }
        entries
    }
}
