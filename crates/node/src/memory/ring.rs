//! Slots in memory that a node and an application share: packets go in at one end and come out at the other.
//!
//! At a member other than the root the node writes and the application reads; at the root the application writes and the
//! node reads. Slots are as in the protocol: packet n lies in slot n modulo their number, and payloads of full length follow
//! one another without gaps, so that a message can be read where it lies.

#![expect(unsafe_code, reason = "two sides share memory without locks")]

use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::{fmt, ptr, slice};

use treecast_ebpf::SlotMemory;
use treecast_proto::{PayloadChecksum, Piece, Sequence};

#[cfg(not(loom))]
use crate::clock::now;

use crate::sync::{AtomicU32, Ordering};

/// Slots, and who may touch which.
///
/// `read <= written <= read + slots`. Slots of packets from `read` to before `written` belong to the reader, and nobody writes
/// them; all others belong to the writer alone. `written` is stored by the writer with release and loaded by the reader with
/// acquire, and `read` the other way round, so that what a side has done to a slot is done before the other one gets it.
///
/// The other side may be in another process, which may write anything into what is shared. So each side keeps its own number to
/// itself, and believes the other's only if it is not below the last one and within the slots: nothing here goes wrong with
/// numbers that cannot be, and whoever asks [`RingWriter::is_sound`] learns of them.
struct Ring {
    slots: u32,
    /// The longest payload, in bytes.
    stride: usize,
    memory: Memory,
}

/// Where slots lie.
enum Memory {
    /// In this process; payloads follow one another without gaps.
    Own {
        bytes: Box<[UnsafeCell<u8>]>,
        pieces: Box<[UnsafeCell<Piece>]>,
        written: AtomicU32,
        read: AtomicU32,
    },
    /// In memory that the kernel's packet path shares, or another process. While the kernel's packet path has
    /// the group it is the node's side of the ring, by the same rules (bpf/take.h): it writes only slots that are not the
    /// reader's, and `written` when they are whole.
    #[cfg(not(loom))]
    Shared(SlotMemory),
}

// SAFETY: bytes and pieces of a slot are touched only by the side that it belongs to, as said above. There is one value of each
// side, it is not cloned, and it has to be borrowed mutably to write a slot or to give one away.
unsafe impl Sync for Ring {}
// SAFETY: nothing in it is bound to a thread.
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
            #[cfg(not(loom))]
            Memory::Shared(memory) => memory.written(),
        }
    }

    fn read_word(&self) -> &AtomicU32 {
        match &self.memory {
            Memory::Own { read, .. } => read,
            #[cfg(not(loom))]
            Memory::Shared(memory) => memory.read(),
        }
    }

    const fn slot(&self, packet: Sequence) -> usize {
        (packet.0 & (self.slots - 1)) as usize
    }

    fn address(&self, slot: usize) -> *mut u8 {
        match &self.memory {
            Memory::Own { bytes, .. } => bytes[slot * self.stride].get(),
            #[cfg(not(loom))]
            Memory::Shared(memory) => memory.payload(Sequence(slot as u32)),
        }
    }

    /// How many bytes from the beginning of a slot on lie together, up to the last slot.
    const fn together(&self, slot: usize) -> usize {
        match &self.memory {
            Memory::Own { .. } => (self.slots as usize - slot) * self.stride,
            #[cfg(not(loom))]
            Memory::Shared(_) => self.stride,
        }
    }
}

impl Ring {
    const fn shared_memory(&self) -> Option<&SlotMemory> {
        match &self.memory {
            Memory::Own { .. } => None,
            #[cfg(not(loom))]
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

/// Makes empty slots, a power of two of them, each of `stride` bytes; the first packet is `start`.
pub fn ring(slots: u32, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    assert!(slots.is_power_of_two() && stride > 0, "slots are a power of two, and not empty");
    let empty =
        Piece { message: 0, offset: 0, length: 0, message_length: 0, checksum: PayloadChecksum::EMPTY };
    let memory = Memory::Own {
        bytes: zeroes(slots as usize * stride),
        pieces: (0..slots).map(|_| UnsafeCell::new(empty)).collect(),
        written: AtomicU32::new(start.0),
        read: AtomicU32::new(start.0),
    };
    sides(Ring { slots, stride, memory }, start)
}

/// The same in memory that the kernel's packet path shares, or another process.
///
/// # Panics
/// If payloads of `stride` bytes do not fit: that would be our own bug.
#[cfg(not(loom))]
pub fn shared_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    memory.written().store(start.0, Ordering::Release);
    memory.read().store(start.0, Ordering::Release);
    joined_ring(memory, stride, start)
}

/// A ring that is there already, as one finds it who has been given its memory: the first packet was `start`.
///
/// # Panics
/// As [`shared_ring`].
#[cfg(not(loom))]
pub fn joined_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    assert!(stride > 0 && stride <= memory.payload_bytes_max(), "payloads of {stride} bytes fit into slots");
    sides(Ring { slots: memory.count(), stride, memory: Memory::Shared(memory) }, start)
}

/// Models have memory of their own.
#[cfg(loom)]
pub fn shared_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    ring(memory.count(), stride, start)
}

