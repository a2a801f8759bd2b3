//! Units that are forwarded while they arrive.

use treecast_terms::{Bytes, Picoseconds};

use super::pieces::PACKET;

/// When a unit arrives: its bytes at a constant rate from `head` to `tail`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub unit: u32,
    pub length: Bytes,
    pub head: Picoseconds,
    pub tail: Picoseconds,
}

impl Arrival {
    /// The bytes that have arrived, at least one packet. `None` if the whole unit has arrived, or
    /// is not longer than a packet.
    pub fn part_at(&self, now: Picoseconds) -> Option<Part> {
        if now >= self.tail || self.length <= PACKET {
            return None;
        }
        let (passed, span) = (now.0.saturating_sub(self.head.0), self.tail.0 - self.head.0);
        let first = Bytes((u128::from(self.length.0) * u128::from(passed) / u128::from(span)) as u64);
        Some(Part { unit: self.unit, first: first.max(PACKET), tail: self.tail })
    }
}

/// The first bytes of a unit, which a member takes in and forwards before the others have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub unit: u32,
    /// The length of the part: at least a packet, and less than the unit.
    pub first: Bytes,
    /// When the last byte of the unit arrives.
    pub tail: Picoseconds,
}
