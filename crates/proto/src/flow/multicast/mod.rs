//! Data by multicast, with offload `switch`: the root sends a packet once, the network replicates
//! it, and the tree repairs.
//!
//! A packet that was sent by multicast counts as sent to the children that multicast reaches. All
//! else is as without multicast: the children acknowledge, and their parent retransmits what they
//! miss.

mod reach;

use std::net::SocketAddr;

use treecast_wire::{Data, Distribution, MemberId, Sequence, Timestamp};
use zerocopy::FromZeros;

use super::child::Child;
use super::{Flow, Segment, Slot};
use crate::Nanoseconds;
use crate::bitmap::Bitmap;
use crate::congestion_window::CongestionWindow;
use crate::rtt::Rtt;
use crate::state::MulticastState;

use reach::{Reach, SAMPLE_PACKETS, is_congestion};

/// Whether the root has sent a packet by multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(super) enum SlotMulticast {
    Not,
    Sent,
    /// It has requested acknowledgments of it there.
    AckRequested,
}

impl SlotMulticast {
    /// A packet that came by multicast.
    pub const fn of(ack_requested: bool) -> Self {
        if ack_requested { Self::AckRequested } else { Self::Sent }
    }
}

/// The state of data by multicast.
#[derive(Debug, Clone)]
pub(super) struct Multicast {
    address: SocketAddr,
    /// The root has sent all packets from `first` to before `end` by multicast, as far as this node
    /// knows.
    first: Sequence,
    end: Sequence,
    /// The root has requested acknowledgments of all packets before it from the members that
    /// multicast reaches.
    ack_requested: Sequence,
    /// Packets that this node lacks and some child has reported as missing. The child gets them
    /// when they arrive here.
    awaited: Bitmap,
    /// The least end of the receive windows of established children.
    min_window_end: Sequence,
    /// How many established children have it; 0 without any.
    min_window_end_children: u32,
    reach: Reach,
    pace: Pace,
}

/// How fast the root sends, and when it sends a heartbeat.
#[derive(Debug, Clone)]
struct Pace {
    /// In packets beyond those that some child has accepted. What is beyond is in the network,
    /// wherever it is lost: while packets wait there in a queue, this window is reduced.
    window: CongestionWindow,
    /// In packets beyond those that all members have accepted: how far they may be apart. Where one
    /// of them loses too many, or does not answer, this window is reduced.
    spread: CongestionWindow,
    /// The packets that some child has accepted end here.
    max_acked: Sequence,
    /// The round-trip time to the child that answers first: others may only be busy.
    rtt: Rtt,
    heartbeat_at: Option<Nanoseconds>,
    heartbeat_interval: Nanoseconds,
}

/// The interval between the first two heartbeats after the tree has changed; it doubles each time,
/// up to `keepalive`.
const HEARTBEAT_INTERVAL_MIN: Nanoseconds = Nanoseconds::from_ms(1);

impl Multicast {
    pub fn new(address: SocketAddr, slots: u32, start: Sequence) -> Self {
        Self {
            address,
            first: start,
            end: start,
            ack_requested: start,
            awaited: Bitmap::new(slots),
            min_window_end: start,
            min_window_end_children: 0,
            reach: Reach {
                is_reached: false,
                heard_at: Nanoseconds::ZERO,
                heartbeat: Timestamp(0),
                repaired: 0,
                sampled: 0,
                lost: 0,
                is_congested: false,
            },
            pace: Pace {
                window: CongestionWindow::new(slots, start),
                spread: CongestionWindow::new(slots, start),
                max_acked: start,
                rtt: Rtt::UNKNOWN,
                heartbeat_at: None,
                heartbeat_interval: HEARTBEAT_INTERVAL_MIN,
            },
        }
    }

    /// The least end of the receive windows of established children; none without any.
    pub const fn min_window_end(&self) -> Option<Sequence> {
        if self.min_window_end_children > 0 { Some(self.min_window_end) } else { None }
    }

    /// The first packet that was not sent by multicast yet.
    pub const fn end(&self) -> Sequence {
        self.end
    }

    /// The first of the packets that need not be sent along the tree to the children that multicast
    /// reaches.
    pub const fn first(&self) -> Sequence {
        self.first
    }

