//! What a setting costs: measured time and memory, and arithmetic counted from shapes.

use std::{fs, time::Instant};

use anyhow::Result;
use draftproof_decode::{
    LanguageModel, Limits, Session, Token,
    generate::round,
    lm::Pass,
    noise::Seed,
    stats::{Meter, NoClock},
};
use draftproof_model::{
    Model,
    guidance::{Form, Guidance, Strength},
    loops::Recurrence,
};
use serde::Serialize;

use super::texts::{Passes, Way};
use crate::{engine::with_engine, measure::median, settings::Models};

#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    pub(super) prefill: Prefill,
    pub(super) batches: Vec<Batch>,
    pub(super) flops: Flops,
    /// Of a looped target, a pass.
    pub(super) loops: Option<usize>,
    /// Of a draft that is an early loop.
    pub(super) draft_loops: Option<usize>,
    /// The most memory that the process held since the setting's models began to load (where the
    /// system says so: VmHWM of Linux).
    pub(super) peak_memory_bytes: Option<u64>,
}

/// Reading a prompt in one pass of the target: the median of three.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Prefill {
    pub(super) tokens: usize,
    pub(super) seconds: f64,
}

/// Texts that share passes, from the second round on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Batch {
    pub(super) texts: u16,
    /// Of all texts together.
    pub(super) tokens_per_second: f64,
    /// From one token of a text to its next.
    pub(super) seconds_per_token: f64,
}

/// Floating-point operations counted from the shapes (a multiply and an add are two): what the
/// arithmetic asks for, not what was measured. Matrices and attention only.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flops {
    /// A row of the target that attends to nothing before it.
    pub(super) target_row: u64,
    /// And for each position that it attends to.
    pub(super) target_row_per_position: u64,
    /// For each token of the texts: rows of the target and steps of a draft model, at their mean
    /// position. Without the prompt.
    pub(super) per_token: f64,
}

pub(super) fn measure(
    models: &mut Models,
    way: &Way<'_>,
    prompt: &[Token],
    batches: &[u16],
    passes: &Passes,
) -> Result<Cost> {
    Ok(Cost {
        prefill: prefill(models.target.language_model(), prompt)?,
        batches: batches
            .iter()
            .map(|&texts| batch(models, way, prompt, texts))
            .collect::<Result<_>>()?,
        loops: models.target.loops(),
        draft_loops: models.draft.as_ref().and_then(Model::loops),
        flops: flops(&models.target, models.draft.as_ref(), passes),
        peak_memory_bytes: peak_memory(),
    })
}

fn prefill(model: &mut dyn LanguageModel, prompt: &[Token]) -> Result<Prefill> {
    let mut times = Vec::new();
    for _ in 0..3 {
        let sequence = model.open()?;
        let begun = Instant::now();
        let read = model.forward(&[Pass { sequence, tokens: prompt, rows: 1 }]);
        times.push(begun.elapsed().as_secs_f64());
        model.close(sequence);
        read?;
    }
    Ok(Prefill { tokens: prompt.len(), seconds: median(times).unwrap_or_default() })
}

fn batch(models: &mut Models, way: &Way<'_>, prompt: &[Token], texts: u16) -> Result<Batch> {
    // To the limit, so that all texts share passes to the end.
    let limits = Limits { eos: Vec::new(), ..way.limits.clone() };
    let seed = |sequence| Seed { seed: way.seed, sequence };
    let mut sessions: Vec<Session> = (0..u64::from(texts))
        .map(|sequence| Session::new(prompt, seed(sequence), limits.clone()))
        .collect();
    let tokens = |sessions: &[Session]| -> u64 {
        sessions.iter().map(|session| session.stats().tokens).sum()
    };
    let mut meter = Meter::new(NoClock);
    with_engine(models, way.drafter, way.rule, &way.sampler, &mut meter, |engine| {
        round(engine, &mut sessions, &mut ())?;
        let (before, begun) = (tokens(&sessions), Instant::now());
        while round(engine, &mut sessions, &mut ())? {}
        let seconds = begun.elapsed().as_secs_f64();
        let tokens = (tokens(&sessions) - before) as f64;
        Ok(Batch {
            texts,
            tokens_per_second: tokens / seconds.max(1e-9),
            seconds_per_token: seconds * f64::from(texts) / tokens.max(1.0),
        })
    })
}

fn flops(target: &Model, draft: Option<&Model>, passes: &Passes) -> Flops {
    let [row, position] = row_flops(target);
    let at_mean = |[row, position]: [u64; 2]| row as f64 + position as f64 * passes.mean_position;
    let drafted = draft.map_or(0.0, |draft| at_mean(row_flops(draft)));
    Flops {
        target_row: row,
        target_row_per_position: position,
        per_token: passes.target_rows_per_token * at_mean([row, position])
            + passes.drafted_per_token * drafted,
    }
}

