//! The studies, one function each.

use draftproof_decode::{
    Listener, Token,
    error::ListenerError,
    session::{Emitted, JudgedRound},
    watermark::{
        Hashed, Mode, Scheme, StoredKey, Variant,
        detect::{Bayes, Detector, Evidence},
    },
};

use super::{
    Figure, Findings, LENGTHS, Line, RATE, Study, coins, counted,
    writing::{
        Edit, Seeds, Text, Way, below, edited, entropy, key, mingled, room, stretch, templated,
        write,
    },
};
use crate::{
    Error,
    goodness::Uniform,
    model::{Pair, Places},
    plan::Level,
    progress::Progress,
    report::Check,
};

/// Tokens drafted a round.
const GAMMA: usize = 4;

/// A study under way.
struct Desk<'p, 'm> {
    pair: &'p mut Pair<'m>,
    /// Texts an arm.
    samples: u64,
    seed: u64,
    progress: &'p mut dyn Progress,
}

pub(super) fn make(
    pair: &mut Pair<'_>,
    study: Study,
    samples: u64,
    seed: u64,
    progress: &mut dyn Progress,
) -> Result<Findings, Error> {
    let mut desk = Desk { pair, samples, seed, progress };
    if desk.most() < LENGTHS[0] {
        return Err(Error::Plan(format!(
            "the level `watermark` needs room for {} tokens; the prompt leaves {}",
            LENGTHS[0],
            desk.most()
        )));
    }
    match study {
        Study::FalsePositives => desk.false_positives(),
        Study::TruePositives => desk.true_positives(),
        Study::Speculation => desk.speculation(),
        Study::Fast => desk.fast(),
        Study::Edits => desk.edits(),
        Study::Depth => desk.depth(),
        Study::Acceptance => desk.acceptance(),
        Study::NoSignal => desk.no_signal(),
    }
}

/// The weighted mean's p-value of the first `length` tokens.
fn p_value(text: &[Token], key: &StoredKey, length: usize) -> f64 {
    let detector = Detector::new(key, RATE);
    detector.evidence(&text[..length.min(text.len())], &[]).p_value()
}

/// The share of `texts` of which `found` holds.
fn share<T>(texts: &[T], found: impl Fn(&T) -> bool) -> f64 {
    texts.iter().filter(|text| found(text)).count() as f64 / texts.len().max(1) as f64
}

/// The share found, by length.
fn by_length(name: impl Into<String>, texts: &[Text], lengths: &[usize]) -> Line {
    let found =
        |length: usize| share(texts, |text| p_value(&text.tokens, &text.key, length) <= RATE);
    Line::new(name, lengths.iter().map(|&length| (length as f64, found(length))).collect())
}

fn figure(title: &str, caption: String, x: &str, y: &str, lines: Vec<Line>) -> Figure {
    Figure { title: title.into(), caption, x: x.into(), y: y.into(), lines }
}

const FOUND: &str = "share found at p ≤ 0.01";
const TOKENS: &str = "tokens of text";

impl Desk<'_, '_> {
    /// The most tokens of a text.
    fn most(&self) -> usize {
        let room = self.pair.target.context().saturating_sub(self.pair.prompt.len());
        room.min(LENGTHS[LENGTHS.len() - 1])
    }

    fn lengths(&self) -> Vec<usize> {
        LENGTHS.into_iter().filter(|&length| length <= self.most()).collect()
    }

    /// Where marked texts are cut: shorter ones too, which are found already.
    fn cuts(&self) -> Vec<usize> {
        [8, 16, 24].into_iter().chain(self.lengths()).collect()
    }

    /// A part of the arm, where each text is long.
    fn part(&self, divisor: u64) -> u64 {
        (self.samples / divisor).max(16)
    }

    fn write(&mut self, way: &Way, count: u64) -> Result<Vec<Text>, Error> {
        write(self.pair, way, (Seeds::both(self.seed), count), &mut (), self.progress)
    }

    /// Text of people; if there is none, of the target at temperature 1 without a mark.
    fn other_text(&mut self) -> Result<Vec<Token>, Error> {
        if !self.pair.human.is_empty() {
            return Ok(self.pair.human.clone());
        }
        let way = Way { mode: None, ..Way::marked(1.0, self.most()) };
        let seeds = Seeds::both(self.seed ^ 0x6f74_6865_7273);
        let texts = write(self.pair, &way, (seeds, 32), &mut (), self.progress)?;
        Ok(texts.into_iter().flat_map(|text| text.tokens).collect())
    }

