//! The buffers of applications for their messages, which nodes may use past the slots, for streams.
//!
//! At a member what comes goes from the socket into the buffer of the call that waits, and from
//! there to the children. Bytes of other packets are copied there from their slots, in order, so
//! that a packet's place follows from its number. At the root what a call sends goes from its
//! buffer into the sockets. What members may still lack is copied into the slots.

#![expect(unsafe_code, reason = "the kernel reads and writes buffers, in calls of the node")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use treecast_proto::{Piece, Sequence};

/// The buffer of an application for a message, of which the first bytes are there.
#[derive(Debug)]
pub struct MessageBuffer<'a> {
    first: *mut u8,
    bytes: usize,
    filled: usize,
    is_for_parts: bool,
    buffer: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> MessageBuffer<'a> {
    /// An empty one.
    ///
    /// ```
    /// use treecast_shm::message_buffer::MessageBuffer;
    ///
    /// let mut bytes = *b"-----";
    /// let mut buffer = MessageBuffer::new(&mut bytes);
    /// buffer.append(b"abc");
    /// assert_eq!(buffer.filled(), 3);
    /// assert_eq!(&bytes, b"abc--");
    /// ```
    pub const fn new(buffer: &'a mut [u8]) -> Self {
        Self::of(buffer.as_mut_ptr(), buffer.len())
    }

    /// The same in memory that is not initialized: only bytes that are written are.
    pub const fn uninit(buffer: &'a mut [MaybeUninit<u8>]) -> Self {
        Self::of(buffer.as_mut_ptr().cast(), buffer.len())
    }

    /// The memory that a vector has allocated behind its elements.
    ///
    /// # Safety
    /// The vector outlives the result, and is not used meanwhile.
    pub unsafe fn behind(vector: &mut Vec<u8>) -> MessageBuffer<'static> {
        let spare = vector.spare_capacity_mut();
        MessageBuffer::of(spare.as_mut_ptr().cast(), spare.len())
    }

    const fn of(first: *mut u8, bytes: usize) -> Self {
        Self { first, bytes, filled: 0, is_for_parts: false, buffer: PhantomData }
    }

    /// A buffer for a part of a message, which may be longer.
    #[must_use]
    pub const fn for_parts(self) -> Self {
        Self { is_for_parts: true, ..self }
    }

    /// How many bytes are there.
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn append(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes - self.filled, "the message is longer than its buffer");
        // SAFETY: there is room, in memory that is borrowed mutably as long as this lives.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.first.add(self.filled), bytes.len()) };
        self.filled += bytes.len();
    }

    /// The next bytes have been stored by the node.
    ///
    /// # Safety
    /// They have.
    pub const unsafe fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Lends what is not filled to the node, for packets of `stride` bytes from `next` on, which
    /// begins at this offset in its message: as many as there is room for.
    ///
    /// # Safety
    /// The node has given the buffer back before it goes, with the part of a packet that it may
    /// have there ([`LentBuffer::has_part`]).
    pub const unsafe fn lend(&self, next: Sequence, offset: u64, stride: usize) -> LentBuffer {
        let bytes = self.bytes - self.filled;
        // A buffer for a whole message has it from its beginning on.
        let has_begin = self.is_for_parts || offset == self.filled as u64;
        LentBuffer {
            first: self.first.wrapping_add(self.filled),
            bytes,
            stride,
            next,
            offset,
            packets: if has_begin { bytes / stride } else { 0 },
            is_for_parts: self.is_for_parts,
            stored: (next, next),
            has_part: false,
        }
    }
}

/// A buffer that an application lends to its node, for as long as its call takes.
#[derive(Debug, Clone, Copy)]
pub struct LentBuffer {
    first: *mut u8,
    bytes: usize,
    stride: usize,
    /// The packet whose place is first, and where it begins in its message.
    next: Sequence,
    offset: u64,
    /// The number of packets that have places.
    packets: usize,
    is_for_parts: bool,
    /// The packets that are stored: from the first to before the second.
    stored: (Sequence, Sequence),
    /// Whether the node has a part of a packet here.
    pub has_part: bool,
}

// SAFETY: it is the address of memory that belongs to the call that has lent it. Whoever writes
// there by it has the node's lock, and the call gets the buffer back under that lock.
unsafe impl Send for LentBuffer {}

impl LentBuffer {
    /// Whether some packet has a place.
    pub const fn has_places(&self) -> bool {
        self.packets > 0
    }

