//! The root's side of a group's ring.

use treecast_engine::root_socket::RootSocket;
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::offload::ChosenOffload;
use treecast_proto::{
    Authentication, Nanoseconds, Offload, PayloadChecksum, Piece, Refused, Sequence, Transport,
};
use treecast_shm::clock;
use treecast_shm::ring::RingWriter;
use treecast_wire::{Crcs, Keys};

use super::cipher::{Cipher, Lengths, Place};

/// A message follows another if the application needs less than this time between its calls. The
/// node's thread needs longer to wake up.
const BACK_TO_BACK: Nanoseconds = Nanoseconds::from_us(5);

/// Fewer bytes are copied into slots sooner than that pays.
const LENT_BYTES_MIN: usize = 8 << 10;

/// Packets that are described, and not published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described {
    pub end: Sequence,
    /// The length of their payloads, in bytes.
    pub bytes: usize,
    /// Whether they complete the message.
    pub is_last: bool,
}

/// The state of a root's sending side, beside the ring.
#[derive(Debug)]
pub(crate) struct SenderConfig {
    /// Where packets are forwarded.
    pub offload: ChosenOffload,
    /// What carries data along the tree.
    pub transport: Transport,
    /// The longest payload of a packet in a datagram, in bytes, if packets go on streams too.
    pub datagram_bytes: Option<u16>,
    /// The keys of the session, for the checksums of payloads.
    pub keys: Keys,
    /// Where what is sent is encrypted.
    pub cipher: Option<Cipher>,
    /// The way into the kernel's packet path, where that forwards.
    pub socket: Option<RootSocket>,
}

/// Whether to wait for members, by what came of it: after a wait in vain not for some messages.
#[derive(Debug, Default)]
pub(super) struct Patience {
    left_out: u32,
}

impl Patience {
    /// The number of messages that are sent without a wait after a wait in vain.
    const LEFT_OUT: u32 = 31;

    /// Whether to wait for this message.
    pub const fn is_due(&mut self) -> bool {
        let is_due = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_due
    }

    /// A wait has ended.
    pub const fn learn(&mut self, was_in_time: bool) {
        self.left_out = if was_in_time { 0 } else { Self::LEFT_OUT };
    }
}

/// The root's side of the ring.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) writer: RingWriter,
    /// The number of the next message, or of the message that is partly sent.
    message: u32,
    /// The bytes of that message that are sent, and its length.
    offset: u64,
    length: u64,
    pub(super) offload: Offload,
    pub(super) transport: Transport,
    /// The longest payload of a packet in a datagram, if packets go on streams too.
    datagram_bytes: Option<usize>,
    /// Whether the message goes in datagrams.
    is_in_datagrams: bool,
    /// The first packet that the application has not forwarded, with offload `host` or `assisted`.
    pub(super) forwarded: Sequence,
    /// The first packet that the engine may not know of.
    pub(super) passed: Sequence,
    /// When the last call for a message of one packet ended, on streams.
    sent_at: Nanoseconds,
    /// Whether to wait until all members have a long message.
    pub(super) patience: Patience,
    keys: Keys,
    cipher: Option<Cipher>,
    lengths: Lengths,
    /// The packet that is being sealed.
    sealed: Vec<u8>,
    /// The session has had 2^32 messages.
    has_wrapped: bool,
    /// The way into the kernel's packet path, where that forwards.
    pub(super) socket: Option<RootSocket>,
}

impl Sender {
    pub fn new(writer: RingWriter, config: SenderConfig) -> Self {
        let SenderConfig {
            offload: ChosenOffload { offload, .. },
            transport,
            datagram_bytes,
            keys,
            cipher,
            socket,
        } = config;
        let lengths = Lengths::new(writer.stride(), cipher.is_some());
        let forwarded = writer.written();
        let passed = forwarded;
        let sent_at = Nanoseconds::ZERO;
        Self {
            writer,
            message: 0,
            offset: 0,
            length: 0,
            offload,
            transport,
            datagram_bytes: datagram_bytes.map(usize::from),
            is_in_datagrams: transport == Transport::Packets,
            forwarded,
            passed,
            sent_at,
            patience: Patience::default(),
            keys,
            cipher,
            lengths,
            sealed: Vec::new(),
            has_wrapped: false,
            socket,
        }
    }

