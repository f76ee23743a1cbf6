//! Text to ids and back, a token at a time.
//!
//! The text of ids is the concatenation of the *bytes of each token* ([`Tokenizer::bytes`]), read as
//! UTF-8 with U+FFFD for what is not. So a [`Decoder`] that is fed one token after the other gives
//! the same text as decoding all of them, however the tokens cut code points. For byte-level
//! tokenizers this is what `tokenizers` decodes. With byte fallback (`<0x0A>`) it is too, except in
//! runs of bytes that are no UTF-8: there `tokenizers` replaces every byte of the run, valid
//! characters included, which no incremental decoder could do without holding the whole run back.

use std::{collections::HashSet, fmt};

use draftproof_decode::Token;
use serde::Deserialize;
use serde_json::Value;

use crate::{Error, token_bytes::TokenBytes};

/// A tokenizer as `tokenizer.json` and `tokenizer_config.json`, or a GGUF file, describe it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    special: HashSet<u32>,
    vocab: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    begin: Edge,
    end: Edge,
}

/// What stands at an end of an encoded prompt beyond what `tokenizer.json` puts there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    AsIs,
    Add(u32),
    Remove(u32),
}

/// The ids that begin and end a text, and whether a prompt gets them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edges {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// None: as the post-processor does.
    pub(crate) add_bos: Option<bool>,
    /// None: as the post-processor does.
    pub(crate) add_eos: Option<bool>,
}

#[derive(Default, Deserialize)]
struct RawConfig {
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    bos_token: Option<Content>,
    eos_token: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Plain(String),
    Described { content: String },
}

impl Content {
    fn text(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Described { content: text } => text,
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab", &self.vocab)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json` and, if there is one, a `tokenizer_config.json`; each comes with
    /// the name that errors give it.
    ///
    /// # Errors
    /// If a file does not parse, names a special token that does not exist, or decodes in a way
    /// that has no bytes of single tokens.
    pub fn parse(
        (file, bytes): (&str, &[u8]),
        config: Option<(&str, &[u8])>,
    ) -> Result<Self, Error> {
        let raw: Value =
            serde_json::from_slice(bytes).map_err(|source| Error::json(file, source))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| Error::file(file, "a tokenizer", error.to_string()))?;
        // Settings of training and of batches; a prompt is neither cut nor filled up.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| Error::file(file, "a tokenizer", error.to_string()))?;
        let (config_file, config) = match config {
            None => (file, RawConfig::default()),
            Some((name, bytes)) => {
                let config = serde_json::from_slice(bytes);
                (name, config.map_err(|source| Error::json(name, source))?)
            }
        };
        let edges = Edges {
            bos: lookup(&inner, config_file, "bos_token", config.bos_token)?,
            eos: lookup(&inner, config_file, "eos_token", config.eos_token)?,
            add_bos: config.add_bos_token,
            add_eos: config.add_eos_token,
        };
        Self::assemble(config_file, inner, TokenBytes::parse(file, &raw["decoder"])?, &edges)
    }

