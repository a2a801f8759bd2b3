//! A member's side of a group's ring.

use treecast_proto::{Nanoseconds, Offload, Sequence};
use treecast_shm::ring::RingReader;
use treecast_shm::shared_group::Placement;

/// A member's side of the ring.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) reader: RingReader,
    pub(super) offload: Offload,
    /// The first packet that the application has not forwarded, with offload `host` or `assisted`.
    pub(super) forwarded: Sequence,
    /// The first packet that the node does not know to be read.
    pub(super) reported: Sequence,
    /// When the last received packet was stored.
    pub(super) stored_at: Option<Nanoseconds>,
}

impl Receiver {
    pub fn new(reader: RingReader, placement: Option<&Placement>) -> Self {
        let start = reader.read();
        let offload = placement.map_or(Offload::Nic, |placement| placement.offload);
        Self { reader, offload, forwarded: start, reported: start, stored_at: None }
    }

    pub const fn stored_at(&self) -> Option<Nanoseconds> {
        self.stored_at
    }

    /// Releases all packets unread.
    pub fn release_all(&mut self) {
        self.reader.release(self.reader.written());
    }
}
