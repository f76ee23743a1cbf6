use std::fs;

use draftproof_decode::{LanguageModel, Token};
use draftproof_kernels::quant::BlockFormat;
use draftproof_model::{Model, WeightType, chat::Message};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    gguf_file::{
        GgufFile, GgufTensor, TEXT, array, bytes_of, number, open, refusal, text, text_item,
    },
    support::{self, Reference, TOLERANCE, cpu, distance, feed, golden, tokens},
};

const F32: &str = "llama-tiny-f32.gguf";
const Q8: &str = "llama-tiny-q8_0.gguf";

fn golden_model(name: &str) -> Model {
    Model::open(&golden("llama-gguf").join(name), &cpu()).unwrap()
}

/// The logits of the reference's ids.
fn logits(model: Model) -> Vec<u32> {
    support::logits("llama", model)
}

#[test]
fn logits_are_those_of_transformers() {
    for (name, reference) in [(F32, "reference-f32"), (Q8, "reference-q8_0")] {
        let file = golden("llama-gguf").join(format!("{reference}.safetensors"));
        let reference = Reference::read(&file);
        let mut model = golden_model(name).into_language_model();
        let sequence = model.open().unwrap();
        let rows = feed(&mut model, sequence, &reference.ids("input_ids"));
        let worst = distance(&rows, &reference.rows("logits_full"), 0);
        assert!(worst < TOLERANCE, "{name}: {worst:e}");
    }
}

/// The same weights in another file, rows of query and key in another order.
#[test]
fn a_file_and_a_folder_of_the_same_weights_give_the_same_bits() {
    let folder = Model::open(&golden("llama"), &cpu()).unwrap();
    let file = golden_model(F32);
    assert_eq!(logits(file), logits(folder));
}

/// Blocks in memory are their values, to the last bit, through the whole model.
#[test]
fn blocks_give_the_bits_of_their_values() {
    let wide = GgufFile::golden(Q8).widened();
    let narrow = golden_model(Q8);
    assert_eq!(narrow.weight_type(), WeightType::Blocks(BlockFormat::Q8_0));
    assert_eq!(narrow.weight_type().to_string(), "Q8_0");
    let wide = wide.open().unwrap();
    assert_eq!(wide.weight_type(), WeightType::F32);
    assert!(narrow.pass_bytes() * 3 < wide.pass_bytes());
    assert_eq!(logits(narrow), logits(wide));
}

#[test]
fn a_file_tells_what_it_is() {
    for name in [F32, Q8] {
        let model = golden_model(name);
        assert_eq!((model.name(), model.parameters(), model.vocab()), (name, 152_000, 320));
        assert_eq!(model.eos(), [Token(2)]);
        assert_eq!(model.config().model_type, "llama");
        let tokenizer = model.tokenizer().unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(Token(1)), Some(Token(2))));
    }
    let [a, b] = [F32, Q8].map(|name| golden_model(name).identity().clone());
    assert_eq!(a.tokenizer, b.tokenizer);
    assert_ne!(a.weights, b.weights);
}

#[test]
fn the_byte_level_tokenizer_in_a_file_is_that_of_the_folder() {
    let model = golden_model(F32);
    let tokenizer = model.tokenizer().unwrap();
    let cases = fs::read(golden("tokenizer_cases.json")).unwrap();
    let cases: Value = serde_json::from_slice(&cases).unwrap();
    let ids = |value: &Value| -> Vec<Token> {
        let ids: Vec<u32> = serde_json::from_value(value.clone()).unwrap();
        tokens(&ids)
    };
    let cases = cases.as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.encode_bare(text).unwrap(), ids(&case["ids_no_special"]), "{text:?}");
        assert_eq!(json!(tokenizer.decode(&ids(&case["ids"]))), case["decoded"], "{text:?}");
    }
}

