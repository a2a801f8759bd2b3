//! What goes into a node's protocol and what comes out of it.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use treecast_wire::{
    AbortReason, Challenge, Contribution, Data, Distribution, GroupId, HEADER_BYTES, MemberId,
    PayloadChecksum, Readers, Sequence,
};
use zerocopy::FromZeros;

use crate::{
    Carrier, Checked, CreateGroup, Event, GroupKey, HandOff, HandOffPacket, Nanoseconds, OwnerId, Process,
    Stray, StreamChange,
};

/// Something that happens to a node, or that its user requests.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// A datagram was received.
    Datagram {
        /// Its source address.
        from: SocketAddr,
        /// Its bytes. They stay until every [`Output::Store`] that follows has been carried out.
        bytes: &'a [u8],
    },
    /// A datagram was received that [`Protocol::check`](crate::Protocol::check) has looked at: it
    /// is not verified again.
    Checked {
        /// Its source address.
        from: SocketAddr,
        /// The datagram, whose bytes stay as those of another one.
        datagram: Checked<'a>,
    },
    /// A packet was received on the stream to the parent of a group. It is verified as a datagram
    /// is.
    Record {
        /// The address of the parent's node.
        from: SocketAddr,
        /// Its header.
        header: &'a [u8; HEADER_BYTES],
        /// The bytes behind the header, which stay as those of a datagram.
        payload: &'a [u8],
    },
    /// The time of [`Output::Timeout`] has come.
    Timeout,
    /// Create a group here, at its root.
    CreateGroup(Box<CreateGroup>),
    /// Become a member of a group: by a handshake with its root, which then sends the table.
    JoinGroup {
        /// The group's number.
        group: GroupId,
        /// The group's key.
        key: GroupKey,
        /// The address of the root's node.
        root: SocketAddr,
        /// 128 random bits, from which the nonces of handshakes are drawn. Not to be used twice.
        seed: [u64; 2],
    },
    /// A group belongs to this owner. Owners take turns in [`crate::Protocol::poll`]; without this
    /// input all groups have one owner.
    SetOwner {
        /// The group.
        group: GroupId,
        /// The owner.
        owner: OwnerId,
    },
    /// A group sends nothing from now on, and handles no timeouts. For a user that prepares the
    /// memory of a member's slots after [`Event::Placed`], and drops the group's datagrams until
    /// then: neither root nor parent hears that the member has its place.
    Hold {
        /// The group.
        group: GroupId,
    },
    /// A group that was held back goes on.
    Release {
        /// The group.
        group: GroupId,
    },
    /// At the root: the next packet is in its slot, to be sent.
    Queue {
        /// The group.
        group: GroupId,
        /// The packet in the slot.
        piece: Piece,
    },
    /// At the root of a group with transport [`crate::Transport::Both`]: packets that are queued
    /// from now on have this carrier.
    SetCarrier {
        /// The group.
        group: GroupId,
        /// The carrier.
        carrier: Carrier,
    },
    /// The readers of this node need no packet before this one.
    Consumed {
        /// The group.
        group: GroupId,
        /// The first packet that they need.
        upto: Sequence,
    },
    /// Which of the processes that share this node have come to the group, and which are lost.
    Readers {
        /// The group.
        group: GroupId,
        /// The processes.
        readers: Readers,
    },
    /// With offload `host` or `assisted`: packets before this one may be forwarded.
    Forward {
        /// The group.
        group: GroupId,
        /// The first packet that may not be forwarded.
        upto: Sequence,
        /// To this child only; `None`: to all children.
        child: Option<MemberId>,
    },
    /// At another member: a payload in a slot, which a fast path accepted without its checksum, is
    /// corrupt. The parent is asked for the packet again; if it still has that, it comes as an
    /// [`Output::Store`]. Nothing tells that it does not.
    Repair {
        /// The group.
        group: GroupId,
        /// The packet, which the readers of this node still need.
        packet: Sequence,
    },
    /// A process of this node contributes to an all-reduce. When all members have, the root gets
    /// [`Event::Reduced`].
    Contribute {
        /// The group.
        group: GroupId,
        /// The process.
        process: Process,
        /// Its values; the packet is the first one that the process has not received, or the root
        /// has not queued.
        contribution: Contribution,
    },
    /// At the root: the application waits until all members have what is queued.
    Flush {
        /// The group.
        group: GroupId,
    },
    /// Datagrams as long as those of the group do not leave this node: where it has streams, all
    /// packets to its children go on those.
    DatagramsTooLong {
        /// The group.
        group: GroupId,
    },
    /// In a group with transport [`crate::Transport::Both`]: the stream of a child loses so many
    /// packets that datagrams are faster. [`crate::Protocol::datagrams_until`] follows from it at
    /// the root.
    StreamLosses {
        /// The group.
        group: GroupId,
        /// The child.
        child: MemberId,
    },
    /// At another member, with streams: payloads are in slots no more. All children have been sent
    /// them ([`crate::Protocol::unsent`]). A child that lacks one of them after all, since its
    /// stream has ended, becomes a child of the root, which retains what some member may lack.
    Forget {
        /// The group.
        group: GroupId,
        /// The first packet that may still be in its slot.
        before: Sequence,
    },
    /// A host has opened a stream to this node, and sent its first packet: [`Event::Attached`] is
    /// the answer.
    Attach {
        /// The user's number of the stream.
        stream: u64,
        /// The host's address.
        from: IpAddr,
        /// The challenge that this node sent first on the stream.
        challenge: Challenge,
        /// The packet.
        bytes: &'a [u8],
    },
    /// The stream of a child has changed.
    Stream {
        /// The group.
        group: GroupId,
        /// The child.
        child: MemberId,
        /// The event.
        change: StreamChange,
    },
    /// A fast path runs a group from now on: it has accepted the state that
    /// [`crate::Protocol::hand_off_state`] has told since the last input. The group is to be
    /// reclaimed before any input about it, and at [`Output::Reclaim`]. Contributions to
    /// all-reduces are no inputs meanwhile ([`crate::Protocol::contribute_to_fast_path`],
    /// [`crate::Protocol::take_contribution`]). Getters return the state at the hand-off.
    HandedOff {
        /// The group.
        group: GroupId,
    },
    /// A fast path does not run a group any more.
    Reclaimed {
        /// The group.
        group: GroupId,
        /// Its state.
        state: &'a HandOff,
        /// The packets that [`crate::Protocol::new_packets`] tells, in order.
        packets: &'a [HandOffPacket],
    },
    /// At the root: everything is queued; the group ends when all members have it.
    Close {
        /// The group.
        group: GroupId,
    },
    /// At another member: leave the group.
    Leave {
        /// The group.
        group: GroupId,
    },
    /// At the root: a member is known to be dead, and is not waited for.
    Evict {
        /// The group.
        group: GroupId,
        /// The member.
        member: MemberId,
    },
    /// At the root: a member becomes a leaf, since it forwards slowly. Its children become the
    /// root's.
    Relieve {
        /// The group.
        group: GroupId,
        /// The member.
        member: MemberId,
    },
    /// End the group at once. The root evicts its members; another member just stops.
    Abort {
        /// The group.
        group: GroupId,
        /// The root's message to its members.
        why: AbortReason,
    },
}

