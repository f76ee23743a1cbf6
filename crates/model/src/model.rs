//! [`Model`]: everything that a folder says about a model.

use std::{borrow::Cow, path::Path, sync::Arc};

use burn::{module::Module, tensor::Device};
use draftproof_decode::{LanguageModel, Token};
use draftproof_kernels::{burn as kernels, quant::BlockFormat};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    Error,
    builtin::{self, Role},
    chat::ChatTemplate,
    config::{ModelConfig, TransformerConfig},
    generation_config::GenerationConfig,
    guidance::Guidance,
    initial_state::InitialState,
    language_model::TransformerModel,
    load::{Checkpoint, Gguf, Source, WeightType},
    loops::Recurrence,
    place::Place,
    runner::Runner,
    synthetic::{self, Arbitrary},
    tokenizer::Tokenizer,
    transformer::{Transformer, bytes},
};

#[cfg(feature = "remote")]
use crate::remote::Link;

const MAX_CONFIG: u64 = 16 << 20;
const MAX_TOKENIZER: u64 = 256 << 20;

/// A loaded model with its configuration, tokenizer and recommended sampling.
#[derive(Debug)]
pub struct Model {
    name: String,
    config: ModelConfig,
    generation_config: GenerationConfig,
    tokenizer: Option<Arc<Tokenizer>>,
    chat_template: Option<ChatTemplate>,
    eos: Vec<Token>,
    unknown_eos: Vec<Token>,
    parameters: u64,
    weight_type: WeightType,
    pass_bytes: u64,
    identity: Identity,
    full_context: usize,
    runner: Runner,
}

impl Model {
    /// Loads a folder in Hugging Face's layout, or a GGUF file.
    ///
    /// On a worker the weights need not be here; if they are, they have to be the worker's.
    ///
    /// # Errors
    /// If a file is missing, malformed, or asks for what is not supported; if the worker is not
    /// there, or has no such model.
    pub fn open(path: &Path, place: impl Into<Place>) -> Result<Self, Error> {
        Self::open_with(path, place, &Map::new())
    }

    /// As [`open`](Self::open), of a folder whose `config.json` is read as if it had these `fields` too:
    /// settings that are the user's and not a checkpoint's, such as `loop_cfg`
    /// ([`families::qwen3`](crate::families)). They are part of the model's [`Identity`].
    ///
    /// # Errors
    /// As [`open`](Self::open), and if it is a GGUF file and there are fields.
    pub fn open_with(
        path: &Path,
        place: impl Into<Place>,
        fields: &Map<String, Value>,
    ) -> Result<Self, Error> {
        // `.` and `..` have a name only once they are resolved.
        let resolved = path.canonicalize();
        let resolved = resolved.map_err(|source| Error::Io { path: path.into(), source })?;
        let name = resolved.file_name().unwrap_or(resolved.as_os_str());
        let name = name.to_string_lossy().into_owned();
        if resolved.is_dir() {
            Self::load(name, &Source::Folder(path.into()), &place.into(), fields)
        } else if let Some(field) = fields.keys().next() {
            let expected = format!("a folder with config.json, for {field}");
            Err(Error::file(&path.display().to_string(), expected, "a file"))
        } else {
            Self::load_gguf(name, path, &place.into())
        }
    }

    /// Loads a model that is part of the program; see [`builtin::names`].
    ///
    /// # Errors
    /// If there is none of that name and role, and as [`open`](Self::open) about workers.
    pub fn builtin(name: &str, role: Role, place: impl Into<Place>) -> Result<Self, Error> {
        let source = builtin::source(name, role)?;
        Self::load(source.place(), &source, &place.into(), &Map::new())
    }

