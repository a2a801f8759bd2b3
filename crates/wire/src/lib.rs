//! Packet formats of reliable multicast: a checked view of bytes, and a valid meaning.
//!
//! Every datagram is a header of [`HEADER_BYTES`] and a payload. A [`View`] has checked the length
//! and the version, and gives access to the fields that are needed to find the group and its keys;
//! [`View::check`] then verifies the code, the checksum and every field, and returns the
//! [`Packet`]. [`Header::write`] is the inverse. docs/wire.md has the layout and test vectors.
//!
//! ```
//! use treecast_wire::{Authentication, Body, Crcs, Data, Distribution, GroupId, Header, Keys, MacKey, MemberId, PayloadKey, Sequence, Timestamp, View};
//!
//! let keys = Keys {
//!     header: MacKey([1, 2]),
//!     control: MacKey([3, 4]),
//!     data: PayloadKey { code: MacKey([5, 6]), hash: [7; PayloadKey::HASH_WORDS] },
//!     authentication: Authentication::Payload,
//!     crcs: Crcs::All,
//! };
//! let payload = b"hello";
//! let checksum = keys.data_checksum(Sequence(41), payload);
//! let data =
//!     Data { message: 7, offset: 0, length: 5, message_length: 5, checksum, ack_requested: true, retransmitted: false, close: false,
//!            distribution: Distribution::Tree };
//! let header = Header {
//!     group: GroupId(1),
//!     epoch: 1,
//!     sender: MemberId(0),
//!     sequence: Sequence(41),
//!     timestamp: Timestamp(1_000),
//!     body: Body::Data(data),
//! };
//! let datagram = [&header.write(&keys.header)[..], payload].concat();
//!
//! let packet = View::new(&datagram)?.check(&keys)?;
//! assert_eq!((packet.header, packet.payload), (header, &payload[..]));
//! # Ok::<(), treecast_wire::Malformed>(())
//! ```
//!
//! The crate uses no clock and no socket, and allocates for control messages only.

#![no_std]

extern crate alloc;

mod address;
mod checksum;
mod contribution;
mod control;
mod handshake;
mod header;
mod keys;
mod layout;
mod malformed;
mod payload_key;
mod readers;
mod sequence;

pub use checksum::PayloadChecksum;
pub use contribution::{Contribution, Element, Operation, Values};
pub use control::{AbortReason, Control, Eviction, Neighbour, Role, RootLoss, Table};
pub use handshake::Handshake;
pub use header::{
    Acknowledgment, Body, Challenge, ControlHeader, Data, Distribution, Header, Missing, Packet, View,
};
pub use keys::{
    Authentication, Crcs, Integrity, Keys, MacKey, Nonce, SessionId, Transport, UnknownAuthentication,
    UnknownIntegrity, UnknownTransport,
};
pub use malformed::Malformed;
pub use payload_key::PayloadKey;
pub use readers::{ReaderSet, Readers};
pub use sequence::Sequence;
pub use treecast_terms::{GroupId, MemberId, Offload};

/// The length of the header in bytes.
pub const HEADER_BYTES: usize = 64;

/// The version of the format, in the first byte.
pub const VERSION: u8 = 2;

/// The longest message in bytes: 4 GiB.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 32;

/// The longest payload in bytes: that of a UDP datagram over IPv4 without options, less the header.
pub const PAYLOAD_BYTES_MAX: usize = 65_507 - HEADER_BYTES;

/// The time at which a packet was sent, in nanoseconds of its sender's clock; 0: none.
#[derive(
    Debug,
    Default,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
)]
#[repr(transparent)]
pub struct Timestamp(pub u64);
