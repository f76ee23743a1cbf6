//! Models by their name on the Hugging Face hub: `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
//!
//! What is fetched lies in the cache folder of Hugging Face's own tools, in their layout, so that a
//! model that one of them has is not fetched again by another. A branch or tag costs one question a
//! run (what commit is it?), a commit whose files are there none. Files are taken from one commit.
//!
//! This is a client of our own, over the `ureq` that the program has anyway. hf-hub 1.0 brings tokio
//! and reqwest; hf-hub 0.5 over ureq pulls in a TLS library whatever its features, and checks no
//! sums. Contents that have a SHA-256 on the hub (weights, and other large files) are compared with
//! it; small files have only a Git hash there and are compared in length.
//!
//! | variable | what it sets |
//! |---|---|
//! | `HF_HUB_CACHE`, else `HF_HOME`, else `XDG_CACHE_HOME` | the cache: itself, `hub` in it, `huggingface/hub` in it (else `~/.cache/huggingface/hub`) |
//! | `HF_TOKEN`, else the file `HF_TOKEN_PATH` | the token [`token` in `HF_HOME`] |
//! | `HF_ENDPOINT` | the hub (else `https://huggingface.co`) |
//! | `HF_HUB_OFFLINE` | with 1: nothing but the cache |

mod cache;
mod client;
mod name;

use std::{
    collections::BTreeSet,
    env, fs,
    fs::File,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use draftproof_model::load::Gguf;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use self::{
    cache::Cache,
    client::{About, Answer, Client, Wanted},
    name::{Name, is_commit, is_safe},
};
use crate::measure::StatusLine;

/// What names on the hub begin with.
pub(crate) const PREFIX: &str = "hf:";

const CONFIG: &str = "config.json";
/// What a model may come with.
const BESIDE: [&str; 4] =
    ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX: u64 = 100_000_000;
const MOST_SHARDS: usize = 4096;

/// The folder or GGUF file that `OWNER/NAME[/FILE.gguf][@REVISION]` names, fetched if need be.
pub(crate) fn fetch(text: &str) -> Result<PathBuf> {
    let name = Name::parse(text)?;
    let place = Surroundings::read()?;
    let client = match place.offline {
        true => None,
        false => Some(Client::new(&place.endpoint, place.token)?),
    };
    let cache = Cache::new(&place.cache, &name);
    let first = name.file.as_deref().unwrap_or(CONFIG);
    let mut repository = Repository { name: &name, cache, client, commit: String::new() };
    repository.commit = repository.resolve(first)?;
    let path = repository.need(first)?;
    if let Some(file) = &name.file {
        // Of a split file, whichever was named, all are read.
        for shard in Gguf::shards(file).into_iter().flatten() {
            repository.need(&shard)?;
        }
        return Ok(path);
    }
    for file in BESIDE {
        repository.get(file)?;
    }
    if repository.get(WEIGHTS)?.is_none() {
        let Some(index) = repository.get(INDEX)? else {
            bail!("{}: expected {WEIGHTS} or {INDEX}, found neither", repository.place());
        };
        for shard in shards(&index)? {
            repository.need(&shard)?;
        }
    }
    Ok(repository.cache.snapshot(&repository.commit))
}

/// What the environment says about the hub.
struct Surroundings {
    cache: PathBuf,
    endpoint: String,
    token: Option<String>,
    offline: bool,
}

impl Surroundings {
    fn read() -> Result<Self> {
        let path = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let home = path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let home = home.context("expected HF_HOME or a home folder to keep models in")?;
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let stored = || fs::read_to_string(token_file).ok();
        let token = text("HF_TOKEN").or_else(stored).map(|token| token.trim().to_owned());
        let yes = |value: String| ["1", "ON", "YES", "TRUE"].contains(&&*value.to_uppercase());
        Ok(Self {
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: token.filter(|token| !token.is_empty()),
            offline: text("HF_HUB_OFFLINE").is_some_and(yes),
        })
    }
}

/// A repository, here and there.
struct Repository<'a> {
    name: &'a Name,
    cache: Cache,
    /// None without a network.
    client: Option<Client>,
    commit: String,
}

