//! `--setting LABEL=FLAGS`: the flags of `generate`, read by the parser of `generate`.

use anyhow::{Result, bail, ensure};
use clap::Parser;

use crate::args::{EvaluateArguments, GenerateArguments, Mask, SettingArguments};

/// A setting as typed.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) label: String,
    pub(super) flags: String,
    pub(super) generate: GenerateArguments,
}

/// All settings; one without flags if none was typed.
pub(super) fn all(arguments: &EvaluateArguments) -> Result<Vec<Setting>> {
    let typed = match arguments.setting.as_slice() {
        [] => &["default=".to_owned()],
        typed => typed,
    };
    let mut settings: Vec<Setting> = Vec::with_capacity(typed.len());
    for typed in typed {
        let setting = one(typed, arguments)?;
        ensure!(
            settings.iter().all(|other| other.label != setting.label),
            "--setting: two settings have the label {}",
            setting.label
        );
        settings.push(setting);
    }
    Ok(settings)
}

fn one(typed: &str, arguments: &EvaluateArguments) -> Result<Setting> {
    let parts = typed.split_once('=').map(|(label, flags)| (label.trim(), flags.trim()));
    let named = parts.filter(|(label, _)| !label.is_empty() && !label.starts_with('-'));
    let Some((label, flags)) = named else {
        bail!("--setting: expected LABEL=FLAGS, such as 'cool=--temperature 0.7', found {typed:?}");
    };
    let mut words: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    // What all settings share, unless this one says otherwise.
    let defaults =
        [("--model", arguments.model.clone()), ("--max-tokens", arguments.max_tokens.to_string())];
    for (flag, value) in defaults {
        let is_typed = |word: &String| {
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if !words.iter().any(is_typed) {
            words.extend([flag.to_owned(), value]);
        }
    }
    let generate = match SettingArguments::try_parse_from(words) {
        Ok(parsed) => parsed.generate,
        Err(error) => {
            let error = error.to_string();
            let line = error.lines().next().unwrap_or_default();
            bail!("--setting {label}: {}", line.strip_prefix("error: ").unwrap_or(line));
        }
    };
    if let Some(flag) = misplaced(&generate) {
        bail!("--setting {label}: {flag} is not part of a setting; all share one");
    }
    ensure!(
        generate.watermark.watermark_mask == Mask::Sequence,
        "--setting {label}: --watermark-mask batch makes texts one after another; use sequence"
    );
    Ok(Setting { label: label.into(), flags: flags.into(), generate })
}

/// What a setting cannot have of its own: the same prompts and seeds are for all, and the output is
/// evaluate's.
fn misplaced(generate: &GenerateArguments) -> Option<&'static str> {
    let (prompt, chat) = (&generate.prompt, &generate.chat);
    let flags = [
        ("a prompt", prompt.prompt.is_some()),
        ("--prompt-file", prompt.prompt_file.is_some()),
        ("--prompt-ids", prompt.prompt_ids.is_some()),
        ("--chat", chat.chat),
        ("--system", chat.system.is_some()),
        ("--chat-file", chat.chat_file.is_some()),
        ("--seed", generate.seed.is_some()),
        ("--n", generate.n != 1),
        ("--trace", generate.trace.is_some()),
        ("--json", generate.json),
        ("--show-draft", generate.show_draft),
    ];
    flags.into_iter().find(|(_, typed)| *typed).map(|(flag, _)| flag)
}
