//! The figures for people.

use std::io::{self, Write};

use super::{Outcome, Report};

pub(super) fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Report { machine, target, passes, prefill, .. } = report;
    let mebibytes = |bytes: u64| bytes as f64 / 1e6;
    write!(out, "device {}", machine.device)?;
    if machine.draft_device != machine.device {
        write!(out, ", the draft on {}", machine.draft_device)?;
    }
    writeln!(out, ", {} kernels", report.kernels)?;
    write!(out, "{}, {} threads", machine.cpu, machine.threads)?;
    if let Some(bandwidth) = machine.read_bandwidth_gb_s {
        let bytes = mebibytes(target.pass_bytes);
        write!(out, ": reads {bandwidth:.1} GB/s over {bytes:.1} MB")?;
    }
    if let Some(peak) = machine.peak_gflops {
        write!(out, ", multiplies {peak:.0} Gflop/s")?;
    }
    writeln!(out)?;
    for model in [Some(target), report.draft.as_ref()].into_iter().flatten() {
        writeln!(
            out,
            "{}: {:.1} M weights, {}, {:.1} MB a pass",
            model.name,
            model.parameters as f64 / 1e6,
            model.dtype,
            mebibytes(model.pass_bytes)
        )?;
    }
    write!(out, "\none row: {:.3} ms", passes.t1_seconds * 1e3)?;
    if let Some(share) = passes.read_share {
        write!(out, ", {:.0} % of the read bandwidth", 100.0 * share)?;
    }
    writeln!(out, "; the first one {:.0} ms", passes.first_pass_seconds * 1e3)?;
    if let Some(c) = passes.c {
        writeln!(out, "draft step c: {c:.3}")?;
    }
    let row = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(" ");
    let numbers = row(&mut (1..=passes.v.len()).map(|n| format!("{n:>5}")));
    let costs = row(&mut passes.v.iter().map(|v| format!("{v:>5.2}")));
    writeln!(out, "rows n      {numbers}\npass v(n)   {costs}")?;
    write!(
        out,
        "prompt: {:.0} tokens/s, {:.0} Gflop/s",
        prefill.tokens_per_second, prefill.gflops
    )?;
    if let Some(share) = prefill.share_of_peak {
        write!(out, ", {:.0} % of peak", 100.0 * share)?;
    }
    writeln!(out)?;
    if let Some(price) = &report.determinism {
        writeln!(
            out,
            "general kernels (f32): one row {:.2} of the row-invariant one's time, v(5) {:.2} \
             against {:.2}",
            price.general_t1, price.general_v5, price.row_invariant_v5
        )?;
    }
    let mut temperature = None;
    for outcome in &report.results {
        if temperature.replace(outcome.speed.temperature) != Some(outcome.speed.temperature) {
            header(&mut out, report, outcome)?;
        }
        line(&mut out, outcome)?;
    }
    out.flush()
}

fn header(out: &mut dyn Write, report: &Report, outcome: &Outcome) -> io::Result<()> {
    let at = outcome.speed.temperature;
    writeln!(
        out,
        "\ntemperature {at}, {}, {} prompts × {} tokens",
        report.verify, report.prompts, report.max_tokens
    )?;
    if let Some(best) = report.optimum.iter().find(|best| best.temperature == at) {
        writeln!(
            out,
            "alpha {:.3}: the best length should be {}, with a speed-up of {:.2}",
            best.alpha, best.gamma, best.speedup
        )?;
    }
    writeln!(
        out,
        "{:>6} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>6}  time: draft verify sampler other",
        "length", "tokens/s", "speed-up", "predicted", "achieved", "a round", "drafted", "reads"
    )
}

fn line(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let speed = &outcome.speed;
    let length = match speed.gamma.as_str() {
        Some(auto) => auto.to_owned(),
        None if speed.gamma == 0 => "plain".to_owned(),
        None => speed.gamma.to_string(),
    };
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    writeln!(
        out,
        "{length:>6} {:>9.0} {:>8.2} {:>9} {:>8} {:>8.2} {:>8.2} {:>6} {:>12} {:>6} {:>7} {:>5}",
        speed.tokens_per_second,
        speed.speedup,
        optional(speed.predicted_speedup),
        optional(speed.achieved_share),
        speed.tokens_per_round,
        speed.drafted_per_round,
        speed.roofline_share.map_or("-".to_owned(), percent),
        percent(speed.share.draft),
        percent(speed.share.verify),
        percent(speed.share.sampler),
        percent(speed.share.other),
    )
}
