//! The writing side of a ring: it fills slots and publishes them.

use std::sync::Arc;
use std::{ptr, slice};

use treecast_ebpf::SlotMemory;
use treecast_proto::{Piece, Sequence};

use super::{Memory, PeerNumber, Ring};
#[cfg(not(feature = "loom"))]
use crate::clock::now;
use crate::readers::Readers;
use crate::sync::Ordering;

/// The writing side of a ring.
#[derive(Debug)]
pub struct RingWriter {
    pub(super) ring: Arc<Ring>,
    pub(super) written: Sequence,
    pub(super) read: PeerNumber,
    /// At the root: the other processes of its host that read the slots.
    pub(super) readers: Option<Arc<Readers>>,
}

/// Where the slots of a ring are. Who writes by it has to know that they are free.
#[derive(Debug)]
pub struct SlotAddresses(Arc<Ring>);

impl SlotAddresses {
    /// The address of the slot of a packet that is to be written, and its length in bytes.
    pub fn of(&self, packet: Sequence) -> (*mut u8, usize) {
        let slot = self.0.slot(packet);
        self.0.back(slot);
        (self.0.address(slot), self.0.stride)
    }
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

    /// The first packet that the node, which frees the slots before `freed`, or another process of
    /// this host has not read.
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
    pub fn free_slots(&self) -> u32 {
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

    /// Copies bytes into the slot of a packet that is not published, which need not be the next
    /// one.
    ///
    /// # Panics
    /// If the reader owns the slot, or the bytes do not fit: that would be our own bug.
    pub fn write(&mut self, packet: Sequence, bytes: &[u8]) {
        assert!(
            self.owns(packet) && bytes.len() <= self.ring.stride,
            "the writer does not own packet {packet}"
        );
        let slot = self.ring.slot(packet);
        self.ring.back(slot);
        let first = self.ring.address(slot);
        // SAFETY: the slot has `stride` bytes from `first` on, all in one allocation, and the
        // writer, which is borrowed mutably, owns it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len()) };
    }

    /// Replaces the corrupt payload of a packet that is published and not read by the right one.
    /// Its reader waits for that, in shared memory, where alone a payload may be published before
    /// its checksum is verified.
    ///
    /// # Panics
    /// If the bytes do not fit: that would be our own bug.
    pub fn repair(&mut self, packet: Sequence, bytes: &[u8]) {
        assert!(bytes.len() <= self.ring.stride, "packet {packet} does not fit");
        #[cfg(not(feature = "loom"))]
        if let Memory::Shared(memory) = &self.ring.memory {
            let first = self.ring.address(self.ring.slot(packet));
            // SAFETY: the slot has `stride` bytes from `first` on, all in one allocation. The
            // reader that has asked for the packet reads no byte of it before the flag is set;
            // another process that reads it meanwhile finds a wrong checksum, and asks too.
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

    /// Passes all packets before this one to the reader; their pieces are complete, and their
    /// bytes, unless both sides know that these are elsewhere.
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

    /// The address of a slot's payload. Only the writer writes it, so it may be read while the
    /// writer does not write.
    pub fn address(&self, slot: u32) -> *const u8 {
        self.ring.address(slot as usize)
    }

    fn owns(&self, packet: Sequence) -> bool {
        !packet.is_before(self.written()) && packet.is_before(self.read() + self.ring.slots)
    }
}