    /// The address to which the root sends data.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether multicast reaches this member.
    pub const fn is_reached(&self) -> bool {
        self.reach.is_reached
    }

    /// Whether this member loses too many packets.
    pub const fn is_congested(&self) -> bool {
        self.reach.is_reached && self.reach.is_congested
    }

    /// All packets before `freed` have left their slots.
    pub fn free(&mut self, freed: Sequence) {
        self.first = self.first.max(freed);
        self.end = self.end.max(self.first);
        self.ack_requested = self.ack_requested.max(self.first);
    }

    /// A packet that the root has sent by multicast is accepted here, or is sent now.
    fn extend(&mut self, packet: Sequence, ack_requested: bool) {
        if packet != self.end {
            self.first = packet;
            self.ack_requested = packet;
        }
        self.end = packet + 1;
        if ack_requested {
            self.ack_requested = self.end;
        }
    }

    /// Whether only the member's children need the slow path: multicast reaches it and loses few
    /// packets, also in the present sample if it loses no more.
    pub fn may_be_handed_off(&self) -> bool {
        let Reach { is_reached, is_congested, lost, .. } = self.reach;
        is_reached && !is_congested && !is_congestion(lost) && self.awaited.is_empty()
    }

    /// The state that a fast path takes over.
    pub fn hand_off(&self) -> MulticastState {
        MulticastState {
            first: self.first,
            end: self.end,
            ack_requested: self.ack_requested,
            min_window_end: self.min_window_end().unwrap_or_default(),
            heard_at: self.reach.heard_at,
            window: self.pace.window,
            spread: self.pace.spread,
            rtt: self.pace.rtt,
            max_acked: self.pace.max_acked,
            reserved: 0,
        }
    }

    /// Takes the state back from a fast path, which has accepted this number of packets by
    /// multicast: none at the root.
    pub fn reclaim(&mut self, from: &MulticastState, accepted: u32) {
        let MulticastState { first, end, ack_requested, heard_at, .. } = *from;
        (self.first, self.end, self.ack_requested) = (first, end, ack_requested);
        (self.pace.window, self.pace.spread, self.pace.rtt) = (from.window, from.spread, from.rtt);
        self.pace.max_acked = from.max_acked;
        if accepted > 0 {
            self.reach.on_multicast(heard_at);
            self.reach.sample_accepted(accepted);
        }
    }

    /// A child misses a packet that this node lacks itself.
    pub fn await_packet(&mut self, packet: Sequence) {
        self.awaited.insert(packet);
    }
}

/// At a parent.
impl Flow {
    /// The children that multicast reaches.
    pub fn reached_children(&self) -> impl Iterator<Item = MemberId> {
        self.children.iter().filter(|child| child.is_by_multicast()).map(Child::member)
    }

    /// Data sent by multicast counts as sent to the children that it reaches.
    pub(super) fn mark_sent(&mut self, now: Nanoseconds) {
        for index in 0..self.children.len() {
            self.mark_sent_to(now, index);
        }
    }

    pub(super) fn mark_sent_to(&mut self, now: Nanoseconds, index: usize) {
        let Some(multicast) = &self.multicast else { return };
        let child = &mut self.children[index];
        let sent = child.state.sent;
        if !child.is_by_multicast() || sent.is_before(multicast.first) || !sent.is_before(multicast.end) {
            return;
        }
        if child.in_flight() == 0 {
            child.state.timer_started_at = now;
        }
        child.state.sent = multicast.end;
        if sent.is_before(multicast.ack_requested) {
            child.request_ack(now, multicast.ack_requested);
            if child.state.awaited_since == Nanoseconds::ZERO {
                (child.state.awaited, child.state.awaited_since) = (multicast.ack_requested, now);
            }
        }
        self.state.timer_at = self.state.timer_at.min(child.timer(self.config.timeouts));
    }

