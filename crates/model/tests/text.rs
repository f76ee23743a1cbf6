use std::fs;

use draftproof_decode::Token;
use draftproof_model::{Error, Tokenizer};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{golden, tokens};

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
    tokens: Vec<String>,
    decoded: String,
}

fn file(path: &str) -> Vec<u8> {
    fs::read(golden(path)).unwrap()
}

fn parse(tokenizer: &[u8], config: Option<&Value>) -> Result<Tokenizer, Error> {
    let config = config.map(|config| serde_json::to_vec(config).unwrap());
    Tokenizer::parse(
        ("tokenizer.json", tokenizer),
        config.as_deref().map(|config| ("tokenizer_config.json", config)),
    )
}

fn byte_level() -> Tokenizer {
    let config: Value = serde_json::from_slice(&file("llama/tokenizer_config.json")).unwrap();
    parse(&file("llama/tokenizer.json"), Some(&config)).unwrap()
}

/// SentencePiece's layout: three words, a special token, and every byte.
fn fallback_json() -> Value {
    let words = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "é"];
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let all = words.iter().map(|word| (*word).to_owned()).chain(bytes);
    let vocab: Value = all
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let special = |id: usize| {
        json!({"id": id, "content": words[id], "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "truncation": {"max_length": 3, "stride": 0, "strategy": "LongestFirst",
        "direction": "Right"}, "padding": null, "added_tokens": [special(0), special(1), special(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": [["▁", "a"]]}
    })
}

fn fallback() -> Tokenizer {
    parse(&serde_json::to_vec(&fallback_json()).unwrap(), None).unwrap()
}

#[test]
fn texts_are_encoded_and_decoded_as_by_the_reference() {
    let cases: Vec<Case> = serde_json::from_slice(&file("tokenizer_cases.json")).unwrap();
    assert!(cases.len() > 5);
    let tokenizer = byte_level();
    for case in cases {
        let ids = tokenizer.encode(&case.text).unwrap();
        assert_eq!(ids, tokens(&case.ids), "{:?}", case.text);
        assert_eq!(tokenizer.encode_bare(&case.text).unwrap(), tokens(&case.ids_no_special));
        let strings: Vec<String> =
            ids.iter().map(|&id| tokenizer.token_string(id).unwrap()).collect();
        assert_eq!(strings, case.tokens);
        assert_eq!(tokenizer.decode(&ids), case.decoded);
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(Token(1)), Some(Token(2))));
    assert_eq!(tokenizer.vocab(), 320);
    assert_eq!(tokenizer.token_string(Token(320)), None);
    assert!(tokenizer.is_special(Token(2)) && tokenizer.bytes(Token(2)).is_empty());
}

/// The pieces of an incremental decoding, and what was held back.
fn pieces(tokenizer: &Tokenizer, ids: &[Token]) -> Vec<String> {
    let mut decoder = tokenizer.decoder();
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
    pieces.push(decoder.finish());
    pieces
}

#[test]
fn bytes_of_an_unfinished_code_point_are_held_back() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode_bare("a🙂b").unwrap();
    let expected = ["a", "", "", "", "🙂", "b", ""];
    assert_eq!(pieces(&tokenizer, &ids), expected);
    assert_eq!(pieces(&tokenizer, &ids[..3]), ["a", "", "", "\u{FFFD}"]);
    // An end of text in the middle of a code point does not complete it.
    let cut = [ids[1], Token(2), ids[0]];
    assert_eq!(pieces(&tokenizer, &cut), ["", "", "\u{FFFD}a", ""]);
    let mut decoder = tokenizer.decoder();
    decoder.push(ids[1]);
    assert!(decoder.is_pending());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]
    #[test]
    fn pieces_are_the_full_decoding(ids in prop::collection::vec(0_u32..320, 0..40)) {
        let tokenizer = byte_level();
        let reference = tokenizers::Tokenizer::from_bytes(file("llama/tokenizer.json")).unwrap();
        let expected = reference.decode(&ids, true).unwrap();
        prop_assert_eq!(&pieces(&tokenizer, &tokens(&ids)).concat(), &expected);
        prop_assert_eq!(tokenizer.decode(&tokens(&ids)), expected);
    }

    #[test]
    fn pieces_are_the_full_decoding_of_valid_byte_fallback(text in "[ aé🙂ß]{0,12}") {
        let tokenizer = fallback();
        let ids = tokenizer.encode_bare(&text).unwrap();
        prop_assert_eq!(&pieces(&tokenizer, &ids).concat(), &text);
        let reference = tokenizers::Tokenizer::from_bytes(fallback_json().to_string()).unwrap();
        let raw: Vec<u32> = ids.iter().map(|id| id.0).collect();
        prop_assert_eq!(reference.decode(&raw, true).unwrap(), text);
    }

    #[test]
    fn byte_fallback_is_the_text_of_the_bytes(ids in prop::collection::vec(3_u32..263, 0..30)) {
        let tokenizer = fallback();
        let ids = tokens(&ids);
        let all: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.bytes(id)).collect();
        let lossy = String::from_utf8_lossy(&all).into_owned();
        let expected = lossy.strip_prefix(' ').unwrap_or(&lossy);
        prop_assert_eq!(pieces(&tokenizer, &ids).concat(), expected);
        let mut decoder = tokenizer.decoder_after(&[Token(4)]);
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        prop_assert_eq!(text, lossy);
    }
}

