//! One request to an OpenAI-compatible server, and what is read of its reply.

use std::{env, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::{Agent, http::Uri};

use crate::{
    args::{ApiArgument, EndpointArguments},
    http::is_local,
};

/// Where the key is.
const KEY: &str = "DRAFTPROOF_API_KEY";

/// A reply is never longer.
const MAX_REPLY: u64 = 32 << 20;

/// Tries of a request that the server was too busy for.
const TRIES: u32 = 3;

/// A server and how it is asked.
pub(super) struct Server {
    agent: Agent,
    /// Of the interface, with its path.
    url: String,
    api: ApiArgument,
    model: String,
    seed: i64,
    max_tokens: u32,
    key: Option<String>,
    /// Whether log-probabilities are asked for.
    pub(super) logprobs: bool,
}

/// A reply as far as it was understood.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) text: String,
    /// With log-probabilities: the tokens.
    pub(super) tokens: Option<Vec<Scored>>,
    pub(super) model: Option<String>,
    pub(super) system_fingerprint: Option<String>,
    /// All of it, less the key.
    pub(super) raw: Value,
}

/// A token with the two likeliest at its place, as far as they were told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scored {
    pub(super) token: String,
    pub(super) top: Option<[(String, f64); 2]>,
}

impl Scored {
    /// The logarithm of the likeliest one's probability less that of the second.
    pub(super) fn gap(&self) -> Option<f64> {
        self.top.as_ref().map(|[first, second]| first.1 - second.1)
    }

    fn new(token: &Value, mut top: Vec<(String, f64)>) -> Option<Self> {
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(2);
        Some(Self { token: token.as_str()?.to_owned(), top: top.try_into().ok() })
    }
}

/// Why a request has no reply.
enum Failure {
    /// The server's answer was this status.
    Status(u16, String),
    Other(anyhow::Error),
}

impl Server {
    pub(super) fn new(arguments: &EndpointArguments, url: &str, max_tokens: u32) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--endpoint {url:?}"))?;
        let plain = match uri.scheme_str() {
            Some("http") => true,
            Some("https") if cfg!(feature = "https") => false,
            Some("https") => bail!(
                "--endpoint {url}: this build cannot speak TLS; build it with --features https"
            ),
            _ => bail!("--endpoint {url:?}: expected http://… or https://…"),
        };
        let host = uri.host().unwrap_or_default();
        ensure!(!host.is_empty(), "--endpoint {url:?}: expected a host");
        let local = is_local(host);
        let key = env::var(KEY).ok().filter(|key| !key.is_empty());
        if let Some(key) = &key {
            // A shorter one could be part of a text, and one that JSON escapes could not be found.
            let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
            ensure!(
                key.len() >= 8 && key.bytes().all(fits),
                "{KEY}: expected 8 or more visible ASCII characters, no quotes and no backslashes"
            );
            ensure!(
                local || !plain,
                "--endpoint {url}: the key of {KEY} would be readable on the way; use https://, or \
                 unset {KEY}"
            );
        }
        let path = match arguments.api {
            ApiArgument::Completions => "completions",
            ApiArgument::Chat => "chat/completions",
        };
        let mut config = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(arguments.timeout.into())))
            // A status is an answer, and no key follows a redirection.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false);
        if local {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().into(),
            url: format!("{}/{path}", url.trim_end_matches('/')),
            api: arguments.api,
            model: arguments.endpoint_model.clone(),
            seed: arguments.seed,
            max_tokens,
            key,
            logprobs: true,
        })
    }

    fn body(&self, prompt: &str) -> Value {
        let mut body = json!({
            "model": self.model,
            "temperature": 0,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "n": 1,
            "stream": false,
        });
        match self.api {
            ApiArgument::Completions => {
                body["prompt"] = prompt.into();
                if self.logprobs {
                    body["logprobs"] = 2.into();
                }
            }
            ApiArgument::Chat => {
                body["messages"] = json!([{ "role": "user", "content": prompt }]);
                if self.logprobs {
                    body["logprobs"] = true.into();
                    body["top_logprobs"] = 2.into();
                }
            }
        }
        body
    }

    /// The first reply; where the server refuses to tell log-probabilities they are not asked for
    /// from now on.
    pub(super) fn first(&mut self, prompt: &str) -> Result<Reply> {
        match self.patient(prompt) {
            Err(Failure::Status(400 | 422, _)) => {
                self.logprobs = false;
                self.ask(prompt)
            }
            found => self.told(found),
        }
    }

    pub(super) fn ask(&self, prompt: &str) -> Result<Reply> {
        self.told(self.patient(prompt))
    }

    fn told(&self, found: Result<Reply, Failure>) -> Result<Reply> {
        match found {
            Ok(reply) => Ok(reply),
            Err(Failure::Status(status, body)) => {
                let start: String = body.trim().chars().take(300).collect();
                bail!("{}: expected a completion, found status {status}: {start}", self.url)
            }
            // The message may quote what was sent or received.
            Err(Failure::Other(error)) => bail!("{}", self.less_the_key(&format!("{error:#}"))),
        }
    }

    /// Asks again, a little later, where the server is too busy.
    fn patient(&self, prompt: &str) -> Result<Reply, Failure> {
        let mut tried = 0;
        loop {
            tried += 1;
            match self.once(prompt) {
                Err(Failure::Status(429 | 500 | 502..=504, _)) if tried < TRIES => {
                    thread::sleep(Duration::from_secs(1 << (tried - 1)));
                }
                found => return found,
            }
        }
    }

    fn once(&self, prompt: &str) -> Result<Reply, Failure> {
        let other = |error: anyhow::Error| Failure::Other(error.context(self.url.clone()));
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let sent = request.send(self.body(prompt).to_string());
        let mut response = sent.map_err(|error| other(error.into()))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MAX_REPLY).read_to_vec();
        let body = body.map_err(|error| other(error.into()))?;
        let text = self.less_the_key(&String::from_utf8_lossy(&body));
        if status != 200 {
            return Err(Failure::Status(status, text));
        }
        let parsed = serde_json::from_str(&text).context("expected JSON").and_then(parse);
        parsed.map_err(other)
    }

    /// Servers may echo what they were sent.
    fn less_the_key(&self, text: &str) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "[key]"),
            None => text.to_owned(),
        }
    }
}

