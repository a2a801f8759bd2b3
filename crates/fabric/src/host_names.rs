//! Finds the hosts of a topology by their names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use treecast_terms::nearest_hint;

use crate::error::FabricError;
use crate::ids::HostId;
use crate::topology::Topology;

/// The maximum number of names in an error message.
const NAMED_MAX: usize = 8;

/// The hosts of a topology by their names.
///
/// A host is found by its name, or else by the first label of its name: `n7.cluster.example` finds
/// `n7`, and `n7` finds `n7.cluster.example` if no other host name begins with that label.
///
/// ```
/// use treecast_fabric::{HostId, HostNames, read};
///
/// let topology = read::inventory("lab.inventory", "n[1-16] rack1\nn[17-32] rack2")?.topology;
/// let names = HostNames::new(&topology);
/// assert_eq!(names.find("n17")?, HostId(16));
/// assert_eq!(names.find("n17.cluster.example")?, HostId(16));
/// assert!(names.find("n33").unwrap_err().to_string().starts_with("the fabric has no host 'n33': did you mean n3"));
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
#[derive(Debug, Clone)]
pub struct HostNames {
    by_name: BTreeMap<String, HostId>,
    /// By the first label of the name, `None` where several hosts have it.
    by_label: BTreeMap<String, Option<HostId>>,
}

impl HostNames {
    /// The names of all hosts of a topology.
    pub fn new(topology: &Topology) -> Self {
        let by_name: BTreeMap<String, HostId> =
            topology.hosts().map(|host| (topology.host_name(host), host)).collect();
        let mut by_label: BTreeMap<String, Option<HostId>> = BTreeMap::new();
        for (name, &host) in &by_name {
            if let Some(label) = first_label(name) {
                by_label.entry(label.into()).and_modify(|found| *found = None).or_insert(Some(host));
            }
        }
        Self { by_name, by_label }
    }

    /// The host of this name.
    ///
    /// # Errors
    /// [`FabricError::NoSuchHost`], with the nearest names.
    pub fn find(&self, name: &str) -> Result<HostId, FabricError> {
        let exact = self.by_name.get(name).copied();
        let by_label = || *first_label(name).and_then(|label| self.by_label.get(label))?;
        exact.or_else(by_label).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> FabricError {
        let known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        let others = known.len().saturating_sub(NAMED_MAX);
        let hint = match nearest_hint(name, &known) {
            hint if hint.starts_with(": did") || others == 0 => hint,
            _ => format!(": known are {} and {others} others", known[..NAMED_MAX].join(", ")),
        };
        FabricError::NoSuchHost { name: name.into(), hint }
    }
}

/// The part of a host name before its domain; `None` for an address.
fn first_label(name: &str) -> Option<&str> {
    let is_address = name.parse::<IpAddr>().is_ok();
    name.split('.').next().filter(|label| !is_address && !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    fn names(hosts: &str) -> HostNames {
        HostNames::new(&read::inventory("a.inventory", &format!("{hosts} r")).unwrap().topology)
    }

    #[test]
    fn a_domain_on_either_side_is_ignored() {
        assert_eq!(names("n1,n2.a.example").find("n2"), Ok(HostId(1)));
        assert_eq!(names("n1,n2").find("n2.a.example"), Ok(HostId(1)));
        assert_eq!(names("n2.a,n2.b").find("n2.b"), Ok(HostId(1)));
        assert!(names("n2.a,n2.b").find("n2").is_err());
        assert!(names("n2.a,n2.b").find("n2.c").is_err());
    }

    #[test]
    fn an_address_has_no_domain() {
        assert_eq!(names("10.0.0.[1-2]").find("10.0.0.2"), Ok(HostId(1)));
        assert!(names("10.0.0.1").find("10.0.0.2").is_err());
        assert!(names("n1").find("").is_err());
    }

    #[test]
    fn an_unknown_host_is_named_with_others() {
        let error = |hosts: &str| names(hosts).find("zzz").unwrap_err().to_string();
        assert_eq!(error("a,b"), "the fabric has no host 'zzz': known are a, b");
        assert_eq!(
            error("n[10-20]"),
            "the fabric has no host 'zzz': known are n10, n11, n12, n13, n14, n15, n16, n17 and 3 others"
        );
    }
}
