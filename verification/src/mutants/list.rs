//! The list of mutants: one line for each, saying where it is plugged in and where it is tried.

use draftproof_decode::Settings;

use crate::marks::{Lot, Mark};

use super::{
    Mutant, Plug,
    blocks::BlockFault,
    drafters, laws, noises, rules,
    targets::{self, CutFault},
};

const fn mutant(name: &'static str, seen: &'static str, scene: &'static str, plug: Plug) -> Mutant {
    Mutant { name, seen, plug, scene, enumerable: true }
}

/// Seen by sampled laws only.
const fn sampled(
    name: &'static str,
    seen: &'static str,
    scene: &'static str,
    plug: Plug,
) -> Mutant {
    Mutant { name, seen, plug, scene, enumerable: false }
}

macro_rules! rule {
    ($rule:ident) => {
        Plug::Verifier(|_| Box::new(rules::$rule))
    };
}

macro_rules! block {
    ($fault:ident) => {
        Plug::Verifier(|_| Box::new(BlockFault::$fault))
    };
}

macro_rules! drafter {
    ($propose:ident) => {
        Plug::Drafter(|scene| drafters::wrong(scene, stringify!($propose), drafters::$propose))
    };
}

macro_rules! target {
    ($fault:ident) => {
        Plug::Target(|table| targets::wrong(table, CutFault::$fault))
    };
}