fn parse(raw: Value) -> Result<Reply> {
    let choice = &raw["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
    let Some(text) = text else {
        bail!("expected choices[0].text or choices[0].message.content, found {choice}");
    };
    let text = text.to_owned();
    let logprobs = &choice["logprobs"];
    let tokens = chat_tokens(&logprobs["content"]).or_else(|| completion_tokens(logprobs));
    // Tokens that do not make up the text (special ones, pieces of characters) still tell where two
    // replies part; an empty list for a text that is not empty tells nothing.
    let tokens = tokens.filter(|tokens| !tokens.is_empty() || text.is_empty());
    let string = |key: &str| raw[key].as_str().map(str::to_owned);
    let (model, system_fingerprint) = (string("model"), string("system_fingerprint"));
    Ok(Reply { text, tokens, model, system_fingerprint, raw })
}

/// `[{token, logprob, top_logprobs: [{token, logprob}]}]`.
fn chat_tokens(content: &Value) -> Option<Vec<Scored>> {
    let scored = |entry: &Value| {
        let top = entry["top_logprobs"].as_array().into_iter().flatten();
        let pair =
            |top: &Value| Some((top["token"].as_str()?.to_owned(), top["logprob"].as_f64()?));
        Scored::new(&entry["token"], top.filter_map(pair).collect())
    };
    content.as_array()?.iter().map(scored).collect()
}

/// `{tokens: […], top_logprobs: [{token: logprob}]}`.
fn completion_tokens(logprobs: &Value) -> Option<Vec<Scored>> {
    let scored = |(i, token): (usize, &Value)| {
        let top = logprobs["top_logprobs"][i].as_object().into_iter().flatten();
        let pair = |(token, logprob): (&String, &Value)| Some((token.clone(), logprob.as_f64()?));
        Scored::new(token, top.filter_map(pair).collect())
    };
    logprobs["tokens"].as_array()?.iter().enumerate().map(scored).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_logprobs_are_read() {
        let chat = json!({ "model": "m", "system_fingerprint": "f", "choices": [{
            "message": { "content": "ab" },
            "logprobs": { "content": [
                { "token": "a", "logprob": -0.5, "top_logprobs":
                    [{ "token": "b", "logprob": -2.0 }, { "token": "a", "logprob": -0.5 }] },
                { "token": "b", "logprob": -0.1, "top_logprobs": [] },
            ] },
        }] });
        let completion = json!({ "model": "m", "system_fingerprint": "f", "choices": [{
            "text": "ab",
            "logprobs": {
                "tokens": ["a", "b"],
                "token_logprobs": [-0.5, -0.1],
                "top_logprobs": [{ "a": -0.5, "b": -2.0 }, null],
            },
        }] });
        for raw in [chat, completion] {
            let reply = parse(raw).unwrap();
            assert_eq!(reply.text, "ab");
            assert_eq!(
                (reply.model.as_deref(), reply.system_fingerprint.as_deref()),
                (Some("m"), Some("f"))
            );
            let tokens = reply.tokens.unwrap();
            assert_eq!(tokens.iter().map(Scored::gap).collect::<Vec<_>>(), [Some(1.5), None]);
            assert_eq!(tokens[1].token, "b");
        }
    }

    #[test]
    fn what_is_no_completion_is_an_error() {
        for raw in [
            json!({}),
            json!([]),
            json!({ "choices": [] }),
            json!({ "choices": [{ "message": { "content": null } }] }),
        ] {
            assert!(parse(raw.clone()).is_err(), "{raw}");
        }
        let bare = parse(json!({ "choices": [{ "text": "x", "logprobs": null }] })).unwrap();
        assert!(bare.tokens.is_none() && bare.model.is_none());
    }
}
