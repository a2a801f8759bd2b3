//! The state of a child at its parent.

use std::net::SocketAddr;

use super::child_stream::ChildStream;
use super::stall::Stall;
use super::{Carrier, ChildAddress, FlowConfig, PeerFailure, Timeouts, zeroed};
use crate::Nanoseconds;
use crate::bitmap::Bitmap;
use crate::state::ChildState;
use treecast_wire::{MemberId, Sequence};

/// A child: the state that a fast path carries on, and what only the slow path needs.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each may hold with and without the others")]
pub(super) struct Child {
    pub state: ChildState,
    pub address: SocketAddr,
    /// The epoch in which it became a child.
    pub since_epoch: u32,
    /// Whether it has said how far it is, so that packets may be sent to it.
    pub is_established: bool,
    /// Whether it has lost what it had accepted: it was restarted.
    pub has_lost_state: bool,
    /// With offload `host` or `assisted`, packets before this one may be sent to it.
    pub forward_limit: Sequence,
    /// Packets that it misses and that are to be retransmitted; with offload `switch` those among
    /// them that this node lacks itself, too.
    pub missing: Bitmap,
    /// Whether there are missing packets that can be retransmitted now.
    pub is_retransmitting: bool,
    /// A packet that it has acknowledged, and asks for again.
    pub corrupt: Option<Sequence>,
    pub multicast: ChildMulticast,
    pub stall: Stall,
    /// In a group with streams.
    pub stream: ChildStream,
    /// How what is in flight to it goes, or how the last packet went.
    pub carrier: Carrier,
    /// Datagrams are too long for the path to it: all packets go on its stream.
    pub has_only_streams: bool,
    /// Before which packet it was asked for what it has, since that packet has another carrier.
    pub asked_before: Option<Sequence>,
    /// When each packet in flight was sent last, by slot; empty before the first packet.
    sent_at: Box<[Nanoseconds]>,
    /// Whether a probe is to be sent to it.
    pub is_probe_due: bool,
}

/// A parent's knowledge of a child with data by multicast, apart from what it has sent to it.
#[derive(Debug, Default, Clone)]
pub(super) struct ChildMulticast {
    /// Whether multicast reaches it.
    pub is_reached: bool,
    /// Whether a member of its subtree loses too many packets by multicast.
    pub is_congested: bool,
}

/// A child is declared unresponsive only after this number of unanswered requests, however long
/// that takes.
const UNANSWERED_MIN: u32 = 4;

/// The backoff doubles the RTO at most this number of times.
const BACKOFF_MAX: u32 = 16;

/// The keepalive interval of a child for which there is nothing doubles with each probe, at most
/// this number of times: to half of `peer_timeout` at most. A probe that is not answered is
/// repeated after an RTO, so that lost ones delay nothing.
const IDLE_DOUBLINGS_MAX: u32 = 2;

/// The first persist probe waits four RTOs: what is awaited comes from further down the tree.
const PERSIST_BACKOFF: u32 = 2;

impl Child {
    /// A new child has all packets that are stable here: it was in this node's subtree before, or
    /// begins later.
    pub fn new(
        now: Nanoseconds,
        place: &ChildAddress,
        config: &FlowConfig,
        stable: Sequence,
        epoch: u32,
        forward_limit: Sequence,
    ) -> Self {
        Self {
            state: ChildState::new(now, place.member, stable, config.slots),
            address: place.address,
            since_epoch: epoch,
            is_established: false,
            has_lost_state: false,
            forward_limit,
            missing: Bitmap::new(config.slots),
            is_retransmitting: false,
            corrupt: None,
            multicast: ChildMulticast::default(),
            stall: Stall::default(),
            stream: ChildStream::default(),
            carrier: Carrier::of(config.transport),
            has_only_streams: false,
            asked_before: None,
            sent_at: Box::default(),
            // In the first epoch it does not know its place yet, and acknowledges when it does.
            is_probe_due: epoch > 1,
        }
    }

    /// The memory that a child allocates for `slots` slots with its first packet, in bytes.
    pub const fn heap_bytes(slots: u32) -> usize {
        Bitmap::heap_bytes(slots) + slots as usize * size_of::<Nanoseconds>()
    }

    pub const fn member(&self) -> MemberId {
        self.state.member
    }

    /// When the packet in flight in a slot was sent last.
    pub fn sent_at(&self, slot: usize) -> Nanoseconds {
        self.sent_at.get(slot).copied().unwrap_or_default()
    }

    /// The packet in a slot was sent; `slots` is the number of slots.
    pub fn set_sent_at(&mut self, slot: usize, slots: u32, at: Nanoseconds) {
        if self.sent_at.is_empty() {
            self.sent_at = zeroed(slots);
        }
        self.sent_at[slot] = at;
    }

    /// The number of packets in flight to it.
    pub const fn in_flight(&self) -> u32 {
        self.state.in_flight()
    }

    /// Whether an acknowledgment of it is awaited.
    pub const fn owes_ack(&self) -> bool {
        !self.is_established || self.state.owes_ack()
    }

