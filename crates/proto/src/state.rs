//! The state of a group's packets at one node, as plain data.
//!
//! The structures are integers in C layout, so that handing a group off to a fast path is a copy,
//! and reclaiming it is a check and a copy. bpf/group.h has the same structures; a test of
//! `treecast-ebpf` compares their fields.

use treecast_wire::{MemberId, Sequence, Timestamp};

use crate::c_layout::c_layout;
use crate::congestion_window::CongestionWindow;
use crate::rtt::Rtt;
use crate::{GroupCounters, Nanoseconds, Piece};

c_layout! {
    /// How far the packets of a group are at one node.
    ///
    /// Sequence numbers only grow: `freed <= stable <= next <= freed + slots` and `freed <=
    /// consumed <= next`.
    pub struct FlowState {
        /// All packets before it are accepted; at the root, queued.
        pub next: Sequence,
        /// The readers of this node need no packet before it.
        pub consumed: Sequence,
        /// All packets before it are accepted by every member of this node's subtree.
        pub stable: Sequence,
        /// All packets before it have left their slots.
        pub freed: Sequence,
        /// The parent has requested acknowledgments of all packets before it.
        pub ack_requested: Sequence,
        /// `stable` in the last acknowledgment to the parent.
        pub advertised_stable: Sequence,
        /// The end of the receive window in the last acknowledgment to the parent.
        pub advertised_window_end: Sequence,
        /// The least `stable` of all children.
        pub min_stable: Sequence,
        /// The number of children at `min_stable`; 0 without children.
        pub min_stable_children: u32,
        /// Padding.
        pub reserved: u32,
        /// The piece expected in packet `next`.
        pub expected: Expected,
        /// The number of bytes of all messages in the packets before `next`.
        pub bytes: u64,
        /// The latest timestamp of the parent's data.
        pub parent_timestamp: Timestamp,
        /// The timestamp of the last acknowledgment to the parent.
        pub ack_timestamp: Timestamp,
        /// The earliest time at which a child's timer may expire; `u64::MAX` without children.
        pub timer_at: Nanoseconds,
        /// The quantity.
        pub counters: GroupCounters,
    }
}

c_layout! {
    /// How far a child is. `stable <= acked <= sent` once it is established.
    pub struct ChildState {
        /// The child's number.
        pub member: MemberId,
        /// The next packet to be sent to it for the first time (SND.NXT of RFC 9293).
        pub sent: Sequence,
        /// It has accepted all packets before this one (SND.UNA of RFC 9293).
        pub acked: Sequence,
        /// Its whole subtree has accepted all packets before this one.
        pub stable: Sequence,
        /// The end of its receive window: it has slots for packets before this one.
        pub window_end: Sequence,
        /// Acknowledgments of all packets before this one have been requested.
        pub ack_requested: Sequence,
        /// The number of requests for an acknowledgment since the child was heard last.
        pub unanswered: u32,
        /// The number of consecutive retransmission timeouts; each doubles the RTO (RFC 6298, 5.5).
        pub backoff: u32,
        /// The number of consecutive persist probes (RFC 9293, 3.8.6.1) without progress of the
        /// child's subtree or window.
        pub persist_probes: u32,
        /// Padding.
        pub reserved: u32,
        /// The timestamp of its last acknowledgment.
        pub timestamp: Timestamp,
        /// When `acked` last grew.
        pub acked_at: Nanoseconds,
        /// When it was heard last.
        pub heard_at: Nanoseconds,
        /// The start of its timer: when it last made progress, was sent a packet after it had
        /// acknowledged all, or timed out.
        pub timer_started_at: Nanoseconds,
        /// When the first unanswered request was sent; meaningless without one.
        pub unanswered_since: Nanoseconds,
        /// With data by multicast: when it was sent something by this node itself, which it cannot
        /// hear by multicast.
        pub addressed_at: Nanoseconds,
        /// Since when an acknowledgment is awaited that was requested by multicast; 0: none is.
        pub awaited_since: Nanoseconds,
        /// It is one of all packets before this one.
        pub awaited: Sequence,
        /// Padding.
        pub reserved2: u32,
        /// The round trip to it.
        pub rtt: Rtt,
        /// How many packets may be in flight to it.
        pub congestion_window: CongestionWindow,
    }
}

c_layout! {
    /// The state of data by multicast, at the root or a member that multicast reaches.
    pub struct MulticastState {
        /// The root has sent all packets from this one to before `end` by multicast, as far as this
        /// node knows.
        pub first: Sequence,
        /// The first packet that the root has not sent by multicast.
        pub end: Sequence,
        /// The root has requested acknowledgments of all packets before it from the members that
        /// multicast reaches.
        pub ack_requested: Sequence,
        /// The least end of a child's receive window; meaningless without children.
        pub min_window_end: Sequence,
        /// At a member: when the last packet came by multicast.
        pub heard_at: Nanoseconds,
        /// At the root: how many packets may be sent beyond those that some child has accepted.
        pub window: CongestionWindow,
        /// At the root: how many packets may be sent beyond those that all members have accepted.
        pub spread: CongestionWindow,
        /// At the root: the round-trip time to the child that answers first.
        pub rtt: Rtt,
        /// At the root: the end of the packets that some child has accepted.
        pub max_acked: Sequence,
        /// Padding.
        pub reserved: u32,
    }
}

