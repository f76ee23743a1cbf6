//! One page that needs nothing else: text, tables and plots.

use std::fmt::Write;

use super::{
    Check, DELTA, FALSE_ALARM, POWER, Report,
    svg::{Plot, Scale},
    table::{number, sharpest, summary},
};
use crate::{plan::Level, watermark::Figure};

pub use super::junit::escape;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--back:#fff;--panel:#f6f8fa;--good:#1a7f37;--bad:#cf222e;--a:#0969da;--b:#bf8700}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--back:#0d1117;--panel:#151b23;--good:#3fb950;--bad:#f85149;--a:#4493f8;--b:#d29922}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.2rem;margin-top:2.2rem}
.verdict{padding:.7rem 1rem;border-radius:6px;background:var(--panel);border-left:6px solid var(--good)}
.verdict.bad{border-color:var(--bad)}
.soft{color:var(--soft);font-size:.9rem}
figure{margin:0;background:var(--panel);border-radius:6px;padding:.7rem}
figcaption{font-size:.85rem;color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}
svg{width:100%;height:auto;font:11px system-ui,sans-serif;fill:var(--ink)}
.grid{stroke:var(--line);stroke-width:.6}.ideal{stroke:var(--soft);stroke-dasharray:4 3}
.bar{stroke:var(--a);stroke-width:1}.dot{fill:var(--a)}.other{fill:var(--b)}.wrong{fill:var(--bad)}
.c0{stroke:var(--a);fill:var(--a);color:var(--a)}.c1{stroke:var(--b);fill:var(--b);color:var(--b)}.c2{stroke:var(--good);fill:var(--good);color:var(--good)}.c3{stroke:var(--bad);fill:var(--bad);color:var(--bad)}
figcaption b{display:block}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.85rem}
th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
td.name{white-space:normal;overflow-wrap:anywhere;min-width:14rem}
.ok{color:var(--good)}.fail{color:var(--bad);font-weight:600}
dt{font-weight:600}dd{margin:0 0 .5rem 0}
";

/// A whole page with this title around the HTML of a body, in the style of all our reports.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

pub(super) fn write(report: &Report) -> String {
    let mut body = String::new();
    let mut add = |text: String| {
        body.push_str(&text);
        body.push('\n');
    };
    let verdict = if report.passed { "passed" } else { "FAILED" };
    let question = match report.subject.level {
        Level::Watermark => "Is marked text told from other text, and what does the mark cost?",
        _ => "Does this engine's text follow the target's law?",
    };
    add(format!("<h1>{question}</h1>"));
    let subject = &report.subject;
    add(format!(
        "<p class=\"soft\">draftproof {}, level {}, seed {}, shard {}{}</p>",
        escape(&subject.version),
        subject.level,
        subject.seed,
        subject.shard,
        subject.pair.as_ref().map(|pair| format!(", pair {}", escape(pair))).unwrap_or_default()
    ));
    let class = if report.passed { "verdict" } else { "verdict bad" };
    let lines: Vec<String> =
        summary(report).iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
    add(format!("<div class=\"{class}\">{}</div>", lines.join("\n")));
    failures(report).into_iter().for_each(&mut add);
    add("<h2>In pictures</h2>\n<div class=\"plots\">".to_owned());
    plots(report).into_iter().for_each(&mut add);
    add("</div>".to_owned());
    if !report.figures.is_empty() {
        add("<h2>The watermark</h2>\n<div class=\"plots\">".to_owned());
        report.figures.iter().map(curves).for_each(&mut add);
        add("</div>".to_owned());
    }
    add("<h2>Checks</h2>".to_owned());
    checks(report).into_iter().for_each(&mut add);
    if !report.mutants.is_empty() {
        add("<h2>Wrong samplers that had to be caught</h2>".to_owned());
        mutants(report).into_iter().for_each(&mut add);
    }
    add(method().to_owned());
    page(&format!("draftproof verify: {verdict}"), &body)
}

