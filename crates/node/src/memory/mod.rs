//! What an application and its node share of a group: the ring of slots, and the state of the group.

pub(crate) mod places;
pub(crate) mod progress;
pub(crate) mod readers;
pub(crate) mod ring;
pub(crate) mod shared_group;

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
