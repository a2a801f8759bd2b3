//! Probabilities.

use std::str::FromStr;

use crate::error::LabError;

/// A probability from 0 to less than 1.
///
/// ```
/// let probability: treecast_lab::Probability = "1%".parse().unwrap();
/// assert_eq!(probability, "0.01".parse().unwrap());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// The valid values, for error messages.
    const EXPECTED: &'static str = "a percentage from 0% to less than 100%, such as 1% or 0.01";

    /// A probability from a number.
    ///
    /// # Errors
    ///
    /// Outside 0 to less than 1.
    pub fn new(probability: f64) -> Result<Self, LabError> {
        (0.0..1.0)
            .contains(&probability)
            .then_some(Self(probability))
            .ok_or_else(|| LabError::setting("probability", &probability, Self::EXPECTED))
    }

    /// As a number, 0 to less than 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = LabError;

    /// A number, or a number with `%`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let number = match text.strip_suffix('%') {
            Some(percent) => decimal(percent).map(|percent| percent / 100.0),
            None => decimal(text),
        };
        number
            .and_then(|probability| Self::new(probability).ok())
            .ok_or_else(|| LabError::setting("probability", &text, Self::EXPECTED))
    }
}

/// Digits with at most one point.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_parsed_with_and_without_per_cent() {
        let read =
            |text: &str| text.parse::<Probability>().map(Probability::get).map_err(|error| error.to_string());
        assert_eq!(read("1%"), Ok(0.01));
        assert_eq!(read("0.5"), Ok(0.5));
        assert_eq!(read("0"), Ok(0.0));
        for text in ["150%", "100%", "1", "-1%", "NaN", "%", "", "a tenth"] {
            let expected = "a percentage from 0% to less than 100%, such as 1% or 0.01";
            assert_eq!(read(text), Err(format!("invalid value {text} for probability: expected {expected}")));
        }
    }
}
