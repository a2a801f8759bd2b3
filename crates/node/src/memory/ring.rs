//! The ring of slots that a node and an application share: a single-producer, single-consumer queue of packets.
//!
//! At the root the application writes and the node reads; at another member the node writes and the application reads. Packet n is
//! in slot n modulo the number of slots, as in the protocol. Full payloads follow one another without gaps, so that a message can be
//! read in place. Where several processes read, they are the reading side together (`readers.rs`).

#![expect(unsafe_code, reason = "two sides share memory without locks")]

use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::{fmt, ptr, slice};

use treecast_ebpf::SlotMemory;
use treecast_proto::{PayloadChecksum, Piece, Sequence};

use super::readers::Readers;
#[cfg(not(feature = "loom"))]
use crate::clock::now;

use crate::sync::{AtomicU32, Ordering};

/// The slots, and the two numbers that say which side owns which of them.
///
/// `read <= written <= read + slots`. The reader owns the slots of packets from `read` to before `written`, and the writer owns all
/// others. The writer stores `written` with release and the reader loads it with acquire; for `read` it is the other way round. So
/// everything that a side has done to a slot happens before the other side gets it.
///
/// The other side may be in another process and may write anything into shared memory. So each side keeps its own number privately,
/// and accepts the other's only if it does not go back and stays within the slots. An invalid number is ignored, and reported by
/// [`RingWriter::is_valid`] and [`RingReader::is_valid`].
struct Ring {
    slots: u32,
    /// The longest payload, in bytes.
    stride: usize,
    memory: Memory,
}

/// The further size of a ring in shared memory, in bytes. Its sides are parts of what has them.
pub const BYTES: usize = size_of::<Ring>();

enum Memory {
    /// Private to this process; payloads follow one another without gaps.
    Own {
        bytes: Box<[UnsafeCell<u8>]>,
        pieces: Box<[UnsafeCell<Piece>]>,
        written: AtomicU32,
        read: AtomicU32,
    },
    /// Shared with the kernel's packet path or with another process. While a group is handed off, the kernel's packet path is the
    /// node's side of the ring and follows the same rules (bpf/receive.h): it writes only slots that the reader does not own, and
    /// advances `written` when they are complete.
    #[cfg(not(feature = "loom"))]
    Shared(SlotMemory),
}

// SAFETY: only the side that owns a slot accesses its bytes and piece, as described above. There is one value of each side, it is not
// cloned, and it has to be borrowed mutably to write a slot or to pass one on.
unsafe impl Sync for Ring {}
// SAFETY: no part of it is bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn written(&self) -> Sequence {
        Sequence(self.written_word().load(Ordering::Acquire))
    }

    fn read(&self) -> Sequence {
        Sequence(self.read_word().load(Ordering::Acquire))
    }

    fn written_word(&self) -> &AtomicU32 {
        match &self.memory {
            Memory::Own { written, .. } => written,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.written(),
        }
    }

    fn read_word(&self) -> &AtomicU32 {
        match &self.memory {
            Memory::Own { read, .. } => read,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.read(),
        }
    }

    const fn slot(&self, packet: Sequence) -> usize {
        (packet.0 & (self.slots - 1)) as usize
    }

    fn address(&self, slot: usize) -> *mut u8 {
        match &self.memory {
            Memory::Own { bytes, .. } => bytes[slot * self.stride].get(),
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.payload(Sequence(slot as u32)),
        }
    }

    /// The number of contiguous bytes from the beginning of a slot on.
    const fn contiguous_bytes(&self, slot: usize) -> usize {
        match &self.memory {
            Memory::Own { .. } => (self.slots as usize - slot) * self.stride,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(_) => self.stride,
        }
    }
}

impl Ring {
    const fn shared_memory(&self) -> Option<&SlotMemory> {
        match &self.memory {
            Memory::Own { .. } => None,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => Some(memory),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read, written) = (self.read(), self.written());
        formatter
            .debug_struct("Ring")
            .field("slots", &self.slots)
            .field("read", &read)
            .field("written", &written)
            .finish_non_exhaustive()
    }
}

