//! Tiny models in Hugging Face's layout, written on the fly, whose logits a test chooses.
//!
//! A [`Tiny`] is a Llama of one layer that adds nothing to the residual stream, with one-hot
//! embeddings and an untied head. So the logits after token i are column i of the head: a table
//! that the test fills. Every logit is a sum with a single term that is not zero; it has the same
//! bits however a matrix product is computed, so what holds "bit for bit" can be tested on these
//! models whatever kernels serve them.
//!
//! Ids 0 and 1 are the special tokens `<s>` and `</s>` (eos); the words follow from id 2 on.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const EOS: u32 = 1;
/// The id of the first word.
pub(crate) const FIRST: u32 = 2;
/// A logit that leaves no chance to tokens of logit 0.
pub(crate) const SURE: f32 = 60.0;

/// Shape and values, row-major.
pub(crate) type Tensor = (Vec<usize>, Vec<f32>);

/// A model in the making; all its parts may be changed before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Tiny {
    pub(crate) vocab: usize,
    pub(crate) config: Value,
    pub(crate) generation: Option<Value>,
    pub(crate) tokenizer: Option<Value>,
    pub(crate) tokenizer_config: Option<Value>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    hidden: usize,
}

impl Tiny {
    /// A model of these words (bytes, which need not be whole characters), all logits 0.
    pub(crate) fn new<W: AsRef<[u8]>>(words: &[W]) -> Self {
        let vocab = words.len() + FIRST as usize;
        // A power of 4: the norm scales a one-hot row by its root, which is then exact.
        let hidden = 4_usize.pow((vocab as f64).log(4.0).ceil() as u32).max(16);
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": 2,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "head_dim": 2,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-12,
            "rope_theta": 10000.0,
            "tie_word_embeddings": false,
            "bos_token_id": 0,
            "eos_token_id": EOS,
        });
        let mut tiny = Self {
            vocab,
            config,
            generation: None,
            tokenizer: Some(byte_level(words)),
            tokenizer_config: None,
            tensors: BTreeMap::new(),
            hidden,
        };
        let layer = "model.layers.0";
        for (name, shape) in [
            ("self_attn.q_proj", [2, hidden]),
            ("self_attn.k_proj", [2, hidden]),
            ("self_attn.v_proj", [2, hidden]),
            ("self_attn.o_proj", [hidden, 2]),
            ("mlp.gate_proj", [2, hidden]),
            ("mlp.up_proj", [2, hidden]),
            ("mlp.down_proj", [hidden, 2]),
        ] {
            tiny.fill(&format!("{layer}.{name}.weight"), &shape, |_| 0.0);
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tiny.fill(&format!("{layer}.{name}.weight"), &[hidden], |_| 1.0);
        }
        tiny.fill("model.norm.weight", &[hidden], |_| 1.0);
        let one_hot = |i: usize| if i / hidden == i % hidden { 1.0 } else { 0.0 };
        tiny.fill("model.embed_tokens.weight", &[vocab, hidden], one_hot);
        tiny.fill("lm_head.weight", &[vocab, hidden], |_| 0.0);
        tiny
    }

    /// A model of so many one-letter words: a, b, c…
    pub(crate) fn letters(count: usize) -> Self {
        let letters: Vec<[u8; 1]> = (b'a'..).map(|letter| [letter]).take(count).collect();
        Self::new(&letters)
    }

    fn fill(&mut self, name: &str, shape: &[usize], value: impl Fn(usize) -> f32) {
        let values = (0..shape.iter().product()).map(value).collect();
        self.tensors.insert(name.into(), (shape.to_vec(), values));
    }

    /// Sets the logit of `token` after `last`.
    pub(crate) fn logit(mut self, last: u32, token: u32, logit: f32) -> Self {
        let (scale, column) = ((self.hidden as f32).sqrt(), last as usize);
        let row = token as usize * self.hidden;
        self.tensor("lm_head.weight")[row + column] = logit / scale;
        self
    }

    /// Every token of the path is followed by the next, with certainty for all purposes.
    pub(crate) fn path(mut self, path: &[u32]) -> Self {
        for pair in path.windows(2) {
            self = self.logit(pair[0], pair[1], SURE);
        }
        self
    }

    /// Logits from a table of pseudo-random numbers between -2 and 2, the specials far below.
    pub(crate) fn noisy(mut self, seed: u32) -> Self {
        let vocab = self.vocab as u32;
        for last in 0..vocab {
            for token in 0..vocab {
                self = self.logit(last, token, noisy_logit(seed, last, token));
            }
        }
        self
    }

    pub(crate) fn context(mut self, context: usize) -> Self {
        self.config["max_position_embeddings"] = context.into();
        self
    }

    /// Leaves out `tokenizer.json`.
    pub(crate) fn without_tokenizer(mut self) -> Self {
        self.tokenizer = None;
        self
    }

    /// The values of a tensor.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut [f32] {
        let (_, values) = self.tensors.get_mut(name).unwrap_or_else(|| panic!("no {name}"));
        values
    }

    /// The row of the embedding of `token`: what it says goes for every position from there on.
    pub(crate) fn embedding(&mut self, token: u32) -> &mut [f32] {
        let hidden = self.hidden;
        let row = token as usize * hidden;
        &mut self.tensor("model.embed_tokens.weight")[row..row + hidden]
    }

    /// The file of weights.
    pub(crate) fn safetensors(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (shape, values)) in &self.tensors {
            let start = data.len();
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let offsets = [start, data.len()];
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
            header.insert(name.clone(), entry);
        }
        let header = Value::from(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    /// Writes the folder; it goes when the handle does.
    pub(crate) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.write_to(folder.path());
        folder
    }

    fn write_to(&self, folder: &Path) {
        let put = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("written");
        put("model.safetensors", &self.safetensors());
        let files = [
            ("config.json", Some(&self.config)),
            ("generation_config.json", self.generation.as_ref()),
            ("tokenizer.json", self.tokenizer.as_ref()),
            ("tokenizer_config.json", self.tokenizer_config.as_ref()),
        ];
        for (name, value) in files {
            if let Some(value) = value {
                put(name, value.to_string().as_bytes());
            }
        }
    }
}