    fn load(
        name: String,
        source: &Source,
        place: &Place,
        fields: &Map<String, Value>,
    ) -> Result<Self, Error> {
        let json = |file: &str| source.read(file, MAX_CONFIG);
        let Some(bytes) = json("config.json")? else {
            return Err(Error::Missing { place: source.place(), expected: "config.json".into() });
        };
        let label = source.label("config.json");
        let bytes = with_fields(&label, bytes, fields)?;
        let mut config = ModelConfig::parse(&label, &bytes)?;
        let file = "generation_config.json";
        let generation_config = match json(file)? {
            Some(bytes) => GenerationConfig::parse(&source.label(file), &bytes)?,
            None => GenerationConfig::default(),
        };
        let tokenizer = load_tokenizer(source)?;
        let chat_template = ChatTemplate::find(source)?;
        let tokenizer_digest =
            source.read("tokenizer.json", MAX_TOKENIZER)?.map(|bytes| hex(&Sha256::digest(bytes)));
        let full_context = config.transformer.context;
        let about = (hex(&Sha256::digest(&bytes)), tokenizer_digest);
        let loaded = match place {
            Place::Here(device) => {
                config.transformer.limit_context(kernels::largest_tensor(device));
                let mut weights = Checkpoint::open(source, &config.transformer, device)?;
                let identity = Identity::new(about, &weights.fingerprint()?);
                let network = config.transformer.init(&mut weights)?;
                let (parameters, weight_type) = (weights.parameters(), weights.weight_type());
                let counts = (parameters, weight_type);
                Loaded::here(network, &config.transformer, device, counts, identity)
            }
            #[cfg(feature = "remote")]
            Place::There(link) => {
                let held = Checkpoint::digest_if_here(source, &config.transformer)?;
                Loaded::there(link, &name, about, held, &mut config.transformer)?
            }
        };
        let parts = Parts { config, generation_config, tokenizer, chat_template, full_context };
        Ok(parts.assemble(name, loaded))
    }

    fn load_gguf(name: String, path: &Path, place: &Place) -> Result<Self, Error> {
        let here = match place {
            Place::Here(device) => device.clone(),
            // For the metadata; no weight is put on it.
            #[cfg(feature = "remote")]
            Place::There(_) => Device::default(),
        };
        let mut weights = Gguf::open(path, &here)?;
        let mut config = weights.config().clone();
        let full_context = config.transformer.context;
        let tokenizer = weights.tokenizer()?;
        let chat_template = weights.chat_template()?;
        let [about_model, about_text] = weights.digests();
        let about = (hex(&about_model), tokenizer.is_some().then(|| hex(&about_text)));
        let loaded = match place {
            Place::Here(device) => {
                config.transformer.limit_context(kernels::largest_tensor(device));
                let identity = Identity::new(about, &weights.fingerprint()?);
                let network = config.transformer.init(&mut weights)?;
                let counts = (weights.parameters(), weights.weight_type());
                Loaded::here(network, &config.transformer, device, counts, identity)
            }
            #[cfg(feature = "remote")]
            Place::There(link) => {
                let held = Some(weights.fingerprint()?);
                Loaded::there(link, &name, about, held, &mut config.transformer)?
            }
        };
        let generation_config = GenerationConfig::default();
        let parts = Parts { config, generation_config, tokenizer, chat_template, full_context };
        Ok(parts.assemble(name, loaded))
    }

    /// A model of the size called `name` (one of [`synthetic::names`]) with arbitrary weights.
    ///
    /// # Errors
    /// If there is no such size.
    pub fn synthetic(name: &str, device: &Device) -> Result<Self, Error> {
        let config = synthetic::config(name)?;
        let mut weights = Arbitrary::new(device);
        let network = config.transformer.init(&mut weights)?;
        let name = format!("synthetic/{name}");
        let digest = hex(&Sha256::digest(&name));
        Ok(Self {
            generation_config: GenerationConfig::default(),
            tokenizer: None,
            chat_template: None,
            eos: Vec::new(),
            unknown_eos: Vec::new(),
            parameters: network.num_params() as u64,
            weight_type: weights.weight_type(),
            pass_bytes: pass_bytes(&network),
            identity: Identity { config: digest.clone(), weights: digest, tokenizer: None },
            full_context: config.transformer.context,
            runner: Runner::Here(Box::new(TransformerModel::new(
                network,
                &config.transformer,
                device,
            ))),
            config,
            name,
        })
    }

