//! Why bytes are no packet.

use thiserror::Error;

/// Why a datagram is no packet of this protocol. Such a datagram is dropped and counted, and never answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Shorter than a header.
    #[error("{0} bytes are fewer than a header's 64")]
    Short(usize),
    /// Of another version of the format, or of something else altogether.
    #[error("version {0} is not known: this is version 1")]
    Version(u8),
    /// The type in the header is none.
    #[error("type {0} is not known")]
    Kind(u8),
    /// The checksum is not that of header and payload.
    #[error("the checksum {given:#010x} is not that of the packet, {computed:#010x}")]
    Checksum {
        /// What the header says.
        given: u32,
        /// What header and payload give.
        computed: u32,
    },
    /// Flags that do not exist, or not for this type.
    #[error("flags {0:#06x} mean nothing in a packet of this type")]
    Flags(u16),
    /// A field that has to be 0 is not.
    #[error("a reserved field is not 0")]
    Reserved,
    /// The length in the header is not that of the payload.
    #[error("the header says {given} bytes of payload, and there are {found}")]
    Length {
        /// What the header says.
        given: u32,
        /// How many bytes follow the header.
        found: usize,
    },
    /// The piece does not lie in its message.
    #[error("{length} bytes at {offset} do not lie in a message of {message_length}")]
    Piece {
        /// Where the piece begins in the message.
        offset: u64,
        /// How long the piece is.
        length: u32,
        /// How long the message is.
        message_length: u64,
    },
    /// A control message that is none.
    #[error("control message {0} is not known, or not of this form")]
    Control(u32),
}
