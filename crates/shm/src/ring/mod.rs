//! The ring of slots that a node and an application share: a single-producer, single-consumer queue
//! of packets.
//!
//! At the root the application writes and the node reads; at another member the node writes and the
//! application reads. Packet n is in slot n modulo the number of slots, as in the protocol. Full
//! payloads follow one another without gaps, so that a message can be read in place. Where several
//! processes read, they are the reading side together (`readers.rs`).

#![expect(unsafe_code, reason = "two sides share memory without locks")]

mod reader;
mod writer;

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

#[cfg(not(any(miri, feature = "loom")))]
use rustix::mm::Advice;
use treecast_ebpf::SlotMemory;
use treecast_proto::{PayloadChecksum, Piece, Sequence};

use crate::sync::{AtomicU32, Ordering};

pub use reader::{ReaderPlace, RingReader};
pub use writer::{RingWriter, SlotAddresses};

/// The slots, and the two numbers that say which side owns which of them.
///
/// `read <= written <= read + slots`. The reader owns the slots of packets from `read` to before
/// `written`, and the writer owns all others. The writer stores `written` with release and the
/// reader loads it with acquire; for `read` it is the other way round. So everything that a side
/// has done to a slot happens before the other side gets it.
///
/// On streams the payload of a published packet may be elsewhere for a while
/// ([`crate::message_buffer`]): a root copies it into the slot under the lock of the engine, which
/// is the reader; and what a member has in the buffer of a call, its reader takes from there.
///
/// The other side may be in another process and may write anything into shared memory. So each side
/// keeps its own number privately, and accepts the other's only if it does not go back and stays
/// within the slots. An invalid number is ignored, and reported by [`RingWriter::is_valid`] and
/// [`RingReader::is_valid`].
struct Ring {
    slots: u32,
    /// The longest payload, in bytes.
    stride: usize,
    memory: Memory,
}

/// The further size of a ring in shared memory, in bytes. Its sides are parts of what has them.
pub const BYTES: usize = size_of::<Ring>();

/// Each system call allocates the pages of this many bytes of slots.
const BACKED_BYTES: usize = 128 << 10;

enum Memory {
    /// Private to this process; payloads follow one another without gaps.
    Own {
        bytes: Box<[UnsafeCell<u8>]>,
        /// The slots before this offset in `bytes` need no pages any more.
        backed_bytes: AtomicUsize,
        pieces: Box<[UnsafeCell<Piece>]>,
        written: AtomicU32,
        read: AtomicU32,
    },
    /// Shared with the kernel's packet path or with another process. While a group is handed off,
    /// the kernel's packet path is the node's side of the ring and follows the same rules
    /// (bpf/receive.h): it writes only slots that the reader does not own, and advances `written`
    /// when they are complete.
    #[cfg(not(feature = "loom"))]
    Shared(SlotMemory),
}

// SAFETY: only the side that owns a slot accesses its bytes and piece, as described above, but for
// `RingWriter::write_published`, whose caller excludes the reader. There is one value of each side,
// it is not cloned, and it has to be borrowed mutably to write a slot or to pass one on.
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

    /// Has pages for a slot that is about to be written for the first time, and for some behind it.
    ///
    /// One system call for many pages takes a fraction of the time of their page faults, which in
    /// virtual machines take several microseconds each.
    fn back(&self, slot: usize) {
        match &self.memory {
            Memory::Own { bytes, backed_bytes, .. } => {
                let start = slot * self.stride;
                if start + self.stride > backed_bytes.load(Ordering::Relaxed) {
                    let end = bytes.len().min(start + BACKED_BYTES.max(self.stride));
                    // Slots before it may be without pages: the first packet need not be in the
                    // first slot.
                    backed_bytes.store(end, Ordering::Relaxed);
                    populate(&bytes[start..end]);
                }
            }
            // Who has made it decides when its pages are allocated.
            #[cfg(not(feature = "loom"))]
            Memory::Shared(_) => {}
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

/// An empty ring in private memory: `slots`, a power of two, of `stride` bytes each; the first
/// packet is `start`.
pub fn new_ring(slots: u32, stride: usize, start: Sequence) -> (RingWriter, RingReader) {
    assert!(
        slots.is_power_of_two() && stride > 0,
        "the number of slots is a power of two, and slots are not empty"
    );
    let empty = Piece { message: 0, offset: 0, length: 0, message_length: 0, checksum: PayloadChecksum(0) };
    let memory = Memory::Own {
        bytes: zeroed_bytes(slots as usize * stride),
        backed_bytes: AtomicUsize::new(0),
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

/// Attaches to an existing ring in memory that another process has passed; its first packet was
/// `start`.
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

/// Has the system allocate the pages of this memory now, if it can.
#[cfg(not(any(miri, feature = "loom")))]
fn populate(bytes: &[UnsafeCell<u8>]) {
    let misaligned_bytes = bytes.as_ptr().addr() % rustix::param::page_size();
    let first = bytes.as_ptr().cast::<u8>().wrapping_sub(misaligned_bytes).cast_mut();
    // SAFETY: this changes no byte. The page that `bytes` begins in belongs to the same allocator's
    // memory, in which the rest of it may be written too. Before Linux 5.14 this is an error, and
    // the pages are allocated at the first access.
    let _ = unsafe {
        rustix::mm::madvise(first.cast(), misaligned_bytes + bytes.len(), Advice::LinuxPopulateWrite)
    };
}

/// Neither Miri nor loom has pages.
#[cfg(any(miri, feature = "loom"))]
const fn populate(_bytes: &[UnsafeCell<u8>]) {}

/// Zeroed memory, whose pages the system allocates at the first access.
fn zeroed_bytes(length: usize) -> Box<[UnsafeCell<u8>]> {
    let bytes = Box::into_raw(vec![0_u8; length].into_boxed_slice());
    // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and `Box::into_raw` has released the box.
    unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Whether the page of an address is there (bit 63 of its entry in `/proc/self/pagemap`).
    #[cfg(not(miri))]
    fn has_page(address: *const u8) -> bool {
        use std::os::unix::fs::FileExt as _;
        let mut entry = [0; 8];
        let offset = address.addr() / rustix::param::page_size() * entry.len();
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entry, offset as u64).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[cfg(not(miri))]
    #[test]
    fn slots_get_their_pages_in_batches() {
        let (mut writer, _reader) = new_ring(64, 8_192, Sequence(0));
        let is_there = |writer: &RingWriter, slot| has_page(writer.address(slot));
        assert!(!is_there(&writer, 1));
        writer.write(Sequence(0), &[7]);
        assert!((0..16).all(|slot| is_there(&writer, slot)));
        assert!(!is_there(&writer, 40));
    }

    /// The first packet need not be in the first slot.
    #[test]
    fn a_ring_may_begin_with_any_slot() {
        let start = Sequence(u32::MAX - 2);
        let (mut writer, _reader) = new_ring(8, 40_000, start);
        for packet in start.until(start + 8) {
            writer.write(packet, &vec![packet.0 as u8; 40_000]);
        }
    }

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
            assert_eq!(writer.free_slots(), 3);
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
            assert_eq!((writer.read(), writer.free_slots(), writer.is_valid()), (Sequence(0), 1, false));
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

/// Models for loom.
#[cfg(feature = "loom")]
pub mod models {
    use super::{Sequence, new_ring};

    /// A reader finds every written packet whole.
    pub fn written_packets_are_read_whole() {
        loom::model(|| {
            let (mut writer, mut reader) = new_ring(2, 1, Sequence(0));
            let other = loom::thread::spawn(move || {
                for number in 0..3 {
                    while writer.free_slots() == 0 {
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
