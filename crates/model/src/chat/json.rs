//! JSON as Python's `json.dumps` writes it.

use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};

/// Lists in lists in lists; Python has a limit as well.
const MAX_DEPTH: usize = 128;
/// An indentation of more is a mistake, or an attack.
const MAX_INDENT: usize = 16;

/// What is written so far. All that is written is charged: a small value may have a long text.
pub(super) struct Writer<'a> {
    pub(super) state: &'a State<'a, 'a>,
    /// Spaces for each level, on lines of their own; None: all in one line.
    pub(super) indent: Option<usize>,
    pub(super) text: String,
}

impl Writer<'_> {
    pub(super) fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.state.consume_fuel(1)?;
        if depth > MAX_DEPTH || self.indent.is_some_and(|indent| indent > MAX_INDENT) {
            let expected = format!(
                "tojson: expected at most {MAX_DEPTH} levels and {MAX_INDENT} spaces for each"
            );
            return Err(Error::new(ErrorKind::InvalidOperation, expected));
        }
        match value.kind() {
            ValueKind::Map => {
                self.text.push('{');
                for (i, key) in value.try_iter()?.enumerate() {
                    self.begin_item(i, depth);
                    let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                    self.string(&name)?;
                    self.text.push_str(": ");
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.end('}', value.len(), depth);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let before = self.text.len();
                for (i, item) in value.try_iter()?.enumerate() {
                    self.begin_item(i, depth);
                    self.value(&item, depth + 1)?;
                }
                self.end(']', Some(self.text.len() - before), depth);
            }
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::None => self.text.push_str("null"),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            other => {
                let message = format!("tojson: expected a value of JSON, found {other}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.text.push_str(&serde_json::Value::from(text).to_string());
        Ok(())
    }

    fn begin_item(&mut self, i: usize, depth: usize) {
        if i > 0 {
            self.text.push_str(if self.indent.is_some() { "," } else { ", " });
        }
        self.line(depth + 1);
    }

    /// The end of a list or map that has `length` of something in it.
    fn end(&mut self, bracket: char, length: Option<usize>, depth: usize) {
        if length != Some(0) {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

/// Python gives an exponent a sign and two digits.
fn number(value: &Value) -> String {
    let text = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => format!("{float:?}"),
        _ => return value.to_string(),
    };
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}