    /// The place of a packet, if it has one, of as many bytes as a slot.
    pub fn place(&self, packet: Sequence) -> Option<*mut u8> {
        let number = usize::try_from(packet.distance_from(self.next)).ok().filter(|&at| at < self.packets)?;
        Some(self.first.wrapping_add(number * self.stride))
    }

    /// Whether a payload stays where it was read, since that is its place. The packets that follow
    /// have places if they belong to the same message; and none has, if that does not fit a buffer
    /// that is for all of it.
    ///
    /// Another thread may have taken packets from the stream since the buffer was lent. So a packet
    /// may be of a later message, which is not the one that the buffer is for: it begins earlier in
    /// its message than its place says.
    pub fn accept(&mut self, packet: Sequence, piece: &Piece, payload: *const u8) -> bool {
        let Some(place) = self.place(packet) else { return false };
        let number = packet.distance_from(self.next) as usize;
        let from_first = number * self.stride;
        let is_of_message = piece.offset == self.offset + from_first as u64;
        let rest_bytes = piece.message_length - piece.offset;
        let fits = self.is_for_parts || rest_bytes <= (self.bytes - from_first) as u64;
        if !is_of_message || !fits {
            self.packets = 0;
            return false;
        }
        if piece.is_last() {
            self.packets = number;
        }
        let (from, end) = self.stored;
        // A packet without payload, such as that which closes the group, has nothing to store.
        let is_stored = piece.length > 0 && place.cast_const() == payload && (from == end || end == packet);
        if is_stored {
            self.stored = (if from == end { packet } else { from }, packet + 1);
        }
        is_stored
    }

    /// Where the payload of a packet is that is stored here.
    pub const fn stored_at(&self, packet: Sequence) -> *const u8 {
        self.first.wrapping_add(packet.distance_from(self.next) as usize * self.stride)
    }

    /// Whether the payload of a packet is stored here.
    pub const fn has_stored(&self, packet: Sequence) -> bool {
        let (from, end) = self.stored;
        !packet.is_before(from) && packet.is_before(end)
    }

    /// The packets that are stored here, whether they are in their slots too or not.
    pub const fn stored(&self) -> Range<Sequence> {
        self.stored.0..self.stored.1
    }
}

/// The payloads of packets in the buffer of a root's application, for one call.
#[derive(Debug, Clone, Copy)]
pub struct LentPayloads {
    first: *const u8,
    bytes: usize,
    stride: usize,
    packet: Sequence,
}

// SAFETY: it is the address of memory that the call which has lent it borrows. Whoever reads there
// by it has the node's lock, and the call gets the buffer back under that lock.
unsafe impl Send for LentPayloads {}

impl LentPayloads {
    /// The payloads of packets from this one on, of `stride` bytes each but the last, one behind
    /// the other.
    ///
    /// # Safety
    /// The node has given them back before the bytes go.
    pub const unsafe fn new(packet: Sequence, bytes: &[u8], stride: usize) -> Self {
        Self { first: bytes.as_ptr(), bytes: bytes.len(), stride, packet }
    }

