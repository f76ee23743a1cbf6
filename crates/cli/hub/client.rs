//! Questions to a hub: what is this file, and the file itself.

use std::{fmt::Write as _, io::Read, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use ureq::{
    Agent, Body,
    http::{Response, Uri},
};

use super::name::is_commit;
use crate::http::is_local;

/// Hops from a name to the server that has the bytes.
const MOST_REDIRECTIONS: usize = 8;

/// A hub and who asks it.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Without a slash at its end.
    endpoint: String,
    origin: Origin,
    /// Sent to the endpoint itself and to nobody else.
    token: Option<String>,
    /// There is a token, but it would be readable on the way.
    withheld: bool,
}

/// A file in a repository at a revision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) repository: &'a str,
    pub(super) revision: &'a str,
    pub(super) file: &'a str,
}

/// What a hub says about a file.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) commit: String,
    /// What tells the content from any other: 64 hexadecimal digits are its SHA-256.
    pub(super) etag: String,
    pub(super) size: u64,
}

/// Whether there is such a file.
#[derive(Debug)]
pub(super) enum Answer {
    File(About),
    /// There is none; the message says so.
    Absent(String),
    /// Nobody could be asked; the message says why.
    Unreachable(String),
}

/// Scheme, host and port.
type Origin = (String, String, u16);

impl Client {
    pub(super) fn new(endpoint: &str, token: Option<String>) -> Result<Self> {
        let origin = origin(endpoint).with_context(|| format!("HF_ENDPOINT {endpoint:?}"))?;
        if let Some(token) = &token {
            let fits = token.bytes().all(|byte| byte.is_ascii_graphic());
            ensure!(
                fits,
                "HF_TOKEN, or the file with the token: expected visible ASCII characters"
            );
        }
        let local = is_local(&origin.1);
        let readable = origin.0 == "http" && !local;
        let second = Duration::from_secs;
        let mut config = Agent::config_builder()
            .timeout_connect(Some(second(30)))
            .timeout_recv_response(Some(second(60)))
            .timeout_per_read(Some(second(60)))
            // A status is an answer, and every hop is looked at before it is taken.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false);
        if local {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().into(),
            endpoint: endpoint.trim_end_matches('/').into(),
            origin,
            withheld: readable && token.is_some(),
            token: token.filter(|_| !readable),
        })
    }

    /// What the hub says about a file.
    pub(super) fn look(&self, wanted: Wanted<'_>) -> Result<Answer> {
        let mut url = self.url(wanted);
        for _ in 0..MOST_REDIRECTIONS {
            let response = match self.send("HEAD", &url, 0) {
                Ok(response) => response,
                Err(error) => return Ok(Answer::Unreachable(format!("{url}: {error}"))),
            };
            match response.status().as_u16() {
                200..=299 => return about(&url, &response).map(Answer::File),
                // Of what it keeps elsewhere the hub says all that is asked before it sends there.
                300..=399 if header(&response, "x-linked-etag").is_some() => {
                    return about(&url, &response).map(Answer::File);
                }
                300..=399 => url = next(&url, &response)?,
                404 if !is_whole_repository(&response) => {
                    return Ok(Answer::Absent(self.refused(wanted, &response)));
                }
                status @ (429 | 500..=599) => {
                    return Ok(Answer::Unreachable(format!("{url}: found status {status}")));
                }
                _ => bail!("{}", self.refused(wanted, &response)),
            }
        }
        bail!("{url}: expected a file within {MOST_REDIRECTIONS} redirections")
    }

    /// A file's content from some byte on, and which byte that is: the one asked for, or 0 where a
    /// server knows no ranges.
    pub(super) fn content(&self, wanted: Wanted<'_>, from: u64) -> Result<(u64, impl Read)> {
        let mut url = self.url(wanted);
        for _ in 0..MOST_REDIRECTIONS {
            let response = self.send("GET", &url, from).with_context(|| url.clone())?;
            match response.status().as_u16() {
                200 => return Ok((0, response.into_body().into_reader())),
                206 if from > 0 => {
                    let range = header(&response, "content-range").unwrap_or_default();
                    ensure!(
                        range.starts_with(&format!("bytes {from}-")),
                        "{url}: expected the bytes from {from} on, found Content-Range {range:?}"
                    );
                    return Ok((from, response.into_body().into_reader()));
                }
                300..=399 => url = next(&url, &response)?,
                _ => bail!("{}", self.refused(wanted, &response)),
            }
        }
        bail!("{url}: expected a file within {MOST_REDIRECTIONS} redirections")
    }

    fn url(&self, wanted: Wanted<'_>) -> String {
        let Wanted { repository, revision, file } = wanted;
        let (revision, file) = (escape(revision, ""), escape(file, "/"));
        format!("{}/{repository}/resolve/{revision}/{file}", self.endpoint)
    }

    fn send(&self, method: &str, url: &str, from: u64) -> Result<Response<Body>> {
        let to = origin(url)?;
        let mut request = match method {
            "HEAD" => self.agent.head(url),
            _ => self.agent.get(url),
        };
        // Sizes and sums are those of the file, not of a compressed form.
        request = request.header("Accept-Encoding", "identity");
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| to == self.origin) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Ok(request.call()?)
    }

    /// What a status that is no success means.
    fn refused(&self, wanted: Wanted<'_>, response: &Response<Body>) -> String {
        let Wanted { repository, revision, file } = wanted;
        let status = response.status().as_u16();
        let code = header(response, "x-error-code").map(|code| format!(", {code}"));
        let code = code.unwrap_or_default();
        let hint = match (status, &self.token, self.withheld) {
            (401 | 403, _, true) => {
                "; the token is not sent without TLS to another machine, where it could be read on \
                 the way"
            }
            (401, None, _) => {
                "; the repository does not exist, or needs a token: set HF_TOKEN, or log in with \
                 `hf auth login`"
            }
            (403, None, _) => "; the repository needs a token: set HF_TOKEN",
            (401 | 403, Some(_), _) => {
                "; the token does not give access: check HF_TOKEN, and that its owner has accepted \
                 the repository's conditions"
            }
            _ => "",
        };
        format!(
            "expected {file} in {repository} at revision {revision} on {}, found status \
             {status}{code}{hint}",
            self.endpoint
        )
    }
}

