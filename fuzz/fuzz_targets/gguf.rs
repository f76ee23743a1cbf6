//! A GGUF file that is whatever the fuzzer likes: metadata, tokenizer and weights.
#![no_main]

use std::{cell::RefCell, fs};

use draftproof_model::{Model, device};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().expect("a folder"));
        let path = folder.path().join("model.gguf");
        fs::write(&path, data).expect("written");
        let device = device::open("cpu").expect("a device");
        if let Ok(model) = Model::open(&path, &device)
            && let Some(tokenizer) = model.tokenizer()
            && let Ok(ids) = tokenizer.encode("Once upon\ta time\u{0}é🙂")
        {
            tokenizer.decode(&ids);
        }
    });
});
