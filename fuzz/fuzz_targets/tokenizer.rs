//! `tokenizer.json`, and a text through what it makes.
#![no_main]

use draftproof_model::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::parse(("tokenizer.json", data), None)
        && let Ok(ids) = tokenizer.encode("Once upon\ta time\u{0}é🙂")
    {
        tokenizer.decode(&ids);
    }
});