    /// The same model under another name, where that of its folder or file says nothing.
    #[must_use]
    pub fn called(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The folder's or file's name, or `fable/target`, unless it was [`called`](Self::called)
    /// something else.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `config.json` says, or a GGUF file's metadata.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What `generation_config.json` says; all silent if there is none.
    #[must_use]
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// The tokenizer, if the folder has one. Without it only ids go in and out.
    ///
    /// Shared, so that text can be decoded while the language model is borrowed.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// The template that makes a prompt of a conversation, if there is one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// The ids that end a text: those of `generation_config.json`, else of `config.json`, else the
    /// tokenizer's.
    #[must_use]
    pub fn eos(&self) -> &[Token] {
        &self.eos
    }

    /// Ids that the files say end a text and that lie outside the vocabulary: nothing can end with
    /// them, which whoever decodes has to say.
    #[must_use]
    pub fn unknown_eos(&self) -> &[Token] {
        &self.unknown_eos
    }

    /// The number of weights; a tied head counts once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The type of most weights in the file. Arithmetic is f32.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// The bytes of weights that a pass reads, once for all its rows, as they lie in memory.
    #[must_use]
    pub fn pass_bytes(&self) -> u64 {
        self.pass_bytes
    }

    /// What tells this model from any other.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many times the layers of a looped transformer run; None: it is not one.
    #[must_use]
    pub fn loops(&self) -> Option<usize> {
        match self.runner.here() {
            Some(model) => model.loops(),
            // A worker runs it as deep as its files say.
            None => self.config.transformer.loops.as_ref().map(|loops| loops.loops),
        }
    }

    /// How its last loop is guided, if it is.
    #[must_use]
    pub fn guidance(&self) -> Option<Guidance> {
        self.runner.here().and_then(TransformerModel::guidance)
    }

    /// The form of recurrence of a looped transformer.
    #[must_use]
    pub fn recurrence(&self) -> Option<Recurrence> {
        self.config.transformer.loops.as_ref().map(|loops| loops.recurrence)
    }

    /// What its state begins with; None: the text, or rows that were given.
    #[must_use]
    pub fn initial_state(&self) -> Option<InitialState> {
        match &self.runner {
            Runner::Here(model) => model.initial_state(),
            #[cfg(feature = "remote")]
            Runner::There(model) => {
                let has_one = self.recurrence().is_some_and(Recurrence::has_initial_state);
                has_one.then_some(model.initial_state())
            }
        }
    }

    /// Sets what the state of sequences begins with, on a worker too; closes open ones.
    ///
    /// # Errors
    /// As [`TransformerModel::set_initial_state`].
    pub fn set_initial_state(&mut self, state: InitialState) -> Result<(), Error> {
        match &mut self.runner {
            Runner::Here(model) => model.set_initial_state(&self.name, state),
            #[cfg(feature = "remote")]
            Runner::There(model) => {
                let loops = self.config.transformer.loops.as_ref();
                let (recurrence, noise) =
                    (loops.map(|loops| loops.recurrence), loops.and_then(|loops| loops.noise));
                state.check(&self.name, recurrence, noise)?;
                model.set_initial_state(state);
                Ok(())
            }
        }
    }

    /// The bytes of weights, each counted as often as a pass uses it: looped layers in every loop, and
    /// what reads out a reference twice.
    #[must_use]
    pub fn bytes_run(&self) -> u64 {
        self.pass_bytes + self.runner.bytes_repeated()
    }

    /// What a pass of one row costs, in bytes of f32 or bf16 weights that take as long on a CPU. Blocks
    /// cost more than their bytes: half a byte for each value that is expanded (measured with AVX-512:
    /// a pass over Q4_0 takes 0.55 to 0.65 of one over bf16, over Q8_0 0.6 to 0.75).
    #[must_use]
    pub fn pass_cost(&self) -> f64 {
        let bytes = self.bytes_run() as f64;
        let in_blocks = self.runner.here().is_some_and(TransformerModel::in_blocks);
        match self.weight_type {
            WeightType::Blocks(format) if in_blocks => {
                bytes + 0.5 * bytes * format.values() as f64 / format.bytes() as f64
            }
            _ => bytes,
        }
    }

    /// Sets the depth of a looped transformer (None: its own) and how its last loop is guided.
    ///
    /// # Errors
    /// As [`TransformerModel::set_loops`]; of a worker's model the worker sets the depth.
    pub fn set_loops(
        &mut self,
        loops: Option<usize>,
        guidance: Option<Guidance>,
    ) -> Result<(), Error> {
        let Self { name, runner, .. } = self;
        let Some(model) = runner.here_mut() else {
            return Err(not_here(name, "loops and guidance"));
        };
        let loops = loops.or(model.loops()).unwrap_or(1);
        model.set_loops(name, loops, guidance)
    }

    /// The same model after its first `loops` loops, unguided: a draft that shares the weights.
    ///
    /// # Errors
    /// As [`TransformerModel::early_exit`]; if it is a worker's model.
    pub fn early_exit(&self, loops: usize) -> Result<Self, Error> {
        let Some(model) = self.runner.here() else {
            return Err(not_here(&self.name, "draft loops"));
        };
        let early = model.early_exit(&self.name, loops)?;
        Ok(self.beside(format!("{} after loop {loops}", self.name), early))
    }

    /// The same model with its matrices in blocks of `format`: a draft that needs no second download.
    /// Matrices whose inputs are no whole blocks stay as they are.
    ///
    /// # Errors
    /// If it is a worker's model, the kernels of the device read no blocks, or the format is not one of
    /// [`BlockFormat::WRITTEN`].
    pub fn quantised(&self, format: BlockFormat) -> Result<Self, Error> {
        let Some(model) = self.runner.here() else {
            return Err(not_here(&self.name, "a quantised copy"));
        };
        let copy = model.quantised(&self.name, format)?;
        let weights = hex(&Sha256::digest(format!("{} {format}", self.identity.weights)));
        let pass_bytes = pass_bytes(copy.network());
        let beside = self.beside(format!("{} in {format}", self.name), copy);
        let identity = Identity { weights, ..beside.identity.clone() };
        Ok(Self { identity, weight_type: WeightType::Blocks(format), pass_bytes, ..beside })
    }

    /// A draft made of this model.
    fn beside(&self, name: String, model: TransformerModel) -> Self {
        Self {
            name,
            config: self.config.clone(),
            generation_config: self.generation_config.clone(),
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            eos: self.eos.clone(),
            unknown_eos: self.unknown_eos.clone(),
            identity: self.identity.clone(),
            runner: Runner::Here(Box::new(model)),
            ..*self
        }
    }

    /// The context that the files say, if the device's limit for one buffer allows less for the
    /// caches of a layer.
    #[must_use]
    pub fn cut_context(&self) -> Option<usize> {
        (self.full_context > self.config.transformer.context).then_some(self.full_context)
    }

    /// The number of usable ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.runner.vocab()
    }

