//! To the children: new packets in round robin, and retransmissions.

use std::net::{IpAddr, SocketAddr};

use treecast_wire::{Data, Distribution, MemberId, Sequence, Timestamp};

use super::child::Child;
use super::child_stream::StreamState;
use super::multicast::{Multicast, SlotMulticast, requests_regularly};
use super::{Carrier, ChildAddress, Flow, ParentStream, PeerFailure, Slot};
use crate::pause::Pause;
use crate::state::Start;
use crate::{Nanoseconds, Refused};

/// A packet that is to be sent to one child now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub to: SocketAddr,
    pub packet: Sequence,
    pub data: Data,
    pub slot: u32,
    /// The child on whose stream it goes.
    pub stream_of: Option<MemberId>,
}

/// A probe that is to be sent to one child now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub to: SocketAddr,
    /// The packet that the child will be sent next.
    pub sent: Sequence,
    /// The length of the padding of a path probe, in bytes.
    pub length: Option<u32>,
}

/// What pacing counts for a packet beside header and payload, in bytes: Ethernet, IP and UDP.
const FRAME_BYTES: u64 = 66;

/// The number of packets that one child is sent before the next child is: one wake-up of its host
/// then serves all of them, and the next child does not wait long. It is the number of full
/// datagrams of an Ethernet in one GSO batch.
const BURST_PACKETS_MAX: u32 = 44;

/// The same on streams, in bytes, and the fewest packets: the next child begins to forward
/// meanwhile.
const STREAM_BURST_BYTES: u32 = 64 << 10;
const STREAM_BURST_PACKETS_MIN: u32 = 4;

/// The time's worth of packets that pacing lets go at once.
const PACING_BURST: Nanoseconds = Nanoseconds::from_us(500);

impl Flow {
    /// Takes new children, in their order. The state of those that stay is kept.
    pub fn set_children(&mut self, now: Nanoseconds, epoch: u32, places: &[ChildAddress]) {
        if let Some(sent) = self.most_sent() {
            self.begun = self.not_before_begun(sent);
        }
        let mut kept: Vec<Option<Child>> = std::mem::take(&mut self.children).into_iter().map(Some).collect();
        self.children.reserve_exact(places.len());
        for place in places {
            let known = self.child_index(place.member).and_then(|index| kept[index].take());
            let child = known.filter(|child| child.address == place.address).unwrap_or_else(|| {
                let forward_limit = self.forwarded.max(self.state.consumed);
                Child::new(now, place, &self.config, self.state.stable, epoch, forward_limit)
            });
            self.children.push(child);
        }
        let gone = kept.into_iter().flatten().filter(|child| child.stream.state != StreamState::Closed);
        self.detached.extend(gone.map(|child| child.member()));
        self.child_indices =
            self.children.iter().enumerate().map(|(index, child)| (child.member(), index)).collect();
        self.child_indices.sort_unstable();
        self.retransmitting = self.children.iter().filter(|child| child.is_retransmitting).count();
        self.probing = self.children.iter().filter(|child| child.is_probe_due).count();
        self.find_min_stable();
        self.find_min_window_end();
        self.turn = self.children.len();
        self.state.timer_at = Nanoseconds::ZERO;
        self.update_watermarks();
    }

    /// The numbers of the children, in their order.
    pub fn children(&self) -> impl Iterator<Item = MemberId> {
        self.children.iter().map(Child::member)
    }

