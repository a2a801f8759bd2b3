//! Which processes of a group share a node.

use std::net::SocketAddr;

use treecast_fabric::HostId;
use treecast_plan::Placement;
use treecast_proto::{CreateGroup, MemberId};
use treecast_shm::places::ProcessPlace;
use treecast_shm::readers::READERS_MAX;

use super::error::NodeError;

/// The hosts of a group's members: members at the same address are processes of one host, which
/// share a node and its slots. In the tree of the protocol each host is one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    addresses: Vec<SocketAddr>,
    /// The host of each member, and the member's place among those of this host.
    places: Vec<(u32, u32)>,
    /// The members of each host.
    members: Vec<Vec<MemberId>>,
}

impl Hosts {
    /// The hosts in the order of their first members.
    ///
    /// # Errors
    /// [`NodeError::Members`] for too many members, in all or of one host.
    pub fn of(members: &[SocketAddr]) -> Result<Self, NodeError> {
        if members.len() > CreateGroup::MEMBERS_MAX {
            let (count, most) = (members.len(), CreateGroup::MEMBERS_MAX);
            return Err(NodeError::Members(format!("a group has at most {most} members, and not {count}")));
        }
        let mut hosts = Self { addresses: Vec::new(), places: Vec::new(), members: Vec::new() };
        let mut numbers = std::collections::BTreeMap::new();
        for (member, &address) in (0..).map(MemberId).zip(members) {
            let host = *numbers.entry(address).or_insert_with(|| {
                hosts.addresses.push(address);
                hosts.members.push(Vec::new());
                hosts.members.len() - 1
            });
            hosts.places.push((host as u32, hosts.members[host].len() as u32));
            hosts.members[host].push(member);
        }
        let are_too_many = |members: &Vec<MemberId>| members.len() > READERS_MAX as usize;
        match hosts.members.iter().position(are_too_many) {
            Some(host) => Err(NodeError::Members(format!(
                "{} is the node of {} members, and at most {READERS_MAX} can share one",
                hosts.addresses[host],
                hosts.members[host].len()
            ))),
            None => Ok(hosts),
        }
    }

    /// The address of each host's node.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The number of hosts.
    pub const fn count(&self) -> usize {
        self.addresses.len()
    }

    /// This many hosts of one member each, whose addresses are not known yet.
    pub fn one_each(members: usize) -> Self {
        Self {
            addresses: vec![SocketAddr::from(([0, 0, 0, 0], 0)); members],
            places: (0..members as u32).map(|host| (host, 0)).collect(),
            members: (0..members as u32).map(|member| vec![MemberId(member)]).collect(),
        }
    }

    /// The number of members.
    pub const fn member_count(&self) -> usize {
        self.places.len()
    }

    /// Which host each member is on, for a plan.
    ///
    /// # Errors
    /// [`NodeError::Plan`] for too many members.
    pub fn placement(&self) -> Result<Placement, NodeError> {
        let host_of = self.places.iter().map(|place| HostId(place.0)).collect();
        Ok(Placement::listed(self.count() as u32, host_of)?)
    }

    /// Whether a host has several members.
    pub const fn are_shared(&self) -> bool {
        self.addresses.len() < self.places.len()
    }

    /// The host of a member; of one that joined late, a host of its own.
    pub fn host_of(&self, member: usize) -> usize {
        match self.places.get(member) {
            Some(&(host, _)) => host as usize,
            None => self.count() + (member - self.places.len()),
        }
    }

    /// The members of a host. A host that joined late is one member, numbered after all others.
    pub fn members_of(&self, host: usize) -> Vec<MemberId> {
        self.members
            .get(host)
            .cloned()
            .unwrap_or_else(|| vec![MemberId((self.places.len() + host - self.count()) as u32)])
    }

    /// The hosts of several members, and the number of these.
    pub fn shared(&self) -> Vec<(MemberId, u32)> {
        let counts = (0..).map(MemberId).zip(self.members.iter().map(|members| members.len() as u32));
        counts.filter(|&(_, count)| count > 1).collect()
    }

    /// The place of a member among the members of its host; none if it is the only one.
    pub fn place_of(&self, member: usize) -> Option<ProcessPlace> {
        let &(host, number) = self.places.get(member)?;
        let count = self.members[host as usize].len() as u32;
        (count > 1).then_some(ProcessPlace { number, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(numbers: &[u8]) -> Hosts {
        let address = |&number: &u8| SocketAddr::from(([10, 0, 0, number], 7_700));
        Hosts::of(&numbers.iter().map(address).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn members_at_one_address_are_processes_of_one_host() {
        let hosts = hosts(&[2, 1, 2, 3, 2]);
        assert_eq!((hosts.count(), hosts.are_shared()), (3, true));
        assert_eq!([0, 1, 2, 3, 4, 5].map(|member| hosts.host_of(member)), [0, 1, 0, 2, 0, 3]);
        assert_eq!(hosts.members_of(0), [0, 2, 4].map(MemberId));
        assert_eq!(hosts.members_of(3), [MemberId(5)]);
        assert_eq!(hosts.place_of(2), Some(ProcessPlace { number: 1, count: 3 }));
        assert_eq!((hosts.place_of(1), hosts.place_of(5)), (None, None));
    }

    #[test]
    fn a_node_is_shared_by_a_bounded_number_of_processes() {
        let error = Hosts::of(&[SocketAddr::from(([10, 0, 0, 1], 7_700)); 257]).unwrap_err().to_string();
        assert_eq!(error, "10.0.0.1:7700 is the node of 257 members, and at most 256 can share one");
    }
}
