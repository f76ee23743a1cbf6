//! What a user sees: text to stdout as it is decided, everything else to stderr; or one JSON object.

use std::{
    io::{self, Write},
    time::Duration,
};

use anyhow::Result;
use draftproof_decode::{
    FinishReason, Listener, Token,
    draft::SessionId,
    error::ListenerError,
    session::Emitted,
    stats::{Meter, Part, Stats, predicted_speedup},
    verify::Origin,
};
use draftproof_model::{Decoder, Tokenizer};
use serde_json::{Value, json};

use crate::{args::GenerateArguments, generate::Costs, settings::Models, stops::Stops};

/// Receives the tokens of a run: decodes, cuts at stop strings, prints.
pub(crate) struct Output<'a> {
    decoder: Option<Decoder<'a>>,
    stops: Stops,
    text: String,
    /// Nothing is printed before the end when the result is one JSON object.
    stream: bool,
    colour: bool,
    /// Without a tokenizer the ids are printed, separated by commas.
    first: bool,
    warned: u64,
}

impl<'a> Output<'a> {
    pub(crate) fn new(
        arguments: &GenerateArguments,
        tokenizer: Option<&'a Tokenizer>,
        prompt: &[Token],
    ) -> Self {
        Self {
            decoder: tokenizer.map(|tokenizer| tokenizer.decoder_after(prompt)),
            stops: Stops::new(&arguments.stop),
            text: String::new(),
            stream: !arguments.json,
            colour: arguments.show_draft,
            first: true,
            warned: 0,
        }
    }

    /// The generated text, if the model has a tokenizer.
    pub(crate) fn text(&self) -> Option<&str> {
        self.decoder.as_ref().map(|_| self.text.as_str())
    }

    /// Prints what was held back; the text then ends as it is.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let mut rest = String::new();
        if let Some(decoder) = &mut self.decoder {
            let pending = decoder.finish();
            rest += &self.stops.push(&pending);
            rest += &self.stops.finish();
        }
        self.print(&rest, None)?;
        if self.stream {
            // A prompt on a terminal wants a line of its own; a pipe gets the exact bytes.
            if io::IsTerminal::is_terminal(&io::stdout()) {
                println!();
            }
            io::stdout().flush()?;
        }
        Ok(())
    }

    fn print(&mut self, text: &str, origin: Option<Origin>) -> io::Result<()> {
        self.text += text;
        if !self.stream || text.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match origin.filter(|_| self.colour) {
            Some(origin) => write!(out, "\x1b[{}m{text}\x1b[0m", colour(origin))?,
            None => out.write_all(text.as_bytes())?,
        }
        out.flush()
    }
}

/// Green, yellow, blue.
fn colour(origin: Origin) -> u8 {
    match origin {
        Origin::Draft => 32,
        Origin::Residual => 33,
        Origin::Bonus => 34,
    }
}

impl Listener for Output<'_> {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        let text = match &mut self.decoder {
            Some(decoder) if emitted.is_eos => decoder.finish(),
            Some(decoder) => decoder.push(emitted.token),
            None => {
                let separator = if std::mem::take(&mut self.first) {
                    ""
                } else {
                    ","
                };
                let id = format!("{separator}{}", emitted.token);
                self.print(&id, Some(emitted.origin))?;
                return Ok(false);
            }
        };
        let text = self.stops.push(&text);
        self.print(&text, Some(emitted.origin))?;
        Ok(self.stops.stopped())
    }

    fn warning(&mut self, _: SessionId, message: &str) {
        // The first one says it; a broken draft would repeat it every round.
        self.warned += 1;
        if self.warned == 1 {
            eprintln!("draftproof: warning: {message}; the proposal ends there");
        }
    }
}

/// How the time of a run was spent, as shares of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    draft: f64,
    verify: f64,
    sampler: f64,
}

impl Share {
    pub(crate) fn new(meter: &Meter, elapsed: Duration) -> Self {
        let share = |part| meter.spent(part).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        Self {
            draft: share(Part::Draft),
            verify: share(Part::Verify),
            sampler: share(Part::Sampler),
        }
    }

    fn other(&self) -> f64 {
        (1.0 - self.draft - self.verify - self.sampler).max(0.0)
    }
}

