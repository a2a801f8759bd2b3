//! Messages of roots that the engine sends from the buffers of calls.

#![expect(unsafe_code, reason = "the engine reads buffers of calls")]

use treecast_proto::Sequence;
use treecast_shm::message_buffer::LentPayloads;
use treecast_shm::ring::{RingWriter, SlotAddresses};
use treecast_shm::shared_group::SharedGroup;

use super::backend::Backend;
use super::handle::EngineHandle;

/// Bytes of a message that the engine sends from where they are. When this is dropped, what some
/// member may lack is copied into the slots.
#[derive(Debug)]
pub struct LentMessage<'a> {
    handle: &'a EngineHandle,
    shared_group: &'a SharedGroup,
    slots: SlotAddresses,
    loan: u64,
    /// The packets that are published: from the first to before the second.
    first: Sequence,
    end: Sequence,
    bytes: &'a [u8],
    stride: usize,
}

impl EngineHandle {
    /// Lends the engine the next bytes of a root's message, one packet behind the other.
    ///
    /// The ring has to be private to this process, with the engine as its reader.
    ///
    /// # Safety
    /// The result is dropped before the bytes go.
    pub unsafe fn lend_message<'a>(
        &'a self,
        shared_group: &'a SharedGroup,
        writer: &RingWriter,
        bytes: &'a [u8],
    ) -> LentMessage<'a> {
        let (first, stride) = (writer.written(), writer.stride());
        // SAFETY: they are taken back when the result is dropped, which is in time, as the caller
        // says.
        let payloads = unsafe { LentPayloads::new(first, bytes, stride) };
        let loan = self.with(|engine| engine.lend_payloads(shared_group, payloads));
        let slots = writer.slot_addresses();
        LentMessage { handle: self, shared_group, slots, loan, first, end: first, bytes, stride }
    }
}

impl LentMessage<'_> {
    /// Publishes the packets before this one, which are described, and sends them.
    pub fn send(&mut self, writer: &mut RingWriter, end: Sequence) {
        writer.publish(end);
        self.end = end;
        self.shared_group.mark_progress();
        self.handle.wake();
    }
}

impl Drop for LentMessage<'_> {
    fn drop(&mut self) {
        let &mut Self { handle, shared_group, ref slots, loan, first, end, bytes, stride } = self;
        handle.with(|engine| {
            let Some(kept) = engine.take_payloads_back(shared_group, loan) else { return };
            let from = first.max(kept).min(end);
            let done = from.distance_from(first) as usize * stride;
            for (packet, payload) in from.until(end).zip(bytes[done.min(bytes.len())..].chunks(stride)) {
                let (slot, _) = slots.of(packet);
                // SAFETY: a chunk is as long as a slot at most. The packet is published, so the
                // application does not write the slot; the engine alone reads it, whose lock this
                // thread has.
                unsafe { slot.copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
            }
        });
    }
}