fn failures(report: &Report) -> Vec<String> {
    let failed = report.checks.iter().filter(|check| !check.passed);
    let alive = report.mutants.iter().filter(|mutant| !mutant.caught());
    let mut lines: Vec<String> = failed
        .map(|check| {
            format!(
                "<li class=\"fail\">{}: {} exceeds {}; {} impossible outcomes. {}</li>",
                escape(&check.name),
                number(check.statistic),
                number(check.threshold),
                check.impossible,
                escape(&check.note)
            )
        })
        .collect();
    lines.extend(
        alive.map(|mutant| format!("<li class=\"fail\">survivor: {}</li>", escape(&mutant.name))),
    );
    if lines.is_empty() { lines } else { vec![format!("<ul>{}</ul>", lines.join("\n"))] }
}

fn figure(plot: Plot, caption: &str) -> String {
    format!("<figure>{}<figcaption>{}</figcaption></figure>", plot.finish(), escape(caption))
}

/// The curves of a study, with their names in their colours.
fn curves(figure: &Figure) -> String {
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let low = points().map(of).fold(f64::INFINITY, f64::min);
        (low, points().map(of).fold(f64::NEG_INFINITY, f64::max))
    };
    let (x, (_, top)) = (range(|point| point.0), range(|point| point.1));
    let span = if x.1 > x.0 { Scale::Linear(x.0, x.1) } else { Scale::Linear(0.0, 1.0) };
    // Shares from 0 to 1, unless all of them are small.
    let high = if top > 0.2 { 1.0 } else { (top * 1.25).max(0.01) };
    let mut plot =
        Plot::new(&figure.title, (&figure.x, span), (&figure.y, Scale::Linear(0.0, high)));
    let mut legend = String::new();
    for (i, line) in figure.lines.iter().enumerate() {
        let class = format!("c{}", i % 4);
        plot.curve(&line.points, &class, &line.name);
        let _ = write!(legend, "<span class=\"{class}\">● {}</span> ", escape(&line.name));
    }
    format!(
        "<figure>{}<figcaption><b>{}</b>{legend}<br>{}</figcaption></figure>",
        plot.finish(),
        escape(&figure.title),
        escape(&figure.caption)
    )
}

/// The check whose cells are shown: the one whose probabilities differ most, of those with enough
/// cells to make a picture.
fn pictured(report: &Report) -> Option<&Check> {
    let level = sharpest(report)?.level;
    let checks = report.checks.iter().filter(|check| check.level == level);
    let range = |check: &Check| {
        let exact = || check.points.iter().map(|point| point.exact);
        exact().fold(0.0, f64::max) / exact().fold(1.0, f64::min)
    };
    let key = |check: &Check| (check.points.len() >= 6, range(check));
    checks
        .filter(|check| !check.points.is_empty())
        .max_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal))
}

fn plots(report: &Report) -> Vec<String> {
    let mut figures = Vec::new();
    if let Some(check) = pictured(report) {
        figures.push(cells_plot(check));
    }
    if report.checks.iter().any(|check| check.p_value.is_some()) {
        figures.push(p_values_plot(report));
    }
    if report.checks.iter().any(|check| !check.places.is_empty()) {
        figures.push(places_plot(report));
    }
    if !report.mutants.is_empty() {
        figures.push(mutants_plot(report));
    }
    figures
}

/// Observed over exact shares, with three standard deviations. (As a ratio: on a plot of one
/// against the other no deviation worth a test could be seen.)
fn cells_plot(check: &Check) -> String {
    let deviation =
        |exact: f64| 3.0 * ((1.0 - exact) / (exact * check.samples.max(1) as f64)).sqrt();
    let smallest = check.points.iter().map(|point| point.exact).fold(1.0, f64::min);
    let off = |point: &super::CellPoint| (point.observed / point.exact - 1.0).abs();
    let largest = check.points.iter().map(off).fold(deviation(smallest), f64::max);
    let reach = (1.1 * largest).clamp(1e-4, 1.0);
    let low = smallest.log10().floor();
    let mut plot = Plot::new(
        "observed share against exact probability",
        ("exact probability", Scale::Log(low, 0.0)),
        ("observed / exact", Scale::Linear(1.0 - reach, 1.0 + reach)),
    );
    plot.line((10f64.powf(low), 1.0), (1.0, 1.0), "ideal");
    for point in &check.points {
        let (x, spread) = (point.exact, deviation(point.exact));
        plot.line((x, 1.0 - spread), (x, 1.0 + spread), "bar");
        let tip = format!("exact {}, observed {}", number(x), number(point.observed));
        plot.point(x, point.observed / x, "dot", &tip);
    }
    figure(
        plot,
        &format!(
            "{}: the share of {} samples in each of {} cells, over its exact probability. Bars: three \
             standard deviations of a right engine.",
            check.name,
            check.samples,
            check.points.len()
        ),
    )
}