    fn false_positives(&mut self) -> Result<Findings, Error> {
        let (count, lengths) = (4 * self.samples, self.lengths());
        let human = self.other_text()?;
        let way = Way { mode: None, ..Way::marked(1.0, self.most()) };
        let models = self.write(&way, self.part(4))?;
        let mut dice = Uniform::new(self.seed);
        let mut findings = Findings::default();
        let (mut lines, mut naive) = (Vec::new(), Vec::new());
        for (source, variant) in [
            ("human text", Variant::Gdm),
            ("human text, variant hf", Variant::Hf),
            ("model text", Variant::Gdm),
            ("templated text", Variant::Gdm),
        ] {
            let scheme = Scheme { variant, ..Scheme::default() };
            let bounds = [RATE, 0.05, 0.1, 0.5, 1.0];
            let mut cells = vec![0; bounds.len()];
            let mut tally = vec![(0u64, 0u64, 0u64); lengths.len()];
            for i in 0..count {
                let class = i as usize % lengths.len();
                let length = lengths[class];
                let text = match source {
                    "model text" => {
                        models[below(models.len(), &mut dice)].tokens[..length].to_vec()
                    }
                    "templated text" => templated(&human, length, &mut dice),
                    _ => stretch(&human, length, &mut dice),
                };
                // A key of its own for each: only keys are random under the hypothesis.
                let key = key(&scheme, self.seed ^ 0x6670, i);
                let p = p_value(&text, &key, length);
                cells[bounds.iter().position(|&bound| p <= bound).expect("p is at most 1")] += 1;
                let counted_all = all_places(&scheme, &key, &text).p_value() <= RATE;
                let tally = &mut tally[class];
                tally.0 += u64::from(p <= RATE);
                tally.1 += u64::from(counted_all);
                tally.2 += 1;
                if i.is_multiple_of(256) {
                    self.progress.advance(i, count);
                }
            }
            let p: Vec<f64> =
                [0.0].iter().chain(&bounds).zip(&bounds).map(|(a, b)| b - a).collect();
            findings.checks.push(counted(&format!("p-values/{source}"), &p, cells));
            let rates = |of: fn(&(u64, u64, u64)) -> u64| -> Vec<(f64, f64)> {
                let rate = |tally| of(tally) as f64 / tally.2.max(1) as f64;
                lengths.iter().zip(&tally).map(|(&l, tally)| (l as f64, rate(tally))).collect()
            };
            lines.push(Line::new(source, rates(|tally| tally.0)));
            if source == "templated text" {
                naive.push(Line::new("repeats dropped", rates(|tally| tally.0)));
                naive.push(Line::new("repeats counted", rates(|tally| tally.1)));
            }
        }
        let each = count / lengths.len() as u64;
        let y = "share called watermarked at p ≤ 0.01";
        findings.figures.push(figure(
            "false positives by length",
            format!("Text without a mark, {count} texts of each kind, {each} a point, each under a key of its own. The nominal rate is 0.01."),
            TOKENS,
            y,
            lines,
        ));
        findings.figures.push(figure(
            "why repeated contexts are dropped",
            format!("Templated text, {each} texts a point: if a context counts each time it occurs, the same bits count again."),
            TOKENS,
            y,
            naive,
        ));
        Ok(findings)
    }

