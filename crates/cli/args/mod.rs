//! The command line as typed; [`settings`](crate::settings) turns it into what a run needs.

mod models;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use draftproof_verification::plan::{Level, Shard};

pub(crate) use models::*;

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
    // A negative number after a flag is that flag's wrong value, not an unknown flag.
    #[command(allow_negative_numbers = true)]
    Generate(Box<GenerateArguments>),
    /// Print which law the text follows: seven points and a hash.
    Contract(Box<ContractArguments>),
    /// Derive every noise value and decision of a trace again, without a model.
    Replay(ReplayArguments),
    /// Measure what passes cost and what speculation gains: tables to stdout, or one JSON document.
    Bench(Box<BenchArguments>),
    /// Compare settings side by side: answers, likelihood, texts, speed, memory.
    Evaluate(Box<EvaluateArguments>),
    /// Explain what two models have in common, and estimate what drafting gains on a text.
    #[command(allow_negative_numbers = true)]
    Pair(Box<PairArguments>),
    /// Measure what temperature 0 leaves to chance: gaps, the spread of logits, and whether runs part.
    Noise(Box<NoiseArguments>),
    /// Prove that the text follows the target's law, and that wrong samplers are caught.
    Verify(Box<VerifyArguments>),
    /// Make the keys of a watermark, and calibrate its detector.
    #[command(subcommand)]
    Watermark(WatermarkCommand),
    /// Say whether a text carries the mark of a key: watermarked, not detected, or no verdict.
    #[command(
        allow_negative_numbers = true,
        mut_group("SamplerArguments", |group| group.requires("model"))
    )]
    Detect(Box<DetectArguments>),
    /// Test samples of another engine against the target's law.
    #[command(allow_negative_numbers = true)]
    Audit(Box<AuditArguments>),
    /// List the devices that this build can use on this machine.
    Devices(DevicesArguments),
    /// Run models for programs on other machines, which reach them with --device
    /// remote:ws://HOST:PORT.
    #[cfg(feature = "remote")]
    Worker(WorkerArguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WatermarkCommand {
    /// Write a new key file that only its owner can read.
    Keygen(Box<KeygenArguments>),
    /// Learn the detector's score and its thresholds from texts with the mark and without it.
    Calibrate(Box<CalibrateArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    /// The key in use in this file is calibrated.
    #[arg(long, value_name = "FILE")]
    pub(crate) watermark_key: PathBuf,
    /// Texts marked with it: JSON lines (.jsonl) as `generate --n N --json` prints them, or plain text.
    #[arg(long, value_name = "FILE")]
    pub(crate) generated: PathBuf,
    /// Texts without a mark, of the kind that will be judged: JSON lines with `text` or `tokens`, or
    /// plain text.
    #[arg(long, value_name = "FILE")]
    pub(crate) human: PathBuf,
    /// Where the calibration goes, for `detect --calibration`.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The share of texts without a mark that may be called watermarked, and of marked ones that may be
    /// called not detected.
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = rate)]
    pub(crate) false_positive_rate: f64,
    /// The model whose tokenizer cuts the texts.
    #[arg(long, value_name = "MODEL", default_value = "builtin:fable")]
    pub(crate) model: String,
}

#[derive(Debug, Args)]
pub(crate) struct DetectArguments {
    /// The text; without it, or with `-`, standard input.
    #[arg(conflicts_with = "ids")]
    pub(crate) file: Option<PathBuf>,
    /// The text as token ids.
    #[arg(long, value_name = "ID,ID,…", value_delimiter = ',')]
    pub(crate) ids: Option<Vec<u32>>,
    /// The keys to try; the p-value is that of the best one times their number.
    #[arg(long, value_name = "FILE")]
    pub(crate) watermark_key: PathBuf,
    /// Decide by the thresholds of `watermark calibrate`, for their key.
    #[arg(long, value_name = "FILE", conflicts_with = "false_positive_rate")]
    pub(crate) calibration: Option<PathBuf>,
    /// The share of texts without a mark that may be called watermarked.
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = rate)]
    pub(crate) false_positive_rate: f64,
    /// The model of the text: its tokenizer cuts it [default: builtin:fable]. If it is given, its laws
    /// under the sampler's settings say how strong a mark the text could carry; where that is too
    /// little, there is no verdict.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// What the text continues, for those laws [default: it begins a document].
    #[arg(long, value_name = "TEXT", requires = "model")]
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `--false-positive-rate`.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|&rate: &f64| rate > 0.0 && rate <= 0.5);
    rate.ok_or_else(|| "expected a number above 0, at most 0.5".into())
}