    /// Finds the least end of the receive windows of established children, and how many have it.
    pub(super) fn find_min_window_end(&mut self) {
        let Some(multicast) = &mut self.multicast else { return };
        multicast.min_window_end_children = 0;
        for child in self.children.iter().filter(|child| child.is_established) {
            let end = child.state.window_end;
            if multicast.min_window_end_children == 0 || end.is_before(multicast.min_window_end) {
                (multicast.min_window_end, multicast.min_window_end_children) = (end, 1);
            } else if end == multicast.min_window_end {
                multicast.min_window_end_children += 1;
            }
        }
    }

    /// The receive window of this child has moved from an end before; `None` if the child is
    /// established only now.
    pub(super) fn on_window_end(&mut self, index: usize, before: Option<Sequence>) {
        let end = self.children[index].state.window_end;
        let Some(multicast) = self.multicast.as_mut().filter(|_| before != Some(end)) else { return };
        match before {
            Some(before) if before != multicast.min_window_end => {}
            // Only if it was the last one with the least, all of them are compared.
            Some(_) if multicast.min_window_end_children > 1 => multicast.min_window_end_children -= 1,
            _ => self.find_min_window_end(),
        }
    }

    /// Whether a child, or a member below it, loses too many packets, or this member does.
    pub(super) fn is_subtree_congested(&self) -> bool {
        let Some(multicast) = &self.multicast else { return false };
        multicast.is_congested() || self.children.iter().any(|child| child.multicast.is_congested)
    }
}

/// At the root.
impl Flow {
    /// The tree has changed, or is complete: members find out whether multicast reaches them.
    pub fn start_heartbeats(&mut self, now: Nanoseconds) {
        if let Some(Multicast { pace, .. }) = &mut self.multicast {
            pace.heartbeat_at = Some(now);
            pace.heartbeat_interval = HEARTBEAT_INTERVAL_MIN;
        }
    }

    /// The multicast address, if a heartbeat is to be sent now.
    pub fn poll_heartbeat(&mut self, now: Nanoseconds) -> Option<SocketAddr> {
        let Multicast { pace, address, .. } = self.multicast.as_mut()?;
        pace.heartbeat_at.filter(|&at| at <= now)?;
        pace.heartbeat_at = Some(now + pace.heartbeat_interval);
        let doubled = Nanoseconds(pace.heartbeat_interval.0 * 2);
        pace.heartbeat_interval = doubled.min(self.config.timeouts.keepalive);
        Some(*address)
    }

    /// When multicast needs attention: a heartbeat at the root, at another member the time at which
    /// it is not reached any more.
    pub(super) fn multicast_timeout(&self) -> Option<Nanoseconds> {
        let heartbeat = self.multicast.as_ref().and_then(|multicast| multicast.pace.heartbeat_at);
        heartbeat.or_else(|| self.reach_timeout())
    }

    /// The first packet that is to be sent by multicast, if one may be sent now.
    pub(super) fn next_multicast(&self) -> Option<Sequence> {
        let multicast = self.multicast.as_ref().filter(|_| self.config.is_root)?;
        let limit = self.send_limit().min(self.multicast_window_end()?);
        // Packets that all children have been sent along the tree need no multicast.
        let reached = self.children.iter().filter(|child| child.is_by_multicast());
        let all_sent = reached.map(|child| child.state.sent).reduce(Sequence::min)?;
        let packet = multicast.end.max(all_sent);
        packet.is_before(limit).then_some(packet)
    }

    /// The end of the packets for which the receive windows of all members and the congestion
    /// windows have room; none without children.
    fn multicast_window_end(&self) -> Option<Sequence> {
        let multicast = self.multicast.as_ref()?;
        let Pace { window, spread, max_acked, .. } = &multicast.pace;
        let stable = self.state.min_stable;
        let congestion_end = ((*max_acked).max(stable) + window.packets).min(stable + spread.packets);
        Some(multicast.min_window_end()?.min(congestion_end))
    }

