//! What passes cost on their own: `t(1)`, `v(n)`, `c`, a long prompt, and the price of determinism.
//!
//! Two passes that are compared take turns, so that a machine that slows down slows both; the median
//! of each counts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use draftproof_decode::{LanguageModel, Token, lm::Pass};
use draftproof_model::{
    Model,
    machine::{self, Kernels, Readers},
};
use serde::Serialize;

use crate::measure::median;

/// The most rows of a pass that are measured.
pub(crate) const MOST_ROWS: usize = 16;

/// Times of passes after a prefix of a few tokens.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PassCosts {
    /// The length of the prefix.
    prefix_tokens: usize,
    /// A pass of one row of the target.
    pub(super) t1_seconds: f64,
    /// Passes of 1, 2, … rows, in passes of one row.
    pub(crate) v: Vec<f64>,
    /// A pass of one row of the draft, the mean of three after a pass of the target, in passes of one
    /// row of the target.
    pub(crate) c: Option<f64>,
    /// The first pass of the target, of one row: it compiles the kernels that no check of the device
    /// has compiled before.
    pub(super) first_pass_seconds: f64,
    /// Bytes per second of the fastest of several plain readers of as many bytes as the target has
    /// weights, in turn with passes of one row: on the processor.
    #[serde(skip)]
    pub(super) read_bandwidth: Option<f64>,
    /// The reader's time over that of the pass.
    pub(super) read_share: Option<f64>,
}

/// A prompt of many tokens.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Prefill {
    tokens: usize,
    seconds: f64,
    pub(super) tokens_per_second: f64,
    pub(super) gflops: f64,
    /// Of independent multiply-adds on the same threads: on the processor.
    pub(super) share_of_peak: Option<f64>,
}

/// The same model with burn's own kernels and f32 weights, its passes in turn with ours.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Determinism {
    /// A pass of one row with general kernels, in passes of one row with row-invariant ones.
    pub(crate) general_t1: f64,
    /// A pass of five rows with general kernels, in its own passes of one row.
    pub(crate) general_v5: f64,
    /// A pass of five rows with row-invariant kernels, in its own passes of one row.
    pub(crate) row_invariant_v5: f64,
}

/// One thing to time: a model with an open sequence, and how many rows a pass has.
struct Lane<'a> {
    kernels: Kernels,
    rows: usize,
    model: usize,
    tokens: &'a [Token],
    times: Vec<f64>,
}

