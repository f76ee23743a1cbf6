//! Models by their name on a hub: what is asked, what is kept, what is refused. The hub is a server
//! of our own on loopback; the cache is a temporary folder.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    harness::{Run, generate, golden, tokens},
    tiny::Tiny,
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OLDER: &str = "fedcba9876543210fedcba9876543210fedcba98";
const WEIGHTS: &str = "model.safetensors";

/// A file as a hub has it.
#[derive(Clone, Debug)]
struct Stored {
    content: Vec<u8>,
    etag: String,
    /// What is sent before the connection is cut.
    sent: usize,
    /// Where the content is, if it is not here.
    elsewhere: Option<String>,
}

impl Stored {
    fn new(content: Vec<u8>) -> Self {
        let etag = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { sent: content.len(), content, etag, elsewhere: None }
    }
}

/// What the hub was asked.
#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    range: Option<String>,
    authorization: Option<String>,
}

/// What a hub has and how it behaves.
#[derive(Clone, Debug, Default)]
struct Content {
    /// By revision and name; `main` is a name of [`COMMIT`].
    files: BTreeMap<(String, String), Stored>,
    /// Answers every question with this status.
    status: Option<u16>,
    /// Answers only those who send this token.
    token: Option<String>,
}

#[derive(Debug)]
struct Hub {
    url: String,
    content: Arc<Mutex<Content>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Hub {
    /// A hub that has the files of a folder in `o/n` at [`COMMIT`], and no others.
    fn of(folder: &Path) -> Self {
        let hub = Self::empty();
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let name = entry.file_name().into_string().expect("UTF-8");
            hub.put(COMMIT, &name, fs::read(entry.path()).expect("a file"));
        }
        hub
    }

    fn empty() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (content, asked): (Arc<Mutex<Content>>, Arc<Mutex<Vec<Asked>>>) = Default::default();
        let (has, seen) = (content.clone(), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().take(500).flatten() {
                // A client that goes away early is its own affair.
                if let Some(question) = read(&stream) {
                    seen.lock().expect("no panic").push(question.clone());
                    let content = has.lock().expect("no panic").clone();
                    _ = (&stream).write_all(&reply(&content, &question));
                }
            }
        });
        Self { url, content, asked }
    }

    fn change(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.content.lock().expect("no panic"));
    }

    fn put(&self, revision: &str, name: &str, content: Vec<u8>) {
        let key = (revision.into(), name.into());
        self.change(|hub| _ = hub.files.insert(key, Stored::new(content)));
    }

    fn file(&self, name: &str, change: impl FnOnce(&mut Stored)) {
        let key = (COMMIT.into(), name.into());
        self.change(|hub| change(hub.files.get_mut(&key).expect("a file of the hub")));
    }

    /// What was asked since this was last called.
    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().expect("no panic"))
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut reader = BufReader::new(stream.take(1 << 20));
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut asked = Asked { method, path, range: None, authorization: None };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line == "\r\n" {
            return Some(asked);
        }
        let (name, value) = line.split_once(':')?;
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "authorization" => asked.authorization = value,
            "range" => asked.range = value,
            _ => {}
        }
    }
}

fn reply(hub: &Content, asked: &Asked) -> Vec<u8> {
    let plain = |status: u16, headers: &str| {
        format!("HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n")
            .into_bytes()
    };
    let needed = hub.token.as_ref().map(|token| format!("Bearer {token}"));
    if let Some(status) = hub.status {
        return plain(status, "");
    }
    if needed.is_some() && needed != asked.authorization {
        return plain(401, "x-error-code: GatedRepo\r\n");
    }
    // Where other servers keep what they have for a hub.
    let path = asked.path.strip_prefix("/cdn").unwrap_or(&asked.path);
    let Some((revision, name)) =
        path.strip_prefix("/o/n/resolve/").and_then(|rest| rest.split_once('/'))
    else {
        return plain(404, "x-error-code: RepoNotFound\r\n");
    };
    let commit = if revision == "main" { COMMIT } else { revision };
    if ![COMMIT, OLDER, "refs%2Fpr%2F1"].contains(&commit) {
        return plain(404, "x-error-code: RevisionNotFound\r\n");
    }
    let commit = if commit.len() == 40 { commit } else { OLDER };
    let Some(file) = hub.files.get(&(commit.to_owned(), name.to_owned())) else {
        return plain(404, &format!("x-error-code: EntryNotFound\r\nx-repo-commit: {commit}\r\n"));
    };
    let about = format!(
        "x-repo-commit: {commit}\r\nx-linked-etag: \"{}\"\r\nx-linked-size: {}\r\n",
        file.etag,
        file.content.len()
    );
    if let Some(place) = file.elsewhere.as_ref().filter(|_| path == asked.path) {
        return plain(302, &format!("{about}location: {place}/cdn{}\r\n", asked.path));
    }
    let from = asked.range.as_ref().map(|range| {
        let from = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        from.and_then(|from| from.parse::<usize>().ok()).expect("a range to the end")
    });
    let (status, range) = match from {
        Some(from) => {
            let (last, all) = (file.content.len() - 1, file.content.len());
            (206, format!("content-range: bytes {from}-{last}/{all}\r\n"))
        }
        None => (200, String::new()),
    };
    let from = from.unwrap_or(0);
    let length = file.content.len() - from;
    let mut bytes = format!(
        "HTTP/1.1 {status} X\r\n{about}{range}content-length: {length}\r\nconnection: \
         close\r\n\r\n"
    )
    .into_bytes();
    if asked.method != "HEAD" {
        bytes.extend(&file.content[from..file.sent.max(from)]);
    }
    bytes
}