/// An empty ring in private memory: `slots`, a power of two, of `stride` bytes each; the first packet is `start`.
pub fn new_ring(slots: u32, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    assert!(
        slots.is_power_of_two() && stride > 0,
        "the number of slots is a power of two, and slots are not empty"
    );
    let empty = Piece { message: 0, offset: 0, length: 0, message_length: 0, checksum: PayloadChecksum(0) };
    let memory = Memory::Own {
        bytes: zeroed_bytes(slots as usize * stride),
        pieces: (0..slots).map(|_| UnsafeCell::new(empty)).collect(),
        written: AtomicU32::new(start.0),
        read: AtomicU32::new(start.0),
    };
    sides(Ring { slots, stride, memory }, start)
}

/// An empty ring in memory that the kernel's packet path or another process shares.
///
/// # Panics
/// If payloads of `stride` bytes do not fit the slots: that would be our own bug.
#[cfg(not(feature = "loom"))]
pub fn new_shared_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    memory.written().store(start.0, Ordering::Release);
    memory.read().store(start.0, Ordering::Release);
    attach_ring(memory, stride, start)
}

/// Attaches to an existing ring in memory that another process has passed; its first packet was `start`.
///
/// # Panics
/// As [`new_shared_ring`].
#[cfg(not(feature = "loom"))]
pub fn attach_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    assert!(stride > 0 && stride <= memory.payload_bytes_max(), "payloads of {stride} bytes fit the slots");
    sides(Ring { slots: memory.count(), stride, memory: Memory::Shared(memory) }, start)
}

/// Loom models use private memory.
#[cfg(feature = "loom")]
pub fn new_shared_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    new_ring(memory.count(), stride, start)
}

/// Loom models use private memory.
#[cfg(feature = "loom")]
pub fn attach_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    new_ring(memory.count(), stride, start)
}

fn sides(ring: Ring, start: Sequence) -> (RingWriter, RingReader) {
    let ring = Arc::new(ring);
    let peer = || PeerNumber { last: Cell::new(start), is_valid: Cell::new(true) };
    (
        RingWriter { ring: Arc::clone(&ring), written: start, read: peer(), readers: None },
        RingReader { ring, written: peer(), read: start, place: None },
    )
}

/// The place of a process among those that read the same slots.
#[derive(Debug)]
pub struct ReaderPlace {
    pub readers: Arc<Readers>,
    pub number: usize,
    /// Whether the slots are those of the root: its node frees them too, and the root itself takes the least of both.
    pub is_at_root: bool,
}

/// The other side's number, as far as it was valid.
#[derive(Debug)]
struct PeerNumber {
    last: Cell<Sequence>,
    is_valid: Cell<bool>,
}

impl PeerNumber {
    /// The other side's number, if it is from the last one to `end`; if not, the last one.
    fn accept(&self, number: Sequence, end: Sequence) -> Sequence {
        let last = self.last.get();
        if number.0.wrapping_sub(last.0) <= end.0.wrapping_sub(last.0) {
            self.last.set(number);
        } else {
            self.is_valid.set(false);
        }
        self.last.get()
    }
}

/// The writing side of a ring.
#[derive(Debug)]
pub struct RingWriter {
    ring: Arc<Ring>,
    written: Sequence,
    read: PeerNumber,
    /// At the root: the other processes of its host that read the slots.
    readers: Option<Arc<Readers>>,
}

/// Where the slots of a ring are. Who writes by it has to know that they are free.
#[derive(Debug)]
pub struct SlotAddresses(Arc<Ring>);

impl SlotAddresses {
    /// The address of the slot of a packet, and its length in bytes.
    pub fn of(&self, packet: Sequence) -> (*mut u8, usize) {
        (self.0.address(self.0.slot(packet)), self.0.stride)
    }
}

