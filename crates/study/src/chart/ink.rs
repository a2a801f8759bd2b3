//! Colours in text.

use ratatui_core::style::Color;

/// How curves are distinguished in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// By their marks alone.
    Plain,
    /// By their marks, and by the terminal's own colours (ANSI escapes).
    Colour,
}

/// The ANSI escape of a colour.
pub(super) fn escape(colour: Color) -> anstyle::Style {
    anstyle::AnsiColor::try_from(colour).map(anstyle::AnsiColor::on_default).unwrap_or_default()
}

/// `text` in a colour, where colours are wanted.
pub(super) fn inked(text: &str, colour: Color, ink: Ink) -> String {
    match ink {
        Ink::Plain => text.to_owned(),
        Ink::Colour => format!("{}{text}{}", escape(colour), anstyle::Reset),
    }
}
