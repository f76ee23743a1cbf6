//! `generate --chat`: the prompt as a conversation, written out by the model's own template.

use anyhow::{Context, Result, bail, ensure};
use draftproof_decode::Token;
use draftproof_model::{Model, chat::Message};

use crate::{
    args::{ChatArguments, PromptArguments},
    settings,
};

/// Whether the prompt is a conversation.
pub(crate) fn wanted(arguments: &ChatArguments) -> Result<bool> {
    let wanted = arguments.chat || arguments.chat_file.is_some();
    ensure!(wanted || arguments.system.is_none(), "--system is not used without --chat; drop it");
    Ok(wanted)
}

/// The tokens that ask for the model's next turn.
pub(crate) fn prompt(
    arguments: &ChatArguments,
    prompt: &PromptArguments,
    target: &Model,
) -> Result<Vec<Token>> {
    let name = target.name();
    let Some(tokenizer) = target.tokenizer() else {
        bail!("{name} has no tokenizer; --chat needs one");
    };
    let Some(template) = target.chat_template() else {
        bail!(
            "{name} has no chat template: expected one in tokenizer_config.json, \
             chat_template.jinja or the GGUF file; drop --chat to give it the text as it is"
        );
    };
    // The special tokens are in the text.
    Ok(tokenizer.encode_bare(&template.render(&conversation(arguments, prompt)?)?)?)
}

/// The turns of the file, a system prompt in front, the prompt as the last turn.
fn conversation(arguments: &ChatArguments, prompt: &PromptArguments) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    if let Some(file) = &arguments.chat_file {
        let name = file.display().to_string();
        let bytes = std::fs::read(file).with_context(|| name.clone())?;
        messages = Message::parse_list(&name, &bytes)?;
    }
    if let Some(system) = &arguments.system {
        ensure!(
            messages.first().is_none_or(|first| first.role() != "system"),
            "--system: the conversation begins with a system message already"
        );
        messages.insert(0, Message::system(system));
    }
    // Standard input is read only where nothing else says anything.
    let given = prompt.prompt.is_some() || prompt.prompt_file.is_some();
    if given || arguments.chat_file.is_none() {
        messages.push(Message::user(&settings::prompt_text(prompt)?));
    }
    match messages.last().map(Message::role) {
        None => bail!("the conversation has no message to answer"),
        Some("assistant") => bail!(
            "the conversation ends with the assistant's turn; expected one to answer, in the file \
             or as the prompt"
        ),
        Some(_) => Ok(messages),
    }
}
