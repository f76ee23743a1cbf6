//! The side that decodes.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{TcpStream, ToSocketAddrs},
};

use draftproof_decode::{
    LanguageModel,
    error::ModelError,
    lm::{Pass, Rows, SequenceId, check_batch},
};
use tungstenite::{
    ClientRequestBuilder, Message, WebSocket,
    http::{StatusCode, Uri},
};

use super::{Change, Failure, Greeting, Hello, PATIENCE, VERSION, Welcome, WirePass, Work};
use crate::{Error, InitialState, WeightType};

/// Where a worker is, and what it wants to hear.
#[derive(Clone)]
pub struct Link {
    uri: Uri,
    token: Option<String>,
}

impl fmt::Debug for Link {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.uri).finish()
    }
}

impl Link {
    /// A worker at `url`, `ws://host:port`.
    ///
    /// # Errors
    /// If the URL is none of that kind.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, Error> {
        let fault = |found: String| Error::Remote {
            url: url.into(),
            message: format!("expected ws://host:port, found {found}"),
        };
        let uri: Uri = url.parse().map_err(|error| fault(format!("{error}")))?;
        if uri.scheme_str() != Some("ws") {
            return Err(fault(match uri.scheme_str() {
                Some("wss") => "wss: TLS is left to a tunnel".into(),
                Some(other) => format!("the scheme {other}"),
                None => "no scheme".into(),
            }));
        }
        if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none() {
            return Err(fault("no host and port".into()));
        }
        Ok(Self { uri, token })
    }

    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        Error::Remote { url: self.uri.to_string(), message: message.into() }
    }

    fn dial(&self) -> io::Result<TcpStream> {
        // Both are there: `new` looked.
        let host = self.uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.uri.port_u16().unwrap_or_default();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks the worker for the model with these digests.
    ///
    /// # Errors
    /// If there is no worker, or it does not let us in, or has no such model.
    pub(crate) fn open(
        &self,
        name: &str,
        config: &str,
        tokenizer: Option<&str>,
    ) -> Result<RemoteModel, Error> {
        let stream =
            self.dial().map_err(|error| self.error(format!("no worker there: {error}")))?;
        let patient = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))
        };
        patient().map_err(|error: io::Error| self.error(error.to_string()))?;
        let mut request = ClientRequestBuilder::new(self.uri.clone());
        if let Some(token) = &self.token {
            request = request.with_header("Authorization", format!("Bearer {token}"));
        }
        let (socket, _) = tungstenite::client(request, stream).map_err(|error| match error {
            tungstenite::HandshakeError::Failure(tungstenite::Error::Http(reply))
                if reply.status() == StatusCode::UNAUTHORIZED =>
            {
                self.error(match self.token {
                    Some(_) => "the worker does not take this token",
                    None => "the worker asks for a token",
                })
            }
            tungstenite::HandshakeError::Failure(error) => {
                self.error(format!("no worker there: {}", what(&error)))
            }
            tungstenite::HandshakeError::Interrupted(_) => {
                self.error(format!("it said nothing for {} s", PATIENCE.as_secs()))
            }
        })?;
        let mut connection = Connection { socket, url: self.uri.to_string(), lost: None };
        let hello = Hello {
            version: VERSION,
            name: name.into(),
            config: config.into(),
            tokenizer: tokenizer.map(Into::into),
        };
        let greeting = connection.send(&hello).and_then(|()| connection.text::<Greeting>());
        match greeting.map_err(|message| self.error(message))? {
            Greeting::Refused { reason } => Err(self.error(reason)),
            Greeting::Welcome(facts) if facts.vocab == 0 || facts.context == 0 => {
                Err(self.error("its model has no ids or no context"))
            }
            Greeting::Welcome(facts) => Ok(RemoteModel {
                vocab: facts.vocab,
                facts,
                connection,
                changes: Vec::new(),
                initial: InitialState::default(),
                lengths: BTreeMap::new(),
                next: 0,
            }),
        }
    }
}

struct Connection {
    socket: WebSocket<TcpStream>,
    url: String,
    /// Why there is no connection any more.
    lost: Option<String>,
}

impl Connection {
    fn send(&mut self, value: &impl serde::Serialize) -> Result<(), String> {
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        self.socket.send(Message::text(text)).map_err(|error| what(&error))
    }

    /// The next message that says something.
    fn hear(&mut self) -> Result<Message, String> {
        loop {
            match self.socket.read() {
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => return Err("it closed the connection".into()),
                Ok(message) => return Ok(message),
                Err(error) => return Err(what(&error)),
            }
        }
    }

    fn text<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, String> {
        let Message::Text(text) = self.hear()? else {
            return Err("expected JSON from it, found bytes".into());
        };
        serde_json::from_str(&text).map_err(|error| format!("expected another message: {error}"))
    }

    /// `count` numbers, or why there are none. The outer error is the connection's.
    fn numbers(&mut self, count: usize) -> Result<Result<Vec<f32>, String>, String> {
        let mut numbers = Vec::with_capacity(count);
        // A pass without rows is answered as well: with nothing.
        loop {
            match self.hear()? {
                Message::Binary(bytes) => {
                    let (words, rest) = bytes.as_chunks::<4>();
                    if !rest.is_empty() || numbers.len() + words.len() > count {
                        return Err(format!("expected {count} numbers of it, found more"));
                    }
                    numbers.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
                    if numbers.len() == count {
                        return Ok(Ok(numbers));
                    }
                }
                Message::Text(text) => {
                    let failure: Failure = serde_json::from_str(&text)
                        .map_err(|error| format!("expected another message: {error}"))?;
                    return Ok(Err(failure.reason));
                }
                _ => return Err("expected rows of it".into()),
            }
        }
    }
}

