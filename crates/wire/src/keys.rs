//! Message authentication codes: they prove who has sent a packet, and in which session.

use core::fmt;
use core::str::FromStr;

use siphasher::sip::SipHasher24;

use crate::{PayloadChecksum, PayloadKey, Sequence};

/// A key of SipHash-2-4 (Aumasson and Bernstein, 2012), whose results are the message
/// authentication codes of packets.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct MacKey(pub [u64; 2]);

impl MacKey {
    /// The code of these bytes.
    pub fn mac(&self, bytes: &[u8]) -> u64 {
        let [first, second] = self.0;
        SipHasher24::new_with_keys(first, second).hash(bytes)
    }
}

/// Logs must not show a key.
impl fmt::Debug for MacKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MacKey(..)")
    }
}

/// The bytes that the code of a data packet covers. The codes of all other packets cover all their
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Authentication {
    /// The header. The payload has a CRC, which detects errors, but not a change by a host that
    /// sees the packet.
    Header,
    /// The header and the payload.
    Payload,
}

impl Authentication {
    /// All values with their names, in the order of their numbers in tables.
    pub const NAMES: [(&'static str, Self); 2] = [("header", Self::Header), ("payload", Self::Payload)];
}

impl fmt::Display for Authentication {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

/// A text that names no [`Authentication`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown authentication: known are header, payload")]
pub struct UnknownAuthentication;

impl FromStr for Authentication {
    type Err = UnknownAuthentication;

    fn from_str(text: &str) -> Result<Self, UnknownAuthentication> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, authentication)| authentication).ok_or(UnknownAuthentication)
    }
}

/// When a member verifies the CRC-32C of a payload. The root computes it, and each packet carries
/// it unless codes cover payloads ([`Authentication::Payload`]).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Integrity {
    /// Before it accepts the packet: a packet with a wrong CRC is dropped, and sent again.
    Crc32c,
    /// A packet with a correct UDP checksum may be accepted before its CRC is verified, as TCP
    /// accepts a segment. The CRC is then verified before an application gets the payload; a wrong
    /// one ends the member.
    #[default]
    Network,
}

impl Integrity {
    /// All values with their names, in the order of their numbers in tables.
    pub const NAMES: [(&'static str, Self); 2] = [("crc32c", Self::Crc32c), ("network", Self::Network)];
}

impl fmt::Display for Integrity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

/// A text that names no [`Integrity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown integrity: known are crc32c, network")]
pub struct UnknownIntegrity;

impl FromStr for Integrity {
    type Err = UnknownIntegrity;

    fn from_str(text: &str) -> Result<Self, UnknownIntegrity> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, integrity)| integrity).ok_or(UnknownIntegrity)
    }
}

/// The transport of a group's data along its tree.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Datagrams; the parent retransmits lost ones.
    #[default]
    Packets,
    /// A TCP connection from each child to its parent. Everything else goes in datagrams.
    Streams,
    /// Datagrams and such connections: the root chooses for each packet, and members forward it as
    /// it came.
    Both,
}

impl Transport {
    /// All values with their names, in the order of their numbers in tables.
    pub const NAMES: [(&'static str, Self); 3] =
        [("packets", Self::Packets), ("stream", Self::Streams), ("both", Self::Both)];

    /// Whether children have connections to their parents.
    pub const fn has_streams(self) -> bool {
        !matches!(self, Self::Packets)
    }

    /// Which payloads have CRCs, of those without codes. TCP has its own checksum, and a member
    /// that trusts the checksums of the network needs no other.
    pub const fn crcs(self, integrity: Integrity) -> Crcs {
        match (self, integrity) {
            (Self::Packets, _) | (_, Integrity::Crc32c) => Crcs::All,
            (Self::Streams, Integrity::Network) => Crcs::None,
            (Self::Both, Integrity::Network) => Crcs::Datagrams,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

/// A text that names no [`Transport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown transport: known are packets, stream, both")]
pub struct UnknownTransport;

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, transport)| transport).ok_or(UnknownTransport)
    }
}

/// Which payloads of data have CRCs, of those without codes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Crcs {
    /// All.
    #[default]
    All,
    /// Those in datagrams, and none on streams.
    Datagrams,
    /// None.
    None,
}

/// The keys of a session, or of the handshakes that lead to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// The key of headers.
    pub header: MacKey,
    /// The key of the payloads of control messages and handshakes.
    pub control: MacKey,
    /// The key of the payloads of data.
    pub data: PayloadKey,
    /// The bytes of data packets that their codes cover.
    pub authentication: Authentication,
    /// Which payloads without codes have CRCs ([`Transport::crcs`]).
    pub crcs: Crcs,
}

impl Keys {
    /// The checksum of the payload of the data packet with this number in a datagram: its CRC-32C,
    /// or its code; 0 if it has neither.
    pub fn data_checksum(&self, packet: Sequence, payload: &[u8]) -> PayloadChecksum {
        self.checksum(packet, payload, self.crcs != Crcs::None)
    }

    /// The same on a stream.
    pub fn stream_checksum(&self, packet: Sequence, payload: &[u8]) -> PayloadChecksum {
        self.checksum(packet, payload, self.crcs == Crcs::All)
    }

    fn checksum(&self, packet: Sequence, payload: &[u8], has_crc: bool) -> PayloadChecksum {
        match self.authentication {
            Authentication::Header if has_crc => PayloadChecksum::crc(payload),
            Authentication::Header => PayloadChecksum(0),
            Authentication::Payload => PayloadChecksum(self.data.code(packet, payload)),
        }
    }

    /// The checksum of the payload of a control message or a handshake: its code.
    pub fn control_checksum(&self, payload: &[u8]) -> PayloadChecksum {
        PayloadChecksum(self.control.mac(payload))
    }
}

/// A session: the life of a group, from its creation by the root to its end. Its root draws the
/// number at random, 128 bits, and all keys depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// A random number that a member draws for a handshake. It makes the root's answer fresh, and
/// distinguishes the member from others that had its address before.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_that_of_the_paper() {
        // Appendix A of the paper: the key 00 01 .. 0f, and the message 00 01 .. 0e.
        let key = MacKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let message: [u8; 15] = core::array::from_fn(|index| index as u8);
        assert_eq!(key.mac(&message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        for (number, (name, authentication)) in Authentication::NAMES.into_iter().enumerate() {
            assert_eq!(authentication as usize, number);
            assert_eq!(name.parse(), Ok(authentication));
        }
        assert!("none".parse::<Authentication>().is_err());
        for (number, (name, integrity)) in Integrity::NAMES.into_iter().enumerate() {
            assert_eq!(integrity as usize, number);
            assert_eq!(name.parse(), Ok(integrity));
        }
        assert!("none".parse::<Integrity>().is_err());
        for (number, (name, transport)) in Transport::NAMES.into_iter().enumerate() {
            assert_eq!(transport as usize, number);
            assert_eq!(name.parse(), Ok(transport));
        }
        assert!("none".parse::<Transport>().is_err());
    }
}
