//! May this draft guess for this target? If they have the same strings, or enough of them.
//!
//! Where the ids that both have mean the same strings, the draft is used as it is; it may have fewer
//! ids, more, or ids without a string (which it never proposes). Else tokens are translated, if at
//! least half of the smaller vocabulary is in the other one: ordinary tokens are the same if their
//! bytes are, however the two tokenizers write them; special ones if their names are; and what
//! begins and ends a text is the same in both whatever its name.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use draftproof_decode::{Token, draft::mapped::TokenMap};

use crate::{Error, Model, Tokenizer};

/// What two models have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pairing {
    /// The same ids for the same strings.
    SameIds {
        /// The ids below this mean the same on both sides. A draft with more must be cut to it
        /// ([`TransformerModel::limit_vocab`](crate::TransformerModel::limit_vocab)).
        shared: usize,
        /// How this is known.
        evidence: Evidence,
    },
    /// Other ids for many of the same strings: the draft needs a
    /// [`Mapped`](draftproof_decode::draft::mapped::Mapped) around it.
    OtherIds {
        /// The tokens that both have.
        map: TokenMap,
        /// The first id that means something else.
        difference: Difference,
    },
}

impl Pairing {
    /// How many tokens both have.
    #[must_use]
    pub fn shared(&self) -> usize {
        match self {
            Self::SameIds { shared, .. } => *shared,
            Self::OtherIds { map, .. } => map.shared(),
        }
    }
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

/// An id that means something else in the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The id.
    pub id: Token,
    /// Its string in the target, if it has one.
    pub in_target: Option<String>,
    /// Its string in the draft, if it has one.
    pub in_draft: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |string: &Option<String>| match string {
            Some(string) => format!("{string:?}"),
            None => "no token".into(),
        };
        let (ours, theirs) = (quote(&self.in_target), quote(&self.in_draft));
        write!(f, "token {} is {ours} in the target and {theirs} in the draft", self.id)
    }
}

/// Compares the vocabularies of two models.
///
/// # Errors
/// If an id means something else in the draft and too few strings are in both, or, where a tokenizer
/// is missing, if the sizes differ.
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
        return Ok(Pairing::SameIds { shared, evidence: Evidence::SizesOnly });
    };
    let Some(difference) = first_difference(ours, theirs, shared) else {
        return Ok(Pairing::SameIds { shared, evidence: Evidence::Strings });
    };
    let map = map((ours, target_vocab), (theirs, draft_vocab));
    let needed = shared.div_ceil(2);
    if map.shared() < needed {
        return Err(Error::PairToken {
            target: target_name,
            draft: draft_name,
            difference,
            shared: map.shared(),
            needed,
        });
    }
    Ok(Pairing::OtherIds { map, difference })
}

fn first_difference(target: &Tokenizer, draft: &Tokenizer, shared: usize) -> Option<Difference> {
    (0..shared).map(Token::at).find_map(|id| {
        let (in_target, in_draft) = (target.token_string(id), draft.token_string(id));
        let differs = in_draft.is_some() && in_target != in_draft;
        differs.then_some(Difference { id, in_target, in_draft })
    })
}

/// What makes two tokens the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Meaning {
    Special(String),
    Text(Vec<u8>),
}

/// The tokens by their meanings. Of several with one meaning (a letter, and the byte that it is)
/// the one with the shortest string counts, then the first.
fn meanings(tokenizer: &Tokenizer, vocab: usize) -> HashMap<Meaning, Token> {
    let mut found: HashMap<Meaning, (usize, Token)> = HashMap::new();
    for token in (0..vocab).map(Token::at) {
        let Some(string) = tokenizer.token_string(token) else { continue };
        let bytes = tokenizer.bytes(token);
        let rank = (string.len(), token);
        let meaning =
            if bytes.is_empty() { Meaning::Special(string) } else { Meaning::Text(bytes) };
        found.entry(meaning).and_modify(|best| *best = rank.min(*best)).or_insert(rank);
    }
    found.into_iter().map(|(meaning, (_, token))| (meaning, token)).collect()
}

fn map(
    (target, target_vocab): (&Tokenizer, usize),
    (draft, draft_vocab): (&Tokenizer, usize),
) -> TokenMap {
    let theirs = meanings(draft, draft_vocab);
    let mut to_draft = vec![None; target_vocab];
    for (meaning, ours) in meanings(target, target_vocab) {
        to_draft[ours.index()] = theirs.get(&meaning).copied();
    }
    let mut taken: BTreeSet<Token> = to_draft.iter().flatten().copied().collect();
    for (ours, theirs) in [(target.bos(), draft.bos()), (target.eos(), draft.eos())] {
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && let Some(entry @ None) = to_draft.get_mut(ours.index())
            && theirs.index() < draft_vocab
            && taken.insert(theirs)
        {
            *entry = Some(theirs);
        }
    }
    TokenMap::new(to_draft)
}
