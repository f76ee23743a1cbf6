use std::{
    fs,
    path::{Path, PathBuf},
};

use draftproof_decode::{
    LanguageModel, Token,
    lm::{Pass, Rows, SequenceId},
};
use draftproof_model::{Device, Model, Runner, device};
use safetensors::SafeTensors;
use serde_json::{Map, Value};
use tempfile::TempDir;

/// All of golden.
pub(crate) const CHECKPOINTS: [&str; 20] = [
    "llama",
    "llama3-rope",
    "llama-bias-linear",
    "llama-bf16",
    "llama-sharded",
    "pair-target",
    "pair-draft",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-yarn",
    "gemma2",
    "gemma3",
    "phi3",
    "smollm3",
    "gpt2",
    "ouro",
    "huginn",
    "parcae",
    "looped-qwen3",
];

/// Those of which some layers run several times.
pub(crate) const LOOPED: [&str; 4] = ["ouro", "huginn", "parcae", "looped-qwen3"];

/// See golden/README.md.
pub(crate) const TOLERANCE: f32 = 2e-4;

pub(crate) fn cpu() -> Device {
    device::open("cpu").unwrap()
}

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub(crate) fn open(name: &str) -> Runner {
    Model::open(&golden(name), &cpu()).unwrap().into_language_model()
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

/// What transformers computed for a golden folder.
pub(crate) struct Reference(Vec<u8>);

impl Reference {
    pub(crate) fn of(name: &str) -> Self {
        Self::read(&golden(name).join("reference.safetensors"))
    }

    pub(crate) fn read(file: &Path) -> Self {
        Self(fs::read(file).unwrap())
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<Token> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = tensors.tensor(name).unwrap().data().to_vec();
        let ids = bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
        ids.map(|id| Token(u32::try_from(id).unwrap())).collect()
    }

    pub(crate) fn rows(&self, name: &str) -> Rows {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let width = tensors.tensor(name).unwrap().shape()[1];
        Rows::new(width, self.flat(name))
    }

    /// The values of a tensor of any shape.
    pub(crate) fn flat(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = tensors.tensor(name).unwrap().data().to_vec();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// One pass over one sequence, all rows wanted.
pub(crate) fn feed(model: &mut dyn LanguageModel, sequence: SequenceId, tokens: &[Token]) -> Rows {
    let pass = Pass { sequence, tokens, rows: tokens.len() };
    model.forward(&[pass]).unwrap().remove(0)
}

/// The bits of a model's logits of the ids in a golden folder.
pub(crate) fn logits(name: &str, model: Model) -> Vec<u32> {
    let mut model = model.into_language_model();
    let sequence = model.open().unwrap();
    bits(&feed(&mut model, sequence, &Reference::of(name).ids("input_ids")))
}

/// The largest difference between `found` and the rows of `expected` from `first` on. NaN is
/// infinitely far from everything.
pub(crate) fn distance(found: &Rows, expected: &Rows, first: usize) -> f32 {
    let pairs = (0..found.len()).flat_map(|i| found.row(i).iter().zip(expected.row(first + i)));
    pairs
        .map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() })
        .fold(0., f32::max)
}

pub(crate) fn bits(rows: &Rows) -> Vec<u32> {
    (0..rows.len()).flat_map(|i| rows.row(i)).map(|logit| logit.to_bits()).collect()
}

pub(crate) fn argmax(row: &[f32]) -> Token {
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
    Token::at(best.unwrap())
}

/// What follows a prompt when the likeliest token is taken each time.
pub(crate) fn greedy(model: &mut dyn LanguageModel, prompt: &[Token], count: usize) -> Vec<Token> {
    let sequence = model.open().unwrap();
    let mut next = prompt.to_vec();
    let mut out = Vec::new();
    while out.len() < count {
        let pass = Pass { sequence, tokens: &next, rows: 1 };
        let token = argmax(model.forward(&[pass]).unwrap()[0].row(0));
        out.push(token);
        next = vec![token];
    }
    out
}

/// A copy of a golden folder that a test may damage.
pub(crate) struct Copy(TempDir);

impl Copy {
    pub(crate) fn of(name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        for entry in fs::read_dir(golden(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn open(&self) -> Result<Model, draftproof_model::Error> {
        Model::open(self.path(), &cpu())
    }

    /// The message of the refusal, which must be there.
    pub(crate) fn refusal(&self) -> String {
        self.open().expect_err("the folder must be refused").to_string()
    }

    pub(crate) fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path().join(file)).unwrap()
    }

    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path().join(file), bytes).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path().join(file)).unwrap();
    }

    /// Changes a JSON file in place.
    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let mut json = serde_json::from_slice(&self.read(file)).unwrap();
        change(&mut json);
        self.write(file, serde_json::to_vec(&json).unwrap());
    }

    /// Changes header and data of a safetensors file in place.
    pub(crate) fn edit_weights(
        &self,
        file: &str,
        change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>),
    ) {
        let bytes = self.read(file);
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut json = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let mut data = bytes[8 + header..].to_vec();
        change(&mut json, &mut data);
        let json = serde_json::to_vec(&json).unwrap();
        let mut out = (json.len() as u64).to_le_bytes().to_vec();
        out.extend(json);
        out.extend(data);
        self.write(file, out);
    }
}
