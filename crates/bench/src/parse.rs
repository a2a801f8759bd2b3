//! Sizes and times as people write them.

use std::time::Duration;

use crate::BenchError;

/// A length such as `64`, `1K`, `16K` or `4M`: K is 1,024 bytes, M 1,024 K, G 1,024 M.
///
/// # Errors
/// [`BenchError::Unknown`].
///
/// ```
/// assert_eq!(treecast_bench::parse_size("16K")?, 16_384);
/// # Ok::<(), treecast_bench::BenchError>(())
/// ```
pub fn parse_size(text: &str) -> Result<usize, BenchError> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let found = units.iter().find_map(|&(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let (digits, unit) = found.unwrap_or((text, 1));
    let number =
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<usize>().ok()).flatten();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| unknown("size", text, "bytes, or 16K, 4M, 1G"))
}

/// A time such as `400us`, `2ms` or `1s`.
///
/// # Errors
/// [`BenchError::Unknown`].
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(treecast_bench::parse_time("400us")?, Duration::from_micros(400));
/// # Ok::<(), treecast_bench::BenchError>(())
/// ```
pub fn parse_time(text: &str) -> Result<Duration, BenchError> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|&(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let number = found.and_then(|(number, unit)| Some(number.parse::<f64>().ok()? * unit));
    let time = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| *time <= Duration::from_mins(1))
        .ok_or_else(|| unknown("time", text, "400us, 2ms, up to 60s"))
}

fn unknown(what: &'static str, given: &str, known: &'static str) -> BenchError {
    BenchError::Unknown { what, given: given.into(), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_size_or_time_is_named() {
        for text in ["", "K", "1.5K", "-1", "1k", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for text in ["", "us", "400", "-1us", "nanus", "infs", "61s", "1h"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_size("x").unwrap_err().to_string(),
            "there is no size x: known is bytes, or 16K, 4M, 1G"
        );
    }
}
