//! The memory of a group's slots, which the program, the node and an application share.

#![expect(unsafe_code, reason = "memory is shared with the kernel and other processes")]

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use treecast_proto::{Nanoseconds, PayloadChecksum, Piece, Sequence};

use crate::fields::{get, set};
use crate::layout::{self, Descriptor, Page};
use crate::memory::Mapping;

/// The memory of a group's slots, and the page with the numbers that node and application share.
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

    /// Maps memory of the same form from file descriptors: `count` slots of `slot_bytes` each, and
    /// the page. Slots are mapped read-only unless `is_writable`.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidInput` for an invalid number or length of slots.
    pub fn over(
        slots: impl AsFd,
        page: impl AsFd,
        slot_bytes: usize,
        count: u32,
        is_writable: bool,
    ) -> io::Result<Self> {
        let bytes = slot_bytes.checked_mul(count as usize);
        let is_valid =
            slot_bytes > size_of::<Descriptor>() && slot_bytes.is_multiple_of(8) && count.is_power_of_two();
        let bytes = bytes.filter(|_| is_valid).ok_or(io::ErrorKind::InvalidInput)?;
        let slots = Mapping::new(slots, bytes, is_writable)?;
        Ok(Self::new(slots, Mapping::new(page, size_of::<Page>(), true)?, slot_bytes, count))
    }

    /// The length of a slot in bytes, for payloads of at most `payload_bytes`.
    pub const fn slot_bytes_for(payload_bytes: usize) -> usize {
        layout::slot_bytes(payload_bytes as u32).next_multiple_of(8) as usize
    }

    /// The memory that `count` slots of `slot_bytes` each and their page take, in bytes: whole
    /// pages of the machine for both.
    pub fn bytes_for(slot_bytes: usize, count: u32) -> u64 {
        let page = rustix::param::page_size();
        let slots = (slot_bytes * count as usize).next_multiple_of(page);
        (slots + Self::PAGE_BYTES.next_multiple_of(page)) as u64
    }

    /// The memory of the page, and that of the slots.
    pub fn mappings(&self) -> [Arc<Mapping>; 2] {
        [Arc::clone(&self.page), Arc::clone(&self.slots)]
    }

    /// The length of the page in bytes.
    pub const PAGE_BYTES: usize = size_of::<Page>();

    /// The length of a slot with its descriptor, in bytes.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The number of slots, a power of two.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The longest payload in bytes.
    pub const fn payload_bytes_max(&self) -> usize {
        self.slot_bytes - size_of::<Descriptor>()
    }

    fn descriptor(&self, packet: Sequence) -> *mut Descriptor {
        let slot = (packet.0 & (self.count - 1)) as usize;
        // SAFETY: the slots are mapped, and the index is below their number. A slot's length is a
        // multiple of 8, the alignment of a descriptor.
        unsafe { self.slots.address::<[u64; 1]>().byte_add(slot * self.slot_bytes).cast() }
    }

    /// The address of a packet's payload. The caller knows who may access it.
    pub fn payload(&self, packet: Sequence) -> *mut u8 {
        // SAFETY: a slot is its descriptor and the payload.
        unsafe { self.descriptor(packet).cast::<u8>().add(size_of::<Descriptor>()) }
    }

    /// The piece in the slot of a packet.
    pub fn piece(&self, packet: Sequence) -> Piece {
        // SAFETY: the slot is mapped.
        unsafe { read_piece(self.descriptor(packet)) }
    }

    /// The same, whether the root requested an acknowledgment, and when the packet was forwarded.
    /// Each field is read once, since an application may write it at any time.
    pub(crate) fn sent(&self, packet: Sequence) -> (Piece, bool, Nanoseconds) {
        let descriptor = self.descriptor(packet);
        // SAFETY: the slot is mapped.
        unsafe {
            (
                read_piece(descriptor),
                get!(descriptor, ack_requested) != 0,
                Nanoseconds(get!(descriptor, sent_at)),
            )
        }
    }

    /// When the packet was accepted here, by the kernel's monotonic clock.
    pub fn arrived_at(&self, packet: Sequence) -> Nanoseconds {
        // SAFETY: the slot is mapped.
        unsafe { Nanoseconds(get!(self.descriptor(packet), arrived_at)) }
    }

    /// Whether the payload was found to have the checksum in its descriptor. If not, its reader has
    /// to verify it.
    pub fn is_verified(&self, packet: Sequence) -> bool {
        self.verified(packet).load(Ordering::Acquire) != 0
    }

    /// Marks the payload in the slot as having the checksum in its descriptor. Whoever sees the
    /// mark also sees all earlier writes to the slot.
    pub fn set_verified(&self, packet: Sequence) {
        self.verified(packet).store(1, Ordering::Release);
    }

    fn verified(&self, packet: Sequence) -> &AtomicU32 {
        // SAFETY: the word is aligned, mapped as long as this value, and written whole by all
        // sides.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.descriptor(packet)).is_verified) }
    }

    /// Writes the descriptor of a packet whose payload is in its slot and has this checksum.
    pub fn describe(&self, packet: Sequence, piece: &Piece, arrived_at: Nanoseconds) {
        let descriptor = self.descriptor(packet);
        // SAFETY: the slot is mapped; the caller knows who may write it, and the program does not
        // read it.
        unsafe {
            set!(descriptor, piece.message, message);
            set!(descriptor, piece.offset, offset);
            set!(descriptor, piece.length, length);
            set!(descriptor, piece.message_length, message_length);
            set!(descriptor, piece.checksum.0, checksum);
            set!(descriptor, 0, ack_requested);
            set!(descriptor, 1, is_verified);
            set!(descriptor, arrived_at.0, arrived_at);
        }
    }

    fn page(&self) -> *mut Page {
        self.page.address()
    }

    /// The first packet that is not written yet: by the node at a member, by the application at the
    /// root.
    pub fn written(&self) -> &AtomicU32 {
        // SAFETY: the word is aligned, mapped as long as this value, and all sides access it only
        // atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).written) }
    }

    /// The first packet that is not read yet.
    pub fn read(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).read) }
    }

    /// Not 0 if a sleeping reader or writer is to be woken.
    pub fn is_waiting(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_waiting) }
    }

    /// At the root, the first packet that the program has not forwarded yet.
    pub fn forwarded(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).forwarded) }
    }

    /// Not 0 if the group is handed off to the program.
    pub fn is_handed_off(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_handed_off) }
    }

    /// At the root, not 0 if the application delegates sending to the node. The node resets it when
    /// everything is sent, and then checks once more.
    pub fn is_delegated(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_delegated) }
    }

    /// Not 0 as long as a daemon lends the memory to its client. A daemon that takes the memory
    /// back frees the page first and then the slots, so a client that has read a slot, and then
    /// finds that this word is not 0, has read what was written there.
    pub fn is_lent(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page()).is_lent) }
    }

    /// At the root of a group with both carriers, until when its messages go in datagrams: a time
    /// of `CLOCK_MONOTONIC` in nanoseconds, which the node sets.
    pub fn datagrams_until(&self) -> &AtomicU64 {
        // SAFETY: as in `written`; eight bytes that are aligned to eight.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page()).datagrams_until) }
    }
}

/// # Safety
/// The descriptor lies in mapped memory.
unsafe fn read_piece(descriptor: *const Descriptor) -> Piece {
    // SAFETY: as the caller says; each field is read once.
    unsafe {
        Piece {
            message: get!(descriptor, message),
            offset: get!(descriptor, offset),
            length: get!(descriptor, length),
            message_length: get!(descriptor, message_length),
            checksum: PayloadChecksum(get!(descriptor, checksum)),
        }
    }
}
