//! Chat: a model's own template turns messages into the text that it was trained to answer.
//!
//! Templates are programs in Jinja that come with a model, so they are hostile input: they read
//! nothing but what is given to them here, and what they may compute is bounded. They are rendered
//! as transformers renders them, with its settings and functions:
//!
//! | there | here |
//! |---|---|
//! | `messages`, `add_generation_prompt` (true), `tools` and `documents` (none) | the same |
//! | `bos_token`, `eos_token` and the like | the strings of `tokenizer_config.json` |
//! | `trim_blocks`, `lstrip_blocks`, `break`, `continue` | the same |
//! | `raise_exception(text)` | [`Error::ChatRefused`] |
//! | `strftime_now(format)` | the same |
//! | `tojson` without escapes for HTML | the same |
//! | `{% generation %}`, which marks text for training | a block like any other |
//! | methods of Python's strings, lists and dictionaries | the common ones |
//!
//! The text has all the special tokens that the model expects: it is encoded with
//! [`Tokenizer::encode_bare`](crate::Tokenizer::encode_bare). As in transformers, a message that
//! *spells* a special token becomes that token.

mod json;

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::{ZonedDateTime, fmt::strtime};
use minijinja::{
    Environment, ErrorKind, State, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};
use serde_json::Value as Json;

use crate::{Error, load::Source};

/// What a template may compute, in minijinja's unit: an instruction, or 64 bytes written. Long chats
/// take a hundredth.
const FUEL: u64 = 1 << 24;

const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const MAX_BYTES: u64 = 16 << 20;

/// Who may speak.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// One turn of a conversation.
#[derive(Clone, Debug)]
pub struct Message {
    role: String,
    /// All keys, in their order, as the template sees them.
    value: Value,
}

impl Message {
    /// What the user says.
    #[must_use]
    pub fn user(content: &str) -> Self {
        Self::new("user", content)
    }

    /// What the model is told to be.
    #[must_use]
    pub fn system(content: &str) -> Self {
        Self::new("system", content)
    }

    fn new(role: &str, content: &str) -> Self {
        Self { role: role.into(), value: context! { role, content } }
    }

    /// Who speaks: `system`, `developer`, `user`, `assistant` or `tool`.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Reads a JSON list of `{"role": …, "content": …}`; other keys (`tool_calls`) reach the
    /// template too. `file` names the list in errors.
    ///
    /// # Errors
    /// If it is no such list, a role is unknown, or a message has neither content nor tool calls.
    pub fn parse_list(file: &str, bytes: &[u8]) -> Result<Vec<Self>, Error> {
        let messages: Vec<Value> =
            serde_json::from_slice(bytes).map_err(|source| Error::json(file, source))?;
        messages.into_iter().enumerate().map(|(i, value)| Self::checked(file, i, value)).collect()
    }

    fn checked(file: &str, i: usize, value: Value) -> Result<Self, Error> {
        let get = |key: &str| value.get_attr(key).unwrap_or_default();
        let wrong = |key: &str, expected: &str, found: &Value| {
            let found = match serde_json::to_string(found) {
                Ok(text) if !found.is_undefined() => text,
                _ => "nothing".into(),
            };
            Error::field(file, &format!("message {i}{key}"), expected, found)
        };
        if value.kind() != ValueKind::Map {
            return Err(wrong("", "an object with role and content", &value));
        }
        let found = get("role");
        let Some(role) = found.as_str().filter(|role| ROLES.contains(role)) else {
            return Err(wrong(", role", &format!("one of {}", ROLES.join(", ")), &found));
        };
        let (content, calls) = (get("content"), get("tool_calls"));
        let fits = match content.kind() {
            ValueKind::String | ValueKind::Seq => true,
            ValueKind::None | ValueKind::Undefined => calls.is_true(),
            _ => false,
        };
        if !fits {
            return Err(wrong(", content", "a text, or a list of parts", &content));
        }
        Ok(Self { role: role.into(), value })
    }
}

