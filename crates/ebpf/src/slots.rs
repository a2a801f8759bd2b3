//! The memory of a group's slots, which the program, the node and an application share.

#![expect(unsafe_code, reason = "memory is shared with the kernel and other processes")]

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use treecast_proto::{Nanoseconds, PayloadChecksum, Piece, Sequence};

use crate::fields::{get, set};
use crate::layout::{self, Page, Record};
use crate::memory::Mapping;

/// The memory of a group's slots, and the page of numbers beside it.
#[derive(Debug, Clone)]
pub struct SlotMemory {
    slots: Arc<Mapping>,
    page: Arc<Mapping>,
    slot_bytes: usize,
    count: u32,
}

impl SlotMemory {
    pub(crate) fn new(slots: Mapping, page: Mapping, slot_bytes: usize, count: u32) -> Self {
        Self { slots: Arc::new(slots), page: Arc::new(page), slot_bytes, count }
    }

    /// Memory of the same form behind other descriptors: `count` slots of `slot_bytes` each, and the page. Slots that are not
    /// writable are only read.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidInput` for what cannot be slots.
    pub fn over(
        slots: impl AsFd,
        page: impl AsFd,
        slot_bytes: usize,
        count: u32,
        is_writable: bool,
    ) -> io::Result<Self> {
        let bytes = slot_bytes.checked_mul(count as usize);
        let is_possible =
            slot_bytes > size_of::<Record>() && slot_bytes.is_multiple_of(8) && count.is_power_of_two();
        let bytes = bytes.filter(|_| is_possible).ok_or(io::ErrorKind::InvalidInput)?;
        let slots = Mapping::new(slots, bytes, is_writable)?;
        Ok(Self::new(slots, Mapping::new(page, size_of::<Page>(), true)?, slot_bytes, count))
    }

    /// How long a slot is whose payloads have so many bytes at most.
    pub const fn slot_bytes_for(payload_bytes: usize) -> usize {
        layout::slot_bytes(payload_bytes as u32).next_multiple_of(8) as usize
    }

    /// How long the page of numbers is.
    pub const PAGE_BYTES: usize = size_of::<Page>();

    /// How long a slot is, with what is said of its payload, in bytes.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// How many slots there are: a power of two.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The longest payload, in bytes.
    pub const fn payload_bytes_max(&self) -> usize {
        self.slot_bytes - size_of::<Record>()
    }

    fn record(&self, packet: Sequence) -> *mut Record {
        let slot = (packet.0 & (self.count - 1)) as usize;
        // SAFETY: the slots are mapped, and the place is below their number. A slot's length is a multiple of 8, which is what a
        // record is aligned to.
        unsafe { self.slots.address::<[u64; 1]>().byte_add(slot * self.slot_bytes).cast() }
    }

    /// Where the payload of a packet lies. Who may touch it is for the caller to know.
    pub fn payload(&self, packet: Sequence) -> *mut u8 {
        // SAFETY: a slot is its record and the payload.
        unsafe { self.record(packet).cast::<u8>().add(size_of::<Record>()) }
    }

    /// What is in the slot of a packet.
    pub fn piece(&self, packet: Sequence) -> Piece {
        // SAFETY: the slot is mapped.
        unsafe { read_piece(self.record(packet)) }
    }

    /// The same, whether the root asked for an answer, and when it was sent on. Each is read once, whoever may write it.
    pub(crate) fn sent(&self, packet: Sequence) -> (Piece, bool, Nanoseconds) {
        let record = self.record(packet);
        // SAFETY: the slot is mapped.
        unsafe { (read_piece(record), get!(record, ack_requested) != 0, Nanoseconds(get!(record, sent_at))) }
    }

    /// When the packet was accepted here, by the kernel's clock.
    pub fn arrived_at(&self, packet: Sequence) -> Nanoseconds {
        // SAFETY: the slot is mapped.
        unsafe { Nanoseconds(get!(self.record(packet), arrived_at)) }
    }

    /// Says what is in the slot of a packet.
    pub fn describe(&self, packet: Sequence, piece: &Piece, arrived_at: Nanoseconds) {
        let record = self.record(packet);
        // SAFETY: the slot is mapped; who may write it is for the caller to know, and the program believes nothing of it.
        unsafe {
            set!(record, piece.message, message);
            set!(record, piece.offset, offset);
            set!(record, piece.length, length);
            set!(record, piece.message_length, message_length);
            set!(record, piece.checksum.0, checksum);
            set!(record, 0, ack_requested);
            set!(record, arrived_at.0, arrived_at);
        }
    }

    fn page(&self) -> *mut Page {
        self.page.address()
    }

    /// All before it are written: by the node at a member, by the application at the root.
    pub fn written(&self) -> &AtomicU32 {
        // SAFETY: the word is aligned, mapped as long as this value, and all sides use it atomically alone.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).written) }
    }

    /// All before it are read.
    pub fn read(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).read) }
    }

    /// Not 0 if somebody sleeps who is to be woken.
    pub fn sleeps(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).sleeps) }
    }

    /// At the root, the program has sent on all before it.
    pub fn taken(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).taken) }
    }

    /// Not 0 if the program has the group.
    pub fn is_lent(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_lent) }
    }

    /// At the root, not 0 if the application leaves it to the node to send on what is written. Whoever finds that all is sent says so
    /// here, and then looks again.
    pub fn is_left(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_left) }
    }
}

/// # Safety
/// The record lies in mapped memory.
unsafe fn read_piece(record: *const Record) -> Piece {
    // SAFETY: as the caller says; each field is read once.
    unsafe {
        Piece {
            message: get!(record, message),
            offset: get!(record, offset),
            length: get!(record, length),
            message_length: get!(record, message_length),
            checksum: PayloadChecksum(get!(record, checksum)),
        }
    }
}
