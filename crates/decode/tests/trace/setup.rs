//! Runs of the real loop on table models, recorded.

use draftproof_decode::{
    Engine, Error, Limits, Listener, Sampler, Session, Settings, TableModel, Token,
    draft::{Drafter, NoDrafter, length::DraftLength, model::ModelDrafter, ngram::NgramDrafter},
    error::ListenerError,
    generate::{generate, round},
    noise::{ChaCha, Noise, Seed},
    session::{Emitted, JudgedRound},
    stats::{Meter, NoClock},
    trace::{Recorder, Run},
    verify::{BlockRule, Coupled, Rejection, Verifier},
};

pub(crate) const VOCAB: usize = 6;
const CONTEXT: usize = 64;
const EOS: u32 = 5;
/// Ends a text that the listener sees it in, in place of a stop string.
const STOP: u32 = 4;

pub(crate) const RULES: [&dyn Verifier; 3] = [&Rejection, &BlockRule, &Coupled];

type Named = (&'static str, fn() -> Settings);
pub(crate) const SETTINGS: [Named; 3] = [
    ("temperature 1", Settings::default),
    ("temperature 0", || Settings { temperature: 0.0, ..Settings::default() }),
    ("top-k 2", || Settings { top_k: 2, ..Settings::default() }),
];

pub(crate) fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().map(|&id| Token(id)).collect()
}

pub(crate) fn seed(seed: u64, sequence: u64) -> Seed {
    Seed { seed, sequence }
}

pub(crate) fn limits(max_tokens: usize) -> Limits {
    Limits { max_tokens, eos: tokens(&[EOS]), draft_len: DraftLength::Fixed(3) }
}

/// A pseudo-random table; rows depend on the last two tokens, and EOS and STOP are rare.
fn table(seed: u64) -> TableModel {
    TableModel::new(VOCAB, CONTEXT, 2, |last| {
        let mut state = last.iter().fold(seed, |hash, token| {
            (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        let mut logit = |id| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match state >> 60 {
                0 => f32::NEG_INFINITY,
                step if id >= STOP as usize => step as f32 / 6.0 - 1.5,
                step => step as f32 / 4.0 - 1.0,
            }
        };
        (0..VOCAB).map(&mut logit).collect()
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    None,
    Ngram,
    Model,
    /// The target itself.
    Twin,
    /// A model that runs the races of the coupled rule.
    Racing,
}

impl Drafts {
    pub(crate) const ALL: [Self; 5] =
        [Self::None, Self::Ngram, Self::Model, Self::Twin, Self::Racing];

    fn with<T>(self, body: impl FnOnce(&mut dyn Drafter) -> T) -> T {
        match self {
            Self::None => body(&mut NoDrafter),
            Self::Ngram => body(&mut NgramDrafter),
            Self::Model => body(&mut ModelDrafter::new(&mut table(77))),
            Self::Twin => body(&mut ModelDrafter::new(&mut table(1))),
            Self::Racing => body(&mut ModelDrafter::racing(&mut table(77))),
        }
    }
}

/// A trace on its way.
#[derive(Debug)]
pub(crate) struct Tape {
    recorder: Recorder,
    pub(crate) lines: Vec<String>,
    pub(crate) sessions: Vec<Session>,
}

impl Tape {
    pub(crate) fn start(verifier: &dyn Verifier, sessions: &[Session], full: bool) -> Self {
        let run = Run {
            verifier: verifier.name(),
            contract: Some("a hash"),
            vocab: VOCAB,
            context: CONTEXT,
            full,
        };
        let mut recorder = Recorder::new(&run, sessions).expect("a run that can be recorded");
        let lines = vec![recorder.header()];
        Self { recorder, lines, sessions: Vec::new() }
    }

    pub(crate) fn record(&mut self, round: &JudgedRound<'_>) {
        self.lines.extend(self.recorder.round(round).expect("a round of the run"));
    }

    pub(crate) fn end(mut self, sessions: Vec<Session>) -> Self {
        self.lines.push(self.recorder.footer(&sessions));
        self.sessions = sessions;
        self
    }
}

impl Listener for Tape {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        Ok(emitted.token == Token(STOP))
    }

    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        self.record(round);
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) verifier: &'static dyn Verifier,
    pub(crate) drafts: Drafts,
    pub(crate) settings: Settings,
    pub(crate) seed: u64,
}

impl Setup {
    /// Two continuations of two prompts, of up to 9 and 6 tokens, one of them resumed.
    fn sessions(&self) -> Vec<Session> {
        vec![
            Session::new(&tokens(&[1, 2, 1]), seed(self.seed, 3), limits(9)),
            Session::resume(&tokens(&[0, 2]), &tokens(&[3]), seed(self.seed, 4), limits(7)),
        ]
    }

    pub(crate) fn run(&self, full: bool) -> Tape {
        self.run_with(full, &mut ChaCha)
    }

    pub(crate) fn run_with(&self, full: bool, noise: &mut dyn Noise) -> Tape {
        let mut sessions = self.sessions();
        let mut tape = Tape::start(self.verifier, &sessions, full);
        self.with_engine(&mut table(1), noise, |engine| {
            generate(engine, &mut sessions, &mut tape).expect("tables do not fail");
        });
        tape.end(sessions)
    }

    /// A run that stops after `rounds` rounds of each continuation.
    pub(crate) fn rounds(&self, full: bool, rounds: usize) -> Tape {
        let mut sessions = self.sessions();
        let mut tape = Tape::start(self.verifier, &sessions, full);
        self.with_engine(&mut table(1), &mut ChaCha, |engine| {
            for _ in 0..rounds {
                round(engine, &mut sessions, &mut tape).expect("tables do not fail");
            }
        });
        tape.end(sessions)
    }

    pub(crate) fn generate(&self, sessions: &mut [Session], tape: &mut Tape) -> Result<(), Error> {
        self.with_engine(&mut table(1), &mut ChaCha, |engine| generate(engine, sessions, tape))
    }

    fn with_engine<T>(
        &self,
        target: &mut TableModel,
        noise: &mut dyn Noise,
        body: impl FnOnce(&mut Engine<'_>) -> T,
    ) -> T {
        let sampler = Sampler::new(self.settings.clone(), VOCAB).expect("settings in range");
        self.drafts.with(|drafter| {
            body(&mut Engine {
                target,
                drafter,
                verifier: self.verifier,
                sampler: &sampler,
                noise,
                meter: &mut Meter::new(NoClock),
            })
        })
    }
}

/// A target that has no law after token 3, which the draft likes too much, nor after the stop; `None`
/// if that decides a token, so that generation fails.
pub(crate) fn broken_row(verifier: &'static dyn Verifier, seed: u64) -> Option<Tape> {
    let mut target = TableModel::new(VOCAB, CONTEXT, 1, |last| {
        let bad = [3, STOP].contains(&last[0].0);
        (0..VOCAB).map(|id| if bad { f32::NAN } else { -(id as f32) }).collect()
    });
    let drafts = if verifier.name() == "coupled" { Drafts::Racing } else { Drafts::Model };
    let setup = Setup { verifier, drafts, settings: Settings::default(), seed };
    let mut sessions = setup.sessions();
    sessions.truncate(1);
    let mut tape = Tape::start(verifier, &sessions, true);
    let result = setup
        .with_engine(&mut target, &mut ChaCha, |engine| generate(engine, &mut sessions, &mut tape));
    result.ok()?;
    Some(tape.end(sessions))
}
