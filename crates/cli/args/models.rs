//! What every command that runs models takes: models, loops, drafts, sampler.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use draftproof_decode::{
    Decimal,
    sampler::{Order, TopKTies},
};
use draftproof_model::InitialState;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Models")]
pub(crate) struct ModelArguments {
    /// The target: a folder in Hugging Face layout, a GGUF file, builtin:NAME, or a
    /// repository of the Hugging Face hub: `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
    #[arg(long, value_name = "MODEL", default_value = "builtin:fable")]
    pub(crate) model: String,
    /// The draft model, in the same form.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Where proposals come from [default: model if there is a draft model, else ngram].
    #[arg(long, value_enum)]
    pub(crate) drafter: Option<DrafterKind>,
    /// Keep the draft model's matrices in blocks of this type [default: as its files have them; q4_0
    /// for --drafter quantized].
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) draft_type: Option<DraftType>,
    /// Where the target runs: a name that `draftproof devices` lists, or remote:ws://HOST:PORT, a
    /// `draftproof worker` (with a token: in the variable DRAFTPROOF_WORKER_TOKEN); bench takes
    /// several, with commas between, and measures one after the other.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Where the draft model runs [default: as the target].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) draft_device: Option<String>,
    /// How many threads of the CPU share the work [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    /// Which kernels compute: those whose rows are independent bit for bit, or burn's own.
    #[arg(long, value_enum, default_value_t = KernelsArgument::RowInvariant)]
    pub(crate) kernels: KernelsArgument,
    #[command(flatten)]
    pub(crate) loops: LoopArguments,
}

/// Depth and guidance of looped transformers.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Looped transformers")]
pub(crate) struct LoopArguments {
    /// How many times the looped layers run [default: as the model says].
    #[arg(long, value_name = "R")]
    pub(crate) loops: Option<usize>,
    /// Run a part of a Qwen3's layers several times, as if its config.json had this field: a JSON object
    /// with start, end (exclusive), K and damping [default: 1/K].
    #[arg(long, value_name = "JSON")]
    pub(crate) loop_cfg: Option<String>,
    /// What the state of a Huginn or Parcae begins with [default: zeros]: zeros, or the noise of its
    /// public code, here a function of the seed and the position.
    #[arg(long, value_name = "zeros|noise:SEED")]
    pub(crate) initial_state: Option<InitialState>,
    /// Guide the last loop by an earlier one (LoopCD): the text then follows the guided law.
    #[arg(long, value_enum, value_name = "FORM", requires = "guidance_weight")]
    pub(crate) loop_guidance: Option<GuidanceForm>,
    /// How far is extrapolated: a number, or adaptive:MOST, which goes further where the two best
    /// tokens are closer. 0 is no guidance.
    #[arg(long, value_name = "W|adaptive:W", requires = "loop_guidance")]
    pub(crate) guidance_weight: Option<GuidanceWeight>,
    /// The completed loop that it is extrapolated from [default: 1].
    #[arg(long, value_name = "K", requires = "loop_guidance")]
    pub(crate) reference_loop: Option<usize>,
    /// After how many loops --drafter early-exit reads out its proposals [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) draft_loops: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuidanceForm {
    /// Of the logits of both loops.
    Logits,
    /// Of the states of both loops, before they are read out.
    Hidden,
}

/// How far guidance goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GuidanceWeight {
    Fixed(f32),
    Adaptive(f32),
}

