//! What a node knows of a child.

use std::net::SocketAddr;

use treecast_wire::{MemberId, Sequence};

use super::{ChildPlace, Terms, Timeouts, Trouble};
use crate::Nanoseconds;
use crate::marks::Marks;
use crate::round_trip::RoundTrip;
use crate::window::Window;

/// A child, and how far it has come.
///
/// `stable <= acked <= sent`, once it is open.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub member: MemberId,
    pub address: SocketAddr,
    /// The epoch in which it has become a child.
    pub since: u32,
    /// Whether it has said how far it has come.
    pub is_open: bool,
    /// The next packet to be sent to it for the first time.
    pub sent: Sequence,
    /// It has accepted all before this one.
    pub acked: Sequence,
    /// When it said so.
    pub acked_at: Nanoseconds,
    /// Whether it has forgotten that.
    pub has_lost_state: bool,
    /// Its whole subtree has accepted all before this one.
    pub stable: Sequence,
    /// It has slots for packets before this one.
    pub end: Sequence,
    /// With offload `host` or `assisted`, packets before this one may be sent to it.
    pub gate: Sequence,
    /// Packets that it misses, from `acked` to before `sent`.
    pub missing: Marks,
    /// When each packet under way was sent last, by slot: the send records.
    pub sent_at: Box<[Nanoseconds]>,
    pub trip: RoundTrip,
    pub window: Window,
    /// Whether it is to be asked by a probe.
    pub is_to_be_probed: bool,
    /// When it was heard last.
    pub heard_at: Nanoseconds,
    /// Since when it has been asked and not been heard, and how often.
    pub unanswered: Option<(Nanoseconds, u32)>,
    /// It has been asked about all packets before this one.
    pub asked: Sequence,
    /// When it last moved on, was given something after it had everything, or was missed.
    pub quiet_since: Nanoseconds,
    /// How often in turn it has been missed.
    pub misses: u32,
    /// How often in turn it has been asked whether its subtree has everything, or whether it has room.
    pub looks: u32,
}

/// A child is not dead before it has left so many questions without an answer.
const QUESTIONS_MIN: u32 = 4;

impl Child {
    /// A new child has all that is stable here: it has been in this node's subtree before, or begins later.
    pub fn new(now: Nanoseconds, place: &ChildPlace, terms: &Terms, stable: Sequence) -> Self {
        let Terms { slots, timeouts, .. } = *terms;
        Self {
            member: place.member,
            address: place.address,
            since: 0,
            is_open: false,
            sent: stable,
            acked: stable,
            acked_at: now,
            has_lost_state: false,
            stable,
            end: stable,
            gate: stable,
            missing: Marks::new(slots),
            sent_at: vec![Nanoseconds::ZERO; slots as usize].into(),
            trip: RoundTrip::new(timeouts.min_rto),
            window: Window::new(slots, stable),
            is_to_be_probed: true,
            heard_at: now,
            unanswered: None,
            asked: stable,
            quiet_since: now,
            misses: 0,
            looks: 0,
        }
    }

    /// How many packets are under way to it.
    pub const fn in_flight(&self) -> u32 {
        self.sent.distance_from(self.acked) as u32
    }

    /// Whether it is to answer: it has been asked, and has not said that it has what it was asked about.
    pub const fn owes_answer(&self) -> bool {
        !self.is_open || self.unanswered.is_some() || self.acked.is_before(self.asked)
    }

    /// The child has been asked how much it has of the packets before `upto`.
    pub fn asked(&mut self, now: Nanoseconds, upto: Sequence) {
        if !self.owes_answer() {
            self.quiet_since = now;
        }
        self.asked = self.asked.max(upto);
        let (since, times) = self.unanswered.unwrap_or((now, 0));
        self.unanswered = Some((since, times.saturating_add(1)));
    }

    /// What is wrong with it, if something is.
    pub fn trouble(&self, now: Nanoseconds, timeouts: Timeouts) -> Option<Trouble> {
        if self.has_lost_state {
            return Some(Trouble::StateLost);
        }
        let (since, times) = self.unanswered?;
        (times >= QUESTIONS_MIN && now.since(since) > timeouts.peer_timeout).then_some(Trouble::Silent)
    }

    /// This node has been asleep: what the child has not answered since says nothing.
    pub fn overslept(&mut self) {
        self.unanswered = None;
    }

    /// When it is to be missed, or to be asked for a sign of life.
    pub fn deadline(&self, timeouts: Timeouts) -> Nanoseconds {
        let wait = self.trip.wait();
        let wait = if self.owes_answer() {
            Nanoseconds(wait.0 << self.misses.min(16))
        } else if self.stable.is_before(self.sent) || self.sent == self.end {
            // It has not been asked about the last packets, its subtree does not have everything, or it has no room: what is
            // awaited has a longer way, and may have been lost.
            Nanoseconds(wait.0 << (2 + self.looks).min(16))
        } else {
            return self.quiet_since.max(self.heard_at) + timeouts.keepalive;
        };
        self.quiet_since + Nanoseconds(timeouts.keepalive.0 / 4).min(wait)
    }

    /// Its time has come.
    pub fn missed(&mut self, now: Nanoseconds) {
        self.quiet_since = now;
        self.is_to_be_probed = true;
        if !self.owes_answer() {
            self.looks = self.looks.saturating_add(1);
            return;
        }
        self.misses += 1;
        if self.misses > 1 {
            self.window.silent(self.sent);
        }
        // The first question may have come late, or its answer: of many packets a probe learns which are to be repeated. One
        // packet is a probe as good as any (RFC 8985, section 7, for the tail of what is sent).
        if self.in_flight() == 1 || self.misses > 1 && self.in_flight() > 0 {
            self.missing.set(self.acked);
        }
    }
}