/// Models have memory of their own.
#[cfg(loom)]
pub fn joined_ring(memory: SlotMemory, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    ring(memory.count(), stride, start)
}

fn sides(ring: Ring, start: Sequence) -> (RingWriter, RingReader) {
    let ring = Arc::new(ring);
    let other = || Other { last: Cell::new(start), is_sound: Cell::new(true) };
    (
        RingWriter { ring: Arc::clone(&ring), written: start, read: other() },
        RingReader { ring, written: other(), read: start },
    )
}

/// The number of the other side, as far as it is believed.
#[derive(Debug)]
struct Other {
    last: Cell<Sequence>,
    is_sound: Cell<bool>,
}

impl Other {
    /// The number that the other side says, if it is from the last one to `end`; the last one, if it is not.
    fn believe(&self, said: Sequence, end: Sequence) -> Sequence {
        let last = self.last.get();
        if said.0.wrapping_sub(last.0) <= end.0.wrapping_sub(last.0) {
            self.last.set(said);
        } else {
            self.is_sound.set(false);
        }
        self.last.get()
    }
}

/// The side that packets go in at.
#[derive(Debug)]
pub struct RingWriter {
    ring: Arc<Ring>,
    written: Sequence,
    read: Other,
}

/// The side that packets come out at.
#[derive(Debug)]
pub struct RingReader {
    ring: Arc<Ring>,
    written: Other,
    read: Sequence,
}

impl RingWriter {
    /// All before it are written.
    pub const fn written(&self) -> Sequence {
        self.written
    }

    /// All before it are read.
    pub fn read(&self) -> Sequence {
        self.read.believe(self.ring.read(), self.written)
    }

    /// Whether all that the reader has said could be.
    pub const fn is_sound(&self) -> bool {
        self.read.is_sound.get()
    }

    /// Goes on where somebody else stands who was this side meanwhile, and knows what has been read.
    pub fn resume(&mut self, written: Sequence, read: Sequence) {
        self.written = written;
        self.read.last.set(read);
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.ring.slots
    }

    /// How many packets may be written now.
    pub fn room(&self) -> u32 {
        self.ring.slots - self.written().distance_from(self.read()) as u32
    }

    /// How long a payload may be, in bytes.
    pub fn stride(&self) -> usize {
        self.ring.stride
    }

    /// The memory that others share, if they do.
    pub fn shared_memory(&self) -> Option<&SlotMemory> {
        self.ring.shared_memory()
    }

    /// Puts bytes into the slot of a packet that is not written yet, also of one that is not the next.
    ///
    /// # Panics
    /// If the slot belongs to the reader, or the bytes are too many: that would be our own bug.
    pub fn put(&mut self, packet: Sequence, bytes: &[u8]) {
        assert!(
            self.is_own(packet) && bytes.len() <= self.ring.stride,
            "packet {packet} is not to be written"
        );
        let first = self.ring.address(self.ring.slot(packet));
        // SAFETY: the slot has `stride` bytes from `first` on, all in one allocation, and belongs to the writer, which is
        // borrowed mutably.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len()) };
    }

    /// The first bytes in the slot of a packet that is not written yet.
    ///
    /// # Panics
    /// If the slot belongs to the reader, or has fewer bytes.
    pub fn bytes(&self, packet: Sequence, length: usize) -> &[u8] {
        assert!(self.is_own(packet) && length <= self.ring.stride, "packet {packet} is not the writer's");
        // SAFETY: as in `put`, and the writer writes no byte as long as this borrow of it lasts.
        unsafe { slice::from_raw_parts(self.ring.address(self.ring.slot(packet)), length) }
    }