/// The reading side of a ring.
#[derive(Debug)]
pub struct RingReader {
    ring: Arc<Ring>,
    written: PeerNumber,
    read: Sequence,
    /// Where several processes read the slots.
    place: Option<ReaderPlace>,
}

impl RingWriter {
    /// The first packet that is not written.
    pub const fn written(&self) -> Sequence {
        self.written
    }

    /// At the root: other processes of its host read the slots too.
    pub fn with_readers(self, readers: Option<Arc<Readers>>) -> Self {
        Self { readers, ..self }
    }

    /// The other processes of the root's host that read the slots.
    pub const fn readers(&self) -> Option<&Arc<Readers>> {
        self.readers.as_ref()
    }

    /// The first packet that is not read.
    pub fn read(&self) -> Sequence {
        let read = self.ring.read();
        let read = self.least_read(read);
        self.read.accept(read, self.written)
    }

    /// The first packet that the node, which frees the slots before `freed`, or another process of this host has not read.
    fn least_read(&self, freed: Sequence) -> Sequence {
        let least = self.readers.as_ref().and_then(|readers| readers.least_read(self.read.last.get()));
        least.filter(|least| least.is_before(freed)).unwrap_or(freed)
    }

    /// At the root: what the node has freed. Another process of this host may still read it.
    pub fn freed(&self) -> Sequence {
        self.ring.read()
    }

    /// Whether all numbers of the reader were valid.
    pub const fn is_valid(&self) -> bool {
        self.read.is_valid.get()
    }

    /// Continues after the kernel's packet path, which was this side meanwhile.
    pub fn resume(&mut self, written: Sequence, read: Sequence) {
        self.written = written;
        self.read.last.set(read);
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.ring.slots
    }

    /// The number of free slots.
    pub fn room(&self) -> u32 {
        self.ring.slots - self.written().distance_from(self.read()) as u32
    }

    /// The longest payload, in bytes.
    pub fn stride(&self) -> usize {
        self.ring.stride
    }

    /// The ring's memory, if it is shared.
    pub fn shared_memory(&self) -> Option<&SlotMemory> {
        self.ring.shared_memory()
    }

    /// Copies bytes into the slot of a packet that is not published, which need not be the next one.
    ///
    /// # Panics
    /// If the reader owns the slot, or the bytes do not fit: that would be our own bug.
    pub fn write(&mut self, packet: Sequence, bytes: &[u8]) {
        assert!(
            self.owns(packet) && bytes.len() <= self.ring.stride,
            "the writer does not own packet {packet}"
        );
        let first = self.ring.address(self.ring.slot(packet));
        // SAFETY: the slot has `stride` bytes from `first` on, all in one allocation, and the writer, which is borrowed mutably,
        // owns it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len()) };
    }

    /// Replaces the corrupt payload of a packet that is published and not read by the right one. Its reader waits for that, in shared
    /// memory, where alone a payload may be published before its checksum is verified.
    ///
    /// # Panics
    /// If the bytes do not fit: that would be our own bug.
    pub fn repair(&mut self, packet: Sequence, bytes: &[u8]) {
        assert!(bytes.len() <= self.ring.stride, "packet {packet} does not fit");
        #[cfg(not(feature = "loom"))]
        if let Memory::Shared(memory) = &self.ring.memory {
            let first = self.ring.address(self.ring.slot(packet));
            // SAFETY: the slot has `stride` bytes from `first` on, all in one allocation. The reader that has asked for the packet reads
            // no byte of it before the flag is set; another process that reads it meanwhile finds a wrong checksum, and asks too.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len()) };
            memory.set_verified(packet);
        }
    }

    /// The slots, for packets that are written where they will be.
    pub fn slot_addresses(&self) -> SlotAddresses {
        SlotAddresses(Arc::clone(&self.ring))
    }

    /// Whether a packet is published.
    pub fn is_published(&self, packet: Sequence) -> bool {
        packet.is_before(self.written)
    }

