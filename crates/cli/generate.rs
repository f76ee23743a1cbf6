//! `draftproof generate`.

use std::time::Instant;

use anyhow::{Result, bail};
use draftproof_decode::{
    Engine, LanguageModel, Limits, Sampler, Session, Token,
    draft::{
        Drafter, NoDrafter,
        length::{CostModel, DraftLength},
        model::ModelDrafter,
        ngram::NgramDrafter,
    },
    generate::generate,
    noise::{ChaCha, Seed},
    stats::{Meter, Part, Stats},
    trace::Run,
    verify::{BlockRule, Coupled, Rejection, Verifier},
};

use crate::{
    args::{DraftLenArgument, DrafterKind, GenerateArguments, VerifyRule},
    contract::Contract,
    measure::{Costs, WallClock, pass_time},
    output::Output,
    replay::Tape,
    report::{self, Report, Share},
    settings::{self, Models},
};

pub(crate) fn run(arguments: &GenerateArguments) -> Result<()> {
    if arguments.chat {
        bail!("--chat is not supported yet: chat templates are not read; give the text as it is");
    }
    let mut models = Models::load(&arguments.models)?;
    let sampler = settings::sampler(&arguments.sampler, &models.target)?;
    let contract = Contract::new(&models.target, &sampler, &arguments.ends).hash();
    let prompt = settings::prompt(arguments, &models.target)?;
    let limits = Limits {
        max_tokens: arguments.max_tokens,
        eos: settings::eos(&arguments.ends, &models.target),
        draft_len: draft_len(arguments.models.draft_len, &models),
    };
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => getrandom::u64()?,
    };
    let mut sessions: Vec<Session> = (0..u64::from(arguments.n))
        .map(|sequence| Session::new(&prompt, Seed { seed, sequence }, limits.clone()))
        .collect();
    let tokenizer = models.target.tokenizer().cloned();
    let mut output = Output::new(arguments, tokenizer.as_deref(), &prompt);
    if let Some(file) = &arguments.trace {
        let target = models.target.language_model();
        let run = Run {
            verifier: verifier(arguments.models.verify).name(),
            contract: Some(&contract),
            vocab: target.vocab(),
            context: target.context(),
            full: arguments.trace_full,
        };
        output.record(Tape::create(file, &run, &sessions)?);
    }
    let mut meter = Meter::new(WallClock::start());
    let start = Instant::now();
    let result = decode(&mut models, arguments, &sampler, &mut meter, &mut sessions, &mut output);
    let elapsed = start.elapsed();
    // What was decided is shown and recorded, also when the next token could not be.
    output.finish(&sessions)?;
    result?;

    let mut stats = Stats::default();
    sessions.iter().for_each(|session| stats.add(session.stats()));
    let text = [&prompt[..], sessions[0].generated()].concat();
    let report = Report {
        stats: &stats,
        costs: measure(&mut models, &meter, &stats, &text)?,
        share: Share::new(&meter, elapsed),
        rate: stats.tokens as f64 / elapsed.as_secs_f64(),
        has_q: arguments.models.verify != VerifyRule::Coupled,
    };
    if arguments.json {
        for (i, session) in sessions.iter().enumerate() {
            let stats = Report { stats: session.stats(), ..report }.to_json();
            output.print_json(i, session, &contract, stats)?;
        }
    } else {
        let finish = sessions.last().and_then(Session::finish);
        report::print_summary(&report, &models, arguments, seed, finish, elapsed);
    }
    Ok(())
}

fn verifier(rule: VerifyRule) -> &'static dyn Verifier {
    match rule {
        VerifyRule::Rejection => &Rejection,
        VerifyRule::Block => &BlockRule,
        VerifyRule::Coupled => &Coupled,
    }
}

/// What each row beyond the first adds to a verify pass, in passes of one row. A pass reads the
/// weights once for all its rows; this is the arithmetic that comes on top, as measured with the
/// row-invariant kernels.
const ROW_COST: f64 = 0.13;

/// `auto` weighs costs that follow from the shapes: a draft step reads the draft's weights, a verify
/// pass the target's.
fn draft_len(argument: DraftLenArgument, models: &Models) -> DraftLength {
    match argument {
        DraftLenArgument::Fixed(length) => DraftLength::Fixed(usize::from(length)),
        DraftLenArgument::Auto => {
            let draft = models.draft.as_ref().map_or(0, |draft| draft.parameters());
            let draft_step = draft as f64 / models.target.parameters() as f64;
            DraftLength::Auto(CostModel { draft_step, row: ROW_COST })
        }
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
            let draft = draft.language_model();
            model_drafter = match arguments.models.verify {
                VerifyRule::Coupled => ModelDrafter::racing(draft),
                VerifyRule::Rejection | VerifyRule::Block => ModelDrafter::new(draft),
            };
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

/// Times the passes that the text was made of: one row of the target, one of the draft, and the mean
/// number of rows of a verify pass.
fn measure(models: &mut Models, meter: &Meter, stats: &Stats, text: &[Token]) -> Result<Costs> {
    if stats.drafted == 0 || stats.rounds == 0 {
        return Ok(Costs::default());
    }
    let one_row = pass_time(models.target.language_model(), text, 1)?.as_secs_f64();
    let rows = usize::try_from(1 + stats.drafted.div_ceil(stats.rounds))?;
    let verify = pass_time(models.target.language_model(), text, rows)?.as_secs_f64();
    let draft = match &mut models.draft {
        Some(draft) => pass_time(draft.language_model(), text, 1)?.as_secs_f64(),
        None => meter.spent(Part::Draft).as_secs_f64() / stats.drafted as f64,
    };
    Ok(Costs { c: Some(draft / one_row), v_verify: Some(verify / one_row) })
}
