//! An OpenAI-compatible server on loopback whose replies a test chooses.
//!
//! It serves a bounded number of requests, one a connection, and says nothing a test did not write.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// More than any test asks for.
const MOST_REQUESTS: usize = 200;

/// What the server was asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

/// A running server; it ends with the test.
#[derive(Debug)]
pub(crate) struct Server {
    /// The base, as `--endpoint` takes it.
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers request number i (from 0) with the status and the body that `reply` gives.
    pub(crate) fn start(
        reply: impl Fn(usize, &Request) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, reply) = (requests.clone(), Arc::new(reply));
        thread::spawn(move || {
            for stream in listener.incoming().take(MOST_REQUESTS).flatten() {
                let (seen, reply) = (seen.clone(), reply.clone());
                // A client that goes away early is its own affair.
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    let number = {
                        let mut seen = seen.lock().expect("no panic");
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    let (status, body) = reply(number, &request);
                    let head = format!(
                        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n\
                         location: http://127.0.0.1:1/\r\nconnection: close\r\n\
                         content-length: {}\r\n\r\n",
                        body.len()
                    );
                    let mut stream = &stream;
                    let _ = stream.write_all((head + &body).as_bytes());
                });
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut reader = BufReader::new(stream.take(1 << 20));
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut authorization, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line == "\r\n" {
            break;
        }
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { path, authorization, body: serde_json::from_slice(&body).ok()? })
}

/// A token with the two likeliest at its place and their log-probabilities.
pub(crate) type Told = (&'static str, [(&'static str, f64); 2]);

/// A reply in the form of the interface that was asked, with log-probabilities if they were.
pub(crate) fn completion(request: &Request, tokens: &[Told], fingerprint: Option<&str>) -> String {
    let text: String = tokens.iter().map(|(token, _)| *token).collect();
    let chat = request.path.ends_with("/chat/completions");
    let asked = !request.body["logprobs"].is_null();
    let top = |token: &Told| token.1.map(|(token, logprob)| (token.to_owned(), json!(logprob)));
    let mut choice = json!({ "index": 0, "finish_reason": "length" });
    if chat {
        choice["message"] = json!({ "role": "assistant", "content": text });
        let content = tokens.iter().map(|told| {
            let top =
                top(told).map(|(token, logprob)| json!({ "token": token, "logprob": logprob }));
            json!({ "token": told.0, "logprob": told.1[0].1, "top_logprobs": top })
        });
        if asked {
            choice["logprobs"] = json!({ "content": content.collect::<Vec<_>>() });
        }
    } else {
        choice["text"] = text.into();
        if asked {
            choice["logprobs"] = json!({
                "tokens": tokens.iter().map(|told| told.0).collect::<Vec<_>>(),
                "top_logprobs": tokens
                    .iter()
                    .map(|told| Value::Object(top(told).into_iter().collect()))
                    .collect::<Vec<_>>(),
            });
        }
    }
    json!({
        "id": "x",
        "model": request.body["model"],
        "system_fingerprint": fingerprint,
        "choices": [choice],
    })
    .to_string()
}
