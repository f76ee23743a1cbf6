//! The side that holds the weights.

use std::{
    collections::BTreeMap,
    io,
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
};

use draftproof_decode::{
    LanguageModel, Token,
    lm::{Pass, SequenceId},
};
use sha2::{Digest, Sha256};
use tungstenite::{
    Message, WebSocket, accept_hdr_with_config,
    handshake::server::{ErrorResponse, Request, Response},
    http::{StatusCode, header::AUTHORIZATION},
    protocol::WebSocketConfig,
};

use super::{
    Change, Failure, Greeting, HEARTBEAT, Hello, MOST_BYTES, PATIENCE, VERSION, Welcome, Work,
};
use crate::{Model, Runner};

/// More clients than this wait until one has gone.
const MOST_CLIENTS: usize = 64;
/// The most bytes of one message from a client: the ids of a long prompt.
const MOST_ASKED: usize = 16 << 20;

/// A model that is served.
#[derive(Debug)]
pub struct Served {
    name: String,
    /// Digests of configuration and tokenizer: what a client asks by.
    key: (String, Option<String>),
    facts: Welcome,
    model: Mutex<Model>,
}

impl Served {
    /// `name` and `device` are for people.
    #[must_use]
    pub fn new(name: String, mut model: Model, device: String, row_invariant: bool) -> Self {
        let identity = model.identity().clone();
        let facts = Welcome {
            weights: identity.weights,
            parameters: model.parameters(),
            bytes_repeated: model.language_model().bytes_repeated(),
            weight_type: model.weight_type(),
            pass_bytes: model.pass_bytes(),
            vocab: model.vocab(),
            context: model.language_model().context(),
            device,
            row_invariant,
        };
        Self { name, key: (identity.config, identity.tokenizer), facts, model: Mutex::new(model) }
    }

    /// Whether clients could not tell this model from `other`: they ask by configuration and
    /// tokenizer.
    #[must_use]
    pub fn like(&self, other: &Self) -> bool {
        self.key == other.key
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        // A panic in a pass leaves that pass's sequences as they were: it appends last.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `models` to whoever connects and, if there is one, knows `token`. Each client has its own
/// sequences, which end with its connection; passes of several clients take turns.
///
/// `report` is told, in one line, who comes and goes, and why.
///
/// # Errors
/// If the listener fails.
pub fn serve(
    listener: &TcpListener,
    models: Vec<Served>,
    token: Option<&str>,
    report: impl Fn(&str) + Send + Sync + 'static,
) -> io::Result<()> {
    let models: Arc<[Served]> = models.into();
    let token = token.map(digest);
    let (clients, report) = (Arc::new(AtomicUsize::new(0)), Arc::new(report));
    loop {
        let (stream, address) = match listener.accept() {
            Ok(accepted) => accepted,
            // The client's doing, or a moment's: the next one may do better.
            Err(error) => {
                report(&format!("a connection failed: {error}"));
                thread::sleep(HEARTBEAT);
                continue;
            }
        };
        while clients.load(Ordering::Acquire) >= MOST_CLIENTS {
            thread::sleep(HEARTBEAT);
        }
        let seat = Seat::take(&clients);
        let (models, report) = (models.clone(), report.clone());
        thread::spawn(move || {
            let _seat = seat;
            let ended = client(stream, &models, token.as_ref(), &|name| {
                report(&format!("{address} runs {name}"));
            });
            report(&match ended {
                Ok(()) => format!("{address} left"),
                Err(reason) => format!("{address} left: {reason}"),
            });
        });
    }
}

/// Counts a client for as long as it is there.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(clients: &Arc<AtomicUsize>) -> Self {
        clients.fetch_add(1, Ordering::AcqRel);
        Self(clients.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Digests are compared in place of tokens: how long that takes tells nothing about the token.
fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// One client, from handshake to end.
fn client(
    stream: TcpStream,
    models: &[Served],
    token: Option<&[u8; 32]>,
    greeted: &dyn Fn(&str),
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    stream.set_nodelay(true).map_err(text)?;
    // A client shows itself soon, or goes.
    stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(text)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MOST_ASKED))
        .max_frame_size(Some(MOST_ASKED));
    // The size of the error is the library's.
    #[allow(clippy::result_large_err)]
    let admit = |request: &Request, response: Response| {
        let Some(token) = token else { return Ok(response) };
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        match given.and_then(|value| value.strip_prefix("Bearer ")) {
            Some(given) if digest(given) == *token => Ok(response),
            _ => {
                let mut refusal = ErrorResponse::new(None);
                *refusal.status_mut() = StatusCode::UNAUTHORIZED;
                Err(refusal)
            }
        }
    };
    let mut socket =
        accept_hdr_with_config(stream, admit, Some(config)).map_err(|error| error.to_string())?;
    let hello: Hello = match hear(&mut socket)? {
        Some(hello) => hello,
        None => return Ok(()),
    };
    let found = find(&hello, models);
    let greeting = match &found {
        Ok(served) => Greeting::Welcome(served.facts.clone()),
        Err(reason) => Greeting::Refused { reason: reason.clone() },
    };
    say(&mut socket, &greeting)?;
    let served = found?;
    greeted(&served.name);
    // Between passes a client drafts, or its user thinks.
    socket.get_ref().set_read_timeout(None).map_err(text)?;
    let mut session = Session { served, sequences: BTreeMap::new() };
    while let Some(work) = hear::<Work>(&mut socket)? {
        match session.run_alive(&work, &mut socket)? {
            Err(reason) => say(&mut socket, &Failure { reason })?,
            Ok(numbers) => send_rows(&mut socket, &numbers)?,
        }
    }
    Ok(())
}

fn find<'a>(hello: &Hello, models: &'a [Served]) -> Result<&'a Served, String> {
    if hello.version != VERSION {
        return Err(format!(
            "the worker speaks version {VERSION} of the protocol, the client {}: use one version \
             of the program",
            hello.version
        ));
    }
    let same = |served: &&Served| {
        served.key.0 == hello.config && served.key.1.as_ref() == hello.tokenizer.as_ref()
    };
    models.iter().find(same).ok_or_else(|| {
        let names: Vec<&str> = models.iter().map(Served::name).collect();
        format!(
            "the worker has no model with the configuration and tokenizer of {}; it has {}",
            hello.name,
            names.join(", ")
        )
    })
}

