//! One-line descriptions: `name`, `name:key=value,flag,key=value`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Why a one-line description is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The name is missing.
    #[error("'{0}' does not begin with a name")]
    NoName(String),
    /// A key is given twice.
    #[error("'{key}' is given twice in '{spec}'")]
    Twice {
        /// The key.
        key: String,
        /// The whole text.
        spec: String,
    },
    /// An unknown name.
    #[error("unknown {what} '{given}'{}", nearest_hint(.given, .known))]
    UnknownName {
        /// The kind of thing that is named, such as `scheme`.
        what: &'static str,
        /// The name given.
        given: String,
        /// All known names.
        known: Vec<String>,
    },
    /// A key that this name does not take.
    #[error("{}{}", unknown_key(.name, .given), nearest_hint(.given, .known))]
    UnknownKey {
        /// The name; empty, where keys are given without one.
        name: String,
        /// The key given.
        given: String,
        /// All keys that the name takes.
        known: Vec<String>,
    },
    /// An invalid value of a key.
    #[error("invalid value {key}={value}: expected {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value given.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// A required key is missing.
    #[error("{name} needs {key}=...: {expected}")]
    Missing {
        /// The name.
        name: String,
        /// The key that is missing.
        key: &'static str,
        /// The valid values.
        expected: &'static str,
    },
}

fn unknown_key(name: &str, given: &str) -> String {
    if name.is_empty() { format!("unknown key '{given}'") } else { format!("{name} has no key '{given}'") }
}

/// The known names nearest to a mistyped one, best first, at most three (by Jaro-Winkler
/// similarity).
///
/// ```
/// assert_eq!(treecast_terms::nearest("binomal", &["binary", "binomial", "serial"]), ["binomial", "binary"]);
/// ```
pub fn nearest<'a, S: AsRef<str>>(given: &str, known: &'a [S]) -> Vec<&'a str> {
    let given = given.to_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .iter()
        .map(|name| (strsim::jaro_winkler(&given, name.as_ref()), name.as_ref()))
        .filter(|&(score, _)| score > 0.7)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(3);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// The end of an error message about a mistyped name: the nearest known names, or all of them if
/// none is near.
///
/// ```
/// assert_eq!(treecast_terms::nearest_hint("jsn", &["json", "svg"]), ": did you mean json?");
/// assert_eq!(treecast_terms::nearest_hint("xyz", &["json", "svg"]), ": known are json, svg");
/// ```
pub fn nearest_hint<S: AsRef<str>>(given: &str, known: &[S]) -> String {
    let near = nearest(given, known);
    if near.is_empty() && known.is_empty() {
        String::from(": it takes none")
    } else if near.is_empty() {
        let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
        format!(": known are {}", known.join(", "))
    } else {
        format!(": did you mean {}?", near.join(", "))
    }
}

/// A message of serde about an unknown field or variant, reworded like our messages about other
/// unknown names; other messages on one line.
///
/// ```
/// let message = "unknown field `titel`, expected one of `name`, `title`";
/// assert_eq!(treecast_terms::reworded(message), "unknown key 'titel': did you mean title?");
/// ```
pub fn reworded(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2).map(String::from);
    let what = [("unknown field", "key"), ("unknown variant", "value")];
    let what = what.into_iter().find(|(beginning, _)| message.starts_with(beginning));
    match (what, quoted.next()) {
        (Some((_, what)), Some(given)) => {
            SpecError::UnknownName { what, given, known: quoted.collect() }.to_string()
        }
        _ => message.replace('\n', " "),
    }
}

/// A parsed one-line description: a name, and keys with values in the order given. A flag is a key
/// without a value.
///
/// ```
/// use treecast_terms::NameAndOptions;
///
/// let spec: NameAndOptions = "torus:k=4,n=2,uni".parse()?;
/// assert_eq!(spec.name(), "torus");
/// assert_eq!(spec.get("k"), Some("4"));
/// assert!(spec.flag("uni")?);
/// assert_eq!(spec.to_string(), "torus:k=4,n=2,uni");
/// # Ok::<(), treecast_terms::SpecError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameAndOptions {
    name: String,
    options: Vec<(String, Option<String>)>,
}