impl Input<'_> {
    /// The group of a request about a group that exists.
    pub const fn group(&self) -> Option<GroupId> {
        match self {
            Self::Datagram { .. }
            | Self::Checked { .. }
            | Self::Record { .. }
            | Self::Timeout
            | Self::CreateGroup(_)
            | Self::JoinGroup { .. }
            | Self::Attach { .. } => None,
            Self::SetOwner { group, .. }
            | Self::Hold { group }
            | Self::Release { group }
            | Self::SetCarrier { group, .. }
            | Self::Queue { group, .. }
            | Self::Consumed { group, .. }
            | Self::Readers { group, .. }
            | Self::Forward { group, .. }
            | Self::Repair { group, .. }
            | Self::Contribute { group, .. }
            | Self::Flush { group }
            | Self::DatagramsTooLong { group }
            | Self::StreamLosses { group, .. }
            | Self::Forget { group, .. }
            | Self::Stream { group, .. }
            | Self::HandedOff { group }
            | Self::Reclaimed { group, .. }
            | Self::Close { group }
            | Self::Leave { group }
            | Self::Evict { group, .. }
            | Self::Relieve { group, .. }
            | Self::Abort { group, .. } => Some(*group),
        }
    }
}

/// The next action of a node.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Store the payload of the datagram that was handled last.
    Store(Store),
    /// The packet that was handled last belongs to no group.
    Stray(Stray),
    /// Something has happened to a group.
    Event(Event),
    /// A group that is handed off has to be reclaimed, before the next output is polled.
    Reclaim(GroupId),
    /// Send a datagram.
    Transmit(Transmit),
    /// Nothing, until there is an input or this time comes; `None`: until there is an input.
    Timeout(Option<Nanoseconds>),
}

