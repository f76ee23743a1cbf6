//! The documents of an experiment for people.

use serde_json::Value;

/// A number of a document; one that is not there, or was infinite, is shown as a dash.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(0.0) => "0".into(),
        Some(number) if (0.01..1000.0).contains(&number.abs()) => format!("{number:.3}"),
        Some(number) => format!("{number:.1e}"),
        None => "–".into(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

/// Of a model of ours.
pub(super) fn local(document: &Value, trees: &[Vec<String>]) -> Vec<String> {
    let mut lines = vec![format!(
        "{} ({} weights), {} kernels, {} threads, {}: {} prompts, {} greedy tokens",
        text(&document["model"]),
        text(&document["weights"]),
        text(&document["kernels"]),
        document["threads"],
        text(&document["device"]),
        document["prompts"],
        document["near_ties"]["positions"],
    )];
    lines.extend(near_ties(&document["near_ties"]));
    lines.push(String::new());
    lines.push(format!(
        "{:<14} {:<52} {:>9} {:>9} {:>6}",
        "kernels", "what changes", "max", "RMS", "flips"
    ));
    for spread in list(&document["spread"]) {
        let flips = list(&spread["flips"]).count();
        let verdict = match (&spread["passed"], &spread["promised_zero"]) {
            (Value::Bool(false), Value::Bool(true)) => "  BROKEN: promised 0",
            (Value::Bool(false), _) => "  UNEXPLAINED FLIP",
            _ => "",
        };
        lines.push(format!(
            "{:<14} {:<52} {:>9} {:>9} {flips:>6}{verdict}",
            text(&spread["kernels"]),
            text(&spread["change"]),
            number(&spread["max"]),
            number(&spread["rms"]),
        ));
    }
    for spread in list(&document["spread"]) {
        for flip in list(&spread["flips"]) {
            lines.push(format!(
                "flip, {}: prompt {}, token {}, gap {}, spread {}: …{:?}",
                text(&spread["change"]),
                flip["prompt"],
                flip["position"],
                number(&flip["gap"]),
                number(&flip["spread"]),
                text(&flip["before"]),
            ));
        }
    }
    lines.push(String::new());
    lines.push("row-invariant against general kernels, by the length of a sum (RMS):".into());
    let sums = list(&document["reduction"])
        .map(|sum| format!("{} {}", sum["length"], number(&sum["rms"])));
    lines.push(format!("  {}", sums.collect::<Vec<_>>().join(" · ")));
    let contexts = list(&document["spread"])
        .find(|spread| spread["name"] == "kernels")
        .map(|spread| &spread["by_context"]);
    let contexts = contexts.into_iter().flat_map(list);
    let contexts = contexts.map(|at| format!("{} {}", at["tokens_up_to"], number(&at["rms"])));
    lines.push("the same of logits, by tokens before them (up to, RMS):".into());
    lines.push(format!("  {}", contexts.collect::<Vec<_>>().join(" · ")));
    if let Some(price) = document["price"].as_object() {
        lines.push(format!(
            "general kernels take {} of the row-invariant ones' time for one row; five rows cost {} \
             of one, row-invariant {}",
            number(&price["general_t1"]),
            number(&price["general_v5"]),
            number(&price["row_invariant_v5"]),
        ));
    }
    lines.extend(list(&document["left_out"]).map(|what| format!("left out: {}", text(what))));
    lines.push(String::new());
    lines.extend(outcome(document, trees));
    let verdict = if document["passed"] == true { "PASSED" } else { "FAILED" };
    lines.push(format!("{verdict}: what is promised to be equal was compared bit for bit."));
    lines
}

/// Of a server.
pub(super) fn endpoint(document: &Value, trees: &[Vec<String>]) -> Vec<String> {
    let names = |key: &str| {
        let names = list(&document[key]).map(|name| name.as_str().unwrap_or("(none)").to_owned());
        names.collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        format!(
            "{} ({}), seed {}, {} at once: {} prompts",
            text(&document["endpoint"]),
            text(&document["api"]),
            text(&document["seed"]),
            document["concurrency"],
            document["prompts"],
        ),
        format!("model {}, system_fingerprint {}", names("models"), names("system_fingerprints")),
    ];
    if document["near_ties"].is_object() {
        lines.extend(near_ties(&document["near_ties"]));
    }
    lines.extend(list(&document["notes"]).map(|note| format!("note: {}", text(note))));
    lines.push(String::new());
    lines.extend(outcome(document, trees));
    if let Some(share) = document["another_output_at_most"].as_f64() {
        lines.push(format!(
            "A run that differs has a probability of at most {share:.3} (95 % confidence, if runs are \
             independent)."
        ));
    }
    if let Some(why) = document["void"].as_str() {
        lines.push(format!("VOID: {why}"));
    }
    lines
}

fn near_ties(ties: &Value) -> Vec<String> {
    let mut lines = vec![format!(
        "gaps below 1e-4: {}, 1e-5: {}, 1e-6: {}; the nearest:",
        ties["below_1e-4"], ties["below_1e-5"], ties["below_1e-6"]
    )];
    for near in list(&ties["nearest"]).take(5) {
        lines.push(format!(
            "  {:>8}  prompt {}, token {}: …{:?} {:?} or {:?}",
            number(&near["gap"]),
            near["prompt"],
            near["position"],
            text(&near["before"]),
            text(&near["tokens"][0]),
            text(&near["tokens"][1]),
        ));
    }
    lines
}

fn outcome(document: &Value, trees: &[Vec<String>]) -> Vec<String> {
    let mut lines = vec![format!(
        "{} runs of each prompt: {} distinct output{} at most",
        document["runs"],
        document["distinct_outputs"],
        if document["distinct_outputs"] == 1 { "" } else { "s" },
    )];
    let fork = &document["first_divergence"];
    if fork.is_object() {
        lines.push(format!(
            "prompt {}: runs part after {} {}s, where the gap was {}",
            fork["prompt"],
            fork["position"],
            document["unit"].as_str().unwrap_or("token"),
            number(&fork["gap"]),
        ));
        for way in list(&fork["ways"]) {
            let next = way["text"].as_str().map_or("(end)".into(), |next| format!("{next:?}"));
            let [low, high] = [0, 1].map(|end| number(&way["share_interval_95"][end]));
            let share = number(&way["share"]);
            lines.push(format!("  {:>4} × {next}: {share} (95 %: {low} to {high})", way["count"]));
        }
    }
    for (prompt, tree) in trees.iter().enumerate().filter(|(_, tree)| !tree.is_empty()) {
        lines.push(format!("prompt {prompt}:"));
        lines.extend(tree.iter().map(|line| format!("  {line}")));
    }
    lines
}