    fn true_positives(&mut self) -> Result<Findings, Error> {
        let (count, lengths) = (self.part(4), self.cuts());
        let mut findings = Findings::default();
        let (mut lines, mut all) = (Vec::new(), Vec::new());
        for temperature in [0.3, 0.5, 0.7, 1.0] {
            // The check below takes texts at T = 1 for independent: each has a key of its own.
            let company = if temperature == 1.0 { 1 } else { 16 };
            let way = Way { company, ..Way::marked(temperature, self.most()) };
            let texts = self.write(&way, count)?;
            lines.push(by_length(format!("T = {temperature}"), &texts, &lengths));
            if temperature == 0.3 {
                findings.figures.push(scores(&texts, &lengths));
            }
            for text in texts {
                let start = &text.tokens[..64.min(text.tokens.len())];
                let bits = entropy(self.pair.target, &self.pair.prompt, start, temperature)?;
                all.push((bits, text));
            }
        }
        let found = lines[3].points.last().map_or(0.0, |point| point.1);
        findings.figures.push(figure(
            "found, by length and temperature",
            format!("{count} marked texts of each temperature, cut to each length; weighted mean."),
            TOKENS,
            FOUND,
            lines,
        ));
        findings.figures.push(by_entropy(all));
        // Against "half or more are found": the likelihood ratio of one in twenty, an e-value for
        // every share from a half on.
        let hits = (found * count as f64).round();
        let ln_e = hits * (0.05f64 / 0.5).ln() + (count as f64 - hits) * (0.95f64 / 0.5).ln();
        let mut check = Check::martingale(
            "watermark/half of the longest texts at T = 1 are found".into(),
            Level::Watermark,
            ln_e,
            count,
        );
        check.note = format!("{:.1} % of {count} texts at p ≤ {RATE}", 100.0 * found);
        findings.checks.push(check);
        Ok(findings)
    }

    fn speculation(&mut self) -> Result<Findings, Error> {
        let tokens = self.most().min(68);
        let plain = Way::marked(1.0, tokens);
        let drafted = Way { gamma: GAMMA, ..plain.clone() };
        let score = |text: &Text| {
            text.detector().evidence(&text.tokens, &[]).weighted_mean().unwrap_or(0.5)
        };
        // The same keys, other noise.
        let mut arm = |way: &Way, noise: u64, count: u64| -> Result<Vec<f64>, Error> {
            let seeds = Seeds { keys: self.seed, noise: self.seed ^ noise };
            let texts = write(self.pair, way, (seeds, count), &mut (), self.progress)?;
            Ok(texts.iter().map(score).collect())
        };
        let earlier = arm(&plain, 3, 120)?;
        let (first, second) = (arm(&plain, 1, self.samples)?, arm(&drafted, 2, self.samples)?);
        let middle = earlier.iter().sum::<f64>() / earlier.len() as f64;
        let pairs = || first.iter().copied().zip(second.iter().copied());
        let from = |score: f64| (score - middle).abs();
        let checks = vec![
            coins("exact with a draft against without/larger score", pairs()),
            coins(
                "exact with a draft against without/further from the middle",
                pairs().map(|(a, b)| (from(a), from(b))),
            ),
        ];
        let sorted = |scores: &[f64]| {
            let mut sorted = scores.to_vec();
            sorted.sort_by(f64::total_cmp);
            let last = sorted.len() as f64;
            let point = |(i, score): (usize, f64)| (score, (i as f64 + 0.5) / last);
            sorted.into_iter().enumerate().map(point).collect::<Vec<_>>()
        };
        let figures = vec![figure(
            "mode exact, with a draft and without",
            format!(
                "Distribution of the weighted mean, {} texts of {tokens} tokens each at T = 1: one law.",
                first.len()
            ),
            "weighted mean",
            "share of texts below",
            vec![
                Line::new("without a draft", sorted(&first)),
                Line::new(format!("{GAMMA} tokens drafted a round"), sorted(&second)),
            ],
        )];
        Ok(Findings { checks, figures })
    }

