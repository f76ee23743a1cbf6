//! The transforms against Hugging Face transformers' logits processors, on their recorded outputs.
//!
//! What is compared: kept sets with `==`, probabilities to 1e-6 (the recordings are f32).
//!
//! Where our rules differ on purpose, and how that shows here:
//! - **Ties at the border.** transformers keeps the whole group tied with the last kept token (top-k,
//!   typical), or what its sort happens to leave of it (top-p). We keep the lowest ids. So the sets are
//!   equal wherever no tie crosses the border; where one does, our set must be theirs outside the
//!   group, and the lowest ids of the group within. `top_k_ties: keep` is their top-k, everywhere.
//! - **Weights are integers.** A token below 2^-61 of the total has no weight: theirs counts as kept
//!   only if it has one before any filter. (The row `large` spans 300.)
//! - **top-p 1.** There, tokens go whose cumulative f32 mass is 0; here nothing does.
//! - `min_tokens_to_keep`, epsilon, eta and top-h are no part of our contract: those cases are counted
//!   and left out. (Epsilon at the end of one pipeline is applied here, to compare what comes before.)

use std::{collections::BTreeMap, fs, path::Path};

use draftproof_decode::{
    Decimal, Dist, Sampler, Settings, Token,
    sampler::{Order, Prefix, TopKTies},
};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

const TOLERANCE: f64 = 1e-6;

type Row = Vec<Option<f32>>;

#[derive(Deserialize)]
struct Golden {
    rows: BTreeMap<String, Row>,
    cases: Vec<Case>,
    repetition: Vec<Repetition>,
    no_repeat_ngram: Vec<NoRepeat>,
    openai_penalties: Vec<Penalties>,
    pipelines: Vec<Pipeline>,
}

#[derive(Deserialize)]
struct Case {
    row: String,
    op: String,
    param: serde_json::Number,
    kept: Option<Vec<u32>>,
    scores: Option<Row>,
    min_tokens_to_keep: Option<usize>,
}

#[derive(Deserialize)]
struct Repetition {
    row: String,
    context: Vec<u32>,
    penalty: f64,
    prompt_ignore_length: Option<usize>,
    scores: Row,
}

#[derive(Deserialize)]
struct NoRepeat {
    row: String,
    n: usize,
    context: Vec<u32>,
    banned: Vec<u32>,
}

#[derive(Deserialize)]
struct Penalties {
    row: String,
    generated: Vec<u32>,
    presence: f64,
    frequency: f64,
    scores: Row,
}

#[derive(Deserialize)]
struct Pipeline {
    row: String,
    context: Vec<u32>,
    ops: String,
    kept: Vec<u32>,
    probs: Vec<f64>,
}

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&file(name)).expect(name)
}

fn logits(row: &Row) -> Vec<f32> {
    row.iter().map(|z| z.unwrap_or(f32::NEG_INFINITY)).collect()
}

fn law(settings: Settings, context: &[u32], prompt_len: usize, row: &[f32]) -> Dist {
    let sampler = Sampler::new(settings, row.len()).expect("settings in range");
    let tokens: Vec<Token> = context.iter().copied().map(Token).collect();
    sampler.law(Prefix { tokens: &tokens, prompt_len }, row).expect("a law")
}

fn support(law: &Dist) -> Vec<u32> {
    law.support().map(|(token, _)| token.0).collect()
}

fn decimal(number: &str) -> Decimal {
    number.parse().expect("a decimal")
}

/// The law's probabilities are the softmax of `scores`.
fn assert_softmax(law: &Dist, scores: &Row, name: &str) {
    let scores: Vec<f64> = logits(scores).into_iter().map(f64::from).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|z| (z - max).exp()).sum();
    for (id, z) in scores.iter().enumerate() {
        let (found, expected) = (law.probability(Token::at(id)), (z - max).exp() / sum);
        assert!((found - expected).abs() <= TOLERANCE, "{name}, token {id}: {found}, {expected}");
    }
}