/// Operations of a row: without attention, and for each position attended to. A window is not looked
/// at: within it all layers attend to the same positions. What loops is counted in every loop, and a
/// readout that only guidance needs as well.
fn row_flops(model: &Model) -> [u64; 2] {
    let config = &model.config().transformer;
    let all_heads = config.heads * config.head_dim;
    let attention = config.hidden * (2 * all_heads + 2 * config.kv_heads * config.head_dim);
    let mlp = config.hidden * config.intermediate * if config.gated { 3 } else { 2 };
    let (layers, readouts, between) = match (&config.loops, model.loops()) {
        (Some(looped), Some(loops)) => {
            let coda = config.layers.len() - looped.prelude - looped.core;
            let readouts = 1 + usize::from(model.guidance().is_some_and(reads_twice));
            let square = config.hidden * config.hidden;
            let between = match looped.recurrence {
                Recurrence::Normed | Recurrence::Damped(_) => 0,
                Recurrence::Adapter => loops * 2 * square,
                Recurrence::Diagonal => (1 + readouts) * square,
            };
            (looped.prelude + loops * looped.core + readouts * coda, readouts, between)
        }
        _ => (config.layers.len(), 1, 0),
    };
    let weights = layers * (attention + mlp) + readouts * config.vocab * config.hidden + between;
    [2 * weights as u64, (4 * layers * all_heads) as u64]
}

/// Whether both loops are read out.
fn reads_twice(guidance: Guidance) -> bool {
    guidance.form == Form::Logits || matches!(guidance.strength, Strength::Adaptive(_))
}

/// Lets [`peak_memory`] begin anew, where the system can.
pub(super) fn reset_peak_memory() {
    // Refused on other systems and in some containers: the peak is that of the whole process then.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use draftproof_model::Role;

    use super::*;
    use crate::settings::open_cpu;

    #[test]
    fn loops_count_as_often_as_they_run() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/model/tests/golden/ouro");
        let mut model = open_cpu(golden).expect("a golden model");
        // 64·(2·64 + 2·64) + 3·64·128 = 40 960 weights a layer, three layers, and 320·64.
        let row = |loops: u64, readouts: u64| 2 * (loops * 3 * 40_960 + readouts * 20_480);
        assert_eq!(row_flops(&model), [row(4, 1), 4 * 4 * 3 * 64]);
        let guided = |form, strength| Some(Guidance { reference: 1, form, strength });
        for (loops, guidance, readouts) in [
            (2, None, 1),
            (3, guided(Form::Logits, Strength::Fixed(0.5)), 2),
            (3, guided(Form::Logits, Strength::Fixed(0.0)), 1),
            (4, guided(Form::Hidden, Strength::Fixed(0.5)), 1),
            (4, guided(Form::Hidden, Strength::Adaptive(0.5)), 2),
        ] {
            model.set_loops(Some(loops), guidance).expect("settings that fit");
            assert_eq!(row_flops(&model)[0], row(loops as u64, readouts), "{guidance:?}");
        }
        let early = model.early_exit(1).expect("a draft");
        assert_eq!(row_flops(&early)[0], row(1, 1));
        assert_eq!((early.loops(), model.loops()), (Some(1), Some(4)));
        assert!(early.bytes_run() < model.bytes_run());
    }

    #[test]
    fn operations_follow_from_the_shapes() {
        let model = open_cpu("builtin:fable").expect("the built-in target");
        // 256·(2·256 + 2·128) + 3·256·704 = 737 280 weights a layer, six layers, and 4096·256.
        assert_eq!(row_flops(&model), [2 * (6 * 737_280 + 1_048_576), 4 * 6 * 256]);
        let device = draftproof_model::device::open("cpu").expect("the CPU");
        let draft = Model::builtin("fable", Role::Draft, &device).expect("the built-in draft");
        let passes = Passes {
            target_passes: 10,
            target_rows_per_token: 1.5,
            drafted_per_token: 0.5,
            tokens_per_round: Some(2.0),
            mean_position: 10.0,
        };
        let with = |draft| flops(&model, draft, &passes).per_token;
        let row = (2 * (6 * 737_280 + 1_048_576) + 10 * 4 * 6 * 256) as f64;
        assert!((with(None) - 1.5 * row).abs() < 1.0);
        // 128·(2·128 + 2·64) + 3·128·352 = 184 320 weights a layer of the draft, two layers.
        let step = (2 * (2 * 184_320 + 4096 * 128) + 10 * 4 * 2 * 128) as f64;
        assert!((with(Some(&draft)) - 1.5 * row - 0.5 * step).abs() < 1.0);
    }
}
