//! Texts of one setting: how they are made, and what is seen of them.

use anyhow::Result;
use draftproof_decode::{
    FinishReason, Limits, Listener, Sampler, Session, Token,
    error::ListenerError,
    generate::generate,
    noise::Seed,
    session::Emitted,
    stats::{Meter, NoClock, Stats},
};
use draftproof_model::{Decoder, Tokenizer};
use serde::Serialize;

use super::metrics::{distinct, mean, repeated_share, self_overlap};
use crate::{
    args::{DrafterKind, VerifyRule},
    engine::with_engine,
    settings::Models,
    stops::Stops,
};

/// The length of the n-grams whose repetition is reported.
const REPEATED: usize = 4;

/// How a setting makes texts.
#[derive(Debug)]
pub(super) struct Way<'a> {
    pub(super) sampler: Sampler,
    pub(super) limits: Limits,
    pub(super) drafter: DrafterKind,
    pub(super) rule: VerifyRule,
    pub(super) stops: Vec<String>,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) seed: u64,
}

/// A text that has ended.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) session: Session,
    /// Cut before a stop string.
    pub(super) text: String,
}

impl Way<'_> {
    /// `n` texts of each prompt, those of one prompt one after the other; the same noise for the same
    /// place whatever the setting.
    pub(super) fn run(
        &self,
        models: &mut Models,
        prompts: &[Vec<Token>],
        n: usize,
    ) -> Result<Vec<Written>> {
        let places = prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, n));
        let mut sessions: Vec<Session> = (0..)
            .zip(places)
            .map(|(sequence, prompt)| {
                Session::new(prompt, Seed { seed: self.seed, sequence }, self.limits.clone())
            })
            .collect();
        let decoder = |session: &Session| self.tokenizer.decoder_after(session.prompt());
        let mut reader = Reader {
            texts: sessions
                .iter()
                .map(|session| (decoder(session), Stops::new(&self.stops), String::new()))
                .collect(),
        };
        let mut meter = Meter::new(NoClock);
        with_engine(models, self.drafter, self.rule, &self.sampler, &mut meter, |engine| {
            generate(engine, &mut sessions, &mut reader)
        })?;
        let texts = reader.finish();
        Ok(sessions
            .into_iter()
            .zip(texts)
            .map(|(session, text)| Written { session, text })
            .collect())
    }
}

/// Decodes texts as they come and ends them at stop strings.
struct Reader<'a> {
    texts: Vec<(Decoder<'a>, Stops, String)>,
}

impl Reader<'_> {
    fn finish(self) -> Vec<String> {
        let rest = |(mut decoder, mut stops, text): (Decoder<'_>, Stops, String)| {
            let certain = stops.push(&decoder.finish());
            text + &certain + &stops.finish()
        };
        self.texts.into_iter().map(rest).collect()
    }
}

impl Listener for Reader<'_> {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        let (decoder, stops, text) = &mut self.texts[emitted.session.0];
        // The end-of-text token is no part of the text.
        let new = if emitted.is_eos { String::new() } else { decoder.push(emitted.token) };
        *text += &stops.push(&new);
        Ok(stops.stopped())
    }
}

/// What is seen of the texts of one setting at one temperature.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Texts {
    pub(super) temperature: f64,
    pub(super) texts: usize,
    /// Mean number of tokens.
    pub(super) mean_length: f64,
    /// The share that ended with the end of text or a stop string, not at a limit.
    pub(super) ended: f64,
    /// Mean share of 4-grams that occurred before in the same text.
    pub(super) repeated_4grams: Option<f64>,
    /// Different n-grams over all, for n = 1, 2, 3, of all texts together.
    pub(super) distinct: [Option<f64>; 3],
    /// How alike texts of one prompt are: mean share of common bigrams, mean over prompts.
    pub(super) self_overlap: Option<f64>,
    pub(super) passes: Passes,
}

/// What the texts took.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Passes {
    /// Rounds of all texts: target passes, if each text had its own.
    pub(super) target_passes: u64,
    /// Rows of the target for each token generated; 1 is plain decoding.
    pub(super) target_rows_per_token: f64,
    /// Drafted tokens for each token generated.
    pub(super) drafted_per_token: f64,
    /// Tokens of a round.
    pub(super) tokens_per_round: Option<f64>,
    /// The position of a token in its context, on average.
    pub(super) mean_position: f64,
}

impl Texts {
    pub(super) fn new(temperature: f64, written: &[Written], n: usize) -> Self {
        let texts: Vec<&[Token]> =
            written.iter().map(|written| written.session.generated()).collect();
        let mut stats = Stats::default();
        written.iter().for_each(|written| stats.add(written.session.stats()));
        let ended = |written: &&Written| {
            matches!(written.session.finish(), Some(FinishReason::Eos | FinishReason::Stop))
        };
        let of_all = |count: f64| count / written.len().max(1) as f64;
        let tokens = stats.tokens.max(1) as f64;
        let positions = written.iter().map(|written| {
            let (begun, len) = (written.session.prompt().len(), written.session.generated().len());
            (begun as f64 + len as f64 / 2.0) * len as f64
        });
        Self {
            temperature,
            texts: written.len(),
            mean_length: of_all(stats.tokens as f64),
            ended: of_all(written.iter().filter(ended).count() as f64),
            repeated_4grams: mean(texts.iter().filter_map(|text| repeated_share(text, REPEATED))),
            distinct: [1, 2, 3].map(|n| distinct(&texts, n)),
            self_overlap: mean(texts.chunks(n).filter_map(self_overlap)),
            passes: Passes {
                target_passes: stats.rounds,
                target_rows_per_token: (stats.rounds + stats.drafted) as f64 / tokens,
                drafted_per_token: stats.drafted as f64 / tokens,
                tokens_per_round: stats.tokens_per_round(),
                mean_position: positions.sum::<f64>() / tokens,
            },
        }
    }
}
