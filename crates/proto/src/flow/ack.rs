//! From the children: acknowledgments and NAKs.

use treecast_wire::{MemberId, Missing, Timestamp};

use super::child::Child;
use super::multicast::Multicast;
use super::stall::Stall;
use super::{Ack, Carrier, Flow};
use crate::Nanoseconds;
use crate::state::ChildState;

/// An acknowledgment that lags by more packets is invalid: beyond half of this range, old and new
/// numbers could be confused.
const ACK_LAG_PACKETS_MAX: u32 = 1 << 29;

impl Flow {
    /// Takes an acknowledgment from a child; returns whether it is later than those before.
    pub fn handle_ack(&mut self, now: Nanoseconds, member: MemberId, ack: &Ack) -> bool {
        let Some(index) = self.child_index(member) else { return false };
        let (next, slots) = (self.state.next, self.config.slots);
        let child = &mut self.children[index];
        if ack.timestamp <= child.state.timestamp {
            self.state.counters.stale += 1;
            return false;
        }
        child.state.timestamp = ack.timestamp;
        // The root keeps all packets that this node lacks, so a late member begins at most as many
        // packets ahead as the root has slots. By multicast any child may get ahead, by as many.
        let is_within_slots = ack.next.distance_from(next) <= slots as i32;
        let may_be_ahead = self.multicast.is_some() && !self.config.is_root;
        let is_ahead = next.is_before(ack.next) && is_within_slots && !may_be_ahead;
        if !child.is_established && (ack.epoch < child.since_epoch || is_ahead) {
            // It does not know yet that this node is its parent, and may still accept packets from
            // another one; or it begins with a packet that has not arrived here yet.
            child.on_heard(now);
            return true;
        }
        if !child.is_established && ack.next.is_before(child.state.stable) {
            // It was restarted before it became a child of this node, and joined under its old
            // number. This node has freed the packets that it lacks.
            child.on_heard(now);
            child.has_lost_state = true;
            return true;
        }
        // It may have more than this node has sent it: packets that it holds from an earlier parent
        // count once a gap is filled.
        let least =
            if child.is_established { child.state.sent - ACK_LAG_PACKETS_MAX } else { child.state.stable };
        let is_valid = !ack.next.is_before(least)
            && (!next.is_before(ack.next) || may_be_ahead && is_within_slots)
            && (0..=ACK_LAG_PACKETS_MAX as i32).contains(&ack.next.distance_from(ack.stable))
            && ack.receive_window <= slots;
        if !is_valid {
            self.state.counters.invalid += 1;
            return true;
        }
        self.state.counters.acks_received += 1;
        child.on_heard(now);
        let rtt = child.on_rtt_sample(now, ack);
        let was_established = child.is_established;
        if !was_established {
            child.is_established = true;
            child.state.sent = ack.next;
            child.state.acked = ack.next;
            child.state.acked_at = now;
            if ack.echo == Timestamp(0) && !child.is_probe_due {
                // A probe measures the RTT, before packets depend on it.
                child.is_probe_due = true;
                self.probing += 1;
            }
        }
        child.state.sent = child.state.sent.max(ack.next);
        child.multicast.is_reached = ack.is_reached && self.multicast.is_some();
        child.multicast.is_congested = ack.is_congested;
        let window_end_before = was_established.then_some(child.state.window_end);
        let min_stable = (self.state.min_stable_children > 0).then_some(self.state.min_stable);
        let was_at_min = min_stable == Some(child.state.stable);
        child.on_progress(now, ack, slots);
        let acked = child.state.acked;
        let has_left_min = was_at_min && min_stable != Some(child.state.stable);
        self.on_window_end(index, window_end_before);
        self.on_acked(acked, rtt);
        self.mark_sent_to(now, index);
        self.find_unserved(index);
        if let Some(missing) = ack.missing {
            self.handle_nak(now, index, ack, missing);
            if missing.first.is_before(acked) {
                self.on_repair_request(index, missing.first);
            }
        }
        self.count_retransmitting(index);
        if has_left_min {
            if self.state.min_stable_children > 1 {
                self.state.min_stable_children -= 1;
            } else {
                self.find_min_stable();
            }
        }
        if let Some(before) = min_stable.filter(|_| has_left_min) {
            self.on_stable(before);
        }
        if ack.is_congested && self.has_streams() {
            self.on_losses_below(now);
        } else if self.config.is_root && ack.is_congested {
            self.on_congestion(ack.stable, false);
        }
        self.update_watermarks();
        true
    }

