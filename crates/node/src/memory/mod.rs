//! What an application and its node share of a group: the ring of slots, and the state of the group.

pub(crate) mod clients;
pub(crate) mod event_count;
pub(crate) mod places;
pub(crate) mod progress;
pub(crate) mod readers;
pub(crate) mod ring;
pub(crate) mod shared_group;
pub(crate) mod spin;
pub(crate) mod waker;

use treecast_ebpf::SlotMemory;
use treecast_proto::{Offload, Sequence, Transport};

/// The dimensions of a group's ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingSettings {
    pub slots: u32,
    pub payload_bytes_max: u16,
    /// The first packet.
    pub start: Sequence,
    pub offload: Offload,
    pub transport: Transport,
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