    fn fast(&mut self) -> Result<Findings, Error> {
        let (count, lengths) = (self.part(4), self.cuts());
        let way = Way {
            gamma: GAMMA,
            // Averages over keys are what mode fast is about.
            company: 4,
            ..Way::marked(0.7, self.most())
        };
        let exact = self.write(&way, count)?;
        let fast = self.write(&Way { mode: Some(Mode::Fast), ..way }, count)?;
        let residual = |text: &Text| {
            let (scheme, key) = (text.key.scheme.clone(), text.key.key.for_residuals());
            StoredKey::new(scheme, key, text.key.created.clone(), None).expect("as deep")
        };
        let residual_keys: Vec<StoredKey> = fast.iter().map(residual).collect();
        let either = |length: usize| {
            let found = fast.iter().zip(&residual_keys).filter(|(text, other)| {
                let p = |key: &StoredKey| p_value(&text.tokens, key, length);
                2.0 * p(&text.key).min(p(other)) <= RATE
            });
            found.count() as f64 / fast.len() as f64
        };
        let residual_only = |length: usize| {
            let found = fast.iter().zip(&residual_keys);
            let found = found.filter(|(text, key)| p_value(&text.tokens, key, length) <= RATE);
            found.count() as f64 / fast.len() as f64
        };
        let curve = |name: &str, of: &dyn Fn(usize) -> f64| {
            Line::new(name, lengths.iter().map(|&length| (length as f64, of(length))).collect())
        };
        let figures = vec![figure(
            "what mode fast keeps of the evidence",
            format!(
                "{count} texts of each mode at T = 0.7 with {GAMMA} tokens drafted a round. The key of \
                 residuals alone, and the smaller of both p-values twice, beside the key that detects."
            ),
            TOKENS,
            FOUND,
            vec![
                by_length("mode exact", &exact, &lengths),
                by_length("mode fast", &fast, &lengths),
                curve("fast, either key", &either),
                curve("fast, key of residuals", &residual_only),
            ],
        )];
        Ok(Findings { checks: Vec::new(), figures })
    }

