//! The bytes that a token stands for, from the `decoder` of a `tokenizer.json`.

use serde_json::Value;

use crate::Error;

/// How the string of a token becomes bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenBytes {
    /// GPT-2's alphabet: one printable character for each byte.
    ByteLevel,
    /// SentencePiece's: replacements in order, then `<0xNN>` as a byte.
    Pieces {
        replace: Vec<(String, String)>,
        byte_fallback: bool,
        /// Leading spaces that belong to the tokenizer and not to the text.
        strip: usize,
    },
}

impl TokenBytes {
    pub(crate) fn parse(file: &str, decoder: &Value) -> Result<Self, Error> {
        let refused = || {
            let expected =
                "ByteLevel, Metaspace, or Replace, ByteFallback, Fuse, Strip in sequence";
            Error::field(file, "decoder", expected, decoder)
        };
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().ok_or_else(refused)?.as_slice(),
            _ => std::slice::from_ref(decoder),
        };
        match steps {
            [only] if only["type"] == "ByteLevel" => Ok(Self::ByteLevel),
            [only] if only["type"] == "Metaspace" => metaspace(only).ok_or_else(refused),
            _ => pieces(steps).ok_or_else(refused),
        }
    }

    /// The bytes of the token written `string`.
    pub(crate) fn of(&self, string: &str) -> Vec<u8> {
        match self {
            // A token with a character outside the alphabet was added as plain text.
            Self::ByteLevel => string
                .chars()
                .map(byte_of)
                .collect::<Option<_>>()
                .unwrap_or_else(|| string.as_bytes().to_vec()),
            Self::Pieces { replace, byte_fallback, .. } => {
                let mut text = string.to_owned();
                for (from, to) in replace {
                    text = text.replace(from, to);
                }
                match byte_fallback.then(|| fallback_byte(&text)).flatten() {
                    Some(byte) => vec![byte],
                    None => text.into_bytes(),
                }
            }
        }
    }

    pub(crate) fn strip(&self) -> usize {
        match self {
            Self::ByteLevel => 0,
            Self::Pieces { strip, .. } => *strip,
        }
    }
}

fn metaspace(step: &Value) -> Option<TokenBytes> {
    let mark = step["replacement"].as_str()?;
    let never = step["prepend_scheme"] == "never" || step["add_prefix_space"] == false;
    Some(TokenBytes::Pieces {
        replace: vec![(mark.into(), " ".into())],
        byte_fallback: false,
        strip: usize::from(!never),
    })
}

/// Replace*, ByteFallback?, Fuse?, Strip?: in any other order the steps mean something else.
fn pieces(mut steps: &[Value]) -> Option<TokenBytes> {
    let mut replace = Vec::new();
    while let [first, rest @ ..] = steps
        && first["type"] == "Replace"
    {
        let from = first["pattern"]["String"].as_str().filter(|from| !from.is_empty())?;
        replace.push((from.into(), first["content"].as_str()?.into()));
        steps = rest;
    }
    let mut next = |kind: &str| match steps {
        [first, rest @ ..] if first["type"] == kind => {
            steps = rest;
            Some(first)
        }
        _ => None,
    };
    let byte_fallback = next("ByteFallback").is_some();
    let fused = next("Fuse").is_some();
    let strip = match next("Strip") {
        None => 0,
        // Before fusing it would strip every token, and an end is not known while text comes.
        Some(step) if fused && step["content"] == " " && step["stop"] == 0 => {
            usize::try_from(step["start"].as_u64()?).ok()?
        }
        Some(_) => return None,
    };
    let used = byte_fallback || fused || !replace.is_empty();
    (steps.is_empty() && used).then_some(TokenBytes::Pieces { replace, byte_fallback, strip })
}

fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The byte that GPT-2's `bytes_to_unicode` writes as `c`: printable Latin-1 stands for itself, the
/// other bytes follow from U+0100 on in order.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let mut seen: Vec<u8> =
            (0..=0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(TokenBytes::ByteLevel.of("Ġa b"), "Ġa b".as_bytes());
    }

    #[test]
    fn decoders_are_told_apart() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let llama2 = json!({"type": "Sequence", "decoders":
            [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]});
        let bytes = TokenBytes::parse("t", &llama2).unwrap();
        assert_eq!(bytes.of("▁a▁"), b" a ");
        assert_eq!(bytes.of("<0xE2>"), [0xE2]);
        assert_eq!(bytes.of("<0xE2"), b"<0xE2");
        assert_eq!(bytes.strip(), 1);
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
        assert_eq!(TokenBytes::parse("t", &metaspace).unwrap().strip(), 0);
        for other in [
            json!(null),
            json!({"type": "WordPiece"}),
            json!({"type": "Sequence", "decoders": []}),
            json!({"type": "Sequence", "decoders": [strip, {"type": "Fuse"}]}),
            json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": " "}),
        ] {
            assert!(TokenBytes::parse("t", &other).is_err(), "{other}");
        }
    }
}