/// Times the lanes in turn until `budget` is spent, at least 7 times each.
fn take_turns(
    models: &mut [&mut dyn LanguageModel],
    prefix: &[Token],
    lanes: &mut [Lane<'_>],
    budget: Duration,
) -> Result<()> {
    let chosen = machine::kernels();
    let mut sequences = Vec::new();
    for model in models.iter_mut() {
        let sequence = model.open()?;
        model.forward(&[Pass { sequence, tokens: prefix, rows: 0 }])?;
        sequences.push(sequence);
    }
    let start = Instant::now();
    let mut turns = 0;
    while turns < 7 || start.elapsed() < budget {
        for lane in lanes.iter_mut() {
            machine::set_kernels(lane.kernels);
            let (model, sequence) = (&mut models[lane.model], sequences[lane.model]);
            let pass = Pass { sequence, tokens: &lane.tokens[..lane.rows], rows: lane.rows };
            let begun = Instant::now();
            model.forward(&[pass])?;
            lane.times.push(begun.elapsed().as_secs_f64());
            model.truncate(sequence, prefix.len())?;
        }
        turns += 1;
    }
    machine::set_kernels(chosen);
    for (model, sequence) in models.iter_mut().zip(sequences) {
        model.close(sequence);
    }
    Ok(())
}

impl<'a> Lane<'a> {
    fn new(kernels: Kernels, model: usize, rows: usize, tokens: &'a [Token]) -> Self {
        Self { kernels, rows, model, tokens, times: Vec::new() }
    }

    fn median(self) -> f64 {
        median(self.times).unwrap_or_default()
    }
}

/// `tokens`, over and over, up to `count`, as far as the model knows them.
fn cycled(tokens: &[Token], count: usize, vocab: usize) -> Vec<Token> {
    let known = |&token: &Token| if token.index() < vocab { token } else { Token(0) };
    tokens.iter().map(known).cycle().take(count).collect()
}

/// Measures after a prefix of `text`. `on_processor`: whether the target runs where the readers do.
pub(crate) fn measure(
    target: &mut Model,
    mut draft: Option<&mut Model>,
    text: &[Token],
    on_processor: bool,
) -> Result<PassCosts> {
    let vocab = draft.as_ref().map_or(target.vocab(), |draft| draft.vocab());
    let bytes = usize::try_from(target.pass_bytes())?;
    let context = target.language_model().context();
    let draft_context = draft.as_mut().map(|draft| draft.language_model().context());
    let context = draft_context.map_or(context, |draft| draft.min(context));
    let room = context.checked_sub(MOST_ROWS).filter(|&room| room > 0);
    let room = room.with_context(|| format!("a context of {context} is too short to measure"))?;
    let prefix = cycled(text, text.len().min(room), vocab);
    let new = cycled(text, MOST_ROWS, vocab);
    let kernels = machine::kernels();
    let lane = |model, rows| Lane::new(kernels, model, rows, &new);
    let mut models: Vec<&mut dyn LanguageModel> = vec![target.language_model()];
    let first_pass_seconds = first_pass(models[0], &new)?;
    // Each number of rows takes turns with one row alone: heavy passes lower the clock of some
    // machines, and would make the light ones between them look slow.
    let (mut v, mut ones) = (vec![1.0], Vec::new());
    let budget = Duration::from_millis(150);
    for rows in 2..=MOST_ROWS {
        let mut lanes = [lane(0, 1), lane(0, rows)];
        take_turns(&mut models, &prefix, &mut lanes, budget)?;
        let [one, several] = lanes.map(|lane| lane.median());
        v.push(several / one);
        ones.push(one);
    }
    let t1 = median(ones).unwrap_or_default();
    let reading = match on_processor {
        true => Some(bandwidth(&mut models[0], &prefix, &new, &Readers::new(bytes)?)?),
        false => None,
    };
    let mut c = None;
    if let Some(draft) = draft {
        models.push(draft.language_model());
        // A round drafts several tokens in a row; the first finds its weights far away.
        let mut lanes = [lane(0, 1), lane(1, 1), lane(1, 1), lane(1, 1)];
        take_turns(&mut models, &prefix, &mut lanes, 2 * budget)?;
        let [one, steps @ ..] = lanes.map(|lane| lane.median());
        c = Some(steps.iter().sum::<f64>() / steps.len() as f64 / one);
    }
    Ok(PassCosts {
        prefix_tokens: prefix.len(),
        t1_seconds: t1,
        v,
        c,
        first_pass_seconds,
        read_bandwidth: reading.map(|(bandwidth, _)| bandwidth),
        read_share: reading.map(|(_, share)| share),
    })
}

fn first_pass(model: &mut dyn LanguageModel, new: &[Token]) -> Result<f64> {
    let sequence = model.open()?;
    let begun = Instant::now();
    model.forward(&[Pass { sequence, tokens: &new[..1], rows: 1 }])?;
    let seconds = begun.elapsed().as_secs_f64();
    model.close(sequence);
    Ok(seconds)
}

/// The bandwidth of the fastest plain reader, and its time as a share of that of a pass of one row;
/// they take turns.
fn bandwidth(
    model: &mut &mut dyn LanguageModel,
    prefix: &[Token],
    new: &[Token],
    readers: &Readers,
) -> Result<(f64, f64)> {
    let sequence = model.open()?;
    model.forward(&[Pass { sequence, tokens: prefix, rows: 0 }])?;
    let (mut reads, mut passes) = (vec![Vec::new(); Readers::AHEAD.len()], Vec::new());
    let (start, budget) = (Instant::now(), Duration::from_millis(300));
    while passes.len() < 7 || start.elapsed() < budget {
        for (ahead, times) in Readers::AHEAD.into_iter().zip(&mut reads) {
            let begun = Instant::now();
            readers.read(ahead);
            times.push(begun.elapsed().as_secs_f64());
        }
        let begun = Instant::now();
        model.forward(&[Pass { sequence, tokens: &new[..1], rows: 1 }])?;
        passes.push(begun.elapsed().as_secs_f64());
        model.truncate(sequence, prefix.len())?;
    }
    model.close(sequence);
    let read = reads.into_iter().filter_map(median).fold(f64::MAX, f64::min);
    let pass = median(passes).unwrap_or(f64::MAX);
    Ok((readers.bytes() as f64 / read, read / pass))
}

impl PassCosts {
    /// A pass of `rows` rows, also between two whole numbers of them and beyond the last, in passes
    /// of one row.
    pub(super) fn v_at(&self, rows: f64) -> f64 {
        let below = (rows.floor() as usize).clamp(1, self.v.len() - 1);
        let (low, high) = (self.v[below - 1], self.v[below]);
        low + (rows - below as f64) * (high - low)
    }
}

/// A pass over up to 512 tokens.
pub(super) fn prefill(model: &mut Model, text: &[Token], peak: Option<f64>) -> Result<Prefill> {
    let config = &model.config().transformer;
    let width = (config.heads * config.head_dim) as f64;
    let windows: Vec<Option<usize>> = config.layers.iter().map(|layer| layer.window).collect();
    let head = config.vocab * config.hidden;
    let learned = config.learned_positions.unwrap_or(0) * config.hidden;
    // Embeddings only pick rows; the head multiplies the last row alone.
    let tables = learned + if config.tied_head { head } else { 2 * head };
    let matrices = model.parameters() as f64 - tables as f64;
    let vocab = model.vocab();
    let lm = model.language_model();
    let count = 512.min(lm.context());
    let tokens = cycled(text, count, vocab);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let sequence = lm.open()?;
        let begun = Instant::now();
        lm.forward(&[Pass { sequence, tokens: &tokens, rows: 1 }])?;
        best = best.min(begun.elapsed().as_secs_f64());
        lm.close(sequence);
    }
    let n = count as f64;
    // The positions that all rows of a layer see together: half of all pairs, fewer with a window.
    let seen = |window: &Option<usize>| {
        let window = window.map_or(n, |window| n.min(window as f64));
        window * (n - window / 2.0)
    };
    // Two operations for each weight and row; scores and mixtures are two maps.
    let attention = 4.0 * width * windows.iter().map(seen).sum::<f64>();
    let flops = 2.0 * (matrices * n + head as f64) + attention;
    Ok(Prefill {
        tokens: count,
        seconds: best,
        tokens_per_second: n / best,
        gflops: flops / best / 1e9,
        share_of_peak: peak.map(|peak| flops / best / peak),
    })
}