    fn edits(&mut self) -> Result<Findings, Error> {
        let tokens = self.most().min(200);
        let count = self.part(4);
        let other = self.other_text()?;
        let texts = self.write(&Way::marked(0.7, tokens), count)?;
        let mut dice = Uniform::new(self.seed ^ 0x6564);
        let found = |change: &mut dyn FnMut(&[Token]) -> Vec<Token>| {
            let hit = texts.iter().filter(|text| {
                let changed = change(&text.tokens);
                p_value(&changed, &text.key, changed.len()) <= RATE
            });
            hit.count() as f64 / texts.len() as f64
        };
        let mut lines = Vec::new();
        for (name, edit) in [
            ("substituted", Edit::Substitute),
            ("deleted", Edit::Delete),
            ("inserted", Edit::Insert),
        ] {
            let shares = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3].into_iter();
            let points = shares.map(|share| {
                let mut change = |text: &[Token]| edited(text, edit, share, &other, &mut dice);
                (share, found(&mut change))
            });
            lines.push(Line::new(name, points.collect()));
        }
        let shares = [0.1, 0.25, 0.5, 0.75, 1.0];
        let mixed = shares.map(|share| {
            (share, found(&mut |text: &[Token]| mingled(text, share, &other, &mut dice)))
        });
        let cropped = shares.map(|share| {
            let kept = (share * tokens as f64) as usize;
            (share, found(&mut |text: &[Token]| stretch(text, kept, &mut dice)))
        });
        let about = format!("{count} marked texts of {tokens} tokens at T = 0.7.");
        let figures = vec![
            figure(
                "found after edits",
                format!(
                    "{about} Each token is changed with this probability; new ones come from other text."
                ),
                "share of tokens changed",
                FOUND,
                lines,
            ),
            figure(
                "found in fragments",
                format!(
                    "{about} Mixed: pieces of 25 tokens among pieces of other text, of the same length in all. Cropped: one stretch."
                ),
                "share of the marked text that is left",
                FOUND,
                vec![Line::new("mixed", mixed.to_vec()), Line::new("cropped", cropped.to_vec())],
            ),
        ];
        Ok(Findings { checks: Vec::new(), figures })
    }

    fn depth(&mut self) -> Result<Findings, Error> {
        let tokens = self.most().min(128);
        let count = self.part(8);
        let lengths: Vec<usize> =
            [32, 64, 128].into_iter().filter(|&length| length <= tokens).collect();
        let mut lines: Vec<Line> = lengths
            .iter()
            .map(|length| Line::new(format!("{length} tokens"), Vec::new()))
            .collect();
        for depth in [1, 2, 5, 10, 20, 30] {
            let scheme = Scheme { depth, ..Scheme::default() };
            let texts = self.write(&Way { scheme, ..Way::marked(0.7, tokens) }, count)?;
            for (line, &length) in lines.iter_mut().zip(&lengths) {
                let found = share(&texts, |text| p_value(&text.tokens, &text.key, length) <= RATE);
                line.points.push((depth as f64, found));
            }
        }
        let figures = vec![figure(
            "found, by depth",
            format!("{count} marked texts of each depth at T = 0.7; weighted mean."),
            "layers of the tournament",
            FOUND,
            lines,
        )];
        Ok(Findings { checks: Vec::new(), figures })
    }

    fn acceptance(&mut self) -> Result<Findings, Error> {
        let tokens = self.most().min(32);
        let mut checks = Vec::new();
        let mut lines: Vec<Line> = Vec::new();
        let mut alphas: Vec<Vec<f64>> = Vec::new();
        let modes = [("no mark", None), ("exact", Some(Mode::Exact)), ("fast", Some(Mode::Fast))];
        for (name, mode) in modes {
            let mut points = Vec::new();
            for (temperature, count) in
                [(0.5, self.part(4)), (0.7, self.part(4)), (1.0, self.samples)]
            {
                let way = Way {
                    mode,
                    gamma: GAMMA,
                    // A key a text: only then are the bits of mode fast fresh at every place.
                    company: 1,
                    ..Way::marked(temperature, tokens)
                };
                let mut places = Judged::default();
                let noise = self.seed ^ (1 + alphas.len() as u64) << 32;
                let seeds = Seeds { keys: self.seed, noise };
                let texts = write(self.pair, &way, (seeds, count), &mut places, self.progress)?;
                let mut stats = draftproof_decode::stats::Stats::default();
                texts.iter().for_each(|text| stats.add(&text.stats));
                points.push((temperature, stats.alpha().unwrap_or(0.0)));
                if temperature == 1.0 {
                    alphas.push(texts.iter().filter_map(|text| text.stats.alpha()).collect());
                    let name = format!("watermark/acceptance, {name}");
                    checks.push(places.0.check(name, Level::Watermark, count));
                }
            }
            lines.push(Line::new(name, points));
        }
        let pairs = alphas[0].iter().copied().zip(alphas[2].iter().copied());
        checks.push(coins("fast accepts as much as no mark", pairs));
        let figures = vec![figure(
            "the price in acceptance",
            format!(
                "α, the mean of Σ min(p, q), with {GAMMA} tokens drafted a round: {} texts of {tokens} \
                 tokens at T = 1, fewer at the others, each under a key of its own.",
                self.samples
            ),
            "temperature",
            "α",
            lines,
        )];
        Ok(Findings { checks, figures })
    }

    fn no_signal(&mut self) -> Result<Findings, Error> {
        let tokens = self.most().min(100);
        let (groups, each) = (self.part(16).div_ceil(4), 4);
        let other = self.other_text()?;
        let own_prompt = self.pair.prompt.clone();
        let mut verdicts: Vec<Line> = ["watermarked", "not_detected", "abstain"]
            .into_iter()
            .map(|name| Line::new(name, Vec::new()))
            .collect();
        let (mut greedy_verdicts, mut greedy) = (0, 0);
        for temperature in [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0] {
            let mut found = Vec::new();
            for group in 0..groups {
                // Greedy texts differ by their prompts only.
                let mut dice = Uniform::new(self.seed ^ group);
                self.pair.prompt = stretch(&other, own_prompt.len().min(12), &mut dice);
                let seeds = Seeds::both(self.seed ^ group << 32);
                let way = Way { company: 2, ..Way::marked(temperature, tokens) };
                let texts = write(self.pair, &way, (seeds, each), &mut (), self.progress)?;
                for text in &texts {
                    let room = room(self.pair.target, &self.pair.prompt, text, temperature)?;
                    let detector = text.detector();
                    let evidence = detector.evidence(&text.tokens, &[]);
                    found.push(detector.judge(&evidence, Some(&room)).verdict.name());
                }
            }
            if temperature == 0.0 {
                greedy = found.len();
                greedy_verdicts = found.iter().filter(|&&name| name != "abstain").count();
            }
            for line in &mut verdicts {
                line.points.push((temperature, share(&found, |&name| name == line.name)));
            }
        }
        self.pair.prompt = own_prompt;
        let count = groups * each;
        let check = Check::exact(
            "watermark/greedy text gets no verdict".into(),
            Level::Watermark,
            crate::report::Method::Equality,
            greedy_verdicts as f64,
            greedy as u64,
            "greedy texts under a key that got a verdict".into(),
        );
        let figures = vec![figure(
            "verdicts on marked text, by temperature",
            format!(
                "{count} texts of {tokens} tokens at each; the detector knows the model's laws, and \
                 abstains where they leave no room for a mark."
            ),
            "temperature",
            "share of texts",
            verdicts,
        )];
        Ok(Findings { checks: vec![check], figures })
    }
}

