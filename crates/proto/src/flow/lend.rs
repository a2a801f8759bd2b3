//! A flow that is lent, and taken back.

use std::net::SocketAddr;

use treecast_wire::{Offload, Sequence, Timestamp};

use super::child::Child;
use super::{Expected, Flow, NO_PIECE, Slot};
use crate::Nanoseconds;
use crate::lent::{Lent, LentChild, LentCounts, LentPacket};

impl Flow {
    /// Whether nothing is out of the ordinary.
    pub fn is_lendable(&self) -> bool {
        let answer = &self.answer;
        let has_no_gap = self.highest == self.next && self.held.is_empty() && answer.gap.is_none();
        let has_said_all = !answer.is_due && answer.timestamp == Timestamp(0);
        let is_free = self.hold.is_none() && self.terms.bytes_per_s_max.is_none();
        let goes_on = self.terms.offload == Offload::Nic && self.expected != Expected::Nothing;
        let is_at_ease = |child: &Child| {
            child.is_open && child.sent == self.next && !child.has_lost_state && !child.is_to_be_probed
        };
        goes_on
            && has_no_gap
            && has_said_all
            && is_free
            && (self.repeating, self.probing) == (0, 0)
            && self.children.iter().all(is_at_ease)
    }

    /// Writes down all that goes on in a flow that is lendable.
    pub fn lend(&self, lent: &mut Lent) {
        let answer = &self.answer;
        (lent.slots, lent.payload_bytes_max) = (self.terms.slots, self.terms.payload_bytes_max);
        (lent.next, lent.consumed, lent.stable, lent.freed) =
            (self.next, self.consumed, self.stable, self.freed);
        (lent.asked, lent.told_stable, lent.told_end) = (answer.asked, answer.told_stable, answer.told_end);
        (lent.expected, lent.least) = (self.expected, self.least);
        let timeouts = self.terms.timeouts;
        (lent.min_rto, lent.keepalive) = (timeouts.min_rto, timeouts.keepalive);
        lent.look_at = if self.children.is_empty() { Nanoseconds(u64::MAX) } else { self.look_at };
        let counters = &self.counters;
        lent.counts = LentCounts {
            accepted: counters.accepted,
            sent: counters.sent,
            acks_sent: counters.acks_sent,
            acks_received: counters.acks_received,
        };
        lent.children.clear();
        lent.children.extend(self.children.iter().map(Child::lend));
    }

    /// Goes on where whoever had the flow stands; `packet` says what was put into slots meanwhile. The answer is whether that can
    /// be: others may have written there since, and what cannot be is taken for nothing. With numbers that cannot be nothing has
    /// changed.
    pub fn take_back(&mut self, lent: &Lent, mut packet: impl FnMut(Sequence) -> LentPacket) -> bool {
        let mut is_possible = self.can_become(lent);
        if !is_possible {
            return false;
        }
        // Those that have left their slots are not looked at: others may be writing there.
        let first = self.next.max(lent.freed);
        for number in first.until(lent.next) {
            let LentPacket { piece, ack_requested, sent_at } = packet(number);
            let piece = Some(piece).filter(|piece| self.is_possible(piece));
            is_possible &= piece.is_some();
            self.keep(number, Slot { piece: piece.unwrap_or(NO_PIECE), ack_requested, close: false });
            let index = self.index(number);
            for child in &mut self.children {
                child.sent_at[index] = sent_at;
            }
        }
        (self.next, self.highest) = (lent.next, lent.next);
        (self.consumed, self.stable, self.freed) = (lent.consumed, lent.stable, lent.freed);
        let answer = &mut self.answer;
        (answer.asked, answer.told_stable, answer.told_end) = (lent.asked, lent.told_stable, lent.told_end);
        (self.expected, self.least) = (lent.expected, lent.least);
        let LentCounts { accepted, sent, acks_sent, acks_received } = lent.counts;
        let counters = &mut self.counters;
        (counters.accepted, counters.sent) = (accepted, sent);
        (counters.acks_sent, counters.acks_received) = (acks_sent, acks_received);
        for (child, lent) in self.children.iter_mut().zip(&lent.children) {
            child.take_back(lent);
        }
        self.turn = self.children.len();
        self.look_at = lent.look_at;
        // Readers may have made room that nobody has spoken of yet.
        self.settle();
        is_possible
    }

    /// Whether these numbers have grown from ours, and are in their order.
    fn can_become(&self, lent: &Lent) -> bool {
        let rise = |numbers: &[Sequence]| numbers.windows(2).all(|pair| !pair[1].is_before(pair[0]));
        let child_rises = |(own, lent_child): (&Child, &LentChild)| {
            rise(&[own.stable, lent_child.stable, lent_child.acked, lent_child.sent, lent.next])
                && lent.least.is_some_and(|(least, _)| rise(&[lent.freed, least, lent_child.stable]))
        };
        rise(&[self.next, lent.next, lent.freed + self.terms.slots])
            && rise(&[self.freed, lent.freed, lent.stable, lent.next])
            && rise(&[self.consumed, lent.consumed, lent.next])
            && rise(&[lent.freed, lent.consumed])
            && self.children.len() == lent.children.len()
            && self.children.iter().zip(&lent.children).all(child_rises)
    }

    /// Where children are, in their order.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.children.iter().map(|child| child.address)
    }
}

impl Child {
    fn lend(&self) -> LentChild {
        LentChild {
            member: self.member,
            address: self.address,
            sent: self.sent,
            acked: self.acked,
            acked_at: self.acked_at,
            stable: self.stable,
            end: self.end,
            asked: self.asked,
            unanswered: self.unanswered,
            misses: self.misses,
            looks: self.looks,
            heard_at: self.heard_at,
            quiet_since: self.quiet_since,
            trip: self.trip.lend(),
            window: self.window.lend(),
        }
    }

    fn take_back(&mut self, lent: &LentChild) {
        (self.sent, self.acked, self.acked_at) = (lent.sent, lent.acked, lent.acked_at);
        (self.stable, self.end, self.asked) = (lent.stable, lent.end, lent.asked);
        (self.unanswered, self.misses, self.looks) = (lent.unanswered, lent.misses, lent.looks);
        (self.heard_at, self.quiet_since) = (lent.heard_at, lent.quiet_since);
        self.trip.take_back(lent.trip);
        self.window.take_back(lent.window);
    }
}