/// What a person reads of a failure.
fn what(error: &tungstenite::Error) -> String {
    match error {
        // What a timeout is called differs between systems.
        tungstenite::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            format!("it said nothing for {} s", PATIENCE.as_secs())
        }
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            "it closed the connection".into()
        }
        other => other.to_string(),
    }
}

/// A model that a worker runs.
pub struct RemoteModel {
    connection: Connection,
    facts: Welcome,
    /// Usable ids: at most the worker's.
    vocab: usize,
    /// What the worker has yet to be told.
    changes: Vec<Change>,
    /// What the state of new sequences begins with.
    initial: InitialState,
    lengths: BTreeMap<SequenceId, usize>,
    next: u64,
}

impl fmt::Debug for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteModel")
            .field("url", &self.connection.url)
            .field("facts", &self.facts)
            .field("sequences", &self.lengths.len())
            .finish_non_exhaustive()
    }
}

impl RemoteModel {
    /// Cuts off every id from `vocab` on. Raising it does nothing.
    pub fn limit_vocab(&mut self, vocab: usize) {
        self.vocab = self.vocab.min(vocab.max(1));
    }

    /// The device it runs on, as the worker describes it.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.facts.device
    }

    /// Whether its rows are independent bit for bit.
    #[must_use]
    pub fn row_invariant(&self) -> bool {
        self.facts.row_invariant
    }

    /// Weights, the type of most of them, and the bytes that a pass reads.
    pub(crate) fn size(&self) -> (u64, WeightType, u64) {
        (self.facts.parameters, self.facts.weight_type, self.facts.pass_bytes)
    }

    pub(crate) fn bytes_repeated(&self) -> u64 {
        self.facts.bytes_repeated
    }

    /// The digest of its weights.
    pub(crate) fn weights(&self) -> &str {
        &self.facts.weights
    }

    pub(crate) fn initial_state(&self) -> InitialState {
        self.initial
    }

    /// Closes open sequences.
    pub(crate) fn set_initial_state(&mut self, state: InitialState) {
        let open = std::mem::take(&mut self.lengths);
        self.changes.extend(open.keys().map(|sequence| Change::Close(sequence.0)));
        self.initial = state;
    }

    /// Memory is had, or not, when the first pass runs.
    pub(crate) fn open_from(&mut self, initial: InitialState) -> SequenceId {
        let id = self.insert(0);
        self.changes.push(Change::Open { sequence: id.0, initial });
        id
    }

    /// Runs the passes there. The outer error is the connection's and final.
    fn ask(&mut self, batch: &[Pass<'_>]) -> Result<Result<Vec<f32>, String>, String> {
        let pass = |pass: &Pass<'_>| WirePass {
            sequence: pass.sequence.0,
            tokens: pass.tokens.iter().map(|token| token.0).collect(),
            rows: pass.rows,
        };
        let changes = std::mem::take(&mut self.changes);
        self.connection.send(&Work { changes, passes: batch.iter().map(pass).collect() })?;
        let rows: usize = batch.iter().map(|pass| pass.rows).sum();
        self.connection.numbers(rows * self.facts.vocab)
    }

    fn held(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.lengths.get(&sequence).copied().ok_or(ModelError::NotOpen { sequence })
    }

    fn insert(&mut self, len: usize) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.lengths.insert(id, len);
        id
    }
}

impl LanguageModel for RemoteModel {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn context(&self) -> usize {
        self.facts.context
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        Ok(self.open_from(self.initial))
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        check_batch(batch, self.vocab, self.facts.context, |sequence| self.held(sequence))?;
        let lost = |url: &str, reason: &str| {
            ModelError::Backend(format!("the worker at {url} is lost: {reason}"))
        };
        if let Some(reason) = &self.connection.lost {
            return Err(lost(&self.connection.url, reason));
        }
        let numbers = self.ask(batch).map_err(|reason| {
            let error = lost(&self.connection.url, &reason);
            self.connection.lost = Some(reason);
            error
        })?;
        let numbers = numbers.map_err(ModelError::Backend)?;
        for pass in batch {
            *self.lengths.entry(pass.sequence).or_default() += pass.tokens.len();
        }
        let mut rows = numbers.chunks_exact(self.facts.vocab);
        let mut of = |pass: &Pass<'_>| {
            let rows = rows.by_ref().take(pass.rows);
            Rows::new(self.vocab, rows.flat_map(|row| &row[..self.vocab]).copied().collect())
        };
        Ok(batch.iter().map(&mut of).collect())
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.held(sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        let held = self.held(sequence)?;
        if len > held {
            return Err(ModelError::TruncateBeyond { sequence, held, len });
        }
        if len < held {
            self.lengths.insert(sequence, len);
            self.changes.push(Change::Truncate { sequence: sequence.0, len });
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        let to = self.insert(self.held(sequence)?);
        self.changes.push(Change::Fork { from: sequence.0, to: to.0 });
        Ok(to)
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.lengths.remove(&sequence).is_some() {
            self.changes.push(Change::Close(sequence.0));
        }
    }
}
