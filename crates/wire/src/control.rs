//! Control messages: the tree, and who joins and leaves it, each between the root and one member;
//! and contributions to all-reduces, from children to parents. Only user space reads them.

use alloc::vec::Vec;
use core::net::SocketAddr;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::AddressLayout;
use crate::readers::ReadersLayout;
use crate::{
    Authentication, Contribution, Integrity, Malformed, MemberId, Offload, PAYLOAD_BYTES_MAX, Readers,
    Sequence, Transport,
};

/// A control message. The epoch in its header is the epoch of the tree that it concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Root to member: the member's place in the tree of this epoch.
    Table(Table),
    /// Member to root: acknowledges the table of this epoch, and reports which processes of a
    /// shared node are present. The root requests it by sending the table again.
    TableAck(Option<Readers>),
    /// Member to root: this neighbour has been silent for too long, or this child accepts nothing.
    Suspect(MemberId),
    /// Member to root: this child has lost packets that it had accepted.
    StateLost(MemberId),
    /// Host to root, the last step of the handshake: the host is ready to be a member, or asks to
    /// become one. It returns the address that the root has told it, so a copy of the join from
    /// another address has no effect. [`Table::member`] of the answer is its number.
    Join(SocketAddr),
    /// Member to root: asks to leave.
    Leave,
    /// Root to member or host: the receiver is not a member.
    Evicted(Eviction),
    /// Parent to child: the root is dead, or has started another session.
    RootLost(RootLoss),
    /// Child to parent: the contribution of its subtree to an all-reduce, in the tree of this
    /// epoch.
    Contribution(Contribution),
}

/// Why a group no longer has a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RootLoss {
    /// It did not answer.
    Silent,
    /// It has restarted, with a new session.
    Restarted,
}

/// Why a host is not a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eviction {
    /// It was silent for too long and was declared dead.
    Silent,
    /// It asked to leave, and no other member needs it any longer.
    Left,
    /// The group admits no late members.
    Refused,
    /// The root aborted the group.
    Aborted(AbortReason),
    /// The group is closed, and every member has everything.
    Closed,
    /// Datagrams of the group's length do not reach it, although shorter ones do.
    PathTooSmall,
    /// It answered, but accepted no packet for too long.
    AcceptsNothing,
    /// The group has its maximum number of members.
    Full,
    /// The root is closing the group, and admits no further members.
    Closing,
    /// It had lost packets that it had accepted.
    StateLost,
    /// It did not acknowledge its place in the tree in time.
    Unacknowledged,
    /// The root's application declared it dead.
    DeclaredDead,
}

/// Why a root aborted its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AbortReason {
    /// Its application asked for it, and gave no other reason.
    Application,
    /// It was interrupted by a signal.
    Interrupted,
    /// Its application ended, or dropped the group, without closing it.
    Dropped,
    /// Its node was closed.
    NodeClosed,
    /// Its application wrote invalid values into the memory that it shares with its node.
    InvalidMemory,
    /// Its datagrams exceed the MTU of the network.
    DatagramTooLong,
    /// It could not read the data to be sent.
    InputFailed,
    /// Its node has no memory for the group, or its user's limit does not allow it.
    NoMemory,
}

/// A member's place in the tree: its line of the group table.
///
/// A table with many neighbours is sent in parts. Each part has the settings of the group and some
/// of the neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The receiver's own number.
    pub member: MemberId,
    /// The first packet of a receiver that has none yet.
    pub start: Sequence,
    /// The number of slots of each member: a power of two up to [`Table::SLOTS_MAX`].
    pub slots: u32,
    /// The number of the message that begins with packet `start`.
    pub message: u32,
    /// The total length of all messages before it, in bytes.
    pub bytes: u64,
    /// The longest payload of a data packet in bytes: [`Table::PAYLOAD_BYTES_MIN`] to
    /// [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u16,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// The bytes of data packets that their codes cover.
    pub authentication: Authentication,
    /// When members verify the CRCs of payloads.
    pub integrity: Integrity,
    /// The transport of data.
    pub transport: Transport,
    /// Whether the payloads of data are encrypted, which is a matter of the applications alone.
    pub is_encrypted: bool,
    /// This part's number, from 0.
    pub part: u16,
    /// The number of parts: 1 to [`Table::PARTS_MAX`].
    pub parts: u16,
    /// The neighbours of this part, at most [`Table::PART_NEIGHBOURS_MAX`]; children in sending
    /// order.
    pub neighbours: Vec<Neighbour>,
}

