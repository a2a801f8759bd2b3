//! Parameters by their keys: one name for each, on the command line, in data files and in what is
//! printed.

use std::fmt;

use crate::{Bytes, Picoseconds, SpecError};

/// The value of a parameter: a number that may be a fraction is [`Value::Real`] even where it is
/// whole.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A number that may be a fraction.
    Real(f64),
    /// Another value, as users write it.
    Text(String),
}

impl Value {
    /// The number, if it has no fraction.
    pub fn whole(&self) -> Option<u64> {
        match *self {
            Self::Whole(number) => Some(number),
            Self::Real(number) => {
                (number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number)).then_some(number as u64)
            }
            Self::Text(_) => None,
        }
    }

    /// The number, if it is one.
    pub fn real(&self) -> Option<f64> {
        match *self {
            Self::Whole(number) => Some(number as f64),
            Self::Real(number) => Some(number),
            Self::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(formatter),
            Self::Real(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The key of a parameter in `P`.
pub struct Key<P> {
    /// The name that users write.
    pub name: &'static str,
    /// The valid values, as error messages name them.
    pub expected: &'static str,
    /// The meaning, as help texts say it.
    pub about: &'static str,
    /// The value; its text is in the form that [`Key::set`] reads.
    pub get: fn(&P) -> Value,
    /// Sets the value; `None` if the text is invalid.
    pub set: fn(&mut P, &str) -> Option<()>,
}

impl<P> Key<P> {
    /// The value in these parameters.
    pub fn value(&self, parameters: &P) -> Value {
        (self.get)(parameters)
    }
}

impl<P> fmt::Debug for Key<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// Parameters that are set and printed by key.
pub trait Keyed: Sized + 'static {
    /// All keys, in the order in which they are printed.
    fn keys() -> &'static [Key<Self>];

    /// Every key with its value.
    fn values(&self) -> impl Iterator<Item = (&'static str, Value)> {
        Self::keys().iter().map(|key| (key.name, key.value(self)))
    }

    /// Sets a parameter by its key.
    ///
    /// # Errors
    /// [`SpecError::UnknownKey`] with the known keys, [`SpecError::BadValue`] with the valid
    /// values; or that of [`Keyed::reason`].
    fn set_key(&mut self, name: &str, value: &str) -> Result<(), SpecError> {
        let Some(key) = Self::keys().iter().find(|key| key.name == name) else {
            let known = Self::keys().iter().map(|key| key.name.to_string()).collect();
            return Err(SpecError::UnknownKey { name: String::new(), given: name.into(), known });
        };
        let bad =
            || SpecError::BadValue { key: name.into(), value: value.into(), expected: key.expected.into() };
        (key.set)(self, value).ok_or_else(|| Self::reason(name, value).unwrap_or_else(bad))
    }

    /// Why the value of a key is invalid, if that says more than the valid values.
    fn reason(_name: &str, _value: &str) -> Option<SpecError> {
        None
    }

    /// Sets parameters from a text: `key=value`, separated by spaces, as in `root=2
    /// scheme=binomial`.
    ///
    /// # Errors
    /// Those of [`Keyed::set_key`].
    fn set_all(&mut self, text: &str) -> Result<(), SpecError> {
        for part in text.split_whitespace() {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            self.set_key(key, value)?;
        }
        Ok(())
    }
}

/// The largest value of a parameter, so that times computed from it do not overflow.
pub const PARAMETER_MAX: u64 = 1 << 40;

/// A whole number up to [`PARAMETER_MAX`]; `None` for another text.
pub fn parameter(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&value| value <= PARAMETER_MAX)
}

/// A whole number from 1 to [`PARAMETER_MAX`]; `None` for another text.
pub fn positive_parameter(text: &str) -> Option<u64> {
    parameter(text).filter(|&value| value > 0)
}

impl Picoseconds {
    /// A time from a number of microseconds with at most six decimals, up to 2^40 picoseconds (1.1
    /// s).
    ///
    /// ```
    /// # use treecast_terms::Picoseconds;
    /// assert_eq!(Picoseconds::from_us("0.95"), Some(Picoseconds(950_000)));
    /// assert_eq!(Picoseconds::from_us("-1"), None);
    /// assert_eq!(Picoseconds(950_000).us().to_string(), "0.95");
    /// ```
    pub fn from_us(text: &str) -> Option<Self> {
        let picoseconds = (text.parse::<f64>().ok()? * 1e6).round();
        (0.0..=PARAMETER_MAX as f64).contains(&picoseconds).then_some(Self(picoseconds as u64))
    }

    /// In microseconds.
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Bytes {
    /// The transfer time at a rate in MB/s (10^6 bytes per second), rounded up to picoseconds; zero
    /// at rate 0, which stands for a part that adds no delay.
    ///
    /// ```
    /// # use treecast_terms::{Bytes, Picoseconds};
    /// assert_eq!(Bytes(4096).time_at(250), Picoseconds(16_384_000));
    /// assert_eq!(Bytes(4096).time_at(0), Picoseconds::ZERO);
    /// ```
    pub fn time_at(self, mb_per_s: u64) -> Picoseconds {
        let (bytes, rate) = (u128::from(self.0), u128::from(mb_per_s));
        Picoseconds(if rate == 0 { 0 } else { (bytes * 1_000_000).div_ceil(rate) as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_whole_where_it_has_no_fraction_and_fits() {
        let whole = [Value::Whole(7), Value::Real(7.0), Value::Real(0.0)].map(|value| value.whole());
        assert_eq!(whole, [Some(7), Some(7), Some(0)]);
        for other in [0.5, -1.0, 1e20, f64::NAN, f64::INFINITY] {
            assert_eq!(Value::Real(other).whole(), None, "{other}");
        }
        assert_eq!((Value::from("7").whole(), Value::from("7").real()), (None, None));
        assert_eq!((Value::Whole(7).real(), Value::Real(0.5).real()), (Some(7.0), Some(0.5)));
    }

    #[test]
    fn values_are_printed_as_users_write_them() {
        let texts = [Value::Whole(7), Value::Real(7.0), Value::Real(0.000_001), "auto".into()];
        assert_eq!(texts.map(|value| value.to_string()), ["7", "7", "0.000001", "auto"]);
    }
}
