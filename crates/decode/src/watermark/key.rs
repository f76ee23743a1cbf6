//! Keys, and the file they live in.
//!
//! A key never shows: it has no `Display`, its `Debug` is blank, and errors about it say what is
//! wrong without saying what is there.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{Scheme, SchemeError};

/// One number for each layer.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<i64>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The key with these numbers, layer 0 first.
    #[must_use]
    pub fn new(layers: Vec<i64>) -> Self {
        Self(layers)
    }

    /// The number of layers.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    pub(super) fn layers(&self) -> &[i64] {
        &self.0
    }

    /// An independent key, for what mode `fast` draws after a rejection: the first eight bytes of a
    /// SHA-256 over a name, the layer and this key. With the *same* key there the text would be
    /// biased even on average over keys.
    #[must_use]
    pub fn for_residuals(&self) -> Self {
        let layer = |layer: usize| {
            let digest = self.digest(&format!("draftproof watermark residual {layer}\n"));
            i64::from_le_bytes(digest[..8].try_into().expect("32 bytes hold 8"))
        };
        Self((0..self.0.len()).map(layer).collect())
    }

    /// A name for the key: 16 hexadecimal digits of a SHA-256, from which random numbers of 64 bits
    /// cannot be found again.
    #[must_use]
    pub fn id(&self, scheme: &Scheme) -> String {
        let scheme = serde_json::to_string(scheme).expect("plain data can be written as JSON");
        let digest = self.digest(&format!("draftproof watermark key {scheme}\n"));
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn digest(&self, name: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(name);
        self.0.iter().for_each(|layer| hash.update(layer.to_le_bytes()));
        hash.finalize().into()
    }
}

impl Serialize for Key {
    /// Decimal strings: JSON's own numbers lose digits beyond 2^53 in some readers.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(i64::to_string))
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a list of 64-bit numbers")]
        enum Layer {
            Number(i64),
            Text(String),
        }
        // Errors of the parser would quote what they found.
        let blank = || serde::de::Error::custom("expected a list of 64-bit numbers in the key");
        let layers = Vec::<Layer>::deserialize(deserializer).map_err(|_| blank())?;
        let layer = |layer| match layer {
            Layer::Number(number) => Ok(number),
            Layer::Text(text) => text.parse().map_err(|_| blank()),
        };
        Ok(Self(layers.into_iter().map(layer).collect::<Result<_, _>>()?))
    }
}

/// A key as a file keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    /// The key's name, [`Key::id`]: it is also a check that scheme and key belong together.
    pub id: String,
    /// When it was made, `YYYY-MM-DD`.
    pub created: String,
    /// The SHA-256 of the tokenizer whose ids are marked, if it is known.
    pub tokenizer: Option<String>,
    /// Everything else that generator and detector must agree on.
    pub scheme: Scheme,
    /// The secret.
    pub key: Key,
}

impl StoredKey {
    /// A key with its id.
    ///
    /// # Errors
    /// If the scheme is out of range, or the key has another depth.
    pub fn new(
        scheme: Scheme,
        key: Key,
        created: String,
        tokenizer: Option<String>,
    ) -> Result<Self, KeyError> {
        let id = key.id(&scheme);
        let stored = Self { id, created, tokenizer, scheme, key };
        stored.check()?;
        Ok(stored)
    }

    fn check(&self) -> Result<(), KeyError> {
        self.scheme.check()?;
        if self.key.depth() != self.scheme.depth {
            let (expected, found) = (self.scheme.depth, self.key.depth());
            return Err(KeyError::Depth { expected, found });
        }
        if self.key.id(&self.scheme) != self.id {
            return Err(KeyError::Changed { id: self.id.clone() });
        }
        Ok(())
    }
}

/// What a key file holds: the key in use first, then those that were in use before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRing {
    format: String,
    keys: Vec<StoredKey>,
}

/// Why a key file cannot be used. No variant holds any of the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Not the JSON of a key file.
    #[error("line {line}, column {column}: expected the JSON of `watermark keygen`; {what}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What kind of fault it is.
        what: &'static str,
    },
    /// Another format.
    #[error("`format`: expected {:?}, found {found:?}", KeyRing::FORMAT)]
    Format {
        /// What was there.
        found: String,
    },
    /// A file without a key.
    #[error("`keys`: expected at least one key, found none")]
    NoKey,
    /// Two keys with one id.
    #[error("`keys`: key {id} occurs twice")]
    Twice {
        /// Its id.
        id: String,
    },
    /// A part of the scheme is out of range.
    #[error("`scheme`: {0}")]
    Scheme(#[from] SchemeError),
    /// Not one number a layer.
    #[error("`key`: expected {expected} numbers, one for each layer of depth, found {found}")]
    Depth {
        /// The scheme's depth.
        expected: usize,
        /// How many numbers there are.
        found: usize,
    },
    /// The id does not fit.
    #[error("key {id}: scheme or key were changed after the key was made")]
    Changed {
        /// Its id.
        id: String,
    },
}

impl KeyRing {
    /// What `format` says.
    pub const FORMAT: &str = "draftproof watermark keys 1";

    /// A ring of one key.
    #[must_use]
    pub fn new(key: StoredKey) -> Self {
        Self { format: Self::FORMAT.into(), keys: vec![key] }
    }

    /// Puts a new key in use.
    ///
    /// # Errors
    /// If it is in the ring already.
    pub fn rotate(&mut self, key: StoredKey) -> Result<(), KeyError> {
        if self.keys.iter().any(|old| old.id == key.id) {
            return Err(KeyError::Twice { id: key.id });
        }
        self.keys.insert(0, key);
        Ok(())
    }

    /// The key in use.
    #[must_use]
    pub fn current(&self) -> &StoredKey {
        &self.keys[0]
    }

    /// All keys, the one in use first.
    #[must_use]
    pub fn keys(&self) -> &[StoredKey] {
        &self.keys
    }

    /// # Errors
    /// If it is not the JSON of a key file, or a key in it cannot be used.
    pub fn parse(json: &str) -> Result<Self, KeyError> {
        let ring: Self = serde_json::from_str(json).map_err(|error| KeyError::Json {
            line: error.line(),
            column: error.column(),
            // The parser's own words quote the file.
            what: match error.classify() {
                serde_json::error::Category::Data => {
                    "a field is missing, unknown or of a wrong kind"
                }
                serde_json::error::Category::Eof => "the file ends early",
                _ => "this is no JSON",
            },
        })?;
        if ring.format != Self::FORMAT {
            return Err(KeyError::Format { found: ring.format });
        }
        if ring.keys.is_empty() {
            return Err(KeyError::NoKey);
        }
        for (place, key) in ring.keys.iter().enumerate() {
            key.check()?;
            if ring.keys[..place].iter().any(|earlier| earlier.id == key.id) {
                return Err(KeyError::Twice { id: key.id.clone() });
            }
        }
        Ok(ring)
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("plain data can be written as JSON");
        json.push('\n');
        json
    }
}