    /// The addresses of the children, in their order.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.children.iter().map(|child| child.address)
    }

    /// Whether this is the number of a child, and its address.
    pub fn is_child(&self, member: MemberId, address: SocketAddr) -> bool {
        self.child_index(member).is_some_and(|index| self.children[index].address == address)
    }

    /// Whether this is the number of a child, and the IP address of its node.
    pub fn is_child_at(&self, member: MemberId, ip: IpAddr) -> bool {
        self.child_index(member).is_some_and(|index| self.children[index].address.ip() == ip)
    }

    /// The latest timestamp that a child can have used by now, as its last acknowledgment says: one
    /// that is silent for longer is lost.
    pub fn latest_timestamp(&self, member: MemberId) -> Timestamp {
        let acknowledged = self.child_index(member).map(|index| self.children[index].state.timestamp);
        let latest = |Timestamp(at)| at.saturating_add(self.config.timeouts.peer_timeout.0);
        acknowledged.filter(|at| at.0 > 0).map_or(Timestamp(u64::MAX), |at| Timestamp(latest(at)))
    }

    pub(super) fn child_index(&self, member: MemberId) -> Option<usize> {
        let found = self.child_indices.binary_search_by_key(&member, |&(member, _)| member).ok()?;
        Some(self.child_indices[found].1)
    }

    /// With offload `host` or `assisted`: packets before this one may go to that child, or to all.
    /// A child that has gone meanwhile is ignored, and so are packets that all children have: the
    /// request of a leaf may come after its reader.
    pub fn forward(&mut self, upto: Sequence, child: Option<MemberId>) -> Result<(), Refused> {
        let (from, end) = (self.state.freed, self.state.next);
        if end.is_before(upto) {
            return Err(Refused::Packet { given: upto, from, end });
        }
        self.forwarded = self.forwarded.max(upto);
        let children = match child {
            None => &mut self.children[..],
            Some(member) => match self.child_index(member) {
                Some(index) => &mut self.children[index..=index],
                None => &mut [],
            },
        };
        for child in children {
            child.forward_limit = child.forward_limit.max(upto);
        }
        Ok(())
    }

    /// Finds the least `stable` of all children, and how many children have it.
    pub(super) fn find_min_stable(&mut self) {
        let min = self.children.iter().map(|child| child.state.stable).reduce(Sequence::min);
        self.state.min_stable_children = 0;
        if let Some(min) = min {
            let at_min = self.children.iter().filter(|child| child.state.stable == min);
            self.state.min_stable_children = at_min.count() as u32;
            self.state.min_stable = min;
        }
    }

    /// Handles expired timers of children; returns the children that have failed.
    pub fn handle_timeout(&mut self, now: Nanoseconds) -> Vec<(MemberId, PeerFailure)> {
        self.expire_reach(now);
        self.expire_repair(now);
        if now < self.state.timer_at {
            return Vec::new();
        }
        let timeouts = self.config.timeouts;
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            if child.timer(timeouts) <= now {
                self.probing += usize::from(!child.is_probe_due);
                let is_rto = child.on_timer(now, timeouts, self.config.slots);
                self.state.counters.timeouts += u64::from(is_rto);
                let is_congestion = is_rto && child.state.backoff > 1 && child.is_by_multicast();
                let stable = child.state.stable;
                if is_congestion && self.config.is_root {
                    self.on_congestion(stable, true);
                }
                self.count_retransmitting(index);
                self.check_stream(now, index);
            }
        }
        for index in 0..self.children.len() {
            if matches!(self.children[index].failure(now, timeouts), Some(PeerFailure::PathTooSmall { .. })) {
                self.leave_datagrams(now, index);
            }
        }
        let timers = self.children.iter().map(|child| child.timer(timeouts));
        self.state.timer_at = timers.min().unwrap_or(Nanoseconds(u64::MAX));
        let failure = |child: &Child| {
            let unserved = (child.is_established && !self.serves(child)).then_some(PeerFailure::Unserved);
            child.failure(now, timeouts).or(unserved)
        };
        self.children.iter().filter_map(|child| Some((child.member(), failure(child)?))).collect()
    }

    /// This node did not run for a while.
    pub fn handle_suspend(&mut self, pause: Pause) {
        self.suspend_reach(pause);
        for child in &mut self.children {
            pause.leave_out(&mut child.state.unanswered_since);
            child.stall.on_suspend(pause);
            child.stream.on_suspend(pause);
        }
        self.parent_stream = ParentStream::default();
        self.state.timer_at = Nanoseconds::ZERO;
    }

    /// When the next timer of a child expires, or pacing allows another packet.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        let paced = (self.config.bytes_per_s_max.is_some() && self.has_segment()).then_some(self.paced_until);
        let timer = (!self.children.is_empty()).then_some(self.state.timer_at);
        [paced, timer, self.multicast_timeout(), self.repair_timeout()].into_iter().flatten().min()
    }

    /// The next probe to be sent, with this timestamp.
    pub fn poll_probe(&mut self, now: Nanoseconds, sent_at: Timestamp) -> Option<Probe> {
        // Timeouts are rare, so that all children may be searched.
        if self.probing == 0 {
            return None;
        }
        let is_next = |child: &Child| child.is_probe_due && !child.is_retransmitting;
        let index = self.children.iter().position(is_next)?;
        let child = &self.children[index];
        let offered = (child.is_established
            && self.next_carrier(child) == Carrier::Stream
            && !self.awaits_other_carrier(child))
        .then(|| self.limit_of(child).min(child.state.window_end).max(child.state.sent));
        let unaccepted = self.slot(self.children[index].state.acked).piece.length;
        let child = &mut self.children[index];
        child.is_probe_due = false;
        child.state.addressed_at = now;
        self.probing -= 1;
        // On a stream the child is told what there is for it, so that it notices a stream that
        // carries nothing.
        let sent = offered.unwrap_or(child.state.sent);
        if offered.is_some() {
            child.carrier = Carrier::Stream;
        }
        child.request_ack(now, sent);
        let is_path_probe = child.stall.on_probe(now, child.state.heard_at, sent_at, unaccepted);
        self.state.timer_at = self.state.timer_at.min(child.timer(self.config.timeouts));
        self.state.counters.probes_sent += 1;
        Some(Probe { to: child.address, sent, length: is_path_probe.then_some(unaccepted) })
    }

    /// The next packet to be sent, if windows, slots and pacing allow one: retransmissions first,
    /// then new packets.
    pub fn poll_segment(&mut self, now: Nanoseconds) -> Option<Segment> {
        if self.config.bytes_per_s_max.is_some() && now < self.paced_until {
            return None;
        }
        if self.has_repair()
            && let Some(segment) = self.next_repair()
        {
            self.spend(now, segment.data.length);
            return Some(segment);
        }
        let retransmission = self.next_retransmission();
        if retransmission.is_none()
            && let Some(segment) = self.poll_multicast(now)
        {
            return Some(segment);
        }
        let retransmitted = retransmission.is_some();
        let (place, packet) = retransmission.or_else(|| self.next_new())?;
        let slot = *self.slot(packet);
        let Slot { piece, ack_requested, close, multicast, .. } = slot;
        let carrier =
            if retransmitted { Carrier::Datagram } else { self.next_carrier(&self.children[place]) };
        let is_last_queued = packet + 1 == self.state.next;
        let index = self.index(packet);
        let (is_by_stream, is_flushed) = (carrier == Carrier::Stream, self.is_flushed_by_message());
        let requests_regularly =
            requests_regularly(packet, self.config.slots) && !self.is_acked_by_window(&slot);
        let child = &mut self.children[place];
        if child.in_flight() == 0 {
            child.state.timer_started_at = now;
            if child.is_idle() {
                child.state.persist_probes = 0;
            }
        }
        if retransmitted {
            child.stall.on_retransmission(now, child.sent_at(index));
        } else {
            child.state.sent = packet + 1;
            child.carrier = carrier;
        }
        child.set_sent_at(index, self.config.slots, now);
        child.state.addressed_at = now;
        let fills_congestion_window =
            !is_by_stream && child.in_flight() >= child.state.congestion_window.packets;
        let fills_window = fills_congestion_window || !child.state.sent.is_before(child.state.window_end);
        let ends_burst =
            self.config.is_root && is_last_queued && piece.is_last() && (!is_by_stream || is_flushed);
        let ack_requested =
            ack_requested || retransmitted || fills_window || ends_burst || requests_regularly;
        if ack_requested {
            child.request_ack(now, packet + 1);
        }
        if ack_requested || child.in_flight() == 1 {
            self.state.timer_at = self.state.timer_at.min(child.timer(self.config.timeouts));
        }
        let to = child.address;
        let stream_of = is_by_stream.then(|| child.member());
        if retransmitted {
            self.state.counters.retransmitted += 1;
        } else {
            self.state.counters.sent += 1;
        }
        self.spend(now, piece.length);
        // It may have been sent all packets by now that go to it along the tree.
        self.mark_sent_to(now, place);
        self.ask_before_other_carrier(place);
        let distribution = match multicast {
            SlotMulticast::Not => Distribution::Tree,
            _ => Distribution::MulticastAndTree,
        };
        let data = Data { ack_requested, retransmitted, close, distribution, ..piece.data() };
        Some(Segment { to, packet, data, slot: index as u32, stream_of })
    }

    /// Pacing counts a packet of this length that is sent.
    pub(super) fn spend(&mut self, now: Nanoseconds, length: u32) {
        if let Some(rate) = self.config.bytes_per_s_max {
            let bytes = FRAME_BYTES + treecast_wire::HEADER_BYTES as u64 + u64::from(length);
            let from = self.paced_until.max(now - PACING_BURST);
            self.paced_until = from + Nanoseconds(bytes * 1_000_000_000 / rate.max(1));
        }
    }

    /// Sends nothing beyond the message that has begun, for the sake of a late member; returns the
    /// packet that it begins with, once that is known.
    pub fn set_barrier(&mut self) -> Option<Start> {
        if self.barrier.is_none() {
            let next = self.state.next;
            let packet = self.most_sent().map_or(next, |sent| self.not_before_begun(sent));
            let message = if packet == next {
                self.unfinished().is_none().then_some(self.state.expected.message)
            } else {
                let piece = &self.slot(packet).piece;
                (piece.offset == 0).then_some(piece.message)
            };
            let unsent: u64 =
                packet.until(next).map(|packet| u64::from(self.slot(packet).piece.length)).sum();
            let bytes = self.state.bytes - unsent;
            self.barrier = message.map(|message| Start { packet, message, bytes });
            self.begun = self.barrier.map_or(self.begun, |barrier| barrier.packet);
        }
        self.barrier
    }

    /// The first packet that has been sent to no child; none without children.
    fn most_sent(&self) -> Option<Sequence> {
        let multicast = self.multicast.as_ref().map_or(self.state.freed, Multicast::end);
        self.children
            .iter()
            .map(|child| child.state.sent)
            .reduce(Sequence::max)
            .map(|sent| sent.max(multicast))
    }

    /// This packet, or [`Flow::begun`], whichever is later. That counts only while the root keeps
    /// its packet: after 2^31 packets, its number would be one ahead.
    fn not_before_begun(&self, packet: Sequence) -> Sequence {
        let is_kept = !self.begun.is_before(self.state.freed) && !self.state.next.is_before(self.begun);
        if is_kept { packet.max(self.begun) } else { packet }
    }

    /// Lifts the barrier.
    pub fn lift_barrier(&mut self) {
        self.barrier = None;
    }

    fn next_retransmission(&mut self) -> Option<(usize, Sequence)> {
        if self.retransmitting == 0 {
            return None;
        }
        let index = self.children.iter().position(|child| child.is_retransmitting)?;
        let child = &mut self.children[index];
        let packet = child.missing.first(child.state.acked, self.state.next);
        let packet = packet.expect("a child to which packets are retransmitted misses some");
        child.missing.remove(packet);
        self.count_retransmitting(index);
        Some((index, packet))
    }

    /// Each child that may be sent packets is sent a burst before the next child is.
    fn next_new(&mut self) -> Option<(usize, Sequence)> {
        let stream_burst_max =
            (STREAM_BURST_BYTES / u32::from(self.config.payload_bytes_max)).max(STREAM_BURST_PACKETS_MIN);
        loop {
            while let Some(child) = self.children.get(self.turn) {
                let burst_packets_max = match child.carrier {
                    Carrier::Stream => stream_burst_max,
                    Carrier::Datagram => BURST_PACKETS_MAX,
                };
                if self.may_send(child) && child.state.sent.is_before(self.round + burst_packets_max) {
                    return Some((self.turn, child.state.sent));
                }
                self.turn += 1;
            }
            let sendable = self.children.iter().filter(|child| self.may_send(child));
            self.round = sendable.map(|child| child.state.sent).reduce(Sequence::min)?;
            self.turn = 0;
        }
    }

    fn has_segment(&self) -> bool {
        self.retransmitting > 0
            || self.has_repair()
            || self.next_multicast().is_some()
            || self.children.iter().any(|child| self.may_send(child))
    }

    /// Whether the child may be sent its next packet.
    fn may_send(&self, child: &Child) -> bool {
        let sent = child.state.sent;
        let has_carrier = match self.next_carrier(child) {
            Carrier::Stream => child.stream.state == StreamState::Open,
            Carrier::Datagram => child.in_flight() < child.state.congestion_window.packets,
        };
        child.is_established
            && has_carrier
            && !self.awaits_other_carrier(child)
            && self.serves(child)
            && sent.is_before(self.limit_of(child))
            && sent.is_before(child.state.window_end)
    }

    /// The first packet that is not to be sent to a child yet, apart from its windows.
    pub(super) fn limit_of(&self, child: &Child) -> Sequence {
        // The closing packet follows what the application has forwarded without being forwarded
        // itself.
        let is_unlimited = self.config.offload.is_by_node() || self.closed == Some(child.forward_limit);
        let limit = self.send_limit();
        let limit = if is_unlimited { limit } else { child.forward_limit.min(limit) };
        // Later packets come to it by multicast.
        let multicast = self.multicast.as_ref().filter(|_| self.config.is_root && child.multicast.is_reached);
        multicast.map_or(limit, |multicast| limit.min(multicast.first()))
    }

    /// The first packet that is not to be sent to any child yet.
    pub(super) fn send_limit(&self) -> Sequence {
        let next = self.state.next;
        self.barrier.map_or(next, |barrier| next.min(barrier.packet))
    }
}