    /// The language model, to run it in place.
    pub fn language_model(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// The language model alone.
    #[must_use]
    pub fn into_language_model(self) -> Runner {
        self.runner
    }
}

fn not_here(name: &str, setting: &'static str) -> Error {
    Error::Setting {
        model: name.into(),
        setting,
        expected: "a model on this machine".into(),
        found: "a worker's".into(),
    }
}

/// What files say, beside the weights.
struct Parts {
    config: ModelConfig,
    generation_config: GenerationConfig,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    full_context: usize,
}

impl Parts {
    fn assemble(self, name: String, loaded: Loaded) -> Model {
        let Self { config, generation_config, tokenizer, chat_template, full_context } = self;
        let Loaded { mut runner, parameters, weight_type, pass_bytes, identity } = loaded;
        if let Some(tokenizer) = &tokenizer {
            runner.limit_vocab(tokenizer.vocab());
            // A worker has done it, with the same tokenizer.
            if let Some(model) = runner.here_mut() {
                model.ban(holes(tokenizer, model.vocab()));
            }
        }
        let (eos, unknown_eos) = eos(&generation_config, &config, tokenizer.as_ref())
            .into_iter()
            .partition(|token| token.index() < runner.vocab());
        Model {
            name,
            config,
            generation_config,
            tokenizer: tokenizer.map(Arc::new),
            chat_template,
            eos,
            unknown_eos,
            parameters,
            weight_type,
            pass_bytes,
            identity,
            full_context,
            runner,
        }
    }
}

/// The weights, wherever they are.
struct Loaded {
    runner: Runner,
    parameters: u64,
    weight_type: WeightType,
    pass_bytes: u64,
    identity: Identity,
}

impl Loaded {
    fn here(
        network: Transformer,
        config: &TransformerConfig,
        device: &Device,
        (parameters, weight_type): (u64, WeightType),
        identity: Identity,
    ) -> Self {
        let pass_bytes = pass_bytes(&network);
        let runner = Runner::Here(Box::new(TransformerModel::new(network, config, device)));
        Self { runner, parameters, weight_type, pass_bytes, identity }
    }