#[derive(Debug, Args)]
pub(crate) struct KeygenArguments {
    /// Where to.
    pub(crate) file: PathBuf,
    /// The file exists: put a new key in use, and keep the old ones to detect older texts.
    #[arg(long)]
    pub(crate) rotate: bool,
    /// The hash: that of google-deepmind/synthid-text, or that of Hugging Face transformers (where
    /// ids 65536 apart share their bits).
    #[arg(long, value_enum, default_value_t = VariantArgument::Gdm)]
    pub(crate) variant: VariantArgument,
    /// Layers, 1 to 64: more mark more strongly, up to the text's entropy.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) depth: usize,
    /// Generated tokens that a token's bits depend on: fewer survive more edits, and mark less (a
    /// context that occurred before is left unmarked).
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) context_len: usize,
    /// Candidates in a match: more than 2 mark more strongly and distort the model's law.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) leaves: usize,
    /// How many positions back a context counts as repeated [default: the whole text].
    #[arg(long, value_name = "N")]
    pub(crate) history: Option<usize>,
    /// Take scheme and key from a SynthID watermarking config of transformers (JSON) instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["variant", "depth", "context_len", "leaves", "history"])]
    pub(crate) import: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VariantArgument {
    /// google-deepmind/synthid-text.
    Gdm,
    /// Hugging Face transformers.
    Hf,
}

/// The mark on the text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Watermark")]
pub(crate) struct WatermarkArguments {
    /// Mark the text with the key in use in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) watermark_key: Option<PathBuf>,
    /// What speculation keeps.
    #[arg(long, value_enum, default_value_t = ModeArgument::Exact, requires = "watermark_key")]
    pub(crate) watermark_mode: ModeArgument,
    /// Where a context counts as repeated, and is left unmarked.
    #[arg(long, value_enum, default_value_t = Mask::Sequence, requires = "watermark_key")]
    pub(crate) watermark_mask: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArgument {
    /// For every key the law of plain decoding with the mark; fewer drafted tokens are accepted.
    Exact,
    /// As many are accepted as without a mark; the law holds averaged over keys, and the mark is
    /// weaker. With the rule rejection and a fixed draft length.
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mask {
    /// In its own continuation: each alone has the model's law averaged over keys, but the N of --n
    /// begin with the same context and are alike.
    Sequence,
    /// In all continuations so far, which are then made one after another: together they have the
    /// law of N independent ones.
    Batch,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    #[command(flatten)]
    pub(crate) chat: ChatArguments,
    #[command(flatten)]
    pub(crate) ends: EndArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) drafts: DraftArguments,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    #[command(flatten)]
    pub(crate) watermark: WatermarkArguments,

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
    /// Record every decision, for `draftproof replay`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Record whole laws too, so that a replay derives residuals and races as well.
    #[arg(long, requires = "trace")]
    pub(crate) trace_full: bool,
    /// Print JSON instead of text: one object a line for each continuation.
    #[arg(long, conflicts_with = "show_draft")]
    pub(crate) json: bool,
    /// Colour the text by origin: drafted and accepted, residual, bonus. For one continuation.
    #[arg(long)]
    pub(crate) show_draft: bool,
}

/// What is continued.
#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    /// The text to continue; without it, a file, ids or standard input (verify: Once upon a time).
    #[arg(conflicts_with_all = ["prompt_file", "prompt_ids"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_ids")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// The prompt as token ids, taken as they are (no bos is added).
    #[arg(long, value_name = "ID,ID,…", value_delimiter = ',')]
    pub(crate) prompt_ids: Option<Vec<u32>>,
}

/// The prompt as a conversation.
#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    /// The prompt is what a user says: the model's own chat template makes a text of it.
    #[arg(long, conflicts_with = "prompt_ids")]
    pub(crate) chat: bool,
    /// With --chat: what the model is told to be.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Chat from a JSON list of {"role": …, "content": …}; a prompt, if given, is one more turn.
    #[arg(long, value_name = "FILE.json", conflicts_with = "prompt_ids")]
    pub(crate) chat_file: Option<PathBuf>,
}