    /// Whether a message of one packet follows another on streams. Datagrams are batched by the
    /// engine.
    pub fn follows_short_message(&self) -> bool {
        self.transport.has_streams() && clock::now().since(self.sent_at) < BACK_TO_BACK
    }

    /// A message of one packet has been passed to the engine.
    pub fn end_short_message(&mut self) {
        if self.transport.has_streams() {
            self.sent_at = clock::now();
        }
    }

    /// # Errors
    /// [`NodeError::Refused`], if a message is partly sent.
    pub fn check_no_partial_message(&self) -> Result<(), NodeError> {
        if self.offset == 0 {
            return Ok(());
        }
        Err(Refused::Unfinished { message: self.message, offset: self.offset }.into())
    }

    /// Whether it encrypts what it sends.
    pub const fn is_encrypting(&self) -> bool {
        self.cipher.is_some()
    }

    /// The lengths of packets and messages.
    pub const fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// The next `bytes` bytes belong to a message of `message_bytes`.
    ///
    /// # Errors
    /// [`NodeError::Refused`], if another message is partly sent, or lacks fewer bytes; or for the
    /// message after 2^32 that were encrypted, since it would be the second one with its number,
    /// and so its nonces.
    pub fn begin(
        &mut self,
        message_bytes: u64,
        bytes: u64,
        prefers_datagrams: impl FnOnce() -> bool,
    ) -> Result<(), NodeError> {
        if self.has_wrapped && self.cipher.is_some() {
            let (what, max) = ("messages of a session with encrypt=on", 1 << 32);
            return Err(Refused::Bounds { what, value: max + 1, min: 0, max }.into());
        }
        if self.length != message_bytes {
            self.check_no_partial_message()?;
            self.length = message_bytes;
        }
        if self.offset == 0 && self.datagram_bytes.is_some() {
            self.is_in_datagrams = prefers_datagrams();
        }
        if bytes > message_bytes - self.offset {
            let (message, offset) = (self.message, self.offset);
            return Err(
                Refused::Piece { message, offset, length: u32::try_from(bytes).unwrap_or(u32::MAX) }.into()
            );
        }
        Ok(())
    }

    /// The number of bytes of the message in the next packet, unless it is the last. A packet in a
    /// datagram ends where one on a stream would: calls take as much of a message either way.
    pub fn packet_bytes(&self) -> usize {
        let packet_bytes = self.lengths.packet_bytes();
        let Some(datagram_bytes) = self.datagram_bytes.filter(|_| self.is_in_datagrams) else {
            return packet_bytes;
        };
        datagram_bytes.min(packet_bytes - (self.offset % packet_bytes as u64) as usize)
    }

    /// The number of bytes in the next packet, where `available` follow; none, if they neither fill
    /// it nor complete the message.
    pub fn next_length(&self, available: usize) -> Option<usize> {
        let packet_bytes = self.packet_bytes();
        (available >= packet_bytes || available as u64 == self.length - self.offset)
            .then_some(available.min(packet_bytes))
    }

    /// Writes the next packet of the message; says whether it is the last.
    pub fn write_packet(&mut self, bytes: &[u8]) -> bool {
        let packet = self.writer.written();
        let message = self.message;
        let (offset, message_length) = if let Some(cipher) = &self.cipher {
            // All packets before it are full.
            let packets = self.offset / self.lengths.packet_bytes() as u64;
            let (offset, message_bytes) =
                (packets * self.writer.stride() as u64, self.lengths.sent(self.length));
            self.sealed.clear();
            self.sealed.extend_from_slice(bytes);
            cipher.seal(Place { message, offset, message_bytes }, &mut self.sealed);
            self.writer.write(packet, &self.sealed);
            (offset, message_bytes)
        } else {
            self.writer.write(packet, bytes);
            (self.offset, self.length)
        };
        let length = if self.cipher.is_some() { self.sealed.len() } else { bytes.len() };
        let piece = Piece {
            message,
            offset,
            length: length as u32,
            message_length,
            // Of the copy: another thread of the application may write the message meanwhile.
            checksum: self.checksum(packet, self.writer.bytes(packet, length)),
        };
        self.writer.describe(packet, piece);
        self.writer.publish(packet + 1);
        self.advance(bytes.len())
    }

