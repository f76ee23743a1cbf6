//! A watermark that survives speculation: SynthID-Text (Dathathri et al., Nature 634, 2024) as a
//! transform `Dist → Dist`, the last one before the draw.
//!
//! A key turns the last tokens of the text (the *context*) and a candidate token into pseudorandom
//! bits, one for each layer ([`g_values`]). A [`tournament`] then shifts weight towards tokens whose
//! bits are 1: for one key the law changes, and a detector that has the key sees it
//! ([`detect`]); averaged over all keys it is the law that went in, as rationals.
//!
//! # Pure in the generated prefix
//! The context is the last `H` *generated* tokens (zeros before the first; the prompt does not
//! count). A context that occurred before is masked: the law passes unchanged, since the same bits a
//! second time would make the text's law differ from the model's even on average over keys. Both are
//! functions of the generated tokens, committed and drafted; nothing is stored between calls, so a
//! rejected draft leaves nothing to roll back. Contexts are compared token by token, which needs no
//! cache (a scan of 2 000 tokens takes about a microsecond); the reference compares 64-bit hashes.
//!
//! # Under speculation
//! | [`Mode`] | accepts with | law |
//! |---|---|---|
//! | `exact` | `min(1, W(p)/W(q))`, W the tournament under one key | for **every** key that of plain decoding with this watermark, W(p), under each verifier |
//! | `fast` | `min(1, p/q)` of the laws before the watermark | averaged over keys the model's, p; for one key neither p nor W(p) |
//!
//! `exact` is the paper's high-detectability rule (and Hu and Huang's, 2410.20418, "maintain
//! watermark strength"): all evidence stays, fewer drafted tokens are accepted. `fast` is the
//! paper's rule that keeps the acceptance, see [`FastWatermark`](crate::verify::FastWatermark); it
//! dilutes the evidence.

mod context;
pub mod detect;
pub mod g_values;
mod key;
pub mod scheme;
pub mod tournament;

use std::{collections::HashSet, fmt, sync::Arc};

use crate::{Dist, Token, dist::Residual};

pub use context::{Contexts, context};
pub use g_values::{GValues, Hashed};
pub use key::{Key, KeyError, KeyRing, StoredKey};
pub use scheme::{Scheme, SchemeError, Variant};

/// What speculation keeps of the watermark; see the [module docs](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The law of plain decoding with the watermark, for every key.
    #[default]
    Exact,
    /// The acceptance of decoding without the watermark, and the model's law averaged over keys.
    Fast,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        })
    }
}

/// A scheme with its bits: all that marking a law takes.
#[derive(Clone, Debug)]
pub struct Watermark {
    scheme: Scheme,
    mode: Mode,
    id: String,
    values: Arc<dyn GValues>,
    /// Independent of `values`: what is drawn after a rejection, in mode `fast`.
    residual_values: Arc<dyn GValues>,
    /// Contexts of texts that came before this one.
    seen: Arc<HashSet<Vec<Token>>>,
}

impl Watermark {
    /// The watermark of a stored key.
    #[must_use]
    pub fn new(key: &StoredKey, mode: Mode) -> Self {
        let scheme = key.scheme.clone();
        let values = Arc::new(Hashed::new(&scheme, &key.key));
        let residual_values = Arc::new(Hashed::new(&scheme, &key.key.for_residuals()));
        Self::from_values(scheme, mode, key.id.clone(), values, residual_values)
    }

    /// A watermark whose bits come from elsewhere, such as a table that a proof runs through.
    #[must_use]
    pub fn from_values(
        scheme: Scheme,
        mode: Mode,
        id: String,
        values: Arc<dyn GValues>,
        residual_values: Arc<dyn GValues>,
    ) -> Self {
        Self { scheme, mode, id, values, residual_values, seen: Arc::default() }
    }

    /// What speculation keeps of it.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The key's id, which says nothing about the key.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The same watermark for a text that comes after `generated`: contexts of that text are masked
    /// too, so that *several* texts together have the model's joint law, averaged over keys.
    #[must_use]
    pub fn after(&self, generated: &[Token]) -> Self {
        let mut seen = HashSet::clone(&self.seen);
        let places = self.scheme.first_place()..generated.len();
        seen.extend(places.map(|place| context(&generated[..place], self.scheme.context_len)));
        Self { seen: Arc::new(seen), ..self.clone() }
    }

    /// Whether the law after `generated` passes unchanged.
    #[must_use]
    pub fn is_masked(&self, generated: &[Token]) -> bool {
        Contexts::new(&self.scheme, generated).is_masked(generated.len())
            || (!self.seen.is_empty()
                && self.seen.contains(&context(generated, self.scheme.context_len)))
    }

    /// The law of the token after `generated`, given its law without the watermark.
    #[must_use]
    pub fn mark(&self, generated: &[Token], law: Dist) -> Dist {
        self.apply(&*self.values, generated, law)
    }

    /// The law of the token after a rejection, given the residual of the laws without the watermark
    /// (mode `fast`).
    ///
    /// Its wide weights are first brought to a total of at most 2^61, in id order: with C their
    /// cumulative sums and T their total, token x gets `⌊C_x·2^61/T⌋ − ⌊C_{x−1}·2^61/T⌋`. A total
    /// that is not larger stays; else each probability moves by less than 2^-61.
    ///
    /// # Panics
    /// If a token of the residual is outside the vocabulary.
    #[must_use]
    pub fn mark_residual(
        &self,
        generated: &[Token],
        residual: &Residual<'_>,
        vocab: usize,
    ) -> Dist {
        let narrow = tournament::narrowed(residual, vocab);
        self.apply(&*self.residual_values, generated, narrow)
    }

    fn apply(&self, values: &dyn GValues, generated: &[Token], law: Dist) -> Dist {
        if law.only().is_some() || self.is_masked(generated) {
            return law;
        }
        let context = context(generated, self.scheme.context_len);
        tournament::tournament(&law, &context, values, self.scheme.leaves)
    }

    /// What of it makes the law, for the contract: the key's id, never the key.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries = vec![("mode", self.mode.to_string()), ("key", self.id.clone())];
        entries.extend(self.scheme.entries());
        entries
    }
}

#[cfg(test)]
mod tests;
