//! The level `model` on tables that stand in for a real pair: right pairs pass, wrong ones do not,
//! with and without the cache of rows; and samples of other engines are audited.

use std::collections::BTreeMap;

use draftproof_decode::{
    LanguageModel, ModelError, Sampler, Settings, TableModel, Token,
    draft::length::CostModel,
    lm::{Pass, Rows, SequenceId},
    noise::{ChaCha, Lane, Noise, RoundNoise, Seed},
};
use draftproof_verification::{
    Error, Pair, Plan, Progress, Report,
    audit::{Samples, audit},
    model::{CachedModel, FreshRows, Place, Question, TextLaw},
    mutants::{MUTANTS, Plug},
    plan::{DraftKind, GridCell, GridLength, Level, Models, Shard, Task},
    report::Check,
    run,
    scene::Rule,
};

const VOCAB: usize = 32;

/// A table with a few likely tokens and a long tail after any two tokens.
fn table(seed: u64) -> TableModel {
    TableModel::new(VOCAB, 64, 2, |last| {
        let mut state = last.iter().fold(seed, |hash, token| {
            (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (0..VOCAB)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let u = (state >> 40) as f32 / (1u64 << 24) as f32;
                5.0 * u * u * u
            })
            .collect()
    })
}

/// Half target, half something else: a useful draft.
fn draft() -> TableModel {
    let (target, other) = (table(1), table(2));
    TableModel::new(VOCAB, 64, 2, |last| {
        let both = target.logits(last).iter().zip(other.logits(last));
        both.map(|(a, b)| 0.8 * a + 0.2 * b).collect()
    })
}

fn prompt() -> Vec<Token> {
    [3, 1, 4, 1, 5, 3, 1].map(Token).to_vec()
}

fn pair<'a>(target: &'a mut dyn LanguageModel, draft: &'a mut dyn LanguageModel) -> Pair<'a> {
    Pair {
        name: "two tables".to_owned(),
        target,
        draft: Some(draft),
        prompt: prompt(),
        eos: vec![Token(0)],
        human: Vec::new(),
        costs: CostModel { draft_step: 0.1, row: 0.2 },
        row_invariant: true,
        cache_bytes: 1 << 26,
    }
}

fn cell(rule: Rule, draft: DraftKind, length: GridLength, cached: bool) -> GridCell {
    let (temperature, filter) = (1.0, "top-p=0.9");
    GridCell { temperature, filter, rule, draft, length, samples: 20_000, cells: 64, cached }
}

/// The checks of some cells, judged.
fn judged(pair: &mut Pair<'_>, cells: &[GridCell]) -> Report {
    let mut report = Report::default();
    let mut rows = FreshRows::default();
    for cell in cells {
        report.checks.extend(pair.check_cell(cell, 1, &mut rows, &mut ()).expect("runs"));
    }
    report.judge();
    report
}

fn joint_law(report: &Report) -> &Check {
    report.checks.iter().find(|check| check.name.ends_with("joint law")).expect("a joint law")
}

#[test]
fn quick_passes_and_sees_a_hundredth() {
    let (mut target, mut draft) = (table(1), draft());
    let plan = Plan::default();
    let start = std::time::Instant::now();
    let report = run(&plan, Some(&mut pair(&mut target, &mut draft)), &mut ()).expect("runs");
    println!("{}\n{:?}", report.table(120), start.elapsed());
    assert!(report.passed);
    assert_eq!(report.family, report.checks.iter().filter(|c| c.gate_p_value.is_some()).count());
    let model = report.checks.iter().filter(|check| check.level == Level::Model);
    let sharpest = model.filter_map(|check| check.detectable_tv).fold(1.0, f64::min);
    assert!(sharpest <= 0.01, "{sharpest}");
    let places: Vec<&Check> = report.checks.iter().filter(|c| !c.places.is_empty()).collect();
    assert!(places.iter().any(|check| check.places.len() >= 4), "no long block was judged");
    assert_eq!((target.open_sequences(), draft.open_sequences()), (0, 0));
}

/// Without a draft model prompt lookup drafts everywhere, and no cell is tested twice.
#[test]
fn a_target_alone_is_enough() {
    let (mut target, mut unused) = (table(1), draft());
    let mut alone = Pair { draft: None, ..pair(&mut target, &mut unused) };
    let plan = Plan { samples: Some(1_000), ..Plan::default() };
    let report = run(&plan, Some(&mut alone), &mut ()).expect("runs");
    assert!(report.passed, "{}", report.table(120));
    let names: Vec<&str> = report.checks.iter().map(|check| check.name.as_str()).collect();
    let model = names.iter().filter(|name| name.starts_with("model/T"));
    assert!(model.clone().count() > 15 && model.clone().all(|name| name.contains("/ngram/")));
    let mut cell = cell(Rule::Block, DraftKind::Model, GridLength::Fixed(1), true);
    cell.samples = 1_000;
    let refused = alone.check_cell(&cell, 1, &mut FreshRows::default(), &mut ());
    assert!(matches!(refused, Err(Error::Plan(_))));
}

/// The grid has every value of every dimension, and no cell twice.
#[test]
fn the_grid_is_whole() {
    let names = |level| {
        let tasks = Plan { level, ..Plan::default() }.tasks(Models::Pair);
        tasks.iter().map(Task::name).collect::<Vec<_>>()
    };
    for level in [Level::Quick, Level::Exact, Level::Toy, Level::Model, Level::All] {
        let all = names(level);
        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len(), "{level}: a task occurs twice");
    }
    let quick = names(Level::Quick).join("\n");
    for value in ["T=0.7", "T=1", "T=1.3", "none", "top-k", "top-p", "min-p", "penalties"] {
        assert!(quick.contains(value), "{value} is not in the quick grid");
    }
    for value in ["rejection", "block", "coupled", "model", "ngram", "len=1", "len=4", "len=auto"] {
        assert!(quick.contains(&format!("/{value}")), "{value} is not in the quick grid");
    }
    assert_eq!(names(Level::Model).len(), 1 + 3 * 5 * 3 * 2 * 3 + 6 + 1);
}

