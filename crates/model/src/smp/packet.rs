//! Packets between nodes, and the network interfaces, buses and routes that carry them.

use std::collections::BTreeMap;

use treecast_fabric::{Channel, HostId};
use treecast_plan::MemberId;
use treecast_terms::Bytes;

use super::script::{PacketId, Piece};
use crate::kernel::Server;

/// The contents of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A packet of a message between two processes; the last one brings the piece to its receiver.
    Message { from: MemberId, to: MemberId, piece: Piece, is_last: bool },
    /// A packet of a broadcast: to the group, or a retransmission to one member.
    Datagram { packet_id: PacketId, only: Option<MemberId> },
    /// A member acknowledges a broadcast.
    Acknowledgment { broadcast: u32, from: MemberId },
}

/// A packet between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub from: HostId,
    pub content: Content,
    pub length: Bytes,
}

/// The parts of a node's network interface, and its bus.
#[derive(Debug, Clone, Default)]
pub(super) struct Interface {
    pub bus: Server,
    pub send: Server,
    pub receive: Server,
    pub deliver: Server,
}

/// Cached routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub unicast: BTreeMap<(HostId, HostId), Vec<Channel>>,
    /// The route of a packet to the multicast group; empty if no other node is in the group.
    pub multicast: Vec<Channel>,
}
