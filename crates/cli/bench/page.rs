//! The measurements as one page that needs nothing else.

use std::fmt::Write;

use draftproof_verification::report::{
    html::{escape, page},
    svg::{Plot, Scale},
};
use serde_json::Value;

/// Colours, as the page's style has them.
const COLOURS: [&str; 4] = ["c0", "c1", "c2", "c3"];

/// A page about the runs, one for each device.
pub(super) fn write(runs: &[Value]) -> String {
    let mut body = String::from("<h1>What speculation costs and gains</h1>\n");
    let version = runs.first().and_then(|run| run["version"].as_str()).unwrap_or_default();
    let _ = writeln!(body, "<p class=\"soft\">draftproof {}</p>", escape(version));
    if runs.len() > 1 {
        body += &devices(runs);
    }
    for run in runs {
        body += &device(run);
    }
    page("draftproof bench", &body)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

/// The draft length of a result, `None` for `auto`.
fn gamma(result: &Value) -> Option<f64> {
    number(&result["gamma"])
}

/// A draft length in words.
fn length(result: &Value) -> String {
    match gamma(result) {
        Some(0.0) => "plain".into(),
        Some(gamma) => format!("length {gamma}"),
        None => "length auto".into(),
    }
}

fn temperatures(run: &Value) -> Vec<f64> {
    let mut all: Vec<f64> =
        list(&run["results"]).filter_map(|result| number(&result["temperature"])).collect();
    all.dedup();
    all
}

fn at(run: &Value, temperature: f64) -> impl Iterator<Item = &Value> {
    list(&run["results"]).filter(move |result| number(&result["temperature"]) == Some(temperature))
}

fn figure(plot: Plot, caption: &str, series: &[(String, &str)]) -> String {
    let legend: String = series
        .iter()
        .map(|(name, class)| format!(" <span class=\"{class}\">● {}</span>", escape(name)))
        .collect();
    format!(
        "<figure>{}<figcaption>{}{legend}</figcaption></figure>\n",
        plot.finish(),
        escape(caption)
    )
}

/// All devices beside each other.
fn devices(runs: &[Value]) -> String {
    let mut table = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>device</th><th>draft on</th><th>one row, ms\
         </th><th>v(5)</th><th>plain, tokens/s</th><th>best, tokens/s</th><th>at</th></tr></thead>\
         <tbody>\n",
    );
    for run in runs {
        for temperature in temperatures(run) {
            let speed = |result: &&Value| number(&result["tokens_per_second"]);
            let plain = at(run, temperature).find(|result| gamma(result) == Some(0.0));
            let fastest = |a: &&Value, b: &&Value| speed(a).partial_cmp(&speed(b));
            let fastest =
                |a: &&Value, b: &&Value| fastest(a, b).unwrap_or(std::cmp::Ordering::Equal);
            let best = at(run, temperature).max_by(fastest);
            let shown = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
            };
            let _ = writeln!(
                table,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>T = {temperature}, {}</td></tr>",
                text(&run["machine"]["device"]),
                text(&run["machine"]["draft_device"]),
                shown(number(&run["passes"]["t1_seconds"]).map(|t1| t1 * 1e3), 3),
                shown(number(&run["passes"]["v"][4]), 2),
                shown(plain.as_ref().and_then(speed), 0),
                shown(best.as_ref().and_then(speed), 0),
                best.map_or_else(String::new, length),
            );
        }
    }
    table + "</tbody></table></div>\n"
}

fn device(run: &Value) -> String {
    let machine = &run["machine"];
    let mut body = format!("<h2>{}</h2>\n<p class=\"soft\">", text(&machine["device"]));
    let _ = write!(
        body,
        "{}, {} threads; target {}, {}; draft {} on {}; {} kernels; {} prompts of {} tokens, \
         median of the prompts, {} runs of each text and the fastest counts",
        text(&machine["cpu"]),
        machine["threads"],
        text(&run["target"]["name"]),
        text(&run["target"]["dtype"]),
        run["draft"]["name"].as_str().map_or_else(|| "none".into(), escape),
        text(&machine["draft_device"]),
        text(&run["kernels"]),
        run["prompts"],
        run["max_tokens"],
        run["repeats"],
    );
    body += "</p>\n<div class=\"plots\">\n";
    body += &passes(run);
    let temperatures = temperatures(run);
    if !temperatures.is_empty() {
        body += &speedups(run, &temperatures);
        body += &achieved(run, &temperatures);
        body += &acceptance(run, &temperatures);
        for temperature in temperatures {
            body += &parts(run, temperature);
        }
    }
    body + "</div>\n"
}

