//! The packet loss of each link.

use std::fmt::Write as _;
use std::str::FromStr;

use crate::error::LabError;
use crate::probability::Probability;

/// The probabilities with which a switch drops packets on its links to hosts: one for all, and
/// others for single hosts.
///
/// ```
/// let losses: treecast_lab::Losses = "1%,n3=20%".parse().unwrap();
/// assert_eq!(losses.of(0).get(), 0.01);
/// assert_eq!(losses.of(3).get(), 0.2);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Losses {
    all: Probability,
    /// By host, each once.
    single: Vec<(u32, Probability)>,
}

impl Losses {
    /// The valid values, for error messages.
    const EXPECTED: &'static str = "a percentage from 0% to less than 100% such as 1%, or percentages of single hosts such as n3=5%, or both: 1%,n3=5%";

    /// The loss on the link to a host.
    pub fn of(&self, host: u32) -> Probability {
        let single = self.single.iter().find(|(of, _)| *of == host);
        single.map_or(self.all, |(_, probability)| *probability)
    }

    /// Whether no packet is dropped on any link.
    pub fn is_none(&self) -> bool {
        self.all.get() == 0.0 && self.single.iter().all(|(_, probability)| probability.get() == 0.0)
    }

    /// Checks that a lab with this number of hosts has all hosts whose links have their own losses.
    pub(crate) fn check(&self, hosts: u32) -> Result<(), LabError> {
        match self.single.iter().map(|(host, _)| *host).max() {
            Some(host) if host >= hosts => Err(LabError::NoSuchHost { host, last: hosts - 1 }),
            _ => Ok(()),
        }
    }

    /// The loss of all links, and then `HOST=LOSS` for each host that has its own, separated by
    /// spaces. A loss is written as the threshold of 32 bits below which a random number means a
    /// loss.
    pub(crate) fn thresholds(&self) -> String {
        let threshold = |probability: Probability| (probability.get() * 2f64.powi(32)) as u32;
        let mut text = threshold(self.all).to_string();
        for (host, probability) in &self.single {
            let _ = write!(text, " {host}={}", threshold(*probability));
        }
        text
    }
}

impl From<Probability> for Losses {
    /// The same loss on the links to all hosts.
    fn from(all: Probability) -> Self {
        Self { all, single: Vec::new() }
    }
}

impl FromStr for Losses {
    type Err = LabError;

    /// Probabilities separated by commas: one for all hosts at most, and one for each host that is
    /// named.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let read = || {
            let mut losses = Self::default();
            let mut has_all = false;
            for part in text.split(',') {
                let (host, probability) = match part.split_once('=') {
                    Some((host, probability)) => {
                        let host = host.trim().strip_prefix('n')?.parse::<u32>().ok()?;
                        (Some(host), probability.parse().ok()?)
                    }
                    None => (None, part.parse().ok()?),
                };
                match host {
                    Some(host) if losses.single.iter().all(|(other, _)| *other != host) => {
                        losses.single.push((host, probability));
                    }
                    None if !has_all => (losses.all, has_all) = (probability, true),
                    _ => return None,
                }
            }
            Some(losses)
        };
        read().ok_or_else(|| LabError::Setting {
            key: "loss",
            given: text.to_owned(),
            expected: Self::EXPECTED,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_parsed_for_all_and_for_single_hosts() {
        let read = |text: &str| text.parse::<Losses>().map(|losses| losses.thresholds());
        assert_eq!(read("25%").unwrap(), "1073741824");
        assert_eq!(read("n3=50%").unwrap(), "0 3=2147483648");
        assert_eq!(read("n3=50%,25%,n0=0").unwrap(), "1073741824 3=2147483648 0=0");
        for text in ["", "n3", "3=5%", "n3=5%,n3=6%", "1%,2%", "n3=100%", "n3=5%,", "n-1=5%"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid value {text} for loss: expected")), "{error}");
        }
    }

    #[test]
    fn a_host_that_the_lab_lacks_is_named() {
        let losses: Losses = "n4=5%".parse().unwrap();
        assert!(losses.check(5).is_ok());
        let error = losses.check(4).unwrap_err().to_string();
        assert_eq!(error, "there is no host 4: the lab has hosts 0 to 3");
    }
}