c_layout! {
    /// The piece expected in the next packet.
    pub struct Expected {
        /// One of [`Expected::MESSAGE`], [`Expected::REST`], [`Expected::NOTHING`].
        pub kind: u32,
        /// The message's number.
        pub message: u32,
        /// Where the piece begins in the message, in bytes.
        pub offset: u64,
        /// The length of the message in bytes.
        pub message_length: u64,
    }
}

impl Expected {
    /// The first piece of this message.
    pub const MESSAGE: u32 = 0;
    /// The piece of this message that begins at this offset.
    pub const REST: u32 = 1;
    /// No piece: the group is closed.
    pub const NOTHING: u32 = 2;

    /// The first piece of a message.
    pub const fn message(message: u32) -> Self {
        Self { kind: Self::MESSAGE, message, offset: 0, message_length: 0 }
    }

    /// No piece: the group is closed.
    pub const fn nothing() -> Self {
        Self { kind: Self::NOTHING, message: 0, offset: 0, message_length: 0 }
    }

    /// What follows a piece.
    pub const fn after(piece: &Piece) -> Self {
        let Piece { message, offset, length, message_length, .. } = *piece;
        if piece.is_last() {
            Self::message(message.wrapping_add(1))
        } else {
            Self { kind: Self::REST, message, offset: offset + length as u64, message_length }
        }
    }

    /// Whether a piece is the expected one.
    pub const fn fits(&self, piece: &Piece) -> bool {
        match self.kind {
            Self::MESSAGE => piece.message == self.message && piece.offset == 0,
            Self::REST => {
                piece.message == self.message
                    && piece.offset == self.offset
                    && piece.message_length == self.message_length
            }
            _ => false,
        }
    }

    /// Whether the group may be closed here: no message has begun that is not whole, and the group
    /// is open.
    pub const fn is_boundary(&self) -> bool {
        self.kind == Self::MESSAGE
    }

    /// Whether the group is closed.
    pub const fn is_nothing(&self) -> bool {
        self.kind == Self::NOTHING
    }

    /// The message that has begun and is not whole, and how many bytes of it are there.
    pub const fn unfinished(&self) -> Option<(u32, u64)> {
        if self.kind == Self::REST { Some((self.message, self.offset)) } else { None }
    }
}

/// Where a member begins: a packet that begins a message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The packet.
    pub packet: Sequence,
    /// The number of its message.
    pub message: u32,
    /// The number of bytes of all messages before that.
    pub bytes: u64,
}

impl FlowState {
    /// The state before the first packet.
    pub fn new(start: Start) -> Self {
        let Start { packet: start, message, bytes } = start;
        Self {
            next: start,
            consumed: start,
            stable: start,
            freed: start,
            ack_requested: start,
            advertised_stable: start,
            advertised_window_end: start,
            min_stable: start,
            min_stable_children: 0,
            reserved: 0,
            expected: Expected::message(message),
            bytes,
            parent_timestamp: Timestamp(0),
            ack_timestamp: Timestamp(0),
            timer_at: Nanoseconds::ZERO,
            counters: GroupCounters::default(),
        }
    }
}

impl ChildState {
    /// The state of a new child that is taken to have all packets before `stable`.
    pub const fn new(now: Nanoseconds, member: MemberId, stable: Sequence, slots: u32) -> Self {
        Self {
            member,
            sent: stable,
            acked: stable,
            stable,
            window_end: stable,
            ack_requested: stable,
            unanswered: 0,
            backoff: 0,
            persist_probes: 0,
            reserved: 0,
            timestamp: Timestamp(0),
            acked_at: now,
            heard_at: now,
            timer_started_at: now,
            unanswered_since: Nanoseconds::ZERO,
            addressed_at: now,
            awaited_since: Nanoseconds::ZERO,
            awaited: stable,
            reserved2: 0,
            rtt: Rtt::UNKNOWN,
            congestion_window: CongestionWindow::new(slots, stable),
        }
    }
}

impl ChildState {
    /// The number of packets in flight.
    pub const fn in_flight(&self) -> u32 {
        self.sent.distance_from(self.acked) as u32
    }

    /// Whether an acknowledgment was requested and has not come.
    pub const fn owes_ack(&self) -> bool {
        self.unanswered > 0 || self.acked.is_before(self.ack_requested)
    }
}