impl Repository<'_> {
    /// The commit that is meant, as the hub says it, or said it when it could last be asked.
    fn resolve(&mut self, file: &str) -> Result<String> {
        let Name { repository, revision, .. } = self.name;
        if is_commit(revision) {
            return Ok(revision.to_lowercase());
        }
        let known = self.cache.commit(revision);
        let Some(client) = &self.client else {
            return known.with_context(|| {
                format!(
                    "HF_HUB_OFFLINE is set, and {} has no revision {revision}",
                    self.cache.folder().display()
                )
            });
        };
        match (client.look(Wanted { repository, revision, file })?, known) {
            (Answer::File(about), _) => {
                self.cache.set_commit(revision, &about.commit)?;
                Ok(about.commit)
            }
            (Answer::Unreachable(why), Some(known)) => {
                eprintln!(
                    "draftproof: warning: {why}; {PREFIX}{repository} is taken from the cache, \
                     commit {known}"
                );
                self.client = None;
                Ok(known)
            }
            (Answer::Absent(why) | Answer::Unreachable(why), _) => bail!("{why}{}", hint(file)),
        }
    }

    /// A file that must be there.
    fn need(&self, file: &str) -> Result<PathBuf> {
        match self.get(file)? {
            Some(path) => Ok(path),
            None => bail!("{}: expected {file}, found no such file{}", self.place(), hint(file)),
        }
    }

    /// A file of the commit, or None if it has none.
    fn get(&self, file: &str) -> Result<Option<PathBuf>> {
        let Self { name, cache, client, commit } = self;
        if let Some(path) = cache.file(commit, file) {
            return Ok(Some(path));
        }
        let Some(client) = client else { return Ok(None) };
        if cache.is_absent(commit, file) {
            return Ok(None);
        }
        let wanted = Wanted { repository: &name.repository, revision: commit, file };
        let about = match client.look(wanted)? {
            Answer::File(about) => about,
            Answer::Absent(_) => {
                cache.set_absent(commit, file)?;
                return Ok(None);
            }
            Answer::Unreachable(why) => bail!(why),
        };
        if !cache.has_blob(&about.etag, about.size) {
            download(client, wanted, &about, cache)?;
        }
        cache.link(commit, file, &about.etag).map(Some)
    }

    /// How errors name it.
    fn place(&self) -> String {
        let Self { name, commit, client, cache } = self;
        match client {
            Some(_) => format!("{} at commit {commit}", name.repository),
            None => format!("{} (without a network)", cache.snapshot(commit).display()),
        }
    }
}

fn hint(file: &str) -> &'static str {
    match file {
        CONFIG => "; a file of a GGUF repository is named hf:OWNER/NAME/FILE.gguf",
        _ => "",
    }
}

/// Fetches a blob, or what is missing of it, and gives it its name once it is known to be right.
fn download(client: &Client, wanted: Wanted<'_>, about: &About, cache: &Cache) -> Result<()> {
    let mut part = cache.part(&about.etag)?;
    // Whoever held the lock may have finished it.
    if cache.has_blob(&about.etag, about.size) {
        return Ok(());
    }
    let (file, size) = (wanted.file, about.size);
    let have = part.file.metadata()?.len();
    // What is longer, or whole and still here, was no beginning of it.
    let have = if have < size { have } else { 0 };
    let (start, content) = client.content(wanted, have)?;
    let kept = part.path.display().to_string();
    let mut sum = Sha256::new();
    part.file.set_len(start).with_context(|| kept.clone())?;
    part.file.rewind()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        // Afterwards the file stands at its end, where the rest goes.
        match part.file.read(&mut buffer).with_context(|| kept.clone())? {
            0 => break,
            count => sum.update(&buffer[..count]),
        }
    }
    // A byte more than there should be shows that there are more.
    let mut content = content.take(size - start + 1);
    let mut status = StatusLine::new();
    let mut done = start;
    let ended = loop {
        match content.read(&mut buffer) {
            Ok(0) => break None,
            Ok(count) => {
                part.file.write_all(&buffer[..count]).with_context(|| kept.clone())?;
                sum.update(&buffer[..count]);
                done += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        status.refresh(&format_args!(
            "{file}: {:.1} of {:.1} MB",
            megabytes(done),
            megabytes(size)
        ));
    };
    drop(status);
    if done < size {
        let why = ended.map(|error| format!(" ({error})")).unwrap_or_default();
        bail!(
            "{file}: expected {size} bytes, the connection ended after {done}{why}; the next run \
             goes on from there"
        );
    }
    let found: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let wrong = match about.etag.len() {
        _ if done > size => Some(format!("expected {size} bytes, found more")),
        64 if found != about.etag.to_lowercase() => {
            Some(format!("expected SHA-256 {}, found {found}", about.etag))
        }
        _ => None,
    };
    if let Some(wrong) = wrong {
        // Emptied, not removed: another process may wait for the lock on it.
        part.file.set_len(0).with_context(|| kept)?;
        bail!("{file}: {wrong}; what came in is dropped");
    }
    part.finish()
}

/// The files that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let read = || {
        let file = File::open(index)?;
        ensure!(file.metadata()?.len() <= MAX_INDEX, "expected at most {MAX_INDEX} bytes");
        let mut text = String::new();
        file.take(MAX_INDEX).read_to_string(&mut text)?;
        let index: Index = serde_json::from_str(&text)?;
        let shards: BTreeSet<String> = index.weight_map.into_values().collect();
        let count = shards.len();
        ensure!(
            (1..=MOST_SHARDS).contains(&count),
            "expected 1 to {MOST_SHARDS} shards, found {count}"
        );
        for shard in &shards {
            let plain = is_safe(shard) && !shard.contains('/') && shard.ends_with(".safetensors");
            ensure!(
                plain,
                "weight_map: expected names of .safetensors files in the same folder, found \
                 {shard:?}"
            );
        }
        Ok(shards)
    };
    read().with_context(|| index.display().to_string())
}
