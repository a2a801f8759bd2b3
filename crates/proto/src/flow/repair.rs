//! Packets whose payload was corrupt when a fast path accepted them (docs/protocol.md,
//! "Integrity"): their reader finds that out, when the parent knows them as accepted. A NAK that
//! names such a packet, before the next one expected, asks for it again.

use treecast_wire::{Data, Distribution, Missing, Sequence};

use super::{Carrier, Flow, Segment, Slot, SlotMulticast};
use crate::{Nanoseconds, Refused};

/// A packet that the parent is asked for again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repair {
    packet: Sequence,
    /// Whether a request is to be sent, when the next one is, and how many were.
    is_due: bool,
    at: Nanoseconds,
    asked: u32,
}

/// The first request is repeated after this time, each further one after twice the time before, up
/// to the longest.
const INTERVAL: Nanoseconds = Nanoseconds(5_000_000);
const DOUBLINGS_MAX: u32 = 5;

/// How often a packet is asked for: for about two seconds. A parent may lack it itself, be it that
/// it has to ask for it first.
const REQUESTS_MAX: u32 = 16;

impl Flow {
    /// The payload of an accepted packet is corrupt. Asks for one packet at a time: readers need
    /// them in order.
    pub fn repair(&mut self, now: Nanoseconds, packet: Sequence) -> Result<(), Refused> {
        let (from, end) = self.readable();
        if packet.is_before(from) || !packet.is_before(end) {
            return Err(Refused::Packet { given: packet, from, end });
        }
        if self.repair.is_none_or(|known| known.packet != packet) {
            self.repair = Some(Repair { packet, is_due: false, at: now, asked: 0 });
        }
        Ok(())
    }

    /// Whether a packet of data is the one that was asked for: another piece would not continue the
    /// others. Then it is not any more.
    pub(super) fn repairs(&mut self, packet: Sequence, slot: &Slot) -> bool {
        let is_awaited = self.repair.is_some_and(|repair| repair.packet == packet)
            && !packet.is_before(self.state.consumed)
            && self.slot(packet).piece == slot.piece
            && !slot.close;
        if is_awaited {
            self.repair = None;
        }
        is_awaited
    }

    /// The time of the next request may have come.
    pub(super) fn expire_repair(&mut self, now: Nanoseconds) {
        let Some(repair) = self.repair.as_mut().filter(|repair| repair.at <= now) else { return };
        if repair.packet.is_before(self.state.consumed) || repair.asked == REQUESTS_MAX {
            self.repair = None;
            return;
        }
        repair.is_due = true;
        repair.at = now + Nanoseconds(INTERVAL.0 << repair.asked.min(DOUBLINGS_MAX));
        repair.asked += 1;
    }

    /// The packets that the next NAK names, if one is due.
    pub(super) fn poll_repair(&mut self) -> Option<Missing> {
        let repair = self.repair.as_mut().filter(|repair| repair.is_due)?;
        repair.is_due = false;
        Some(Missing { first: repair.packet, bits: 1 })
    }

    /// When a packet is asked for next.
    pub(super) fn repair_timeout(&self) -> Option<Nanoseconds> {
        self.repair.map(|repair| repair.at)
    }

    /// A child asks for a packet that it has acknowledged. It is sent again if it is still in its
    /// slot; otherwise the child asks in vain. Data by multicast has a code, which is verified
    /// before a packet is accepted.
    pub(super) fn on_repair_request(&mut self, index: usize, packet: Sequence) {
        let is_there = !packet.is_before(self.forgotten) && packet.is_before(self.state.next);
        if is_there && self.multicast.is_none() && self.slot(packet).carrier == Carrier::Datagram {
            self.children[index].corrupt = Some(packet);
        }
    }

    /// Whether a child waits for a packet that it has acknowledged.
    pub(super) fn has_repair(&self) -> bool {
        self.children.iter().any(|child| child.corrupt.is_some())
    }

    /// The next packet for a child that has acknowledged it. No acknowledgment is requested: the
    /// child repeats its request.
    pub(super) fn next_repair(&mut self) -> Option<Segment> {
        let freed = self.state.freed;
        let (to, packet) = self
            .children
            .iter_mut()
            .filter_map(|child| Some((child.address, child.corrupt.take()?)))
            .find(|(_, packet)| !packet.is_before(freed))?;
        let Slot { piece, close, multicast, .. } = *self.slot(packet);
        debug_assert!(multicast == SlotMulticast::Not, "such data has a code");
        let data = Data {
            ack_requested: false,
            retransmitted: true,
            close,
            distribution: Distribution::Tree,
            ..piece.data()
        };
        self.state.counters.retransmitted += 1;
        Some(Segment { to, packet, data, slot: self.index(packet) as u32, stream_of: None })
    }
}
