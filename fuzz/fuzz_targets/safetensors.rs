//! A folder whose `model.safetensors`, or whose index, is whatever the fuzzer likes.
#![no_main]

use std::{cell::RefCell, fs};

use draftproof_model::{
    config::ModelConfig,
    device,
    load::{Checkpoint, Source},
};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 4, "hidden_size": 8,
    "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "tie_word_embeddings": true}"#;
/// What an index may name.
const SHARD: &[u8] = include_bytes!("../corpus/safetensors/whole");

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().expect("a folder"));
        let place = |name: &str| folder.path().join(name);
        _ = fs::remove_file(place("model.safetensors"));
        let name = match data.first() {
            Some(b'{') => {
                fs::write(place("shard.safetensors"), SHARD).expect("written");
                "model.safetensors.index.json"
            }
            _ => "model.safetensors",
        };
        fs::write(place(name), data).expect("written");
        let config = ModelConfig::parse("config.json", CONFIG.as_bytes()).expect("a config");
        let device = device::open("cpu").expect("a device");
        let source = Source::Folder(folder.path().into());
        if let Ok(mut weights) = Checkpoint::open(&source, &config.transformer, &device) {
            config.transformer.init(&mut weights).expect("checked weights load");
        }
    });
});