impl Table {
    /// The greatest number of slots.
    pub const SLOTS_MAX: u32 = 1 << 16;
    /// The lower bound of [`Table::payload_bytes_max`]: a part of a table fits into it.
    pub const PAYLOAD_BYTES_MIN: u16 = 512;
    /// The greatest number of neighbours in a part.
    pub const PART_NEIGHBOURS_MAX: usize =
        (Self::PAYLOAD_BYTES_MIN as usize - size_of::<TableLayout>()) / size_of::<NeighbourLayout>();
    /// The greatest number of parts, for [`Table::NEIGHBOURS_MAX`].
    pub const PARTS_MAX: u16 = (Self::NEIGHBOURS_MAX / Self::PART_NEIGHBOURS_MAX) as u16 + 1;
    /// The greatest number of neighbours of a member.
    pub const NEIGHBOURS_MAX: usize = 4_096;
}

/// A neighbour in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Its number.
    pub member: MemberId,
    /// Whether it is above or below the receiver of the table.
    pub role: Role,
    /// The address of its node.
    pub address: SocketAddr,
}

/// The role of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It sends to the receiver of the table.
    Parent,
    /// The receiver of the table sends to it.
    Child,
    /// It is the root, which sends data to this multicast address: one in each table with offload
    /// `switch`.
    Multicast,
}

/// Fixed fields of a table, before its neighbours.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct TableLayout {
    pub member: U32,
    pub start: U32,
    pub slots: U32,
    pub message: U32,
    pub bytes: U64,
    pub payload_bytes_max: U16,
    pub offload: u8,
    pub guards: u8,
    pub part: U16,
    pub parts: U16,
}

/// A neighbour: 24 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct NeighbourLayout {
    pub member: U32,
    pub role: U16,
    pub address: AddressLayout,
}

mod operation {
    pub const TABLE: u32 = 1;
    pub const TABLE_ACK: u32 = 2;
    pub const SUSPECT: u32 = 3;
    pub const JOIN: u32 = 4;
    pub const LEAVE: u32 = 5;
    pub const EVICTED: u32 = 6;
    pub const STATE_LOST: u32 = 7;
    pub const ROOT_LOST: u32 = 8;
    pub const CONTRIBUTION: u32 = 9;
}

impl Control {
    /// Reads the payload of a control packet.
    ///
    /// # Errors
    /// [`Malformed::Control`] for an unknown operation, a wrong length, or a field out of range.
    pub fn read(operation: u32, payload: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed::Control(operation);
        let number = || payload.try_into().map(u32::from_be_bytes).map_err(|_| malformed);
        let nothing = |control| if payload.is_empty() { Ok(control) } else { Err(malformed) };
        match operation {
            operation::TABLE => Table::read(payload).map(Self::Table).ok_or(malformed),
            operation::TABLE_ACK if payload.is_empty() => Ok(Self::TableAck(None)),
            operation::TABLE_ACK => ReadersLayout::ref_from_bytes(payload)
                .map(|readers| Self::TableAck(Some(readers.read())))
                .map_err(|_| malformed),
            operation::SUSPECT => Ok(Self::Suspect(MemberId(number()?))),
            operation::STATE_LOST => Ok(Self::StateLost(MemberId(number()?))),
            operation::JOIN => AddressLayout::ref_from_bytes(payload)
                .map(|place| Self::Join(place.read()))
                .map_err(|_| malformed),
            operation::LEAVE => nothing(Self::Leave),
            operation::EVICTED => Eviction::from_code(number()?).map(Self::Evicted).ok_or(malformed),
            operation::ROOT_LOST => {
                RootLoss::ALL.get(number()? as usize).map(|&loss| Self::RootLost(loss)).ok_or(malformed)
            }
            operation::CONTRIBUTION => Contribution::read(payload).map(Self::Contribution).ok_or(malformed),
            _ => Err(malformed),
        }
    }