/// The settings of one filter, by its name there.
fn filter(op: &str, param: &str) -> Option<Settings> {
    let mut settings = Settings::default();
    match op {
        "temperature" => settings.temperature = param.parse().expect("a number"),
        "top_k" => settings.top_k = param.parse().expect("a number"),
        "top_p" => settings.top_p = decimal(param),
        "min_p" => settings.min_p = decimal(param),
        "typical_p" => settings.typical = decimal(param),
        "epsilon_cutoff" | "eta_cutoff" | "top_h" => return None,
        other => panic!("no filter is called {other}"),
    }
    Some(settings)
}

/// The tokens that rank with the last one kept: those with its logit, or, for typical, with its
/// distance; f32 rounding may make equals of what is not, never the other way round.
fn same_rank(op: &str, row: &[f32], a: u32, b: u32) -> bool {
    if op != "typical_p" {
        return row[a as usize] == row[b as usize];
    }
    let plain = law(Settings::default(), &[], 0, row);
    let entropy = plain.entropy_bits() * std::f64::consts::LN_2;
    let distance = |id: u32| (-plain.probability(Token(id)).ln() - entropy).abs();
    (distance(a) - distance(b)).abs() < 1e-6
}

/// How a set of ours relates to the recorded one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    Equal,
    /// Equal but for a group of ties at the border, of which ours has the lowest ids.
    LowestOfTies,
}

/// Panics if the sets differ by anything but the tie rule.
fn relation(op: &str, row: &[f32], ours: &[u32], theirs: &[u32], name: &str) -> Relation {
    if ours == theirs {
        return Relation::Equal;
    }
    let differing: Vec<u32> = ours
        .iter()
        .filter(|id| !theirs.contains(id))
        .chain(theirs.iter().filter(|id| !ours.contains(id)))
        .copied()
        .collect();
    let all: Vec<u32> = (0..row.len() as u32).collect();
    let group: Vec<u32> =
        all.into_iter().filter(|&id| same_rank(op, row, id, differing[0])).collect();
    assert!(
        differing.iter().all(|id| group.contains(id)),
        "{name}: {differing:?} is more than one group of ties: {group:?}"
    );
    let kept: Vec<u32> = group.iter().copied().filter(|id| ours.contains(id)).collect();
    assert_eq!(kept, group[..kept.len()], "{name}: not the lowest ids of the group");
    assert!(kept.len() < group.len(), "{name}: a group kept whole is no border");
    Relation::LowestOfTies
}

#[test]
fn single_filters() {
    let golden: Golden = json("warpers.json");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut pinned = Vec::new();
    let mut count = |what: String| *counts.entry(what).or_default() += 1;
    for case in &golden.cases {
        let Case { op, row, .. } = case;
        let param = case.param.to_string();
        let name = format!("{op} {param} on {row}");
        let Some(settings) = filter(op, &param) else {
            count(format!("{op} (not ours)"));
            continue;
        };
        if case.min_tokens_to_keep.is_some() {
            count("min_tokens_to_keep (not ours)".to_owned());
            continue;
        }
        let row = logits(&golden.rows[row]);
        let ours = law(settings.clone(), &[], 0, &row);
        if let Some(scores) = &case.scores {
            assert_softmax(&ours, scores, &name);
            count(format!("{op}: probabilities"));
            continue;
        }
        let plain = law(Settings::default(), &[], 0, &row);
        let mut theirs = case.kept.clone().expect("scores or a set");
        theirs.retain(|&id| plain.weight(Token(id)) > 0);
        if op == "top_k" {
            let keep = Settings { top_k_ties: TopKTies::Keep, ..settings };
            assert_eq!(support(&law(keep, &[], 0, &row)), theirs, "{name}, ties kept");
            count("top_k keep: equal".to_owned());
        }
        if op == "top_p" && param == "1.0" {
            assert_eq!(ours, plain, "{name}");
            let lost = plain.support().filter(|(token, _)| !theirs.contains(&token.0));
            let lost: u64 = lost.map(|(_, weight)| weight).sum();
            assert!((lost as f64) < 1e-7 * plain.total() as f64, "{name}");
            let what = if support(&ours) == theirs { "equal" } else { "all kept" };
            count(format!("top_p 1: {what}"));
            continue;
        }
        match relation(op, &row, &support(&ours), &theirs, &name) {
            Relation::Equal => count(format!("{op}: equal")),
            Relation::LowestOfTies => {
                pinned.push(format!("{name}: {} of {}", ours.support_len(), theirs.len()));
                count(format!("{op}: lowest ids of a tie"));
            }
        }
    }
    println!("{counts:#?}\n{}", pinned.join("\n"));
    assert_eq!(pinned, TIES);
    let left_out: usize =
        counts.iter().filter(|(what, _)| what.ends_with("(not ours)")).map(|(_, n)| n).sum();
    assert_eq!((golden.cases.len(), left_out), (408, 129));
}