/// What is known after a run.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) tokens: &'a [Token],
    pub(crate) finish_reason: FinishReason,
    pub(crate) seed: u64,
    pub(crate) stats: &'a Stats,
    pub(crate) costs: Costs,
    pub(crate) elapsed: Duration,
    pub(crate) share: Share,
}

impl Report<'_> {
    fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        (!self.tokens.is_empty() && seconds > 0.0).then(|| self.tokens.len() as f64 / seconds)
    }

    fn predicted_speedup(&self) -> Option<f64> {
        let drafted = self.stats.drafted as f64 / self.stats.rounds.max(1) as f64;
        let (c, v) = (self.costs.c?, self.costs.v_verify?);
        Some(predicted_speedup(
            self.stats.tokens_per_round()?,
            drafted,
            c,
            v,
        ))
    }
}

pub(crate) fn print_json(report: &Report<'_>, text: Option<&str>) -> Result<()> {
    let stats = report.stats;
    let ids: Vec<u32> = report.tokens.iter().map(|token| token.0).collect();
    let by_position: Vec<Value> = stats
        .by_position
        .iter()
        .map(|at| json!(at.accepted as f64 / at.reached as f64))
        .collect();
    let object = json!({
        "text": text,
        "tokens": ids,
        "finish_reason": report.finish_reason.to_string(),
        "seed": report.seed.to_string(),
        "stats": {
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "tokens_per_round": stats.tokens_per_round(),
            "acceptance_by_position": by_position,
            "alpha": stats.alpha(),
            "c": report.costs.c,
            "v_verify": report.costs.v_verify,
            "entropy_bits": stats.entropy_bits(),
            "eligible_tokens": stats.eligible_tokens(),
            "tokens_per_second": report.tokens_per_second(),
            "predicted_speedup": report.predicted_speedup(),
            "unusable_draft_rows": stats.unusable_draft_rows,
            "share": {
                "draft": report.share.draft,
                "verify": report.share.verify,
                "sampler": report.share.sampler,
                "other": report.share.other(),
            },
        },
    });
    let mut out = io::stdout().lock();
    writeln!(out, "{object}")?;
    Ok(out.flush()?)
}

/// The summary for people, on stderr.
pub(crate) fn print_summary(report: &Report<'_>, models: &Models, arguments: &GenerateArguments) {
    let stats = report.stats;
    let figure = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let drafter = match &models.draft {
        Some(draft) => draft.name().to_owned(),
        None => format!("{:?}", models.drafter).to_lowercase(),
    };
    eprintln!();
    eprintln!(
        "{} tokens in {:.2} s: {} tokens/s · {} · seed {}",
        report.tokens.len(),
        report.elapsed.as_secs_f64(),
        figure(report.tokens_per_second(), 1),
        report.finish_reason,
        report.seed
    );
    eprintln!(
        "{} with {drafter} · {} rounds, {} tokens per round · {} of {} drafted tokens accepted",
        models.target.name(),
        stats.rounds,
        figure(stats.tokens_per_round(), 2),
        stats.accepted,
        stats.drafted
    );
    if stats.drafted > 0 {
        let by_position: Vec<String> = stats
            .by_position
            .iter()
            .map(|at| format!("{:.2}", at.accepted as f64 / at.reached as f64))
            .collect();
        eprintln!("accepted by position: {}", by_position.join(" "));
        eprintln!(
            "alpha {} · draft step c {} · verify pass v {} · predicted speed-up {}",
            figure(stats.alpha(), 3),
            figure(report.costs.c, 3),
            figure(report.costs.v_verify, 2),
            figure(report.predicted_speedup(), 2)
        );
    }
    eprintln!(
        "entropy {} bits, {} eligible tokens on average",
        figure(stats.entropy_bits(), 2),
        figure(stats.eligible_tokens(), 1)
    );
    let share = report.share;
    eprintln!(
        "time: draft {:.0} %, verify {:.0} %, sampler {:.0} %, other {:.0} %",
        100.0 * share.draft,
        100.0 * share.verify,
        100.0 * share.sampler,
        100.0 * share.other()
    );
    if arguments.show_draft {
        eprintln!(
            "\x1b[{}maccepted draft\x1b[0m \x1b[{}mresidual\x1b[0m \x1b[{}mbonus\x1b[0m",
            colour(Origin::Draft),
            colour(Origin::Residual),
            colour(Origin::Bonus)
        );
    }
}
