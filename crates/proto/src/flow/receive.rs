//! From the parent: packets in order into slots, and acknowledgments back.

use treecast_wire::{Acknowledgment, Body, Data, Distribution, Missing, Sequence, Timestamp};

use super::multicast::ack_interval;
use super::{Carrier, DataSource, Flow, Multicast, ParentStream, Slot, SlotMulticast};
use crate::state::FlowState;
use crate::{Nanoseconds, Piece};

/// An acknowledgment that the parent is to be sent.
#[derive(Debug, Clone)]
pub(super) struct AckRequest {
    pub is_due: bool,
    /// The timestamp of the packet that requested it; 0 if none did.
    pub timestamp: Timestamp,
    /// The first packet of a gap that the parent has not been sent a NAK for.
    pub gap: Option<Sequence>,
}

impl AckRequest {
    pub const NONE: Self = Self { is_due: false, timestamp: Timestamp(0), gap: None };
}

/// An acknowledgment to be sent to the parent now.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub next: Sequence,
    pub timestamp: Timestamp,
    pub body: Body,
}

/// What happened to data from the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// The slot for its payload, if that is to be stored.
    pub slot: Option<u32>,
    /// Whether it shows that the parent is alive, because it is not a replay.
    pub is_fresh: bool,
}

/// The packets of a parent whose timestamps increase, beside those of data, which never decrease
/// (docs/wire.md). A parent may send a probe and data at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParentSeries {
    Probes,
    Control,
}

impl Flow {
    /// Takes data.
    pub fn handle_data(
        &mut self,
        now: Nanoseconds,
        packet: Sequence,
        data: &Data,
        sent_at: Timestamp,
        source: DataSource,
    ) -> Received {
        // The timestamps of a root that is not the parent are of another clock, and are not for the
        // parent.
        let sent_at = if source == DataSource::RootByMulticast { Timestamp(0) } else { sent_at };
        let is_later = self.state.parent_timestamp < sent_at;
        self.state.parent_timestamp = self.state.parent_timestamp.max(sent_at);
        if data.length > u32::from(self.config.payload_bytes_max) {
            self.state.counters.invalid += 1;
            return Received { slot: None, is_fresh: is_later };
        }
        let first = self.state.next;
        let multicast = match data.distribution {
            _ if self.multicast.is_none() => SlotMulticast::Not,
            Distribution::Tree => SlotMulticast::Not,
            // A retransmission requests an acknowledgment of its receiver only.
            _ => SlotMulticast::of(data.ack_requested && !data.retransmitted),
        };
        let carrier = source.carrier();
        // A probe has overtaken the packet, so the children are asked with it.
        let ack_requested = data.ack_requested || self.has_streams() && packet + 1 == self.parent_awaits;
        let slot = Slot { multicast, ..Slot::new(Piece::of(data), ack_requested, data.close, carrier) };
        let stored = if self.repairs(packet, &slot) {
            Some(self.index(packet) as u32)
        } else if packet.is_before(self.state.next) {
            self.state.counters.duplicates += 1;
            None
        } else if !packet.is_before(self.window_end()) {
            self.state.counters.no_slot += 1;
            None
        } else if packet == self.state.next {
            self.accept(packet, slot)
        } else {
            self.hold(packet, slot)
        };
        let was_due = self.ack_request.is_due;
        let has_advanced = stored.is_some() && !packet.is_before(first);
        // A packet that was accepted before is sent again later, unless it is a replay.
        let is_fresh = has_advanced || is_later;
        if data.ack_requested && is_fresh {
            self.request_ack(packet + 1, sent_at);
            if carrier == Carrier::Stream {
                // The parent asks for the sake of its slots, which it frees when the subtree has
                // the packets.
                self.ack_request.is_due = was_due || self.has_news();
            }
        }
        if has_advanced {
            self.on_new_data(now, data.distribution, source);
        }
        Received { slot: stored, is_fresh }
    }

    /// Whether a packet of the parent is later than all before of its series; otherwise it is
    /// counted.
    pub fn is_from_parent_now(&mut self, series: ParentSeries, sent_at: Timestamp) -> bool {
        let latest = match series {
            ParentSeries::Probes => &mut self.parent_probe_timestamp,
            ParentSeries::Control => &mut self.parent_control_timestamp,
        };
        let is_later = *latest < sent_at;
        *latest = sent_at.max(*latest);
        self.state.counters.stale += u64::from(!is_later);
        is_later
    }

    /// There is another parent, with a clock of its own.
    pub fn on_new_parent(&mut self) {
        self.state.parent_timestamp = Timestamp(0);
        self.parent_probe_timestamp = Timestamp(0);
        self.parent_control_timestamp = Timestamp(0);
        self.parent_stream = ParentStream::default();
    }

    /// The parent requests an acknowledgment, and says which packet it will send next.
    pub fn handle_probe(&mut self, now: Nanoseconds, parent_sent: Sequence, sent_at: Timestamp) {
        // A parent never sends beyond its child's receive window: a number beyond it is invalid,
        // and is clamped.
        if !self.window_end().is_before(parent_sent) {
            self.highest_sent = self.highest_sent.max(parent_sent);
        }
        let upto = parent_sent.min(self.window_end());
        self.request_ack(upto, sent_at);
        self.parent_awaits = upto;
        if self.has_streams() {
            self.check_parent_stream(now, upto);
            self.request_stability(now, upto.min(self.state.next));
        }
    }

    fn request_ack(&mut self, upto: Sequence, sent_at: Timestamp) {
        if (0..=self.config.slots as i32).contains(&upto.distance_from(self.state.freed)) {
            self.state.ack_requested = self.state.ack_requested.max(upto);
        }
        if sent_at != Timestamp(0) {
            self.ack_request.timestamp = sent_at;
        }
        self.ack_request.is_due = true;
    }

