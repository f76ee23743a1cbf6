//! The figures for people.

use std::io::{self, Write};

use super::{
    Found, Report,
    score::{Accuracy, Answers, TextScore},
};
use crate::args::ChooseArgument;

/// A line of figures, one for each setting.
type Row = (String, Vec<String>);

pub(super) fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let settings = &report.settings;
    for found in settings {
        let Found { label, flags, model, contract, .. } = found;
        writeln!(out, "{label}: {model}, contract {}, {}", &contract[..12], either(flags))?;
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |name: &str, figure: &dyn Fn(&Found) -> String| {
        let figures: Vec<String> = settings.iter().map(figure).collect();
        if figures.iter().any(|figure| figure != "-") {
            rows.push((name.into(), figures));
        }
    };
    add("choices right, raw logits", &|found| answers(found, |a| a.choice.as_ref()));
    add("choices right, under the law", &|found| answers(found, |a| a.choice_under_law.as_ref()));
    add("answers right, generated", &|found| answers(found, |a| a.exact.as_ref()));
    let text = |found: &Found, value: fn(&TextScore) -> Option<f64>| {
        figure(found.text.as_ref().and_then(value), 4)
    };
    add("log-likelihood a token, raw", &|found| text(found, |text| text.mean_log_likelihood));
    add("log-likelihood, under the law", &|found| {
        text(found, |text| text.mean_log_likelihood_under_law)
    });
    add("tokens without mass", &|found| {
        found.text.as_ref().map_or_else(
            || "-".into(),
            |text| format!("{} of {}", text.tokens_without_mass, text.tokens),
        )
    });
    for i in 0..settings.first().map_or(0, |found| found.texts.len()) {
        add("temperature", &|found| format!("{}", found.texts[i].temperature));
        add("  mean length, tokens", &|found| format!("{:.1}", found.texts[i].mean_length));
        add("  ended by themselves", &|found| percent(found.texts[i].ended));
        add("  repeated 4-grams", &|found| figure(found.texts[i].repeated_4grams, 3));
        add("  distinct-1, -2, -3", &|found| {
            found.texts[i].distinct.map(|share| figure(share, 2)).join(" ")
        });
        add("  self-overlap", &|found| figure(found.texts[i].self_overlap, 3));
        add("  tokens a target pass", &|found| figure(found.texts[i].passes.tokens_per_round, 2));
    }
    add("prefill", &|found| {
        let prefill = &found.cost.prefill;
        format!("{:.1} ms for {}", 1e3 * prefill.seconds, prefill.tokens)
    });
    for i in 0..settings.first().map_or(0, |found| found.cost.batches.len()) {
        let texts = settings[0].cost.batches[i].texts;
        add(&format!("tokens/s, batch of {texts}"), &|found| {
            format!("{:.0}", found.cost.batches[i].tokens_per_second)
        });
        add(&format!("ms a token, batch of {texts}"), &|found| {
            format!("{:.2}", 1e3 * found.cost.batches[i].seconds_per_token)
        });
    }
    if settings.iter().any(|found| found.cost.loops.is_some()) {
        add("loops a pass", &|found| {
            found.cost.loops.map_or_else(|| "-".into(), |loops| loops.to_string())
        });
    }
    add("Mflop a token, by arithmetic", &|found| {
        format!("{:.1}", found.cost.flops.per_token / 1e6)
    });
    add("peak memory, MB", &|found| {
        figure(found.cost.peak_memory_bytes.map(|bytes| bytes as f64 / 1e6), 0)
    });
    writeln!(out)?;
    let labels = settings.iter().map(|found| found.label.clone()).collect();
    rows.insert(0, (String::new(), labels));
    table(&mut out, &rows)?;
    if let Some(chosen) = &report.choice {
        let (by, digits) = match chosen.by {
            ChooseArgument::Questions => ("questions", 3),
            ChooseArgument::Text => ("pieces of text", 4),
        };
        writeln!(
            out,
            "\nchosen: {}, by {} {by} ({:.digits$}; the figures above are of these only); on the {} \
             held-out ones, which no setting had met:",
            chosen.label,
            chosen.items_to_choose_by,
            chosen.score_to_choose_by,
            chosen.items_held_out
        )?;
        if let Some(answers) = &chosen.answers {
            for (name, accuracy) in
                [("choices, raw logits", &answers.choice), ("generated", &answers.exact)]
            {
                if let Some(accuracy) = accuracy {
                    writeln!(out, "  {name}: {}", right(accuracy))?;
                }
            }
        }
        if let Some(text) = &chosen.text {
            let likelihood = figure(text.mean_log_likelihood, 4);
            writeln!(out, "  log-likelihood a token, raw: {likelihood}")?;
        }
    }
    Ok(())
}

fn either(flags: &str) -> &str {
    if flags.is_empty() { "no flags" } else { flags }
}

fn answers(found: &Found, part: impl Fn(&Answers) -> Option<&Accuracy>) -> String {
    found.answers.as_ref().and_then(part).map_or_else(|| "-".into(), right)
}

/// Right of all with the interval, and the failures if there are any.
fn right(accuracy: &Accuracy) -> String {
    let Accuracy { questions, right, interval: [low, high], failures, .. } = accuracy;
    let failed = match failures {
        0 => String::new(),
        failures => format!(", {failures} failed"),
    };
    format!("{right}/{questions} ({:.0}-{:.0} %){failed}", 100.0 * low, 100.0 * high)
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let first = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let columns = rows.first().map_or(0, |(_, figures)| figures.len());
    let widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().map(|(_, figures)| figures[i].len()).max().unwrap_or(0))
        .collect();
    for (name, figures) in rows {
        write!(out, "{name:<first$}")?;
        for (figure, width) in figures.iter().zip(&widths) {
            write!(out, "  {figure:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