type Socket = WebSocket<TcpStream>;

/// The next message, or none if the client is done.
fn hear<T: serde::de::DeserializeOwned>(socket: &mut Socket) -> Result<Option<T>, String> {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => {
                let fault = |error| format!("it sent another message than expected: {error}");
                return serde_json::from_str(&text).map(Some).map_err(fault);
            }
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => return Ok(None),
            Ok(_) => return Err("it sent bytes, not JSON".into()),
            // Programs end without good-byes.
            Err(tungstenite::Error::Protocol(
                tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
            )) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn say(socket: &mut Socket, value: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    socket.send(Message::text(text)).map_err(|error| error.to_string())
}

/// At least one message, even of no rows.
fn send_rows(socket: &mut Socket, numbers: &[f32]) -> Result<(), String> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let bytes = tungstenite::Bytes::from(bytes);
    let mut at = 0;
    loop {
        let end = (at + MOST_BYTES).min(bytes.len());
        let message = Message::binary(bytes.slice(at..end));
        socket.send(message).map_err(|error| error.to_string())?;
        at = end;
        if at == bytes.len() {
            return Ok(());
        }
    }
}

/// One client's sequences.
struct Session<'a> {
    served: &'a Served,
    /// Its names for them, and the model's.
    sequences: BTreeMap<u64, SequenceId>,
}

impl Session<'_> {
    /// Runs the work and pings the client all the while. The outer error is the connection's.
    fn run_alive(
        &mut self,
        work: &Work,
        socket: &mut Socket,
    ) -> Result<Result<Vec<f32>, String>, String> {
        thread::scope(|scope| {
            let (done, wait) = mpsc::channel();
            let running = scope.spawn(move || {
                // A client that has gone meanwhile leaves nobody to tell.
                let _ = done.send(self.run(work));
            });
            loop {
                match wait.recv_timeout(HEARTBEAT) {
                    Ok(result) => return Ok(result),
                    Err(RecvTimeoutError::Timeout) => {
                        let ping = Message::Ping(tungstenite::Bytes::new());
                        socket.send(ping).map_err(|error| error.to_string())?;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        // Joined here, or the scope would panic as well.
                        let _ = running.join();
                        return Ok(Err("the worker failed in this pass".into()));
                    }
                }
            }
        })
    }

    fn run(&mut self, work: &Work) -> Result<Vec<f32>, String> {
        let mut model = self.served.lock();
        let lm = model.language_model();
        // All of them, whatever becomes of one: the client counts on the rest.
        let mut failed = None;
        for change in &work.changes {
            if let Err(reason) = change_one(&mut self.sequences, lm, *change) {
                failed.get_or_insert(reason);
            }
        }
        if let Some(reason) = failed {
            return Err(reason);
        }
        let tokens: Vec<Vec<Token>> = work
            .passes
            .iter()
            .map(|pass| pass.tokens.iter().copied().map(Token).collect())
            .collect();
        let mut batch = Vec::with_capacity(tokens.len());
        for (pass, tokens) in work.passes.iter().zip(&tokens) {
            let sequence = known(&self.sequences, pass.sequence)?;
            batch.push(Pass { sequence, tokens, rows: pass.rows });
        }
        let rows = lm.forward(&batch).map_err(|error| error.to_string())?;
        let rows = rows.iter().flat_map(|rows| (0..rows.len()).map(|row| rows.row(row)));
        Ok(rows.flatten().copied().collect())
    }
}

fn known(sequences: &BTreeMap<u64, SequenceId>, name: u64) -> Result<SequenceId, String> {
    sequences.get(&name).copied().ok_or_else(|| format!("sequence {name} is not open"))
}

fn change_one(
    sequences: &mut BTreeMap<u64, SequenceId>,
    lm: &mut Runner,
    change: Change,
) -> Result<(), String> {
    let text = |error: draftproof_decode::error::ModelError| error.to_string();
    let (name, opened) = match change {
        Change::Open { sequence, initial } => (sequence, lm.open_from(initial).map_err(text)?),
        Change::Fork { from, to } => (to, lm.fork(known(sequences, from)?).map_err(text)?),
        Change::Truncate { sequence, len } => {
            return lm.truncate(known(sequences, sequence)?, len).map_err(text);
        }
        Change::Close(name) => {
            let closed = sequences.remove(&name).ok_or_else(|| format!("{name} is not open"))?;
            lm.close(closed);
            return Ok(());
        }
    };
    if let Some(before) = sequences.insert(name, opened) {
        lm.close(before);
    }
    Ok(())
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let mut model = self.served.lock();
        for &sequence in self.sequences.values() {
            model.language_model().close(sequence);
        }
    }
}
