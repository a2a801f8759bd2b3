//! What a stage is set up with: the kind of node, its neighbours and its group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use treecast_proto::{Authentication, Integrity, Offload};
use treecast_wire::Distribution;

use super::super::acts::Defect;
use super::PORT;

/// A node and its neighbours.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is generated independently")]
pub struct Setting {
    pub is_root: bool,
    /// Whether the root sends data by multicast.
    pub is_multicast: bool,
    pub is_v6: bool,
    /// Whether the parent is the root.
    pub is_below_root: bool,
    pub slots_log2: u32,
    pub payload_bytes_max: u16,
    pub children: u32,
    pub start: u32,
    pub has_checksum: bool,
    pub authentication: Authentication,
    pub integrity: Integrity,
    pub reads_silently: bool,
    pub sleeps: bool,
}

impl Setting {
    pub(super) fn address(&self, member: u32) -> SocketAddr {
        let ip: IpAddr = if self.is_v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, member as u16 + 1).into()
        } else {
            Ipv4Addr::new(10, 1, 0, member as u8 + 1).into()
        };
        SocketAddr::new(ip, PORT)
    }

    /// The node's own number. The root is 0; a parent that is not the root is 1.
    pub(super) const fn member(&self) -> u32 {
        if self.is_root { 0 } else { 2 }
    }

    pub(super) const fn parent(&self) -> u32 {
        if self.is_below_root { 0 } else { 1 }
    }

    pub(super) const fn child(&self, place: u32) -> u32 {
        self.member() + 1 + place
    }

    pub(super) const fn slots(&self) -> u32 {
        1 << self.slots_log2
    }

    pub(super) const fn offload(&self) -> Offload {
        if self.is_multicast { Offload::Switch } else { Offload::Nic }
    }

    /// The address to which the root sends data.
    pub(super) fn multicast(&self) -> Option<SocketAddr> {
        let ip: IpAddr = if self.is_v6 {
            Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 7).into()
        } else {
            Ipv4Addr::new(239, 1, 1, 7).into()
        };
        self.is_multicast.then_some(SocketAddr::new(ip, PORT + 100))
    }

    /// The sender of a data packet, and how the root has sent the packet.
    pub(super) const fn way(&self, defect: &Defect) -> (u32, Distribution) {
        match (self.is_multicast, defect) {
            (false, _) | (true, Defect::AlongTree { is_multicast: false }) => {
                (self.parent(), Distribution::Tree)
            }
            (true, Defect::AlongTree { is_multicast: true }) => {
                (self.parent(), Distribution::MulticastAndTree)
            }
            (true, _) => (0, Distribution::Multicast),
        }
    }
}
