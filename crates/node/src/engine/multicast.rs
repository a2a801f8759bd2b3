//! The multicast addresses of a node's groups.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use treecast_proto::GroupId;

/// The multicast addresses of the groups at a node.
#[derive(Debug, Default)]
pub struct MulticastAddresses {
    /// Where members of groups receive, and from which root.
    addresses: BTreeMap<GroupId, (SocketAddr, SocketAddr)>,
    change: Change,
}

/// What the socket has to apply.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// There are other addresses than before.
    pub has_addresses: bool,
    /// A root sends by multicast, by the interface by which this member is reached. The groups of a node share that: if their interfaces
    /// differ, the last one is used, and who is not reached by it is sent to by its parent.
    pub sends_towards: Option<SocketAddr>,
}

impl MulticastAddresses {
    /// A member of a group receives at an address, to which this root sends.
    pub fn add(&mut self, group: GroupId, address: SocketAddr, root: SocketAddr) {
        self.addresses.insert(group, (address, root));
        self.change.has_addresses = true;
    }

    /// A group has ended.
    pub fn remove(&mut self, group: GroupId) {
        self.change.has_addresses |= self.addresses.remove(&group).is_some();
    }

    /// The root of a group sends to a multicast address; a member of it is at `to`.
    pub const fn send_towards(&mut self, to: SocketAddr) {
        self.change.sends_towards = Some(to);
    }

    /// What has changed since the last call, if anything has.
    pub fn take_change(&mut self) -> Option<Change> {
        let change = std::mem::take(&mut self.change);
        (change != Change::default()).then_some(change)
    }

    /// Each address with its root.
    pub fn addresses(&self) -> Vec<(SocketAddr, SocketAddr)> {
        self.addresses.values().copied().collect()
    }
}
