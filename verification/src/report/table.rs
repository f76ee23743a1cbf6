//! The report for a terminal.

use std::fmt::Write;

use super::{Check, DELTA, POWER, Report};
use crate::{plan::Level, watermark::Figure};

/// A number as people write it: `0.0123`, or `1.2e-7` where that is shorter.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if (1e-3..1e6).contains(&value.abs()) {
        let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.1e}")
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// The most certain claims of the report, for the summary.
pub(super) fn sharpest(report: &Report) -> Option<&Check> {
    let key = |check: &Check| check.detectable_tv.unwrap_or(1.0);
    let of = |level| {
        let checks = report.checks.iter().filter(move |check| check.level == level);
        checks
            .filter(|check| check.detectable_tv.is_some())
            .min_by(|a, b| key(a).total_cmp(&key(b)))
    };
    of(Level::Model).or_else(|| of(Level::Toy))
}

pub(super) fn summary(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let survivors = report.mutants.iter().filter(|mutant| !mutant.caught()).count();
    let of = |what: usize, name: &str| format!("{what} {name}{}", if what == 1 { "" } else { "s" });
    lines.push(match report.passed {
        true => format!("PASSED: {} held.", of(report.checks.len(), "check")),
        false if report.mutants.is_empty() => {
            format!("FAILED: {failed} of {}.", of(report.checks.len(), "check"))
        }
        false => format!(
            "FAILED: {} of {}, and {} survived.",
            failed,
            of(report.checks.len(), "check"),
            of(survivors, "mutant")
        ),
    });
    lines.push(match report.subject.audited {
        _ if report.subject.level == Level::Watermark => {
            "Claimed: the detector's p-values hold for text made without the key, and mode exact \
                  scores the same with a draft as without. How much is found is measured, not claimed."
                .to_owned()
        }
        true => "Claimed: the samples follow the law that the target's logits and these settings \
                 make. If they do not: other logits, another order of filters and a fault of the \
                 engine look alike."
            .to_owned(),
        false => {
            "Claimed: given the target's logits, the emitted text follows the target's sampler \
                  contract exactly, whatever the draft proposes."
                .to_owned()
        }
    });
    let exact: Vec<&Check> =
        report.checks.iter().filter(|check| check.gate_p_value.is_none()).collect();
    if !exact.is_empty() {
        let cases: u64 = exact.iter().map(|check| check.samples).sum();
        lines.push(format!(
            "Without chance: {} over {cases} paths and texts; one difference in the last bit would \
             fail them.",
            of(exact.len(), "check")
        ));
    }
    if report.family > 0 {
        let ran = report.checks.len() - exact.len();
        lines.push(format!(
            "By sampling: {}; the probability that a right engine fails any of the run's {} is at \
             most {} (e-values, Holm), with no approximation.",
            of(ran, "check"),
            report.family,
            number(report.false_alarm)
        ));
    }
    if let Some(check) = sharpest(report) {
        lines.push(format!(
            "Sharpest: {} would have seen a total variation of {} with probability {POWER}, \
             whatever its shape on its {} cells ({} samples).",
            check.name,
            optional(check.detectable_tv),
            check.cells.unwrap_or(0),
            check.samples
        ));
        lines.push(format!(
            "Certified there: the sampled law is within {} of the exact one on those cells, at \
             confidence 1 - {DELTA:e}.",
            optional(check.tv_upper_bound)
        ));
    }
    if !report.mutants.is_empty() {
        lines.push(format!(
            "Negative controls: {} of {} were caught by these law checks.",
            report.mutants.len() - survivors,
            of(report.mutants.len(), "wrong sampler")
        ));
    }
    lines
}

/// The text, cut to `width` columns.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

pub(super) fn write(report: &Report, width: usize) -> String {
    let name_width = width.saturating_sub(64).clamp(20, 64);
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(format!(
        "{:6} {:name_width$} {:>9} {:>10} {:>9} {:>10} {:>10}",
        "", "check", "samples", "statistic", "limit", "would see", "TV within"
    ));
    for check in &report.checks {
        line(format!(
            "{:6} {:name_width$} {:>9} {:>10} {:>9} {:>10} {:>10}",
            if check.passed { "ok" } else { "FAILED" },
            cut(&check.name, name_width),
            check.samples,
            number(check.statistic),
            number(check.threshold),
            optional(check.detectable_tv),
            optional(check.tv_upper_bound),
        ));
    }
    if !report.mutants.is_empty() {
        line(String::new());
        line(format!(
            "{:6} {:name_width$} {:>9} {:>10} {:>9}  {}",
            "", "mutant", "samples", "distance", "power", "caught by"
        ));
    }
    for mutant in &report.mutants {
        line(format!(
            "{:6} {:name_width$} {:>9} {:>10} {:>9}  {}",
            if mutant.caught() { "caught" } else { "ALIVE" },
            cut(&mutant.name, name_width),
            mutant.samples.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            optional(mutant.tv),
            optional(mutant.power),
            mutant.caught_by.as_deref().unwrap_or("nothing"),
        ));
    }
    for figure in &report.figures {
        line(String::new());
        rows(figure, width).into_iter().for_each(&mut line);
    }
    line(String::new());
    summary(report).into_iter().for_each(&mut line);
    out
}

/// A figure as numbers: a column for each x, unless there are too many.
fn rows(figure: &Figure, width: usize) -> Vec<String> {
    const NAME: usize = 26;
    let mut rows = vec![format!("{}: {}, by {}", figure.title, figure.y, figure.x)];
    let most = figure.lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    if NAME + 8 * most > width {
        rows.push(format!("  {:NAME$}{most} points, in the report", ""));
        return rows;
    }
    let cells = |of: &dyn Fn(&(f64, f64)) -> f64, points: &[(f64, f64)]| -> String {
        points.iter().map(|point| format!("{:>8}", number(of(point)))).collect()
    };
    let mut shown = Vec::new();
    for curve in &figure.lines {
        let xs = cells(&|point| point.0, &curve.points);
        if shown != [xs.clone()] {
            rows.push(format!("  {:NAME$}{xs}", ""));
            shown = vec![xs];
        }
        rows.push(format!("  {:NAME$}{}", curve.name, cells(&|point| point.1, &curve.points)));
    }
    rows
}
