//! Control messages: who is in the tree, who is lost, who comes and goes. Between the root and one member each; they are
//! rare, and user space alone reads them.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, MemberId, Offload, PAYLOAD_BYTES_MAX, Sequence};

/// A control message. The epoch in its header is that of the tree it speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Root to member: your place in the tree of this epoch.
    Table(Table),
    /// Member to root: that place is taken.
    TableAck,
    /// Member to root: this neighbour has been silent for too long.
    Suspect(MemberId),
    /// Member to root: this child has forgotten what it had accepted.
    StateLost(MemberId),
    /// A host to the root: it asks to be a member, also if it has been one before and has lost its memory. Its number is that
    /// of [`Table::member`] in the answer.
    Join,
    /// Member to root: it asks to leave.
    Leave,
    /// Root to member, or to a host that asked: not a member, or no longer.
    Evicted(Eviction),
}

/// Why somebody is not a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eviction {
    /// It was silent for too long, and others have gone on without it.
    Silent,
    /// It asked to leave, and is no longer needed.
    Left,
    /// The group takes nobody in.
    Refused,
    /// The root gave up the group before it was closed.
    Aborted,
    /// The group is closed, and every member has everything.
    Closed,
}

/// A member's place in the tree: a line of the group table.
///
/// A table with many neighbours comes in parts, each with what the group agrees on and some neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The receiver's own number.
    pub member: MemberId,
    /// The epoch of the last table that this member has taken; 0: none. Whoever knows nothing of it has lost its memory.
    pub acked_epoch: u32,
    /// The first packet that the receiver is to have, if it has none yet.
    pub start: Sequence,
    /// How many packets a member holds at most: a power of two up to [`Table::SLOTS_MAX`].
    pub slots: u32,
    /// The longest payload of a data packet, in bytes: [`Table::PAYLOAD_BYTES_MIN`] to [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u16,
    /// Who forwards.
    pub offload: Offload,
    /// This part's number, from 0.
    pub part: u16,
    /// How many parts there are: 1 to [`Table::PARTS_MAX`].
    pub parts: u16,
    /// The neighbours of this part, at most [`Table::PART_NEIGHBOURS_MAX`]; children in the order in which they are sent to.
    pub neighbours: Vec<Neighbour>,
}

impl Table {
    /// The most slots.
    pub const SLOTS_MAX: u32 = 1 << 16;
    /// The shortest that the longest payload may be, in bytes: a part of a table fits in.
    pub const PAYLOAD_BYTES_MIN: u16 = 512;
    /// The most neighbours in a part.
    pub const PART_NEIGHBOURS_MAX: usize =
        (Self::PAYLOAD_BYTES_MIN as usize - size_of::<TableLayout>()) / size_of::<NeighbourLayout>();
    /// The most parts: room for [`Table::NEIGHBOURS_MAX`].
    pub const PARTS_MAX: u16 = (Self::NEIGHBOURS_MAX / Self::PART_NEIGHBOURS_MAX) as u16 + 1;
    /// The most neighbours of a member.
    pub const NEIGHBOURS_MAX: usize = 4_096;
}

/// Somebody a member has to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Who it is.
    pub member: MemberId,
    /// What it is to the receiver of the table.
    pub role: Role,
    /// Where it is.
    pub address: SocketAddr,
}

/// What a neighbour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It sends to the receiver of the table.
    Parent,
    /// The receiver of the table sends to it.
    Child,
}

/// Fixed fields of a table, before its neighbours.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct TableLayout {
    pub member: U32,
    pub acked_epoch: U32,
    pub start: U32,
    pub slots: U32,
    pub payload_bytes_max: U16,
    pub offload: u8,
    pub reserved: u8,
    pub part: U16,
    pub parts: U16,
}

/// A neighbour: 24 bytes. IPv4 addresses are mapped (RFC 4291, section 2.5.5.2).
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct NeighbourLayout {
    pub member: U32,
    pub role: U16,
    pub port: U16,
    pub address: [u8; 16],
}