/// A cache in a temporary folder.
struct Cache(TempDir);

impl Cache {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn run(&self, hub: &Hub, words: &str) -> Run {
        let mut run = generate("--prompt-ids 2 --max-tokens 6 --drafter none --seed 3")
            .words("--model")
            .words(words)
            .env("HF_HOME", self.0.path().as_os_str())
            .env("HF_ENDPOINT", hub.url.as_ref());
        for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HTTP_PROXY"] {
            run = run.env(name, "".as_ref());
        }
        run
    }

    fn offline(&self, hub: &Hub, words: &str) -> Run {
        self.run(hub, words).env("HF_HUB_OFFLINE", "1".as_ref())
    }

    fn repository(&self) -> PathBuf {
        self.0.path().join("hub/models--o--n")
    }

    /// Names and sizes of the blobs.
    fn blobs(&self) -> Vec<(String, u64)> {
        let Ok(entries) = fs::read_dir(self.repository().join("blobs")) else { return Vec::new() };
        let blob = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, entry.metadata().expect("metadata").len())
        };
        entries.flatten().map(blob).collect()
    }
}

fn tiny(seed: u32) -> TempDir {
    Tiny::letters(4).noisy(seed).write()
}

fn expected(folder: &Path) -> Vec<u32> {
    let words = "--prompt-ids 2 --max-tokens 6 --drafter none --seed 3";
    tokens(&generate(words).model(folder).json())
}

#[test]
fn a_model_is_fetched_once_and_then_needs_no_network() {
    let folder = tiny(1);
    let (hub, cache) = (Hub::of(folder.path()), Cache::new());
    hub.put(COMMIT, "pytorch_model.bin", vec![0; 100]);
    let found = cache.run(&hub, "hf:o/n").json();
    assert_eq!(tokens(&found), expected(folder.path()));
    let asked = hub.asked();
    assert!(asked.iter().all(|asked| !asked.path.contains("pytorch")), "{asked:?}");
    let fetched = asked.iter().filter(|asked| asked.method == "GET").count();
    assert_eq!(fetched, fs::read_dir(folder.path()).expect("a folder").count());

    // The layout of Hugging Face's own tools.
    let repository = cache.repository();
    assert_eq!(fs::read_to_string(repository.join("refs/main")).expect("a ref"), COMMIT);
    let weights = repository.join("snapshots").join(COMMIT).join(WEIGHTS);
    let etag = Stored::new(fs::read(folder.path().join(WEIGHTS)).expect("weights")).etag;
    assert_eq!(fs::read(&weights).ok(), fs::read(folder.path().join(WEIGHTS)).ok());
    if cfg!(unix) {
        let link = fs::read_link(&weights).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(&etag));
    }
    assert!(cache.blobs().iter().all(|(name, _)| !name.contains("incomplete")));

    // Another run asks for the commit alone, one for a commit and one without a network nothing.
    cache.run(&hub, "hf:o/n").ok();
    assert_eq!(hub.asked().len(), 1);
    cache.run(&hub, &format!("hf:o/n@{COMMIT}")).ok();
    assert_eq!(tokens(&cache.offline(&hub, "hf:o/n").json()), expected(folder.path()));
    assert_eq!(hub.asked().len(), 0);
    // A hub that is not to be reached is a warning.
    hub.change(|hub| hub.status = Some(503));
    let found = cache.run(&hub, "hf:o/n").ok();
    assert!(found.stderr.contains("warning") && found.stderr.contains("503"), "{}", found.stderr);

    let none = Cache::new();
    none.offline(&hub, "hf:o/n").fails(&["hf:o/n", "HF_HUB_OFFLINE", "no revision main"]);
    none.run(&hub, "hf:o/n").fails(&["hf:o/n", "503", &hub.url]);
}

