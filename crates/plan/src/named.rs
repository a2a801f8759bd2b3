//! Members by the names of their hosts.

use std::net::Ipv6Addr;

use treecast_fabric::{HostNames, HostlistError, Topology, expand_hostlist};
use treecast_terms::MemberId;

use crate::error::PlanError;
use crate::group::{MemberList, Placement};

/// The member that a text names: its number, or the name of its host, on which it is the first
/// member.
///
/// # Errors
/// [`PlanError::Fabric`] for a host that the topology does not have. [`Group::new`] checks whether
/// a member of this number exists.
///
/// [`Group::new`]: crate::Group::new
///
/// ```
/// use treecast_fabric::read;
/// use treecast_plan::{MemberId, Placement, member_named};
///
/// let topology = read::inventory("lab.inventory", "login rack1\nn[1-16] rack1")?.topology;
/// let placement = Placement::one_per_host(17);
/// assert_eq!(member_named("n3", &topology, &placement)?, MemberId(3));
/// assert_eq!(member_named("3", &topology, &placement)?, MemberId(3));
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
pub fn member_named(text: &str, topology: &Topology, placement: &Placement) -> Result<MemberId, PlanError> {
    if let Ok(number) = text.parse() {
        return Ok(MemberId(number));
    }
    let host = HostNames::new(topology).find(text)?;
    let members = placement.members_of(host).next();
    members
        .ok_or(PlanError::PlacementMismatch { placed: placement.host_count(), hosts: topology.host_count() })
}

/// The destinations that a text names: a [`MemberList`], or a hostlist such as `n[1-16],login`. A
/// hostlist stands for all members on its hosts except the root, so it may list all hosts.
///
/// # Errors
/// [`PlanError::MemberList`] and [`PlanError::Hostlist`] for a text that is neither;
/// [`PlanError::Fabric`] for a host that the topology does not have; those of
/// [`MemberList::resolve`].
///
/// ```
/// use treecast_fabric::read;
/// use treecast_plan::{MemberId, Placement, destinations_named};
///
/// let topology = read::inventory("lab.inventory", "login rack1\nn[1-16] rack1")?.topology;
/// let named = |text| destinations_named(text, &topology, &Placement::one_per_host(17), MemberId(0), 1);
/// assert_eq!(named("login,n[1-3]")?, [1, 2, 3].map(MemberId));
/// assert_eq!(named("1-3")?, [1, 2, 3].map(MemberId));
/// assert_eq!(named("all")?.len(), 16);
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
pub fn destinations_named(
    text: &str,
    topology: &Topology,
    placement: &Placement,
    root: MemberId,
    seed: u64,
) -> Result<Vec<MemberId>, PlanError> {
    let malformed = match text.parse::<MemberList>() {
        Ok(list) => return list.resolve(placement, root, seed),
        Err(error) => error,
    };
    if !is_of_hosts(text) {
        return Err(malformed);
    }
    destinations_on(text, topology, placement, root)
}

/// Whether a text that does not list members is read as a hostlist: it has a letter, or something
/// that only host names have, such as an address. With a colon, a letter does not count: the text
/// may be the name of a list, such as `random:15`.
fn is_of_hosts(text: &str) -> bool {
    let is_v6 = |name: &str| name.trim().parse::<Ipv6Addr>().is_ok();
    let has_letter = text.contains(char::is_alphabetic) && !text.contains(':');
    has_letter || text.contains(['.', '[']) || text.split(',').any(is_v6)
}

/// All members but the root on the hosts of a hostlist, such as `n[1-16],login`.
///
/// # Errors
/// [`PlanError::Hostlist`]; [`PlanError::Fabric`] for a host that the topology does not have.
pub fn destinations_on(
    hostlist: &str,
    topology: &Topology,
    placement: &Placement,
    root: MemberId,
) -> Result<Vec<MemberId>, PlanError> {
    let names = HostNames::new(topology);
    let mut members = Vec::new();
    for name in expand_hostlist(hostlist).map_err(|error: HostlistError| PlanError::Hostlist(error))? {
        let host = names.find(&name)?;
        members.extend(placement.members_of(host).filter(|&member| member != root));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use treecast_fabric::FabricSpec;

    use super::*;
    use crate::group::Arrangement;

    fn destinations(text: &str, processes: u32) -> Result<Vec<u32>, String> {
        let topology = "star:4".parse::<FabricSpec>().unwrap().topology().unwrap();
        let placement = Placement::new(4, processes, Arrangement::Cyclic).unwrap();
        let members = destinations_named(text, &topology, &placement, MemberId(1), 1);
        members
            .map(|members| members.iter().map(|member| member.0).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_stands_for_its_members_but_the_root() {
        assert_eq!(destinations("h[0-3]", 1), Ok(vec![0, 2, 3]));
        assert_eq!(destinations("h1,h3", 2), Ok(vec![5, 3, 7]));
        let topology = "star:4".parse::<FabricSpec>().unwrap().topology().unwrap();
        let placement = Placement::new(4, 2, Arrangement::Block).unwrap();
        assert_eq!(member_named("h2", &topology, &placement), Ok(MemberId(4)));
    }

    #[test]
    fn the_names_of_hosts_may_be_addresses() {
        let inventory = "127.0.0.[1-3] r0\n2001:db8::[1-2] r0\n5 r0\n";
        let topology = treecast_fabric::read::inventory("lab.inventory", inventory).unwrap().topology;
        let placement = Placement::one_per_host(6);
        let named = |text| destinations_named(text, &topology, &placement, MemberId(0), 1);
        assert_eq!(named("127.0.0.[2-3]"), Ok([1, 2].map(MemberId).into()));
        assert_eq!(named("127.0.0.2"), Ok(vec![MemberId(1)]));
        assert_eq!(named("127.0.0.1,2001:db8::[1-2]"), Ok([3, 4].map(MemberId).into()));
        assert_eq!(named("2001:db8::2"), Ok(vec![MemberId(4)]));
        // A number is that of a member, unless the text is known to be a hostlist.
        assert_eq!(named("4"), Ok(vec![MemberId(4)]));
        assert_eq!(destinations_on("5", &topology, &placement, MemberId(0)), Ok(vec![MemberId(5)]));
    }

    #[test]
    fn what_is_no_list_is_named() {
        for text in ["", "3-1", "-3", "randm:3", "1,,2"] {
            let error = destinations(text, 1).unwrap_err();
            assert!(error.starts_with(&format!("'{text}' is not a list of members: ")), "{error}");
        }
        assert_eq!(
            destinations("h0,m5", 1).unwrap_err(),
            "the fabric has no host 'm5': known are h0, h1, h2, h3"
        );
        assert!(destinations("h[1", 1).unwrap_err().ends_with("a bracket is not closed"));
    }
}
