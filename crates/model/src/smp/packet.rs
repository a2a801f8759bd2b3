//! Packets between nodes, and what carries them: network interfaces, buses and routes.

use std::collections::BTreeMap;

use treecast_fabric::{Channel, HostId};
use treecast_plan::MemberId;
use treecast_terms::Bytes;

use super::script::{Part, Piece};
use crate::kernel::Server;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Of a message between two processes; the last packet brings the piece to its receiver.
    Message { from: MemberId, to: MemberId, piece: Piece, is_last: bool },
    /// Of a broadcast: to the group, or again to one who lacks it.
    Datagram { part: Part, only: Option<MemberId> },
    /// Somebody has all of a broadcast.
    Acknowledgment { broadcast: u32, from: MemberId },
}

/// A packet under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flight {
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

/// Routes, each found once.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub unicast: BTreeMap<(HostId, HostId), Vec<Channel>>,
    /// Of a packet to the multicast group; empty where no other node is in it.
    pub multicast: Vec<Channel>,
}
