//! Models on other machines: the same text as here, one round trip a pass, and clear ends.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::harness::{draftproof, generate, golden, ids, read_json, tokens};

const TOKEN: &str = "DRAFTPROOF_WORKER_TOKEN";

/// A worker of our own; it ends with the test.
struct Worker {
    process: Child,
    /// `ws://…`
    url: String,
}

impl Worker {
    fn start(words: &str) -> Self {
        Self::with(draftproof("worker --bind 127.0.0.1:0").words(words).into_command())
    }

    fn with(mut command: Command) -> Self {
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program runs");
        let mut url = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("its address");
        assert!(url.starts_with("ws://127.0.0.1:"), "{url:?}");
        Self { process, url: url.trim().into() }
    }

    fn device(&self) -> String {
        format!("remote:{}", self.url)
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let done = Command::new("kill").args([name, &id]).status().expect("kill");
        assert!(done.success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whoever is stopped does not hear of the end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes everything on, and counts how often the client speaks after the worker has: round trips.
struct Proxy {
    url: String,
    trips: Arc<AtomicUsize>,
}

impl Proxy {
    fn to(worker: &Worker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("ws://{}", listener.local_addr().expect("an address"));
        let there = worker.url.trim_start_matches("ws://").to_owned();
        let trips = Arc::new(AtomicUsize::new(0));
        let counted = trips.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&there).expect("the worker");
                // 1 while the client's last bytes have no answer yet.
                let waiting = Arc::new(AtomicUsize::new(0));
                let pipes = [(&client, &server, true), (&server, &client, false)];
                for (from, to, asks) in pipes {
                    let [mut from, mut to] =
                        [from, to].map(|end| end.try_clone().expect("a socket"));
                    let (waiting, trips) = (waiting.clone(), counted.clone());
                    thread::spawn(move || {
                        let mut bytes = [0; 1 << 16];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            let before = waiting.swap(usize::from(asks), Ordering::SeqCst);
                            if asks && before == 0 {
                                trips.fetch_add(1, Ordering::SeqCst);
                            }
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { url, trips }
    }
}

const PROMPT: &str = "Once upon a time there was a";

#[test]
fn text_is_that_of_the_worker_s_machine_bit_for_bit() {
    let worker = Worker::start("--draft-model builtin:fable");
    let there = worker.device();
    for words in [
        "--temperature 0 --drafter none",
        "--temperature 0",
        "--temperature 1 --seed 3 --draft-len 3",
        "--temperature 1 --seed 3 --verify block",
        "--temperature 1 --seed 3 --verify coupled --drafter ngram",
        "--temperature 0.8 --top-p 0.9 --seed 4 --logprobs 2",
    ] {
        let run = |more: &str| {
            let run = generate("--max-tokens 40 --ignore-eos").words(words).words(more);
            run.arg(PROMPT).json()
        };
        let here = run("");
        let remote = run(&format!("--device {there}"));
        for key in ["tokens", "text", "logprobs", "contract"] {
            assert_eq!(remote[key], here[key], "{words}: {key}");
        }
        assert!(here["contract"].is_string());
        for key in ["rounds", "accepted", "drafted"] {
            assert!(here["stats"][key].is_u64(), "{key}");
            assert_eq!(remote["stats"][key], here["stats"][key], "{words}: {key}");
        }
        // A draft here, the target there.
        if !words.contains("--drafter") {
            let split = run(&format!("--device {there} --draft-device cpu"));
            assert_eq!(split["tokens"], here["tokens"], "{words}");
        }
    }
}

/// A looped target's noise is the client's to choose, and its text and contract are those of here.
#[test]
fn noise_is_that_of_here() {
    let huginn = golden("huginn");
    let worker =
        Worker::with(draftproof("worker --bind 127.0.0.1:0").model(&huginn).into_command());
    let run = |seed: u64, more: &str| {
        let run = generate("--temperature 0 --ignore-eos --max-tokens 24 --drafter ngram");
        let run = run.arg("--initial-state").arg(format!("noise:{seed}")).words(more);
        run.ids(&[17, 250, 3, 99]).model(&huginn).json()
    };
    let there = format!("--device {}", worker.device());
    let mut texts = Vec::new();
    for seed in [7, 8, 7] {
        let (found, expected) = (run(seed, &there), run(seed, ""));
        for key in ["tokens", "contract"] {
            assert_eq!(found[key], expected[key], "{seed}: {key}");
        }
        texts.push(tokens(&found));
    }
    assert!(texts[0] == texts[2] && texts[0] != texts[1]);
}

/// A promise that the worker does not keep is not made here.
#[test]
fn general_kernels_of_a_worker_are_told() {
    let run = |worker: &Worker| {
        let run = generate("--temperature 0 --max-tokens 2 --drafter none --device");
        run.arg(worker.device()).arg(PROMPT).ok().stderr
    };
    let said = run(&Worker::start("--kernels general"));
    assert!(said.contains("warning: the worker runs builtin:fable on cpu ("), "{said}");
    assert!(said.contains("rows may differ"), "{said}");
    assert!(!run(&Worker::start("")).contains("warning"));
}

#[test]
fn siblings_share_passes_there_too() {
    let worker = Worker::start("");
    let run = |more: &str| {
        let run = generate("--max-tokens 12 --n 3 --seed 9 --drafter ngram").words(more);
        run.arg(PROMPT).jsons().iter().map(tokens).collect::<Vec<_>>()
    };
    assert_eq!(run(&format!("--device {}", worker.device())), run(""));
}

#[test]
fn a_pass_is_one_round_trip() {
    let worker = Worker::start("");
    let trips = |words: &str| {
        let proxy = Proxy::to(&worker);
        let run = generate("--temperature 0 --ignore-eos --max-tokens 300 --draft-device cpu");
        let run = run.words(words).arg("--device").arg(format!("remote:{}", proxy.url));
        let found = run.arg(PROMPT).json();
        let rounds = found["stats"]["rounds"].as_u64().expect("a count") as usize;
        (proxy.trips.load(Ordering::SeqCst), rounds, found)
    };
    // The handshake and the greeting are a trip each.
    let (plain, rounds, found) = trips("--draft-len 0");
    assert_eq!(rounds, 300, "{found}");
    assert!((rounds + 2..=rounds + 3).contains(&plain), "{plain} trips, {rounds} rounds");
    // After the text, the summary's costs are measured: two prefixes, and 3 to 15 passes after each.
    let (drafted, rounds, _) = trips("--draft-len 4");
    assert!(rounds < 200, "{rounds} rounds: the draft is of use");
    assert!((rounds + 10..=rounds + 35).contains(&drafted), "{drafted} trips, {rounds} rounds");
    assert!(rounds > 70, "{rounds} rounds: two trips in each would be seen");
}

#[test]
fn weights_need_not_be_here_and_may_not_differ() {
    let whole = golden("qwen3");
    let worker = Worker::with(draftproof("worker --bind 127.0.0.1:0").model(&whole).into_command());
    let reference = read_json(whole.join("reference.json"));
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "generation_config.json", "tokenizer.json"] {
        if whole.join(file).exists() {
            fs::copy(whole.join(file), folder.path().join(file)).expect("a copy");
        }
    }
    let run = || {
        let run = generate("--temperature 0 --ignore-eos --max-tokens 32 --drafter ngram");
        run.ids(&ids(&reference["input_ids"])).model(folder.path())
    };
    let there = worker.device();
    let found = tokens(&run().arg("--device").arg(&there).json());
    assert_eq!(found, ids(&reference["greedy_ids"]));
    run().fails(&["model.safetensors"]);

    // One weight changed.
    let mut bytes = fs::read(whole.join("model.safetensors")).expect("the weights");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(folder.path().join("model.safetensors"), bytes).expect("a copy");
    run().arg("--device").arg(&there).fails(&["other weights", &worker.url]);

    // Another configuration.
    generate("x --max-tokens 1 --device").arg(&there).fails(&[
        "no model with the configuration and tokenizer of",
        "it has",
        "qwen3",
    ]);
}

#[test]
fn models_that_clients_could_not_tell_apart_are_refused() {
    draftproof("worker --bind 127.0.0.1:0 --model builtin:fable --model builtin:fable")
        .fails(&["could not tell", "builtin:fable"]);
}

#[test]
fn a_token_is_asked_for_and_never_shown() {
    let mut command = draftproof("worker --bind 127.0.0.1:0").into_command();
    command.env(TOKEN, "open-sesame");
    let worker = Worker::with(command);
    let run = |token: Option<&str>| {
        let run = generate("x --max-tokens 2 --temperature 0 --drafter none --device");
        let mut command = run.arg(worker.device()).into_command();
        match token {
            Some(token) => command.env(TOKEN, token),
            None => command.env_remove(TOKEN),
        };
        command.output().expect("the program runs")
    };
    assert!(run(Some("open-sesame")).status.success());
    for (token, needle) in [(None, "asks for a token"), (Some("open-barley"), "does not take")] {
        let output = run(token);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(needle) && !said.contains("open-"), "{said}");
    }
    // Nobody else's machine without one.
    draftproof("worker --bind 0.0.0.0:0").fails(&["--bind 0.0.0.0", TOKEN]);
}

/// A long text from the worker, some of it read; the rest of it after `then`, and how it ended.
fn interrupted(worker: &Worker, then: impl FnOnce(&Worker)) -> (String, String, Option<i32>) {
    let run = generate("--temperature 0 --ignore-eos --max-tokens 340 --drafter none --device");
    let mut command = run.arg(worker.device()).arg(PROMPT).into_command();
    let mut process =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut stdout = process.stdout.take().expect("a pipe");
    let mut text = vec![0; 8];
    stdout.read_exact(&mut text).expect("the beginning of the text");
    then(worker);
    stdout.read_to_end(&mut text).expect("the rest");
    let mut said = String::new();
    process.stderr.take().expect("a pipe").read_to_string(&mut said).expect("messages");
    let code = process.wait().expect("an end").code();
    (String::from_utf8_lossy(&text).into_owned(), said, code)
}

#[test]
fn a_worker_that_dies_or_stalls_ends_the_text_soon_and_clearly() {
    let whole = generate("--temperature 0 --ignore-eos --max-tokens 340 --drafter none");
    let whole = whole.arg(PROMPT).ok().stdout;
    for (signal, reason) in [("-KILL", "lost"), ("-STOP", "nothing for 10 s")] {
        let worker = Worker::start("");
        let start = Instant::now();
        let (text, said, code) = interrupted(&worker, |worker| worker.signal(signal));
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        if text == whole {
            panic!("the text ended before the worker did: the test needs a longer one");
        }
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&worker.url) && said.contains(reason), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        // What was written before stands.
        assert!(whole.starts_with(text.trim_end()), "{text:?}");
    }
}

#[test]
fn strangers_do_no_harm() {
    let worker = Worker::start("");
    let address = worker.url.trim_start_matches("ws://");
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 5000], &[0xFF; 9], b""] {
        let mut stream = TcpStream::connect(address).expect("the worker");
        // It may have closed the connection by then.
        let _ = stream.write_all(bytes);
    }
    let run = generate("x --max-tokens 2 --temperature 0 --drafter none --device");
    run.arg(worker.device()).ok();
}

#[test]
fn what_is_no_worker_is_named() {
    for (device, needle) in [
        ("remote:", "ws://host:port"),
        ("remote:ws://", "ws://host:port"),
        ("remote:ws://127.0.0.1", "no host and port"),
        ("remote:http://127.0.0.1:1", "the scheme http"),
        ("remote:wss://127.0.0.1:1", "TLS is left to a tunnel"),
        ("remote:ws://127.0.0.1:1", "no worker there"),
    ] {
        generate("x --max-tokens 1 --device").arg(device).fails(&["the worker at", needle]);
    }
    // A server of another kind.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
        }
    });
    generate("x --max-tokens 1 --device")
        .arg(format!("remote:ws://{address}"))
        .fails(&["no worker"]);
    draftproof("noise x --max-tokens 2 --device")
        .arg(format!("remote:ws://{address}"))
        .fails(&["run it there"]);
    draftproof("worker --bind 127.0.0.1:0 --device")
        .arg(format!("remote:ws://{address}"))
        .fails(&["devices of its own machine"]);
}