    /// `held`: the digest of the weights that lie here as well.
    #[cfg(feature = "remote")]
    fn there(
        link: &Link,
        name: &str,
        about: (String, Option<String>),
        held: Option<[u8; 32]>,
        config: &mut TransformerConfig,
    ) -> Result<Self, Error> {
        let model = link.open(name, &about.0, about.1.as_deref())?;
        config.context = config.context.min(model.context());
        let (parameters, weight_type, pass_bytes) = model.size();
        let (config, tokenizer) = about;
        let identity = Identity { config, weights: model.weights().into(), tokenizer };
        if let Some(held) = held.map(|digest| hex(&digest)).filter(|held| *held != identity.weights)
        {
            return Err(link.error(format!(
                "its {name} has other weights: the digest here is {held}, there {}",
                identity.weights
            )));
        }
        let runner = Runner::There(Box::new(model));
        Ok(Self { runner, parameters, weight_type, pass_bytes, identity })
    }
}

/// SHA-256 digests, in hexadecimal, of what defines a model's law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of `config.json`, or of a GGUF file's metadata about the model.
    pub config: String,
    /// Of the names, types, shapes and values of the tensors (of tensors above 4 MiB, 64 pieces).
    pub weights: String,
    /// Of `tokenizer.json`, or of a GGUF file's metadata about the tokenizer, if there is one.
    pub tokenizer: Option<String>,
}

impl Identity {
    /// `about`: the digests of configuration and tokenizer.
    fn new((config, tokenizer): (String, Option<String>), weights: &[u8; 32]) -> Self {
        Self { config, weights: hex(weights), tokenizer }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of all weights, less tables of which a pass reads single rows only.
fn pass_bytes(network: &Transformer) -> u64 {
    bytes(network) - network.table_bytes()
}

/// A configuration with more fields; what it said of them before does not count.
fn with_fields<'a>(
    label: &str,
    bytes: Cow<'a, [u8]>,
    fields: &Map<String, Value>,
) -> Result<Cow<'a, [u8]>, Error> {
    if fields.is_empty() {
        return Ok(bytes);
    }
    let parsed = serde_json::from_slice(&bytes);
    let mut all: Map<String, Value> = parsed.map_err(|source| Error::json(label, source))?;
    all.extend(fields.clone());
    Ok(Cow::Owned(Value::Object(all).to_string().into_bytes()))
}

fn load_tokenizer(source: &Source) -> Result<Option<Tokenizer>, Error> {
    let Some(bytes) = source.read("tokenizer.json", MAX_TOKENIZER)? else {
        return Ok(None);
    };
    let label = source.label("tokenizer_config.json");
    let config = source.read("tokenizer_config.json", MAX_CONFIG)?;
    let config = config.as_ref().map(|bytes| (label.as_str(), bytes.as_ref()));
    Tokenizer::parse((&source.label("tokenizer.json"), &bytes), config).map(Some)
}

fn holes(tokenizer: &Tokenizer, vocab: usize) -> Vec<usize> {
    (0..vocab).filter(|&id| tokenizer.token_string(Token::at(id)).is_none()).collect()
}

fn eos(
    generation: &GenerationConfig,
    config: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
) -> Vec<Token> {
    let named = [&generation.eos, &config.eos].into_iter().find(|ids| !ids.is_empty());
    match named {
        Some(ids) => ids.iter().copied().map(Token).collect(),
        None => tokenizer.and_then(Tokenizer::eos).into_iter().collect(),
    }
}