fn passes(run: &Value) -> String {
    let v: Vec<f64> = list(&run["passes"]["v"]).filter_map(number).collect();
    let most = v.iter().copied().fold(1.0, f64::max);
    let mut plot = Plot::new(
        "the cost of rows in a pass",
        ("rows in a pass", Scale::Linear(0.0, v.len().max(1) as f64)),
        ("passes of one row", Scale::Linear(0.0, most.ceil())),
    );
    plot.line((0.0, 1.0), (v.len() as f64, 1.0), "ideal");
    let points: Vec<_> = v.iter().enumerate().map(|(i, &v)| (i as f64 + 1.0, v)).collect();
    plot.curve(&points, "c0", "rows, cost");
    let t1 = number(&run["passes"]["t1_seconds"]).unwrap_or_default() * 1e3;
    let c = number(&run["passes"]["c"]).map(|c| format!(", a draft step costs {c:.3} of it"));
    let caption = format!(
        "v(n): what a pass of n rows costs, where one row takes {t1:.3} ms{}. Dashed: rows for free.",
        c.unwrap_or_default()
    );
    figure(plot, &caption, &[])
}

/// Draft length against a value, a curve for each temperature; `auto` has no place on the axis and
/// is a line of its own, if the value has a meaning there.
fn by_length(
    run: &Value,
    temperatures: &[f64],
    title: &str,
    (label, key): (&str, &str),
    caption: &str,
) -> String {
    let values = || list(&run["results"]).filter_map(|result| number(&result[key]));
    let longest = list(&run["results"]).filter_map(gamma).fold(1.0, f64::max);
    let most = values().fold(1.0, f64::max);
    let mut plot = Plot::new(
        title,
        ("draft length", Scale::Linear(0.0, longest)),
        (label, Scale::Linear(0.0, (most * 4.0).ceil() / 4.0)),
    );
    plot.line((0.0, 1.0), (longest, 1.0), "ideal");
    let mut series = Vec::new();
    for (&temperature, class) in temperatures.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<(f64, f64)> = at(run, temperature)
            .filter_map(|result| Some((gamma(result)?, number(&result[key])?)))
            .collect();
        plot.curve(&points, class, "length, value");
        let auto = at(run, temperature).find(|result| result["gamma"] == "auto");
        let auto = auto.and_then(|auto| number(&auto[key]));
        let auto = auto.map(|auto| format!(", auto {auto:.2}")).unwrap_or_default();
        series.push((format!("T = {temperature}{auto}"), *class));
    }
    figure(plot, caption, &series)
}

fn speedups(run: &Value, temperatures: &[f64]) -> String {
    by_length(
        run,
        temperatures,
        "speed-up by draft length",
        ("speed-up", "speedup"),
        "Speed-up over plain decoding: the median of the prompts. Dashed: no gain; below it \
         speculation loses.",
    )
}

fn achieved(run: &Value, temperatures: &[f64]) -> String {
    let pair = |result: &Value| {
        Some((number(&result["predicted_speedup"])?, number(&result["speedup"])?, length(result)))
    };
    let all = || list(&run["results"]).filter_map(pair);
    let most = all().map(|(predicted, found, _)| predicted.max(found)).fold(1.0, f64::max);
    let ends = Scale::Linear(0.0, (most * 4.0).ceil() / 4.0);
    let mut plot = Plot::new(
        "predicted and achieved",
        ("predicted speed-up", ends),
        ("achieved speed-up", ends),
    );
    plot.line((0.0, 0.0), (most, most), "ideal");
    let mut series = Vec::new();
    for (&temperature, class) in temperatures.iter().zip(COLOURS.iter().cycle()) {
        for (predicted, found, length) in at(run, temperature).filter_map(pair) {
            let tip = format!("{length}: {found:.2} of {predicted:.2}");
            plot.point(predicted, found, class, &tip);
        }
        series.push((format!("T = {temperature}"), *class));
    }
    let caption = "Predicted from the tokens of a round, c and v(n), with a sampler that costs nothing; \
                   dashed: all of it achieved.";
    figure(plot, caption, &series)
}