    /// Writes the payload.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Table(table) => table.write(),
            Self::TableAck(None) | Self::Leave => Vec::new(),
            Self::TableAck(Some(readers)) => ReadersLayout::new(readers).as_bytes().to_vec(),
            Self::Join(address) => AddressLayout::new(*address).as_bytes().to_vec(),
            Self::Suspect(member) | Self::StateLost(member) => member.0.to_be_bytes().to_vec(),
            Self::Evicted(why) => why.code().to_be_bytes().to_vec(),
            Self::RootLost(loss) => (*loss as u32).to_be_bytes().to_vec(),
            Self::Contribution(contribution) => contribution.write(),
        }
    }

    /// The operation, for [`crate::Body::Control`].
    pub const fn operation(&self) -> u32 {
        match self {
            Self::Table(_) => operation::TABLE,
            Self::TableAck(_) => operation::TABLE_ACK,
            Self::Suspect(_) => operation::SUSPECT,
            Self::StateLost(_) => operation::STATE_LOST,
            Self::Join(_) => operation::JOIN,
            Self::Leave => operation::LEAVE,
            Self::Evicted(_) => operation::EVICTED,
            Self::RootLost(_) => operation::ROOT_LOST,
            Self::Contribution(_) => operation::CONTRIBUTION,
        }
    }
}

impl Eviction {
    /// All reasons in the order of their codes.
    pub const ALL: [Self; 19] = [
        Self::Silent,
        Self::Left,
        Self::Refused,
        Self::Aborted(AbortReason::Application),
        Self::Closed,
        Self::PathTooSmall,
        Self::AcceptsNothing,
        Self::Full,
        Self::Closing,
        Self::StateLost,
        Self::Unacknowledged,
        Self::Aborted(AbortReason::Interrupted),
        Self::Aborted(AbortReason::Dropped),
        Self::Aborted(AbortReason::NodeClosed),
        Self::Aborted(AbortReason::InvalidMemory),
        Self::Aborted(AbortReason::DatagramTooLong),
        Self::Aborted(AbortReason::InputFailed),
        Self::Aborted(AbortReason::NoMemory),
        Self::DeclaredDead,
    ];

    /// The reason with a code; `None` for an unknown code.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// The code of the reason.
    ///
    /// # Panics
    /// Never: a test checks that [`Eviction::ALL`] has every reason.
    pub fn code(self) -> u32 {
        let index = Self::ALL.iter().position(|&why| why == self);
        index.expect("every reason has a code") as u32
    }
}

impl RootLoss {
    /// All reasons in the order of their numbers.
    const ALL: [Self; 2] = [Self::Silent, Self::Restarted];
}

/// Authentication, integrity, transport and encryption of data, as one byte of a table.
mod guard {
    use crate::{Authentication, Integrity, Transport};

    /// A member may accept a packet by the checksum of its datagram.
    const NETWORK: u8 = 2;
    /// Payloads have codes instead of CRCs.
    const CODES: u8 = 4;
    /// Data goes over streams.
    const STREAMS: u8 = 8;
    /// Payloads are encrypted.
    const ENCRYPTED: u8 = 16;
    /// Data goes over streams and in datagrams: only with `STREAMS`.
    const DATAGRAMS: u8 = 32;

    pub const fn of(
        authentication: Authentication,
        integrity: Integrity,
        transport: Transport,
        is_encrypted: bool,
    ) -> u8 {
        let codes = match authentication {
            Authentication::Header => 0,
            Authentication::Payload => CODES,
        };
        let network = match integrity {
            Integrity::Crc32c => 0,
            Integrity::Network => NETWORK,
        };
        let streams = match transport {
            Transport::Packets => 0,
            Transport::Streams => STREAMS,
            Transport::Both => STREAMS | DATAGRAMS,
        };
        let encrypted = if is_encrypted { ENCRYPTED } else { 0 };
        codes | network | streams | encrypted
    }