/// What ends a text.
#[derive(Debug, Args)]
pub(crate) struct EndArguments {
    /// Go on past the end-of-text token (it is not banned).
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Stop when the text contains this; may be given more than once. The text ends before it.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ContractArguments {
    #[command(flatten)]
    pub(crate) ends: EndArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) drafts: DraftArguments,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    #[command(flatten)]
    pub(crate) watermark: WatermarkArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// If the environment has DRAFTPROOF_WORKER_TOKEN, clients need the same.
#[cfg(feature = "remote")]
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// The address to listen at, port 0 for a free one; it is printed. Beyond this machine a token is
    /// needed, in the variable DRAFTPROOF_WORKER_TOKEN of both sides. Connections are not encrypted.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7391")]
    pub(crate) bind: std::net::SocketAddr,
    /// A model to serve: a folder in Hugging Face layout, a GGUF file, or builtin:NAME; several if
    /// repeated.
    #[arg(long, value_name = "MODEL", default_value = "builtin:fable")]
    pub(crate) model: Vec<String>,
    /// A model to serve as a draft: of builtin:NAME, the small one.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Vec<String>,
    /// Where they run: a name that `draftproof devices` lists.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// How many threads of the CPU share the work [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    /// Which kernels compute: those whose rows are independent bit for bit, or burn's own.
    #[arg(long, value_enum, default_value_t = KernelsArgument::RowInvariant)]
    pub(crate) kernels: KernelsArgument,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// A file written by `generate --trace`.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    /// Arbitrary weights of this size instead of a model (100m): what passes cost, without a text.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["model", "draft_model", "drafter", "prompts"])]
    pub(crate) synthetic: Option<String>,
    /// The draft lengths to try.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,7,8,auto"
    )]
    pub(crate) draft_len: Vec<DraftLenArgument>,
    /// The temperatures to try; all other sampler settings are off.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0,1",
        allow_negative_numbers = true
    )]
    pub(crate) temperature: Vec<f64>,
    /// The rule that judges drafted tokens.
    #[arg(long, value_enum, default_value_t = VerifyRule::Rejection)]
    pub(crate) verify: VerifyRule,
    /// A file with one prompt a line [default: 32 openings of tales from fable's held-out text].
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Tokens of each text.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) max_tokens: u32,
    /// Runs of each text; the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write one JSON document to this file (`-`: standard output, instead of tables).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write bench.json, and bench.html with plots, into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// Compare two such documents instead of measuring.
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], exclusive = true)]
    pub(crate) compare: Option<Vec<PathBuf>>,
}

/// Everything is measured for each setting in turn, on the same prompts, items and seeds.
#[derive(Debug, Args)]
pub(crate) struct EvaluateArguments {
    /// The model of all settings that name none.
    #[arg(long, value_name = "MODEL", default_value = "builtin:fable")]
    pub(crate) model: String,
    /// A name and flags of `generate`, separated by spaces; may be given more than once [default: one
    /// setting without flags].
    #[arg(long, value_name = "LABEL=FLAGS", allow_hyphen_values = true)]
    pub(crate) setting: Vec<String>,
    /// Questions, one JSON object a line: {"question", "choices", "answer"} (the answer is a choice's
    /// text, or its place from 0 on) or {"prompt", "answer"} (what the model writes on its first line).
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) questions: Option<PathBuf>,
    /// What of the log-likelihoods of a choice's tokens decides.
    #[arg(long, value_enum, default_value_t = ChoiceScore::Mean, requires = "questions")]
    pub(crate) choice_score: ChoiceScore,
    /// Text that no model has seen, to be predicted.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// The most tokens of it.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) text_tokens: u32,
    /// It is cut into pieces of so many tokens, or of the whole context if that is less.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) window: u32,
    /// A file with one prompt a line, for texts [default: four openings of tales].
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Texts of each prompt.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: u32,
    /// The most tokens of a text, for settings that do not say.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Texts at these temperatures too, whatever the setting's own is.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) temperatures: Vec<f64>,
    /// Speed with so many texts in one pass.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) batch: Vec<u16>,
    /// Choose the best setting by a part of these and evaluate it on the other part only.
    #[arg(long, value_enum)]
    pub(crate) choose: Option<ChooseArgument>,
    /// The share of items to choose by, above 0 and below 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, requires = "choose", value_parser = share)]
    pub(crate) split: f64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write one JSON document to this file (`-`: standard output, instead of tables).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChoiceScore {
    /// Their mean: the length of a choice does not matter.
    Mean,
    /// Their sum: the probability of the whole choice.
    Sum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChooseArgument {
    /// Most right answers: choices by raw logits, and generated answers.
    Questions,
    /// The highest mean log-likelihood of the raw logits.
    Text,
}

/// `--split`.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|&share: &f64| share > 0.0 && share < 1.0);
    share.ok_or_else(|| "expected a number above 0 and below 1".into())
}

/// A `--setting` of `evaluate` after its label: what follows `generate` on a command line.
#[derive(Debug, Parser)]
#[command(
    name = "generate",
    no_binary_name = true,
    disable_help_flag = true,
    allow_negative_numbers = true
)]
pub(crate) struct SettingArguments {
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
}