    /// The first bytes in the slot of a packet that is not published.
    ///
    /// # Panics
    /// If the reader owns the slot, or it has fewer bytes.
    pub fn bytes(&self, packet: Sequence, length: usize) -> &[u8] {
        assert!(self.owns(packet) && length <= self.ring.stride, "the writer does not own packet {packet}");
        // SAFETY: as in `write`, and the writer writes no byte while this borrow of it lasts.
        unsafe { slice::from_raw_parts(self.ring.address(self.ring.slot(packet)), length) }
    }

    /// Describes the content of a slot of a packet that is not published.
    ///
    /// # Panics
    /// If the reader owns the slot.
    pub fn describe(&mut self, packet: Sequence, piece: Piece) {
        assert!(self.owns(packet), "the writer does not own packet {packet}");
        match &self.ring.memory {
            // SAFETY: as in `write`.
            Memory::Own { pieces, .. } => unsafe { *pieces[self.ring.slot(packet)].get() = piece },
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.describe(packet, &piece, now()),
        }
    }

    /// Passes all packets before this one to the reader; their bytes and pieces are complete.
    ///
    /// # Panics
    /// If `upto` goes back, or beyond the free slots.
    pub fn publish(&mut self, upto: Sequence) {
        let is_valid =
            !upto.is_before(self.written()) && upto.distance_from(self.read()) <= self.ring.slots as i32;
        assert!(is_valid, "the writer does not own the packets before {upto}");
        self.written = upto;
        self.ring.written_word().store(upto.0, Ordering::Release);
    }

    /// The address of a slot's payload. Only the writer writes it, so it may be read while the writer does not write.
    pub fn address(&self, slot: u32) -> *const u8 {
        self.ring.address(slot as usize)
    }

    fn owns(&self, packet: Sequence) -> bool {
        !packet.is_before(self.written()) && packet.is_before(self.read() + self.ring.slots)
    }
}

impl RingReader {
    /// One of several processes that read the slots.
    pub fn at_place(self, place: Option<ReaderPlace>) -> Self {
        Self { place, ..self }
    }

    /// Whether several processes read the slots.
    pub const fn is_shared(&self) -> bool {
        self.place.is_some()
    }

    /// Where several processes read the slots, [`RingReader::release`] only notes what this one has read. This passes back to the writer what
    /// all have read; says whether that is so much more that the node has to know: another quarter of the slots, or at the root that a
    /// process polls a descriptor. Unless it `is_last`, it does nothing before an eighth of the slots is read.
    pub fn settle(&self, is_last: bool) -> bool {
        let Some(ReaderPlace { readers, is_at_root, .. }) = &self.place else { return false };
        if *is_at_root {
            readers.notify_room();
            return readers.has_watchers();
        }
        let unsettled = self.read.distance_from(self.ring.read()) as u32;
        if !is_last && unsettled < self.ring.slots / 8 {
            return false;
        }
        let (before, after) = readers.advance_read(self.ring.read_word());
        let quarter = self.ring.slots / 4;
        before.0 / quarter != after.0 / quarter
    }

    /// The first packet that is not written.
    pub fn written(&self) -> Sequence {
        self.written.accept(self.ring.written(), self.read + self.ring.slots)
    }

    /// The first packet that is not read.
    pub const fn read(&self) -> Sequence {
        self.read
    }

    /// Whether the writer has published more since the last call of [`RingReader::written`].
    pub fn has_new(&self) -> bool {
        let last = self.written.last.get();
        self.written() != last
    }

    /// Whether all numbers of the writer were valid.
    pub const fn is_valid(&self) -> bool {
        self.written.is_valid.get()
    }

    /// Continues after the kernel's packet path, which was this side meanwhile.
    pub fn resume(&mut self, written: Sequence, read: Sequence) {
        self.written.last.set(written);
        self.read = read;
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.ring.slots
    }

    /// The longest payload, in bytes.
    pub fn stride(&self) -> usize {
        self.ring.stride
    }