/// Whether a 404 is about more than the file.
fn is_whole_repository(response: &Response<Body>) -> bool {
    let code = header(response, "x-error-code");
    matches!(code, Some("RepoNotFound" | "RevisionNotFound" | "GatedRepo"))
}

fn about(url: &str, response: &Response<Body>) -> Result<About> {
    let found = |names: &[&str]| names.iter().find_map(|name| header(response, name));
    let missing = |names: &str| format!("{url}: expected the header {names} of a hub's reply");
    let commit = found(&["x-repo-commit"]).with_context(|| missing("X-Repo-Commit"))?;
    ensure!(is_commit(commit), "{url}: expected a commit in X-Repo-Commit, found {commit:?}");
    let etag = found(&["x-linked-etag", "etag"]).with_context(|| missing("ETag"))?;
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    // It becomes the name of a file.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    ensure!(
        (8..=128).contains(&etag.len()) && etag.bytes().all(fits),
        "{url}: expected letters and digits as ETag, found {etag:?}"
    );
    let size = found(&["x-linked-size", "content-length"]);
    let size = size.with_context(|| missing("X-Linked-Size or Content-Length"))?;
    let size = size.parse().with_context(|| format!("{url}: size {size:?}"))?;
    Ok(About { commit: commit.to_lowercase(), etag: etag.into(), size })
}

/// Where a redirection leads.
fn next(url: &str, response: &Response<Body>) -> Result<String> {
    let location = header(response, "location").unwrap_or_default();
    let (scheme, host, port) = origin(url)?;
    let next = match location.as_bytes() {
        [b'/', b'/', ..] => format!("{scheme}:{location}"),
        [b'/', ..] => format!("{scheme}://{host}:{port}{location}"),
        _ => location.to_owned(),
    };
    let (to, ..) = origin(&next).with_context(|| format!("{url}: redirection to {location:?}"))?;
    ensure!(
        scheme == "http" || to == "https",
        "{url}: expected a redirection within TLS, found {location:?}"
    );
    Ok(next)
}

/// What a token may be sent to; an error if this build cannot reach it.
fn origin(url: &str) -> Result<Origin> {
    let uri: Uri = url.parse()?;
    let scheme = uri.scheme_str().unwrap_or_default().to_owned();
    let usual = match scheme.as_str() {
        "http" => 80,
        "https" if cfg!(feature = "https") => 443,
        "https" => bail!("{url}: this build cannot speak TLS; build it with --features hub"),
        _ => bail!("expected http://… or https://…, found {url:?}"),
    };
    let host = uri.host().unwrap_or_default().to_lowercase();
    ensure!(!host.is_empty(), "expected a host, found {url:?}");
    Ok((scheme, host, uri.port_u16().unwrap_or(usual)))
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// Percent-encodes all but letters, digits, `-._~` and what is in `also`.
fn escape(text: &str, also: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        let c = char::from(byte);
        if byte.is_ascii_alphanumeric() || "-._~".contains(c) || also.contains(c) {
            escaped.push(c);
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_escaped() {
        assert_eq!(escape("refs/pr/1", ""), "refs%2Fpr%2F1");
        assert_eq!(escape("q4/a b?#é.gguf", "/"), "q4/a%20b%3F%23%C3%A9.gguf");
    }

    #[test]
    fn a_token_stays_with_its_origin() {
        let of = |url| origin(url).unwrap();
        assert_eq!(of("http://Hub.example/x"), of("http://hub.example:80/y"));
        for other in ["http://hub.example:81/", "http://hub.example.evil/", "http://x@evil/"] {
            assert_ne!(of("http://hub.example/"), of(other), "{other}");
        }
        for none in ["", "hub.example", "ftp://hub.example", "/x", "http:///x"] {
            assert!(origin(none).is_err(), "{none:?}");
        }
        let open = Client::new("http://hub.example", Some("secret".into())).unwrap();
        assert!(open.token.is_none() && open.withheld);
        let local = Client::new("http://127.0.0.1:1", Some("secret".into())).unwrap();
        assert!(local.token.is_some() && !local.withheld);
        assert!(Client::new("http://127.0.0.1:1", Some("two\nlines".into())).is_err());
    }
}
