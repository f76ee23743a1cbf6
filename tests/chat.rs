//! Conversations: the model's own template, and the ends that come with the model.

use std::{fs, path::PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    harness::{generate, golden, text, tokens},
    tiny::{EOS, Tiny, spell},
};

/// Says `<s>role: content` for each turn, each ended by a newline, then `assistant: `.
const MODEL: &str = "llama";
const WORDS: &str = "--seed 5 --max-tokens 12";

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    path
}

/// The special token of the template is encoded as such, and none is added: the text that the
/// template makes gives the same tokens when it is typed without `<s>`, which `generate` adds.
#[test]
fn a_conversation_is_the_text_of_the_template() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = golden(MODEL);
    let turns = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}"#;
    let open = file(&folder, "open.json", &format!("{turns}]"));
    let asked =
        file(&folder, "asked.json", &format!(r#"{turns}, {{"role": "user", "content": "So?"}}]"#));
    let command = || generate(WORDS).model(&model);
    let typed = |text: &str| tokens(&command().arg(text).json());
    let one = "user: Hi\nassistant: ";
    for run in [
        command().words("--chat Hi"),
        command().words("--chat").stdin("Hi"),
        command().words("--chat --prompt-file").arg(file(&folder, "prompt.txt", "Hi")),
    ] {
        assert_eq!(tokens(&run.json()), typed(one));
    }
    let told = command().words("--chat --system").arg("Be brief.").arg("Hi");
    assert_eq!(tokens(&told.json()), typed(&format!("system: Be brief.\n{one}")));
    let several = "user: Hi\nassistant: Ho\nuser: So?\nassistant: ";
    assert_ne!(typed(several), typed(one), "the conversation has no influence");
    for run in [
        command().arg("--chat-file").arg(&asked),
        command().arg("--chat-file").arg(&open).arg("So?"),
        command().words("--chat --chat-file").arg(&open).arg("So?"),
        // Nobody waits for standard input when the file says all.
        command().arg("--chat-file").arg(&asked).stdin("What?"),
    ] {
        assert_eq!(tokens(&run.json()), typed(several));
    }
    let told = command().arg("--chat-file").arg(&asked).words("--system X");
    assert_eq!(tokens(&told.json()), typed(&format!("system: X\n{several}")));
}

/// After the letter that the template ends with, the model says the next two.
fn says(template: serde_json::Value) -> Tiny {
    let mut model = Tiny::letters(8).path(&spell("abcd")).path(&spell("efgh"));
    model.tokenizer_config = Some(json!({"chat_template": template}));
    model
}

#[test]
fn templates_come_from_where_models_keep_them() {
    let answer = |folder: &TempDir| {
        let run = generate("--chat --temperature 0 --max-tokens 2").arg("a").model(folder);
        run.ok().stdout
    };
    let last = "{{ messages[-1].content }}";
    assert_eq!(answer(&says(json!(last)).write()), "bc");
    let several = json!([
        {"name": "tool_use", "template": "e"},
        {"name": "default", "template": last},
    ]);
    assert_eq!(answer(&says(several).write()), "bc");
    // A file of its own goes before.
    let folder = says(json!(last)).write();
    file(&folder, "chat_template.jinja", "{{ messages[-1].content }}e");
    assert_eq!(answer(&folder), "fg");
    let mut bare = says(json!(null));
    bare.tokenizer_config = None;
    let folder = bare.write();
    file(&folder, "chat_template.jinja", "e");
    assert_eq!(answer(&folder), "fg");
}

#[test]
fn a_conversation_ends_where_the_model_says() {
    let path = spell("abcdefg");
    let mut model = Tiny::letters(8).path(&path);
    model.tokenizer_config = Some(json!({"chat_template": "{{ messages[-1].content }}"}));
    let run = |model: &Tiny, words: &str| {
        generate("--chat --temperature 0 --max-tokens 5")
            .words(words)
            .arg("a")
            .model(&model.write())
            .json()
    };
    model.generation = Some(json!({"eos_token_id": [EOS, path[3]], "do_sample": false}));
    let object = run(&model, "");
    assert_eq!((text(&object), &object["finish_reason"]), ("bc", &json!("eos")));
    model.generation = Some(json!({"stop_strings": ["de", "x"]}));
    let object = run(&model, "");
    assert_eq!((text(&object), &object["finish_reason"]), ("bc", &json!("stop")));
    assert_eq!(text(&run(&model, "--stop c")), "b");
    assert_eq!(text(&run(&model, "--ignore-eos")), "bcdef");
}

#[test]
fn conversations_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = golden(MODEL);
    let with = |name: &str, text: &str| {
        generate("--seed 1").model(&model).arg("--chat-file").arg(file(&folder, name, text))
    };
    with("a.json", "[").fails(&["a.json", "EOF"]);
    with("b.json", r#"[{"role": "usr", "content": "x"}]"#).fails(&[
        "b.json: message 0, role: expected one of system, developer, user, assistant, tool, found \"usr\"",
    ]);
    with("c.json", r#"[{"role": "user"}]"#).fails(&["c.json: message 0, content: expected"]);
    with("d.json", "[]").fails(&["no message to answer"]);
    with("e.json", r#"[{"role": "assistant", "content": "x"}]"#).fails(&["assistant's turn"]);
    with("f.json", r#"[{"role": "system", "content": "x"}]"#)
        .words("--system y z")
        .fails(&["--system", "begins with a system message already"]);
    generate("--chat-file /nowhere/t.json x").model(&model).fails(&["/nowhere/t.json", "No such"]);

    generate("--chat x").fails(&["fable/target has no chat template", "--chat"]);
    let silent = Tiny::letters(4).without_tokenizer().write();
    generate("--chat x").model(&silent).fails(&["has no tokenizer", "--chat"]);
    let refused = |template: serde_json::Value, needles: &[&str]| {
        generate("--chat x").model(&says(template).write()).fails(needles);
    };
    refused(
        json!("{{ raise_exception('Only ' ~ messages | length ~ ' turns') }}"),
        &["tokenizer_config.json: the chat template refuses the messages: Only 1 turns"],
    );
    refused(json!("{% if %}"), &["tokenizer_config.json: the chat template fails: syntax error"]);
    refused(
        json!("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        &["fuel"],
    );
    refused(json!(7), &["tokenizer_config.json: chat_template: expected a text"]);
    refused(json!([{"name": "rag", "template": "x"}]), &["named \"default\""]);
    // A template that nobody asks for may be broken.
    let broken = says(json!("{% if %}")).write();
    generate("--max-tokens 1 --seed 1 a").model(&broken).ok();
}