/// Every mutant of the suite.
pub const MUTANTS: &[Mutant] = &[
    // The rule of rejection.
    mutant("F1 everything accepted", "vllm-ascend #13766", "rejection/model", rule!(ALL_ACCEPTED)),
    mutant(
        "F2 residual through a softmax",
        "transformers #28508",
        "rejection/model",
        rule!(SOFTMAX_RESIDUAL),
    ),
    mutant(
        "F3 target's law after a rejection",
        "2211.17192, alg. 1",
        "rejection/model",
        rule!(TARGET_AFTER_REJECTION),
    ),
    mutant(
        "F5 residual only without the drafted token",
        "xllm #2175",
        "rejection/model",
        rule!(ONLY_WITHOUT_DRAFTED),
    ),
    mutant("F8 same token or ratio", "rtp-llm #1295", "rejection/model", rule!(TWO_CHANCES)),
    mutant("F12 ratio upside down", "2211.17192, alg. 1", "rejection/model", rule!(UPSIDE_DOWN)),
    mutant(
        "F13 one coin for all places",
        "2211.17192, alg. 1",
        "rejection/model",
        rule!(SHARED_COIN),
    ),
    mutant(
        "residual by list index",
        "draft and target lists of kept tokens",
        "rejection/model/top-k",
        rule!(BY_INDEX),
    ),
    mutant(
        "bonus row after a rejection",
        "lattice #509",
        "rejection/model",
        rule!(BONUS_AFTER_REJECTION),
    ),
    mutant(
        "first drafted token never checked",
        "lattice #243",
        "rejection/model",
        rule!(FIRST_UNCHECKED),
    ),
    mutant(
        "last drafted token never checked",
        "vllm #29274",
        "rejection/model",
        rule!(LAST_UNCHECKED),
    ),
    mutant("acceptance with <= on 24 bits", "sglang #35771", "rejection/model", rule!(NOT_STRICT)),
    mutant("typical acceptance", "Medusa, 2401.10774", "rejection/model", rule!(TYPICAL)),
    mutant("lenient ratio", "lenience, appendix of 2211.17192", "rejection/model", rule!(LENIENT)),
    mutant("draft again until accepted", "2302.01318, alg. 2", "rejection/model", rule!(RETRIED)),
    mutant(
        "exact match, mismatch drawn again",
        "mistral.rs #1027",
        "rejection/model",
        rule!(MATCH_REDRAWN),
    ),
    // The rule of blocks.
    mutant(
        "block: one coin for all places",
        "2403.10444, alg. 2",
        "block/model",
        block!(SharedCoin),
    ),
    mutant("block: ordinary residual", "vllm-ascend #7807", "block/model", block!(TokenResidual)),
    mutant(
        "block: token-wise acceptance",
        "vllm-ascend #7807",
        "block/model",
        block!(TokenAcceptance),
    ),
    mutant(
        "block: first failure ends it",
        "2403.10444, alg. 2",
        "block/model",
        block!(FirstFailureEnds),
    ),
    sampled(
        "block: product of ratios over product of coins",
        "vllm-ascend, old rule",
        "block/model",
        block!(Cumulative),
    ),
    // The watermark.
    mutant(
        "watermark before the filters",
        "transformers #34630",
        "rejection/model/watermark",
        Plug::Laws(laws::MARKED_BEFORE_FILTERS),
    ),
    mutant(
        "watermark: context without drafted tokens",
        "stateful processors, one call a round",
        "rejection/model/watermark",
        Plug::Laws(laws::CONTEXT_WITHOUT_DRAFTED),
    ),
    mutant(
        "watermark: history not rolled back",
        "stateful processors, vllm #56807",
        "rejection/model/watermark",
        Plug::Laws(laws::HISTORY_NOT_ROLLED_BACK),
    ),
    mutant(
        "watermark: mask blind to the current block",
        "vllm #56807",
        "rejection/model/watermark",
        Plug::Laws(laws::MASK_BLIND_TO_BLOCK),
    ),
    mutant(
        "watermark fast: one key for draft and residual",
        "the paper's rule needs independent keys",
        "rejection/watermark fast",
        Plug::Watermark(|mark| match mark {
            Mark::AnyKey(keys) => keys.watermark(Lot::Draft),
            Mark::OneKey(watermark) => watermark.clone(),
        }),
    ),
    // Drafters.
    mutant(
        "F4 arg-max under a softmax q",
        "transformers #32867",
        "rejection/model",
        drafter!(ARGMAX),
    ),
    mutant(
        "F6 drawn from the top two, whole q reported",
        "transformers #47932",
        "rejection/model",
        drafter!(TOP_TWO),
    ),
    mutant(
        "F7 unlikely draft thrown away",
        "confidence filters on drawn tokens",
        "rejection/model",
        drafter!(UNLIKELY_DROPPED),
    ),
    mutant(
        "q before the transforms",
        "transformers #47932",
        "rejection/model/top-k",
        drafter!(BEFORE_TRANSFORMS),
    ),
    mutant(
        "draft drawn without the temperature",
        "dflash #74",
        "rejection/model/T=0.6",
        drafter!(WITHOUT_TEMPERATURE),
    ),
    mutant(
        "q at another precision",
        "DeepSpec #31",
        "rejection/large logits",
        drafter!(OTHER_PRECISION),
    ),
    mutant(
        "penalties of q frozen in the block",
        "mlx-lm #1175",
        "rejection/model/penalties",
        drafter!(STALE_PENALTIES),
    ),
    mutant("q from another slot", "vllm #53017", "rejection/model", drafter!(OTHER_SLOT)),
    mutant(
        "draft dropped after a look at the target",
        "target values of open positions choose the draft",
        "rejection/model",
        drafter!(PEEKED),
    ),
    // The target's laws.
    mutant(
        "row i checked with row i-1",
        "TensorRT-LLM #15098",
        "rejection/model",
        Plug::Laws(laws::ROW_BEFORE),
    ),
    mutant(
        "bonus from the last checked row",
        "vllm #29274",
        "rejection/model",
        Plug::Laws(laws::LAST_ROW_BEFORE),
    ),
    mutant(
        "penalties frozen in the block",
        "sglang #33643",
        "rejection/model/penalties",
        Plug::Laws(laws::FROZEN),
    ),
    mutant(
        "only the last token of a round penalised",
        "sglang #33643",
        "rejection/model/penalties",
        Plug::Laws(laws::LAST_ONLY),
    ),
    mutant(
        "settings for the bonus token only",
        "ATOM #2318, vllm #42744",
        "rejection/model/top-k",
        Plug::Laws(laws::BONUS_ONLY),
    ),
    mutant(
        "target without the temperature",
        "vllm #9834",
        "rejection/model/T=0.6",
        Plug::Laws(laws::WITHOUT_TEMPERATURE),
    ),
    mutant(
        "top-k keeps ties in the target only",
        "vllm #50979",
        "rejection/ties",
        Plug::Laws(laws::TIES_KEPT),
    ),
    mutant(
        "top-p without the crossing token",
        "llama.cpp #1953",
        "rejection/model/top-p",
        Plug::Laws(laws::WITHOUT_CROSSING),
    ),
    mutant(
        "settings dropped when a draft is on",
        "vllm #18902",
        "rejection/model/penalties",
        Plug::Sampler(|_| Settings::default()),
    ),
    // The target's cache, and the end of the text.
    mutant(
        "stale cache entry after a rejection",
        "mlx-lm #1109",
        "rejection/model",
        target!(Stale),
    ),
    mutant("cache reset instead of cut", "aprender #2014", "rejection/model", target!(Reset)),
    mutant("cache cut one entry too far", "mlxcel #994", "rejection/model", target!(TooMuch)),
    mutant(
        "EOS ignored inside a block",
        "transformers #47912",
        "rejection/model",
        Plug::EosInsideIgnored,
    ),
    // Noise.
    sampled(
        "F9 draft's uniform is the coin",
        "one uniform for two choices",
        "rejection/pair A",
        Plug::Noise(noises::draft_as_coin),
    ),
    sampled(
        "F10 coin draws the residual",
        "one uniform for two choices",
        "rejection/pair A",
        Plug::Noise(noises::coin_as_residual),
    ),
    sampled(
        "F11 draft's Gumbel noise draws the residual",
        "vllm #47386",
        "rejection/pair A",
        Plug::Noise(noises::draft_race_as_residual),
    ),
    sampled(
        "draft's uniform draws the residual",
        "vllm #47386",
        "rejection/pair A",
        Plug::Noise(noises::draft_as_residual),
    ),
    sampled(
        "block: noise keyed by position",
        "a coin failed behind the cut, and is spent again",
        "block/ngram/five tokens",
        Plug::Noise(noises::by_position),
    ),
    sampled(
        "noise of the first round in every round",
        "a key without the round",
        "rejection/pair A",
        Plug::Noise(noises::by_offset),
    ),
    sampled(
        "coins without the seed",
        "vllm #6038",
        "rejection/pair A",
        Plug::Noise(noises::unseeded_coins),
    ),
    sampled(
        "coupled: one race for all positions",
        "2408.07978, sect. 4",
        "coupled/model",
        Plug::Noise(noises::one_race),
    ),
    mutant("uniforms of 24 bits", "f32 uniforms", "rejection/model", Plug::Noise(noises::coarse)),
];

/// Changes that keep the law, and the bases that mutants differ from in one thing: the suite must
/// *not* reject these.
pub const HARMLESS: &[Mutant] = &[
    mutant("rejection, written again", "base", "rejection/model", rule!(BASE)),
    mutant("block rule, written again", "base", "block/model", block!(None)),
    mutant("drafter, written again", "base", "rejection/model", drafter!(HONEST)),
    mutant(
        "target laws, built again",
        "base",
        "rejection/model/penalties",
        Plug::Laws(laws::RIGHT),
    ),
    mutant("cache, written again", "base", "rejection/model", target!(None)),
    mutant(
        "draft at another temperature that says so",
        "q is the drafter's affair",
        "rejection/model",
        drafter!(HOTTER_AND_SAID_SO),
    ),
    mutant(
        "drawn token called certain",
        "vllm #40149",
        "rejection/model",
        drafter!(CALLED_CERTAIN),
    ),
    sampled(
        "inverse distribution function, fresh noise",
        "base",
        "rejection/pair A",
        Plug::Noise(noises::fresh),
    ),
    sampled("races, fresh noise", "base", "rejection/pair A", Plug::Noise(noises::fresh_races)),
];