    /// Says what is in the slot of a packet that is not written yet.
    ///
    /// # Panics
    /// If the slot belongs to the reader.
    pub fn describe(&mut self, packet: Sequence, piece: Piece) {
        assert!(self.is_own(packet), "packet {packet} is not to be written");
        match &self.ring.memory {
            // SAFETY: as in `put`.
            Memory::Own { pieces, .. } => unsafe { *pieces[self.ring.slot(packet)].get() = piece },
            #[cfg(not(loom))]
            Memory::Shared(memory) => memory.describe(packet, &piece, now()),
        }
    }

    /// Gives all packets before this one to the reader; their bytes and pieces have been put.
    ///
    /// # Panics
    /// If that would take packets back, or give more than there are slots.
    pub fn give(&mut self, upto: Sequence) {
        let goes_on =
            !upto.is_before(self.written()) && upto.distance_from(self.read()) <= self.ring.slots as i32;
        assert!(goes_on, "packets before {upto} are not the writer's to give");
        self.written = upto;
        self.ring.written_word().store(upto.0, Ordering::Release);
    }

    /// Where a slot begins. The writer alone writes it, so that it may be read as long as the writer does not.
    pub fn address(&self, slot: u32) -> *const u8 {
        self.ring.address(slot as usize)
    }

    fn is_own(&self, packet: Sequence) -> bool {
        !packet.is_before(self.written()) && packet.is_before(self.read() + self.ring.slots)
    }
}

impl RingReader {
    /// All before it are written.
    pub fn written(&self) -> Sequence {
        self.written.believe(self.ring.written(), self.read + self.ring.slots)
    }

    /// All before it are read.
    pub const fn read(&self) -> Sequence {
        self.read
    }

    /// Whether the writer has written more since it was last asked.
    pub fn is_ahead(&self) -> bool {
        let last = self.written.last.get();
        self.written() != last
    }

    /// Whether all that the writer has said could be.
    pub const fn is_sound(&self) -> bool {
        self.written.is_sound.get()
    }

    /// Goes on where somebody else stands who was this side meanwhile, and knows what has been written.
    pub fn resume(&mut self, written: Sequence, read: Sequence) {
        self.written.last.set(written);
        self.read = read;
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.ring.slots
    }

    /// How long a payload may be, in bytes.
    pub fn stride(&self) -> usize {
        self.ring.stride
    }

    /// The memory that others share, if they do.
    pub fn shared_memory(&self) -> Option<&SlotMemory> {
        self.ring.shared_memory()
    }

    /// What is in the slot of a packet that is written and not read.
    ///
    /// # Panics
    /// If it is not.
    pub fn piece(&self, packet: Sequence) -> Piece {
        assert!(self.is_own(packet), "packet {packet} is not to be read");
        match &self.ring.memory {
            // SAFETY: the slot belongs to the reader, so nobody writes it.
            Memory::Own { pieces, .. } => unsafe { *pieces[self.ring.slot(packet)].get() },
            #[cfg(not(loom))]
            Memory::Shared(memory) => memory.piece(packet),
        }
    }

    /// The first bytes of packets that follow one another, from one that is written and not read on: as many of `length` as lie
    /// together. They are whole if all packets but the last are as long as a slot.
    ///
    /// # Panics
    /// If a packet that they would lie in is not to be read.
    pub fn bytes(&self, packet: Sequence, length: usize) -> &[u8] {
        let slot = self.ring.slot(packet);
        let length = length.min(self.ring.together(slot));
        let last = packet + (length.max(1) - 1) as u32 / self.ring.stride as u32;
        assert!(self.is_own(packet) && self.is_own(last), "packet {packet} is not to be read");
        // SAFETY: the bytes lie in slots up to that of `last`, all in one allocation. These belong to the reader, and are given
        // back by `give_back` only, which borrows the reader mutably and so ends this borrow.
        unsafe { slice::from_raw_parts(self.ring.address(slot), length) }
    }

    /// Gives all slots of packets before this one back to the writer.
    ///
    /// # Panics
    /// If they are not the reader's.
    pub fn give_back(&mut self, upto: Sequence) {
        let goes_on = !upto.is_before(self.read()) && !self.written().is_before(upto);
        assert!(goes_on, "packets before {upto} are not the reader's to give back");
        self.read = upto;
        self.ring.read_word().store(upto.0, Ordering::Release);
    }

    /// Where a slot begins. Nobody writes it as long as it is the reader's.
    pub fn address(&self, slot: u32) -> *const u8 {
        self.ring.address(slot as usize)
    }

    fn is_own(&self, packet: Sequence) -> bool {
        !packet.is_before(self.read()) && packet.is_before(self.written())
    }
}