    /// Whether to send an unsolicited acknowledgment. The subtree has every packet that this node
    /// has received and that was requested to be acknowledged: maybe no later request comes that
    /// lets the parent know. Or the parent knows of less than half of the slots as free, and the
    /// subtree has what was requested, or as many packets more as there are between requests, or a
    /// quarter of the slots has become free (window update, RFC 9293, section 3.8.6.2.2). While the
    /// parent knows of more free slots, the acknowledgments that it requests come in time. With
    /// data by multicast the root's windows depend on the whole tree, and each request is answered
    /// once more when it is met.
    pub(super) fn has_news(&self) -> bool {
        let state = &self.state;
        let interval = ack_interval(self.config.slots) as i32;
        let (quarter, half) = ((self.config.slots / 4) as i32, (self.config.slots / 2) as i32);
        let is_met = state.advertised_stable.is_before(state.ack_requested)
            && !state.stable.is_before(state.ack_requested);
        let has_advanced = state.stable.distance_from(state.advertised_stable) >= interval;
        let is_short = state.advertised_window_end.distance_from(state.next) < half;
        (is_met && state.stable == state.next)
            || ((is_met || has_advanced) && (is_short || self.multicast.is_some()))
            || (is_short
                && self.advertised_window_end().distance_from(state.advertised_window_end) >= quarter)
    }

    fn accept(&mut self, packet: Sequence, slot: Slot) -> Option<u32> {
        if !self.fits(&slot) {
            self.reject(packet);
            return None;
        }
        self.keep(packet, slot);
        self.state.counters.accepted += 1;
        self.advance();
        while self.held.remove(self.state.next) {
            if !self.fits(self.slot(self.state.next)) {
                self.reject(self.state.next);
                break;
            }
            self.state.counters.accepted += 1;
            self.advance();
        }
        Some(self.index(packet) as u32)
    }

    /// Keeps a packet that arrived before its turn.
    fn hold(&mut self, packet: Sequence, slot: Slot) -> Option<u32> {
        if !self.held.insert(packet) {
            self.state.counters.duplicates += 1;
            return None;
        }
        self.state.counters.held += 1;
        self.keep(packet, slot);
        if self.highest_sent.is_before(packet) {
            let gap = self.highest_sent.max(self.state.next);
            let request = &mut self.ack_request;
            request.gap = Some(request.gap.map_or(gap, |known| known.min(gap)));
            request.is_due = true;
        }
        self.highest_sent = self.highest_sent.max(packet + 1);
        Some(self.index(packet) as u32)
    }

    fn fits(&self, slot: &Slot) -> bool {
        let FlowState { expected, bytes, .. } = &self.state;
        let Slot { piece, close, .. } = slot;
        if *close {
            let has_all = piece.message == expected.message && piece.message_length == *bytes;
            expected.is_boundary() && has_all
        } else {
            expected.fits(piece)
        }
    }

    /// An authentic packet does not continue those before it. Another one of its number will not
    /// either.
    fn reject(&mut self, packet: Sequence) {
        self.state.counters.invalid += 1;
        self.inconsistent.get_or_insert(packet);
    }

    /// Whether the parent has been sent every acknowledgment that it requested.
    pub fn has_acked_all(&self) -> bool {
        !self.ack_request.is_due && self.state.advertised_stable == self.state.next
    }

    /// The acknowledgment to be sent to the parent now, if one is due.
    pub fn poll_ack(&mut self, now: Nanoseconds) -> Option<PendingAck> {
        if !self.ack_request.is_due {
            let corrupt = self.poll_repair()?;
            return Some(self.acknowledge(now, Timestamp(0), Some(corrupt)));
        }
        let AckRequest { timestamp: echo, gap, .. } =
            std::mem::replace(&mut self.ack_request, AckRequest::NONE);
        // A requested acknowledgment names all gaps, an unsolicited one only the new gap.
        let from = if echo == Timestamp(0) { gap } else { Some(self.state.next) };
        let missing = from.and_then(|from| self.missing(from.max(self.state.next)));
        Some(self.acknowledge(now, echo, missing))
    }

    fn acknowledge(&mut self, now: Nanoseconds, echo: Timestamp, missing: Option<Missing>) -> PendingAck {
        let timestamp = Timestamp(now.0.max(self.state.ack_timestamp.0 + 1));
        self.state.ack_timestamp = timestamp;
        self.state.advertised_stable = self.state.stable;
        let window_end = self.advertised_window_end();
        self.state.advertised_window_end = window_end;
        let acknowledgment = Acknowledgment {
            stable: self.state.stable,
            receive_window: window_end.distance_from(self.state.next).max(0) as u32,
            echo,
            is_reached: self.multicast.as_ref().is_some_and(Multicast::is_reached),
            is_congested: self.is_subtree_congested() || self.has_stream_losses(now),
        };
        self.state.counters.acks_sent += 1;
        self.state.counters.naks_sent += u64::from(missing.is_some());
        let body = match missing {
            Some(missing) => Body::Nak(acknowledgment, missing),
            None => Body::Acknowledgment(acknowledgment),
        };
        PendingAck { next: self.state.next, timestamp, body }
    }

    /// The packets that are known to have been sent and have not arrived, from the first such
    /// packet at or behind `from` on.
    fn missing(&self, from: Sequence) -> Option<Missing> {
        let first = from.until(self.highest_sent).find(|packet| !self.held.contains(*packet))?;
        let last = self.highest_sent.min(first + 64);
        let bits = first.until(last).filter(|packet| !self.held.contains(*packet));
        let bits = bits.fold(0, |bits, packet| bits | 1 << packet.distance_from(first));
        Some(Missing { first, bits })
    }
}
