//! Hostlists: the names of many hosts in few characters, as Slurm and pdsh write them.

use thiserror::Error;

use crate::limits;

/// Why a text is not a valid hostlist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostlistError {
    /// A name that cannot be expanded.
    #[error("'{name}' is not a hostlist such as node7 or n[1-16]: {reason}")]
    Malformed {
        /// The name, as written.
        name: String,
        /// Why it cannot be expanded.
        reason: &'static str,
    },
    /// More names than [`Topology::HOSTS_MAX`](crate::Topology::HOSTS_MAX).
    #[error("'{name}' names more than {most} hosts", most = limits::HOSTS_MAX)]
    TooMany {
        /// The name, as written, that exceeds the limit.
        name: String,
    },
}

/// The names in a hostlist, in the order in which they are written.
///
/// Commas separate names. Brackets contain numbers and ranges of numbers; the numbers of a range
/// have at least as many digits as its first number. If a name has several brackets, the last one
/// changes fastest. Slurm's `SLURM_JOB_NODELIST` is a hostlist. Duplicate names are kept.
///
/// # Errors
/// [`HostlistError`]: an empty name, white space in one, or a dash at its beginning; a bracket that
/// is not closed, or within another; an invalid or descending range; a name of more than 255 bytes;
/// more than [`Topology::HOSTS_MAX`](crate::Topology::HOSTS_MAX) names.
///
/// ```
/// use treecast_fabric::expand_hostlist;
///
/// assert_eq!(expand_hostlist("login,n[08-10,12]")?, ["login", "n08", "n09", "n10", "n12"]);
/// assert_eq!(expand_hostlist("r[1-2]n[1-2]-ib")?, ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]);
/// # Ok::<(), treecast_fabric::HostlistError>(())
/// ```
pub fn expand_hostlist(text: &str) -> Result<Vec<String>, HostlistError> {
    let mut names = Vec::new();
    for name in split_names(text) {
        let name = name.trim();
        let malformed = |reason| HostlistError::Malformed { name: name.into(), reason };
        let parts = parse_name(name).map_err(malformed)?;
        if parts.iter().map(Part::length_max).sum::<usize>() > LENGTH_MAX {
            return Err(malformed("it has more than 255 bytes"));
        }
        let counts = parts.iter().map(Part::count);
        let count = counts.fold(1_u64, u64::saturating_mul).saturating_add(names.len() as u64);
        if count > u64::from(limits::HOSTS_MAX) {
            return Err(HostlistError::TooMany { name: name.into() });
        }
        let expanded = parts.iter().fold(vec![String::new()], |prefixes, part| part.append_to(&prefixes));
        names.extend(expanded);
    }
    Ok(names)
}

/// The maximum length of a name in bytes: that of a host name in DNS (RFC 1035, section 2.3.4).
const LENGTH_MAX: usize = 255;

/// A part of a name.
enum Part<'a> {
    Text(&'a str),
    /// Numbers in brackets.
    Numbers(Vec<Range>),
}

/// Numbers from `first` to `last`, of at least `digits` digits.
struct Range {
    first: u32,
    last: u32,
    digits: usize,
}

impl Part<'_> {
    fn count(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().map(|range| u64::from(range.last - range.first) + 1).sum(),
        }
    }

    /// The length of the longest value of this part, in bytes.
    fn length_max(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Numbers(ranges) => ranges.iter().map(Range::length_max).max().unwrap_or(0),
        }
    }

    /// Each prefix with each value of this part.
    fn append_to(&self, prefixes: &[String]) -> Vec<String> {
        let append = |prefix: &String| match self {
            Self::Text(text) => vec![format!("{prefix}{text}")],
            Self::Numbers(ranges) => {
                let numbers = ranges.iter().flat_map(|&Range { first, last, digits }| {
                    (first..=last).map(move |number| format!("{prefix}{number:0digits$}"))
                });
                numbers.collect()
            }
        };
        prefixes.iter().flat_map(append).collect()
    }
}

impl Range {
    /// The digits of the longest number.
    fn length_max(&self) -> usize {
        self.digits.max(self.last.checked_ilog10().map_or(1, |log| log as usize + 1))
    }
}

/// The texts between commas that are in no brackets.
pub(crate) fn split_names(text: &str) -> impl Iterator<Item = &str> {
    let mut is_in_brackets = false;
    text.split(move |character| {
        match character {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            _ => {}
        }
        character == ',' && !is_in_brackets
    })
}