/// Shards are disjoint, and together they are the whole: the merged report is the report of one
/// run.
#[test]
fn shards_add_up() {
    let plan = Plan { level: Level::Toy, samples: Some(3_000), ..Plan::default() };
    let whole = run(&plan, None, &mut ()).expect("runs");
    let of = |index| {
        let plan = Plan { shard: Shard { index, count: 3 }, ..plan.clone() };
        run(&plan, None, &mut ()).expect("runs")
    };
    let shards: Vec<Report> = [1, 2, 3].map(of).into();
    assert!(shards.iter().all(|shard| shard.family == whole.family && shard.passed));
    let merged = Report::merge(shards.clone()).expect("one run");
    assert_eq!(merged.checks, whole.checks);
    assert!(merged.passed);

    let missing = Report::merge(shards[..2].to_vec());
    assert!(matches!(missing, Err(Error::Merge(_))));
    let twice = Report::merge(vec![shards[0].clone(), shards[0].clone(), shards[1].clone()]);
    assert!(matches!(twice, Err(Error::Merge(_))));
    let mut foreign = shards.clone();
    foreign[2].subject.seed = 9;
    assert!(matches!(Report::merge(foreign), Err(Error::Merge(_))));
}

/// Caches that go wrong when they are cut are seen through the cache of rows, and without it.
#[test]
fn cache_bugs_show_through_the_cache_of_rows() {
    let mut tried = 0;
    for mutant in MUTANTS {
        let Plug::Target(wrong) = mutant.plug else {
            continue;
        };
        for cached in [true, false] {
            let (mut target, mut draft) = (wrong(table(1)), draft());
            let mut pair = pair(target.as_mut(), &mut draft);
            let cell = cell(Rule::Rejection, DraftKind::Model, GridLength::Fixed(4), cached);
            let report = judged(&mut pair, &[cell]);
            let joint = joint_law(&report);
            println!("{}, cached {cached}: ln e {}", mutant.name, joint.statistic);
            assert!(!joint.passed, "{} survives, cached {cached}", mutant.name);
        }
        tried += 1;
    }
    assert_eq!(tried, 3);
}

