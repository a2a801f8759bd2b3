//! Sizes, times and rates as people write them: a decimal number and a unit. Counts for people to
//! read.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

/// A length in bytes such as `64`, `16K`, `1.5M` or `4G`: K is 1,024 bytes, M 1,024 K, G 1,024 M.
///
/// # Errors
/// [`InvalidQuantity`] for another text, a fraction of a byte, or more than 2^64 - 1 bytes.
///
/// ```
/// assert_eq!(treecast_terms::parse_size("16K"), Ok(16_384));
/// assert!(treecast_terms::parse_size("16 apples").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, InvalidQuantity> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("", 1)];
    parse(text, &units).ok_or_else(|| InvalidQuantity {
        quantity: "size",
        given: text.into(),
        expected: "a number of bytes, such as 65536, 16K, 4M or 1G",
    })
}

/// A time such as `400us`, `2ms` or `1.5s`.
///
/// # Errors
/// [`InvalidQuantity`] for another text, a fraction of a nanosecond, or more than 2^64 - 1
/// nanoseconds.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(treecast_terms::parse_time("400us"), Ok(Duration::from_micros(400)));
/// assert!(treecast_terms::parse_time("400").is_err());
/// ```
pub fn parse_time(text: &str) -> Result<Duration, InvalidQuantity> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    parse(text, &units).map(Duration::from_nanos).ok_or_else(|| InvalidQuantity {
        quantity: "time",
        given: text.into(),
        expected: "a number with its unit, such as 400us, 2ms or 1s",
    })
}

/// A rate in bits per second such as `64kbit`, `200mbit` or `2.5gbit`, in upper or lower case: k is
/// 1,000.
///
/// # Errors
/// [`InvalidQuantity`] for another text, a fraction of a bit per second, or more than 2^64 - 1 of
/// them.
///
/// ```
/// assert_eq!(treecast_terms::parse_rate("2.5gbit"), Ok(2_500_000_000));
/// assert!(treecast_terms::parse_rate("200").is_err());
/// ```
pub fn parse_rate(text: &str) -> Result<u64, InvalidQuantity> {
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    parse(&text.to_ascii_lowercase(), &units).ok_or_else(|| InvalidQuantity {
        quantity: "rate",
        given: text.into(),
        expected: "bits per second with their unit, such as 64kbit, 200mbit or 2.5gbit",
    })
}

/// A size as [`parse_size`] reads it: in the largest unit that leaves no fraction.
///
/// ```
/// assert_eq!(treecast_terms::format_size(64 << 20), "64M");
/// assert_eq!(treecast_terms::format_size(1_000), "1000 bytes");
/// ```
pub fn format_size(bytes: u64) -> String {
    let units = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let unit = units.into_iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size));
    unit.map_or_else(
        || alloc::format!("{bytes} bytes"),
        |(unit, size)| alloc::format!("{}{unit}", bytes / size),
    )
}

/// A count with its digits in groups of three.
///
/// ```
/// assert_eq!(treecast_terms::format_count(1_234_567), "1,234,567");
/// assert_eq!(treecast_terms::format_count(999), "999");
/// ```
pub fn format_count(count: u64) -> String {
    let digits = alloc::format!("{count}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A text that is no size, time or rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidQuantity {
    /// The kind of quantity: `size`, `time` or `rate`.
    pub quantity: &'static str,
    /// The text.
    pub given: String,
    /// What would be valid.
    pub expected: &'static str,
}

impl fmt::Display for InvalidQuantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "invalid {} '{}': expected {}", self.quantity, self.given, self.expected)
    }
}

impl core::error::Error for InvalidQuantity {}

/// A number in the smallest unit. Of units that end alike, the longest stands first.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, size) = units.iter().find_map(|&(unit, size)| Some((text.strip_suffix(unit)?, size)))?;
    decimal(number.trim_end(), size)
}

/// A decimal number times a whole one, exactly: the product is a whole number of at most 64 bits.
/// Floats would round.
fn decimal(text: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let has_digits_only = [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    if !has_digits_only || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = |part: &str| if part.is_empty() { Some(0) } else { part.parse::<u64>().ok() };
    let scale = 10_u64.checked_pow(fraction.len() as u32)?;
    let parts = u128::from(digits(fraction)?) * u128::from(factor);
    if !parts.is_multiple_of(scale.into()) {
        return None;
    }
    digits(whole)?.checked_mul(factor)?.checked_add((parts / u128::from(scale)) as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in
            [("0", 0), ("64", 64), ("1K", 1 << 10), ("64 M", 64 << 20), ("1.5K", 1536), ("2G", 2 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            ".",
            ".K",
            "-1",
            "+1",
            "1k",
            "1.3K",
            "1e3",
            "99999999999999999999",
            "18446744073709551615G",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_size("x").unwrap_err().to_string(),
            "invalid size 'x': expected a number of bytes, such as 65536, 16K, 4M or 1G"
        );
    }

    #[test]
    fn times_need_a_unit() {
        for (text, nanoseconds) in
            [("7ns", 7), ("400us", 400_000), ("2 ms", 2_000_000), ("1.5s", 1_500_000_000), ("0s", 0)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "us", "400", "-1us", "nanus", "infs", "1h", "0.5ns"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_have_decimal_units_in_any_case() {
        for (text, bits_per_s) in [
            ("200mbit", 200_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("64kbit", 64_000),
            ("1000bit", 1_000),
            ("0mbit", 0),
        ] {
            assert_eq!(parse_rate(text), Ok(bits_per_s), "{text}");
        }
        for text in ["0", "200", "mbit", "-1mbit", "infbit", "1e3mbit", ""] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.KMGusmnbitg -]{0,24}") {
            let _ = (parse_size(&text), parse_time(&text), parse_rate(&text));
        }

        #[test]
        fn decimals_are_exact(whole in 0..1_000_000_u64, millionths in 0..1_000_000_u64) {
            prop_assert_eq!(decimal(&format!("{whole}.{millionths:06}"), 1_000_000), Some(whole * 1_000_000 + millionths));
        }
    }
}