    /// Marks packets as missing that a NAK of a child names.
    fn handle_nak(&mut self, now: Nanoseconds, index: usize, ack: &Ack, missing: Missing) {
        if self.children[index].carrier == Carrier::Stream {
            // It is on its way.
            return;
        }
        let (next, slots) = (self.state.next, self.config.slots);
        let child = &mut self.children[index];
        let ChildState { acked, sent, window_end, .. } = child.state;
        // By multicast a child may know of packets that have not arrived here.
        let is_synchronous = |multicast: &Multicast| !sent.is_before(multicast.end());
        let may_be_ahead = !self.config.is_root
            && child.is_by_multicast()
            && self.multicast.as_ref().is_some_and(is_synchronous);
        let end = if may_be_ahead { acked + slots } else { sent };
        let end = if self.multicast.is_some() { end.min(window_end) } else { end };
        for packet in missing.numbers() {
            let is_in_flight = !packet.is_before(acked) && packet.is_before(end);
            let slot = (packet.0 & (slots - 1)) as usize;
            let waits_for_timeout = child.stall.is_backed_off() && packet.is_before(next);
            if !is_in_flight
                || waits_for_timeout
                || !child.may_be_about(now, child.sent_at(slot), ack)
                || !child.missing.insert(packet)
            {
                continue;
            }
            if let Some(multicast) = self.multicast.as_mut().filter(|_| child.is_by_multicast()) {
                if !packet.is_before(next) {
                    multicast.await_packet(packet);
                }
            } else {
                child.state.congestion_window.on_loss(packet, sent, slots);
            }
        }
    }

    /// Finds out whether a child misses packets that can be retransmitted now.
    pub(super) fn count_retransmitting(&mut self, index: usize) {
        let child = &mut self.children[index];
        let is_retransmitting = child.has_retransmission(self.state.next);
        let was = std::mem::replace(&mut child.is_retransmitting, is_retransmitting);
        self.retransmitting = self.retransmitting - usize::from(was) + usize::from(child.is_retransmitting);
    }
}

impl Child {
    /// Whether an acknowledgment may be about a packet that was sent at that time: it is about what
    /// was sent before it was requested, and an unsolicited one takes the shortest RTT at least.
    fn may_be_about(&self, now: Nanoseconds, sent_at: Nanoseconds, ack: &Ack) -> bool {
        match ack.echo.0 {
            0 => self.state.rtt.is_plausible(now.since(sent_at)),
            requested_at => sent_at.0 <= requested_at,
        }
    }

    fn on_heard(&mut self, now: Nanoseconds) {
        self.state.heard_at = now;
        self.state.unanswered = 0;
        self.state.backoff = 0;
    }

    /// Takes in the round-trip time of an acknowledgment that was requested here, and returns it.
    fn on_rtt_sample(&mut self, now: Nanoseconds, ack: &Ack) -> Option<Nanoseconds> {
        self.stall.on_answer(ack.echo);
        let sent_at = Nanoseconds(ack.echo.0);
        let sample = (ack.echo.0 != 0 && sent_at <= now).then(|| now - sent_at);
        if let Some(sample) = sample {
            self.state.rtt.on_sample(sample);
        }
        // Requested by multicast, it has no timestamp of this node's; if it has one, it answers
        // something later.
        let since = self.state.awaited_since;
        if since != Nanoseconds::ZERO && !ack.next.is_before(self.state.awaited) {
            self.state.awaited_since = Nanoseconds::ZERO;
            if ack.echo.0 == 0 {
                self.state.rtt.on_delay(now.since(since));
            }
        }
        sample
    }

    fn on_progress(&mut self, now: Nanoseconds, ack: &Ack, slots: u32) {
        let acknowledged = ack.next.distance_from(self.state.acked);
        if acknowledged > 0 {
            let is_window_limited = self.in_flight() >= self.state.congestion_window.packets;
            let may_grow = is_window_limited
                && self.carrier == Carrier::Datagram
                && !self.multicast.is_reached
                && !self.state.rtt.has_standing_queue();
            self.state.congestion_window.on_ack(acknowledged as u32, may_grow, slots);
            for packet in self.state.acked.until(ack.next) {
                self.missing.remove(packet);
            }
            self.state.acked = ack.next;
            self.stall = Stall::default();
            self.state.acked_at = now;
            self.state.timer_started_at = now;
        }
        // It acknowledges less than before, in reply to a request that was sent later: the packet
        // is not an old one.
        self.has_lost_state |= acknowledged < 0 && Nanoseconds(ack.echo.0) > self.state.acked_at;
        let (stable, window_end) = (self.state.stable, self.state.window_end);
        self.state.stable = stable.max(ack.stable);
        self.state.window_end = window_end.max(ack.next + ack.receive_window);
        if stable != self.state.stable || window_end != self.state.window_end {
            self.state.persist_probes = 0;
        }
    }
}