/// The logit in the table of [`Tiny::noisy`].
pub(crate) fn noisy_logit(seed: u32, last: u32, token: u32) -> f32 {
    if token < FIRST {
        return -SURE;
    }
    let mut x = seed.wrapping_mul(0x9E37_79B9) ^ (last << 16 | token).wrapping_mul(0x85EB_CA6B);
    for _ in 0..3 {
        x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
    }
    // Quarters: exact in f32, so ties occur and are exact ties.
    f32::from((x >> 24) as u8 % 17) / 4.0 - 2.0
}

/// The ids of letters in a model of [`Tiny::letters`].
pub(crate) fn spell(letters: &str) -> Vec<u32> {
    letters.bytes().map(|letter| u32::from(letter - b'a') + FIRST).collect()
}

/// A `tokenizer.json` of the byte-level kind without merges: fit to decode, and to encode single
/// bytes that are words.
pub(crate) fn byte_level<W: AsRef<[u8]>>(words: &[W]) -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let mut vocab = json!({"<s>": 0, "</s>": EOS});
    for (id, word) in (FIRST..).zip(words) {
        let written: String = word.as_ref().iter().map(|&byte| written(byte)).collect();
        assert!(vocab.get(&written).is_none(), "{written} occurs twice");
        vocab[written] = id.into();
    }
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": false});
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<s>"), special(EOS, "</s>")],
        "pre_tokenizer": bytes,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// How byte-level vocabularies write a byte: printable ones as themselves, the others as the
/// characters from U+0100 on, in order.
pub(crate) fn written(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("a character")
}

/// The byte that a character of a byte-level vocabulary stands for.
pub(crate) fn byte_of(character: char) -> u8 {
    let found = (0..=u8::MAX).find(|&byte| written(byte) == character);
    found.unwrap_or_else(|| panic!("{character} stands for no byte"))
}