    /// The ring's memory, if it is shared.
    pub fn shared_memory(&self) -> Option<&SlotMemory> {
        self.ring.shared_memory()
    }

    /// The content of the slot of a packet that is written and not read.
    ///
    /// # Panics
    /// If the reader does not own the slot.
    pub fn piece(&self, packet: Sequence) -> Piece {
        assert!(self.owns(packet), "the reader does not own packet {packet}");
        match &self.ring.memory {
            // SAFETY: the reader owns the slot, so the other side does not write it.
            Memory::Own { pieces, .. } => unsafe { *pieces[self.ring.slot(packet)].get() },
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.piece(packet),
        }
    }

    /// Whether the payload of a packet that is written and not read is known to have its checksum.
    #[cfg_attr(feature = "loom", expect(unused_variables, reason = "models use private memory"))]
    pub fn is_verified(&self, packet: Sequence) -> bool {
        match &self.ring.memory {
            Memory::Own { .. } => true,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => memory.is_verified(packet),
        }
    }

    /// Whether the payload of a packet that is written and not read has its checksum. It is computed here only if it was not before.
    ///
    /// # Panics
    /// If the reader does not own the slot.
    #[cfg_attr(feature = "loom", expect(unused_variables, reason = "models use private memory"))]
    pub fn is_intact(&self, packet: Sequence, piece: &Piece) -> bool {
        match &self.ring.memory {
            // Only the protocol writes there, which verifies every packet.
            Memory::Own { .. } => true,
            #[cfg(not(feature = "loom"))]
            Memory::Shared(memory) => {
                memory.is_verified(packet)
                    || PayloadChecksum::crc(self.bytes(packet, piece.length as usize)) == piece.checksum
            }
        }
    }

    /// The payload bytes of consecutive packets, from a packet that is written and not read on: as many of `length` as are
    /// contiguous. All packets but the last have to be as long as a slot.
    ///
    /// # Panics
    /// If the reader does not own one of the slots.
    pub fn bytes(&self, packet: Sequence, length: usize) -> &[u8] {
        let slot = self.ring.slot(packet);
        let length = length.min(self.ring.contiguous_bytes(slot));
        let last = packet + (length.max(1) - 1) as u32 / self.ring.stride as u32;
        assert!(self.owns(packet) && self.owns(last), "the reader does not own packet {packet}");
        // SAFETY: the bytes are in slots up to that of `last`, all in one allocation. The reader owns these, and only `release`,
        // which borrows the reader mutably and so ends this borrow, passes them back.
        unsafe { slice::from_raw_parts(self.ring.address(slot), length) }
    }

    /// Passes the slots of all packets before this one back to the writer.
    ///
    /// # Panics
    /// If `upto` goes back, or beyond the written packets.
    pub fn release(&mut self, upto: Sequence) {
        let is_valid = !upto.is_before(self.read()) && !self.written().is_before(upto);
        assert!(is_valid, "the reader does not own the packets before {upto}");
        self.read = upto;
        if let Some(ReaderPlace { readers, number, .. }) = &self.place {
            readers.places()[*number].set_read(upto);
            return;
        }
        self.ring.read_word().store(upto.0, Ordering::Release);
    }

    /// The address of a slot's payload. The writer does not write it while the reader owns it.
    pub fn address(&self, slot: u32) -> *const u8 {
        self.ring.address(slot as usize)
    }

    fn owns(&self, packet: Sequence) -> bool {
        !packet.is_before(self.read()) && packet.is_before(self.written())
    }
}

