//! Model families: each reads its own `config.json` into the shared configuration.

mod llama;

use serde_json::{Map, Value};

use crate::{Error, config::TransformerConfig};

/// The families that can be loaded, by `model_type`.
pub const SUPPORTED: [&str; 1] = ["llama"];

pub(crate) fn parse(
    file: &str,
    raw: &Map<String, Value>,
) -> Result<(String, TransformerConfig), Error> {
    let found = raw.get("model_type").unwrap_or(&Value::Null);
    let config = match found.as_str() {
        Some("llama") => llama::parse(file, raw)?,
        _ => {
            let expected = format!("one of {}", SUPPORTED.join(", "));
            return Err(Error::field(file, "model_type", expected, found));
        }
    };
    Ok((found.as_str().unwrap_or_default().to_owned(), config))
}