/// Every case in which a tie crosses the border: the number that we keep and that transformers keeps.
const TIES: [&str; 37] = [
    "top_k 1 on ties_half: 1 of 2",
    "top_k 3 on ties_half: 3 of 6",
    "top_k 5 on ties_half: 5 of 6",
    "top_k 10 on ties_half: 10 of 13",
    "top_k 40 on ties_half: 40 of 43",
    "top_p 0.3 on ties_half: 3 of 3",
    "top_p 0.5 on ties_half: 5 of 5",
    "top_p 0.9 on ties_half: 23 of 23",
    "top_p 0.95 on ties_half: 29 of 29",
    "typical_p 0.2 on ties_half: 4 of 7",
    "typical_p 0.5 on ties_half: 10 of 11",
    "typical_p 0.9 on ties_half: 23 of 24",
    "typical_p 0.95 on ties_half: 29 of 30",
    "top_k 3 on ties_plateau: 3 of 10",
    "top_k 5 on ties_plateau: 5 of 10",
    "top_k 40 on ties_plateau: 40 of 64",
    "top_p 0.5 on ties_plateau: 4 of 4",
    "top_p 0.9 on ties_plateau: 26 of 26",
    "top_p 0.95 on ties_plateau: 45 of 45",
    "typical_p 0.1 on ties_plateau: 2 of 9",
    "typical_p 0.2 on ties_plateau: 4 of 9",
    "typical_p 0.9 on ties_plateau: 26 of 64",
    "typical_p 0.95 on ties_plateau: 45 of 64",
    "top_k 1 on uniform: 1 of 64",
    "top_k 3 on uniform: 3 of 64",
    "top_k 5 on uniform: 5 of 64",
    "top_k 10 on uniform: 10 of 64",
    "top_k 40 on uniform: 40 of 64",
    "top_p 0.05 on uniform: 4 of 4",
    "top_p 0.3 on uniform: 20 of 20",
    "top_p 0.9 on uniform: 58 of 58",
    "top_p 0.95 on uniform: 61 of 61",
    "typical_p 0.1 on uniform: 7 of 64",
    "typical_p 0.2 on uniform: 13 of 64",
    "typical_p 0.5 on uniform: 32 of 64",
    "typical_p 0.9 on uniform: 58 of 64",
    "typical_p 0.95 on uniform: 61 of 64",
];

/// As [`TIES`], of the pipelines.
const PIPELINE_TIES: [&str; 7] = [
    "temp1.5,top_k40,top_p0.95,min_p0.02 on ties_half: 34 of 34",
    "rep1.1,ngram2,temp0.9,typical0.9,epsilon0.003 on ties_half: 20 of 22",
    "temp0.7,top_k20,top_p0.9 on ties_plateau: 9 of 9",
    "temp1.5,top_k40,top_p0.95,min_p0.02 on ties_plateau: 57 of 57",
    "temp0.7,top_k20,top_p0.9 on uniform: 58 of 58",
    "temp1.5,top_k40,top_p0.95,min_p0.02 on uniform: 61 of 61",
    "rep1.1,ngram2,temp0.9,typical0.9,epsilon0.003 on uniform: 56 of 62",
];

