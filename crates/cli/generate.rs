//! `draftproof generate`.

use std::time::Instant;

use anyhow::Result;
use draftproof_decode::{
    Engine, FinishReason, Limits, Sampler, Session, Token,
    draft::{Drafter, NoDrafter, length::DraftLength, model::ModelDrafter, ngram::NgramDrafter},
    generate::generate,
    noise::{ChaCha, Seed},
    stats::{Meter, Part, Stats},
    verify::{Rejection, Verifier},
};

use crate::{
    args::{DrafterKind, GenerateArguments, VerifyRule},
    measure::{WallClock, pass_time},
    output::{self, Output, Report, Share},
    settings::{self, Models},
};

pub(crate) fn run(arguments: &GenerateArguments) -> Result<()> {
    let mut models = Models::load(&arguments.models)?;
    let recommended = models.target.generation_config();
    for name in &recommended.unused {
        eprintln!("draftproof: generation_config.json asks for {name}, which is not supported");
    }
    let sampler = settings::sampler(&arguments.sampler, recommended, models.target.vocab())?;
    let prompt = settings::prompt(arguments, &models.target)?;
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => getrandom::u64()?,
    };
    let eos = if arguments.ignore_eos {
        Vec::new()
    } else {
        models.target.eos().to_vec()
    };
    let limits = Limits {
        max_tokens: arguments.max_tokens,
        eos,
        draft_len: DraftLength::Fixed(usize::from(arguments.models.draft_len)),
    };
    let mut sessions = [Session::new(&prompt, Seed { seed, sequence: 0 }, limits)];
    let tokenizer = models.target.tokenizer().cloned();
    let mut output = Output::new(arguments, tokenizer.as_deref(), &prompt);

    let mut meter = Meter::new(WallClock::start());
    let start = Instant::now();
    let result = decode(
        &mut models,
        arguments,
        &sampler,
        &mut meter,
        &mut sessions,
        &mut output,
    );
    let elapsed = start.elapsed();
    // What was decided is shown, also when the next token could not be.
    output.finish()?;
    result?;

    let [session] = &sessions;
    let stats = session.stats();
    let costs = costs(&mut models, &meter, stats, &prompt, session.generated())?;
    let report = Report {
        tokens: session.generated(),
        finish_reason: session.finish().unwrap_or(FinishReason::Length),
        seed,
        stats,
        costs,
        elapsed,
        share: Share::new(&meter, elapsed),
    };
    if arguments.json {
        output::print_json(&report, output.text())
    } else {
        output::print_summary(&report, &models, arguments);
        Ok(())
    }
}

fn verifier(rule: VerifyRule) -> &'static dyn Verifier {
    match rule {
        VerifyRule::Rejection => &Rejection,
    }
}

/// Runs the loop with the drafter that was chosen.
fn decode(
    models: &mut Models,
    arguments: &GenerateArguments,
    sampler: &Sampler,
    meter: &mut Meter,
    sessions: &mut [Session],
    output: &mut Output<'_>,
) -> Result<()> {
    let mut model_drafter;
    let (mut ngram, mut none) = (NgramDrafter, NoDrafter);
    let drafter: &mut dyn Drafter = match (models.drafter, &mut models.draft) {
        (DrafterKind::Model, Some(draft)) => {
            model_drafter = ModelDrafter::new(draft.language_model());
            &mut model_drafter
        }
        (DrafterKind::Ngram, _) => &mut ngram,
        (DrafterKind::Model | DrafterKind::None, _) => &mut none,
    };
    let mut engine = Engine {
        target: models.target.language_model(),
        drafter,
        verifier: verifier(arguments.models.verify),
        sampler,
        noise: &mut ChaCha,
        meter,
    };
    Ok(generate(&mut engine, sessions, output)?)
}

/// The cost of drafting a token and of a verify pass, in target passes of one row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) c: Option<f64>,
    pub(crate) v_verify: Option<f64>,
}

/// Times the passes that the text was made of: one row of the target, one of the draft, and the mean
/// number of rows of a verify pass.
fn costs(
    models: &mut Models,
    meter: &Meter,
    stats: &Stats,
    prompt: &[Token],
    generated: &[Token],
) -> Result<Costs> {
    if stats.drafted == 0 || stats.rounds == 0 {
        return Ok(Costs::default());
    }
    let text = [prompt, generated].concat();
    let one_row = pass_time(models.target.language_model(), &text, 1)?.as_secs_f64();
    let rows = 1 + stats.drafted.div_ceil(stats.rounds);
    let rows = usize::try_from(rows)?;
    let verify = pass_time(models.target.language_model(), &text, rows)?.as_secs_f64();
    let draft = match &mut models.draft {
        Some(draft) => pass_time(draft.language_model(), &text, 1)?.as_secs_f64(),
        None => meter.spent(Part::Draft).as_secs_f64() / stats.drafted as f64,
    };
    Ok(Costs {
        c: Some(draft / one_row),
        v_verify: Some(verify / one_row),
    })
}
