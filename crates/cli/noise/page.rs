//! The documents of an experiment as one page that needs nothing else.

use std::fmt::Write;

use draftproof_verification::report::{
    html::{escape, page},
    svg::{Plot, Scale},
};
use serde_json::Value;

pub(super) fn write(document: &Value) -> String {
    let mut body = String::from("<h1>What temperature 0 leaves to chance</h1>\n");
    let name = document["model"].as_str().or(document["endpoint"].as_str()).unwrap_or_default();
    let fine = document["passed"] == true;
    let _ = write!(
        body,
        "<p class=\"soft\">draftproof {}, {}</p>\n<div class=\"{}\"><p>{} runs of each prompt: {} \
         distinct at most.</p><p>{}</p></div>\n",
        escape(document["version"].as_str().unwrap_or_default()),
        escape(name),
        if fine { "verdict" } else { "verdict bad" },
        document["runs"],
        document["distinct_outputs"],
        escape(&verdict(document)),
    );
    body += "<div class=\"plots\">";
    if document["near_ties"].is_object() {
        body += &gaps(&document["near_ties"]);
    }
    if let Some(spread) = by_context(document) {
        body += &spread;
    }
    if document["reduction"].is_array() {
        body += &by_length(&document["reduction"]);
    }
    body += "</div>\n<h2>Where runs part</h2>\n";
    for outcome in list(&document["outcomes"]) {
        let mut tree = String::new();
        branch(&outcome["tree"], &mut tree);
        let _ = writeln!(body, "<p>Prompt {}</p><ul>{tree}</ul>", outcome["prompt"]);
    }
    if document["spread"].is_array() {
        body += &spreads(document);
    }
    page("draftproof noise", &body)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn verdict(document: &Value) -> String {
    if let Some(why) = document["void"].as_str() {
        return format!("Void: {why}");
    }
    match (&document["passed"], document["spread"].is_array()) {
        (Value::Bool(false), _) => "A promise of equal bits was broken.".into(),
        (_, true) => "What is promised to be equal was compared bit for bit.".into(),
        _ => "Model and fingerprint stayed the same.".into(),
    }
}

fn figure(plot: Plot, caption: &str) -> String {
    format!("<figure>{}<figcaption>{}</figcaption></figure>", plot.finish(), escape(caption))
}

/// Bars on two logarithmic axes; an empty bar is none.
fn gaps(ties: &Value) -> String {
    let bars = || list(&ties["histogram"]).map(|bar| (bar, bar["count"].as_f64().unwrap_or(0.0)));
    let most = bars().map(|(_, count)| count).fold(1.0, f64::max);
    let mut plot = Plot::new(
        "gaps between the two largest logits",
        ("gap", Scale::Log(-8.0, 3.0)),
        ("positions", Scale::Log(-0.3, most.log10().ceil().max(1.0))),
    );
    for (bar, count) in bars().filter(|(_, count)| *count > 0.0) {
        let from = bar["from"].as_f64().unwrap_or(0.0).max(1e-8);
        let to = bar["to"].as_f64().unwrap_or(1e3);
        for (a, b) in
            [((from, 0.5), (from, count)), ((from, count), (to, count)), ((to, count), (to, 0.5))]
        {
            plot.line(a, b, "bar");
        }
        let middle = (from * to).sqrt();
        plot.point(middle, count, "dot", &format!("{count} from {from:.0e} to {to:.0e}"));
    }
    figure(
        plot,
        &format!(
            "{} positions by the gap between their two largest logits (half decades; the leftmost \
             from 0). Below 1e-4: {}, 1e-5: {}, 1e-6: {}.",
            ties["positions"], ties["below_1e-4"], ties["below_1e-5"], ties["below_1e-6"]
        ),
    )
}

/// Two series over powers of two; zeros have no place on the axis and are left out.
fn series(title: &str, label: &str, points: &[(f64, f64, f64)], caption: &str) -> String {
    let values = points.iter().flat_map(|&(_, max, rms)| [max, rms]).filter(|value| *value > 0.0);
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = if high > 0.0 { (low, high) } else { (1e-8, 1e-6) };
    let longest = points.iter().map(|point| point.0).fold(10.0, f64::max);
    let mut plot = Plot::new(
        title,
        (label, Scale::Log(0.0, longest.log10().ceil())),
        ("difference", Scale::Log(low.log10().floor(), high.log10().ceil())),
    );
    for &(x, max, rms) in points {
        for (y, class, what) in [(max, "other", "maximum"), (rms, "dot", "RMS")] {
            if y > 0.0 {
                plot.point(x, y, class, &format!("{what} {y:.1e} at {x}"));
            }
        }
    }
    figure(plot, caption)
}

fn points(entries: &Value, x: &str) -> Vec<(f64, f64, f64)> {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let point = |entry: &Value| (number(&entry[x]), number(&entry["max"]), number(&entry["rms"]));
    list(entries).map(point).collect()
}

fn by_context(document: &Value) -> Option<String> {
    let spread = list(&document["spread"]).find(|spread| spread["name"] == "kernels")?;
    Some(series(
        "spread of logits against context length",
        "tokens before the row, up to",
        &points(&spread["by_context"], "tokens_up_to"),
        "Logits of general against row-invariant kernels: largest difference (the upper points) and \
         root mean square.",
    ))
}

fn by_length(reductions: &Value) -> String {
    series(
        "spread of sums against their length",
        "products in a sum",
        &points(reductions, "length"),
        "Sums of products with a variance of 1, in the two orders: largest difference (the upper \
         points) and root mean square.",
    )
}

fn branch(tree: &Value, into: &mut String) {
    let text = tree["text"].as_str().unwrap_or_default();
    let _ = write!(into, "<li>{} × {}", tree["count"], escape(text));
    let ways: Vec<&Value> = list(&tree["ways"]).collect();
    if !ways.is_empty() {
        *into += "<ul>";
        ways.into_iter().for_each(|way| branch(way, into));
        *into += "</ul>";
    }
    *into += "</li>";
}

fn spreads(document: &Value) -> String {
    let mut table = String::from(
        "<h2>What changes, and what it does to logits</h2>\n<div class=\"scroll\"><table><thead><tr>\
         <th>kernels</th><th>what changes</th><th>max</th><th>RMS</th><th>flips</th><th>promised</th>\
         </tr></thead><tbody>",
    );
    for spread in list(&document["spread"]) {
        let number = |key: &str| {
            spread[key].as_f64().map_or_else(|| "∞".to_owned(), |value| format!("{value:.1e}"))
        };
        let text = |key: &str| escape(spread[key].as_str().unwrap_or_default());
        let promised = match (&spread["promised_zero"], &spread["passed"]) {
            (Value::Bool(true), Value::Bool(true)) => "<td class=\"ok\">0, held</td>",
            (Value::Bool(true), _) => "<td class=\"fail\">0, BROKEN</td>",
            _ => "<td>nothing</td>",
        };
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{promised}</tr>",
            text("kernels"),
            text("change"),
            number("max"),
            number("rms"),
            list(&spread["flips"]).count(),
        );
    }
    table + "</tbody></table></div>\n"
}