#[test]
fn penalties_and_bans() {
    let golden: Golden = json("warpers.json");
    for case in &golden.repetition {
        // Without the first tokens: the prompt is not looked at there; here it always is.
        let ignored = case.prompt_ignore_length.unwrap_or(0);
        let settings = Settings { repetition_penalty: case.penalty, ..Settings::default() };
        let (context, row) = (&case.context[ignored..], logits(&golden.rows[&case.row]));
        for prompt_len in [0, context.len() / 2, context.len()] {
            let law = law(settings.clone(), context, prompt_len, &row);
            assert_softmax(&law, &case.scores, &format!("repetition {}", case.penalty));
        }
    }
    for case in &golden.openai_penalties {
        let settings = Settings {
            presence_penalty: case.presence,
            frequency_penalty: case.frequency,
            ..Settings::default()
        };
        let row = logits(&golden.rows[&case.row]);
        // A prompt of the same tokens changes nothing.
        for context in [case.generated.clone(), case.generated.repeat(2)] {
            let prompt_len = context.len() - case.generated.len();
            let law = law(settings.clone(), &context, prompt_len, &row);
            assert_softmax(&law, &case.scores, "presence and frequency");
        }
    }
    for case in &golden.no_repeat_ngram {
        let row = logits(&golden.rows[&case.row]);
        for prompt_len in [0, case.context.len()] {
            let settings = Settings { no_repeat_ngram: case.n, ..Settings::default() };
            let kept = support(&law(settings, &case.context, prompt_len, &row));
            let banned: Vec<u32> = (0..row.len() as u32).filter(|id| !kept.contains(id)).collect();
            assert_eq!(banned, case.banned, "{}-grams of {:?}", case.n, case.context);
        }
    }
    let found =
        (golden.repetition.len(), golden.openai_penalties.len(), golden.no_repeat_ngram.len());
    println!("repetition, presence and frequency, no-repeat-ngram: {found:?} cases equal");
    assert_eq!(found, (95, 40, 24));
}

#[test]
fn pipelines() {
    let golden: Golden = json("warpers.json");
    let mut pinned = Vec::new();
    for case in &golden.pipelines {
        let name = format!("{} on {}", case.ops, case.row);
        let mut settings = Settings { order: Order::HF, ..Settings::default() };
        let mut epsilon = None;
        for op in case.ops.split(',') {
            let digit = op.find(|c: char| c.is_ascii_digit()).expect("a parameter");
            let (op, param) = op.split_at(digit);
            match op {
                "temp" => settings.temperature = param.parse().expect("a number"),
                "rep" => settings.repetition_penalty = param.parse().expect("a number"),
                "ngram" => settings.no_repeat_ngram = param.parse().expect("a number"),
                "top_k" => settings.top_k = param.parse().expect("a number"),
                "top_p" => settings.top_p = decimal(param),
                "min_p" => settings.min_p = decimal(param),
                "typical" => settings.typical = decimal(param),
                "epsilon" => epsilon = Some(param.parse::<f64>().expect("a number")),
                other => panic!("no step is called {other}"),
            }
        }
        settings.top_k_ties = TopKTies::Keep;
        let row = logits(&golden.rows[&case.row]);
        let mut ours = law(settings, &case.context, 3, &row);
        if let Some(epsilon) = epsilon {
            let mut weights = vec![0; row.len()];
            for (token, weight) in ours.support() {
                if ours.probability(token) >= epsilon {
                    weights[token.index()] = weight;
                }
            }
            ours = Dist::dense(weights).unwrap_or(ours);
        }
        let mut found: Vec<f64> =
            (0..row.len()).map(|id| ours.probability(Token::at(id))).collect();
        let mut expected = case.probs.clone();
        // Tokens of the context were penalised: they tie with nothing.
        let mut ranks = row.clone();
        case.context.iter().for_each(|&id| ranks[id as usize] = f32::NAN);
        if relation("logit", &ranks, &support(&ours), &case.kept, &name) != Relation::Equal {
            pinned.push(format!("{name}: {} of {}", ours.support_len(), case.kept.len()));
            if ours.support_len() != case.kept.len() {
                continue;
            }
            // The same probabilities, on other tokens of the group.
            found.sort_by(f64::total_cmp);
            expected.sort_by(f64::total_cmp);
        }
        for (id, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= TOLERANCE, "{name}, token {id}: {found}");
        }
    }
    println!("{} pipelines; ties at the border:\n{}", golden.pipelines.len(), pinned.join("\n"));
    assert_eq!(pinned, PIPELINE_TIES);
    assert_eq!(golden.pipelines.len(), 36);
}