    /// Sends the next packet by multicast, if one may be sent now.
    pub(super) fn poll_multicast(&mut self, now: Nanoseconds) -> Option<Segment> {
        let packet = self.next_multicast()?;
        let index = self.index(packet);
        let window_end = self.multicast_window_end()?;
        let multicast = self.multicast.as_mut()?;
        let fills_window = !(packet + 1).is_before(window_end);
        // Acknowledgments of the first half come while the second half is sent.
        let half = multicast.pace.window.packets.min(multicast.pace.spread.packets) / 2;
        let fills_half = (packet + 1).distance_from(multicast.ack_requested) >= half as i32;
        let ends_burst = packet + 1 == self.state.next && self.slots[index].piece.is_last();
        let slot = &mut self.slots[index];
        slot.multicast = SlotMulticast::Sent;
        slot.ack_requested |=
            fills_window || fills_half || ends_burst || requests_regularly(packet, self.config.slots);
        let Slot { piece, ack_requested, close, .. } = *slot;
        multicast.extend(packet, ack_requested);
        if multicast.pace.heartbeat_interval == self.config.timeouts.keepalive {
            multicast.pace.heartbeat_at = Some(now + self.config.timeouts.keepalive);
        }
        let to = multicast.address;
        self.mark_sent(now);
        self.state.counters.sent += 1;
        self.spend(now, piece.length);
        let data = Data { ack_requested, close, distribution: Distribution::Multicast, ..piece.data() };
        Some(Segment { to, packet, data, slot: index as u32, stream_of: None })
    }

    /// A child has accepted all packets before this one, after this time if it was asked: the
    /// window of packets in the network may change.
    pub(super) fn on_acked(&mut self, acked: Sequence, rtt: Option<Nanoseconds>) {
        let slots = self.config.slots;
        let Some(Multicast { pace, end, .. }) = self.multicast.as_mut().filter(|_| self.config.is_root)
        else {
            return;
        };
        let before = pace.max_acked;
        if !before.is_before(acked) {
            return;
        }
        pace.max_acked = acked;
        if let Some(rtt) = rtt {
            pace.rtt.on_sample(rtt);
        }
        if pace.rtt.has_long_queue() {
            pace.window.on_long_queue(&pace.rtt, acked, *end, slots);
        }
        let is_window_limited = end.distance_from(before) >= pace.window.packets as i32;
        let may_grow = is_window_limited && !pace.rtt.has_standing_queue();
        pace.window.on_ack(acked.distance_from(before) as u32, may_grow, slots);
    }

    /// All members have accepted more packets, from `before` on: they may be further apart.
    pub(super) fn on_stable(&mut self, before: Sequence) {
        let (slots, stable) = (self.config.slots, self.state.min_stable);
        let Some(Multicast { pace, end, .. }) = self.multicast.as_mut().filter(|_| self.config.is_root)
        else {
            return;
        };
        let is_window_limited = end.distance_from(before) >= pace.spread.packets as i32;
        pace.spread.on_ack(stable.distance_from(before).max(0) as u32, is_window_limited, slots);
    }

    /// A member in the subtree of this child loses too many packets, or the child does not answer:
    /// the members may be less far apart, which slows the root down. That happens once a round trip
    /// for all children, and after losses once a sample.
    pub(super) fn on_congestion(&mut self, stable: Sequence, is_timeout: bool) {
        let slots = self.config.slots;
        let Some(Multicast { pace, end, .. }) = &mut self.multicast else { return };
        if is_timeout {
            if !stable.is_before(pace.spread.recovery_point) {
                pace.spread.on_timeout(*end, slots);
            }
        } else {
            // It reports that until its next sample.
            pace.spread.on_loss(stable, (*end).max(stable + SAMPLE_PACKETS), slots);
        }
    }
}

impl Child {
    /// Whether packets by multicast count as sent to it.
    pub const fn is_by_multicast(&self) -> bool {
        self.is_established && self.multicast.is_reached
    }
}

/// Whether an acknowledgment of this packet is requested wherever it is in a message.
pub(super) const fn requests_regularly(packet: Sequence, slots: u32) -> bool {
    let interval = ack_interval(slots);
    packet.0 % interval == interval - 1
}

/// The greatest interval of requests for an acknowledgment, in packets.
const ACK_INTERVAL_MAX: u32 = 64;

/// The interval of requests for an acknowledgment, in packets: a quarter of the slots, but at most
/// [`ACK_INTERVAL_MAX`].
pub(super) const fn ack_interval(slots: u32) -> u32 {
    let quarter = slots / 4;
    if quarter > ACK_INTERVAL_MAX { ACK_INTERVAL_MAX } else { quarter }
}
