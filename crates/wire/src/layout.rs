//! The layout of headers: network byte order, and fixed offsets that are the same for every kind of
//! packet, so that a program in the kernel's packet path reads them without branches. docs/wire.md
//! has the table.

use core::mem::offset_of;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::HEADER_BYTES;

/// A header: 28 bytes that all kinds have in common, 28 bytes by kind, and the code of these 56
/// bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Layout {
    pub version: u8,
    pub kind: u8,
    pub flags: U16,
    pub group: U32,
    pub timestamp: U64,
    pub epoch: U32,
    pub sender: U32,
    pub sequence: U32,
    pub body: [u8; BODY_BYTES],
    pub mac: U64,
}

/// The length of the part of a header that depends on the kind of the packet, in bytes.
pub const BODY_BYTES: usize = 28;

const _: () = assert!(size_of::<Layout>() == HEADER_BYTES);
const _: () = assert!(offset_of!(Layout, mac) == AUTHENTIC_BYTES);

/// The number of bytes, from the first on, that the code of a header covers.
pub const AUTHENTIC_BYTES: usize = 56;

/// The body of a data packet.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DataLayout {
    pub message: U32,
    pub checksum: U64,
    pub length: U32,
    pub offset: U32,
    pub message_length: U64,
}

/// The body of a path probe. Its length is at the same offset as the length in the body of data.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct PathProbeLayout {
    pub reserved: [u8; 12],
    pub length: U32,
    pub reserved_after: [u8; 12],
}

/// The body of the packet with which a child opens its stream.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AttachLayout {
    pub challenge: [u8; 16],
    pub reserved: [u8; 12],
}

/// The body of both acknowledgments.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AcknowledgmentLayout {
    pub stable: U32,
    pub echo: U64,
    pub receive_window: U32,
    pub missing_first: U32,
    pub missing: U64,
}

/// The body of a control packet and of a handshake; their payloads are in `control.rs` and
/// `handshake.rs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ControlLayout {
    pub operation: U32,
    pub checksum: U64,
    pub length: U32,
    pub reserved: U32,
    pub nonce: U64,
}

/// The kinds of packets.
pub mod kind {
    pub const DATA: u8 = 1;
    pub const ACKNOWLEDGMENT: u8 = 2;
    pub const NAK: u8 = 3;
    pub const PROBE: u8 = 4;
    pub const CONTROL: u8 = 5;
    pub const HANDSHAKE: u8 = 6;
    pub const HEARTBEAT: u8 = 7;
    pub const PATH_PROBE: u8 = 8;
    pub const ATTACH: u8 = 9;
}

/// The flags of data.
pub mod flag {
    pub const ACK_REQUESTED: u16 = 1;
    pub const RETRANSMITTED: u16 = 2;
    pub const CLOSE: u16 = 4;
    pub const MULTICAST: u16 = 8;
    pub const MULTICAST_COPY: u16 = 16;
}

/// The flags of acknowledgments and NAKs.
pub mod ack_flag {
    pub const REACHED: u16 = 1;
    pub const CONGESTED: u16 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::AddressLayout;
    use crate::control::{NeighbourLayout, TableLayout};
    use crate::handshake::WelcomeLayout;
    use alloc::format;

    /// Each field has its line in the table of docs/wire.md, whose offsets begin at `base`.
    macro_rules! assert_documented {
        ($layout:ty, $base:expr, $($field:ident)*) => {
            let page = include_str!("../../../docs/wire.md");
            let ends = [$(offset_of!($layout, $field),)* size_of::<$layout>()];
            for (place, name) in [$(stringify!($field),)*].into_iter().enumerate() {
                let (offset, bytes) = (ends[place] + $base, ends[place + 1] - ends[place]);
                let line = format!("\n| {offset} | {bytes} | `{name}` | ");
                assert!(page.contains(&line), "docs/wire.md has no line {line}");
            }
        };
    }

    #[test]
    fn the_page_has_every_field_in_its_place() {
        assert_documented!(Layout, 0, version kind flags group timestamp epoch sender sequence body mac);
        assert_documented!(DataLayout, 28, message checksum length offset message_length);
        assert_documented!(AcknowledgmentLayout, 28, stable echo receive_window missing_first missing);
        assert_documented!(AttachLayout, 28, challenge reserved);
        assert_documented!(ControlLayout, 28, operation checksum length reserved nonce);
        assert_documented!(TableLayout, 0, member start slots message bytes payload_bytes_max offload guards part parts);
        assert_documented!(NeighbourLayout, 0, member role address);
        assert_documented!(AddressLayout, 0, port address);
        assert_documented!(WelcomeLayout, 0, session address);
    }
}