/// A file with another tokenizer in place of its own.
fn with_tokenizer(model: &str, list: &[(&str, f32, i32)], more: &[(&str, Vec<u8>)]) -> GgufFile {
    let mut file = GgufFile::golden(F32);
    file.items.retain(|(key, _)| !key.starts_with("tokenizer."));
    let mut put = |key: &str, item| file.items.push((format!("tokenizer.ggml.{key}"), item));
    let count = list.len() as u64;
    let strings: Vec<u8> = list.iter().flat_map(|(token, ..)| text(token)).collect();
    let scores: Vec<u8> = list.iter().flat_map(|(_, score, _)| score.to_le_bytes()).collect();
    let types: Vec<u8> = list.iter().flat_map(|(.., kind)| kind.to_le_bytes()).collect();
    put("model", text_item(model));
    put("tokens", array(TEXT, count, &strings));
    put("scores", array(6, count, &scores));
    put("token_type", array(5, count, &types));
    more.iter().for_each(|(key, item)| put(key, item.clone()));
    file
}

/// `none` and `no_vocab` are llama.cpp's words for models of ids only, which have no list of tokens.
#[test]
fn a_file_may_say_that_it_has_no_tokenizer() {
    for kind in ["none", "no_vocab"] {
        let mut file = GgufFile::golden(F32);
        file.items.retain(|(key, _)| !key.starts_with("tokenizer."));
        file.items.push(("tokenizer.ggml.model".into(), text_item(kind)));
        assert!(file.open().expect("a model").tokenizer().is_none(), "{kind}");
        let list = [("<s>", 0.0, 3), ("a", 0.0, 1)];
        let file = with_tokenizer(kind, &list, &[]);
        assert!(file.open().expect("a model").tokenizer().is_none(), "{kind} and tokens");
    }
}

/// The template in a file is rendered with the file's own special tokens.
#[test]
fn the_chat_template_in_a_file() {
    let list = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("a", 0.0, 1)];
    let ids = [("bos_token_id", number(1)), ("eos_token_id", number(2))];
    let mut file = with_tokenizer("llama", &list, &ids);
    assert!(file.open().expect("a model").chat_template().is_none());
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    file.items.push(("tokenizer.chat_template".into(), text_item(template)));
    let model = file.open().expect("a model");
    let rendered = model.chat_template().expect("a template").render(&[Message::user("Hi")]);
    assert_eq!(rendered.expect("a text"), "<s>Hi</s>");
    file.items.pop();
    file.items.push(("tokenizer.chat_template".into(), text_item("{{ raise_exception('no') }}")));
    let model = file.open().expect("a model");
    let error = model.chat_template().expect("a template").render(&[]).expect_err("it raises");
    assert!(error.to_string().contains("tokenizer.chat_template"), "{error}");
}

