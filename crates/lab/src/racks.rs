//! Racks of hosts.

use std::fmt;
use std::str::FromStr;

use crate::error::LabError;

/// Racks with the same number of hosts each: at most [`Racks::HOSTS_MAX`] hosts in all, and so at
/// most as many racks, of one host each. Hosts are numbered rack by rack.
///
/// ```
/// let racks: treecast_lab::Racks = "4x8".parse().unwrap();
/// assert_eq!((racks.racks(), racks.hosts_per_rack(), racks.hosts()), (4, 8, 32));
/// assert_eq!(racks.to_string(), "4x8");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Racks {
    racks: u32,
    hosts_per_rack: u32,
}

impl Racks {
    /// The maximum number of hosts in all racks: that of a lab.
    pub const HOSTS_MAX: u32 = 250;

    /// The valid values, for error messages.
    const EXPECTED: &'static str = "racks and hosts in each, such as 4x8, with 1 to 250 hosts in all";

    /// Racks of hosts.
    ///
    /// # Errors
    ///
    /// No rack, no host in a rack, and more than [`Racks::HOSTS_MAX`] hosts in all.
    pub fn new(racks: u32, hosts_per_rack: u32) -> Result<Self, LabError> {
        let given = Self { racks, hosts_per_rack };
        let hosts = racks.checked_mul(hosts_per_rack);
        let is_valid = hosts.is_some_and(|hosts| (1..=Self::HOSTS_MAX).contains(&hosts));
        is_valid.then_some(given).ok_or_else(|| Self::wrong(&given))
    }

    /// The number of racks.
    pub fn racks(self) -> u32 {
        self.racks
    }

    /// The number of hosts in each rack.
    pub fn hosts_per_rack(self) -> u32 {
        self.hosts_per_rack
    }

    /// The number of hosts in all racks.
    pub fn hosts(self) -> u32 {
        self.racks * self.hosts_per_rack
    }

    fn wrong(given: &impl ToString) -> LabError {
        LabError::Setting { key: "racks", given: given.to_string(), expected: Self::EXPECTED }
    }
}

impl fmt::Display for Racks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.racks, self.hosts_per_rack)
    }
}

impl FromStr for Racks {
    type Err = LabError;

    /// Two whole numbers, joined by `x`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let numbers = text.split_once('x').map(|(racks, hosts)| (racks.parse(), hosts.parse()));
        match numbers {
            Some((Ok(racks), Ok(hosts))) => Self::new(racks, hosts).map_err(|_| Self::wrong(&text)),
            _ => Err(Self::wrong(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_are_parsed_and_shown_in_the_same_form() {
        let read = |text: &str| text.parse::<Racks>().map_err(|error| error.to_string());
        for (text, racks, hosts) in [("4x4", 4, 4), ("1x250", 1, 250), ("250x1", 250, 1), ("2x125", 2, 125)] {
            let parsed = read(text).unwrap();
            assert_eq!(
                (parsed.racks(), parsed.hosts_per_rack(), parsed.hosts()),
                (racks, hosts, racks * hosts)
            );
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "",
            "x",
            "4",
            "4x",
            "x4",
            "0x4",
            "4x0",
            "-1x4",
            "4x4x4",
            "4X4",
            "4 x 4",
            "300x4",
            "251x1",
            "65536x65536",
        ] {
            assert_eq!(
                read(text),
                Err(format!(
                    "invalid value {text} for racks: expected racks and hosts in each, such as 4x8, with 1 to 250 \
                     hosts in all"
                ))
            );
        }
        let error = Racks::new(300, 4).unwrap_err().to_string();
        assert!(error.starts_with("invalid value 300x4 for racks: "), "{error}");
    }
}
