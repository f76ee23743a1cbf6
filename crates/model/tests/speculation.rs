//! Drafts never change greedy text, nor coupled text: many texts, every drafter, every rule.

use std::ops::Range;

use draftproof_decode::{
    Engine, Error, LanguageModel, Limits, ModelError, Sampler, Session, Settings, Token,
    draft::{
        Draft, Drafter, NoDrafter, Proposal, Request, SessionId, length::DraftLength,
        model::ModelDrafter, ngram::NgramDrafter,
    },
    generate::generate,
    lm::{Pass, Rows, SequenceId},
    noise::{ChaCha, Noise, Seed},
    stats::{Meter, NoClock, Stats},
    verify::{BlockRule, Coupled, Rejection, Verifier},
};
use draftproof_model::{Model, Role, Runner, machine::Order};

use crate::support::cpu;

const TEXTS: usize = 200;
const TOKENS: usize = 128;

/// Proposes tokens that mean nothing, from 0 to 5 of them a round: nearly all are refused, and every
/// round is cut somewhere else.
#[derive(Debug)]
struct Garbage {
    vocab: usize,
    state: u64,
}

impl Garbage {
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) as usize % end
    }
}

impl Drafter for Garbage {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        _: &Sampler,
        _: &mut dyn Noise,
        _: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let mut draft = |request: &Request<'_>| {
            let mut draft = Draft::default();
            for _ in 0..self.below(6).min(request.limit) {
                let token = Token::at(self.below(self.vocab));
                draft.proposals.push(Proposal::certain(self.vocab, token).unwrap());
                draft.confidence.push(1.0);
                draft.steps += 1;
            }
            draft
        };
        Ok(requests.iter().map(&mut draft).collect())
    }

    fn close(&mut self, _: SessionId) {}
}

struct Fable {
    target: Box<dyn LanguageModel>,
    draft: Runner,
    prompts: Vec<Vec<Token>>,
}

impl Fable {
    /// Prompts of many lengths: beginnings of the openings that come with fable.
    fn new() -> Self {
        let target = Model::builtin("fable", Role::Target, &cpu()).unwrap();
        let tokenizer = target.tokenizer().unwrap().clone();
        let openings: Vec<Vec<Token>> = include_str!("../../../models/fable/prompts.txt")
            .lines()
            .map(|line| tokenizer.encode(line).unwrap())
            .collect();
        let prompt = |i: usize| {
            let opening = &openings[i % openings.len()];
            opening[..opening.len().min(3 + i / openings.len() * 4)].to_vec()
        };
        Self {
            target: Box::new(target.into_language_model()),
            draft: Model::builtin("fable", Role::Draft, &cpu()).unwrap().into_language_model(),
            prompts: (0..TEXTS).map(prompt).collect(),
        }
    }

    /// The texts of some prompts under a rule, at a temperature.
    fn texts(
        &mut self,
        which: Range<usize>,
        rule: &dyn Verifier,
        drafts: &str,
        length: usize,
        temperature: f64,
    ) -> (Vec<Vec<Token>>, Stats) {
        let vocab = self.target.vocab();
        let mut model;
        let mut garbage = Garbage { vocab, state: length as u64 };
        let drafter: &mut dyn Drafter = match drafts {
            "model" => {
                model = match rule.name() {
                    "coupled" => ModelDrafter::racing(&mut self.draft),
                    _ => ModelDrafter::new(&mut self.draft),
                };
                &mut model
            }
            "ngram" => &mut NgramDrafter,
            "garbage" => &mut garbage,
            _ => &mut NoDrafter,
        };
        let settings = Settings { temperature, ..Settings::default() };
        let sampler = Sampler::new(settings, vocab).unwrap();
        let limits =
            Limits { max_tokens: TOKENS, eos: Vec::new(), draft_len: DraftLength::Fixed(length) };
        let session = |i: usize| {
            let seed = Seed { seed: 9, sequence: i as u64 };
            Session::new(&self.prompts[i], seed, limits.clone())
        };
        let mut sessions: Vec<Session> = which.map(session).collect();
        let mut engine = Engine {
            target: self.target.as_mut(),
            drafter,
            verifier: rule,
            sampler: &sampler,
            noise: &mut ChaCha,
            meter: &mut Meter::new(NoClock),
        };
        generate(&mut engine, &mut sessions, &mut ()).unwrap();
        let mut stats = Stats::default();
        sessions.iter().for_each(|session| stats.add(session.stats()));
        (sessions.iter().map(|session| session.generated().to_vec()).collect(), stats)
    }