impl FromStr for GuidanceWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, adaptive) = match text.strip_prefix("adaptive:") {
            Some(number) => (number, true),
            None => (text, false),
        };
        let weight = number.parse::<f32>().ok().filter(|w| w.is_finite() && *w >= 0.0);
        let weight = weight.ok_or("expected a number from 0 on, or adaptive: and one")?;
        Ok(if adaptive { Self::Adaptive(weight) } else { Self::Fixed(weight) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelsArgument {
    /// A draft never changes greedy text.
    RowInvariant,
    /// Row-invariant too, by the matrix tiles of Intel CPUs with AMX, for bf16 weights: tokens that are
    /// checked together cost hardly more than one; the last bits are not those of other CPUs.
    Amx,
    /// Rows may differ in the last bits with the number of rows in a pass.
    General,
}

/// How drafted tokens come and go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Models")]
pub(crate) struct DraftArguments {
    /// How many tokens to draft a round: a number, or auto [default: auto; 4 with a watermark of mode
    /// fast].
    #[arg(long, value_name = "N|auto")]
    pub(crate) draft_len: Option<DraftLenArgument>,
    /// The rule that judges drafted tokens.
    #[arg(long, value_enum, default_value_t = VerifyRule::Rejection)]
    pub(crate) verify: VerifyRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrafterKind {
    /// A second model.
    Model,
    /// What followed the last few tokens before (prompt lookup).
    Ngram,
    /// An early loop of the target, if that is a looped transformer: the same weights.
    EarlyExit,
    /// The target itself with fewer bits a weight: a copy in blocks of --draft-type.
    Quantized,
    /// Nothing: plain decoding.
    None,
}

/// `--draft-type`, under the names of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(non_camel_case_types, reason = "the names that everybody uses")]
pub(crate) enum DraftType {
    /// 4 bits and a scale for 32 values.
    #[value(name = "q4_0")]
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    #[value(name = "q4_1")]
    Q4_1,
    /// 5 bits and a scale for 32 values.
    #[value(name = "q5_0")]
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    #[value(name = "q5_1")]
    Q5_1,
    /// 8 bits and a scale for 32 values.
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyRule {
    /// Token by token (Leviathan et al., Chen et al.).
    Rejection,
    /// The block as a whole: accepts more (Sun et al.).
    Block,
    /// Shared noise: the same seed gives the same text with any draft or none (Daliri et al.).
    Coupled,
}

/// `--draft-len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftLenArgument {
    Fixed(u16),
    Auto,
}

impl FromStr for DraftLenArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| "expected auto or a number from 0 to 65535".into()),
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampler [defaults: the model's generation_config.json, else off]")]
pub(crate) struct SamplerArguments {
    /// Divide the logits; 0 is greedy.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Keep the K largest logits; 0 keeps all.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Which of the tokens tied with the K-th stay: lowest-id (exactly K) or keep (all of them).
    #[arg(long, value_name = "TIES", default_value_t)]
    pub(crate) top_k_ties: TopKTies,
    /// Keep the locally typical tokens up to this mass, in (0, 1]; 1 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical: Option<Decimal>,
    /// Keep the heaviest tokens up to this mass, in (0, 1]; 1 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<Decimal>,
    /// Keep tokens at least this many times as likely as the likeliest, in [0, 1]; 0 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<Decimal>,
    /// Make tokens of the prompt and the output less likely: above 1; 1 is off.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Taken from the logit of each token in the output.
    #[arg(long, value_name = "A", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) presence_penalty: f64,
    /// Taken from the logit of a token once for each time it is in the output.
    #[arg(long, value_name = "A", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) frequency_penalty: f64,
    /// No N tokens in a row occur twice; 0 is off.
    #[arg(long, value_name = "N")]
    pub(crate) no_repeat_ngram: Option<usize>,
    /// Add B to the logit of token ID (-inf bans it); may be given more than once.
    #[arg(long, value_name = "ID=B", allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<BiasArgument>,
    /// Ban the words of a file, one a line, at the beginning of a text and after a space.
    #[arg(long, value_name = "FILE")]
    pub(crate) bad_words: Option<PathBuf>,
    /// No end of text before N tokens were generated.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_tokens: usize,
    /// The order of the steps: default, hf, llama.cpp, or a list of all steps separated by commas.
    #[arg(long, value_name = "ORDER", default_value = "default")]
    pub(crate) sampler_order: Order,
}

/// `--logit-bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BiasArgument {
    pub(crate) token: u32,
    pub(crate) bias: f64,
}

impl FromStr for BiasArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(token, bias)| {
            Some(Self { token: token.trim().parse().ok()?, bias: bias.trim().parse().ok()? })
        });
        parsed.ok_or_else(|| "expected ID=NUMBER, such as 17=-2.5 or 17=-inf".into())
    }
}
