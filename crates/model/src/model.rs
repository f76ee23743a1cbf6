//! [`Model`]: everything that a folder says about a model.

use std::{path::Path, sync::Arc};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Int, Tensor},
};
use draftproof_decode::{LanguageModel, Token};
use sha2::{Digest, Sha256};

use crate::{
    Error,
    builtin::{self, Role},
    chat::ChatTemplate,
    config::ModelConfig,
    generation_config::GenerationConfig,
    language_model::TransformerModel,
    load::{Checkpoint, Gguf, Source, WeightType},
    synthetic::{self, Arbitrary},
    tokenizer::Tokenizer,
    transformer::Transformer,
};

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
    language_model: TransformerModel,
}

impl Model {
    /// Loads a folder in Hugging Face's layout, or a GGUF file.
    ///
    /// # Errors
    /// If a file is missing, malformed, or asks for what is not supported.
    pub fn open(path: &Path, device: &Device) -> Result<Self, Error> {
        // `.` and `..` have a name only once they are resolved.
        let resolved = path.canonicalize();
        let resolved = resolved.map_err(|source| Error::Io { path: path.into(), source })?;
        let name = resolved.file_name().unwrap_or(resolved.as_os_str());
        let name = name.to_string_lossy().into_owned();
        if resolved.is_dir() {
            Self::load(name, &Source::Folder(path.into()), device)
        } else {
            Self::load_gguf(name, path, device)
        }
    }

    /// Loads one side of a pair that is part of the program; see [`builtin::names`].
    ///
    /// # Errors
    /// If there is no pair of that name.
    pub fn builtin(name: &str, role: Role, device: &Device) -> Result<Self, Error> {
        let source = builtin::source(name, role)?;
        Self::load(source.place(), &source, device)
    }

    fn load(name: String, source: &Source, device: &Device) -> Result<Self, Error> {
        let json = |file: &str| source.read(file, MAX_CONFIG);
        let Some(bytes) = json("config.json")? else {
            return Err(Error::Missing { place: source.place(), expected: "config.json".into() });
        };
        let config = ModelConfig::parse(&source.label("config.json"), &bytes)?;
        let file = "generation_config.json";
        let generation_config = match json(file)? {
            Some(bytes) => GenerationConfig::parse(&source.label(file), &bytes)?,
            None => GenerationConfig::default(),
        };
        let tokenizer = load_tokenizer(source)?;
        let chat_template = ChatTemplate::find(source)?;
        let mut weights = Checkpoint::open(source, &config.transformer, device)?;
        let identity = Identity {
            config: hex(&Sha256::digest(&bytes)),
            weights: hex(&weights.fingerprint()?),
            tokenizer: source
                .read("tokenizer.json", MAX_TOKENIZER)?
                .map(|bytes| hex(&Sha256::digest(bytes))),
        };
        let network = config.transformer.init(&mut weights)?;
        let (parameters, weight_type) = (weights.parameters(), weights.weight_type());
        let parts = Parts {
            config,
            generation_config,
            tokenizer,
            chat_template,
            parameters,
            weight_type,
            identity,
        };
        Ok(parts.assemble(name, network, device))
    }

    fn load_gguf(name: String, path: &Path, device: &Device) -> Result<Self, Error> {
        let mut weights = Gguf::open(path, device)?;
        let config = weights.config().clone();
        let tokenizer = weights.tokenizer()?;
        let [about_model, about_text] = weights.digests();
        let identity = Identity {
            config: hex(&about_model),
            weights: hex(&weights.fingerprint()?),
            tokenizer: tokenizer.is_some().then(|| hex(&about_text)),
        };
        let network = config.transformer.init(&mut weights)?;
        let (parameters, weight_type) = (weights.parameters(), weights.weight_type());
        let chat_template = weights.chat_template()?;
        let parts = Parts {
            config,
            generation_config: GenerationConfig::default(),
            tokenizer,
            chat_template,
            parameters,
            weight_type,
            identity,
        };
        Ok(parts.assemble(name, network, device))
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
            language_model: TransformerModel::new(network, &config.transformer, device),
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

    /// The number of usable ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.language_model.vocab()
    }

    /// The language model, to run it in place.
    pub fn language_model(&mut self) -> &mut TransformerModel {
        &mut self.language_model
    }

    /// The language model alone.
    #[must_use]
    pub fn into_language_model(self) -> TransformerModel {
        self.language_model
    }
}

/// What files say, beside the weights.
struct Parts {
    config: ModelConfig,
    generation_config: GenerationConfig,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    parameters: u64,
    weight_type: WeightType,
    identity: Identity,
}

impl Parts {
    fn assemble(self, name: String, network: Transformer, device: &Device) -> Model {
        let Self {
            config,
            generation_config,
            tokenizer,
            chat_template,
            parameters,
            weight_type,
            identity,
        } = self;
        let pass_bytes = pass_bytes(&network);
        let mut language_model = TransformerModel::new(network, &config.transformer, device);
        if let Some(tokenizer) = &tokenizer {
            language_model.limit_vocab(tokenizer.vocab());
            language_model.ban(holes(tokenizer, language_model.vocab()));
        }
        let (eos, unknown_eos) = eos(&generation_config, &config, tokenizer.as_ref())
            .into_iter()
            .partition(|token| token.index() < language_model.vocab());
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
            language_model,
        }
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of all weights, less tables of which a pass reads single rows only.
fn pass_bytes(network: &Transformer) -> u64 {
    struct Bytes(u64);
    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }

        /// Blocks.
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let tensor = param.val();
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
        }
    }
    let mut bytes = Bytes(0);
    network.visit(&mut bytes);
    bytes.0 - network.table_bytes()
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
