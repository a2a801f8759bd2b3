//! The reading side of a ring: it reads the slots that are published and passes them back.

use std::slice;
use std::sync::Arc;

use treecast_ebpf::SlotMemory;
#[cfg(not(feature = "loom"))]
use treecast_proto::PayloadChecksum;
use treecast_proto::{Piece, Sequence};

use super::{Memory, PeerNumber, Ring};
use crate::readers::Readers;
use crate::sync::Ordering;

/// The place of a process among those that read the same slots.
#[derive(Debug)]
pub struct ReaderPlace {
    /// The memory that has the places.
    pub readers: Arc<Readers>,
    /// The number of this one.
    pub number: usize,
    /// Whether the slots are those of the root: its node frees them too, and the root itself takes
    /// the least of both.
    pub is_at_root: bool,
}

/// The reading side of a ring.
#[derive(Debug)]
pub struct RingReader {
    pub(super) ring: Arc<Ring>,
    pub(super) written: PeerNumber,
    pub(super) read: Sequence,
    /// Where several processes read the slots.
    pub(super) place: Option<ReaderPlace>,
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

    /// Where several processes read the slots, [`RingReader::release`] only notes what this one has
    /// read. This passes back to the writer what all have read; says whether that is so much more
    /// that the node has to know: another quarter of the slots, or at the root that a process polls
    /// a descriptor. Unless it `is_last`, it does nothing before an eighth of the slots is read.
    pub fn settle(&self, is_last: bool) -> bool {
        let Some(ReaderPlace { readers, is_at_root, .. }) = &self.place else { return false };
        if *is_at_root {
            readers.notify_free_slots();
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

    /// Whether the payload of a packet that is written and not read has its checksum. It is
    /// computed here only if it was not before.
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

    /// The payload bytes of consecutive packets, from a packet that is written and not read on: as
    /// many of `length` as are contiguous. All packets but the last have to be as long as a slot.
    ///
    /// # Panics
    /// If the reader does not own one of the slots.
    pub fn bytes(&self, packet: Sequence, length: usize) -> &[u8] {
        let slot = self.ring.slot(packet);
        let length = length.min(self.ring.contiguous_bytes(slot));
        let last = packet + (length.max(1) - 1) as u32 / self.ring.stride as u32;
        assert!(self.owns(packet) && self.owns(last), "the reader does not own packet {packet}");
        // SAFETY: the bytes are in slots up to that of `last`, all in one allocation. The reader
        // owns these, and only `release`, which borrows the reader mutably and so ends this borrow,
        // passes them back.
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
