//! A group that is handed off to a fast path (a NIC, or the kernel's packet path) while nothing in
//! it needs the slow path.
//!
//! The fast path accepts packets in order, forwards them to all children, takes in acknowledgments
//! and acknowledges to the parent, by the rules of `flow/`. With data by multicast it accepts
//! packets that come by multicast and forwards none: the network has brought them to the children;
//! at the root it takes in acknowledgments while nothing is to be sent. For everything else the
//! group is reclaimed ([`crate::Input::Reclaimed`]); the protocol is then in the state in which it
//! would be had it done the work itself.

use std::net::SocketAddr;

use treecast_wire::{
    Authentication, Contribution, Crcs, GroupId, Integrity, Keys, MacKey, MemberId, PayloadKey, Sequence,
    Timestamp, Values,
};

use crate::state::{ChildState, FlowState, MulticastState, Start};
use crate::{Nanoseconds, Piece};

/// A group while it is handed off: what the fast path has to know, and the state that it carries
/// on.
///
/// Nothing is missing, held or to be retransmitted; every child is established and has been sent
/// every packet. With data by multicast, that reaches every child, and this member if it is not the
/// root; a member's child may be ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOff {
    /// The group's number.
    pub group: GroupId,
    /// The keys of the session.
    pub keys: Keys,
    /// The epoch that packets of this member carry.
    pub epoch: u32,
    /// This member's number.
    pub member: MemberId,
    /// The parent's number and address; `None` at the root.
    pub parent: Option<(MemberId, SocketAddr)>,
    /// The number of slots, a power of two.
    pub slots: u32,
    /// The longest payload in bytes.
    pub payload_bytes_max: u16,
    /// When members verify the CRCs of payloads.
    pub integrity: Integrity,
    /// The minimum RTO.
    pub min_rto: Nanoseconds,
    /// The interval of keepalive probes. No RTO is longer than a quarter of it.
    pub keepalive: Nanoseconds,
    /// When the parent was heard last; 0 at the root.
    pub parent_heard_at: Nanoseconds,
    /// The first packet of a result whose contributions the fast path keeps and combines.
    pub contributions_from: Sequence,
    /// When the fast path has sent the last contribution of this node's application to the parent,
    /// with those of the children; 0: it has not.
    pub contribution_sent_at: Nanoseconds,
    /// The timestamp of the last one that it has sent; 0: of none.
    pub contribution_timestamp: Timestamp,
    /// How far the packets are.
    pub flow: FlowState,
    /// With offload `switch`, how data comes.
    pub multicast: Option<HandOffMulticast>,
    /// The children in the order in which they are sent to.
    pub children: Vec<HandOffChild>,
}

/// Data by multicast for a group that is handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOffMulticast {
    /// At a member, how it recognizes packets by multicast; `None` at the root.
    pub source: Option<MulticastSource>,
    /// The state of data by multicast.
    pub state: MulticastState,
}

/// How a member recognizes packets by multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastSource {
    /// The root's number, which packets by multicast carry.
    pub root: MemberId,
    /// The address that they come from.
    pub from: SocketAddr,
    /// The address that the root sends them to.
    pub to: SocketAddr,
}

/// A child of a group that is handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOffChild {
    /// The address of its node.
    pub address: SocketAddr,
    /// How far it is.
    pub state: ChildState,
}

/// The longest values of a contribution that a fast path combines, in bytes.
pub const FAST_VALUES_BYTES_MAX: usize = 64;

/// Whether a fast path combines a contribution: one of few values, with the same result in any
/// order.
pub fn fast_path_combines(contribution: &Contribution) -> bool {
    let is_fast =
        |values: &Values| values.element.is_integer() && values.bytes.len() <= FAST_VALUES_BYTES_MAX;
    contribution.values.as_ref().is_some_and(is_fast)
}

/// A packet that was accepted, or queued, while the group was handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOffPacket {
    /// The packet in its slot.
    pub piece: Piece,
    /// Whether the root requested an acknowledgment.
    pub ack_requested: bool,
    /// When it was forwarded to the children.
    pub sent_at: Nanoseconds,
}

impl HandOff {
    /// Memory for [`crate::Protocol::hand_off_state`] to write to: no group.
    pub fn new() -> Self {
        Self {
            group: GroupId(0),
            keys: Keys {
                header: MacKey([0; 2]),
                control: MacKey([0; 2]),
                data: PayloadKey { code: MacKey([0; 2]), hash: [0; PayloadKey::HASH_WORDS] },
                authentication: Authentication::Header,
                crcs: Crcs::All,
            },
            epoch: 0,
            member: MemberId(0),
            parent: None,
            slots: 0,
            payload_bytes_max: 0,
            integrity: Integrity::Crc32c,
            min_rto: Nanoseconds::ZERO,
            keepalive: Nanoseconds::ZERO,
            parent_heard_at: Nanoseconds::ZERO,
            contributions_from: Sequence(0),
            contribution_sent_at: Nanoseconds::ZERO,
            contribution_timestamp: Timestamp(0),
            flow: FlowState::new(Start::default()),
            multicast: None,
            children: Vec::new(),
        }
    }
}

impl Default for HandOff {
    fn default() -> Self {
        Self::new()
    }
}
