//! What a node tells whoever drives it, and what it refuses.

use thiserror::Error;
use treecast_wire::{Eviction, GroupId, MemberId, Offload, Sequence};

use crate::Nanoseconds;

/// Something that has happened to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member has its place: memory for its slots is needed before the next input.
    Placed {
        /// The group.
        group: GroupId,
        /// The member's own number.
        member: MemberId,
        /// The first packet that it will get.
        start: Sequence,
        /// How many packets it holds.
        slots: u32,
        /// The longest payload, in bytes.
        payload_bytes_max: u16,
        /// Who forwards.
        offload: Offload,
    },
    /// At the root: every member that could be reached has its place.
    Ready {
        /// The group.
        group: GroupId,
    },
    /// At the root: somebody has become a member.
    Joined {
        /// The group.
        group: GroupId,
        /// The newcomer.
        member: MemberId,
        /// The first packet that it gets, the first of a message.
        start: Sequence,
    },
    /// At the root: somebody is no longer a member; the others go on.
    MemberLost {
        /// The group.
        group: GroupId,
        /// Who it is.
        member: MemberId,
        /// Why.
        loss: MemberLoss,
    },
    /// The group is over at this node.
    Ended {
        /// The group.
        group: GroupId,
        /// How.
        ending: Ending,
    },
}

/// Why somebody is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MemberLoss {
    /// It has never answered.
    #[error("it has not answered within {0}")]
    Unreachable(Nanoseconds),
    /// It has stopped answering.
    #[error("it has said nothing for {0}")]
    Silent(Nanoseconds),
    /// It has been started again, and has lost its memory; it may join as a newcomer.
    #[error("it has been started again")]
    Restarted,
    /// It asked to leave.
    #[error("it has left")]
    Left,
}

/// How a group ended at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Ending {
    /// The root has closed it, and everything has arrived.
    #[error("the group is closed")]
    Closed,
    /// The root says that this node is not a member.
    #[error("{}", evicted(*.0))]
    Evicted(Eviction),
    /// Nothing has been heard from the root.
    #[error("the root has said nothing for {0}")]
    RootSilent(Nanoseconds),
    /// The group asks for more memory than is allowed here.
    #[error("the group's slots take {asked_bytes} bytes, and {bytes_max} are allowed")]
    TooMuchMemory {
        /// What its slots would take.
        asked_bytes: u64,
        /// [`crate::Settings::slot_bytes_max`].
        bytes_max: u64,
    },
    /// This node's own user has given it up.
    #[error("the group was given up here")]
    GivenUp,
}

const fn evicted(why: Eviction) -> &'static str {
    match why {
        Eviction::Silent => "the root takes this member for dead, since it did not answer in time",
        Eviction::Left => "this member has left",
        Eviction::Refused => "the group takes nobody in who comes later",
        Eviction::Aborted => "the root has given the group up",
        Eviction::Closed => "the group is closed",
    }
}

/// Why a request of this node's own user is refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no such group here.
    #[error("there is no group {0} at this node")]
    UnknownGroup(GroupId),
    /// There is such a group already.
    #[error("there is a group {0} at this node already")]
    GroupExists(GroupId),
    /// No more groups.
    #[error("this node has {0} groups, and no room for another")]
    TooManyGroups(usize),
    /// A number is out of its range.
    #[error("{what} must be from {min} to {max}, and not {value}")]
    Bounds {
        /// What it is.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// Not a power of two.
    #[error("slots must be a power of two, and not {0}")]
    Slots(u32),
    /// Children that make no tree.
    #[error(
        "the children given make no tree in which member {0} has its place once, below its root, and children come after their parents"
    )]
    Tree(MemberId),
    /// Only the root may do this.
    #[error("only the root of group {0} may do this")]
    NotTheRoot(GroupId),
    /// Only another member may do this.
    #[error("the root of group {0} cannot leave it: it closes it or gives it up")]
    IsTheRoot(GroupId),
    /// Every slot is taken.
    #[error("all {0} slots are taken: wait until members have accepted what was sent")]
    Full(u32),
    /// Nothing more may be sent.
    #[error("group {0} has been closed")]
    Closed(GroupId),
    /// A message is not whole.
    #[error(
        "message {message} is queued up to byte {offset} only: queue the rest before the group is closed"
    )]
    Unfinished {
        /// Its number.
        message: u32,
        /// How much of it is queued, in bytes.
        offset: u64,
    },
    /// A piece that does not follow the one before.
    #[error("{length} bytes at {offset} of message {message} do not follow what was queued before")]
    Piece {
        /// The message's number.
        message: u32,
        /// Where the piece begins.
        offset: u64,
        /// How long it is.
        length: u32,
    },
    /// A number of a packet that is not there to be read or forwarded.
    #[error("packet {given} is not among those from {from} to before {end}")]
    Packet {
        /// What was given.
        given: Sequence,
        /// The first that would do.
        from: Sequence,
        /// Behind the last that would do.
        end: Sequence,
    },
}