mod operation {
    pub const TABLE: u32 = 1;
    pub const TABLE_ACK: u32 = 2;
    pub const SUSPECT: u32 = 3;
    pub const JOIN: u32 = 4;
    pub const LEAVE: u32 = 5;
    pub const EVICTED: u32 = 6;
    pub const STATE_LOST: u32 = 7;
}

impl Control {
    /// The meaning of a control packet's payload.
    ///
    /// # Errors
    /// [`Malformed::Control`] for one that is unknown, of another length, or with a field beyond its bounds.
    pub fn read(operation: u32, payload: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed::Control(operation);
        let number = || payload.try_into().map(u32::from_be_bytes).map_err(|_| malformed);
        let nothing = |control| if payload.is_empty() { Ok(control) } else { Err(malformed) };
        match operation {
            operation::TABLE => Table::read(payload).map(Self::Table).ok_or(malformed),
            operation::TABLE_ACK => nothing(Self::TableAck),
            operation::SUSPECT => Ok(Self::Suspect(MemberId(number()?))),
            operation::STATE_LOST => Ok(Self::StateLost(MemberId(number()?))),
            operation::JOIN => nothing(Self::Join),
            operation::LEAVE => nothing(Self::Leave),
            operation::EVICTED => {
                Eviction::ALL.get(number()? as usize).map(|&why| Self::Evicted(why)).ok_or(malformed)
            }
            _ => Err(malformed),
        }
    }

    /// The payload.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Table(table) => table.write(),
            Self::TableAck | Self::Join | Self::Leave => Vec::new(),
            Self::Suspect(member) | Self::StateLost(member) => member.0.to_be_bytes().to_vec(),
            Self::Evicted(why) => (*why as u32).to_be_bytes().to_vec(),
        }
    }

    /// What it is, for [`crate::Body::Control`].
    pub const fn operation(&self) -> u32 {
        match self {
            Self::Table(_) => operation::TABLE,
            Self::TableAck => operation::TABLE_ACK,
            Self::Suspect(_) => operation::SUSPECT,
            Self::StateLost(_) => operation::STATE_LOST,
            Self::Join => operation::JOIN,
            Self::Leave => operation::LEAVE,
            Self::Evicted(_) => operation::EVICTED,
        }
    }
}

impl Eviction {
    /// All of them, in the order of their numbers.
    const ALL: [Self; 5] = [Self::Silent, Self::Left, Self::Refused, Self::Aborted, Self::Closed];
}

impl Table {
    fn read(payload: &[u8]) -> Option<Self> {
        let (fixed, rest) = TableLayout::ref_from_prefix(payload).ok()?;
        let neighbours = <[NeighbourLayout]>::ref_from_bytes(rest).ok()?;
        let table = Self {
            member: MemberId(fixed.member.get()),
            acked_epoch: fixed.acked_epoch.get(),
            start: Sequence(fixed.start.get()),
            slots: fixed.slots.get(),
            payload_bytes_max: fixed.payload_bytes_max.get(),
            offload: Offload::NAMES.get(usize::from(fixed.offload))?.1,
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
            && table.neighbours.len() <= Self::PART_NEIGHBOURS_MAX
            && fixed.reserved == 0;
        is_valid.then_some(table)
    }

    fn write(&self) -> Vec<u8> {
        let fixed = TableLayout {
            member: self.member.0.into(),
            acked_epoch: self.acked_epoch.into(),
            start: self.start.0.into(),
            slots: self.slots.into(),
            payload_bytes_max: self.payload_bytes_max.into(),
            offload: self.offload as u8,
            reserved: 0,
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
            _ => return None,
        };
        let address = Ipv6Addr::from(layout.address).to_canonical();
        let address = SocketAddr::new(address, layout.port.get());
        Some(Self { member: MemberId(layout.member.get()), role, address })
    }

    fn write(&self) -> NeighbourLayout {
        let address = match self.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        NeighbourLayout {
            member: self.member.0.into(),
            role: (self.role as u16).into(),
            port: self.address.port().into(),
            address: address.octets(),
        }
    }
}
