//! Patterns of entries that a copy leaves alone.

use std::path::Path;

use glob::{MatchOptions, Pattern};

use crate::CopyError;

/// Glob patterns, of which an entry matches one or none.
#[derive(Debug)]
pub(crate) struct Exclusion(Vec<Pattern>);

/// As a shell does, except that a leading dot is a character like others.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

impl Exclusion {
    /// Of the patterns of [`SourceSettings::exclude`](crate::SourceSettings::exclude).
    ///
    /// # Errors
    /// [`CopyError::Pattern`].
    pub fn new(texts: &[String]) -> Result<Self, CopyError> {
        let pattern = |text: &String| {
            let path = text.trim_end_matches('/');
            let of_text = |why| CopyError::Pattern { text: text.clone(), why };
            // It would match everything.
            if path.is_empty() {
                return Err(of_text("it names nothing"));
            }
            let is_path = path.contains('/');
            let of_path = if is_path { path.trim_start_matches('/').into() } else { format!("**/{path}") };
            Pattern::new(&of_path).map_err(|why| of_text(why.msg))
        };
        texts.iter().map(pattern).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a path matches one of them. What is not UTF-8 in a path is as U+FFFD is.
    pub fn matches(&self, path: &Path) -> bool {
        let path = path.to_string_lossy();
        self.0.iter().any(|pattern| pattern.matches_with(&path, OPTIONS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(pattern: &str, path: &str) -> bool {
        Exclusion::new(&[pattern.to_owned()]).unwrap().matches(Path::new(path))
    }

    #[test]
    fn a_pattern_without_a_slash_is_of_names() {
        assert!(excluded("*.o", "main.o") && excluded("*.o", "data/sub/main.o"));
        assert!(excluded("cache/", "data/cache") && excluded("?[a-c]", "data/.b"));
        assert!(!excluded("*.o", "data.o/main.c") && !excluded("cache", "data/caches"));
    }

    #[test]
    fn a_pattern_with_a_slash_is_of_whole_paths() {
        assert!(excluded("data/*", "data/.hidden") && excluded("/data/sub/", "data/sub"));
        assert!(excluded("data/**/x", "data/x") && excluded("data/**/x", "data/a/b/x"));
        assert!(!excluded("data/*", "data/sub/x") && !excluded("sub/x", "data/sub/x"));
    }

    #[test]
    fn what_is_no_pattern_is_an_error_with_its_text() {
        for text in ["[", "a/b**", "***", "", "/"] {
            let error = Exclusion::new(&["*.o".to_owned(), text.to_owned()]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("--exclude '{text}': ")), "{error}");
        }
    }
}
