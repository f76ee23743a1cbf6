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
static FABLE_LOOP: Files = embed!("fable-loop");

/// A pair, or a target that drafts for itself.
struct Builtin {
    name: &'static str,
    /// What errors call the target's files, and these.
    target: (&'static str, Files),
    draft: Option<(&'static str, Files)>,
}

static ALL: [Builtin; 2] = [
    Builtin {
        name: "fable",
        target: ("fable/target", FABLE_TARGET),
        draft: Some(("fable/draft", FABLE_DRAFT)),
    },
    Builtin { name: "fable-loop", target: ("fable-loop", FABLE_LOOP), draft: None },
];

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|builtin| builtin.name)
}

/// Whether there is a pair of that name.
#[must_use]
pub fn has_draft(name: &str) -> bool {
    ALL.iter().any(|builtin| builtin.name == name && builtin.draft.is_some())
}

pub(crate) fn source(name: &str, role: Role) -> Result<Source, Error> {
    let found = ALL.iter().filter(|builtin| builtin.name == name);
    let mut found = found.filter_map(|builtin| match role {
        Role::Target => Some(builtin.target),
        Role::Draft => builtin.draft,
    });
    let fits = |builtin: &&Builtin| role == Role::Target || builtin.draft.is_some();
    let available = || {
        let names: Vec<&str> = ALL.iter().filter(fits).map(|builtin| builtin.name).collect();
        names.join(", ")
    };
    let unknown = || Error::Builtin { name: name.into(), available: available() };
    let (name, files) = found.next().ok_or_else(unknown)?;
    Ok(Source::Embedded { name: name.into(), files })
}
