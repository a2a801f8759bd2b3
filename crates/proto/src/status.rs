//! The state of a group, for people to look at: it has no effect on the protocol.

use std::net::SocketAddr;

use treecast_wire::{MemberId, Offload, Transport};

use crate::hand_off::HandOffChild;
use crate::state::FlowState;
use crate::{Carrier, MemberLoss};

/// A group at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The address of the root; `None` at the root itself.
    pub root: Option<SocketAddr>,
    /// The place of this node in the tree; `None` before it has one.
    pub place: Option<PlaceStatus>,
    /// At the root: all members, by number, those that are lost among them.
    pub members: Vec<MemberStatus>,
}

/// The place of a node in the tree of a group, and its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceStatus {
    /// The number of this member.
    pub member: MemberId,
    /// The epoch of the tree.
    pub epoch: u32,
    /// The address of the parent; `None` at the root.
    pub parent: Option<SocketAddr>,
    /// What forwards at hosts.
    pub offload: Offload,
    /// The transport of data along the tree.
    pub transport: Transport,
    /// The carrier of the last packet; `None` before the first byte.
    pub carrier: Option<Carrier>,
    /// The number of slots.
    pub slots: u32,
    /// Whether the root has closed the group: no message follows those that are on their way.
    pub is_closed: bool,
    /// The packets, and their counters.
    pub flow: FlowState,
    /// The children, in the order in which they are sent to.
    pub children: Vec<HandOffChild>,
}

/// A member, as the root sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub member: MemberId,
    /// The address of its node.
    pub address: SocketAddr,
    /// Its parent in the tree; `None` for the root.
    pub parent: Option<MemberId>,
    /// Whether it has joined.
    pub has_joined: bool,
    /// Why it is no longer a member.
    pub loss: Option<MemberLoss>,
}
