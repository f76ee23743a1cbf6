//! Who may import whom: the rules that keep the exactness argument in one small crate.

use std::{collections::BTreeSet, fs, path::Path};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// `decode ← model ← cli`, `kernels ← model`, `decode ← verification ← cli`; nobody imports the cli.
const ALLOWED: [(&str, &[&str]); 5] = [
    ("draftproof-decode", &[]),
    ("draftproof-kernels", &[]),
    ("draftproof-model", &["draftproof-decode", "draftproof-kernels"]),
    ("draftproof-verification", &["draftproof-decode"]),
    ("draftproof", &["draftproof-decode", "draftproof-model", "draftproof-verification"]),
];

/// What no crate but kernels and model may see: decode is about integers, not tensors.
const TENSORS: [&str; 3] = ["burn", "cubecl", "burn-cubecl"];

fn packages() -> Vec<Package> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let metadata =
        MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata");
    metadata.packages
}

#[test]
fn crates_import_only_what_they_may() {
    let packages = packages();
    for package in &packages {
        let name = package.name.as_str();
        let (_, allowed) = ALLOWED
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("{name} is not in the table of this test"));
        for dependency in &package.dependencies {
            let edge = format!("{name} → {}", dependency.name);
            let ours = dependency.name.starts_with("draftproof");
            if ours && dependency.kind == DependencyKind::Normal {
                assert!(allowed.contains(&dependency.name.as_str()), "{edge} is not allowed");
            }
            if TENSORS.contains(&dependency.name.as_str()) {
                let sees_tensors = ["draftproof-kernels", "draftproof-model"].contains(&name);
                assert!(sees_tensors, "{edge}: only kernels and model see tensors");
            }
        }
    }
    assert!(packages.len() >= 3);
}

fn sources(folder: &Path, into: &mut BTreeSet<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).expect("a source folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.insert(path);
        }
    }
}

/// Forged proposals exist for negative controls; the program must not be able to name them.
#[test]
fn only_controls_forge_proposals() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeSet::new();
    for folder in ["crates/cli", "crates/model/src", "crates/decode/src"] {
        sources(&root.join(folder), &mut files);
    }
    let makes_it = ["mutation.rs", "draft/mod.rs", "decode/src/lib.rs"];
    for file in &files {
        let text = fs::read_to_string(file).expect("a source file");
        if !makes_it.iter().any(|own| file.ends_with(own)) {
            let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(!words.any(|word| word == "mutation"), "{} names it", file.display());
        }
    }
    assert!(files.len() > 30, "the sources were not found");
}

/// `unsafe` lives in the kernels only; the compiler enforces it through the workspace's lints, and
/// this test that no other crate opts out of them.
#[test]
fn only_kernels_may_be_unsafe() {
    for package in packages() {
        let manifest = fs::read_to_string(&package.manifest_path).expect("a manifest");
        let inherits = manifest.contains("[lints]\nworkspace = true");
        assert!(inherits || package.name.as_str() == "draftproof-kernels", "{}", package.name);
    }
}
