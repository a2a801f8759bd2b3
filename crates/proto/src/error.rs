//! Why a request is refused.

use thiserror::Error;
use treecast_wire::{GroupId, MemberId, Sequence};

/// Why a request of this node's own user is refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// The group is not at this node.
    #[error("there is no group {0} at this node")]
    UnknownGroup(GroupId),
    /// A group of this number is at this node.
    #[error("there is a group {0} at this node already")]
    GroupExists(GroupId),
    /// The node has as many groups as its settings allow.
    #[error("this node has {0} groups, and no room for another")]
    TooManyGroups(usize),
    /// A number is out of its range.
    #[error("{what} must be from {min} to {max}, and not {value}")]
    Bounds {
        /// The name of the number.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The least valid value.
        min: u64,
        /// The greatest valid value.
        max: u64,
    },
    /// The number of slots is not a power of two.
    #[error("slots must be a power of two, and not {0}")]
    Slots(u32),
    /// Offload `switch` without a multicast address, or another offload with one.
    #[error("offload switch needs a multicast address, and no other offload has one")]
    Multicast,
    /// Offload `switch` with [`treecast_wire::Authentication::Header`].
    #[error(
        "offload switch needs auth=payload: any host of the network can receive the packets, and change payloads that only a CRC guards"
    )]
    UnauthenticMulticast,
    /// Data by multicast on streams.
    #[error(
        "offload switch sends data by multicast, which goes in packets: transport=stream needs another offload"
    )]
    MulticastStreams,
    /// The children form no tree.
    #[error("the children form no tree: member {0} must occur once, and below the root")]
    Tree(MemberId),
    /// Only the root may do this.
    #[error("only the root of group {0} may do this")]
    NotTheRoot(GroupId),
    /// Only another member may do this.
    #[error("the root of group {0} cannot leave it: close or abort the group instead")]
    IsTheRoot(GroupId),
    /// The group has something to do that no fast path does.
    #[error("group {0} needs the slow path")]
    NeedsSlowPath(GroupId),
    /// No fast path runs the group.
    #[error("group {0} is not handed off")]
    NotHandedOff(GroupId),
    /// What a fast path gives back is invalid: the group has lost packets, and is to be aborted.
    #[error("the fast path returns an invalid state of group {0}")]
    InvalidState(GroupId),
    /// All slots are in use.
    #[error("all {0} slots are in use: wait until members have accepted packets")]
    Full(u32),
    /// Nothing more may be sent.
    #[error("group {0} has been closed")]
    Closed(GroupId),
    /// A message is incomplete.
    #[error(
        "message {message} is incomplete: its first {offset} bytes are queued; queue the rest before closing the group"
    )]
    Unfinished {
        /// The message's number.
        message: u32,
        /// The number of bytes queued.
        offset: u64,
    },
    /// A piece does not follow the one before it.
    #[error("{length} bytes at {offset} of message {message} do not follow the piece queued before")]
    Piece {
        /// The message's number.
        message: u32,
        /// Where the piece begins, in bytes.
        offset: u64,
        /// The length of the piece in bytes.
        length: u32,
    },
    /// A packet that cannot be read or forwarded.
    #[error("packet {given} is not among those from {from} to before {end}")]
    Packet {
        /// The number given.
        given: Sequence,
        /// The first valid number.
        from: Sequence,
        /// The number behind the last valid one.
        end: Sequence,
    },
    /// A contribution to an all-reduce whose result is there already, or of invalid values.
    #[error(
        "the contribution for packet {packet} has invalid values, or comes too late: this node expects packet {next}"
    )]
    Contribution {
        /// The packet that the result was to be.
        packet: Sequence,
        /// The first packet that this node has not.
        next: Sequence,
    },
    /// A process that the node does not have.
    #[error("process {place} is not one of the {count} processes of this node")]
    Process {
        /// Its place.
        place: u32,
        /// The number of processes.
        count: u32,
    },
}
