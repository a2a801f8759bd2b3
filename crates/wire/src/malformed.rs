//! Why a datagram is rejected.

use thiserror::Error;

/// Why a datagram is not a packet of this protocol. It is dropped and counted, and never answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Shorter than a header.
    #[error("{0} bytes are fewer than a header's 64")]
    Short(usize),
    /// Another version of the format, or another protocol.
    #[error("version {0} is not known: this is version 2")]
    Version(u8),
    /// An unknown kind of packet.
    #[error("kind {0} is not known")]
    Kind(u8),
    /// Its code is not one that a member of this session has computed: the packet is corrupt,
    /// forged, or of another session.
    #[error("the packet is not authentic: it is corrupt, forged, or of another session")]
    Mac,
    /// The payload is corrupt, or was changed on the path.
    #[error("the checksum {given:#x} is not that of the payload, {computed:#x}")]
    Checksum {
        /// The checksum in the header.
        given: u64,
        /// The checksum of the payload.
        computed: u64,
    },
    /// Flags that this kind of packet does not have.
    #[error("flags {0:#06x} are not defined for this kind of packet")]
    Flags(u16),
    /// A reserved field is not 0.
    #[error("a reserved field is not 0")]
    Reserved,
    /// The length in the header is not that of the payload.
    #[error("the header says {given} bytes of payload, and there are {found}")]
    Length {
        /// The length in the header.
        given: u32,
        /// The number of bytes behind the header.
        found: usize,
    },
    /// The piece does not lie within its message.
    #[error("{length} bytes at {offset} do not lie in a message of {message_length}")]
    Piece {
        /// Where the piece begins in the message.
        offset: u64,
        /// The length of the piece.
        length: u32,
        /// The length of the message.
        message_length: u64,
    },
    /// An invalid control message.
    #[error("control message {0} is unknown or invalid")]
    Control(u32),
    /// An invalid handshake.
    #[error("handshake {0} is unknown or invalid")]
    Handshake(u32),
}
