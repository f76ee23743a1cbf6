//! GGUF files, through the binary.

use std::{fs, path::PathBuf};

use crate::harness::{
    DRAFTERS, RULES, generate, golden, ids, read_json, text, tokens, with_drafter,
};

fn file(name: &str) -> PathBuf {
    golden("llama-gguf").join(name)
}

const FILES: [(&str, &str); 2] = [("llama-tiny-f32.gguf", "f32"), ("llama-tiny-q8_0.gguf", "q8_0")];

/// The ids of the reference's prompt, and what follows greedily.
fn reference(weights: &str) -> [Vec<u32>; 2] {
    let json = read_json("crates/model/tests/golden/llama-gguf/greedy.json");
    [ids(&json["input_ids"]), ids(&json["greedy_ids"][weights])]
}

#[test]
fn greedy_tokens_are_the_references() {
    for (name, weights) in FILES {
        let [prompt, expected] = reference(weights);
        assert_eq!(expected.len(), 32);
        let run = generate("--ignore-eos --temperature 0 --max-tokens 32 --drafter ngram");
        let found = run.model(&file(name)).ids(&prompt).json();
        assert_eq!(tokens(&found), expected, "{name}");
        // Kernels that read no blocks get the values.
        let run = generate("--ignore-eos --temperature 0 --max-tokens 32 --kernels general");
        assert_eq!(tokens(&run.model(&file(name)).ids(&prompt).json()), expected, "{name}");
    }
}

/// Target and draft may be stored differently, and neither changes the text.
#[test]
fn a_draft_of_another_type_changes_nothing() {
    let [prompt, expected] = reference("q8_0");
    let (target, draft) = (file("llama-tiny-q8_0.gguf"), file("llama-tiny-f32.gguf"));
    for rule in RULES {
        for drafter in DRAFTERS {
            let run = generate("--ignore-eos --temperature 0 --max-tokens 32 --verify").arg(rule);
            let run = with_drafter(run.model(&target).ids(&prompt), drafter, &draft);
            assert_eq!(tokens(&run.json()), expected, "{rule}, {drafter}");
        }
    }
    let folder = golden("llama");
    let run = generate("--ignore-eos --temperature 0 --max-tokens 32").ids(&prompt);
    assert_eq!(tokens(&run.model(&target).draft(&folder).json()), expected);
}

#[test]
fn the_tokenizer_in_the_file_reads_and_writes() {
    let run = |model: &PathBuf| {
        let run = generate("--seed 3 --max-tokens 20 --ignore-eos").model(model);
        run.arg("Once upon a time").json()
    };
    let (found, folder) = (run(&file(FILES[0].0)), run(&golden("llama")));
    assert_eq!(tokens(&found), tokens(&folder));
    assert_eq!(text(&found), text(&folder));
}

#[test]
fn files_that_lie_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("spoilt.gguf");
    let whole = fs::read(file(FILES[1].0)).expect("a file");
    let place = |needle: &str| {
        let found = whole.windows(needle.len()).position(|bytes| bytes == needle.as_bytes());
        found.expect("the name is in the file") + needle.len()
    };
    let refused = |bytes: &[u8], needles: &[&str]| {
        fs::write(&path, bytes).expect("written");
        let needles = [&["spoilt.gguf"], needles].concat();
        generate("--seed 1 --prompt-ids 2").model(&path).fails(&needles);
        generate("--seed 1 --prompt-ids 2").model(&file(FILES[0].0)).draft(&path).fails(&needles);
    };
    let patched = |at: usize, bytes: &[u8]| {
        let mut all = whole.clone();
        all[at..at + bytes.len()].copy_from_slice(bytes);
        all
    };
    refused(b"", &["end of the file"]);
    refused(&whole[..5000], &["end of the file"]);
    refused(&whole[..whole.len() - 300], &["tensor blk.2.attn_v.weight", "end of the file"]);
    refused(&patched(8, &u64::MAX.to_le_bytes()), &["65536 tensors"]);
    // Behind a tensor's name: rank, two dimensions, type, offset.
    let query = "blk.1.attn_q.weight";
    let at = place(query);
    refused(&patched(at, &7_u32.to_le_bytes()), &["tensor", query, "dimensions"]);
    refused(&patched(at + 4, &(1_u64 << 61).to_le_bytes()), &["tensor", query]);
    refused(&patched(at + 20, &16_u32.to_le_bytes()), &["tensor", query, "ggml type 16"]);
    refused(&patched(at + 24, &1_u64.to_le_bytes()), &["tensor", query, "offset"]);
    let blocks = place("llama.block_count") + 4;
    refused(&patched(blocks, &9_u32.to_le_bytes()), &["tensor blk.3.attn_q.weight"]);
}
