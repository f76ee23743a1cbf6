//! `config.json` and `generation_config.json`.
#![no_main]

use draftproof_model::{GenerationConfig, config::ModelConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = ModelConfig::parse("config.json", data) {
        // A configuration that was accepted can name its tensors, or as many as one looks at.
        let mut seen = 0;
        _ = config.transformer.tensors(&mut |name, shape| {
            assert!(!name.is_empty() && shape.iter().all(|&size| size > 0));
            seen += 1;
            match seen {
                1000.. => Err(draftproof_model::Error::Encode("enough".into())),
                _ => Ok(()),
            }
        });
    }
    _ = GenerationConfig::parse("generation_config.json", data);
});