/// A target whose rows are right alone and wrong in company: the cache hides it, and the run
/// without finds it.
#[test]
fn the_run_without_the_cache_sees_mixed_sequences() {
    let check = |cached| {
        let (mut target, mut draft) = (Mixing { table: table(1) }, draft());
        let mut pair = pair(&mut target, &mut draft);
        let cell = cell(Rule::Rejection, DraftKind::Model, GridLength::Fixed(4), cached);
        joint_law(&judged(&mut pair, &[cell])).passed
    };
    assert!(check(true) && !check(false));
}

/// Gives each sequence of a pass the rows of the next one, if they are as many.
#[derive(Debug)]
struct Mixing {
    table: TableModel,
}

impl LanguageModel for Mixing {
    fn vocab(&self) -> usize {
        self.table.vocab()
    }

    fn context(&self) -> usize {
        self.table.context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.table.open()
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        let rows = self.table.forward(batch)?;
        let of = |i: usize| {
            let next = &rows[(i + 1) % rows.len()];
            if next.len() == rows[i].len() { next.clone() } else { rows[i].clone() }
        };
        Ok((0..rows.len()).map(of).collect())
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.table.len(sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        self.table.truncate(sequence, len)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        self.table.fork(sequence)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.table.close(sequence);
    }
}

/// The cache of rows obeys the laws of a model, serves the very rows of the model, and computes
/// each once.
#[test]
fn cached_rows_are_the_models() {
    let mut inner = table(1);
    let reference = inner.clone();
    let mut model = CachedModel::new(&mut inner, 1 << 20);
    let text: Vec<Token> = (0..20u32).map(|i| Token(i * 7 % 32)).collect();
    let sequence = model.open().expect("opens");
    let pass = |tokens| Pass { sequence, tokens, rows: tokens.len() };
    let expected: Vec<&[f32]> = (1..=20).map(|len| reference.logits(&text[..len])).collect();
    for (cut, then) in [(0, 20), (5, 12), (0, 20), (12, 20)] {
        model.truncate(sequence, cut).expect("shorter");
        let rows = model.forward(&[pass(&text[cut..then])]).expect("rows").swap_remove(0);
        for i in 0..then - cut {
            assert_eq!(rows.row(i), expected[cut + i]);
        }
    }
    assert_eq!(model.counts(), (20, 20 + 7 + 20 + 8));
    let fork = model.fork(sequence).expect("forks");
    assert_eq!(model.len(fork).expect("open"), 20);
    model.close(sequence);
    assert!(model.len(sequence).is_err() && model.truncate(fork, 21).is_err());
    let nothing = model.forward(&[Pass { sequence: fork, tokens: &text[..1], rows: 2 }]);
    assert!(nothing.is_err() && model.len(fork).expect("open") == 20);
    drop(model);
    assert_eq!(inner.open_sequences(), 0);

    // Without room nothing is kept, and all is still right.
    let mut none = CachedModel::new(&mut inner, 0);
    let sequence = none.open().expect("opens");
    for _ in 0..2 {
        none.truncate(sequence, 0).expect("shorter");
        let pass = Pass { sequence, tokens: &text, rows: 20 };
        assert_eq!(none.forward(&[pass]).expect("rows")[0].row(19), expected[19]);
    }
    assert_eq!(none.counts().0, 40);
}

fn question<'a>(sampler: &'a Sampler, prompt: &'a [Token]) -> Question<'a> {
    Question { sampler, prompt, eos: &[Token(0)], length: 3 }
}

/// No mass is lost, and what must not occur is known.
#[test]
fn the_tree_accounts_for_all_mass() {
    let settings = Settings { top_k: 5, ..Settings::default() };
    let sampler = Sampler::new(settings, VOCAB).expect("settings");
    let prompt = prompt();
    let question = question(&sampler, &prompt);
    let mut target = table(1);
    for least in [0.2, 0.05, 0.01, 1e-9] {
        let law = TextLaw::walk(&question, &mut FreshRows::default(), &mut target, least);
        let law = law.expect("a law");
        let sum: f64 = law.cells().probabilities().iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert_eq!(law.pooled() > 0.0, least > 1e-9);
        // Every text of top-k tokens has a place, and no other.
        let mut inside = 0.0;
        let mut rows = FreshRows::default();
        for x in 0..VOCAB {
            let text = [Token::at(x)];
            let first = question.law(&mut rows, &mut target, &[]).expect("a law");
            let possible = first.weight(text[0]) > 0;
            let ended = text[0] == Token(0);
            match law.place(&text) {
                Place::Impossible => assert!(!possible || !ended),
                Place::Cell(_) => assert!(possible && ended),
                Place::Beyond { .. } => assert!(possible),
            }
            inside += if possible { 1.0 } else { 0.0 };
        }
        assert_eq!(inside, 5.0);
        assert_eq!(law.place(&[Token(0), Token(1)]), Place::Impossible);
    }
    assert_eq!(target.open_sequences(), 0);
}

/// Another engine: plain sampling from the contract, drawn here; and the same under other settings.
fn other_engine(settings: Settings, n: u64) -> Vec<Vec<Token>> {
    let sampler = Sampler::new(settings, VOCAB).expect("settings");
    let prompt = prompt();
    let question = question(&sampler, &prompt);
    let (mut target, mut rows) = (table(1), FreshRows::default());
    let noise: &mut dyn Noise = &mut ChaCha;
    (0..n)
        .map(|sequence| {
            let mut text = Vec::new();
            while !question.ends(&text) {
                let law = question.law(&mut rows, &mut target, &text).expect("a law");
                let seed = Seed { seed: 77, sequence };
                let round = RoundNoise { seed, round_start: text.len() as u64 };
                text.push(noise.draw(round.key(0, Lane::Bonus), &law));
            }
            text
        })
        .collect()
}

/// A made-up tokenizer in which several tokens print alike.
fn decode(tokens: &[Token]) -> String {
    tokens.iter().map(|token| ["a", "b", "ab", "ba", "é"][token.index() % 5]).collect()
}

#[test]
fn audits_tell_right_samples_from_wrong_ones() {
    let settings = Settings { top_p: "0.9".parse().expect("a decimal"), ..Settings::default() };
    let sampler = Sampler::new(settings.clone(), VOCAB).expect("settings");
    let prompt = prompt();
    let question = question(&sampler, &prompt);
    let mut target = table(1);
    let mut verdict = |samples: &[Vec<Token>]| {
        let tokens = Samples::Tokens(samples.to_vec());
        let shown = samples
            .iter()
            .map(|text| decode(&text[..text.len() - usize::from(text.last() == Some(&Token(0)))]));
        let text = Samples::Text(shown.collect());
        [tokens, text].map(|samples| {
            let report = audit("peer", &question, &mut target, &samples, Some(&decode));
            let report = report.expect("runs");
            let check = &report.checks[0];
            println!("{} cells, ln e {}", check.cells.unwrap_or(0), check.statistic);
            assert_eq!(check.samples, 20_000);
            (report.passed, check.impossible > 0)
        })
    };
    assert_eq!(verdict(&other_engine(settings.clone(), 20_000)), [(true, false), (true, false)]);
    // Without the filter impossible tokens come, which ids show at once and text by its shares.
    let unfiltered = Settings::default();
    assert_eq!(verdict(&other_engine(unfiltered, 20_000)), [(false, true), (false, false)]);
    let cooler = Settings { temperature: 0.8, ..settings };
    assert_eq!(verdict(&other_engine(cooler, 20_000)).map(|(passed, _)| passed), [false, false]);

    let short = Samples::Tokens(vec![vec![Token(5)]]);
    let refused = audit("peer", &question, &mut target, &short, None);
    assert!(matches!(refused, Err(Error::Sample { line: 1, .. })));
    let text = Samples::Text(vec!["a".to_owned()]);
    assert!(matches!(audit("peer", &question, &mut target, &text, None), Err(Error::Plan(_))));
}

#[test]
fn samples_are_read_or_refused() {
    let read = |text: &str| Samples::read(text.as_bytes());
    let tokens = read("{\"tokens\":[1,2]}\n\n{\"tokens\":[3],\"text\":\"x\",\"more\":1}\n");
    let expected = vec![vec![Token(1), Token(2)], vec![Token(3)]];
    assert_eq!(tokens.expect("samples"), Samples::Tokens(expected));
    let text = read("{\"text\":\"a\"}");
    assert_eq!(text.expect("samples"), Samples::Text(vec!["a".to_owned()]));
    for (wrong, line) in [
        ("", 0),
        ("{}", 1),
        ("{\"tokens\":[1]}\n{\"text\":\"a\"}", 2),
        ("{\"tokens\":[-1]}", 1),
        ("not json", 1),
    ] {
        match read(wrong) {
            Err(Error::Sample { line: found, .. }) => assert_eq!(found, line, "{wrong}"),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

/// Plans that could not fail are refused.
#[test]
fn empty_plans_are_refused() {
    let model = Plan { level: Level::Model, ..Plan::default() };
    assert!(matches!(run(&model, None, &mut ()), Err(Error::Plan(_))));
    let few = Plan { samples: Some(499), ..Plan::default() };
    assert!(matches!(run(&few, None, &mut ()), Err(Error::Plan(_))));
}

/// Progress hears of every task, sample counts and check.
#[test]
fn progress_is_told() {
    #[derive(Default)]
    struct Heard {
        tasks: usize,
        checks: usize,
        mutants: usize,
        samples: BTreeMap<u64, u64>,
    }
    impl Progress for Heard {
        fn begin(&mut self, _: &str, index: usize, total: usize) {
            assert!(index == self.tasks && index < total);
            self.tasks += 1;
        }

        fn advance(&mut self, done: u64, all: u64) {
            *self.samples.entry(all).or_default() += done;
        }

        fn check(&mut self, _: &Check) {
            self.checks += 1;
        }

        fn mutant(&mut self, _: &draftproof_verification::mutants::MutantResult) {
            self.mutants += 1;
        }
    }
    let plan = Plan {
        level: Level::Toy,
        mutants: true,
        samples: Some(5_000),
        shard: Shard { index: 2, count: 20 },
        ..Plan::default()
    };
    let mut heard = Heard::default();
    let report = run(&plan, None, &mut heard).expect("runs");
    assert_eq!(heard.tasks, plan.shard_tasks(Models::None).len());
    assert_eq!((heard.checks, heard.mutants), (report.checks.len(), report.mutants.len()));
    assert!(heard.mutants > 0 && heard.samples.contains_key(&5_000));
}

/// The level `watermark` on tables, where everything it claims is true; and its studies are those of
/// the plan, with drafts or without.
#[test]
fn the_watermarks_level_passes_on_tables() {
    let wide = |seed| {
        TableModel::new(VOCAB, 64, 2, move |last| {
            let logits = table(seed).logits(last).to_vec();
            logits.into_iter().map(|logit| 0.6 * logit).collect()
        })
    };
    let (mut target, mut draft) = (wide(1), wide(2));
    let mut both = pair(&mut target, &mut draft);
    let plan = Plan { level: Level::Watermark, samples: Some(100), ..Plan::default() };
    let report = run(&plan, Some(&mut both), &mut ()).expect("runs");
    assert!(report.passed, "{}", report.table(120));
    assert_eq!(report.checks.len(), 12, "{}", report.table(120));
    let titles: Vec<&str> = report.figures.iter().map(|figure| &figure.title[..]).collect();
    assert_eq!(titles.len(), 12, "{titles:?}");
    let page = report.html();
    assert!(titles.iter().all(|title| page.contains(title)) && !page.contains("NaN"));
    let again: Report = serde_json::from_str(&report.json()).expect("what was written");
    assert_eq!(again.figures.len(), report.figures.len());
    let names = |models| {
        let tasks = plan.tasks(models);
        tasks.iter().map(Task::name).collect::<Vec<_>>()
    };
    assert_eq!(names(Models::Pair).len(), 8);
    assert_eq!(names(Models::Target).len(), 5);
    let none = run(&plan, None, &mut ()).expect_err("no models");
    assert!(none.to_string().contains("`watermark` needs a pair"), "{none}");
    let short = Plan { samples: Some(99), ..plan.clone() };
    assert!(matches!(run(&short, Some(&mut both), &mut ()), Err(Error::Plan(_))));
    both.prompt = vec![Token(1); 40];
    let cramped = run(&plan, Some(&mut both), &mut ()).expect_err("no room");
    assert!(cramped.to_string().contains("room for 32 tokens"), "{cramped}");
}