    /// A tokenizer from its parts; `file` says what its edges are.
    pub(crate) fn assemble(
        file: &str,
        inner: tokenizers::Tokenizer,
        bytes: TokenBytes,
        edges: &Edges,
    ) -> Result<Self, Error> {
        let special = inner.get_added_tokens_decoder().into_iter();
        let mut tokenizer = Self {
            bytes,
            special: special.filter(|(_, token)| token.special).map(|(id, _)| id).collect(),
            vocab: inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1),
            bos: edges.bos,
            eos: edges.eos,
            begin: Edge::AsIs,
            end: Edge::AsIs,
            inner,
        };
        let probe = tokenizer.encode_inner("", true)?;
        let has = |edge: Option<&u32>, id: Option<u32>| edge.is_some() && edge.copied() == id;
        tokenizer.begin = edge(
            (file, "add_bos_token", edges.add_bos),
            (tokenizer.bos, has(probe.first(), tokenizer.bos)),
        )?;
        // One token that is both begins the text; it does not end it as well.
        let ends =
            has(probe.last(), tokenizer.eos) && (probe.len() > 1 || tokenizer.eos != tokenizer.bos);
        tokenizer.end = edge((file, "add_eos_token", edges.add_eos), (tokenizer.eos, ends))?;
        Ok(tokenizer)
    }

    /// The ids of a prompt, with the special tokens that the model expects around it: those of
    /// the post-processor of `tokenizer.json`, corrected by `add_bos_token` and `add_eos_token` of
    /// `tokenizer_config.json` where these are given. A bos is never added twice.
    ///
    /// # Errors
    /// If the tokenizer has no way to write the text.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, Error> {
        let mut ids = self.encode_inner(text, true)?;
        match self.begin {
            Edge::Add(id) => ids.insert(0, id),
            Edge::Remove(id) if ids.first() == Some(&id) => drop(ids.remove(0)),
            Edge::Remove(_) | Edge::AsIs => {}
        }
        match self.end {
            Edge::Add(id) => ids.push(id),
            Edge::Remove(id) if ids.last() == Some(&id) => drop(ids.pop()),
            Edge::Remove(_) | Edge::AsIs => {}
        }
        Ok(ids.into_iter().map(Token).collect())
    }

    /// The ids of a text and nothing around it.
    ///
    /// # Errors
    /// If the tokenizer has no way to write the text.
    pub fn encode_bare(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.encode_inner(text, false)?.into_iter().map(Token).collect())
    }

    fn encode_inner(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        let encoding = self.inner.encode(text, add_special);
        let encoding = encoding.map_err(|error| Error::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// One more than the largest id.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The id that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<Token> {
        self.bos.map(Token)
    }

    /// The id that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<Token> {
        self.eos.map(Token)
    }

    /// The token as the vocabulary writes it, not as text: a byte-level space is `Ġ`.
    #[must_use]
    pub fn token_string(&self, token: Token) -> Option<String> {
        self.inner.id_to_token(token.0)
    }

    /// Whether the token steers the model (bos, eos, turn marks…) and is no part of the text.
    #[must_use]
    pub fn is_special(&self, token: Token) -> bool {
        self.special.contains(&token.0)
    }

    /// What the token adds to the text: nothing for special tokens and unknown ids. The bytes need
    /// not be whole code points. (A leading space that the tokenizer itself has put before a text
    /// is still there.)
    #[must_use]
    pub fn bytes(&self, token: Token) -> Vec<u8> {
        if self.is_special(token) {
            return Vec::new();
        }
        self.token_string(token).map(|string| self.bytes.of(&string)).unwrap_or_default()
    }

    /// The text of all of `tokens`, from the beginning of a text.
    #[must_use]
    pub fn decode(&self, tokens: &[Token]) -> String {
        let mut decoder = self.decoder();
        let mut text: String = tokens.iter().map(|&token| decoder.push(token)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// Decodes from the beginning of a text.
    #[must_use]
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder { tokenizer: self, strip: self.bytes.strip(), pending: Vec::new() }
    }

    /// Decodes what follows `prompt`: as [`decoder`](Self::decoder), but a space in front of the
    /// first token separates it from the prompt and stays.
    #[must_use]
    pub fn decoder_after(&self, prompt: &[Token]) -> Decoder<'_> {
        let mut decoder = self.decoder();
        if prompt.iter().any(|&token| !self.bytes(token).is_empty()) {
            decoder.strip = 0;
        }
        decoder
    }
}

fn lookup(
    inner: &tokenizers::Tokenizer,
    file: &str,
    field: &str,
    content: Option<Content>,
) -> Result<Option<u32>, Error> {
    let Some(content) = content else {
        return Ok(None);
    };
    let id = inner.token_to_id(content.text());
    let found = || format!("{:?}", content.text());
    id.map(Some).ok_or_else(|| Error::field(file, field, "a token of tokenizer.json", found()))
}

fn edge(
    (file, field, wanted): (&str, &str, Option<bool>),
    (token, there): (Option<u32>, bool),
) -> Result<Edge, Error> {
    match (wanted, token) {
        (Some(true), None) => {
            Err(Error::field(file, field, "false, since the token is not named", true))
        }
        (Some(true), Some(id)) if !there => Ok(Edge::Add(id)),
        (Some(false), Some(id)) if there => Ok(Edge::Remove(id)),
        _ => Ok(Edge::AsIs),
    }
}

/// Turns tokens into text as they come; bytes of an unfinished code point are held back.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    /// How many leading spaces of the text are still to be dropped.
    strip: usize,
    pending: Vec<u8>,
}

impl Decoder<'_> {
    /// The text that is complete with this token and was not before.
    pub fn push(&mut self, token: Token) -> String {
        let bytes = self.tokenizer.bytes(token);
        let mut bytes = bytes.as_slice();
        while self.strip > 0 && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) => (bytes, self.strip) = (rest, self.strip - 1),
                None => self.strip = 0,
            }
        }
        self.pending.extend_from_slice(bytes);
        self.complete()
    }

    /// What was held back: U+FFFD for a code point that will never be finished.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }

    /// Whether bytes of an unfinished code point are held back.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        loop {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    done = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = &self.pending[done..done + error.valid_up_to()];
                    text.push_str(&String::from_utf8_lossy(valid));
                    done += error.valid_up_to();
                    // None: the bytes may still become a code point.
                    let Some(wrong) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.pending.drain(..done);
        text
    }
}
