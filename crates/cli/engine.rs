//! The loop's parts, put together from what was asked for.

use draftproof_decode::{
    Engine, LanguageModel, Sampler,
    draft::{
        Drafter, NoDrafter,
        length::{CostModel, DraftLength},
        mapped::Mapped,
        model::ModelDrafter,
        ngram::NgramDrafter,
    },
    noise::Remembered,
    stats::Meter,
    verify::{BlockRule, Coupled, FastWatermark, Rejection, Verifier},
};

use draftproof_model::Model;

use crate::{
    args::{DraftLenArgument, DrafterKind, VerifyRule},
    settings::Models,
};

pub(crate) fn verifier(rule: VerifyRule) -> &'static dyn Verifier {
    match rule {
        VerifyRule::Rejection => &Rejection,
        VerifyRule::Block => &BlockRule,
        VerifyRule::Coupled => &Coupled,
    }
}

/// What each row beyond the first adds to a verify pass, in passes of one row. A pass reads the
/// weights once for all its rows; this is the arithmetic that comes on top, as `bench` measures it
/// with the row-invariant kernels.
const ROW_COST: f64 = 0.10;

/// `auto` weighs costs that follow from the shapes: a draft step reads the draft's weights, a verify
/// pass the target's, those of looped layers once a loop ([`Model::pass_cost`]).
pub(crate) fn draft_len(argument: DraftLenArgument, models: &Models) -> DraftLength {
    match argument {
        DraftLenArgument::Fixed(length) => DraftLength::Fixed(usize::from(length)),
        DraftLenArgument::Auto => DraftLength::Auto(costs(models)),
    }
}

/// The costs that `auto` weighs.
pub(crate) fn costs(models: &Models) -> CostModel {
    let draft = models.draft.as_ref().map_or(0.0, Model::pass_cost);
    let draft_step = draft / models.target.pass_cost();
    CostModel { draft_step, row: ROW_COST }
}

/// Calls `body` with an engine of these models and the drafter `kind`.
pub(crate) fn with_engine<T>(
    models: &mut Models,
    kind: DrafterKind,
    rule: VerifyRule,
    sampler: &Sampler,
    meter: &mut Meter,
    body: impl FnOnce(&mut Engine<'_>) -> T,
) -> T {
    let (mut model_drafter, mut mapped);
    let (mut ngram, mut none) = (NgramDrafter, NoDrafter);
    let drafter: &mut dyn Drafter = match (kind, &mut models.draft) {
        (DrafterKind::Model | DrafterKind::EarlyExit | DrafterKind::Quantized, Some(draft)) => {
            let draft: &mut dyn LanguageModel = match &models.map {
                None => draft.language_model(),
                Some(map) => {
                    mapped = Mapped::new(draft.language_model(), map);
                    &mut mapped
                }
            };
            model_drafter = match rule {
                VerifyRule::Coupled => ModelDrafter::racing(draft),
                VerifyRule::Rejection | VerifyRule::Block => ModelDrafter::new(draft),
            };
            &mut model_drafter
        }
        (DrafterKind::Ngram, _) => &mut ngram,
        _ => &mut none,
    };
    let fast = sampler.fast_watermark().map(|watermark| FastWatermark { watermark });
    let verifier = match &fast {
        Some(fast) => fast,
        None => verifier(rule),
    };
    body(&mut Engine {
        target: models.target.language_model(),
        drafter,
        verifier,
        sampler,
        noise: &mut Remembered::default(),
        meter,
    })
}
