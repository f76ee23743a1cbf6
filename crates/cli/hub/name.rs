//! What stands behind `hf:`.

use anyhow::{Result, bail, ensure};

/// A repository, at a revision, and the file that is meant if it is not a folder's worth of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// `owner/name`, or a bare name for repositories from before there were owners.
    pub(super) repository: String,
    /// A branch, a tag, or a commit.
    pub(super) revision: String,
    /// A GGUF file, with its folder.
    pub(super) file: Option<String>,
}

impl Name {
    /// Reads `OWNER/NAME[/FILE.gguf][@REVISION]`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (path, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = path.splitn(3, '/').collect();
        let repository = parts[..parts.len().min(2)].join("/");
        let file = parts.get(2).map(|&file| file.to_owned());
        let is_word = |word: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            // `--` stands for the slash in the cache's folder names.
            let odd = word.contains("--") || word.contains("..");
            !word.is_empty() && word.len() <= 96 && word.bytes().all(fits) && !odd
        };
        ensure!(
            parts.iter().take(2).all(|word| is_word(word)),
            "expected OWNER/NAME[/FILE.gguf][@REVISION], found {text:?}"
        );
        ensure!(is_safe(revision), "expected a branch, tag or commit after @, found {revision:?}");
        if let Some(file) = &file
            && !(is_safe(file) && file.ends_with(".gguf"))
        {
            bail!("expected a GGUF file (or nothing) after OWNER/NAME/, found {file:?}");
        }
        Ok(Self { repository, revision: revision.into(), file })
    }
}

/// Whether a path with slashes names something below the folder it is appended to, on every system.
pub(super) fn is_safe(path: &str) -> bool {
    let odd = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= 255 && path.split('/').all(is_plain) && !path.contains(odd)
}

/// Whether this is the name of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = |repository: &str, revision: &str, file: Option<&str>| Name {
            repository: repository.into(),
            revision: revision.into(),
            file: file.map(str::to_owned),
        };
        for (text, expected) in [
            ("gpt2", name("gpt2", "main", None)),
            ("o/n", name("o/n", "main", None)),
            ("o/n.1_x-y@v1.0", name("o/n.1_x-y", "v1.0", None)),
            ("o/n@refs/pr/1", name("o/n", "refs/pr/1", None)),
            ("o/n/a.gguf", name("o/n", "main", Some("a.gguf"))),
            ("o/n/q4/a b.gguf@dev", name("o/n", "dev", Some("q4/a b.gguf"))),
        ] {
            assert_eq!(Name::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for text in [
            "",
            "/",
            "o/",
            "/n",
            "../n",
            "o/..",
            "o/n/",
            "o/n@",
            "o/n@..",
            "o/n@../x",
            "o/n@/x",
            "o/n@x//y",
            "o--p/n",
            "o/n/a.bin",
            "o/n/../a.gguf",
            "o/n//a.gguf",
            "o/n/./a.gguf",
            "o/n/a\\b.gguf",
            "o/n/C:a.gguf",
            "o/n/a\n.gguf",
            "o n/x",
            "o/n?x",
            "o/n#x",
            "é/n",
        ] {
            assert!(Name::parse(text).is_err(), "{text:?}");
        }
        assert!(Name::parse(&format!("o/{}", "n".repeat(97))).is_err());
    }
}
