//! The encryption of payloads, from the root's application to those of the members.
//!
//! Each packet of a message is sealed by itself: AES-256 in GCM (NIST SP 800-38D), whose tag
//! follows the encrypted bytes. The key is that of the session, which comes from the group's token;
//! the nonce is the place of the packet, the number of its message and where it begins in that, so
//! that no two packets of a session have the same. What forwards packets (nodes, the kernel's
//! program, switches) sees sealed payloads of some length, and has no part in this.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use treecast_proto::{GroupKey, SessionId};

/// The cipher of a session.
pub(crate) struct Cipher(Box<LessSafeKey>);

/// Logs must not show a key.
impl std::fmt::Debug for Cipher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Cipher(..)")
    }
}

/// The place of a packet in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its message: a session has no more than 2^32.
    pub message: u32,
    /// Where the sealed packet begins in the sealed message, in bytes.
    pub offset: u64,
    /// The length of the sealed message, in bytes.
    pub message_bytes: u64,
}

/// The bytes were not sealed with this key for this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotSealed;

/// The length of the tag that sealing adds to each packet, in bytes.
pub(super) const TAG_BYTES: usize = 16;

impl Cipher {
    pub fn new(key: &GroupKey, session: SessionId) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &key.encryption_key(session));
        Self(Box::new(LessSafeKey::new(key.expect("AES-256 has keys of 32 bytes"))))
    }

    /// Seals the bytes of a packet in place, and appends the tag.
    pub(super) fn seal(&self, place: Place, bytes: &mut Vec<u8>) {
        let sealed = self.0.seal_in_place_append_tag(place.nonce(), place.length(), bytes);
        sealed.expect("a packet is shorter than the 64 GB that AES-GCM allows");
    }

    /// Replaces `opened` by the bytes that are in a sealed packet; by none, if that is not valid.
    pub(super) fn open(&self, place: Place, sealed: &[u8], opened: &mut Vec<u8>) -> Result<(), NotSealed> {
        opened.clear();
        opened.extend_from_slice(sealed);
        let outcome = self.0.open_in_place(place.nonce(), place.length(), opened);
        let length = outcome.map(|bytes| bytes.len());
        opened.truncate(length.unwrap_or(0));
        length.map(drop).map_err(|_| NotSealed)
    }
}

impl Place {
    fn nonce(self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.message.to_be_bytes());
        nonce[4..].copy_from_slice(&self.offset.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// The additional data of a packet, so that none is taken for that of a shorter message.
    fn length(self) -> Aad<[u8; 8]> {
        Aad::from(self.message_bytes.to_be_bytes())
    }
}

/// The lengths of packets and messages, as the application and as the network have them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    /// The length of a slot, in bytes.
    stride: usize,
    /// The length of the tag in each packet, in bytes; 0 without encryption.
    tag_bytes: usize,
}

impl Lengths {
    pub const fn new(stride: usize, is_encrypted: bool) -> Self {
        Self { stride, tag_bytes: if is_encrypted { TAG_BYTES } else { 0 } }
    }

    /// The application's bytes in a full packet.
    pub const fn packet_bytes(self) -> usize {
        self.stride - self.tag_bytes
    }

    /// The length of the tag in each packet, in bytes; 0 without encryption.
    pub const fn tag_bytes(self) -> u32 {
        self.tag_bytes as u32
    }

    /// The length on the network of a message of the application.
    pub fn sent(self, message_bytes: u64) -> u64 {
        // An empty message has a packet too.
        let packets = message_bytes.div_ceil(self.packet_bytes() as u64).max(1);
        message_bytes + packets * self.tag_bytes as u64
    }

    /// The longest message of the application, where `bytes_max` is that on the network.
    pub fn longest(self, bytes_max: u64) -> u64 {
        bytes_max - bytes_max.div_ceil(self.stride as u64) * self.tag_bytes as u64
    }

    /// The length of the application's message that has this length on the network. None if no
    /// message has that length there.
    pub fn received(self, message_bytes: u64) -> Option<u64> {
        let packets = message_bytes.div_ceil(self.stride as u64).max(1);
        let received = message_bytes.checked_sub(packets * self.tag_bytes as u64);
        received.filter(|&received| self.sent(received) == message_bytes)
    }
}

#[cfg(test)]
mod tests {
    use treecast_proto::GroupId;

    use super::*;

    fn cipher(token: &str, session: u8) -> Cipher {
        Cipher::new(&GroupKey::new(token, GroupId(1)), SessionId([session; 16]))
    }

    const PLACE: Place = Place { message: 7, offset: 4_096, message_bytes: 10_000 };

    #[test]
    fn a_packet_is_opened_only_with_its_key_and_at_its_place() {
        let mut sealed = b"some bytes".to_vec();
        cipher("secret", 1).seal(PLACE, &mut sealed);
        assert_eq!(sealed.len(), 10 + TAG_BYTES);
        assert_ne!(sealed[..10], *b"some bytes");
        let open = |cipher: &Cipher, place, sealed: &[u8]| {
            let mut opened = b"the packet before".to_vec();
            let outcome = cipher.open(place, sealed, &mut opened);
            assert_eq!(opened.is_empty(), outcome.is_err());
            outcome.map(|()| opened)
        };
        assert_eq!(open(&cipher("secret", 1), PLACE, &sealed), Ok(b"some bytes".to_vec()));
        for other in [
            Place { message: 8, ..PLACE },
            Place { offset: 0, ..PLACE },
            Place { message_bytes: 9_999, ..PLACE },
        ] {
            assert_eq!(open(&cipher("secret", 1), other, &sealed), Err(NotSealed));
        }
        assert_eq!(open(&cipher("other", 1), PLACE, &sealed), Err(NotSealed));
        assert_eq!(open(&cipher("secret", 2), PLACE, &sealed), Err(NotSealed));
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&cipher("secret", 1), PLACE, &changed), Err(NotSealed));
        }
        for length in 0..sealed.len() {
            assert_eq!(open(&cipher("secret", 1), PLACE, &sealed[..length]), Err(NotSealed));
        }
    }

    #[test]
    fn lengths_are_found_again() {
        for is_encrypted in [false, true] {
            let lengths = Lengths::new(512, is_encrypted);
            for bytes in (0..2_000).chain([1 << 32]) {
                assert_eq!(lengths.received(lengths.sent(bytes)), Some(bytes));
            }
        }
        let lengths = Lengths::new(512, true);
        for bytes_max in [512 * 10, 512 * 10 + 17, 1 << 32] {
            let longest = lengths.longest(bytes_max);
            assert!(lengths.sent(longest) <= bytes_max && lengths.sent(longest + 1) > bytes_max);
        }
        assert_eq!((lengths.packet_bytes(), lengths.sent(0), lengths.sent(497)), (496, 16, 529));
        assert_eq!((lengths.received(0), lengths.received(15), lengths.received(520)), (None, None, None));
    }
}