fn p_values_plot(report: &Report) -> String {
    let mut p_values: Vec<f64> = report.checks.iter().filter_map(|check| check.p_value).collect();
    p_values.sort_by(f64::total_cmp);
    let unit = Scale::Linear(0.0, 1.0);
    let mut plot = Plot::new(
        "p-values of the family against the uniform law",
        ("rank / number of checks", unit),
        ("p-value of G", unit),
    );
    plot.line((0.0, 0.0), (1.0, 1.0), "ideal");
    let m = p_values.len() as f64;
    for (i, p) in p_values.iter().enumerate() {
        plot.point((i as f64 + 0.5) / m, *p, "dot", &format!("p = {}", number(*p)));
    }
    figure(
        plot,
        "Sorted p-values of the likelihood ratio G. A right engine keeps near the diagonal; checks of \
         the same texts move together. They decide nothing.",
    )
}

fn places_plot(report: &Report) -> String {
    let checks = || report.checks.iter().filter(|check| !check.places.is_empty());
    let longest = checks().map(|check| check.places.len()).max().unwrap_or(1);
    let mut plot = Plot::new(
        "acceptance by position against the sum of min(p, q)",
        ("Σ min(p, q) at the position, from the laws", Scale::Linear(0.0, 1.0)),
        ("share accepted", Scale::Linear(0.0, 1.0)),
    );
    plot.line((0.0, 0.0), (1.0, 1.0), "ideal");
    for check in checks() {
        for (place, at) in check.places.iter().enumerate().filter(|(_, at)| at.reached >= 50) {
            let deviation = 3.0 * (0.25 / at.reached as f64).sqrt();
            let (below, above) = (at.overlap - deviation, at.overlap + deviation);
            plot.line((at.overlap, below.max(0.0)), (at.overlap, above.min(1.0)), "bar");
            let tip = format!(
                "{}, position {place}: accepted {} of {}, Σ min(p, q) {}",
                check.name,
                number(at.accepted),
                at.reached,
                number(at.overlap)
            );
            plot.point(at.overlap, at.accepted, if place == 0 { "dot" } else { "other" }, &tip);
        }
    }
    figure(
        plot,
        &format!(
            "Rejection rule, positions 1 to {longest} of the drafted block (the first in another \
             colour), reached 50 times or more. Bars: at most three standard deviations."
        ),
    )
}

fn mutants_plot(report: &Report) -> String {
    let largest = report.mutants.iter().filter_map(|mutant| mutant.needed_samples).max();
    let high = (largest.unwrap_or(10).min(1 << 60) as f64).log10().ceil().clamp(2.0, 10.0);
    let mut plot = Plot::new(
        "texts until a mutant is caught against texts predicted",
        ("texts for 99 % power, predicted", Scale::Log(0.0, high)),
        ("texts until caught", Scale::Log(0.0, 6.0)),
    );
    plot.line((1.0, 1.0), (1e6, 1e6), "ideal");
    for mutant in &report.mutants {
        let Some(needed) = mutant.needed_samples else {
            continue;
        };
        let tip = format!("{}: {}", mutant.name, mutant.caught_by.as_deref().unwrap_or("survived"));
        match (mutant.samples, mutant.caught()) {
            (Some(samples), _) => plot.point(needed as f64, samples as f64, "dot", &tip),
            (None, true) => plot.point(needed as f64, 1e6, "other", &tip),
            (None, false) => plot.point(needed as f64, 1e6, "wrong", &tip),
        }
    }
    figure(
        plot,
        "Each point is a wrong sampler. On the top edge: too small a change for sampling, caught by \
         the walk over all paths (on the right edge, beyond 1e10).",
    )
}