impl NameAndOptions {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The keys in the order given, each with its value unless it is a flag.
    pub fn options(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.options.iter().map(|(key, value)| (key.as_str(), value.as_deref()))
    }

    /// The value of a key, if it is given with one.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.as_deref())
    }

    /// Whether a flag is present.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] if it has a value.
    pub fn flag(&self, key: &str) -> Result<bool, SpecError> {
        match self.options.iter().find(|(known, _)| known == key) {
            None => Ok(false),
            Some((_, None)) => Ok(true),
            Some((_, Some(value))) => Err(SpecError::BadValue {
                key: key.into(),
                value: value.clone(),
                expected: "no value, since it is a flag".into(),
            }),
        }
    }

    /// The value of a key parsed as a `T`, if the key is given.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] if it is a flag or does not parse.
    pub fn value<T: FromStr>(&self, key: &str, expected: &str) -> Result<Option<T>, SpecError> {
        let Some((_, value)) = self.options.iter().find(|(known, _)| known == key) else { return Ok(None) };
        let value = value.as_deref().unwrap_or_default();
        value.parse().map(Some).map_err(|_| SpecError::BadValue {
            key: key.into(),
            value: value.into(),
            expected: expected.into(),
        })
    }

    /// The value of a required key.
    ///
    /// # Errors
    /// [`SpecError::Missing`], or as [`NameAndOptions::value`].
    pub fn required<T: FromStr>(&self, key: &'static str, expected: &'static str) -> Result<T, SpecError> {
        self.value(key, expected)?.ok_or_else(|| SpecError::Missing {
            name: self.name.clone(),
            key,
            expected,
        })
    }

    /// Checks that every key is among `known`.
    ///
    /// # Errors
    /// [`SpecError::UnknownKey`] with the first unknown key.
    pub fn only(&self, known: &[&str]) -> Result<(), SpecError> {
        match self.options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((given, _)) => Err(SpecError::UnknownKey {
                name: self.name.clone(),
                given: given.clone(),
                known: known.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// The same description with a key set to a value; a new key goes to the end.
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        let value = Some(value.to_string());
        match self.options.iter_mut().find(|(known, _)| known == key) {
            Some(option) => option.1 = value,
            None => self.options.push((key.into(), value)),
        }
        self
    }

    /// Splits off the keys in `known`: these keys with this name, and the others with the name
    /// `rest_name`.
    pub fn split(self, known: &[&str], rest_name: &str) -> (Self, Self) {
        let (mine, rest) = self.options.into_iter().partition(|(key, _)| known.contains(&key.as_str()));
        (Self { name: self.name, options: mine }, Self { name: rest_name.into(), options: rest })
    }
}

impl FromStr for NameAndOptions {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if name.trim().is_empty() {
            return Err(SpecError::NoName(text.into()));
        }
        let mut options: Vec<(String, Option<String>)> = Vec::new();
        for item in rest.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim().to_string())),
                None => (item, None),
            };
            if options.iter().any(|(known, _)| known == key) {
                return Err(SpecError::Twice { key: key.into(), spec: text.into() });
            }
            options.push((key.into(), value));
        }
        Ok(Self { name: name.trim().into(), options })
    }
}

impl fmt::Display for NameAndOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.name)?;
        for (index, (key, value)) in self.options.iter().enumerate() {
            write!(formatter, "{}{key}", if index == 0 { ':' } else { ',' })?;
            if let Some(value) = value {
                write!(formatter, "={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_suggests_the_nearest_keys() {
        let spec: NameAndOptions = "star:host=3".parse().unwrap();
        let error = spec.only(&["hosts", "ports"]).unwrap_err();
        assert_eq!(error.to_string(), "star has no key 'host': did you mean hosts?");
        let spec: NameAndOptions = "binomial:zzz".parse().unwrap();
        assert_eq!(spec.only(&[]).unwrap_err().to_string(), "binomial has no key 'zzz': it takes none");
    }

    #[test]
    fn malformed_text_is_refused() {
        assert_eq!(":k=1".parse::<NameAndOptions>(), Err(SpecError::NoName(":k=1".into())));
        let twice = "torus:k=1,k=2".parse::<NameAndOptions>().unwrap_err();
        assert_eq!(twice.to_string(), "'k' is given twice in 'torus:k=1,k=2'");
    }
}
