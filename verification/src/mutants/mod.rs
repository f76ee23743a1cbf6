//! Wrong samplers that the suite must catch.
//!
//! A test that passes says nothing unless it would have failed. Each mutant is a fault that was
//! shipped by some engine or is one slip away, plugged into the real loop at the seam where the bug
//! would live, and the *law* checks that pass the engine must reject it: the walk over all paths
//! (`==` between rationals), or the e-value of sampled texts. Equal bits and pinned values do not
//! count.
//!
//! Mutants are compiled always and cannot be reached from `generate`: nothing outside this crate
//! names them.
//!
//! What is *not* here: changes that look wrong and do not change the law (a draft at another
//! temperature that reports it truly, a stale draft cache, a drawn token that is called certain).
//! They cost speed only; [`HARMLESS`] keeps some, and the walk must find their law unchanged.

mod blocks;
mod drafters;
mod laws;
mod list;
mod noises;
mod rules;
mod targets;
mod trial;

use draftproof_decode::{
    LanguageModel, Settings, TableModel, draft::Drafter, noise::Noise, verify::Verifier,
    watermark::Watermark,
};

use crate::{
    marks::Mark,
    scene::{Rule, Scene},
};
pub use laws::LawFault;
pub use list::{HARMLESS, MUTANTS};
pub use trial::{MutantResult, Trial, try_mutant};

/// The part of the engine that a mutant replaces.
#[derive(Clone, Copy)]
pub enum Plug {
    /// The rule that judges a block.
    Verifier(fn(Rule) -> Box<dyn Verifier>),
    /// Where proposals come from.
    Drafter(fn(&Scene) -> Box<dyn Drafter>),
    /// The source of random choices.
    Noise(fn(&mut dyn Noise) -> Box<dyn Noise + '_>),
    /// The target model.
    Target(fn(TableModel) -> Box<dyn LanguageModel>),
    /// The settings that reach the contract.
    Sampler(fn(&Scene) -> Settings),
    /// The watermark.
    Watermark(fn(&Mark) -> Watermark),
    /// The target's laws on their way to the rule.
    Laws(LawFault),
    /// The end of the text: EOS ends it only as the last token of a round.
    EosInsideIgnored,
}

impl Plug {
    /// The seam's name.
    #[must_use]
    pub fn seam(&self) -> &'static str {
        match self {
            Self::Verifier(_) => "verifier",
            Self::Drafter(_) => "drafter",
            Self::Noise(_) => "noise",
            Self::Target(_) => "target model",
            Self::Sampler(_) => "sampler",
            Self::Watermark(_) => "watermark",
            Self::Laws(_) => "target laws",
            Self::EosInsideIgnored => "end of text",
        }
    }
}

impl std::fmt::Debug for Plug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.seam())
    }
}

/// A wrong sampler.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    /// Where such a fault was seen, or the paper whose rule it breaks.
    pub seen: &'static str,
    /// What is replaced.
    pub plug: Plug,
    /// The scene in which it is tried.
    pub scene: &'static str,
    /// Whether a walk over all paths can see it: not if the fault is noise that is spent twice.
    pub enumerable: bool,
}
