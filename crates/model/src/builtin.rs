//! Models that are part of the program, so that a fresh machine has something to run.

use draftproof_kernels::map::Aligned;

use crate::{Error, load::Source};

/// A side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The model whose text is wanted.
    Target,
    /// The one that guesses ahead.
    Draft,
}

type Files = &'static [(&'static str, &'static [u8])];

macro_rules! embed {
    ($folder:literal) => {
        &[
            ("config.json", embed!($folder, "config.json")),
            ("generation_config.json", embed!($folder, "generation_config.json")),
            ("model.safetensors", embed!($folder, "model.safetensors")),
            ("tokenizer.json", embed!($folder, "tokenizer.json")),
            ("tokenizer_config.json", embed!($folder, "tokenizer_config.json")),
        ]
    };
    ($folder:literal, $file:literal) => {{
        // Aligned, so that weights are read in place.
        const FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/",
            $folder,
            "/",
            $file
        )));
        &FILE.0
    }};
}

static FABLE_TARGET: Files = embed!("fable/target");
static FABLE_DRAFT: Files = embed!("fable/draft");

/// The names of the pairs.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &["fable"]
}

pub(crate) fn source(name: &str, role: Role) -> Result<Source, Error> {
    let (side, files) = match (name, role) {
        ("fable", Role::Target) => ("target", FABLE_TARGET),
        ("fable", Role::Draft) => ("draft", FABLE_DRAFT),
        _ => {
            let available = names().join(", ");
            return Err(Error::Builtin { name: name.into(), available });
        }
    };
    Ok(Source::Embedded { name: format!("{name}/{side}"), files })
}
