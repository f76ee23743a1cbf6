//! Model families: each reads its own `config.json` into the shared configuration.
//!
//! `llama` is the plain case; a family's file says where it differs. What a silent file means is
//! what transformers makes of it.

mod gemma2;
mod gemma3;
mod gpt2;
mod huginn;
mod llama;
mod looped;
mod mistral;
mod ouro;
mod parcae;
mod phi3;
mod qwen2;
mod qwen3;
mod ropes;
mod smollm3;
mod windows;

use serde_json::{Map, Value};

use crate::{
    Error,
    config::{Fields, TransformerConfig},
};

/// How a family is told, and how its file is read.
struct Family {
    /// As `model_type` names it.
    model_type: &'static str,
    /// The one of its architectures that gives logits.
    architecture: &'static str,
    /// Fields with a meaning of their own here; see [`Fields::refuse_unsupported`].
    reads: &'static [&'static str],
    /// Names used in this crate, each with the family's own.
    aliases: &'static [(&'static str, &'static str)],
    /// The configuration, not yet checked.
    parse: fn(Fields<'_>) -> Result<TransformerConfig, Error>,
}

const FAMILIES: [&Family; 12] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &smollm3::FAMILY,
    &gpt2::FAMILY,
    &ouro::FAMILY,
    &huginn::FAMILY,
    &parcae::FAMILY,
];

/// The families that can be loaded, by `model_type`.
pub const SUPPORTED: [&str; FAMILIES.len()] = {
    let mut names = [""; FAMILIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FAMILIES[i].model_type;
        i += 1;
    }
    names
};

/// What files of the family `model_type` call a field of this crate.
pub(crate) fn own_name<'a>(model_type: &str, field: &'a str) -> &'a str {
    let family = FAMILIES.into_iter().find(|family| family.model_type == model_type);
    let aliases = family.map_or(&[][..], |family| family.aliases);
    aliases.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs)
}

/// The family's name, and the configuration, checked.
pub(crate) fn parse(
    file: &str,
    raw: &Map<String, Value>,
) -> Result<(String, TransformerConfig), Error> {
    let found = raw.get("model_type").unwrap_or(&Value::Null);
    // Parcae's files name a class of its package instead of a type.
    let class = raw.get("model_class_name").filter(|_| found.is_null());
    let family = FAMILIES.into_iter().find(|family| match class {
        Some(class) => *class == family.architecture,
        None => *found == family.model_type,
    });
    let Some(family) = family else {
        let expected = format!("one of {}", SUPPORTED.join(", "));
        return Err(Error::field(file, "model_type", expected, found));
    };
    let fields = Fields { file, raw, aliases: family.aliases };
    if let Some(names) = fields.list("architectures")?
        && !names.iter().any(|name| *name == family.architecture)
    {
        let (expected, found) = (format!("[{:?}]", family.architecture), Value::from(names));
        return Err(fields.error("architectures", expected, found));
    }
    fields.refuse_unsupported(family.reads)?;
    let config = (family.parse)(fields)?;
    config.check(fields)?;
    Ok((family.model_type.to_owned(), config))
}