    /// Whether its subtree has all that was sent to it.
    pub fn is_idle(&self) -> bool {
        !self.state.stable.is_before(self.state.sent)
    }

    /// An acknowledgment of the packets before `upto` is requested.
    pub fn request_ack(&mut self, now: Nanoseconds, upto: Sequence) {
        if !self.owes_ack() {
            self.state.timer_started_at = now;
        }
        let state = &mut self.state;
        state.ack_requested = state.ack_requested.max(upto);
        if state.unanswered == 0 {
            state.unanswered_since = now;
        }
        state.unanswered = state.unanswered.saturating_add(1);
    }

    /// Why the child has failed, if it has.
    pub fn failure(&self, now: Nanoseconds, timeouts: Timeouts) -> Option<PeerFailure> {
        if self.has_lost_state {
            return Some(PeerFailure::StateLost);
        }
        let ChildState { unanswered, unanswered_since, heard_at, .. } = self.state;
        let is_silent = unanswered >= UNANSWERED_MIN && now.since(unanswered_since) > timeouts.peer_timeout;
        if is_silent {
            Some(PeerFailure::Silent)
        } else {
            let stalled =
                || self.stall.failure(now, heard_at, timeouts).filter(|_| self.carrier == Carrier::Datagram);
            self.stream.failure(now, heard_at, self.state.acked, timeouts).or_else(stalled)
        }
    }

    /// When its timer expires: the RTO, the persist timer or the keepalive timer.
    pub fn timer(&self, timeouts: Timeouts) -> Nanoseconds {
        self.ack_timer(timeouts).min(self.address_timer(timeouts))
    }

    /// When to probe a child that gets its data by multicast, so that it does not find its parent
    /// silent.
    fn address_timer(&self, timeouts: Timeouts) -> Nanoseconds {
        if self.multicast.is_reached {
            self.state.addressed_at + timeouts.keepalive
        } else {
            Nanoseconds(u64::MAX)
        }
    }

    /// When an acknowledgment is late.
    fn ack_timer(&self, timeouts: Timeouts) -> Nanoseconds {
        let state = &self.state;
        let rto = state.rtt.rto(timeouts.min_rto);
        let doublings = if self.owes_ack() && self.carrier == Carrier::Stream {
            // What is on its way comes without being asked for: only an acknowledgment may be lost.
            state.backoff.max(state.persist_probes).min(BACKOFF_MAX)
        } else if self.owes_ack() {
            state.backoff.max(self.stall.backoff()).min(BACKOFF_MAX)
        } else if self.carrier == Carrier::Datagram
            && (state.stable.is_before(state.sent) || !state.sent.is_before(state.window_end))
        {
            // Acknowledgments of the last packets were not requested, its subtree lacks packets, or
            // its receive window is full (the persist timer of RFC 9293, section 3.8.6.1).
            state.persist_probes.saturating_add(PERSIST_BACKOFF).min(BACKOFF_MAX)
        } else {
            let doublings = if self.is_idle() { state.persist_probes.min(IDLE_DOUBLINGS_MAX) } else { 0 };
            let interval = Nanoseconds(timeouts.keepalive.0 << doublings);
            return state.timer_started_at.max(state.heard_at) + interval;
        };
        let wait = Nanoseconds(rto.0 << doublings);
        state.timer_started_at + Nanoseconds(timeouts.keepalive.0 / 4).min(wait)
    }

    /// Its timer has expired; returns whether that was the RTO.
    pub fn on_timer(&mut self, now: Nanoseconds, timeouts: Timeouts, slots: u32) -> bool {
        // The probe addresses the child, whichever timer has expired: both may have.
        self.is_probe_due = true;
        self.state.addressed_at = now;
        if now < self.ack_timer(timeouts) {
            return false;
        }
        self.state.timer_started_at = now;
        if self.carrier == Carrier::Stream || !self.owes_ack() {
            self.state.persist_probes = self.state.persist_probes.saturating_add(1);
        }
        if !self.owes_ack() {
            return false;
        }
        self.state.backoff += 1;
        if self.state.backoff > 1 && self.carrier == Carrier::Datagram {
            self.state.congestion_window.on_timeout(self.state.sent, slots);
        }
        // The first request or its acknowledgment may only be late: where many packets are in
        // flight, a probe finds out which are lost. A single packet is as good a probe (tail loss
        // probe, RFC 8985, section 7).
        if self.carrier == Carrier::Stream {
            return true;
        }
        let has_slot = self.state.acked.is_before(self.state.window_end);
        let is_late = self.state.backoff > 1 || self.stall.is_backed_off();
        if has_slot && (self.in_flight() == 1 || is_late && self.in_flight() > 0) {
            self.missing.insert(self.state.acked);
        }
        true
    }

    /// Whether it misses packets that can be retransmitted now: those before `next` are here.
    pub fn has_retransmission(&self, next: Sequence) -> bool {
        self.missing.first(self.state.acked, next).is_some()
    }
}