/// Where to store the payload of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// The group.
    pub group: GroupId,
    /// The packet's number.
    pub packet: Sequence,
    /// The slot to store it in.
    pub slot: u32,
    /// Where the payload lies in the datagram, in bytes; of a packet on a stream it is all that
    /// follows the header.
    pub payload: Range<usize>,
}

/// A datagram to be sent: a header, and the place of its payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The group.
    pub group: GroupId,
    /// The destination address.
    pub to: SocketAddr,
    /// The header.
    pub header: [u8; HEADER_BYTES],
    /// The payload.
    pub payload: TransmitPayload,
    /// The child of the group on whose stream it is sent; none: it is a datagram.
    pub stream_of: Option<MemberId>,
}

impl Transmit {
    /// How much of its owner's turn the datagram takes ([`crate::TURN_MAX`]), by what it costs to
    /// send: data of a burst goes to the kernel as one message for many datagrams, and each other
    /// datagram is a message of its own.
    pub const fn cost(&self) -> u32 {
        match self.payload {
            TransmitPayload::Slot { .. } => 1,
            TransmitPayload::Bytes(_) => 4,
        }
    }
}

/// The payload of a datagram to be sent.
#[derive(Debug, PartialEq, Eq)]
pub enum TransmitPayload {
    /// The first bytes of a slot, which keeps them until the next call of
    /// [`crate::Protocol::handle`] at least.
    Slot {
        /// The packet's number.
        packet: Sequence,
        /// The slot.
        slot: u32,
        /// The payload's length in bytes.
        length: u32,
    },
    /// These bytes; empty except for control messages.
    Bytes(Vec<u8>),
}

/// A piece of a message in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromZeros)]
pub struct Piece {
    /// The message's number in its group.
    pub message: u32,
    /// Where the piece begins in the message, in bytes.
    pub offset: u64,
    /// The length of the piece in bytes.
    pub length: u32,
    /// The length of the message in bytes.
    pub message_length: u64,
    /// The checksum of the piece as the root computed it.
    pub checksum: PayloadChecksum,
}

impl Piece {
    /// The piece of a slot without payload.
    pub(crate) const EMPTY: Self =
        Self { message: 0, offset: 0, length: 0, message_length: 0, checksum: PayloadChecksum(0) };

    /// Whether the message ends with this piece.
    pub const fn is_last(&self) -> bool {
        self.offset + self.length as u64 == self.message_length
    }

    /// The piece as it goes along the tree for the first time.
    pub const fn data(&self) -> Data {
        let Self { message, offset, length, message_length, checksum } = *self;
        Data {
            message,
            offset,
            length,
            message_length,
            checksum,
            ack_requested: false,
            retransmitted: false,
            close: false,
            distribution: Distribution::Tree,
        }
    }

    pub(crate) const fn of(data: &Data) -> Self {
        let Data { message, offset, length, message_length, checksum, .. } = *data;
        Self { message, offset, length, message_length, checksum }
    }
}
