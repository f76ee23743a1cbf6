//! Engines that judge by wrong target laws: another row, another prefix, other settings.

use std::{cell::RefCell, rc::Rc};

use draftproof_decode::{
    Dist, Error, Sampler, Settings, Token,
    draft::{Draft, Drafter, Proposal, Request, SessionId},
    noise::Noise,
    sampler::{Prefix, RowError, TopKTies},
    stats::Meter,
    verify::{Block, TargetLaws, Verdict, Verifier},
};

use crate::scene::Scene;

/// The law that a wrong engine takes for that of place `i`.
pub(super) type WrongLaw = fn(&View<'_>, usize) -> Result<Dist, RowError>;

/// A wrong target law, to be plugged between the engine and the rule.
#[derive(Clone, Copy)]
pub struct LawFault(pub(super) WrongLaw);

impl std::fmt::Debug for LawFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LawFault")
    }
}

/// What an engine knows of its own text between rounds.
#[derive(Debug, Default)]
struct Memory {
    prompt_len: usize,
    /// The committed tokens when the round began.
    committed: Vec<Token>,
    /// The prompt and the last token of each round.
    entered: Vec<Token>,
}

/// What a wrong law may look at.
pub(super) struct View<'a> {
    right: &'a dyn TargetLaws,
    scene: &'a Scene,
    memory: &'a Memory,
    drafted: &'a [Token],
}

impl View<'_> {
    fn text(&self, i: usize) -> Vec<Token> {
        [&self.memory.committed[..], &self.drafted[..i]].concat()
    }

    /// The row of place `i`, under changed settings and with another history.
    fn law(
        &self,
        i: usize,
        history: &[Token],
        change: impl FnOnce(&mut Settings),
    ) -> Result<Dist, RowError> {
        let mut settings = self.scene.settings.clone();
        change(&mut settings);
        let vocab = self.scene.target.vocab_size();
        let sampler = Sampler::new(settings, vocab).expect("settings in range");
        let prefix = Prefix { tokens: history, prompt_len: self.memory.prompt_len };
        sampler.law(prefix, self.scene.target.logits(&self.text(i)))
    }

    fn under(&self, i: usize, change: impl FnOnce(&mut Settings)) -> Result<Dist, RowError> {
        self.law(i, &self.text(i), change)
    }
}

trait VocabSize {
    fn vocab_size(&self) -> usize;
}

impl VocabSize for draftproof_decode::TableModel {
    fn vocab_size(&self) -> usize {
        draftproof_decode::LanguageModel::vocab(self)
    }
}

/// A drafter that notes what the text is when a round begins.
#[derive(Debug)]
struct Noting<'a> {
    drafter: &'a mut dyn Drafter,
    memory: Rc<RefCell<Memory>>,
}

impl Drafter for Noting<'_> {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        meter: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let Prefix { tokens, prompt_len } = requests[0].prefix;
        let mut memory = self.memory.borrow_mut();
        if memory.committed.is_empty() {
            *memory = Memory { prompt_len, entered: tokens.to_vec(), committed: Vec::new() };
        } else {
            memory.entered.extend(tokens.last());
        }
        memory.committed = tokens.to_vec();
        drop(memory);
        self.drafter.propose(requests, sampler, noise, meter)
    }

    fn close(&mut self, session: SessionId) {
        self.drafter.close(session);
    }
}

/// The right rule on wrong laws.
#[derive(Debug)]
struct Misled<'a> {
    fault: LawFault,
    scene: &'a Scene,
    memory: Rc<RefCell<Memory>>,
}

struct MisledLaws<'a> {
    misled: &'a Misled<'a>,
    right: &'a dyn TargetLaws,
    drafted: Vec<Token>,
}

impl std::fmt::Debug for MisledLaws<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.misled.fmt(f)
    }
}

impl TargetLaws for MisledLaws<'_> {
    fn law(&self, i: usize) -> Result<Dist, RowError> {
        let memory = self.misled.memory.borrow();
        let view = View {
            right: self.right,
            scene: self.misled.scene,
            memory: &memory,
            drafted: &self.drafted,
        };
        (self.misled.fault.0)(&view, i)
    }
}

impl Verifier for Misled<'_> {
    fn name(&self) -> &'static str {
        "misled"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let drafted = block.proposals.iter().map(Proposal::token).collect();
        let laws = MisledLaws { misled: self, right: block.target, drafted };
        self.scene.rule.verifier().verify(&Block { target: &laws, ..*block }, noise)
    }
}

impl LawFault {
    /// The scene's drafter and rule, with the fault between them and the target.
    pub(crate) fn plug<'a>(
        self,
        drafter: &'a mut dyn Drafter,
        scene: &'a Scene,
    ) -> (Box<dyn Drafter + 'a>, Box<dyn Verifier + 'a>) {
        let memory = Rc::new(RefCell::new(Memory::default()));
        let noting = Noting { drafter, memory: Rc::clone(&memory) };
        (Box::new(noting), Box::new(Misled { fault: self, scene, memory }))
    }
}

/// No fault: the laws built here are the engine's.
pub(super) const RIGHT: LawFault = LawFault(|view, i| view.under(i, |_| ()));
pub(super) const ROW_BEFORE: LawFault = LawFault(|view, i| view.right.law(i.saturating_sub(1)));
pub(super) const LAST_ROW_BEFORE: LawFault = LawFault(|view, i| {
    view.right.law(if i == view.drafted.len() { i.saturating_sub(1) } else { i })
});
pub(super) const FROZEN: LawFault = LawFault(|view, i| view.law(i, &view.memory.committed, |_| ()));
pub(super) const LAST_ONLY: LawFault =
    LawFault(|view, i| view.law(i, &view.memory.entered, |_| ()));
pub(super) const BONUS_ONLY: LawFault = LawFault(|view, i| {
    let inside = i < view.drafted.len();
    view.under(i, |settings| {
        if inside {
            *settings = Settings::default();
        }
    })
});
pub(super) const WITHOUT_TEMPERATURE: LawFault =
    LawFault(|view, i| view.under(i, |settings| settings.temperature = 1.0));
pub(super) const TIES_KEPT: LawFault =
    LawFault(|view, i| view.under(i, |settings| settings.top_k_ties = TopKTies::Keep));
pub(super) const WITHOUT_CROSSING: LawFault = LawFault(|view, i| {
    let p = view.right.law(i)?;
    let mut kept: Vec<(Token, u64)> = p.support().collect();
    if kept.len() < 2 {
        return Ok(p);
    }
    kept.sort_by_key(|&(token, weight)| (std::cmp::Reverse(weight), token));
    kept.pop();
    kept.sort();
    let (ids, weights) = kept.into_iter().map(|(token, weight)| (token.0, weight)).unzip();
    Ok(Dist::sparse(p.vocab(), ids, weights).expect("at least one token"))
});