#[derive(Debug, Args)]
pub(crate) struct PairArguments {
    /// The target: a folder in Hugging Face layout, a GGUF file, builtin:NAME, or a
    /// repository of the Hugging Face hub: `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// The draft model, in the same form.
    #[arg(value_name = "DRAFT")]
    pub(crate) draft: String,
    /// The text on which the draft is tried [default: openings of tales].
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Where both run.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// How many threads of the CPU share the work [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

impl PairArguments {
    /// The models as the other commands name them.
    pub(crate) fn models(&self) -> ModelArguments {
        ModelArguments {
            loops: LoopArguments::default(),
            model: self.target.clone(),
            draft_model: Some(self.draft.clone()),
            drafter: None,
            draft_type: None,
            device: self.device.clone(),
            draft_device: None,
            threads: self.threads,
            kernels: KernelsArgument::RowInvariant,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NoiseArguments {
    /// The only prompt, instead of a list.
    #[arg(conflicts_with = "prompts")]
    pub(crate) prompt: Option<String>,
    /// A file with one prompt a line [default: 32 openings of tales from fable's held-out text; with
    /// --endpoint the first of them].
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Greedy texts of each prompt. Here each in other circumstances: draft, threads, company.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) runs: u32,
    /// The most tokens of each text.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Write noise.json, noise.html and every single output (outputs.jsonl) into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArguments,
}

/// Somebody else's engine. If the environment has DRAFTPROOF_API_KEY it is sent as a bearer token.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoint")]
pub(crate) struct EndpointArguments {
    /// Ask an OpenAI-compatible server instead: the base, such as http://127.0.0.1:8000/v1. The key,
    /// if it needs one, is read from the variable DRAFTPROOF_API_KEY.
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "draft_model", "drafter", "device", "draft_device", "threads", "kernels"])]
    pub(crate) endpoint: Option<String>,
    /// Which of its interfaces.
    #[arg(long, value_enum, default_value_t = ApiArgument::Completions, requires = "endpoint")]
    pub(crate) api: ApiArgument,
    /// The model's name there.
    #[arg(long, value_name = "NAME", requires = "endpoint", default_value = "default")]
    pub(crate) endpoint_model: String,
    /// The seed sent with every request.
    #[arg(long, value_name = "N", requires = "endpoint", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) seed: i64,
    /// Requests under way at once.
    #[arg(long, value_name = "N", requires = "endpoint", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) concurrency: u16,
    /// The longest wait for a reply.
    #[arg(long, value_name = "SECONDS", requires = "endpoint", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) timeout: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApiArgument {
    /// /completions: the prompt as it is.
    Completions,
    /// /chat/completions: the prompt as a user's message.
    Chat,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct VerifyArguments {
    #[command(subcommand)]
    pub(crate) command: Option<VerifyCommand>,
    /// What the pair continues [default: Once upon a time].
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    /// How much: quick (a part of everything, two minutes), exact (all paths of small tables), toy
    /// (sampled laws of small tables), model (the pair, the whole grid), watermark (how well marked
    /// text of the pair is told from other text, and what the mark costs), all.
    #[arg(long, value_name = "LEVEL", default_value = "quick")]
    pub(crate) level: Level,
    /// Texts of each sampled check, instead of the level's own number.
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<u64>,
    /// Try the wrong samplers too: each must be caught by a check of the law.
    #[arg(long)]
    pub(crate) mutants: bool,
    /// Do only part i of n of the checks; `verify merge` joins the reports.
    #[arg(long, value_name = "i/n", default_value = "1/1")]
    pub(crate) shard: Shard,
    /// Seed of all noise; a right engine passes with any.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write report.json, junit.xml and report.html into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VerifyCommand {
    /// Join the reports of the shards of one run and judge the whole.
    Merge {
        /// The folders that `--report` wrote.
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        /// Write the whole report into this folder.
        #[arg(long, value_name = "DIR")]
        report: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    /// Independent continuations of the prompt, one JSON object a line: `{"tokens": [1, 2]}`, or
    /// `{"text": "…"}` of exactly --length tokens each.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) samples: PathBuf,
    /// Tokens of the joint law that is tested.
    #[arg(long, value_name = "L", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) length: u16,
    #[command(flatten)]
    pub(crate) ends: EndArguments,
    #[command(flatten)]
    pub(crate) models: ModelArguments,
    #[command(flatten)]
    pub(crate) sampler: SamplerArguments,
    /// Write report.json, junit.xml and report.html into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
}
