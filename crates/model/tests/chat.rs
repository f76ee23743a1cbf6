//! Chat templates: six real ones against transformers, and those that misbehave.

use std::collections::BTreeMap;

use draftproof_model::{ChatTemplate, Error, chat::Message};
use jiff::{ZonedDateTime, civil, tz::TimeZone};
use serde_json::{Value, json};

use crate::support::golden;

/// The moment at which the references were made.
fn now() -> ZonedDateTime {
    let time = civil::date(2026, 3, 5).at(14, 7, 9, 0);
    time.to_zoned_datetime(TimeZone::UTC).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    ChatTemplate::new("file", source, tokens.map(|(a, b)| (a.into(), b.into())).into())
}

fn messages(list: &Value) -> Vec<Message> {
    Message::parse_list("messages", list.to_string().as_bytes()).unwrap()
}

fn render(source: &str, list: &Value) -> Result<String, Error> {
    template(source).render_at(&messages(list), &now())
}

fn read(name: &str) -> String {
    std::fs::read_to_string(golden("chat").join(name)).unwrap()
}

#[test]
fn real_templates_are_rendered_as_transformers_renders_them() {
    let references: Value = serde_json::from_str(&read("references.json")).unwrap();
    let tokens: Value = serde_json::from_str(&read("tokens.json")).unwrap();
    let (mut texts, mut refusals) = (0, 0);
    for (name, rows) in references["rendered"].as_object().unwrap() {
        let tokens: BTreeMap<String, String> =
            serde_json::from_value(tokens[name].clone()).unwrap();
        let template = ChatTemplate::new(name, &read(&format!("{name}.jinja")), tokens);
        for (conversation, expected) in rows.as_object().unwrap() {
            let messages = references["conversations"][conversation].as_str().unwrap();
            let messages = Message::parse_list(conversation, messages.as_bytes()).unwrap();
            let found = template.render_at(&messages, &now());
            match (found, expected["text"].as_str()) {
                (Ok(found), Some(expected)) => {
                    assert_eq!(found, expected, "{name}, {conversation}");
                    texts += 1;
                }
                (Err(Error::ChatRefused { reason, .. }), None) => {
                    let expected = expected["raises"].as_str().unwrap();
                    assert_eq!(format!("TemplateError: {reason}"), expected);
                    refusals += 1;
                }
                (found, _) => panic!("{name}, {conversation}: {found:?}"),
            }
        }
    }
    assert_eq!((texts, refusals), (47, 7));
}

/// What templates in the wild use beyond those six, with what Jinja and transformers make of it.
#[test]
fn functions_of_transformers() {
    let user = json!([{"role": "user", "content": "x"}]);
    for (source, expected) in [
        ("{{ strftime_now('%Y-%m-%d %H:%M %B') }}", "2026-03-05 14:07 March"),
        ("{{ strftime_now('%-d %b') }}", "5 Mar"),
        (
            "{{ {'b': [1, 2.0, 1e-7, 1e22], 'a': '<é\"\\n>'} | tojson }}",
            r#"{"b": [1, 2.0, 1e-07, 1e+22], "a": "<é\"\n>"}"#,
        ),
        (
            "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
        ),
        ("{{ [none, true, false] | tojson }}", "[null, true, false]"),
        ("{{ true }} {{ none }} {{ missing }}", "True None "),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}|", "<s></s>|"),
        ("a {%- generation -%} {{ 1 }} {%- endgeneration %} b", "a1 b"),
        ("{{ '{% generation' }}", "{% generation"),
        ("{% if tools is defined and tools is none and add_generation_prompt %}y{% endif %}", "y"),
        ("{{ messages[-1].content.upper() ~ ' a b '.strip().split(' ')[1] }}", "Xb"),
    ] {
        assert_eq!(render(source, &user).unwrap(), expected, "{source}");
    }
}

#[test]
fn templates_that_fail_say_so() {
    let user = json!([{"role": "user", "content": "x"}]);
    for (source, needle) in [
        ("{% if %}", "syntax error"),
        ("{{ 1 / 0 }}", "unable to calculate"),
        ("{{ messages.foo.bar }}", "undefined"),
        ("{{ messages[0].content.nothing() }}", "nothing"),
        ("{{ strftime_now('%!') }}", "strftime_now"),
        ("{% include 'other' %}", "include"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "fuel"),
        (
            "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}\
          {{ n.x | tojson }}",
            "fuel",
        ),
        (
            "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}\
          {{ n.x | tojson }}",
            "levels",
        ),
        ("{{ [1] | tojson(indent=99999999999) }}", "16 spaces"),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", "ensure_ascii"),
        ("{{ 1 | tojson(sort_keys=true) }}", "sort_keys"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ] {
        let error = render(source, &user).unwrap_err();
        assert!(matches!(error, Error::ChatTemplate { .. }), "{source}: {error}");
        let error = error.to_string();
        assert!(error.contains("file: the chat template fails: "), "{source}: {error}");
        assert!(error.to_lowercase().contains(needle), "{source}: {error}");
    }
    let error = render("{{ raise_exception('no ' + messages[0].role) }}", &user).unwrap_err();
    assert_eq!(error.to_string(), "file: the chat template refuses the messages: no user");
    // Also from within a macro, a loop, an expression.
    let nested = "{% macro f() %}{% for m in messages %}{{ raise_exception('deep') }}{% endfor %}\
                  {% endmacro %}{{ f() }}";
    assert!(matches!(render(nested, &user).unwrap_err(), Error::ChatRefused { .. }));
}

#[test]
fn messages_that_are_none_are_refused() {
    for (text, needles) in [
        ("", vec!["line 1"]),
        ("{}", vec!["expected a sequence"]),
        ("[7]", vec!["message 0: expected an object with role and content, found 7"]),
        (
            r#"[{"role": "user", "content": "x"}, {"content": "x"}]"#,
            vec!["message 1, role: expected one of system", "found nothing"],
        ),
        (r#"[{"role": "usr", "content": "x"}]"#, vec!["message 0, role", r#"found "usr""#]),
        (r#"[{"role": ["user"], "content": "x"}]"#, vec![r#"found ["user"]"#]),
        (
            r#"[{"role": "user"}]"#,
            vec!["content: expected a text, or a list of parts, found nothing"],
        ),
        (r#"[{"role": "user", "content": 7}]"#, vec!["content", "found 7"]),
    ] {
        let error = Message::parse_list("turns.json", text.as_bytes()).unwrap_err().to_string();
        for needle in [vec!["turns.json: "], needles].concat() {
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
    let calls = json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]);
    assert_eq!(messages(&calls)[0].role(), "assistant");
}
