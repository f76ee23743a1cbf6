//! Where tokens go: text to stdout as it is decided, or collected for one JSON object.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use draftproof_decode::{
    FinishReason, Listener, Session, Token,
    draft::SessionId,
    error::ListenerError,
    session::{Emitted, JudgedRound},
    verify::Origin,
};
use draftproof_model::{Decoder, Tokenizer};
use serde_json::{Value, json};

use crate::{args::GenerateArguments, logprobs, replay::Tape, stops::Stops};

/// Receives the tokens of a run: decodes, cuts at stop strings, prints.
pub(crate) struct Output<'a> {
    arguments: &'a GenerateArguments,
    texts: Vec<Text<'a>>,
    tape: Option<Tape>,
    warned: bool,
}

/// One continuation's text in the making.
struct Text<'a> {
    decoder: Option<Decoder<'a>>,
    stops: Stops,
    text: String,
    logprobs: Vec<Value>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(
        arguments: &'a GenerateArguments,
        tokenizer: Option<&'a Tokenizer>,
        prompt: &[Token],
        stops: &[String],
    ) -> Self {
        let text = || Text {
            decoder: tokenizer.map(|tokenizer| tokenizer.decoder_after(prompt)),
            stops: Stops::new(stops),
            text: String::new(),
            logprobs: Vec::new(),
        };
        let texts = std::iter::repeat_with(text).take(arguments.n as usize).collect();
        Self { arguments, texts, tape: None, warned: false }
    }

    /// Records every round on `tape` as well.
    pub(crate) fn record(&mut self, tape: Tape) {
        self.tape = Some(tape);
    }

    /// Text is printed as it comes if it is all that will be printed.
    fn streams(&self) -> bool {
        !self.arguments.json && self.arguments.n == 1
    }

    /// Takes what was held back; the texts, and the tape, then end as they are.
    pub(crate) fn finish(&mut self, sessions: &[Session]) -> Result<()> {
        if let Some(tape) = self.tape.take() {
            tape.close(sessions)?;
        }
        for i in 0..self.texts.len() {
            let text = &mut self.texts[i];
            let rest = text.decoder.as_mut().map(Decoder::finish).unwrap_or_default();
            let rest = text.stops.push(&rest) + &text.stops.finish();
            self.take(i, &rest, None)?;
        }
        let mut out = io::stdout().lock();
        if !self.arguments.json && self.arguments.n > 1 {
            self.texts.iter().try_for_each(|text| writeln!(out, "{}", text.text))?;
        } else if self.streams() && out.is_terminal() {
            // A terminal wants a line of its own; a pipe gets the exact bytes.
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }

    fn take(&mut self, i: usize, text: &str, origin: Option<Origin>) -> io::Result<()> {
        self.texts[i].text += text;
        if !self.streams() || text.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match origin.filter(|_| self.arguments.show_draft) {
            Some(origin) => write!(out, "\x1b[{}m{text}\x1b[0m", colour(origin))?,
            None => out.write_all(text.as_bytes())?,
        }
        out.flush()
    }

    /// Prints the object of continuation `i`.
    pub(crate) fn print_json(
        &self,
        i: usize,
        session: &Session,
        contract: &str,
        stats: Value,
    ) -> Result<()> {
        let text = &self.texts[i];
        let ids: Vec<u32> = session.generated().iter().map(|token| token.0).collect();
        let seed = session.seed();
        let mut object = json!({
            "text": text.decoder.as_ref().map(|_| &text.text),
            "tokens": ids,
            "finish_reason": session.finish().as_ref().map(FinishReason::to_string),
            "seed": seed.seed.to_string(),
            "sequence": seed.sequence.to_string(),
            "contract": contract,
            "stats": stats,
        });
        if self.arguments.logprobs.is_some() {
            object["logprobs"] = json!(text.logprobs);
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{object}")?;
        Ok(out.flush()?)
    }
}

/// Green, yellow, blue.
pub(crate) fn colour(origin: Origin) -> u8 {
    match origin {
        Origin::Draft => 32,
        Origin::Residual => 33,
        Origin::Bonus => 34,
    }
}

impl Listener for Output<'_> {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        let i = emitted.session.0;
        let text = &mut self.texts[i];
        if let Some(top) = self.arguments.logprobs {
            let (token, law, logits) = (emitted.token, emitted.law, emitted.logits);
            text.logprobs.push(logprobs::entry(token, law, logits, top));
        }
        let new = match &mut text.decoder {
            Some(decoder) if emitted.is_eos => decoder.finish(),
            Some(decoder) => decoder.push(emitted.token),
            // Without a tokenizer the ids are the text.
            None if text.text.is_empty() => emitted.token.to_string(),
            None => format!(",{}", emitted.token),
        };
        let (certain, stopped) = match text.decoder {
            Some(_) => (text.stops.push(&new), text.stops.stopped()),
            None => (new, false),
        };
        self.take(i, &certain, Some(emitted.origin))?;
        Ok(stopped)
    }

    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        match &mut self.tape {
            Some(tape) => tape.round(round),
            None => Ok(()),
        }
    }

    fn warning(&mut self, _: SessionId, message: &str) {
        // The first one says it; a broken draft would repeat it every round.
        if !std::mem::replace(&mut self.warned, true) {
            eprintln!("draftproof: warning: {message}; the proposal ends there");
        }
    }
}
