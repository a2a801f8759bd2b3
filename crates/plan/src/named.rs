//! Members by the names of their hosts.

use treecast_fabric::{HostNames, HostlistError, Topology, expand_hostlist};
use treecast_terms::MemberId;

use crate::error::PlanError;
use crate::group::{MemberList, Placement};

/// The member that a text names: its number, or the name of its host, on which it is the first member.
///
/// # Errors
/// [`PlanError::Fabric`] for a host that the topology does not have. Whether there is a member of this number, [`Group::new`] checks.
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

/// The destinations that a text names: a [`MemberList`], or a hostlist such as `n[1-16],login`. Of the hosts in a hostlist these are all
/// members but the root, so the list may be that of all hosts.
///
/// # Errors
/// [`PlanError::MemberList`] and [`PlanError::Hostlist`] for what is neither; [`PlanError::Fabric`] for a host that the topology does not
/// have; those of [`MemberList::resolve`].
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
    if !text.contains(char::is_alphabetic) || text.contains(':') {
        return Err(malformed);
    }
    let names = HostNames::new(topology);
    let mut members = Vec::new();
    for name in expand_hostlist(text).map_err(|error: HostlistError| PlanError::Hostlist(error))? {
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