/// A model's template.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Where it comes from, for errors.
    file: String,
    source: String,
    /// `bos_token` and the like.
    tokens: BTreeMap<String, String>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// A template, the file it is from, and the special tokens it may name (`bos_token`, …).
    #[must_use]
    pub fn new(file: &str, source: &str, tokens: BTreeMap<String, String>) -> Self {
        Self { file: file.into(), source: source.into(), tokens }
    }

    /// The template of a folder: that of `chat_template.jinja`, else of `tokenizer_config.json`,
    /// where it may be one of several, of which the one named `default` is meant.
    pub(crate) fn find(source: &Source) -> Result<Option<Self>, Error> {
        let file = source.label(CONFIG);
        let config: serde_json::Map<String, Json> = match source.read(CONFIG, MAX_BYTES)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| Error::json(&file, e))?,
            None => serde_json::Map::new(),
        };
        let text = |value: &Json| value.as_str().or(value["content"].as_str()).map(str::to_owned);
        let tokens = config
            .iter()
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, value)| Some((name.clone(), text(value)?)))
            .collect();
        if let Some(bytes) = source.read(TEMPLATE, MAX_BYTES)? {
            let file = source.label(TEMPLATE);
            let template = str::from_utf8(&bytes)
                .map_err(|error| Error::file(&file, "UTF-8 text", error.to_string()))?;
            return Ok(Some(Self::new(&file, template, tokens)));
        }
        let template = match config.get("chat_template") {
            None | Some(Json::Null) => return Ok(None),
            Some(Json::Array(list)) => {
                let is_default = |entry: &&Json| entry["name"] == "default";
                list.iter().find(is_default).and_then(|entry| entry["template"].as_str())
            }
            Some(other) => other.as_str(),
        };
        let template = template.ok_or_else(|| {
            let expected = "a text, or a list with a template named \"default\"";
            Error::field(&file, "chat_template", expected, "something else")
        })?;
        Ok(Some(Self::new(&file, template, tokens)))
    }

    /// The text that asks the model for the next turn of this conversation.
    ///
    /// # Errors
    /// [`Error::ChatRefused`] if the template raises an exception (roles that do not alternate,
    /// say), [`Error::ChatTemplate`] if it does not parse, fails, or computes without end.
    pub fn render(&self, messages: &[Message]) -> Result<String, Error> {
        self.render_at(messages, &ZonedDateTime::now())
    }

    /// As [`render`](Self::render), at the given time: some templates tell the model the date.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_at(&self, messages: &[Message], now: &ZonedDateTime) -> Result<String, Error> {
        let source = plain_blocks(&self.source);
        let messages: Vec<Value> = messages.iter().map(|message| message.value.clone()).collect();
        let given = context! {
            messages,
            tools => (),
            documents => (),
            add_generation_prompt => true,
        };
        let context = context! { ..given, ..Value::from_pairs(self.tokens.clone()) };
        let rendered = environment(now.clone()).and_then(|environment| {
            let template = environment.template_from_named_str("chat template", &source)?;
            template.render(context)
        });
        rendered.map_err(|error| {
            let file = self.file.clone();
            match cause(&error).downcast_ref::<Raised>() {
                Some(Raised(reason)) => Error::ChatRefused { file, reason: reason.clone() },
                None => Error::ChatTemplate { file, reason: error.to_string() },
            }
        })
    }
}

/// The error at the bottom.
fn cause<'a>(error: &'a minijinja::Error) -> &'a (dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// What a template says with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn environment(now: ZonedDateTime) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, "an exception");
        Err::<Value, _>(error.with_source(Raised(message)))
    });
    let now = Arc::new(now);
    environment.add_function("strftime_now", move |format: &str| {
        strtime::format(format, &*now).map_err(|error| {
            minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"))
        })
    });
    environment.add_filter("tojson", |state: &State, value: &Value, options: Kwargs| {
        let indent = options.get::<Option<usize>>("indent")?;
        if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
            let message = "tojson: expected ensure_ascii=false, found true";
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
        }
        options.assert_all_used()?;
        let mut writer = json::Writer { state, indent, text: String::new() };
        writer.value(value, 0)?;
        Ok(writer.text)
    });
    Ok(environment)
}

/// The template with `{% generation %}` … `{% endgeneration %}` as blocks that minijinja knows.
fn plain_blocks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start + 2..].find("%}") else { break };
        let (before, after) = rest.split_at(start);
        let (tag, after) = after.split_at(end + 4);
        let inner = &tag[2..tag.len() - 2];
        plain.push_str(before);
        match inner.trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => plain.push_str(&tag.replace("generation", "with")),
            "endgeneration" => plain.push_str(&tag.replace("endgeneration", "endwith")),
            _ => plain.push_str(tag),
        }
        rest = after;
    }
    plain.push_str(rest);
    plain
}