/// Memory that the system gives as it is touched.
fn zeroes(length: usize) -> Box<[UnsafeCell<u8>]> {
    let bytes = Box::into_raw(vec![0_u8; length].into_boxed_slice());
    // SAFETY: an `UnsafeCell<u8>` lies in memory as a `u8` does, and the box has just been given up.
    unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn piece(length: u32) -> Piece {
        Piece {
            message: 1,
            offset: 0,
            length,
            message_length: u64::from(length),
            checksum: PayloadChecksum::EMPTY,
        }
    }

    #[test]
    fn packets_come_out_as_they_went_in_across_the_wrap() {
        let first = Sequence(u32::MAX - 1);
        let (mut writer, mut reader) = ring(4, 8, first);
        for number in 0..20_u32 {
            let packet = first + number;
            writer.put(packet, &number.to_be_bytes());
            writer.describe(packet, piece(4));
            writer.give(packet + 1);
            assert_eq!(
                (reader.bytes(packet, 4), reader.piece(packet)),
                (&number.to_be_bytes()[..], piece(4))
            );
            assert_eq!(writer.room(), 3);
            reader.give_back(packet + 1);
        }
    }

    #[test]
    fn a_later_packet_may_be_put_before_its_turn() {
        let (mut writer, reader) = ring(4, 8, Sequence(0));
        writer.put(Sequence(2), b"later");
        writer.put(Sequence(0), b"0");
        writer.put(Sequence(1), b"1");
        writer.give(Sequence(3));
        assert_eq!(reader.bytes(Sequence(2), 5), b"later");
    }

    #[test]
    fn packets_that_follow_one_another_are_read_as_one_up_to_the_end_of_the_slots() {
        let (mut writer, mut reader) = ring(4, 2, Sequence(0));
        writer.give(Sequence(2));
        reader.give_back(Sequence(2));
        for (packet, bytes) in [(2, b"ab"), (3, b"cd"), (4, b"ef")] {
            writer.put(Sequence(packet), bytes);
        }
        writer.give(Sequence(5));
        assert_eq!(reader.bytes(Sequence(2), 6), b"abcd");
        assert_eq!(reader.bytes(Sequence(4), 2), b"ef");
    }

    #[test]
    fn numbers_of_the_other_side_that_cannot_be_are_not_believed() {
        let (mut writer, mut reader) = ring(4, 2, Sequence(0));
        writer.give(Sequence(3));
        for nonsense in [4, 9, u32::MAX, 1 << 31] {
            writer.ring.read_word().store(nonsense, Ordering::Release);
            assert_eq!((writer.read(), writer.room(), writer.is_sound()), (Sequence(0), 1, false));
        }
        reader.give_back(Sequence(2));
        assert_eq!(writer.read(), Sequence(2));
        for nonsense in [7, 0, u32::MAX] {
            reader.ring.written_word().store(nonsense, Ordering::Release);
            assert_eq!((reader.written(), reader.is_sound()), (Sequence(3), false));
        }
        writer.give(Sequence(4));
        assert_eq!(reader.written(), Sequence(4));
    }

    #[test]
    #[should_panic(expected = "is not to be written")]
    fn a_slot_that_is_being_read_is_not_written() {
        let (mut writer, _reader) = ring(2, 8, Sequence(0));
        writer.give(Sequence(2));
        writer.put(Sequence(2), b"x");
    }

    #[test]
    #[should_panic(expected = "is not to be read")]
    fn a_slot_that_is_not_written_is_not_read() {
        let (mut writer, reader) = ring(4, 2, Sequence(0));
        writer.give(Sequence(2));
        reader.bytes(Sequence(0), 5);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// `make schedules` runs it.
    #[test]
    fn what_is_written_is_seen_whole_whatever_the_schedule() {
        loom::model(|| {
            let (mut writer, mut reader) = ring(2, 1, Sequence(0));
            let other = loom::thread::spawn(move || {
                for number in 0..3 {
                    while writer.room() == 0 {
                        loom::thread::yield_now();
                    }
                    writer.put(Sequence(number), &[number as u8 + 1]);
                    writer.give(Sequence(number + 1));
                }
            });
            for number in 0..3 {
                while reader.written() == Sequence(number) {
                    loom::thread::yield_now();
                }
                assert_eq!(reader.bytes(Sequence(number), 1), &[number as u8 + 1]);
                reader.give_back(Sequence(number + 1));
            }
            other.join().unwrap();
        });
    }
}