    /// The address of the payload of a packet, if it is here.
    pub fn of(&self, packet: Sequence) -> Option<*const u8> {
        let number = usize::try_from(packet.distance_from(self.packet)).ok()?;
        let offset = number.checked_mul(self.stride).filter(|offset| *offset < self.bytes)?;
        Some(self.first.wrapping_add(offset))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use treecast_proto::PayloadChecksum;

    use super::*;

    const STRIDE: usize = 10;

    fn piece(offset: u64, length: u32, message_length: u64) -> Piece {
        Piece { message: 1, offset, length, message_length, checksum: PayloadChecksum(0) }
    }

    fn lend(buffer: &MessageBuffer<'_>, next: Sequence, offset: u64) -> LentBuffer {
        // SAFETY: nobody uses it when the bytes are gone.
        unsafe { buffer.lend(next, offset, STRIDE) }
    }

    #[test]
    fn packets_of_a_message_have_places_behind_what_is_there() {
        let mut bytes = [0; 35];
        let start = bytes.as_ptr();
        let mut buffer = MessageBuffer::new(&mut bytes);
        buffer.append(&[1; STRIDE]);
        let first = Sequence(u32::MAX);
        let mut lent = lend(&buffer, first, 10);
        let place = |lent: &LentBuffer, number: u32| lent.place(first + number).map(<*mut u8>::cast_const);
        let at = |bytes: usize| start.wrapping_add(bytes);
        assert_eq!((place(&lent, 0), place(&lent, 1)), (Some(at(10)), Some(at(20))));
        assert_eq!((place(&lent, 2), lent.place(first - 1)), (None, None));
        assert!(lent.accept(first, &piece(10, 10, 33), at(10)));
        // It was read elsewhere.
        assert!(!lent.accept(first + 1, &piece(20, 10, 33), at(0)));
        assert_eq!(lent.stored(), first..first + 1);
        assert!(!lent.accept(first + 2, &piece(30, 3, 33), at(30)));
    }

    #[test]
    fn packets_behind_the_message_have_no_places() {
        let mut bytes = [0; 100];
        let start = bytes.as_ptr();
        let mut lent = lend(&MessageBuffer::new(&mut bytes), Sequence(7), 0);
        assert!(lent.accept(Sequence(7), &piece(0, 10, 13), start));
        assert!(lent.accept(Sequence(8), &piece(10, 3, 13), start.wrapping_add(10)));
        assert_eq!(lent.stored(), Sequence(7)..Sequence(9));
        assert_eq!(lent.place(Sequence(9)), None);
        assert!(!lent.accept(Sequence(9), &piece(0, 1, 1), start.wrapping_add(20)));
    }

    /// Another thread has stored a message of one packet in a slot meanwhile.
    #[test]
    fn packets_of_another_message_do_not_stay() {
        let mut bytes = [0; 100];
        let start = bytes.as_ptr();
        let mut lent = lend(&MessageBuffer::new(&mut bytes), Sequence(7), 0);
        assert!(!lent.accept(Sequence(8), &piece(0, 10, 13), start.wrapping_add(10)));
        assert_eq!(lent.place(Sequence(9)), None);
        assert!(!lend(&MessageBuffer::new(&mut bytes), Sequence(7), 0).accept(
            Sequence(7),
            &piece(0, 0, 0),
            start
        ));
        // A packet that is not full is followed by one that is not where its place is.
        let mut lent = lend(&MessageBuffer::new(&mut bytes), Sequence(7), 0);
        assert!(lent.accept(Sequence(7), &piece(0, 5, 40), start));
        assert!(!lent.accept(Sequence(8), &piece(5, 10, 40), start.wrapping_add(10)));
        assert_eq!(lent.stored(), Sequence(7)..Sequence(8));
    }

    #[test]
    fn a_message_that_does_not_fit_has_no_places() {
        let mut bytes = [0; 35];
        let start = bytes.as_ptr();
        let mut lent = lend(&MessageBuffer::new(&mut bytes), Sequence(7), 0);
        assert!(!lent.accept(Sequence(7), &piece(0, 10, 36), start));
        let mut part = lend(&MessageBuffer::new(&mut bytes).for_parts(), Sequence(7), 0);
        assert!(part.accept(Sequence(7), &piece(0, 10, 36), start));
        assert_eq!(lent.place(Sequence(8)), None);
        assert_eq!(lent.stored(), Sequence(7)..Sequence(7));
    }

    #[test]
    fn a_vector_is_filled_behind_its_elements() {
        let mut vector = Vec::with_capacity(5);
        vector.push(1);
        // SAFETY: the vector is used when this is gone.
        let mut buffer = unsafe { MessageBuffer::behind(&mut vector) };
        buffer.append(&[2, 3]);
        let filled = buffer.filled();
        // SAFETY: so many bytes are written.
        unsafe { vector.set_len(1 + filled) };
        assert_eq!(vector, [1, 2, 3]);
    }

    #[test]
    fn payloads_are_found_by_the_numbers_of_their_packets() {
        let bytes = [0; 25];
        // SAFETY: the bytes outlive it.
        let payloads = unsafe { LentPayloads::new(Sequence(u32::MAX), &bytes, STRIDE) };
        let of = |number| payloads.of(Sequence(number)).map(|at| at.addr() - bytes.as_ptr().addr());
        assert_eq!([u32::MAX, 0, 1, 2].map(of), [Some(0), Some(10), Some(20), None]);
        assert_eq!(of(u32::MAX - 1), None);
    }

    #[test]
    #[should_panic(expected = "longer than its buffer")]
    fn nothing_is_written_behind_the_buffer() {
        MessageBuffer::new(&mut [0; 3]).append(&[0; 4]);
    }
}