#[test]
fn a_prompt_is_neither_cut_nor_filled_up() {
    // Fifty words and a space; the file would cut after three.
    assert_eq!(fallback().encode_bare(&"a ".repeat(50)).unwrap().len(), 51);
}

#[test]
fn a_space_after_the_prompt_stays() {
    let tokenizer = fallback();
    let word = [Token(5)];
    assert_eq!(tokenizer.decode(&word), "a");
    assert_eq!(tokenizer.decoder_after(&[]).push(word[0]), "a");
    assert_eq!(tokenizer.decoder_after(&[Token(1)]).push(word[0]), "a");
    assert_eq!(tokenizer.decoder_after(&[Token(1), Token(4)]).push(word[0]), " a");
}

#[test]
fn a_bos_is_there_when_asked_for_and_once() {
    let with = file("llama/tokenizer.json");
    let mut raw: Value = serde_json::from_slice(&with).unwrap();
    raw["post_processor"] = Value::Null;
    let without = serde_json::to_vec(&raw).unwrap();
    let first = |file: &[u8], config: Option<Value>| -> Vec<u32> {
        let ids = parse(file, config.as_ref()).unwrap().encode("a").unwrap();
        ids.iter().map(|id| id.0).collect()
    };
    let names = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}});
    let asked = |bos: Value, eos: Value| {
        let mut config = names.clone();
        config["add_bos_token"] = bos;
        config["add_eos_token"] = eos;
        Some(config)
    };
    let (yes, no, silent) = (Value::from(true), Value::from(false), Value::Null);
    let a = 67;
    assert_eq!(first(&without, None), [a]);
    assert_eq!(first(&without, Some(names.clone())), [a]);
    assert_eq!(first(&without, asked(yes.clone(), silent.clone())), [1, a]);
    assert_eq!(first(&without, asked(no.clone(), no.clone())), [a]);
    assert_eq!(first(&without, asked(silent.clone(), yes.clone())), [a, 2]);
    assert_eq!(first(&with, None), [1, a]);
    assert_eq!(first(&with, asked(yes.clone(), no.clone())), [1, a]);
    assert_eq!(first(&with, asked(no, silent.clone())), [a]);
    let nameless = json!({"add_bos_token": true});
    let message = parse(&without, Some(&nameless)).unwrap_err().to_string();
    assert!(message.contains("add_bos_token"), "{message}");
    let unknown = json!({"bos_token": "<none>"});
    let message = parse(&without, Some(&unknown)).unwrap_err().to_string();
    assert!(message.contains("bos_token") && message.contains("<none>"), "{message}");
    // One token for both ends: asked for at the beginning only, it stands there only.
    let both = json!({"bos_token": "<s>", "eos_token": "<s>", "add_bos_token": true,
                      "add_eos_token": false});
    assert_eq!(first(&with, Some(both.clone())), [1, a]);
    assert_eq!(first(&without, Some(both)), [1, a]);
}

#[test]
fn tokenizers_that_are_none_are_errors() {
    let good = file("llama/tokenizer.json");
    for cut in (0..good.len()).step_by(97) {
        assert!(parse(&good[..cut], None).is_err(), "{cut}");
    }
    for text in ["", "{}", "[]", "null", "{\"model\": 3}"] {
        assert!(parse(text.as_bytes(), None).is_err(), "{text}");
    }
    let mut raw: Value = serde_json::from_slice(&good).unwrap();
    raw["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let message = parse(&serde_json::to_vec(&raw).unwrap(), None).unwrap_err().to_string();
    assert!(message.contains("decoder") && message.contains("WordPiece"), "{message}");
    assert!(Tokenizer::parse(("t", &good), Some(("c", b"[1"))).is_err());
}