    /// None if other bits are set.
    pub const fn authentication(guards: u8) -> Option<Authentication> {
        let transport = if guards & STREAMS == 0 { STREAMS } else { STREAMS | DATAGRAMS };
        match guards & !(NETWORK | transport | ENCRYPTED) {
            0 => Some(Authentication::Header),
            CODES => Some(Authentication::Payload),
            _ => None,
        }
    }

    pub const fn integrity(guards: u8) -> Integrity {
        if guards & NETWORK == 0 { Integrity::Crc32c } else { Integrity::Network }
    }

    pub const fn transport(guards: u8) -> Transport {
        match (guards & STREAMS != 0, guards & DATAGRAMS != 0) {
            (false, _) => Transport::Packets,
            (true, false) => Transport::Streams,
            (true, true) => Transport::Both,
        }
    }

    pub const fn is_encrypted(guards: u8) -> bool {
        guards & ENCRYPTED != 0
    }
}

impl Table {
    fn read(payload: &[u8]) -> Option<Self> {
        let (fixed, rest) = TableLayout::ref_from_prefix(payload).ok()?;
        let neighbours = <[NeighbourLayout]>::ref_from_bytes(rest).ok()?;
        let table = Self {
            member: MemberId(fixed.member.get()),
            start: Sequence(fixed.start.get()),
            slots: fixed.slots.get(),
            message: fixed.message.get(),
            bytes: fixed.bytes.get(),
            payload_bytes_max: fixed.payload_bytes_max.get(),
            offload: Offload::NAMES.get(usize::from(fixed.offload))?.1,
            authentication: guard::authentication(fixed.guards)?,
            integrity: guard::integrity(fixed.guards),
            transport: guard::transport(fixed.guards),
            is_encrypted: guard::is_encrypted(fixed.guards),
            part: fixed.part.get(),
            parts: fixed.parts.get(),
            neighbours: neighbours.iter().map(Neighbour::read).collect::<Option<_>>()?,
        };
        let is_valid = table.slots.is_power_of_two()
            && table.slots <= Self::SLOTS_MAX
            && table.payload_bytes_max >= Self::PAYLOAD_BYTES_MIN
            && usize::from(table.payload_bytes_max) <= PAYLOAD_BYTES_MAX
            && table.part < table.parts
            && table.parts <= Self::PARTS_MAX
            && table.neighbours.len() <= Self::PART_NEIGHBOURS_MAX;
        is_valid.then_some(table)
    }

    fn write(&self) -> Vec<u8> {
        let fixed = TableLayout {
            member: self.member.0.into(),
            start: self.start.0.into(),
            slots: self.slots.into(),
            message: self.message.into(),
            bytes: self.bytes.into(),
            payload_bytes_max: self.payload_bytes_max.into(),
            offload: self.offload as u8,
            guards: guard::of(self.authentication, self.integrity, self.transport, self.is_encrypted),
            part: self.part.into(),
            parts: self.parts.into(),
        };
        let mut bytes = fixed.as_bytes().to_vec();
        for neighbour in &self.neighbours {
            bytes.extend_from_slice(neighbour.write().as_bytes());
        }
        bytes
    }
}

impl Neighbour {
    fn read(layout: &NeighbourLayout) -> Option<Self> {
        let role = match layout.role.get() {
            0 => Role::Parent,
            1 => Role::Child,
            2 => Role::Multicast,
            _ => return None,
        };
        let address = layout.address.read();
        let is_valid = role != Role::Multicast || address.ip().is_multicast();
        is_valid.then_some(Self { member: MemberId(layout.member.get()), role, address })
    }

    fn write(&self) -> NeighbourLayout {
        NeighbourLayout {
            member: self.member.0.into(),
            role: (self.role as u16).into(),
            address: AddressLayout::new(self.address),
        }
    }
}
