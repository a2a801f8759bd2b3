//! A member's side of a group's ring.

#![expect(unsafe_code, reason = "the node stores packets in buffers")]

use smallvec::SmallVec;
use treecast_proto::{GroupKey, Nanoseconds, Offload, Piece, Sequence};
use treecast_shm::message_buffer::LentBuffer;
use treecast_shm::ring::RingReader;
use treecast_shm::shared_group::Placement;

use super::cipher::{Cipher, Lengths, NotSealed, Place};
use super::sink::Sink;

/// What is wrong with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// Its payload differs from its checksum.
    Corrupt(Sequence),
    /// It does not decrypt with the key of the session, although its checksum is right.
    NotSealed(Sequence),
}

/// A member's side of the ring.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) reader: RingReader,
    pub(super) offload: Offload,
    /// The first packet that the application has not forwarded, with offload `host` or `assisted`.
    pub(super) forwarded: Sequence,
    /// The first packet that the node does not know to be read.
    pub(super) reported: Sequence,
    /// When the last received packet was stored.
    pub(super) stored_at: Option<Nanoseconds>,
    /// Where what comes is encrypted.
    pub(super) cipher: Option<Cipher>,
    /// How much of the message that has begun the application has taken, in bytes.
    taken_bytes: u64,
    /// The packet that was decrypted last.
    opened: Vec<u8>,
    /// What the application sees and has not consumed.
    pub(super) seen: Option<Seen>,
}

/// Packets of one message that an application sees in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The packet behind them.
    pub next: Sequence,
    /// Their payloads together, without the tags of encrypted packets, in bytes.
    pub bytes: usize,
    /// Whether they complete their message.
    pub is_last: bool,
}

impl Receiver {
    pub fn new(reader: RingReader, placement: Option<&Placement>, key: &GroupKey) -> Self {
        let start = reader.read();
        let offload = placement.map_or(Offload::Nic, |placement| placement.offload);
        let encrypted = placement.and_then(|placement| placement.encrypted_session);
        let cipher = encrypted.map(|session| Cipher::new(key, session));
        Self {
            reader,
            offload,
            forwarded: start,
            reported: start,
            stored_at: None,
            cipher,
            taken_bytes: 0,
            opened: Vec::new(),
            seen: None,
        }
    }

    /// The lengths of packets and messages.
    pub fn lengths(&self) -> Lengths {
        Lengths::new(self.reader.stride(), self.cipher.is_some())
    }

    pub const fn stored_at(&self) -> Option<Nanoseconds> {
        self.stored_at
    }

    /// The part of an application's buffer that the node may fill: not with what is encrypted, nor
    /// past slots that others use too.
    ///
    /// # Safety
    /// As for [`Sink::lend`].
    pub unsafe fn lend(&self, sink: &impl Sink) -> Option<LentBuffer> {
        let Self { reader, cipher, taken_bytes, .. } = self;
        let is_own = cipher.is_none() && reader.shared_memory().is_none() && !reader.is_shared();
        // SAFETY: as the caller says.
        let lend = || unsafe { sink.lend(reader.read(), *taken_bytes, reader.stride()) };
        is_own.then(lend).flatten().filter(LentBuffer::has_places)
    }

    /// The application has taken packets of a message, up to this one.
    pub fn on_taken(&mut self, last: &Piece) {
        // In shared memory another process may write anything.
        let taken_bytes = last.offset.wrapping_add(u64::from(last.length));
        self.taken_bytes = if taken_bytes == last.message_length { 0 } else { taken_bytes };
    }

