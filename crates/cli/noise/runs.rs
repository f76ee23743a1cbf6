//! The same greedy texts again and again, in circumstances that should not matter: threads, company,
//! drafts.

use anyhow::Result;
use draftproof_decode::{
    Limits, Sampler, Session, Settings, Token,
    draft::length::DraftLength,
    generate::generate,
    noise::Seed,
    stats::{Meter, NoClock},
};
use draftproof_model::machine;
use serde::Serialize;

use crate::{
    args::{DraftLenArgument, DrafterKind, VerifyRule},
    engine::{draft_len, with_engine},
    settings::Models,
};

/// What a run has that another has not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Circumstances {
    pub(super) threads: usize,
    /// Whether all prompts share passes.
    pub(super) batch: bool,
    drafter: DrafterKind,
    length: DraftLenArgument,
}

/// [`Circumstances`] in the words of the command line.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Named {
    threads: usize,
    batch: bool,
    draft: String,
}

impl Circumstances {
    /// Of run `run`: drafts change fastest, then threads, then company.
    pub(super) fn of(run: usize, models: &Models) -> Self {
        const LENGTHS: [DraftLenArgument; 3] =
            [DraftLenArgument::Fixed(1), DraftLenArgument::Fixed(4), DraftLenArgument::Auto];
        let mut drafts = vec![
            (DrafterKind::None, DraftLenArgument::Fixed(0)),
            (DrafterKind::Ngram, DraftLenArgument::Fixed(4)),
        ];
        if models.draft.is_some() {
            drafts.extend(LENGTHS.map(|length| (DrafterKind::Model, length)));
        }
        let (drafter, length) = drafts[run % drafts.len()];
        let rest = run / drafts.len();
        let threads = [1, machine::threads().max(2)][rest % 2];
        Self { threads, batch: (rest / 2) % 2 == 1, drafter, length }
    }

    pub(super) fn named(&self) -> Named {
        let length = match self.length {
            DraftLenArgument::Fixed(length) => length.to_string(),
            DraftLenArgument::Auto => "auto".into(),
        };
        let draft = match self.drafter {
            DrafterKind::None => "none".into(),
            DrafterKind::Ngram => format!("ngram {length}"),
            DrafterKind::Model => format!("model {length}"),
            DrafterKind::EarlyExit => format!("early-exit {length}"),
            DrafterKind::Quantized => format!("quantized {length}"),
        };
        Named { threads: self.threads, batch: self.batch, draft }
    }
}

/// The greedy texts of all prompts.
pub(super) fn run(
    models: &mut Models,
    circumstances: Circumstances,
    prompts: &[Vec<Token>],
    max_tokens: usize,
) -> Result<Vec<Vec<Token>>> {
    let Circumstances { threads, batch, drafter, length } = circumstances;
    let limits = Limits {
        max_tokens,
        eos: models.target.eos().to_vec(),
        draft_len: match length {
            DraftLenArgument::Fixed(0) => DraftLength::Fixed(0),
            length => draft_len(length, models),
        },
    };
    let settings =
        Settings { temperature: 0.0, eos: models.target.eos().to_vec(), ..Settings::default() };
    let sampler = Sampler::new(settings, models.target.vocab())?;
    let session = |(sequence, prompt): (usize, &[Token])| {
        Session::new(prompt, Seed { seed: 0, sequence: sequence as u64 }, limits.clone())
    };
    let mut texts = Vec::with_capacity(prompts.len());
    let groups: Vec<Vec<&[Token]>> = match batch {
        false => prompts.iter().map(|prompt| vec![&prompt[..]]).collect(),
        true => vec![prompts.iter().map(|prompt| &prompt[..]).collect()],
    };
    machine::with_threads(threads, || {
        for group in groups {
            let own = group.len();
            let mut group = group;
            if batch && own == 1 {
                // Company for a prompt that has none: its own beginnings.
                let prompt = group[0];
                group.extend(
                    (1..=3).map(|less| &prompt[..prompt.len().saturating_sub(less).max(1)]),
                );
            }
            let mut sessions: Vec<Session> = group.into_iter().enumerate().map(session).collect();
            let mut meter = Meter::new(NoClock);
            with_engine(models, drafter, VerifyRule::Rejection, &sampler, &mut meter, |engine| {
                generate(engine, &mut sessions, &mut ())
            })?;
            texts.extend(sessions[..own].iter().map(|session| session.generated().to_vec()));
        }
        Ok(texts)
    })?
}