/// The evidence at every place with a full context, new or not.
fn all_places(scheme: &Scheme, key: &StoredKey, text: &[Token]) -> Evidence {
    use draftproof_decode::watermark::GValues;

    let (values, len) = (Hashed::new(scheme, &key.key), scheme.context_len);
    let bits = |place: usize| values.bits(&text[place - len..place], text[place]);
    Evidence::from_rows(scheme.depth, (len..text.len()).map(bits).collect())
}

/// The three scores on the same texts, by length: the learnt one is trained on every other text, and
/// its limit is the score that one in a hundred rows of fair bits reach.
fn scores(texts: &[Text], lengths: &[usize]) -> Figure {
    let evidence = |text: &Text, length: usize| {
        text.detector().evidence(&text.tokens[..length.min(text.tokens.len())], &[])
    };
    let longest = lengths[lengths.len() - 1];
    let mut dice = Uniform::new(17);
    let depth = texts[0].key.scheme.depth;
    let mut fair = |positions: usize| {
        let mask = u64::MAX >> (64 - depth);
        Evidence::from_rows(depth, (0..positions).map(|_| dice.bits() & mask).collect())
    };
    let train: Vec<Evidence> =
        texts.iter().step_by(2).map(|text| evidence(text, longest)).collect();
    let unmarked: Vec<Evidence> = train.iter().map(|text| fair(text.positions())).collect();
    let bayes = Bayes::train(&train, &unmarked);
    let test: Vec<&Text> = texts.iter().skip(1).step_by(2).collect();
    let mut lines = ["mean", "weighted mean", "Bayesian"].map(|name| Line::new(name, Vec::new()));
    for &length in lengths {
        let found: Vec<Evidence> = test.iter().map(|text| evidence(text, length)).collect();
        let mut null: Vec<f64> = (0..1000)
            .map(|_| bayes.log_likelihood_ratio(&fair(length.saturating_sub(4))))
            .collect();
        null.sort_by(f64::total_cmp);
        let limit = null[990];
        let shares = [
            share(&found, |text| text.p_value_of_mean() <= RATE),
            share(&found, |text| text.p_value() <= RATE),
            share(&found, |text| bayes.log_likelihood_ratio(text) > limit),
        ];
        for (line, share) in lines.iter_mut().zip(shares) {
            line.points.push((length as f64, share));
        }
    }
    figure(
        "found, by score",
        format!(
            "{} marked texts at T = 0.3; the Bayesian score was trained on {} others.",
            test.len(),
            train.len()
        ),
        TOKENS,
        FOUND,
        lines.to_vec(),
    )
}

/// The share found at three lengths, in five groups of texts of like entropy.
fn by_entropy(mut texts: Vec<(f64, Text)>) -> Figure {
    texts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups: Vec<&[(f64, Text)]> = texts.chunks(texts.len().div_ceil(5)).collect();
    let line = |length: usize| {
        let point = |group: &&[(f64, Text)]| {
            let mean = group.iter().map(|(bits, _)| bits).sum::<f64>() / group.len() as f64;
            let found = |(_, text): &(f64, Text)| p_value(&text.tokens, &text.key, length) <= RATE;
            (mean, share(group, found))
        };
        Line::new(format!("{length} tokens"), groups.iter().map(point).collect())
    };
    figure(
        "found, by entropy",
        format!("{} marked texts of four temperatures, in five groups.", texts.len()),
        "mean entropy of the laws without a mark, bits a token, over the first 64",
        FOUND,
        [16, 32, 64].map(line).to_vec(),
    )
}

/// Acceptances by place.
#[derive(Debug, Default)]
struct Judged(Places);

impl Listener for Judged {
    fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
        Ok(false)
    }

    fn round(&mut self, round: &JudgedRound<'_>) -> Result<(), ListenerError> {
        self.0.round(round)
    }
}