/// SentencePiece: spaces are letters, the best score joins first, and every byte has a token.
#[test]
fn a_sentence_piece_tokenizer_in_a_file() {
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut list = vec![("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)];
    list.extend(bytes.iter().map(|byte| (byte.as_str(), 0.0, 6)));
    let pieces = ["▁", "a", "b", "ab", "▁a", "bb"];
    let scores = [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0];
    list.extend(pieces.iter().zip(scores).map(|(piece, score)| (*piece, score, 1)));
    list.push(("▁▁▁", 0.0, 4));
    let id = |name: &str| (0..).zip(&list).find(|(_, token)| token.0 == name).unwrap().0;
    let more = |prefix: u8| {
        let flag = [&7_u32.to_le_bytes()[..], &[prefix]].concat();
        [
            ("bos_token_id", number(1)),
            ("eos_token_id", number(2)),
            ("unknown_token_id", number(0)),
            ("add_space_prefix", flag),
        ]
    };
    let check = |prefix: u8, text: &str, expected: &[&str]| {
        let model = with_tokenizer("llama", &list, &more(prefix)).open().unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let found = tokenizer.encode(text).unwrap();
        let expected: Vec<Token> =
            [&["<s>"], expected].concat().iter().map(|name| Token(id(name))).collect();
        assert_eq!(found, expected, "{text:?}");
        assert_eq!(tokenizer.decode(&found), text);
    };
    // "▁a" scores better than "ab", which scores better than "bb".
    check(1, "ab", &["▁a", "b"]);
    check(0, "ab", &["ab"]);
    check(0, "abb", &["ab", "b"]);
    check(0, "bb ab", &["bb", "▁a", "b"]);
    check(0, "aé", &["a", "<0xC3>", "<0xA9>"]);
    // A token that is defined by hand comes before any merge.
    check(0, "a   b", &["a", "▁▁▁", "b"]);
}

/// Names of ways to cut a text into words: of the digits of a number three are a word, or all.
#[test]
fn words_are_cut_as_their_name_says() {
    let list = ["<s>", "1", "2", "3", "4", "12", "34", "123"];
    let kind = |token: &str| if token == "<s>" { 3 } else { 1 };
    let list = list.map(|token| (token, 0.0, kind(token)));
    let merges: Vec<u8> = ["3 4", "1 2", "12 3"].iter().flat_map(|merge| text(merge)).collect();
    for (pre, expected) in [
        ("gpt-2", &[5, 6][..]),
        ("smaug-bpe", &[7, 4]),
        ("dbrx", &[7, 4]),
        ("llama-bpe", &[0, 7, 4]),
    ] {
        let more = [
            ("pre", text_item(pre)),
            ("merges", array(TEXT, 3, &merges)),
            ("bos_token_id", number(0)),
        ];
        let model = with_tokenizer("gpt2", &list, &more).open().unwrap();
        assert_eq!(model.tokenizer().unwrap().encode("1234").unwrap(), tokens(expected), "{pre}");
    }
}

#[test]
fn tokenizers_that_contradict_themselves_are_refused() {
    let list = [("<s>", 0.0, 3), ("a", 0.0, 1), ("b", 0.0, 1), ("ab", -1.0, 1)];
    let merges = |merges: &[&str]| {
        let bytes: Vec<u8> = merges.iter().flat_map(|merge| text(merge)).collect();
        array(TEXT, merges.len() as u64, &bytes)
    };
    let gpt2 = |merge: &str, more: &[(&str, Vec<u8>)]| {
        let mut all = vec![("pre", text_item("gpt-2")), ("merges", merges(&[merge]))];
        all.extend(more.iter().cloned());
        with_tokenizer("gpt2", &list, &all)
    };
    assert!(gpt2("a b", &[]).open().is_ok());
    let cases = [
        (gpt2("a c", &[]), "merges"),
        (gpt2("ab", &[]), "merges"),
        (gpt2("a b", &[("bos_token_id", number(4))]), "bos_token_id"),
        (gpt2("a b", &[("eos_token_id", text_item("x"))]), "eos_token_id"),
        (with_tokenizer("gpt2", &list, &[]), "tokenizer.ggml.pre"),
        (with_tokenizer("gpt2", &list, &[("pre", text_item("odd"))]), "\"odd\""),
        (with_tokenizer("bert", &list, &[]), "\"bert\""),
        (with_tokenizer("llama", &[], &[]), "at least one token"),
    ];
    for (file, needle) in cases {
        let message = file.refusal();
        assert!(message.contains(needle), "{needle}: {message}");
    }
    for key in ["scores", "token_type"] {
        let mut file = with_tokenizer("llama", &list, &[]);
        let kind = if key == "scores" { 6 } else { 5 };
        *file.item(&format!("tokenizer.ggml.{key}")) = array(kind, 3, &[0; 12]);
        let message = file.refusal();
        assert!(message.contains(key) && message.contains("4 tokens"), "{message}");
    }
    // As many merges as letters.
    let long: Vec<String> = (1..400).map(|count| "a".repeat(count)).collect();
    let list: Vec<_> = long.iter().map(|token| (token.as_str(), 0.0, 1)).collect();
    assert!(with_tokenizer("llama", &list, &[]).refusal().contains("split"));
}

#[test]
fn a_file_without_a_tokenizer_takes_ids() {
    let mut file = GgufFile::golden(F32);
    file.items.retain(|(key, _)| !key.starts_with("tokenizer."));
    let model = file.open().unwrap();
    assert!(model.tokenizer().is_none() && model.eos().is_empty());
    assert_eq!(logits(model), logits(golden_model(F32)));
}

#[test]
fn a_file_that_ends_early_is_refused() {
    let all = bytes_of(Q8);
    for len in [0, 1, 3, 4, 7, 8, 23, 24, 31, 200, 5000, 7000, 7871, 7872, 9000, all.len() - 64] {
        let message = refusal(&all[..len]);
        assert!(message.contains("end of the file"), "{len}: {message}");
    }
    // Cut within the last tensor, but for the padding behind it.
    let message = refusal(&all[..all.len() - 33]);
    assert!(message.contains("tensor") && message.contains("end of the file"), "{message}");
}

#[test]
fn beginnings_that_are_none_are_refused() {
    let patched = |at: usize, bytes: &[u8]| {
        let mut all = bytes_of(F32);
        all[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&all)
    };
    assert!(patched(0, b"GGML").contains("\"GGML\""));
    for version in [0, 1, 4, 3_u32.swap_bytes()] {
        assert!(patched(4, &version.to_le_bytes()).contains("version 2 or 3"));
    }
    for (at, what) in [(8, "tensors"), (16, "metadata entries")] {
        for count in [u64::MAX, 1 << 40, 65_537] {
            assert!(patched(at, &count.to_le_bytes()).contains(what));
        }
        for count in [21_u64, 31, 65_536] {
            patched(at, &count.to_le_bytes());
        }
    }
    // The length of the first key.
    for len in [u64::MAX, u64::MAX - 23, 1 << 40, 65_536] {
        let message = patched(24, &len.to_le_bytes());
        assert!(message.contains("metadata key"), "{message}");
    }
    assert!(patched(32, b"\xFF\xFE").contains("UTF-8"));
}

#[test]
fn values_that_cannot_be_are_refused() {
    let tokens = "tokenizer.ggml.tokens";
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("general.architecture", text_item("mamba"), &["\"mamba\"", "llama"]),
        ("general.architecture", number(7), &["a text", "7"]),
        ("general.name", 13_u32.to_le_bytes().to_vec(), &["type 13"]),
        ("general.name", array(9, 1, &[0; 16]), &["type 9"]),
        ("general.name", array(4, u64::MAX, &[]), &["end of the file"]),
        ("general.name", array(10, u64::MAX / 8, &[]), &["end of the file"]),
        ("general.name", array(TEXT, u64::MAX, &[]), &["end of the file"]),
        (tokens, array(TEXT, 1 << 50, &[0; 64]), &["end of the file"]),
        (tokens, array(4, 2, &[0; 8]), &["an array of texts"]),
        (tokens, array(TEXT, 1, &[&1_u64.to_le_bytes()[..], &[0xFF]].concat()), &["UTF-8"]),
        ("llama.block_count", number(0), &["num_hidden_layers"]),
        ("llama.block_count", number(u32::MAX), &["num_hidden_layers"]),
        ("llama.block_count", number(4), &["blk.3.", "no such tensor"]),
        ("llama.block_count", number(2), &["blk.2.", "no use for"]),
        ("llama.embedding_length", number(0), &["rope.dimension_count"]),
        ("llama.embedding_length", number(128), &["rope.dimension_count", "32"]),
        ("llama.attention.head_count", number(0), &["head"]),
        ("llama.attention.head_count", number(8), &["rope.dimension_count"]),
        ("llama.attention.head_count", array(4, 3, &[4; 12]), &["head_count", "an array of 3"]),
        ("llama.attention.head_count_kv", number(3), &["num_key_value_heads"]),
        ("llama.attention.head_count_kv", number(4), &["blk.0.attn_k.weight"]),
        ("llama.feed_forward_length", number(1 << 30), &["blk.0.ffn_gate.weight"]),
        ("llama.context_length", number(1 << 30), &["max_position_embeddings"]),
        ("llama.rope.freq_base", number(0), &["rope_theta"]),
        ("llama.attention.layer_norm_rms_epsilon", text_item("x"), &["epsilon", "a number"]),
        ("tokenizer.ggml.eos_token_id", number(320), &["eos_token_id", "320"]),
    ];
    for (key, item, needles) in cases {
        let mut file = GgufFile::golden(F32);
        *file.item(key) = item;
        let message = file.refusal();
        for needle in needles {
            assert!(message.contains(needle), "{key}: {needle}: {message}");
        }
    }
    let added = |key: &str, item| {
        let mut file = GgufFile::golden(F32);
        file.items.push((key.into(), item));
        file
    };
    for (key, item) in [
        ("llama.expert_count", number(8)),
        ("llama.logit_scale", number(2)),
        ("llama.rope.scaling.type", text_item("longrope")),
        ("general.name", text_item("again")),
        ("general.alignment", number(0)),
        ("general.alignment", number(48)),
        ("general.alignment", number(1 << 31)),
    ] {
        let message = added(key, item).refusal();
        assert!(message.contains(key), "{key}: {message}");
    }
    assert!(added("general.quantized_by", text_item("nobody")).open().is_ok());
    assert!(added("llama.rope.scaling.type", text_item("none")).open().is_ok());
}

const QUERY: &str = "blk.1.attn_q.weight";

fn spoilt(change: impl Fn(&mut GgufFile), needles: &[&str]) {
    let mut file = GgufFile::golden(F32);
    change(&mut file);
    let message = file.refusal();
    for needle in needles {
        assert!(message.contains(needle), "{needle}: {message}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let dims =
        |dims: &'static [u64]| move |file: &mut GgufFile| file.tensor(QUERY).dims = dims.into();
    spoilt(dims(&[]), &[QUERY, "1 to 4 dimensions"]);
    spoilt(dims(&[1, 2, 4, 8, 64]), &[QUERY, "1 to 4 dimensions"]);
    spoilt(dims(&[0, 64]), &[QUERY, "[0, 64]"]);
    spoilt(dims(&[u64::MAX, 64]), &[QUERY]);
    spoilt(dims(&[1 << 33, 1 << 33]), &[QUERY]);
    spoilt(dims(&[1 << 40, 64]), &[QUERY, "end of the file"]);
    spoilt(dims(&[32, 128]), &[QUERY, "shape [64, 64]", "[128, 32]"]);
    spoilt(dims(&[4096]), &[QUERY, "shape [64, 64]"]);
    for (kind, needle) in [(10, "ggml type 10"), (31, "ggml type 31"), (u32::MAX, "F16, BF16")] {
        spoilt(|file| file.tensor(QUERY).kind = kind, &[QUERY, needle]);
    }
    // A row of 64 values is no block of 256.
    spoilt(|file| file.tensor(QUERY).kind = 12, &[QUERY, "whole Q4_K blocks"]);
    spoilt(
        |file| file.tensor(QUERY).name = "blk.1.attn_z.weight".into(),
        &[QUERY, "no such tensor"],
    );
    spoilt(|file| file.tensor(QUERY).name = "blk.0.attn_q.weight".into(), &["blk.0.attn_q.weight"]);
    spoilt(|file| file.tensor(QUERY).name = "x".repeat(65), &["tensor name", "65"]);
    let tensor =
        |name: &str| GgufTensor { name: name.into(), dims: vec![8], kind: 0, data: vec![0; 32] };
    for name in ["blk.3.attn_norm.weight", "blk.0.attn_q.scale", "mm.0.weight"] {
        spoilt(|file| file.tensors.push(tensor(name)), &[name, "no use for"]);
    }
    // The divisors of Llama 3's scaling, which must be that.
    spoilt(
        |file| file.tensors.push(tensor("rope_freqs.weight")),
        &["rope_freqs.weight", "Llama 3"],
    );
    let mut ones = GgufFile::golden(F32);
    ones.tensors
        .push(GgufTensor { data: 1_f32.to_le_bytes().repeat(8), ..tensor("rope_freqs.weight") });
    assert_eq!(logits(ones.open().unwrap()), logits(golden_model(F32)));
}

#[test]
fn places_that_do_not_fit_are_refused() {
    let file = GgufFile::golden(F32);
    for spoil in [
        // Over another, into nowhere, before the end of another, not aligned, far outside.
        (|i, offset| if i == 5 { 0 } else { offset }) as fn(usize, u64) -> u64,
        |i, offset| if i == 29 { u64::MAX } else { offset },
        |i, offset| if i == 29 { u64::MAX - 31 } else { offset },
        |i, offset| if i == 7 { offset - 32 } else { offset },
        |i, offset| if i == 7 { offset + 1 } else { offset },
        |i, offset| if i > 7 { offset + 32 } else { offset },
        |_, offset| offset + (1 << 40),
    ] {
        let message = refusal(&file.bytes_with(spoil));
        assert!(message.contains("tensor ") && message.contains("offset"), "{message}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let nowhere = Model::open(&golden("llama-gguf").join("none.gguf"), &cpu());
    assert!(nowhere.unwrap_err().to_string().contains("none.gguf"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]
    #[test]
    fn no_damaged_file_panics(
        damage in prop::collection::vec((0_usize..9000, any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes_of(Q8);
        for (at, value) in damage {
            bytes[at] = value;
        }
        if let Ok(model) = open(&bytes)
            && let Some(tokenizer) = model.tokenizer()
        {
            drop(tokenizer.encode("Once upon a time\u{0}é🙂"));
        }
    }
}
