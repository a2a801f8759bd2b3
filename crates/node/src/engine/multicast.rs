//! The multicast addresses of a node's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use treecast_proto::{GroupId, Nanoseconds};

/// The multicast addresses of the groups at a node.
#[derive(Debug, Default)]
pub struct MulticastAddresses {
    /// Where members of groups receive.
    addresses: BTreeMap<GroupId, ReceiveAddress>,
    change: Change,
    check_at: Nanoseconds,
}

/// Where a member of a group receives.
#[derive(Debug, Clone, Copy)]
struct ReceiveAddress {
    address: SocketAddr,
    /// The root, which sends there.
    root: SocketAddr,
    /// Whether no other node of this host receives there, as far as is known.
    is_alone: bool,
}

/// The interval of checks whether other nodes of this host receive at the addresses.
const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(100);

/// What the socket has to apply.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// There are other addresses than before.
    pub has_addresses: bool,
    /// A root sends by multicast, by the interface by which this member is reached. The groups of a node share that: if their interfaces
    /// differ, the last one is used, and who is not reached by it is sent to by its parent.
    pub sends_towards: Option<SocketAddr>,
}

/// Whose data is in the batch of datagrams that is to be sent next.
#[derive(Debug, Default)]
pub struct BatchData {
    /// The roots' groups whose data is sent by multicast.
    multicast: Vec<GroupId>,
    is_along_trees: bool,
}

impl BatchData {
    /// A packet of data is added.
    pub fn add(&mut self, group: GroupId, to: SocketAddr) {
        if !to.ip().to_canonical().is_multicast() {
            self.is_along_trees = true;
        } else if self.multicast.last() != Some(&group) {
            self.multicast.push(group);
        }
    }

    /// The groups that may be handed off before the batch is sent: acknowledgments may come back while it is being sent, and the kernel's
    /// packet path takes them then. It frees no slot that the batch is sent from, since no member acknowledges a packet that was not sent.
    /// What goes along a tree may be a retransmission, which may have been acknowledged: then the groups are handed off afterwards.
    pub fn senders(&self) -> &[GroupId] {
        if self.is_along_trees { &[] } else { &self.multicast }
    }

    /// The batch is sent.
    pub fn clear(&mut self) {
        self.multicast.clear();
        self.is_along_trees = false;
    }
}

impl MulticastAddresses {
    /// A member of a group receives at an address, to which this root sends.
    pub fn add(&mut self, group: GroupId, address: SocketAddr, root: SocketAddr) {
        self.addresses.insert(group, ReceiveAddress { address, root, is_alone: false });
        self.change.has_addresses = true;
        self.check_at = Nanoseconds::ZERO;
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
        self.addresses.values().map(|receive| (receive.address, receive.root)).collect()
    }

    /// Whether the kernel's packet path may take a group's packets. One by multicast that a program takes comes to no other node of this
    /// host, so that nodes that share an address receive in user space.
    pub fn may_be_taken(&self, group: GroupId) -> bool {
        self.addresses.get(&group).is_none_or(|receive| receive.is_alone)
    }

    /// Whether it is time for [`MulticastAddresses::set_alone_at`].
    pub fn is_check_due(&mut self, now: Nanoseconds) -> bool {
        // Before a change is applied, this node does not receive at new addresses itself.
        if self.addresses.is_empty() || self.change.has_addresses || now < self.check_at {
            return false;
        }
        self.check_at = now + CHECK_INTERVAL;
        true
    }

    /// Says at which addresses this node is alone; returns the groups at whose addresses it is not any more.
    pub fn set_alone_at(&mut self, alone_at: &BTreeSet<IpAddr>) -> Vec<GroupId> {
        let mut shared = Vec::new();
        for (&group, receive) in &mut self.addresses {
            let is_alone = alone_at.contains(&receive.address.ip().to_canonical());
            if receive.is_alone && !is_alone {
                shared.push(group);
            }
            receive.is_alone = is_alone;
        }
        shared
    }
}