#[derive(Deserialize)]
struct Wide {
    vocab: usize,
    cases: Vec<WideCase>,
    stats: Vec<WideStats>,
}

#[derive(Deserialize)]
struct WideCase {
    row: usize,
    op: String,
    param: serde_json::Number,
    count: usize,
    tensor: Option<String>,
    sha256: String,
}

#[derive(Deserialize)]
struct WideStats {
    row: usize,
    argmax: u32,
    entropy_f64: f64,
    top_prob_f64: f64,
}

/// The bytes of a tensor of a safetensors file.
fn tensor<'a>(bytes: &'a [u8], name: &str) -> &'a [u8] {
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
    let (header, data) = rest.split_at(length);
    let header: serde_json::Value = serde_json::from_slice(header).expect("a header");
    let offset = |i: usize| header[name]["data_offsets"][i].as_u64().expect(name) as usize;
    &data[offset(0)..offset(1)]
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rows of 151 936 logits: every set is equal, those of top-k under both tie policies as they should
/// be, whole or by its SHA-256.
#[test]
fn rows_of_real_size() {
    let golden: Wide = json("warpers_151936.json");
    let file = file("warpers_151936.safetensors");
    let rows: Vec<f32> = tensor(&file, "rows")
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes(word.try_into().expect("4 bytes")))
        .collect();
    let rows: Vec<&[f32]> = rows.chunks_exact(golden.vocab).collect();
    for stats in &golden.stats {
        let law = law(Settings::default(), &[], 0, rows[stats.row]);
        let top = law.probability(Token(stats.argmax));
        assert!((top - stats.top_prob_f64).abs() < 1e-12, "row {}", stats.row);
        let entropy = law.entropy_bits() * std::f64::consts::LN_2;
        assert!((entropy - stats.entropy_f64).abs() < 1e-9, "row {}", stats.row);
    }
    let (mut equal, mut left_out, mut by_policy) = (0, 0, 0);
    for case in &golden.cases {
        let param = case.param.to_string();
        let name = format!("{} {param} on row {}", case.op, case.row);
        let Some(mut settings) = filter(&case.op, &param) else {
            left_out += 1;
            continue;
        };
        let row = rows[case.row];
        if case.op == "top_k" {
            let exact = law(settings.clone(), &[], 0, row);
            assert_eq!(exact.support_len(), settings.top_k, "{name}");
            settings.top_k_ties = TopKTies::Keep;
            by_policy += usize::from(case.count != settings.top_k);
        }
        let kept = support(&law(settings, &[], 0, row));
        assert_eq!(kept.len(), case.count, "{name}");
        let bytes: Vec<u8> = kept.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), case.sha256, "{name}");
        if let Some(name) = &case.tensor {
            assert_eq!(bytes, tensor(&file, name), "{name}");
        }
        equal += 1;
    }
    println!("{equal} sets equal, {by_policy} of them with a tie at the k-th; {left_out} not ours");
    assert_eq!((equal, by_policy, left_out), (40, 2, 8));
}
