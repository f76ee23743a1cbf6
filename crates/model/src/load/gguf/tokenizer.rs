//! The tokenizer in a GGUF file, as one of the `tokenizers` crate.
//!
//! Two kinds: byte-level BPE (`gpt2`), whose merges are listed and whose way to cut a text into
//! words has a name, and SentencePiece's BPE (`llama`), whose merges follow from the scores: of two
//! neighbours those are joined first whose union scores best.

use std::collections::{BTreeMap, HashMap};

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper,
    models::bpe::{BPE, Vocab},
    normalizers::{Prepend, Replace, Sequence as Normalizers, unicode::NFC},
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
    tokenizer::normalizer::SplitDelimiterBehavior,
};

use super::header::Header;
use crate::{ChatTemplate, Error, Tokenizer, token_bytes::TokenBytes, tokenizer::Edges};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TEMPLATE: &str = "tokenizer.chat_template";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// Tokens that steer the model, and tokens that are found in a text before anything else.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// SentencePiece's space.
const SPACE: &str = "▁";

/// Pairs that merge to a token, on average, at most: real vocabularies have two or three. (Each
/// takes memory, and a vocabulary of "a", "aa", "aaa", … has as many as letters.)
const MOST_MERGES: usize = 16;

type Pairs = Vec<(String, String)>;

/// The tokenizer, if the file has one.
pub(super) fn read(header: &Header) -> Result<Option<Tokenizer>, Error> {
    let kind = match header.text(MODEL)? {
        // A model of ids only.
        None | Some("no_vocab" | "none") => return Ok(None),
        Some(kind) => kind,
    };
    let tokens = header.texts(TOKENS)?.unwrap_or_default();
    if tokens.is_empty() {
        return Err(header.error(TOKENS, "at least one token", "none"));
    }
    let vocabulary = Vocabulary { header, ids: ids(&tokens), tokens };
    match kind {
        "gpt2" => vocabulary.byte_level().map(Some),
        "llama" => vocabulary.sentence_piece().map(Some),
        other => {
            let expected = "\"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)";
            Err(header.error(MODEL, expected, format!("{other:?}")))
        }
    }
}

/// The chat template, if the file has one, with the special tokens that it may name.
pub(super) fn chat_template(header: &Header) -> Result<Option<ChatTemplate>, Error> {
    let Some(source) = header.text(TEMPLATE)? else { return Ok(None) };
    let tokens = header.texts(TOKENS)?.unwrap_or_default();
    let vocabulary = Vocabulary { header, ids: HashMap::new(), tokens };
    let mut named = BTreeMap::new();
    for (name, in_template) in [
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("unknown", "unk_token"),
        ("padding", "pad_token"),
    ] {
        if let Some(id) = vocabulary.id(name)? {
            named.insert(in_template.to_owned(), vocabulary.tokens[id as usize].to_owned());
        }
    }
    let label = format!("{}: {TEMPLATE}", header.label());
    Ok(Some(ChatTemplate::new(&label, source, named)))
}

/// The first id of each token.
fn ids<'a>(tokens: &[&'a str]) -> HashMap<&'a str, u32> {
    let mut ids = HashMap::new();
    for (id, token) in (0..).zip(tokens) {
        ids.entry(*token).or_insert(id);
    }
    ids
}

struct Vocabulary<'a> {
    header: &'a Header,
    tokens: Vec<&'a str>,
    ids: HashMap<&'a str, u32>,
}

