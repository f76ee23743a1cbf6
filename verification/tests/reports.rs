//! The report: keys that scripts rely on, XML that parses, text that cannot become markup.

use draftproof_verification::{
    Report,
    goodness::{Counts, Fit},
    mutants::MutantResult,
    plan::Level,
    report::{Check, Method},
};
use serde_json::Value;

const NASTY: &str = "a<script>alert('1')</script> & \"b\" \u{1}";

fn fit(name: &str, counts: &[u64], impossible: u64) -> Check {
    let p = [0.1, 0.2, 0.3, 0.4];
    let counts = Counts { cells: counts.to_vec(), impossible };
    let fit = Fit::new(&p, &counts, 1e-9);
    Check::fit(name.to_owned(), Level::Toy, &p, &counts.cells, &fit)
}

fn mutant(name: &str, caught_by: Option<&str>) -> MutantResult {
    MutantResult {
        name: name.to_owned(),
        caught_by: caught_by.map(str::to_owned),
        samples: caught_by.map(|_| 120),
        power: Some(0.999),
        needed_samples: Some(100),
        tv: Some(0.1),
        paths: Some(12),
        seam: "verifier".to_owned(),
        seen: NASTY.to_owned(),
        scene: "rejection/model".to_owned(),
    }
}

fn report(bad: bool) -> Report {
    let exact = |name: &str, distance| {
        let note = NASTY.to_owned();
        Check::exact(name.to_owned(), Level::Exact, Method::Enumeration, distance, 99, note)
    };
    let mut report = Report::default();
    report.subject.pair = Some(NASTY.to_owned());
    report.checks = vec![
        exact("exact/all", 0.0),
        fit("toy/right", &[1000, 2010, 2990, 4000], 0),
        Check::martingale("model/acceptance".to_owned(), Level::Model, 1.5, 500),
    ];
    report.mutants = vec![mutant("caught one", Some("enumeration"))];
    if bad {
        report.checks.push(exact(NASTY, 0.25));
        report.checks.push(fit("toy/wrong", &[2000, 2000, 3000, 3000], 0));
        report.checks.push(fit("toy/impossible", &[1000, 2010, 2990, 4000], 1));
        report.mutants.push(mutant(NASTY, None));
    }
    report.judge();
    report
}

#[test]
fn verdicts() {
    let good = report(false);
    assert!(good.passed && good.checks.iter().all(|check| check.passed), "{}", good.table(100));
    let bad = report(true);
    assert!(!bad.passed);
    let failed: Vec<&str> =
        bad.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
    assert_eq!(failed, [NASTY, "toy/impossible", "toy/wrong"]);
    // A survivor alone fails the report too.
    let mut survivor = report(false);
    survivor.mutants.push(mutant("alive", None));
    survivor.judge();
    assert!(!survivor.passed);
}

#[test]
fn json_keys() {
    let json: Value = serde_json::from_str(&report(true).json()).expect("JSON");
    assert_eq!(json["passed"], Value::Bool(false));
    for key in [
        "name",
        "level",
        "statistic",
        "p_value",
        "threshold",
        "samples",
        "false_alarm",
        "detectable_tv",
        "tv_upper_bound",
        "confidence",
        "passed",
    ] {
        for check in json["checks"].as_array().expect("a list") {
            assert!(check.get(key).is_some(), "{key} is missing in {check}");
        }
    }
    for key in ["name", "caught_by", "samples", "power"] {
        for mutant in json["mutants"].as_array().expect("a list") {
            assert!(mutant.get(key).is_some(), "{key} is missing in {mutant}");
        }
    }
    let checks = json["checks"].as_array().expect("a list");
    let sampled = checks.iter().find(|check| check["name"] == "toy/right").expect("it");
    assert!(sampled["detectable_tv"].as_f64().is_some_and(|tv| tv > 0.0 && tv < 0.2));
    assert!(sampled["tv_upper_bound"].as_f64().is_some_and(|tv| tv > 0.0 && tv < 0.2));
    let exact = checks.iter().find(|check| check["name"] == "exact/all").expect("it");
    assert_eq!((&exact["p_value"], &exact["level"]), (&Value::Null, &Value::from("exact")));
}

