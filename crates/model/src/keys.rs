//! Reading and printing of the models' parameters by their keys.

/// A span of time, given in microseconds.
macro_rules! span_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a number of microseconds, up to 1,099,511 (1.1 s)",
            about: $about,
            get: |parameters| parameters.$field.us().into(),
            set: |parameters, text| Picoseconds::from_us(text).map(|span| parameters.$field = span),
        }
    };
}

/// A rate in millions of bytes per second; 0: it takes no time.
macro_rules! rate_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a number of MB/s; 0 for what takes no time",
            about: $about,
            get: |parameters| parameters.$field.into(),
            set: |parameters, text| parameter(text).map(|rate| parameters.$field = rate),
        }
    };
}

/// A rate in millions of bytes per second, at least 1.
macro_rules! positive_rate_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a number of MB/s from 1",
            about: $about,
            get: |parameters| parameters.$field.into(),
            set: |parameters, text| positive_parameter(text).map(|rate| parameters.$field = rate),
        }
    };
}

/// A timeout after which something is repeated, in microseconds: at least 1, so that a run does not
/// consist of repetitions only.
macro_rules! timeout_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a number of microseconds from 1 to 1,099,511 (1.1 s)",
            about: $about,
            get: |parameters| parameters.$field.us().into(),
            set: |parameters, text| {
                let timeout = Picoseconds::from_us(text).filter(|&span| span >= Picoseconds(1_000_000))?;
                parameters.$field = timeout;
                Some(())
            },
        }
    };
}

/// A length in bytes from a minimum up to 1 MiB.
macro_rules! bytes_key {
    ($name:literal, $field:ident, $least:literal, $about:literal) => {
        Key {
            name: $name,
            expected: concat!("a number of bytes from ", $least, " to 1048576"),
            about: $about,
            get: |parameters| parameters.$field.0.into(),
            set: |parameters, text| {
                let bytes = parameter(text).filter(|bytes| ($least..=1 << 20).contains(bytes))?;
                parameters.$field = Bytes(bytes);
                Some(())
            },
        }
    };
}

/// A whole number in a range.
macro_rules! count_key {
    ($name:literal, $field:ident, $least:literal, $most:literal, $about:literal) => {
        Key {
            name: $name,
            expected: concat!("a whole number from ", $least, " to ", $most),
            about: $about,
            get: |parameters| parameters.$field.into(),
            set: |parameters, text| {
                parameters.$field = text.parse().ok().filter(|count| ($least..=$most).contains(count))?;
                Some(())
            },
        }
    };
}

/// A fraction from 0 to 0.9.
macro_rules! fraction_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a fraction from 0 to 0.9",
            about: $about,
            get: |parameters| parameters.$field.into(),
            set: |parameters, text| {
                parameters.$field = text.parse().ok().filter(|fraction| (0.0..=0.9).contains(fraction))?;
                Some(())
            },
        }
    };
}

/// One of several choices.
macro_rules! choice_key {
    ($name:literal, $field:ident, $about:literal, [$first:literal => $first_value:path $(, $text:literal => $value:path)*]) => {
        Key {
            name: $name,
            expected: concat!("one of ", $first $(, ", ", $text)*),
            about: $about,
            get: |parameters| match parameters.$field { $first_value => $first.into() $(, $value => $text.into())* },
            set: |parameters, text| {
                parameters.$field = match text { $first => $first_value, $($text => $value,)* _ => return None };
                Some(())
            },
        }
    };
}

pub(crate) use {
    bytes_key, choice_key, count_key, fraction_key, positive_rate_key, rate_key, span_key, timeout_key,
};

/// Sets parameters from the lines `key = value` below `[set]` of a testbed's file.
#[cfg(test)]
pub(crate) fn set_from_lines(parameters: &mut impl treecast_terms::Keyed, text: &str) {
    let (_, values) = text.split_once("\n[set]\n").expect("a testbed's file sets parameters");
    for line in values.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once('=').expect("a line is a comment or key = value");
        let value = value.split('#').next().unwrap_or_default().trim().trim_matches('"');
        parameters.set_key(key.trim(), value).expect("a testbed's keys and values fit");
    }
}
