//! JUnit XML, as CI servers read it.

use std::fmt::Write;

use super::{Report, table::number};

/// Text as XML and HTML take it, in content and in attributes; characters that XML 1.0 does not
/// know are replaced.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(c),
            c if c < ' ' || c == '\u{fffe}' || c == '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

pub(super) fn write(report: &Report) -> String {
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let alive = report.mutants.iter().filter(|mutant| !mutant.caught()).count();
    let (checks, mutants) = (report.checks.len(), report.mutants.len());
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let mut line = |text: String| {
        let _ = writeln!(xml, "{text}");
    };
    line(format!(
        "<testsuites name=\"draftproof verify\" tests=\"{}\" failures=\"{}\">",
        checks + mutants,
        failed + alive
    ));
    line(format!("  <testsuite name=\"checks\" tests=\"{checks}\" failures=\"{failed}\">"));
    for check in &report.checks {
        let (class, name) = (escape(check.level.name()), escape(&check.name));
        let case = format!("    <testcase classname=\"{class}\" name=\"{name}\"");
        if check.passed {
            line(format!("{case}/>"));
            continue;
        }
        let message = escape(&format!(
            "statistic {} exceeds {}; {} samples, {} impossible outcomes",
            number(check.statistic),
            number(check.threshold),
            check.samples,
            check.impossible
        ));
        line(format!(
            "{case}><failure message=\"{message}\">{}</failure></testcase>",
            escape(&check.note)
        ));
    }
    line("  </testsuite>".to_owned());
    line(format!("  <testsuite name=\"mutants\" tests=\"{mutants}\" failures=\"{alive}\">"));
    for mutant in &report.mutants {
        let case = format!("    <testcase classname=\"mutant\" name=\"{}\"", escape(&mutant.name));
        if mutant.caught() {
            line(format!("{case}/>"));
        } else {
            line(format!(
                "{case}><failure message=\"no law check caught it\">predicted power {}</failure></testcase>",
                mutant.power.map_or_else(|| "unknown".to_owned(), number)
            ));
        }
    }
    line("  </testsuite>\n</testsuites>".to_owned());
    xml
}
