//! The memory of a group that a daemon shares with its client, and how the client maps it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use treecast_ebpf::SlotMemory;
use treecast_engine::settings::error::NodeError;
use treecast_shm::clients::Loan;
use treecast_shm::readers::Readers;
use treecast_shm::ring::{RingReader, RingWriter, attach_ring};
use treecast_shm::shared_group::SharedGroup;

use super::Client;
use crate::messages::{ClientMessage, MemoryLayout};
use crate::seqpacket;

/// The memory of a group, which the daemon shares with this client. When the group is dropped, the
/// daemon takes it back.
#[derive(Debug)]
struct MappedMemory {
    socket: Arc<OwnedFd>,
    lease: u64,
}

impl Loan for MappedMemory {}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let message = serde_json::to_vec(&ClientMessage::Unmapped { lease: self.lease });
        // Without the connection the daemon takes it back anyway.
        let _ = message.map(|message| seqpacket::send(&*self.socket, &message, &[], true));
    }
}

/// The memory of a group, mapped.
pub(super) struct Mapped {
    pub writer: RingWriter,
    pub reader: RingReader,
    pub readers: Option<Arc<Readers>>,
}

impl Client {
    /// Maps the memory of a group: its slots, its page, and the places of its host's processes if
    /// they are several.
    pub(super) fn map(
        &self,
        memory: &MemoryLayout,
        descriptors: &[OwnedFd],
        shared_group: &SharedGroup,
        is_root: bool,
    ) -> Result<Mapped, NodeError> {
        let what = "cannot map the memory of a group";
        let system = |source| NodeError::System { what, source };
        if let Some(lease) = memory.lease {
            let _ =
                shared_group.mapped.set(Box::new(MappedMemory { socket: Arc::clone(&self.socket), lease }));
        }
        let [slots, page, rest @ ..] = descriptors else { return Err(self.unusable("it sent no memory")) };
        let shared =
            SlotMemory::over(slots, page, memory.slot_bytes, memory.slots, is_root).map_err(system)?;
        let stride = usize::from(memory.payload_bytes_max);
        if stride == 0 || stride > shared.payload_bytes_max() {
            return Err(system(io::ErrorKind::InvalidData.into()));
        }
        let readers = match (shared_group.place, rest) {
            (None, _) => None,
            (Some(place), [places, ..]) => Some(Arc::new(Readers::map(places, place.count).map_err(system)?)),
            (Some(_), []) => return Err(self.unusable("it sent no memory of the places")),
        };
        shared_group.events.attach_kernel(shared.clone());
        if let Some(readers) = &readers {
            shared_group.events.attach_readers(Arc::clone(readers));
        }
        let (writer, reader) = attach_ring(shared, stride, memory.start());
        Ok(Mapped { writer, reader, readers })
    }
}

/// The number of descriptors of a group's memory.
pub(super) fn descriptors_of(shared_group: &SharedGroup) -> usize {
    if shared_group.place.is_some() { 3 } else { 2 }
}
