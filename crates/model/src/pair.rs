//! May this draft guess for this target? Only if the ids they share mean the same strings.

use draftproof_decode::Token;

use crate::{Error, Model, Tokenizer};

/// What two models have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The ids below this mean the same on both sides. A draft with more must be cut to it
    /// ([`TransformerModel::limit_vocab`](crate::TransformerModel::limit_vocab)).
    pub shared: usize,
    /// How this is known.
    pub evidence: Evidence,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The string of every shared id.
    Strings,
    /// Only the sizes, since one of the models has no tokenizer.
    SizesOnly,
}

/// Compares the vocabularies of two models. The draft's may be smaller, larger, padded, or have
/// ids without a string (which it never proposes).
///
/// # Errors
/// If an id means something else in the draft, or, where a tokenizer is missing, if the sizes
/// differ.
pub fn check(target: &Model, draft: &Model) -> Result<Pairing, Error> {
    let side = |model: &Model| (model.name().to_owned(), model.vocab());
    let (target_name, target_vocab) = side(target);
    let (draft_name, draft_vocab) = side(draft);
    let shared = target_vocab.min(draft_vocab);
    let (Some(ours), Some(theirs)) = (target.tokenizer(), draft.tokenizer()) else {
        if target_vocab != draft_vocab {
            return Err(Error::PairSize {
                target: target_name,
                draft: draft_name,
                target_vocab,
                draft_vocab,
            });
        }
        return Ok(Pairing { shared, evidence: Evidence::SizesOnly });
    };
    if let Some((token, in_target, in_draft)) = first_difference(ours, theirs, shared) {
        return Err(Error::PairToken {
            target: target_name,
            draft: draft_name,
            id: token.0,
            in_target: quote(in_target),
            in_draft: quote(in_draft),
        });
    }
    Ok(Pairing { shared, evidence: Evidence::Strings })
}

type Difference = (Token, Option<String>, Option<String>);

fn first_difference(target: &Tokenizer, draft: &Tokenizer, shared: usize) -> Option<Difference> {
    (0..shared).map(Token::at).find_map(|token| {
        let (ours, theirs) = (target.token_string(token), draft.token_string(token));
        (theirs.is_some() && ours != theirs).then_some((token, ours, theirs))
    })
}

fn quote(string: Option<String>) -> String {
    string.map_or_else(|| "no token".into(), |string| format!("{string:?}"))
}