/// What other tools have fetched: without marks of what is absent, in a cache named directly.
#[cfg(unix)]
#[test]
fn a_model_that_another_tool_has_fetched_is_used() {
    let (folder, root) = (tiny(2), tempfile::tempdir().expect("a temporary folder"));
    let repository = root.path().join("models--o--n");
    let snapshot = repository.join("snapshots").join(COMMIT);
    for made in [&snapshot, &repository.join("blobs"), &repository.join("refs")] {
        fs::create_dir_all(made).expect("a folder");
    }
    for (i, entry) in fs::read_dir(folder.path()).expect("a folder").flatten().enumerate() {
        let blob = format!("{i:040x}");
        fs::copy(entry.path(), repository.join("blobs").join(&blob)).expect("copied");
        let link = snapshot.join(entry.file_name());
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), link).expect("linked");
    }
    fs::write(repository.join("refs/main"), COMMIT).expect("written");
    let hub = Hub::empty();
    let run = Cache::new().offline(&hub, "hf:o/n").env("HF_HUB_CACHE", root.path().as_os_str());
    assert_eq!(tokens(&run.json()), expected(folder.path()));
    assert_eq!(hub.asked().len(), 0);
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let folder = tiny(1);
    let (hub, cache) = (Hub::of(folder.path()), Cache::new());
    hub.file(WEIGHTS, |file| file.sent = 100);
    cache.run(&hub, "hf:o/n").fails(&["hf:o/n", WEIGHTS, "ended after 100", "goes on from there"]);
    let kept = |cache: &Cache| {
        let parts = cache.blobs().into_iter().filter(|(name, _)| name.ends_with(".incomplete"));
        parts.map(|(_, size)| size).collect::<Vec<_>>()
    };
    assert_eq!(kept(&cache), [100]);
    assert!(!cache.repository().join("snapshots").join(COMMIT).join(WEIGHTS).exists());
    hub.asked();
    hub.file(WEIGHTS, |file| file.sent = file.content.len());
    assert_eq!(tokens(&cache.run(&hub, "hf:o/n").json()), expected(folder.path()));
    let ranges: Vec<_> = hub.asked().into_iter().filter_map(|asked| asked.range).collect();
    assert_eq!(ranges, ["bytes=100-"]);
    assert_eq!(kept(&cache), Vec::<u64>::new());
}

/// Also of a beginning that was another file's.
#[test]
fn a_wrong_sum_leaves_nothing() {
    let folder = tiny(1);
    let (hub, cache) = (Hub::of(folder.path()), Cache::new());
    let right = Stored::new(fs::read(folder.path().join(WEIGHTS)).expect("weights"));
    let nothing_there = || {
        assert!(cache.blobs().iter().all(|(name, size)| match name.strip_suffix(".incomplete") {
            Some(_) => *size == 0,
            None => *name != right.etag,
        }));
        assert!(!cache.repository().join("snapshots").join(COMMIT).join(WEIGHTS).exists());
    };
    hub.file(WEIGHTS, |file| *file.content.last_mut().expect("bytes") ^= 1);
    cache.run(&hub, "hf:o/n").fails(&["hf:o/n", WEIGHTS, "expected SHA-256", &right.etag]);
    nothing_there();
    hub.file(WEIGHTS, |file| *file = right.clone());
    let part = cache.repository().join("blobs").join(format!("{}.incomplete", right.etag));
    fs::write(part, [7; 50]).expect("written");
    cache.run(&hub, "hf:o/n").fails(&["hf:o/n", "expected SHA-256"]);
    nothing_there();
    assert_eq!(tokens(&cache.run(&hub, "hf:o/n").json()), expected(folder.path()));
}

