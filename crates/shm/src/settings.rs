//! The dimensions of what processes share of a group.

use treecast_ebpf::SlotMemory;
use treecast_proto::{Offload, Sequence, SessionId, Transport};

/// The dimensions of a group's ring.
#[derive(Debug, Clone, Copy)]
pub struct RingSettings {
    /// The number of slots.
    pub slots: u32,
    /// The longest payload, in bytes.
    pub payload_bytes_max: u16,
    /// The first packet.
    pub start: Sequence,
    /// What the kernel's packet path does.
    pub offload: Offload,
    /// How packets are carried.
    pub transport: Transport,
    /// The session, if what is in the slots is encrypted.
    pub encrypted_session: Option<SessionId>,
}

impl RingSettings {
    /// The length of a slot in memory that processes share, in bytes.
    pub fn slot_bytes(self) -> usize {
        SlotMemory::slot_bytes_for(usize::from(self.payload_bytes_max))
    }

    /// The size of memory that processes share, in bytes.
    pub fn shared_bytes(self) -> u64 {
        SlotMemory::bytes_for(self.slot_bytes(), self.slots)
    }
}