fn checks(report: &Report) -> Vec<String> {
    let mut lines = vec![
        "<div class=\"scroll\"><table><thead><tr><th>verdict</th><th>check</th><th>samples</th>\
         <th>statistic</th><th>limit</th><th>false alarm</th><th>would see TV</th>\
         <th>TV within</th><th>p of G</th></tr></thead><tbody>"
            .to_owned(),
    ];
    for check in &report.checks {
        lines.push(format!(
            "<tr><td class=\"{}\">{}</td><td class=\"name\" title=\"{}\">{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            if check.passed { "ok" } else { "fail" },
            if check.passed { "passed" } else { "FAILED" },
            escape(&format!("{}. {}", check.method.words(), check.note)),
            escape(&check.name),
            check.samples,
            number(check.statistic),
            number(check.threshold),
            number(check.false_alarm),
            cell(check.detectable_tv),
            cell(check.tv_upper_bound),
            cell(check.p_value),
        ));
    }
    lines.push("</tbody></table></div>".to_owned());
    lines
}

fn mutants(report: &Report) -> Vec<String> {
    let mut lines = vec![
        "<div class=\"scroll\"><table><thead><tr><th>verdict</th><th>what is wrong</th><th>seam</th>\
         <th>seen in</th><th>caught by</th><th>after texts</th><th>power</th><th>distance</th></tr>\
         </thead><tbody>"
            .to_owned(),
    ];
    for mutant in &report.mutants {
        let mut row = String::new();
        let _ = write!(
            row,
            "<tr><td class=\"{}\">{}</td><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>",
            if mutant.caught() { "ok" } else { "fail" },
            if mutant.caught() { "caught" } else { "ALIVE" },
            escape(&mutant.name),
            escape(&mutant.seam),
            escape(&mutant.seen),
            escape(mutant.caught_by.as_deref().unwrap_or("nothing")),
            mutant.samples.map_or_else(|| "–".to_owned(), |n| n.to_string()),
            cell(mutant.power),
            cell(mutant.tv),
        );
        lines.push(row);
    }
    lines.push("</tbody></table></div>".to_owned());
    lines
}

fn method() -> String {
    let levels = [
        (
            Level::Exact,
            "every path of the real loop on table models, as exact rationals, compared with ==",
        ),
        (Level::Toy, "texts drawn by the real loop on table models, against their exact joint law"),
        (
            Level::Model,
            "texts drawn by the real loop from the pair, against the law walked through the target's prefix tree",
        ),
        (
            Level::Watermark,
            "the detector on text of the pair with the mark and without, and on text of people; p-values against the uniform law, pairs of texts against fair coins",
        ),
    ];
    let levels: Vec<String> = levels
        .iter()
        .map(|(level, words)| format!("<dt>{level}</dt><dd>{}</dd>", escape(words)))
        .collect();
    format!(
        "<h2>How to read this</h2>\n<dl>{}\n\
         <dt>statistic and limit</dt><dd>Without chance: the number of differences or an exact distance; \
         only 0 passes. By sampling: the logarithm of an e-value. Under a right engine an e-value \
         exceeds 1/α with probability at most α at every sample size; the limits are those of Holm's \
         rule for {FALSE_ALARM:e} over the whole run.</dd>\n\
         <dt>would see TV</dt><dd>A shift of this total variation on the check's cells fails it with \
         probability {POWER}, whatever its shape (computed from the noncentral chi-square).</dd>\n\
         <dt>TV within</dt><dd>The sampled law is no further than this from the exact one on the cells, at \
         confidence 1 − {DELTA:e} for each check (McDiarmid's inequality; no approximation).</dd>\n\
         <dt>cells</dt><dd>Pooled from the exact law alone, never from counts. A token of probability 0 \
         belongs to no cell; one is enough to fail.</dd>\n\
         <dt>what is not claimed</dt><dd>That the logits are right: the law is that of the logits the \
         target computed. That a check sees deviations inside a pooled cell.</dd>\n</dl>",
        levels.join("\n")
    )
}