#[test]
fn what_is_not_there_is_named() {
    let (hub, cache) = (Hub::of(tiny(1).path()), Cache::new());
    let url = hub.url.clone();
    cache.run(&hub, "hf:o/other").fails(&["config.json in o/other", "main", &url, "404, Repo"]);
    cache.run(&hub, "hf:o/n@v9").fails(&["config.json in o/n", "revision v9", &url, "404, Rev"]);
    let none = ["x.gguf in o/n", "revision main", &url, "404, Entry"];
    cache.run(&hub, "hf:o/n/x.gguf").fails(&none);
    hub.change(|hub| hub.files.retain(|(_, name), _| name != WEIGHTS));
    let none = ["o/n at commit", "model.safetensors or model.safetensors.index.json", "neither"];
    cache.run(&hub, "hf:o/n").fails(&none);
    hub.change(|hub| hub.files.retain(|(_, name), _| name != "config.json"));
    Cache::new().run(&hub, "hf:o/n").fails(&["config.json in o/n", "hf:OWNER/NAME/FILE.gguf"]);
}

#[test]
fn tokens_are_asked_for_and_used() {
    let folder = tiny(1);
    let (hub, cache) = (Hub::of(folder.path()), Cache::new());
    hub.change(|hub| hub.token = Some("sesame".into()));
    let run = || cache.run(&hub, "hf:o/n");
    run().fails(&["config.json in o/n", "401", "set HF_TOKEN"]);
    let wrong = run().env("HF_TOKEN", "simsim".as_ref()).run();
    wrong.failed(&["401", "the token does not give access"]);
    assert!(!wrong.stderr.contains("simsim"), "{}", wrong.stderr);
    hub.change(|hub| hub.status = Some(403));
    run().fails(&["403", "set HF_TOKEN"]);
    hub.change(|hub| hub.status = None);
    // Where other tools keep it.
    fs::write(cache.0.path().join("token"), "sesame\n").expect("written");
    run().ok();
    let other = Cache::new().run(&hub, "hf:o/n").env("HF_TOKEN", "sesame".as_ref());
    assert_eq!(tokens(&other.json()), expected(folder.path()));
}

#[test]
fn no_token_follows_a_redirection_to_another_host() {
    let folder = tiny(1);
    let (hub, store, cache) = (Hub::of(folder.path()), Hub::of(folder.path()), Cache::new());
    let place = store.url.clone();
    hub.file(WEIGHTS, |file| file.elsewhere = Some(place));
    // And one within the host, which keeps it.
    hub.file("config.json", |file| file.elsewhere = Some(String::new()));
    let run = cache.run(&hub, "hf:o/n").env("HF_TOKEN", "sesame".as_ref());
    assert_eq!(tokens(&run.json()), expected(folder.path()));
    let sent = |asked: Vec<Asked>| asked.into_iter().map(|asked| asked.authorization);
    assert!(sent(hub.asked()).all(|sent| sent.as_deref() == Some("Bearer sesame")));
    let sent: Vec<_> = sent(store.asked()).collect();
    assert_eq!(sent, [None]);
}

#[test]
fn a_revision_is_another_model() {
    let (new, old) = (tiny(1), tiny(5));
    let (hub, cache) = (Hub::of(new.path()), Cache::new());
    for entry in fs::read_dir(old.path()).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("UTF-8");
        hub.put(OLDER, &name, fs::read(entry.path()).expect("a file"));
    }
    let (latest, older) = (expected(new.path()), expected(old.path()));
    assert_ne!(latest, older);
    assert_eq!(tokens(&cache.run(&hub, "hf:o/n").json()), latest);
    assert_eq!(tokens(&cache.run(&hub, "hf:o/n@refs/pr/1").json()), older);
    assert_eq!(tokens(&cache.offline(&hub, "hf:o/n@refs/pr/1").json()), older);
    assert_eq!(tokens(&cache.offline(&hub, &format!("hf:o/n@{OLDER}")).json()), older);
    // What both have lies there once.
    let names: Vec<String> = cache.blobs().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() < 2 * fs::read_dir(new.path()).expect("a folder").count(), "{names:?}");
}

#[test]
fn shards_are_those_of_the_index() {
    let folder = golden("llama-sharded");
    let (hub, cache) = (Hub::of(&folder), Cache::new());
    hub.put(COMMIT, "model-00009-of-00002.safetensors", vec![0; 10]);
    assert_eq!(tokens(&cache.run(&hub, "hf:o/n").json()), expected(&folder));
    assert!(hub.asked().iter().all(|asked| !asked.path.contains("00009")));
    assert_eq!(tokens(&cache.offline(&hub, "hf:o/n").json()), expected(&folder));
}