#[test]
fn files_are_written_and_read_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new").join("report");
    let report = report(true);
    report.write(&path).expect("written");
    let found = Report::read(&path).expect("read");
    // Floats may come back one unit in the last place off.
    let gist = |report: &Report| {
        let checks = report.checks.iter();
        let checks: Vec<String> = checks
            .map(|c| format!("{} {} {:.9e} {:?}", c.name, c.passed, c.statistic, c.cells))
            .collect();
        (checks, report.mutants.len(), report.subject.clone(), report.family)
    };
    assert_eq!(gist(&found), gist(&report));
    let merged = Report::merge(vec![found]).expect("one shard is the whole");
    assert_eq!(gist(&merged), gist(&report));
    for name in ["report.json", "junit.xml", "report.html"] {
        assert!(path.join(name).is_file(), "{name}");
    }
    let missing = Report::read(&folder.path().join("none")).expect_err("nothing there");
    assert!(missing.to_string().contains("report.json"));
}

/// A reader of XML that knows elements, attributes and the five entities: enough to see that every
/// element is closed where it should be and nothing is left unescaped. Returns the element names in
/// order.
fn elements(xml: &str) -> Vec<String> {
    let (mut names, mut open, mut rest) = (Vec::new(), Vec::new(), xml);
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start]);
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('?') || tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed out of order");
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        while !attributes.trim().is_empty() {
            let (key, value) = attributes.trim_start().split_once("=\"").expect("key=\"value\"");
            assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{key}");
            let (value, more) = value.split_once('"').expect("a closing quote");
            check_text(value);
            attributes = more;
        }
        names.push(name.to_owned());
        if !closed && !["meta", "br"].contains(&name) {
            open.push(name.to_owned());
        }
    }
    check_text(rest);
    assert!(open.is_empty(), "left open: {open:?}");
    names
}

fn check_text(text: &str) {
    for (at, _) in text.match_indices('&') {
        let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(entities.iter().any(|e| text[at..].starts_with(e)), "unescaped: {text}");
    }
    assert!(!text.contains(['<', '\u{1}']), "{text}");
}

#[test]
fn junit_is_well_formed() {
    for bad in [false, true] {
        let report = report(bad);
        let xml = report.junit();
        let names = elements(&xml);
        let count = |name: &str| names.iter().filter(|found| *found == name).count();
        assert_eq!(count("testcase"), report.checks.len() + report.mutants.len());
        assert_eq!(count("failure"), if bad { 4 } else { 0 });
        assert!(xml.contains(&format!("failures=\"{}\">", if bad { 4 } else { 0 })));
    }
}

#[test]
fn html_is_escaped_and_whole() {
    let report = report(true);
    let html = report.html();
    let without_style = {
        let (head, rest) = html.split_once("<style>").expect("a style");
        let (_, tail) = rest.split_once("</style>").expect("its end");
        format!("{head}{tail}")
    };
    let names = elements(&without_style);
    assert!(!names.iter().any(|name| name == "script"), "text became markup");
    assert!(names.iter().filter(|name| *name == "svg").count() >= 3);
    assert!(!html.contains("http://") && !html.contains("https://"), "the page loads something");
    for needed in ["FAILED", "confidence", "would have seen", "survivor", "a&lt;script&gt;"] {
        assert!(html.contains(needed), "{needed}");
    }
}

#[test]
fn the_table_fits_and_says_all() {
    let table = report(true).table(100);
    for needed in
        ["FAILED", "ALIVE", "Claimed", "Certified", "would have seen", "Negative controls"]
    {
        assert!(table.contains(needed), "{needed}");
    }
    let rows = table.lines().take_while(|line| !line.is_empty());
    assert!(rows.map(|line| line.chars().count()).max() <= Some(104));
}