/// What the promise costs; `general` is the same model, loaded for general kernels.
pub(crate) fn determinism(
    target: &mut Model,
    general: &mut Model,
    text: &[Token],
) -> Result<Determinism> {
    let context = target.language_model().context();
    let prefix = cycled(text, text.len().min(context - MOST_ROWS), target.vocab());
    let new = cycled(text, MOST_ROWS, target.vocab());
    let lane = |kernels, model, rows| Lane::new(kernels, model, rows, &new);
    let mut lanes = [
        lane(Kernels::RowInvariant, 0, 1),
        lane(Kernels::RowInvariant, 0, 5),
        lane(Kernels::General, 1, 1),
        lane(Kernels::General, 1, 5),
    ];
    let mut models: [&mut dyn LanguageModel; 2] =
        [target.language_model(), general.language_model()];
    take_turns(&mut models, &prefix, &mut lanes, Duration::from_secs(1))?;
    let [one, five, general_one, general_five] = lanes.map(|lane| lane.median());
    Ok(Determinism {
        general_t1: general_one / one,
        general_v5: general_five / general_one,
        row_invariant_v5: five / one,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_whole_rows() {
        let costs = PassCosts {
            prefix_tokens: 1,
            t1_seconds: 1.0,
            v: vec![1.0, 1.5, 1.75],
            c: None,
            first_pass_seconds: 1.0,
            read_bandwidth: None,
            read_share: None,
        };
        let expected =
            [(1.0, 1.0), (1.5, 1.25), (2.0, 1.5), (2.5, 1.625), (3.0, 1.75), (5.0, 2.25)];
        for (rows, cost) in expected {
            assert!((costs.v_at(rows) - cost).abs() < 1e-12, "{rows}");
        }
    }
}