#[test]
fn one_file_of_a_repository() {
    let folder = golden("llama-gguf");
    let file = fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path());
    let file = file.filter(|path| path.extension().is_some_and(|x| x == "gguf")).min();
    let file = file.expect("a GGUF file");
    let (hub, cache) = (Hub::empty(), Cache::new());
    let name = "q8/a b.gguf";
    hub.put(COMMIT, "q8/a%20b.gguf", fs::read(&file).expect("read"));
    let run = |name: &str| {
        generate("--prompt-ids 2 --max-tokens 6 --drafter none --seed 3 --model")
            .arg(format!("hf:o/n/{name}"))
            .env("HF_HOME", cache.0.path().as_os_str())
            .env("HF_ENDPOINT", hub.url.as_ref())
    };
    assert_eq!(tokens(&run(name).json()), expected(&file));
    assert_eq!(hub.asked().iter().filter(|asked| asked.method == "GET").count(), 1);
}

/// Whichever file of a split one is named, all of them are fetched.
#[test]
fn a_split_file_is_fetched_with_its_others() {
    let file = golden("llama-gguf").join("llama-tiny-q8_0.gguf");
    let content = fs::read(&file).expect("read");
    let (hub, cache) = (Hub::empty(), Cache::new());
    hub.put(COMMIT, "q8/a-00002-of-00003.gguf", content);
    hub.put(COMMIT, "q8/a-00001-of-00003.gguf", vec![1; 10]);
    let run = || cache.run(&hub, "hf:o/n/q8/a-00002-of-00003.gguf");
    run().fails(&["q8/a-00003-of-00003.gguf", "no such file"]);
    let (hub, cache) = (hub, Cache::new());
    hub.put(COMMIT, "q8/a-00003-of-00003.gguf", vec![3; 10]);
    hub.asked();
    // The file that is named says nothing about others, so that it is read alone.
    let run = cache.run(&hub, "hf:o/n/q8/a-00002-of-00003.gguf");
    assert_eq!(tokens(&run.json()), expected(&file));
    let asked = hub.asked().into_iter().filter(|asked| asked.method == "GET");
    let mut asked: Vec<_> = asked.map(|asked| asked.path).collect();
    asked.sort();
    assert_eq!(asked.len(), 3, "{asked:?}");
    for (i, path) in asked.iter().enumerate() {
        assert!(path.ends_with(&format!("q8/a-0000{}-of-00003.gguf", i + 1)), "{asked:?}");
    }
    let offline = cache.offline(&hub, "hf:o/n/q8/a-00001-of-00003.gguf");
    offline.fails(&["a-00001-of-00003.gguf", "GGUF"]);
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    let (hub, cache) = (Hub::of(tiny(1).path()), Cache::new());
    for name in ["hf:../n", "hf:o/..", "hf:o/n/../../x.gguf", "hf:o/n@../../x", "hf:o/n/x.bin"] {
        cache.run(&hub, name).fails(&[name, "expected"]);
    }
    assert_eq!(hub.asked().len(), 0);
    // Names that the hub says.
    hub.change(|hub| hub.files.retain(|(_, name), _| name != WEIGHTS));
    for shard in ["../../../x.safetensors", "/x.safetensors", "a/b.safetensors", "x.bin", ""] {
        let index = serde_json::json!({ "weight_map": { "a": shard } }).to_string();
        hub.put(COMMIT, "model.safetensors.index.json", index.into_bytes());
        Cache::new().run(&hub, "hf:o/n").fails(&["weight_map", "expected names", shard]);
    }
    for etag in ["../../../../x", "a/b/c/d/e/f", "..", ""] {
        hub.file("config.json", |file| file.etag = etag.into());
        Cache::new().run(&hub, "hf:o/n").fails(&["config.json", "ETag"]);
    }
}

#[test]
fn endpoints_are_checked() {
    let (hub, cache) = (Hub::empty(), Cache::new());
    let run = |url: &str| cache.run(&hub, "hf:o/n").env("HF_ENDPOINT", url.as_ref());
    run("ftp://127.0.0.1").fails(&["HF_ENDPOINT", "expected http://", "ftp"]);
    run("hub.example").fails(&["HF_ENDPOINT", "hub.example"]);
    if cfg!(not(feature = "https")) {
        run("https://127.0.0.1:1").fails(&["https://127.0.0.1:1", "TLS", "--features hub"]);
        // Also the one that nobody named.
        run("").fails(&["https://huggingface.co", "TLS", "--features hub"]);
    }
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    run(&format!("http://{gone}")).fails(&["hf:o/n", &gone.to_string()]);
}
