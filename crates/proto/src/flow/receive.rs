//! From the parent: in order, into slots, and what the parent is told.

use treecast_wire::{Acknowledgment, Body, Data, Missing, PayloadChecksum, Sequence, Timestamp};

use super::{Expected, Flow, Slot};
use crate::protocol::Piece;

impl Flow {
    /// Takes data from the parent. The answer is the slot that its payload is to be put into, if it is wanted.
    pub fn data(
        &mut self,
        packet: Sequence,
        data: &Data,
        checksum: PayloadChecksum,
        sent_at: Timestamp,
    ) -> Option<u32> {
        if data.length > u32::from(self.terms.payload_bytes_max) {
            self.counters.invalid += 1;
            return None;
        }
        let slot =
            Slot { piece: Piece::of(data, checksum), ack_requested: data.ack_requested, close: data.close };
        let wanted = if packet.is_before(self.next) {
            self.counters.duplicates += 1;
            None
        } else if !packet.is_before(self.end()) {
            self.counters.no_slot += 1;
            None
        } else if packet == self.next {
            self.accept(packet, slot)
        } else {
            self.hold_back(packet, slot)
        };
        if data.ack_requested {
            self.asked(packet + 1, sent_at);
        }
        wanted
    }

    /// The parent asks how far this node has come, and says which packet it will send next.
    pub fn probed(&mut self, parent_sent: Sequence, sent_at: Timestamp) {
        // A parent never sends beyond the slots of its child; one that says so is wrong, and is told no more than this.
        if !self.end().is_before(parent_sent) {
            self.highest = self.highest.max(parent_sent);
        }
        self.asked(parent_sent.min(self.end()), sent_at);
    }

    fn asked(&mut self, upto: Sequence, sent_at: Timestamp) {
        if (0..=self.terms.slots as i32).contains(&upto.distance_from(self.freed)) {
            self.answer.asked = self.answer.asked.max(upto);
        }
        self.answer.timestamp = sent_at;
        self.answer.is_due = true;
    }

    fn accept(&mut self, packet: Sequence, slot: Slot) -> Option<u32> {
        if !self.fits(&slot) {
            self.counters.invalid += 1;
            return None;
        }
        self.keep(packet, slot);
        self.counters.accepted += 1;
        self.advance();
        while self.held.clear(self.next) {
            if !self.fits(self.slot(self.next)) {
                self.counters.invalid += 1;
                break;
            }
            self.counters.accepted += 1;
            self.advance();
        }
        Some(self.index(packet) as u32)
    }

    fn hold_back(&mut self, packet: Sequence, slot: Slot) -> Option<u32> {
        if !self.held.set(packet) {
            self.counters.duplicates += 1;
            return None;
        }
        self.counters.held += 1;
        self.keep(packet, slot);
        if self.highest.is_before(packet) {
            let gap = self.highest.max(self.next);
            self.answer.gap = Some(self.answer.gap.map_or(gap, |known| known.min(gap)));
            self.answer.is_due = true;
        }
        self.highest = self.highest.max(packet + 1);
        Some(self.index(packet) as u32)
    }

    fn fits(&self, slot: &Slot) -> bool {
        if slot.close {
            !matches!(self.expected, Expected::Rest { .. } | Expected::Nothing)
        } else {
            self.expected.fits(&slot.piece)
        }
    }

    /// What the parent is to be told now, if anything.
    pub fn take_answer(&mut self) -> Option<(Sequence, Timestamp, Body)> {
        let answer = &mut self.answer;
        if !answer.is_due {
            return None;
        }
        answer.is_due = false;
        let timestamp = std::mem::take(&mut answer.timestamp);
        // Whoever has asked hears of every gap, and else the parent hears of the one that is new.
        let gap = answer.gap.take();
        let from = if timestamp == Timestamp(0) { gap } else { Some(self.next) };
        answer.told_stable = self.stable;
        answer.told_end = self.freed + self.terms.slots;
        let window = self.end().distance_from(self.next).max(0) as u32;
        let acknowledgment = Acknowledgment { stable: self.stable, window };
        let missing = from.and_then(|from| self.missing(from.max(self.next)));
        self.counters.acks_sent += 1;
        self.counters.naks_sent += u64::from(missing.is_some());
        let body = match missing {
            Some(missing) => Body::Nak(acknowledgment, missing),
            None => Body::Acknowledgment(acknowledgment),
        };
        Some((self.next, timestamp, body))
    }

    /// The packets that are known to have been sent and are not here, from the first such at or behind `from` on.
    fn missing(&self, from: Sequence) -> Option<Missing> {
        let first = from.until(self.highest).find(|packet| !self.held.has(*packet))?;
        let last = self.highest.min(first + 64);
        let bits = first.until(last).filter(|packet| !self.held.has(*packet));
        let bits = bits.fold(0, |bits, packet| bits | 1 << packet.distance_from(first));
        Some(Missing { first, bits })
    }
}