fn parse_name(name: &str) -> Result<Vec<Part<'_>>, &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.contains(char::is_whitespace) {
        return Err("it has white space within");
    }
    // A remote shell would take it for an option, and ssh has some that run commands.
    if name.starts_with('-') {
        return Err("it begins with -, as options do");
    }
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((text, behind)) = rest.split_once('[') {
        let (numbers, behind) = behind.split_once(']').ok_or("a bracket is not closed")?;
        if text.contains(']') {
            return Err("a bracket is closed that is not open");
        }
        parts.push(Part::Text(text));
        parts.push(Part::Numbers(numbers.split(',').map(parse_range).collect::<Result<_, _>>()?));
        rest = behind;
    }
    if rest.contains(']') {
        return Err("a bracket is closed that is not open");
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn parse_range(text: &str) -> Result<Range, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.ok_or("brackets have numbers and ranges of numbers up to 4294967295, such as [1-4,7]")
    };
    let range = Range { first: number(first)?, last: number(last)?, digits: first.len() };
    if range.last < range.first { Err("a range goes down") } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same as python-hostlist 2.3 expands them to.
    #[test]
    fn names_are_those_of_slurm() {
        for (text, expected) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[1,3-4],m7", "n1 n3 n4 m7"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[001,10]", "n001 n10"),
            ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
            ("n[1-2]-ib", "n1-ib n2-ib"),
            ("[1-2]", "1 2"),
            (" a , b ", "a b"),
            ("a,a", "a a"),
        ] {
            assert_eq!(expand_hostlist(text).unwrap().join(" "), expected, "{text}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let prefix = |name: &str| format!("'{name}' is not a hostlist such as node7 or n[1-16]: ");
        let numbers = "brackets have numbers and ranges of numbers up to 4294967295, such as [1-4,7]";
        for (text, name, reason) in [
            ("", "", "it is empty"),
            ("a,,b", "", "it is empty"),
            ("a b", "a b", "it has white space within"),
            ("a,-oProxyCommand=x", "-oProxyCommand=x", "it begins with -, as options do"),
            ("a,n[1-2", "n[1-2", "a bracket is not closed"),
            ("n1-2],b", "n1-2]", "a bracket is closed that is not open"),
            ("n[1]2]", "n[1]2]", "a bracket is closed that is not open"),
            ("n]1[2]", "n]1[2]", "a bracket is closed that is not open"),
            ("n[[1]]", "n[[1]]", numbers),
            ("n[]", "n[]", numbers),
            ("n[1-]", "n[1-]", numbers),
            ("n[+1]", "n[+1]", numbers),
            ("n[1-2-3]", "n[1-2-3]", numbers),
            ("n[4294967296]", "n[4294967296]", numbers),
            ("n[3-1]", "n[3-1]", "a range goes down"),
        ] {
            assert_eq!(expand_hostlist(text).unwrap_err().to_string(), prefix(name) + reason, "{text}");
        }
        let long = "it has more than 255 bytes";
        for text in [
            "n".repeat(256),
            format!("n[{}1]", "0".repeat(70_000)),
            format!("{}[1-1048576]", "n".repeat(250)),
        ] {
            assert_eq!(expand_hostlist(&text).unwrap_err().to_string(), prefix(&text) + long);
        }
        assert_eq!(expand_hostlist(&format!("n[1]{}", "m".repeat(253))).map(|names| names.len()), Ok(1));
        for text in ["n[0-4294967295]", "n[0-999]m[0-999]k[0-999]o[0-4294967295]p[0-4294967295]"] {
            let error = expand_hostlist(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' names more than {} hosts", limits::HOSTS_MAX));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "[n0-9,\\[\\]\\- ]{0,24}") {
            if let Ok(names) = expand_hostlist(&text) {
                prop_assert!(!names.is_empty() && names.len() <= limits::HOSTS_MAX as usize);
                prop_assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['[', ']', ',', ' '])));
            }
        }

        #[test]
        fn names_are_recovered_from_ranges(first in 0..2_000_u32, count in 1..50_u32, digits in 1..6_usize) {
            let last = first + count - 1;
            let names = expand_hostlist(&format!("n[{first:0digits$}-{last}]")).unwrap();
            let expected: Vec<String> = (first..=last).map(|number| format!("n{number:0digits$}")).collect();
            prop_assert_eq!(names, expected);
        }
    }
}
