//! Retransmission to a child that answers and accepts nothing.
//!
//! Probes are small: a child that large datagrams do not reach looks alive. So the rate at which
//! packets are retransmitted to a child without progress is bounded, and the time too. A datagram
//! that is as long as the one that is not accepted tells whether the path is the reason (RFC 8899,
//! section 4.3: black hole detection).

use treecast_wire::Timestamp;

use super::{PeerFailure, Timeouts};
use crate::Nanoseconds;
use crate::pause::Pause;

/// Retransmissions to a child since it last accepted a packet in order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Stall {
    /// The number of rounds. Within a round no packet is retransmitted twice.
    rounds: u32,
    round_began_at: Nanoseconds,
    /// When the first round began.
    since: Nanoseconds,
    /// When the last probe was sent since back-off began.
    probed_at: Option<Nanoseconds>,
    path_probe: Option<PathProbe>,
}

/// The last path probe.
#[derive(Debug, Clone, Copy)]
struct PathProbe {
    length: u32,
    sent_at: Timestamp,
    /// Whether a path probe of this stall was answered.
    is_answered: bool,
}

/// The number of rounds in which a child is sent whatever it asks for. After them it is sent one
/// packet per timeout.
const ROUNDS_BEFORE_BACKOFF: u32 = 3;

/// A child fails only after this number of rounds, however long they take.
const ROUNDS_MIN: u32 = 8;

impl Stall {
    /// A packet is retransmitted that was sent last at `sent_at`.
    pub fn on_retransmission(&mut self, now: Nanoseconds, sent_at: Nanoseconds) {
        if self.rounds == 0 {
            self.since = now;
        } else if sent_at < self.round_began_at {
            return;
        }
        self.rounds = self.rounds.saturating_add(1);
        self.round_began_at = now;
    }

    /// The parent did not run for a while.
    pub fn on_suspend(&mut self, pause: Pause) {
        pause.leave_out(&mut self.since);
    }

    /// Whether only the first packet that is not accepted is retransmitted, once per timeout.
    pub const fn is_backed_off(&self) -> bool {
        self.rounds >= ROUNDS_BEFORE_BACKOFF
    }

    /// How often the RTO is doubled (RFC 6298, section 5.5). Acknowledgments without progress do
    /// not reset it.
    pub const fn backoff(&self) -> u32 {
        (self.rounds + 1).saturating_sub(ROUNDS_BEFORE_BACKOFF)
    }

    /// Records that a probe with this timestamp is sent to a child that was heard at `heard_at`.
    /// Returns whether it is to be a path probe, with a padding of `length` bytes, as long as the
    /// packet that is not accepted: one follows each answer to a short probe.
    pub fn on_probe(
        &mut self,
        now: Nanoseconds,
        heard_at: Nanoseconds,
        sent_at: Timestamp,
        length: u32,
    ) -> bool {
        if !self.is_backed_off() {
            return false;
        }
        let is_short = self.probed_at.replace(now).is_none_or(|probed_at| heard_at <= probed_at);
        if is_short {
            return false;
        }
        let is_answered = self.path_probe.is_some_and(|probe| probe.is_answered);
        self.path_probe = Some(PathProbe { length, sent_at, is_answered });
        true
    }

    /// The child answers what was sent with this timestamp.
    pub fn on_answer(&mut self, echo: Timestamp) {
        if let Some(probe) = self.path_probe.as_mut().filter(|probe| probe.sent_at == echo) {
            probe.is_answered = true;
        }
    }

    /// Why a child that was heard at `heard_at` has failed, if it has. A silent one fails for its
    /// silence.
    pub fn failure(
        &self,
        now: Nanoseconds,
        heard_at: Nanoseconds,
        timeouts: Timeouts,
    ) -> Option<PeerFailure> {
        let is_heard = now.since(heard_at) < Nanoseconds(timeouts.peer_timeout.0 / 2);
        let is_over = self.rounds >= ROUNDS_MIN && now.since(self.since) > timeouts.accept_timeout();
        if !is_over || !is_heard {
            return None;
        }
        Some(match self.path_probe {
            Some(PathProbe { length, is_answered: false, .. }) => PeerFailure::PathTooSmall { length },
            _ => PeerFailure::AcceptsNothing { span: timeouts.accept_timeout() },
        })
    }
}