    /// Whether the engine may send this many bytes from the application's buffer. Before it
    /// returns, the call copies into the slots what members lack. It may on streams, if payloads
    /// have no checksums and no other process reads the slots.
    pub fn may_lend(&self, bytes: usize) -> bool {
        let has_checksums = self.keys.authentication != Authentication::Header || self.keys.crcs == Crcs::All;
        !self.is_in_datagrams
            && bytes >= LENT_BYTES_MIN
            && self.offload.is_by_node()
            && !has_checksums
            && self.cipher.is_none()
            && self.writer.readers().is_none()
            && self.writer.shared_memory().is_none()
    }

    /// The checksum of a packet, by which the node knows whether it goes in a datagram.
    fn checksum(&self, packet: Sequence, payload: &[u8]) -> PayloadChecksum {
        if self.is_in_datagrams {
            self.keys.data_checksum(packet, payload)
        } else {
            self.keys.stream_checksum(packet, payload)
        }
    }

    /// Describes the next packets of the message, at most so many, whose payloads are these bytes,
    /// and publishes none.
    pub fn describe_packets(&mut self, bytes: &[u8], packets_max: u32) -> Described {
        let first = self.writer.written();
        let mut described = Described { end: first, bytes: 0, is_last: false };
        while !described.is_last && described.end.distance_from(first) < packets_max as i32 {
            let Some(length) = self.next_length(bytes.len() - described.bytes) else { break };
            let piece = Piece {
                message: self.message,
                offset: self.offset,
                length: length as u32,
                message_length: self.length,
                checksum: PayloadChecksum(0),
            };
            self.writer.describe(described.end, piece);
            described.end += 1;
            described.bytes += length;
            described.is_last = self.advance(length);
        }
        described
    }

    /// So many bytes of the message are in packets; says whether that is all of it.
    fn advance(&mut self, bytes: usize) -> bool {
        self.offset += bytes as u64;
        let is_last = self.offset == self.length;
        if is_last {
            (self.message, self.has_wrapped) = match self.message.checked_add(1) {
                Some(next) => (next, self.has_wrapped),
                None => (0, true),
            };
            self.offset = 0;
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use treecast_proto::{Authentication, GroupId, GroupKey, SessionId};
    use treecast_shm::ring::new_ring;

    use super::*;

    #[test]
    fn after_a_wait_in_vain_some_messages_are_sent_without_one() {
        let mut patience = Patience::default();
        for _ in 0..3 {
            assert!(patience.is_due());
            patience.learn(true);
        }
        assert!(patience.is_due());
        patience.learn(false);
        let sent = (0..100).position(|_| patience.is_due());
        assert_eq!(sent, Some(Patience::LEFT_OUT as usize));
    }

    #[test]
    fn no_two_encrypted_messages_of_a_session_have_one_number() {
        let (key, session) = (GroupKey::new("secret", GroupId(1)), SessionId([1; 16]));
        for is_encrypted in [false, true] {
            let (writer, _reader) = new_ring(4, 512, Sequence(0));
            let config = SenderConfig {
                offload: ChosenOffload { offload: Offload::Nic, reason: None },
                transport: Transport::Packets,
                datagram_bytes: None,
                keys: key.session_keys(session, Authentication::Header),
                cipher: is_encrypted.then(|| Cipher::new(&key, session)),
                socket: None,
            };
            let mut sender = Sender::new(writer, config);
            sender.message = u32::MAX;
            sender.begin(1, 1, || false).unwrap();
            assert!(sender.write_packet(b"x"), "the last number is used");
            match sender.begin(1, 1, || false) {
                Err(NodeError::Refused(Refused::Bounds { value, .. })) => {
                    assert_eq!((is_encrypted, value), (true, (1 << 32) + 1));
                }
                other => assert!(other.is_ok() && !is_encrypted, "{other:?}"),
            }
        }
    }
}