    /// Passes the bytes of one message that are available before `end` to `take`, at most
    /// `bytes_max` and whole packets; returns the next packet, and whether the message is complete.
    ///
    /// # Errors
    /// A packet that is corrupt, and may be had again: then nothing is passed. A packet that does
    /// not decrypt, which ends the group: those before it have been passed.
    pub fn take_message(
        &mut self,
        end: Sequence,
        bytes_max: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(Sequence, bool), Damage> {
        let Self { reader, cipher, opened, .. } = self;
        let tag_bytes = Lengths::new(reader.stride(), cipher.is_some()).tag_bytes();
        let first = reader.read();
        let mut next = first;
        let mut taken_bytes = 0;
        // Full packets and the one behind them are contiguous. Packets in datagrams of a group with
        // streams fill no slot.
        let mut runs = SmallVec::<[(Sequence, usize); 4]>::new();
        let mut has_begun = false;
        let mut is_last = false;
        while next != end && !is_last {
            let piece = reader.piece(next);
            taken_bytes += u64::from(piece.length - tag_bytes.min(piece.length));
            if taken_bytes > bytes_max {
                break;
            }
            if !reader.is_intact(next, &piece) {
                return Err(Damage::Corrupt(next));
            }
            match runs.last_mut().filter(|_| has_begun) {
                Some((_, bytes)) => *bytes += piece.length as usize,
                None => runs.push((next, piece.length as usize)),
            }
            has_begun = piece.length as usize == reader.stride();
            is_last = piece.is_last();
            next += 1;
        }
        if let Some(cipher) = cipher {
            for packet in first.until(next) {
                let Piece { message, offset, message_length: message_bytes, length, .. } =
                    reader.piece(packet);
                let place = Place { message, offset, message_bytes };
                let sealed = reader.bytes(packet, length as usize);
                cipher.open(place, sealed, opened).map_err(|NotSealed| Damage::NotSealed(packet))?;
                if !opened.is_empty() {
                    take(opened);
                }
            }
            return Ok((next, is_last));
        }
        for (mut packet, mut bytes) in runs {
            while bytes > 0 {
                let part = reader.bytes(packet, bytes);
                take(part);
                bytes -= part.len();
                packet += part.len().div_ceil(reader.stride()) as u32;
            }
        }
        Ok((next, is_last))
    }

    /// Finds the packets of one message before `end` whose bytes are contiguous, and shows them to
    /// the application: at least the first one, and only that one if they are encrypted.
    ///
    /// # Errors
    /// The first packet is damaged.
    pub fn see(&mut self, end: Sequence) -> Result<Seen, Damage> {
        let Self { reader, cipher, opened, .. } = self;
        let first = reader.read();
        let Piece { message, offset, message_length, length, .. } = reader.piece(first);
        if !reader.is_intact(first, &reader.piece(first)) {
            return Err(Damage::Corrupt(first));
        }
        let is_last = reader.piece(first).is_last();
        let mut seen = Seen { next: first + 1, bytes: length as usize, is_last };
        if let Some(cipher) = cipher {
            let place = Place { message, offset, message_bytes: message_length };
            let sealed = reader.bytes(first, length as usize);
            cipher.open(place, sealed, opened).map_err(|NotSealed| Damage::NotSealed(first))?;
            seen.bytes = opened.len();
        } else {
            let mut is_full = length as usize == reader.stride();
            while seen.next != end && is_full && !seen.is_last {
                let piece = reader.piece(seen.next);
                let bytes = seen.bytes + piece.length as usize;
                let is_behind = reader.bytes(first, bytes).len() == bytes;
                if !is_behind || !reader.is_intact(seen.next, &piece) {
                    break;
                }
                is_full = piece.length as usize == reader.stride();
                seen = Seen { next: seen.next + 1, bytes, is_last: piece.is_last() };
            }
        }
        self.seen = Some(seen);
        Ok(seen)
    }

    /// The bytes that the application sees; none if it has consumed them.
    pub fn seen_bytes(&self) -> &[u8] {
        match (self.seen, &self.cipher) {
            (None, _) => &[],
            (Some(_), Some(_)) => &self.opened,
            (Some(seen), None) => self.reader.bytes(self.reader.read(), seen.bytes),
        }
    }

    /// Releases all packets unread.
    pub fn release_all(&mut self) {
        self.reader.release(self.reader.written());
    }
}

#[cfg(test)]
mod tests {
    use treecast_proto::{GroupId, PayloadChecksum, SessionId};
    use treecast_shm::ring::new_ring;

    use super::*;

    #[test]
    fn a_packet_that_somebody_without_the_key_has_written_is_not_taken() {
        let (key, session) = (GroupKey::new("secret", GroupId(1)), SessionId([1; 16]));
        let start = Sequence(u32::MAX);
        let (mut writer, reader) = new_ring(4, 512, start);
        let mut receiver = Receiver::new(reader, None, &key);
        receiver.cipher = Some(Cipher::new(&key, session));
        let message_bytes = 512 + 20;
        let mut write = |number: u32, bytes: &[u8]| {
            let packet = start + number;
            let (offset, length) = (u64::from(number) * 512, bytes.len() as u32);
            let checksum = PayloadChecksum::crc(bytes);
            writer.write(packet, bytes);
            writer.describe(
                packet,
                Piece { message: 3, offset, length, message_length: message_bytes, checksum },
            );
            writer.publish(packet + 1);
        };
        let mut sealed = vec![7; 496];
        Cipher::new(&key, session).seal(Place { message: 3, offset: 0, message_bytes }, &mut sealed);
        write(0, &sealed);
        // The second packet is the beginning of the first one.
        write(1, &sealed[..20]);
        let mut taken = Vec::new();
        let mut take = |end: u32, bytes_max| {
            taken.clear();
            let outcome =
                receiver.take_message(start + end, bytes_max, |bytes| taken.extend_from_slice(bytes));
            (outcome, taken.clone())
        };
        assert_eq!(take(2, 10_000), (Err(Damage::NotSealed(start + 1)), vec![7; 496]));
        assert_eq!(take(1, 10_000), (Ok((start + 1, false)), vec![7; 496]));
        assert_eq!(take(2, 496), (Ok((start + 1, false)), vec![7; 496]));
        assert_eq!(take(2, 495), (Ok((start, false)), Vec::new()));
    }
}
