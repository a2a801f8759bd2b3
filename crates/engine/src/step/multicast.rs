//! The multicast addresses of a node's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use treecast_proto::{GroupId, Nanoseconds, OwnerId};
use treecast_shm::settings::RingSettings;

use crate::datagrams::Reception;

/// The multicast addresses of the groups at a node.
#[derive(Debug, Default)]
pub struct MulticastAddresses {
    /// Where members receive.
    receptions: BTreeMap<GroupId, Received>,
    /// Where roots send.
    sent: BTreeMap<GroupId, SocketAddr>,
    has_changed: bool,
    check_at: Nanoseconds,
}

/// The interval of checks whether other nodes of this host receive at the addresses.
const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(100);

/// Multicast reception of a member of a group.
#[derive(Debug)]
struct Received {
    address: SocketAddr,
    root: SocketAddr,
    owner: OwnerId,
    buffer_bytes: usize,
    /// Whether no other node of this host receives there, as far as is known.
    is_alone: bool,
}

/// The memory that the kernel takes for a datagram in a receive buffer, beside its payload, in
/// bytes.
const DATAGRAM_OVERHEAD_BYTES: usize = 1 << 10;

/// The receive buffer of the multicast socket of a group, in bytes: what the root may send before
/// it waits for the members.
fn buffer_bytes(settings: RingSettings) -> usize {
    settings.slots as usize * (usize::from(settings.payload_bytes_max) + DATAGRAM_OVERHEAD_BYTES)
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

    /// The groups that may be handed off before the batch is sent: acknowledgments may come back
    /// while it is being sent, and the kernel's packet path takes them then. It frees no slot that
    /// the batch is sent from, since no member acknowledges a packet that was not sent. What goes
    /// along a tree may be a retransmission, which may have been acknowledged: then the groups are
    /// handed off afterwards.
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
    pub fn receive(
        &mut self,
        group: GroupId,
        owner: OwnerId,
        (address, root): (SocketAddr, SocketAddr),
        settings: RingSettings,
    ) {
        let buffer_bytes = buffer_bytes(settings);
        self.receptions.insert(group, Received { address, root, owner, buffer_bytes, is_alone: false });
        self.has_changed = true;
        self.check_at = Nanoseconds::ZERO;
    }

    /// The root of a group sends to an address.
    pub fn send(&mut self, group: GroupId, address: SocketAddr) {
        self.sent.insert(group, address);
    }

    /// A group has ended.
    pub fn remove(&mut self, group: GroupId) {
        let (received, sent) = (self.receptions.remove(&group), self.sent.remove(&group));
        self.has_changed |= received.is_some() || sent.is_some();
    }

    /// Whether there are other addresses than at the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Where members receive, each in a lane of its owner.
    pub fn receptions(&self, lane_of: impl Fn(OwnerId) -> usize) -> Vec<Reception> {
        let reception = |received: &Received| {
            let &Received { address, root, owner, buffer_bytes, .. } = received;
            Reception { address, root, lane: lane_of(owner), buffer_bytes }
        };
        self.receptions.values().map(reception).collect()
    }

    /// Whether the kernel's packet path may take a group's packets. One by multicast that a program
    /// takes comes to no other node of this host, so that nodes that share an address receive in
    /// user space.
    pub fn may_be_taken(&self, group: GroupId) -> bool {
        self.receptions.get(&group).is_none_or(|received| received.is_alone)
    }

    /// Whether it is time for [`MulticastAddresses::set_alone_at`].
    pub fn is_check_due(&mut self, now: Nanoseconds) -> bool {
        // Before a change is applied, this node does not receive at new addresses itself.
        if self.receptions.is_empty() || self.has_changed || now < self.check_at {
            return false;
        }
        self.check_at = now + CHECK_INTERVAL;
        true
    }

    /// Says at which addresses this node is alone; returns the groups at whose addresses it is not
    /// any more.
    pub fn set_alone_at(&mut self, alone_at: &BTreeSet<IpAddr>) -> Vec<GroupId> {
        let mut shared = Vec::new();
        for (&group, received) in &mut self.receptions {
            let is_alone = alone_at.contains(&received.address.ip().to_canonical());
            if received.is_alone && !is_alone {
                shared.push(group);
            }
            received.is_alone = is_alone;
        }
        shared
    }

    /// Whether a root sends to this address.
    pub fn is_sent_to(&self, address: SocketAddr) -> bool {
        self.sent.values().any(|sent| *sent == address)
    }

    /// The upper bound of a group's receive buffer, in bytes. The kernel takes twice as much as it
    /// is asked for (socket(7)).
    pub fn buffer_bytes(&self, group: GroupId) -> u64 {
        self.receptions.get(&group).map_or(0, |received| 2 * received.buffer_bytes as u64)
    }
}
