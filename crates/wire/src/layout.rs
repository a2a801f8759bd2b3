//! The layout of headers: network byte order, and fixed offsets that are the same for every kind of packet, so that a program in the
//! kernel's packet path reads them without branches. docs/wire.md has the table.

use core::mem::offset_of;
use core::ops::Range;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::HEADER_BYTES;

/// A header: 40 bytes that all kinds have in common, and 24 bytes by kind.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Layout {
    pub version: u8,
    pub kind: u8,
    pub flags: U16,
    pub checksum: U32,
    pub cookie: U64,
    pub group: U32,
    pub epoch: U32,
    pub sender: U32,
    pub sequence: U32,
    pub timestamp: U64,
    pub body: [u8; 24],
}

impl Layout {
    pub const CHECKSUM: Range<usize> = offset_of!(Layout, checksum)..offset_of!(Layout, cookie);
}

const _: () = assert!(size_of::<Layout>() == HEADER_BYTES);
const _: () = assert!(offset_of!(Layout, body) == 40);

/// The body of a data packet.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DataLayout {
    pub message: U32,
    pub length: U32,
    pub offset: U64,
    pub message_length: U64,
}

/// The body of both acknowledgments.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct AcknowledgmentLayout {
    pub stable: U32,
    pub receive_window: U32,
    pub missing_first: U32,
    pub reserved: U32,
    pub missing: U64,
}

/// The body of a control packet; its payload is `control.rs`'s.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ControlLayout {
    pub operation: U32,
    pub length: U32,
    pub reserved: [U64; 2],
}

/// The kinds of packets.
pub mod kind {
    pub const DATA: u8 = 1;
    pub const ACKNOWLEDGMENT: u8 = 2;
    pub const NAK: u8 = 3;
    pub const PROBE: u8 = 4;
    pub const CONTROL: u8 = 5;
}

/// The flags of data.
pub mod flag {
    pub const ACK_REQUESTED: u16 = 1;
    pub const RETRANSMITTED: u16 = 2;
    pub const CLOSE: u16 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{NeighbourLayout, TableLayout};
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
        assert_documented!(Layout, 0, version kind flags checksum cookie group epoch sender sequence timestamp body);
        assert_documented!(DataLayout, 40, message length offset message_length);
        assert_documented!(AcknowledgmentLayout, 40, stable receive_window missing_first reserved missing);
        assert_documented!(ControlLayout, 40, operation length reserved);
        assert_documented!(TableLayout, 0, member acked_epoch start slots payload_bytes_max offload reserved part parts);
        assert_documented!(NeighbourLayout, 0, member role port address);
    }
}
