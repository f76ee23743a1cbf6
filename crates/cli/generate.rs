//! `draftproof generate`.

use std::time::Instant;

use anyhow::{Result, bail};
use draftproof_decode::{
    LanguageModel, Limits, Listener, Sampler, Session, Token,
    generate::generate,
    noise::Seed,
    stats::{Meter, Part, Stats},
    trace::Run,
};

use crate::{
    args::{GenerateArguments, Mask, VerifyRule},
    chat,
    contract::Contract,
    engine::{draft_len, verifier, with_engine},
    measure::{Costs, WallClock, pass_time},
    output::Output,
    replay::Tape,
    report::{self, Report, Share},
    settings::{self, Models},
    watermark,
};

pub(crate) fn run(arguments: &GenerateArguments) -> Result<()> {
    let chat = chat::wanted(&arguments.chat)?;
    if arguments.show_draft && arguments.n > 1 {
        bail!("--show-draft colours one continuation as it comes; drop it or --n {}", arguments.n);
    }
    let mut models = Models::load(&arguments.models)?;
    if !arguments.ends.stop.is_empty() && models.target.tokenizer().is_none() {
        bail!("{} has no tokenizer; --stop needs one", models.target.name());
    }
    let sampler = settings::sampler(&arguments.sampler, &models.target)?;
    let sampler = watermark::add(sampler, &arguments.watermark, &models.target)?;
    let draft_len_argument = watermark::draft_len(arguments, &sampler)?;
    let mask = arguments.watermark.watermark_mask;
    let contract = Contract::new(&models.target, &sampler, &arguments.ends, mask).hash();
    let prompt = if chat {
        chat::prompt(&arguments.chat, &arguments.prompt, &models.target)?
    } else {
        settings::prompt(&arguments.prompt, &models.target)?
    };
    let limits = Limits {
        max_tokens: arguments.max_tokens,
        eos: settings::eos(&arguments.ends, &models.target),
        draft_len: draft_len(draft_len_argument, &models),
    };
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => getrandom::u64()?,
    };
    let mut sessions: Vec<Session> = (0..u64::from(arguments.n))
        .map(|sequence| Session::new(&prompt, Seed { seed, sequence }, limits.clone()))
        .collect();
    let tokenizer = models.target.tokenizer().cloned();
    let stops = settings::stops(&arguments.ends, &models.target);
    let mut output = Output::new(arguments, tokenizer.as_deref(), &prompt, &stops);
    if let Some(file) = &arguments.trace {
        let target = models.target.language_model();
        let run = Run {
            verifier: verifier(arguments.drafts.verify).name(),
            contract: Some(&contract),
            vocab: target.vocab(),
            context: target.context(),
            full: arguments.trace_full,
        };
        output.record(Tape::create(file, &run, &sessions)?);
    }
    let mut meter = Meter::new(WallClock::start());
    let start = Instant::now();
    let (drafter, rule) = (models.drafter, arguments.drafts.verify);
    let mut generate =
        |sampler: &Sampler, sessions: &mut [Session], listener: &mut dyn Listener| {
            with_engine(&mut models, drafter, rule, sampler, &mut meter, |engine| {
                generate(engine, sessions, listener)
            })
        };
    let result = match sampler.watermark().filter(|_| mask == Mask::Batch) {
        None => generate(&sampler, &mut sessions, &mut output),
        Some(watermark) => {
            let watermark = watermark.clone();
            watermark::one_after_another(&sampler, watermark, &mut sessions, &mut output, generate)
        }
    };
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
        has_q: arguments.drafts.verify != VerifyRule::Coupled,
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
