//! The command line as typed; [`settings`](crate::settings) turns it into what a run needs.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use draftproof_decode::Decimal;

/// Speculative decoding that provably keeps the target's law.
#[derive(Debug, Parser)]
#[command(name = "draftproof", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt: text to stdout, everything else to stderr.
    Generate(Box<GenerateArguments>),
    /// Print which law the text follows: seven points and a hash.
    Contract(Box<ContractArguments>),
    /// Derive every noise value and decision of a trace again, without a model.
    Replay(ReplayArguments),
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// The text to continue; without it, a file, ids or standard input.
    #[arg(conflicts_with_all = ["prompt_file", "prompt_ids"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_ids")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// The prompt as token ids, taken as they are (no bos is added).
    #[arg(long, value_name = "ID,ID,…", value_delimiter = ',')]
    pub(crate) prompt_ids: Option<Vec<u32>>,
    #[command(flatten)]
    pub(crate) ends: EndArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,

    /// The most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_tokens: usize,
    /// Seed of all random choices; random, and printed, without it.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Draw this many continuations, each with its own noise; printed one after another, each ended
    /// by a newline.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: u32,
    /// With --json: for each token its log-probability and those of the N likeliest, of the raw
    /// logits and under the sampler's contract.
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,
    /// Treat the prompt as a chat message (not supported yet).
    #[arg(long)]
    pub(crate) chat: bool,
    /// Record every decision, for `draftproof replay`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Record whole laws too, so that a replay derives residuals and races as well.
    #[arg(long, requires = "trace")]
    pub(crate) trace_full: bool,
    /// Print JSON instead of text: one object a line for each continuation.
    #[arg(long, conflicts_with = "show_draft")]
    pub(crate) json: bool,
    /// Colour the text by origin: drafted and accepted, residual, bonus.
    #[arg(long)]
    pub(crate) show_draft: bool,
}

/// What ends a text.
#[derive(Debug, Args)]
pub(crate) struct EndArguments {
    /// Go on past the end-of-text token (it is not banned).
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Stop when the text contains this; may be given more than once. The text ends before it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ContractArguments {
    #[command(flatten)]
    pub(crate) ends: EndArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// A file written by `generate --trace`.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Models")]
pub(crate) struct ModelArguments {
    /// The target: a folder in Hugging Face layout, or builtin:NAME.
    #[arg(long, value_name = "MODEL", default_value = "builtin:fable")]
    pub(crate) model: String,
    /// The draft model, in the same form.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Where proposals come from [default: model if there is a draft model, else ngram].
    #[arg(long, value_enum)]
    pub(crate) drafter: Option<DrafterKind>,
    /// How many tokens to draft a round: a number, or auto.
    #[arg(long, value_name = "N|auto", default_value = "auto")]
    pub(crate) draft_len: DraftLenArgument,
    /// The rule that judges drafted tokens.
    #[arg(long, value_enum, default_value_t = VerifyRule::Rejection)]
    pub(crate) verify: VerifyRule,
    /// Where the target runs.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Where the draft model runs [default: as the target].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) draft_device: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrafterKind {
    /// A second model.
    Model,
    /// What followed the last few tokens before (prompt lookup).
    Ngram,
    /// Nothing: plain decoding.
    None,
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
    /// Keep the heaviest tokens up to this mass, in (0, 1]; 1 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<Decimal>,
    /// Keep tokens at least this many times as likely as the likeliest, in [0, 1]; 0 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<Decimal>,
}
