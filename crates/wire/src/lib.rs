//! Packet formats of reliable multicast: a checked view of bytes, and a valid meaning.
//!
//! Every datagram is a header of [`HEADER_BYTES`] and a payload. A [`View`] has checked the length and the version, and gives access to
//! the fields that are needed to find the group; [`View::check`] then verifies the checksum and every field, and returns the [`Packet`].
//! [`Header::write`] is the inverse. docs/wire.md has the layout and test vectors.
//!
//! ```
//! use treecast_wire::{Body, Cookie, Data, GroupId, Header, MemberId, Payload, Sequence, Timestamp, View};
//!
//! let data = Data { message: 7, offset: 0, length: 5, message_length: 5, ack_requested: true, retransmitted: false, close: false };
//! let header = Header {
//!     group: GroupId(1),
//!     cookie: Cookie(0x1234),
//!     epoch: 1,
//!     sender: MemberId(0),
//!     sequence: Sequence(41),
//!     timestamp: Timestamp(1_000),
//!     body: Body::Data(data),
//! };
//! let payload = Payload::new(b"hello");
//! let datagram = [&header.write(payload.checksum())[..], payload.bytes()].concat();
//!
//! let packet = View::new(&datagram)?.check()?;
//! assert_eq!((packet.header, packet.payload.bytes()), (header, &b"hello"[..]));
//! # Ok::<(), treecast_wire::Malformed>(())
//! ```
//!
//! The crate uses no clock and no socket, and allocates for control messages only.

#![no_std]

extern crate alloc;

mod checksum;
mod control;
mod header;
mod layout;
mod malformed;
mod sequence;

pub use checksum::{Payload, PayloadChecksum};
pub use control::{Control, Eviction, Neighbour, Role, Table};
pub use header::{Acknowledgment, Body, Data, Header, Missing, Packet, View};
pub use malformed::Malformed;
pub use sequence::Sequence;
pub use treecast_terms::{GroupId, MemberId, Offload};

use core::fmt;

/// The length of the header in bytes.
pub const HEADER_BYTES: usize = 64;

/// The version of the format, in the first byte.
pub const VERSION: u8 = 1;

/// The longest message in bytes: 4 GiB.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 32;

/// The longest payload in bytes: that of a UDP datagram over IPv4 without options, less the header.
pub const PAYLOAD_BYTES_MAX: usize = 65_507 - HEADER_BYTES;

/// Distinguishes a group from all others with its number; drawn at random by the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

/// The time at which a packet was sent, in nanoseconds of its sender's clock; 0: none. An acknowledgment returns the timestamp of the
/// packet that requested it (RFC 7323, section 3.1).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// A cookie is a secret of its group, so that logs must not show it.
impl fmt::Debug for Cookie {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cookie(..)")
    }
}