    /// All of them, plain and with each drafter; the drafted texts share passes in groups of other
    /// sizes, so that company is tried too.
    fn assert_never_changed(&mut self, rules: &[&dyn Verifier], temperature: f64) {
        let (plain, _) = self.texts(0..TEXTS, rules[0], "none", 0, temperature);
        assert!(plain.iter().all(|text| text.len() == TOKENS));
        for (i, rule) in rules.iter().enumerate() {
            for (drafts, length) in [("model", 4), ("ngram", 5), ("garbage", 7)] {
                let (mut texts, mut all) = (Vec::new(), Stats::default());
                let mut start = 0;
                while start < TEXTS {
                    let end = TEXTS.min(start + 11 + 10 * i + texts.len() % 3);
                    let (some, stats) = self.texts(start..end, *rule, drafts, length, temperature);
                    texts.extend(some);
                    all.add(&stats);
                    start = end;
                }
                let about = format!("{} with {drafts}", rule.name());
                for (i, (text, plain)) in texts.iter().zip(&plain).enumerate() {
                    assert_eq!(text, plain, "{about}, text {i}");
                }
                // Drafts were made and, unless they are garbage, kept.
                let kept = all.accepted as f64 / all.drafted.max(1) as f64;
                println!("{about}: {} drafted, {:.3} accepted", all.drafted, kept);
                assert!(all.drafted > 5_000, "{about}: {} drafted", all.drafted);
                assert_eq!(kept > 0.01, drafts != "garbage", "{about}: {kept}");
            }
        }
    }
}

#[test]
fn drafts_never_change_greedy_text() {
    Fable::new().assert_never_changed(&[&Rejection, &BlockRule], 0.0);
}

/// By the matrix tiles of AMX, where the machine has them.
#[test]
fn drafts_never_change_greedy_text_by_tiles() {
    if !Order::Tiles.is_available() {
        eprintln!("no AMX on this machine: nothing was tried");
        return;
    }
    Order::Tiles.scope(|| Fable::new().assert_never_changed(&[&Rejection], 0.0));
}

#[test]
fn drafts_never_change_coupled_text() {
    Fable::new().assert_never_changed(&[&Coupled], 1.0);
}

/// A model whose rows lean a little on how many of them share the pass: what general kernels do in
/// the last bits, here large enough to show in a few texts.
#[derive(Debug)]
struct Leaning(Box<dyn LanguageModel>);

impl LanguageModel for Leaning {
    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn context(&self) -> usize {
        self.0.context()
    }

    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.0.open()
    }

    fn forward(&mut self, batch: &[Pass<'_>]) -> Result<Vec<Rows>, ModelError> {
        let rows = self.0.forward(batch)?;
        let lean = |(pass, rows): (&Pass<'_>, Rows)| {
            let vocab = self.0.vocab();
            let lean = 1e-2 * (pass.rows as f32 - 1.0);
            let row = |i: usize| rows.row(i).iter().enumerate();
            let leant = (0..rows.len())
                .flat_map(|i| row(i).map(|(id, z)| z + if id % 2 == 0 { lean } else { 0.0 }));
            Rows::new(vocab, leant.collect())
        };
        Ok(batch.iter().zip(rows).map(lean).collect())
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        self.0.len(sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), ModelError> {
        self.0.truncate(sequence, len)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        self.0.fork(sequence)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.0.close(sequence);
    }
}

#[test]
fn rows_that_lean_on_their_company_are_caught() {
    let mut fable = Fable::new();
    let inner = Model::builtin("fable", Role::Target, &cpu()).unwrap().into_language_model();
    fable.target = Box::new(Leaning(Box::new(inner)));
    for (rule, temperature) in [(&Rejection as &dyn Verifier, 0.0), (&Coupled, 1.0)] {
        let (plain, _) = fable.texts(0..20, rule, "none", 0, temperature);
        let (drafted, _) = fable.texts(0..20, rule, "model", 4, temperature);
        assert_ne!(plain, drafted, "{}", rule.name());
    }
}