/// Of the longest fixed draft, which reaches most positions.
fn acceptance(run: &Value, temperatures: &[f64]) -> String {
    let longest = |temperature: f64| {
        let fixed = at(run, temperature).filter_map(|result| Some((gamma(result)?, result)));
        fixed.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let most = temperatures.iter().filter_map(|&t| longest(t)).map(|(gamma, _)| gamma);
    let most = most.fold(1.0, f64::max);
    let mut plot = Plot::new(
        "acceptance by position",
        ("position in the draft", Scale::Linear(0.0, most)),
        ("accepted of those judged", Scale::Linear(0.0, 1.0)),
    );
    let mut series = Vec::new();
    for (&temperature, class) in temperatures.iter().zip(COLOURS.iter().cycle()) {
        let Some((gamma, result)) = longest(temperature) else { continue };
        let shares = list(&result["acceptance_by_position"]).filter_map(number).enumerate();
        let points: Vec<_> = shares.map(|(i, share)| (i as f64 + 1.0, share)).collect();
        plot.curve(&points, class, "position, share");
        series.push((format!("T = {temperature}, length {gamma}"), *class));
    }
    figure(plot, "Drafted tokens that were accepted, of those whose turn came.", &series)
}

/// Shares of a round, one above the other.
fn parts(run: &Value, temperature: f64) -> String {
    let longest = list(&run["results"]).filter_map(gamma).fold(1.0, f64::max);
    let mut plot = Plot::new(
        "time by part",
        ("draft length", Scale::Linear(0.0, longest)),
        ("share of the time", Scale::Linear(0.0, 1.0)),
    );
    let names = ["draft", "verify", "sampler", "other"];
    let mut below: Vec<(f64, f64)> =
        at(run, temperature).filter_map(gamma).map(|gamma| (gamma, 0.0)).collect();
    let mut series = Vec::new();
    for (name, class) in names.into_iter().zip(COLOURS) {
        let shares = at(run, temperature)
            .filter(|result| gamma(result).is_some())
            .map(|result| number(&result["share"][name]).unwrap_or_default());
        for (point, share) in below.iter_mut().zip(shares) {
            let top = point.1 + share;
            plot.line(*point, (point.0, top), class);
            let tip = format!("length {}: {name} {:.1} %", point.0, 100.0 * share);
            plot.point(point.0, top, class, &tip);
            point.1 = top;
        }
        series.push((name.to_owned(), class));
    }
    let caption = format!("T = {temperature}: each part's share stands on the one before.");
    figure(plot, &caption, &series)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(gamma: Value, temperature: f64, speedup: f64) -> Value {
        json!({
            "gamma": gamma, "temperature": temperature, "tokens_per_second": 100.0 * speedup,
            "speedup": speedup, "predicted_speedup": 1.5, "acceptance_by_position": [0.7, 0.5],
            "share": {"draft": 0.2, "verify": 0.6, "sampler": 0.15, "other": 0.05},
        })
    }

    #[test]
    fn a_page_has_every_device_plot_and_name_and_no_markup_of_others() {
        let run = |device: &str| {
            json!({
                "version": "1", "machine": {"device": device, "draft_device": "cpu", "cpu": "<b>",
                "threads": 2}, "target": {"name": "a&b", "dtype": "bf16"}, "draft": null,
                "kernels": "row-invariant", "prompts": 1, "max_tokens": 8, "repeats": 1,
                "passes": {"t1_seconds": 0.001, "v": [1.0, 1.25], "c": 0.2},
                "results": [result(json!(0), 0.0, 1.0), result(json!(2), 0.0, 1.5),
                            result(json!("auto"), 0.0, 1.25), result(json!(2), 1.0, 0.5)],
            })
        };
        let html = write(&[run("cpu"), run("wgpu:0")]);
        // v, speed-up, achieved, acceptance, and parts at two temperatures; for two devices.
        assert_eq!(html.matches("<svg").count(), 12);
        assert_eq!(html.matches("<h2>").count(), 2);
        for needle in ["wgpu:0", "&lt;b&gt;", "a&amp;b", "T = 0, auto 1.25", "T = 0, length 2"] {
            assert!(html.contains(needle), "{needle}");
        }
        assert!(!html.contains("<b>") && !html.contains("NaN") && !html.contains("inf"));
        // Without texts, as of a synthetic model, the passes are left.
        let mut bare = run("cpu");
        bare["results"] = json!([]);
        assert_eq!(write(&[bare]).matches("<svg").count(), 1);
    }
}
