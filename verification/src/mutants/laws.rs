//! Engines that judge by wrong target laws: another row, another prefix, other settings.

use std::{cell::RefCell, rc::Rc};

use draftproof_decode::{
    Dist, Error, Sampler, Settings, Token,
    draft::{Draft, Drafter, Proposal, Request, SessionId},
    noise::Noise,
    sampler::{Prefix, RowError, TopKTies},
    stats::Meter,
    verify::{Block, TargetLaws, Verdict, Verifier},
    watermark::Watermark,
};

use crate::{marks::Mark, scene::Scene};

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
    /// The last tokens of all texts that were looked at in rounds before, rejected ones included.
    visited: Vec<Token>,
    /// Those of this round.
    visiting: Vec<Token>,
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
        let sampler = self.sampler(change);
        let sampler = match self.mark() {
            Some(watermark) => sampler.watermarked(watermark),
            None => sampler,
        };
        let prefix = Prefix { tokens: history, prompt_len: self.memory.prompt_len };
        sampler.law(prefix, self.scene.target.logits(&self.text(i)))
    }

    /// The contract under changed settings, without the watermark.
    fn sampler(&self, change: impl FnOnce(&mut Settings)) -> Sampler {
        let mut settings = self.scene.settings.clone();
        change(&mut settings);
        let vocab = self.scene.target.vocab_size();
        Sampler::new(settings, vocab).expect("settings in range")
    }

    fn mark(&self) -> Option<Watermark> {
        self.scene.watermark.as_ref().map(Mark::watermark)
    }

    /// The generated tokens before place `i`.
    fn generated(&self, i: usize) -> Vec<Token> {
        self.text(i).split_off(self.memory.prompt_len)
    }

    /// The law of place `i` under changed settings before the watermark is on it, and the watermark.
    fn unmarked(
        &self,
        i: usize,
        change: impl FnOnce(&mut Settings),
    ) -> Result<(Dist, Watermark), RowError> {
        let text = self.text(i);
        let prefix = Prefix { tokens: &text, prompt_len: self.memory.prompt_len };
        let law = self.sampler(change).law(prefix, self.scene.target.logits(&text))?;
        Ok((law, self.mark().expect("the scene has a watermark")))
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
            *memory = Memory { prompt_len, entered: tokens.to_vec(), ..Memory::default() };
        } else {
            memory.entered.extend(tokens.last());
        }
        memory.committed = tokens.to_vec();
        let drafts = self.drafter.propose(requests, sampler, noise, meter)?;
        let before = std::mem::take(&mut memory.visiting);
        memory.visited.extend(before);
        // The watermark's context of the first place is token 0.
        let last = tokens[prompt_len..].last().copied().unwrap_or(Token(0));
        let drafted = drafts[0].proposals.iter().map(Proposal::token);
        memory.visiting = std::iter::once(last).chain(drafted).collect();
        Ok(drafts)
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

/// The watermark on the law before the filters.
pub(super) const MARKED_BEFORE_FILTERS: LawFault = LawFault(|view, i| {
    let (law, watermark) = view.unmarked(i, |settings| settings.top_k = 0)?;
    let marked = watermark.mark(&view.generated(i), law);
    let mut kept: Vec<(Token, u64)> = marked.support().collect();
    kept.sort_by_key(|&(token, weight)| (std::cmp::Reverse(weight), token));
    kept.truncate(view.scene.settings.top_k);
    kept.sort();
    let (ids, weights) = kept.into_iter().map(|(token, weight)| (token.0, weight)).unzip();
    Ok(Dist::sparse(marked.vocab(), ids, weights).expect("at least one token"))
});
/// The context of every place of a block is that of its first.
pub(super) const CONTEXT_WITHOUT_DRAFTED: LawFault = LawFault(|view, i| {
    let (law, watermark) = view.unmarked(i, |_| ())?;
    Ok(watermark.mark(&view.generated(0), law))
});
/// Contexts of rejected tokens stay in the history.
pub(super) const HISTORY_NOT_ROLLED_BACK: LawFault = LawFault(|view, i| {
    let (law, watermark) = view.unmarked(i, |_| ())?;
    let generated = view.generated(i);
    let last = generated.last().copied().unwrap_or(Token(0));
    match view.memory.visited.contains(&last) {
        true => Ok(law),
        false => Ok(watermark.mark(&generated, law)),
    }
});
/// A context counts as repeated only if it was there before the block.
pub(super) const MASK_BLIND_TO_BLOCK: LawFault = LawFault(|view, i| {
    let (law, watermark) = view.unmarked(i, |_| ())?;
    let (generated, before) = (view.generated(i), view.generated(0).len());
    let last = generated.last().copied().unwrap_or(Token(0));
    let context = |place: usize| place.checked_sub(1).map_or(Token(0), |at| generated[at]);
    match (0..before.min(generated.len())).any(|place| context(place) == last) {
        true => Ok(law),
        // A text of this token alone has its context, and nothing before it but the start's.
        false if last == Token(0) => Ok(watermark.mark(&[], law)),
        false => Ok(watermark.mark(&[last], law)),
    }
});