impl Vocabulary<'_> {
    fn byte_level(&self) -> Result<Tokenizer, Error> {
        let header = self.header;
        let pre = header.text(PRE)?.unwrap_or("none");
        let Some(cut) = Cut::named(pre) else {
            let known = Cut::ALL.map(|cut| cut.names.join(", ")).join(", ");
            return Err(header.error(PRE, format!("one of {known}"), format!("{pre:?}")));
        };
        let merges = header.texts(MERGES)?.unwrap_or_default();
        let pair = |merge: &&str| merge.split_once(' ').map(|(a, b)| (a.into(), b.into()));
        let pairs: Option<Pairs> = merges.iter().map(pair).collect();
        let expected = "two tokens of the vocabulary and a space between";
        let pairs = pairs.ok_or_else(|| header.error(MERGES, expected, "another entry"))?;
        let model = BPE::builder()
            .vocab_and_merges(self.owned(), pairs)
            .ignore_merges(cut.whole_words_first)
            .build()
            .map_err(|error| header.error(MERGES, expected, error))?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(cut.pre_tokenizer().map_err(|e| self.broken(e))?));
        if cut.composed {
            inner.with_normalizer(Some(NFC)).map_err(|error| self.broken(error))?;
        }
        self.finish(inner, TokenBytes::ByteLevel, cut.begins)
    }

    fn sentence_piece(&self) -> Result<Tokenizer, Error> {
        let header = self.header;
        let unknown = self.id("unknown")?.and_then(|id| self.tokens.get(id as usize));
        let mut model = BPE::builder()
            .vocab_and_merges(self.owned(), self.merges_by_score()?)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = unknown {
            model = model.unk_token((*unknown).to_owned());
        }
        let model = model.build().map_err(|error| self.broken(error))?;
        let mut inner = tokenizers::Tokenizer::new(model);
        let prefixed = header.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let spaces = Replace::new(" ", SPACE).map_err(|error| self.broken(error))?;
        let mut steps = Vec::new();
        if prefixed {
            steps.push(NormalizerWrapper::from(Prepend::new(SPACE.into())));
        }
        steps.push(NormalizerWrapper::from(spaces));
        inner.with_normalizer(Some(Normalizers::new(steps))).map_err(|error| self.broken(error))?;
        let bytes = TokenBytes::Pieces {
            replace: vec![(SPACE.into(), " ".into())],
            byte_fallback: true,
            strip: usize::from(prefixed),
        };
        self.finish(inner, bytes, true)
    }

    /// All pairs of tokens whose union is a token, best score first; of equal ones those with the
    /// longer left part first, as transformers sorts them.
    fn merges_by_score(&self) -> Result<Pairs, Error> {
        let scores = self.header.numbers(SCORES)?.unwrap_or_default();
        if scores.len() != self.tokens.len() {
            let expected = format!("a score for each of {} tokens", self.tokens.len());
            return Err(self.header.error(SCORES, expected, scores.len()));
        }
        let most = self.tokens.len().saturating_mul(MOST_MERGES);
        let mut found = Vec::new();
        for (token, score) in self.tokens.iter().zip(&scores) {
            for (cut, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(cut);
                if let (Some(&a), Some(&b)) = (self.ids.get(left), self.ids.get(right)) {
                    found.push((*score, left, right, a, b));
                }
            }
            if found.len() > most {
                let expected =
                    format!("tokens that split into others in {MOST_MERGES} ways at most");
                return Err(self.header.error(TOKENS, expected, "more on average"));
            }
        }
        found.sort_by(|x, y| {
            let lengths = |left: &str, right: &str| (left.chars().count(), right.chars().count());
            y.0.total_cmp(&x.0)
                .then_with(|| lengths(y.1, y.2).cmp(&lengths(x.1, x.2)))
                .then_with(|| (x.3, x.4).cmp(&(y.3, y.4)))
        });
        Ok(found.into_iter().map(|(_, left, right, ..)| (left.into(), right.into())).collect())
    }

    fn owned(&self) -> Vocab {
        self.ids.iter().map(|(token, id)| ((*token).to_owned(), *id)).collect()
    }

    fn id(&self, name: &str) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.header.size(&key)? else { return Ok(None) };
        if id >= self.tokens.len() {
            let expected = format!("an id below {}, the number of tokens", self.tokens.len());
            return Err(self.header.error(&key, expected, id));
        }
        // There are fewer tokens than bytes in a header.
        Ok(Some(id as u32))
    }

    /// Marks the tokens that steer the model and those that come first, and adds the edges.
    fn finish(
        &self,
        mut inner: tokenizers::Tokenizer,
        bytes: TokenBytes,
        begins: bool,
    ) -> Result<Tokenizer, Error> {
        let header = self.header;
        let types = header.wholes(TYPES)?.unwrap_or_else(|| vec![1; self.tokens.len()]);
        if types.len() != self.tokens.len() {
            let expected = format!("a type for each of {} tokens", self.tokens.len());
            return Err(header.error(TYPES, expected, types.len()));
        }
        // Pieces are written with SentencePiece's space, which is there once a text is normalized.
        let normalized = matches!(bytes, TokenBytes::Pieces { .. });
        let of = |kind| {
            self.tokens.iter().zip(&types).filter(move |(_, t)| **t == kind).map(|(t, _)| *t)
        };
        let control = of(CONTROL).map(|token| AddedToken::from(token, true).normalized(false));
        let control: Vec<_> = control.collect();
        let defined = of(USER_DEFINED)
            .filter(|token| !token.is_empty())
            .map(|token| AddedToken::from(token, false).normalized(normalized));
        let defined: Vec<_> = defined.collect();
        inner.add_special_tokens(control).map_err(|error| self.broken(error))?;
        inner.add_tokens(defined).map_err(|error| self.broken(error))?;
        let (bos, eos) = (self.id("bos")?, self.id("eos")?);
        let add = |name| header.flag(&format!("tokenizer.ggml.add_{name}_token"));
        let add_bos = add("bos")?.or_else(|| bos.map(|_| begins));
        let edges = Edges { bos, eos, add_bos, add_eos: add("eos")? };
        Tokenizer::assemble(header.label(), inner, bytes, &edges)
    }

    fn broken(&self, error: impl ToString) -> Error {
        self.header.error(TOKENS, "a tokenizer", error)
    }
}

/// A way to cut a text into words.
struct Cut {
    /// What llama.cpp calls it.
    names: &'static [&'static str],
    /// A word that is a token is one, whatever the merges say.
    whole_words_first: bool,
    /// The text is put into Unicode's composed form first.
    composed: bool,
    /// Every digit is a word.
    digits: bool,
    /// The words; None: GPT-2's.
    words: Option<&'static str>,
    /// Whether the beginning of a text is marked if the file does not say.
    begins: bool,
}

impl Cut {
    const GPT2: Self = Self {
        names: &["gpt-2"],
        whole_words_first: false,
        composed: false,
        digits: false,
        words: None,
        begins: false,
    };

    /// Phi-4 has a name of others for its words, and so has SmolLM3.
    const LLAMA3: Self = Self {
        names: &["dbrx", "smaug-bpe"],
        words: Some(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )),
        ..Self::GPT2
    };

    const ALL: [Self; 5] = [
        Self::GPT2,
        Self { names: &["smollm"], digits: true, ..Self::GPT2 },
        Self::LLAMA3,
        Self {
            names: &["llama-bpe", "llama3", "llama-v3"],
            whole_words_first: true,
            begins: true,
            ..Self::LLAMA3
        },
        Self {
            names: &["qwen2"],
            composed: true,
            words: Some(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
            ..Self::GPT2
        },
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cut| cut.names.contains(&name))
    }

    fn pre_tokenizer(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        if self.digits {
            steps.push(Digits::new(true).into());
        }
        if let Some(words) = self.words {
            let pattern = SplitPattern::Regex(words.into());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, true, self.words.is_none()).into());
        Ok(Sequence::new(steps).into())
    }
}
