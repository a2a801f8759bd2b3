//! Usage errors in one sentence.

use std::fmt::Display;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use treecast_lab::LabError;
use treecast_node::NodeError;
use treecast_sim::UnknownOffload;
use treecast_terms::{InvalidQuantity, SpecError, nearest_hint};

/// One sentence that names the offending value. Clap's own messages take several lines, and wrap
/// the messages of our parsers.
pub fn sentence(error: &Error) -> String {
    let option = option(error);
    match error.kind() {
        ErrorKind::ValueValidation => value(error, &option),
        ErrorKind::InvalidValue if text(error, ContextKind::InvalidValue).is_empty() => {
            format!("{option} requires a value")
        }
        ErrorKind::InvalidValue => {
            let given = text(error, ContextKind::InvalidValue);
            let what = option.trim_start_matches('-');
            format!("unknown {what} '{given}'{}", nearest_hint(&given, &list(error, ContextKind::ValidValue)))
        }
        ErrorKind::TooManyValues => format!("{option} takes no value"),
        ErrorKind::UnknownArgument if option.starts_with('-') => {
            format!("unknown option '{option}'{}", hint(error, ContextKind::SuggestedArg))
        }
        ErrorKind::UnknownArgument if takes_command(error) => {
            format!("unexpected argument '{option}': the command begins after --")
        }
        ErrorKind::UnknownArgument => format!("unexpected argument '{option}'"),
        ErrorKind::InvalidSubcommand => {
            let given = text(error, ContextKind::InvalidSubcommand);
            format!("unknown command '{given}'{}", hint(error, ContextKind::SuggestedSubcommand))
        }
        ErrorKind::ArgumentConflict => match first_word(&text(error, ContextKind::PriorArg)) {
            other if other == option => format!("{option} is given twice"),
            other => format!("{option} cannot be used with {other}: give one of them"),
        },
        ErrorKind::MissingRequiredArgument => {
            let missing = list(error, ContextKind::InvalidArg);
            let missing: Vec<String> = missing.iter().map(|argument| alternatives(argument)).collect();
            format!("{} is missing", missing.join(" "))
        }
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".into(),
        _ => first_line(error),
    }
}

/// A value that one of our parsers rejected. Parsers of names and specs give the whole sentence,
/// parsers of numbers what they expected.
fn value(error: &Error, option: &str) -> String {
    let given = text(error, ContextKind::InvalidValue);
    let Some(reason) = std::error::Error::source(error) else { return first_line(error) };
    let shown = if given.is_empty() { "''" } else { &given };
    let invalid = |expected: &dyn Display| format!("invalid value {shown} for {option}: expected {expected}");
    if let Some(LabError::Setting { expected, .. }) = reason.downcast_ref() {
        return invalid(expected);
    }
    if let Some(InvalidQuantity { expected, .. }) = reason.downcast_ref() {
        return invalid(expected);
    }
    if reason.is::<UnknownOffload>() || reason.is::<NodeError>() {
        return reason.to_string();
    }
    match reason.downcast_ref::<SpecError>() {
        Some(SpecError::NoName(_)) => format!("{option} '{given}' does not begin with a name"),
        Some(reason) => reason.to_string(),
        None => invalid(reason),
    }
}

/// The name of the option, without its value name.
fn option(error: &Error) -> String {
    match error.kind() {
        // What the user has typed.
        ErrorKind::UnknownArgument => text(error, ContextKind::InvalidArg),
        _ => first_word(&text(error, ContextKind::InvalidArg)),
    }
}

/// What clap writes of an argument without its value name: `--watch` of `--watch[=<SECONDS>]`,
/// `--verbose` of `--verbose...`.
fn first_word(text: &str) -> String {
    let word = text.split(' ').next().unwrap_or_default();
    let word = word.split("[=").next().unwrap_or_default();
    if word.starts_with('-') { word.trim_end_matches('.').into() } else { word.into() }
}

/// Whether the usage ends with a command of the user, as that of `treecast lab` does.
fn takes_command(error: &Error) -> bool {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return false };
    usage.to_string().contains("-- COMMAND")
}

/// Clap writes a group of arguments as `<--one|--other>`.
fn alternatives(argument: &str) -> String {
    let group = argument.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    group
        .filter(|group| group.contains('|'))
        .map_or_else(|| argument.into(), |group| group.replace('|', " or "))
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
        [] => "; see --help".into(),
        near => format!(": did you mean {}?", near.join(", ")),
    }
}

fn first_line(error: &Error) -> String {
    let rendered = error.to_string();
    let line = rendered.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).into()
}
