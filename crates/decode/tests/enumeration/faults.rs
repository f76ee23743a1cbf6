//! Engines that get the *prefix* wrong, or the settings: what history-dependent transforms meet when
//! their state is advanced by rounds and not by tokens. And an observer that says what prefix the
//! right engine uses.

use std::{cell::RefCell, rc::Rc};

use draftproof_decode::{
    Dist, Error, Sampler, Settings, TableModel, Token,
    draft::{Draft, Drafter, Proposal, Request, SessionId},
    mutation::forge,
    noise::Noise,
    sampler::{Prefix, RowError},
    stats::Meter,
    verify::{Block, TargetLaws, Verdict, Verifier},
};

/// What an engine knows of its own text between rounds.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    prompt_len: usize,
    /// The committed tokens when the round began.
    committed: Vec<Token>,
    /// The prompt and the last token of each round.
    entered: Vec<Token>,
    /// What must be committed when the next round begins.
    expected: Option<Vec<Token>>,
}

/// A drafter that notes what the text is when a round begins.
#[derive(Debug)]
pub(crate) struct Noting<'a> {
    pub(crate) drafter: &'a mut dyn Drafter,
    pub(crate) memory: Rc<RefCell<Memory>>,
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
        if tokens.len() == prompt_len {
            *memory = Memory { prompt_len, entered: tokens.to_vec(), ..Memory::default() };
        } else {
            memory.entered.extend(tokens.last());
        }
        memory.committed = tokens.to_vec();
        if let Some(expected) = memory.expected.take() {
            assert_eq!(tokens, expected, "committed after a verdict");
        }
        drop(memory);
        self.drafter.propose(requests, sampler, noise, meter)
    }

    fn close(&mut self, session: SessionId) {
        self.drafter.close(session);
    }
}

/// What an engine gets wrong about the settings inside a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Every position of the block sees the committed tokens only.
    Frozen,
    /// Of each round, only the last token enters the history.
    LastOnly,
    /// The settings reach the token after a full block, and no drafted position.
    BonusOnly,
}

/// A right rule on the laws of a faulty engine.
#[derive(Debug)]
pub(crate) struct Faulty<'a> {
    pub(crate) fault: Fault,
    pub(crate) rule: &'a dyn Verifier,
    pub(crate) target: &'a TableModel,
    pub(crate) sampler: &'a Sampler,
    pub(crate) memory: Rc<RefCell<Memory>>,
}

#[derive(Debug)]
struct FaultyLaws<'a> {
    faulty: &'a Faulty<'a>,
    drafted: Vec<Token>,
}

impl TargetLaws for FaultyLaws<'_> {
    fn law(&self, i: usize) -> Result<Dist, RowError> {
        let Faulty { fault, target, sampler, memory, .. } = self.faulty;
        let memory = memory.borrow();
        let text = [&memory.committed[..], &self.drafted[..i]].concat();
        let seen = match fault {
            Fault::None | Fault::BonusOnly => &text,
            Fault::Frozen => &memory.committed,
            Fault::LastOnly => &memory.entered,
        };
        let plain = Sampler::new(Settings::default(), sampler.vocab()).expect("settings");
        let sampler = match fault {
            Fault::BonusOnly if i < self.drafted.len() => &plain,
            _ => *sampler,
        };
        let prefix = Prefix { tokens: seen, prompt_len: memory.prompt_len };
        Ok(sampler.law(prefix, target.logits(&text)).expect("a law"))
    }
}

impl Verifier for Faulty<'_> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let drafted = block.proposals.iter().map(Proposal::token).collect();
        let laws = FaultyLaws { faulty: self, drafted };
        self.rule.verify(&Block { target: &laws, ..*block }, noise)
    }
}

/// A right rule that checks, at every place of every block, that the engine's laws are those of
/// prompt + committed + drafted tokens, and that what is committed next is what was decided.
#[derive(Debug)]
pub(crate) struct Observer<'a> {
    pub(crate) right: Faulty<'a>,
    /// The draft's table; none if its proposals are certain.
    pub(crate) draft: Option<&'a TableModel>,
}

impl Verifier for Observer<'_> {
    fn name(&self) -> &'static str {
        "observer"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let drafted: Vec<Token> = block.proposals.iter().map(Proposal::token).collect();
        let laws = FaultyLaws { faulty: &self.right, drafted: drafted.clone() };
        for i in 0..=drafted.len() {
            assert_eq!(block.target.law(i), laws.law(i), "the target at {i} of {drafted:?}");
        }
        let (committed, prompt_len) = {
            let memory = self.right.memory.borrow();
            (memory.committed.clone(), memory.prompt_len)
        };
        for (i, proposal) in block.proposals.iter().enumerate() {
            let text = [&committed[..], &drafted[..i]].concat();
            let q = match self.draft {
                Some(draft) => {
                    let prefix = Prefix { tokens: &text, prompt_len };
                    self.right.sampler.law(prefix, draft.logits(&text)).expect("a law")
                }
                None => Dist::one_hot(self.right.sampler.vocab(), drafted[i]).expect("a token"),
            };
            assert_eq!(*proposal.q(), q, "the draft at {i} of {drafted:?}");
        }
        let verdict = self.right.rule.verify(block, noise);
        let next = verdict.next.as_ref().expect("table laws").token;
        let emitted = [&drafted[..verdict.accepted], &[next]].concat();
        self.right.memory.borrow_mut().expected = Some([committed, emitted].concat());
        verdict
    }
}

/// A drafter that draws under one contract and reports the law of another; each of the two may take
/// the committed tokens for the prefix at every place.
#[derive(Clone, Debug)]
pub(crate) struct Forger<'a> {
    pub(crate) table: &'a TableModel,
    pub(crate) draws: (&'a Sampler, bool),
    pub(crate) reports: (&'a Sampler, bool),
}

impl Drafter for Forger<'_> {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        _: &Sampler,
        noise: &mut dyn Noise,
        _: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let request = &requests[0];
        let mut draft = Draft::default();
        let committed = request.prefix.tokens;
        let mut text = committed.to_vec();
        for offset in 0..request.limit {
            let law = |(sampler, frozen): (&Sampler, bool)| {
                let tokens = if frozen { committed } else { &text };
                let prefix = Prefix { tokens, ..request.prefix };
                sampler.law(prefix, self.table.logits(&text)).expect("a law")
            };
            let reported = law(self.reports);
            let drawn = Proposal::draw(law(self.draws), request.round, offset, noise);
            text.push(drawn.token());
            draft.proposals.push(forge(drawn.token(), reported));
        }
        Ok(vec![draft])
    }

    fn close(&mut self, _: SessionId) {}
}
