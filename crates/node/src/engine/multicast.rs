//! The multicast addresses of a node's groups.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use treecast_proto::{GroupId, OwnerId};

use crate::datagrams::Reception;
use crate::memory::RingSettings;

/// The multicast addresses of the groups at a node.
#[derive(Debug, Default)]
pub struct MulticastAddresses {
    /// Where members receive.
    receptions: BTreeMap<GroupId, Received>,
    /// Where roots send.
    sent: BTreeMap<GroupId, SocketAddr>,
    has_changed: bool,
}

/// What a member of a group receives by multicast.
#[derive(Debug)]
struct Received {
    address: SocketAddr,
    root: SocketAddr,
    owner: OwnerId,
    buffer_bytes: usize,
}

/// The room that the kernel takes for a datagram in a receive buffer, beside its payload, in bytes.
const DATAGRAM_OVERHEAD_BYTES: usize = 1 << 10;

/// The receive buffer of the multicast socket of a group, in bytes: what the root may send before it waits for the members.
fn buffer_bytes(settings: RingSettings) -> usize {
    settings.slots as usize * (usize::from(settings.payload_bytes_max) + DATAGRAM_OVERHEAD_BYTES)
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
        self.receptions.insert(group, Received { address, root, owner, buffer_bytes });
        self.has_changed = true;
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
            let &Received { address, root, owner, buffer_bytes } = received;
            Reception { address, root, lane: lane_of(owner), buffer_bytes }
        };
        self.receptions.values().map(reception).collect()
    }

    /// Whether a root sends to this address.
    pub fn is_sent_to(&self, address: SocketAddr) -> bool {
        self.sent.values().any(|sent| *sent == address)
    }

    /// What the receive buffer of a group takes at most, in bytes. The kernel takes twice as much as it is asked for (socket(7)).
    pub fn buffer_bytes(&self, group: GroupId) -> u64 {
        self.receptions.get(&group).map_or(0, |received| 2 * received.buffer_bytes as u64)
    }
}