/// Zeroed memory, whose pages the system allocates at the first access.
fn zeroed_bytes(length: usize) -> Box<[UnsafeCell<u8>]> {
    let bytes = Box::into_raw(vec![0_u8; length].into_boxed_slice());
    // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and `Box::into_raw` has released the box.
    unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn piece(length: u32) -> Piece {
        Piece {
            message: 1,
            offset: 0,
            length,
            message_length: u64::from(length),
            checksum: PayloadChecksum(0),
        }
    }

    #[test]
    fn packets_are_read_as_written_across_the_wrap_around() {
        let first = Sequence(u32::MAX - 1);
        let (mut writer, mut reader) = new_ring(4, 8, first);
        for number in 0..20_u32 {
            let packet = first + number;
            writer.write(packet, &number.to_be_bytes());
            writer.describe(packet, piece(4));
            writer.publish(packet + 1);
            assert_eq!(
                (reader.bytes(packet, 4), reader.piece(packet)),
                (&number.to_be_bytes()[..], piece(4))
            );
            assert_eq!(writer.room(), 3);
            reader.release(packet + 1);
        }
    }

    #[test]
    fn a_later_packet_may_be_written_first() {
        let (mut writer, reader) = new_ring(4, 8, Sequence(0));
        writer.write(Sequence(2), b"later");
        writer.write(Sequence(0), b"0");
        writer.write(Sequence(1), b"1");
        writer.publish(Sequence(3));
        assert_eq!(reader.bytes(Sequence(2), 5), b"later");
    }

    #[test]
    fn consecutive_packets_are_contiguous_up_to_the_last_slot() {
        let (mut writer, mut reader) = new_ring(4, 2, Sequence(0));
        writer.publish(Sequence(2));
        reader.release(Sequence(2));
        for (packet, bytes) in [(2, b"ab"), (3, b"cd"), (4, b"ef")] {
            writer.write(Sequence(packet), bytes);
        }
        writer.publish(Sequence(5));
        assert_eq!(reader.bytes(Sequence(2), 6), b"abcd");
        assert_eq!(reader.bytes(Sequence(4), 2), b"ef");
    }

    #[test]
    fn invalid_numbers_of_the_other_side_are_ignored() {
        let (mut writer, mut reader) = new_ring(4, 2, Sequence(0));
        writer.publish(Sequence(3));
        for invalid in [4, 9, u32::MAX, 1 << 31] {
            writer.ring.read_word().store(invalid, Ordering::Release);
            assert_eq!((writer.read(), writer.room(), writer.is_valid()), (Sequence(0), 1, false));
        }
        reader.release(Sequence(2));
        assert_eq!(writer.read(), Sequence(2));
        for invalid in [7, 0, u32::MAX] {
            reader.ring.written_word().store(invalid, Ordering::Release);
            assert_eq!((reader.written(), reader.is_valid()), (Sequence(3), false));
        }
        writer.publish(Sequence(4));
        assert_eq!(reader.written(), Sequence(4));
    }

    #[test]
    #[should_panic(expected = "the writer does not own")]
    fn a_slot_that_the_reader_owns_is_not_written() {
        let (mut writer, _reader) = new_ring(2, 8, Sequence(0));
        writer.publish(Sequence(2));
        writer.write(Sequence(2), b"x");
    }

    #[test]
    #[should_panic(expected = "the reader does not own")]
    fn a_slot_that_the_writer_owns_is_not_read() {
        let (mut writer, reader) = new_ring(4, 2, Sequence(0));
        writer.publish(Sequence(2));
        reader.bytes(Sequence(0), 5);
    }
}

#[cfg(feature = "loom")]
pub mod models {
    use super::{Sequence, new_ring};

    /// A reader finds every written packet whole.
    pub fn written_packets_are_read_whole() {
        loom::model(|| {
            let (mut writer, mut reader) = new_ring(2, 1, Sequence(0));
            let other = loom::thread::spawn(move || {
                for number in 0..3 {
                    while writer.room() == 0 {
                        loom::thread::yield_now();
                    }
                    writer.write(Sequence(number), &[number as u8 + 1]);
                    writer.publish(Sequence(number + 1));
                }
            });
            for number in 0..3 {
                while reader.written() == Sequence(number) {
                    loom::thread::yield_now();
                }
                assert_eq!(reader.bytes(Sequence(number), 1), &[number as u8 + 1]);
                reader.release(Sequence(number + 1));
            }
            other.join().unwrap();
        });
    }
}
