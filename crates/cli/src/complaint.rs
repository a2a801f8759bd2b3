//! What is wrong with a command line, in one sentence.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use treecast_lab::LabError;
use treecast_sim::UnknownOffload;
use treecast_terms::{SpecError, nearest_hint};

/// One sentence that names the offending value. Clap's own messages take several lines, and wrap those of our readers.
pub fn sentence(error: &Error) -> String {
    let option = option(error);
    match error.kind() {
        ErrorKind::ValueValidation => value(error, &option),
        ErrorKind::InvalidValue if text(error, ContextKind::InvalidValue).is_empty() => {
            format!("{option} needs a value")
        }
        ErrorKind::InvalidValue => {
            let given = text(error, ContextKind::InvalidValue);
            let what = option.trim_start_matches('-');
            format!("unknown {what} '{given}'{}", nearest_hint(&given, &list(error, ContextKind::ValidValue)))
        }
        ErrorKind::TooManyValues => format!("{option} takes no value"),
        ErrorKind::UnknownArgument if option.starts_with('-') => {
            format!("there is no option '{option}'{}", hint(error, ContextKind::SuggestedArg))
        }
        ErrorKind::UnknownArgument => format!("'{option}' is one word too many"),
        ErrorKind::InvalidSubcommand => {
            let given = text(error, ContextKind::InvalidSubcommand);
            format!("there is no command '{given}'{}", hint(error, ContextKind::SuggestedSubcommand))
        }
        ErrorKind::ArgumentConflict => match first_word(&text(error, ContextKind::PriorArg)) {
            other if other == option => format!("{option} is given twice"),
            other => format!("{option} cannot be used with {other}: give one of them"),
        },
        ErrorKind::MissingRequiredArgument => {
            format!("{} is missing", list(error, ContextKind::InvalidArg).join(" "))
        }
        ErrorKind::InvalidUtf8 => "what was given is not all UTF-8".into(),
        _ => first_line(error),
    }
}

/// A value that one of our readers refused: those of names have said it all, those of numbers what would fit.
fn value(error: &Error, option: &str) -> String {
    let given = text(error, ContextKind::InvalidValue);
    let Some(reason) = std::error::Error::source(error) else { return first_line(error) };
    if let Some(LabError::Setting { fits, .. }) = reason.downcast_ref() {
        return format!("{option} {given} does not fit: {fits}");
    }
    if let Some(unknown) = reason.downcast_ref::<UnknownOffload>() {
        return unknown.to_string();
    }
    match reason.downcast_ref::<SpecError>() {
        Some(SpecError::NoName(_)) => format!("{option} '{given}' does not begin with a name"),
        Some(reason) => reason.to_string(),
        None => format!("{option} {given} does not fit: {reason}"),
    }
}

/// The option concerned, without what it takes.
fn option(error: &Error) -> String {
    first_word(&text(error, ContextKind::InvalidArg))
}

fn first_word(text: &str) -> String {
    text.split(' ').next().unwrap_or_default().into()
}

fn text(error: &Error, kind: ContextKind) -> String {
    list(error, kind).into_iter().next().unwrap_or_default()
}

fn list(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn hint(error: &Error, kind: ContextKind) -> String {
    match &list(error, kind)[..] {
        [] => "; --help shows those there are".into(),
        near => format!(": did you mean {}?", near.join(", ")),
    }
}

fn first_line(error: &Error) -> String {
    let rendered = error.to_string();
    let line = rendered.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).into()
}
