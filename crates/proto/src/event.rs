//! The events of groups that their users see.

use std::net::SocketAddr;

use thiserror::Error;
use treecast_wire::{
    AbortReason, Contribution, Eviction, GroupId, MemberId, Offload, Sequence, SessionId, Transport,
};

use crate::Nanoseconds;

/// Something that has happened to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// This member has its place in the tree: the memory of its slots is needed before the next
    /// input.
    Placed {
        /// The group.
        group: GroupId,
        /// The member's own number.
        member: MemberId,
        /// The first packet that it will get.
        start: Sequence,
        /// The number of slots.
        slots: u32,
        /// The longest payload in bytes.
        payload_bytes_max: u16,
        /// Which part of a host forwards.
        offload: Offload,
        /// What carries data.
        transport: Transport,
        /// The session, if its payloads are encrypted ([`crate::GroupKey::encryption_key`]).
        encrypted_session: Option<SessionId>,
        /// With offload `switch`, the multicast address at which the root's data is to be received.
        multicast: Option<SocketAddr>,
    },
    /// At the root: every member that could be reached has its place.
    Ready {
        /// The group.
        group: GroupId,
    },
    /// At the root: a host has become a member.
    Joined {
        /// The group.
        group: GroupId,
        /// The new member.
        member: MemberId,
        /// The first packet that it gets, the first of a message.
        start: Sequence,
    },
    /// At the root: a host, or a process of it, is no longer a member; the others go on.
    MemberLost {
        /// The group.
        group: GroupId,
        /// The member.
        member: MemberId,
        /// The one process that is lost, of those that share the member's node; none: the member.
        reader: Option<u32>,
        /// Why it was lost.
        loss: MemberLoss,
    },
    /// At the root: all members have contributed to an all-reduce. The root's next message is to be
    /// this result ([`Contribution::write`]).
    Reduced {
        /// The group.
        group: GroupId,
        /// The result.
        result: Contribution,
    },
    /// The answer to [`crate::Input::Attach`].
    Attached {
        /// The number of the stream.
        stream: u64,
        /// The child whose stream it is, of a group; none: the stream is to be closed. An earlier
        /// stream of the child is to be closed too.
        child: Option<(GroupId, MemberId)>,
    },
    /// The stream of a child is to be closed: it is no child any more.
    Detached {
        /// The group.
        group: GroupId,
        /// The child.
        child: MemberId,
    },
    /// The stream to the parent carries nothing: it is to be closed, and opened again.
    Stalled {
        /// The group.
        group: GroupId,
    },
    /// The group has ended at this node.
    Ended {
        /// The group.
        group: GroupId,
        /// How it ended.
        ending: Ending,
    },
}

/// Why a host is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MemberLoss {
    /// It never answered, or did not acknowledge a later table although packets of it arrived.
    #[error("no answer within {0}")]
    Unreachable(Nanoseconds),
    /// It stopped answering: nothing was heard from it for this time.
    #[error("silent for {0}")]
    Silent(Nanoseconds),
    /// It did not answer any more when the root went on after this time in which its own node did
    /// not run.
    #[error("silent after the root's own node did not run for {0} (stopped or suspended)")]
    SilentAfterPause(Nanoseconds),
    /// Datagrams of this length, with their IP headers, do not arrive there, although shorter ones
    /// do.
    #[error("datagrams of {datagram_bytes} bytes do not arrive there")]
    PathTooSmall {
        /// The length in bytes.
        datagram_bytes: u32,
    },
    /// It answered, and accepted nothing of what was sent to it again and again for this time.
    #[error(
        "accepted nothing for {0}, although it answered: if data goes on streams, a firewall may let no TCP pass between the hosts (transport=packets needs UDP alone)"
    )]
    AcceptsNothing(Nanoseconds),
    /// It was restarted and has lost its memory; it may join again.
    #[error("restarted")]
    Restarted,
    /// It asked to leave.
    #[error("left the group")]
    Left,
    /// The root's application knew that it was dead.
    #[error("evicted by the root")]
    Evicted,
}

/// How a group ended at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Ending {
    /// The root closed it, and everything has arrived.
    #[error("the group is closed")]
    Closed,
    /// The root says that this host is not a member, or has closed the group before this host had
    /// received everything.
    #[error("{}", eviction_text(*.0))]
    Evicted(Eviction),
    /// This node did not run for this time, and the root has declared this member lost meanwhile.
    #[error(
        "the root declared this member lost: its node did not run for {0} (stopped or suspended), and did not answer"
    )]
    EvictedAfterPause(Nanoseconds),
    /// Nothing was heard from the root.
    #[error("the root was silent for {0}")]
    RootSilent(Nanoseconds),
    /// The root has started another session: this one has ended before everything had arrived.
    #[error("the root has started again")]
    RootRestarted,
    /// The parent sent an authentic packet that does not continue those before it: a fault of its
    /// or of the root's.
    #[error("packet {0} does not continue those before it: the root or a member is faulty")]
    Inconsistent(Sequence),
    /// A table of the root's contradicts an earlier one: a fault of the root's, or of a member that
    /// forges its tables.
    #[error("the root's tables contradict each other: the root or a member is faulty")]
    ContradictoryTables,
    /// The slots of the group, with what is kept of each, need more memory than is allowed here.
    #[error("the group's slots take {asked_bytes} bytes, and {bytes_max} are allowed")]
    TooMuchMemory {
        /// The memory that they need.
        asked_bytes: u64,
        /// [`crate::Settings::slot_bytes_max`].
        bytes_max: u64,
    },
    /// This node's own user aborted it.
    #[error("the group was aborted at this node")]
    Aborted,
}

/// A measured time without its fraction of a millisecond, for messages.
pub(crate) const fn whole_ms(span: Nanoseconds) -> Nanoseconds {
    Nanoseconds::from_ms(span.0 / 1_000_000)
}

const fn eviction_text(why: Eviction) -> &'static str {
    match why {
        Eviction::Silent => "the root declared this member lost, since it did not answer in time",
        Eviction::Left => "this member has left",
        Eviction::Refused => "the group admits no late members",
        Eviction::PathTooSmall => "datagrams as long as the group's do not reach this member",
        Eviction::AcceptsNothing => {
            "this member accepted no packet for too long: if data goes on streams, a firewall may let no TCP pass between the hosts (transport=packets needs UDP alone)"
        }
        Eviction::Full => "the group admits no further members: it has as many as it may have",
        Eviction::Closing => "the group admits no further members: the root is closing it",
        Eviction::StateLost => "the root evicted this member, since it had lost what it had accepted",
        Eviction::Unacknowledged => {
            "the root declared this member lost, since it did not acknowledge its place in the tree in time"
        }
        Eviction::DeclaredDead => "the root's application declared this member dead",
        Eviction::Aborted(why) => match why {
            AbortReason::Application => "the root aborted the group",
            AbortReason::Interrupted => "the root aborted the group: it was interrupted",
            AbortReason::Dropped => "the root aborted the group: its application ended without closing it",
            AbortReason::NodeClosed => "the root aborted the group: its node was closed",
            AbortReason::InvalidMemory => {
                "the root aborted the group: its application wrote invalid values into shared memory"
            }
            AbortReason::DatagramTooLong => {
                "the root aborted the group: its datagrams exceed the MTU of the network"
            }
            AbortReason::NoMemory => "the root aborted the group: its node has no memory for the group",
            AbortReason::InputFailed => "the root aborted the group: it could not read the data to be sent",
        },
        Eviction::Closed => "the group is closed, and this member has not received all messages",
    }
}
