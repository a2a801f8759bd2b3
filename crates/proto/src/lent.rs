//! A group that is lent to somebody who goes on with it while nothing is out of the ordinary: a NIC, or the kernel's packet path.
//!
//! Whoever has it accepts packets in order, sends them on to all children, takes in acknowledgments and answers the parent, by the
//! rules of `flow/`. For all else it is taken back ([`crate::Protocol::take_back`]), and everything is as if the protocol had
//! done what was done meanwhile.

use std::net::SocketAddr;

use treecast_wire::{Cookie, GroupId, MemberId, Sequence};

use crate::{Nanoseconds, Piece};

/// All that goes on in a group while nothing in it is out of the ordinary: no gap, nothing held or repeated, every child open and
/// sent all that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lent {
    /// The group.
    pub group: GroupId,
    /// What tells it from others of its number.
    pub cookie: Cookie,
    /// What packets of this member say.
    pub epoch: u32,
    /// This member.
    pub member: MemberId,
    /// Who sends to it, and from where; none at the root.
    pub parent: Option<(MemberId, SocketAddr)>,
    /// A power of two.
    pub slots: u32,
    /// The longest payload, in bytes.
    pub payload_bytes_max: u16,
    /// All before it are accepted; at the root, queued.
    pub next: Sequence,
    /// The readers need none before it.
    pub consumed: Sequence,
    /// All before it are accepted by the whole subtree.
    pub stable: Sequence,
    /// All before it have left their slots.
    pub freed: Sequence,
    /// The parent has asked about all before it.
    pub asked: Sequence,
    /// What the parent has been told last: what is stable.
    pub told_stable: Sequence,
    /// And up to where there are slots.
    pub told_end: Sequence,
    /// What the next piece has to be.
    pub expected: Expected,
    /// All before it are accepted by every child's subtree, and so many children have no more; none without children.
    pub least: Option<(Sequence, usize)>,
    /// When the parent was heard last.
    pub parent_heard_at: Nanoseconds,
    /// When a child is to be looked after, at the earliest: to be asked again, or for a sign of life.
    pub look_at: Nanoseconds,
    /// No wait for an answer is shorter, and none longer than a quarter of `keepalive`.
    pub min_rto: Nanoseconds,
    /// A child that has everything is asked for a sign of life as often.
    pub keepalive: Nanoseconds,
    /// What is counted.
    pub counts: LentCounts,
    /// In the order in which they are sent to.
    pub children: Vec<LentChild>,
}

/// What the next piece has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The first piece of some message.
    Beginning,
    /// The first piece of this message.
    Message(u32),
    /// Go on at this offset.
    Rest {
        /// The message's number.
        message: u32,
        /// Where the piece begins, in bytes.
        offset: u64,
        /// How long the message is, in bytes.
        message_length: u64,
    },
    /// Nothing: the group is closed.
    Nothing,
}

/// Those of [`crate::GroupCounters`] that go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are those of GroupCounters")]
pub struct LentCounts {
    pub accepted: u64,
    pub sent: u64,
    pub acks_sent: u64,
    pub acks_received: u64,
}

/// A child, and how far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentChild {
    /// Who it is.
    pub member: MemberId,
    /// Where its node is.
    pub address: SocketAddr,
    /// The next packet to be sent to it for the first time.
    pub sent: Sequence,
    /// It has accepted all before this one.
    pub acked: Sequence,
    /// When it said so.
    pub acked_at: Nanoseconds,
    /// Its whole subtree has accepted all before this one.
    pub stable: Sequence,
    /// It has slots for packets before this one.
    pub end: Sequence,
    /// It has been asked about all packets before this one.
    pub asked: Sequence,
    /// How often it has been asked since it was heard last, and since when.
    pub unanswered: Option<(Nanoseconds, u32)>,
    /// How often in turn it has been missed.
    pub misses: u32,
    /// How often in turn it has been asked whether its subtree has everything.
    pub looks: u32,
    /// When it was heard last.
    pub heard_at: Nanoseconds,
    /// When it last moved on, was given something after it had everything, or was missed.
    pub quiet_since: Nanoseconds,
    /// How long its answers take.
    pub trip: LentTrip,
    /// How many packets may be under way to it.
    pub window: LentWindow,
}

/// The round trip to a child (RFC 6298).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentTrip {
    /// The mean, once one is measured.
    pub smoothed: Option<Nanoseconds>,
    /// How much it varies.
    pub variation: Nanoseconds,
    /// The shortest ever.
    pub shortest: Nanoseconds,
    /// The last one.
    pub last: Nanoseconds,
}

/// How many packets may be under way to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentWindow {
    /// So many.
    pub packets: u32,
    /// Eighths of a packet that are gained and not yet counted.
    pub eighths: u32,
    /// Whether nothing has been lost yet.
    pub is_opening: bool,
    /// Losses of packets before this one have been answered.
    pub answered: Sequence,
}

/// A packet that was accepted, or queued, while the group was lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentPacket {
    /// What is in its slot.
    pub piece: Piece,
    /// Whether the root asked for an acknowledgment.
    pub ack_requested: bool,
    /// When it was sent on to the children.
    pub sent_at: Nanoseconds,
}

impl Lent {
    /// Of no group: room for [`crate::Protocol::lend`] to write to.
    pub const fn new() -> Self {
        const FIRST: Sequence = Sequence(0);
        Self {
            group: GroupId(0),
            cookie: Cookie(0),
            epoch: 0,
            member: MemberId(0),
            parent: None,
            slots: 0,
            payload_bytes_max: 0,
            next: FIRST,
            consumed: FIRST,
            stable: FIRST,
            freed: FIRST,
            asked: FIRST,
            told_stable: FIRST,
            told_end: FIRST,
            expected: Expected::Nothing,
            least: None,
            parent_heard_at: Nanoseconds::ZERO,
            look_at: Nanoseconds::ZERO,
            min_rto: Nanoseconds::ZERO,
            keepalive: Nanoseconds::ZERO,
            counts: LentCounts { accepted: 0, sent: 0, acks_sent: 0, acks_received: 0 },
            children: Vec::new(),
        }
    }
}

impl Default for Lent {
    fn default() -> Self {
        Self::new()
    }
}

impl Expected {
    pub(crate) fn fits(self, piece: &Piece) -> bool {
        let found = (piece.message, piece.offset, piece.message_length);
        match self {
            Self::Beginning => piece.offset == 0,
            Self::Message(message) => (piece.message, piece.offset) == (message, 0),
            Self::Rest { message, offset, message_length } => found == (message, offset, message_length),
            Self::Nothing => false,
        }
    }

    pub(crate) const fn after(piece: &Piece) -> Self {
        let Piece { message, offset, length, message_length, .. } = *piece;
        if piece.is_last() {
            Self::Message(message.wrapping_add(1))
        } else {
            Self::Rest { message, offset: offset + length as u64, message_length }
        }
    }
}
