//! Texts of others for users.

/// The longest text of another process, in characters.
const CHARACTERS_MAX: usize = 2_000;

/// A text of another process, as it can be printed in a terminal or in a log: bounded, and without
/// control characters.
pub fn printable(text: &str) -> String {
    let replace = |character: char| {
        if character.is_control() { char::REPLACEMENT_CHARACTER } else { character }
    };
    text.chars().take(CHARACTERS_MAX).map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_another_process_is_printable() {
        assert_eq!(printable("gr\u{fc}n \u{1b}[31m\r\nrot"), "gr\u{fc}n \u{fffd}[31m\u{fffd}\u{fffd}rot");
        assert_eq!(printable(&"x".repeat(1 << 20)).len(), CHARACTERS_MAX);
    }
}
