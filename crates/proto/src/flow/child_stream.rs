//! The stream of a child, at its parent.

use treecast_wire::Sequence;

use super::{PeerFailure, Timeouts};
use crate::Nanoseconds;
use crate::pause::Pause;

/// How long a child that answers may have no stream, although there are packets for it: by then TCP
/// has tried four times to connect (RFC 6298). A firewall may let no TCP pass.
pub(super) const OPEN_TIMEOUT: Nanoseconds = Nanoseconds::from_ms(10_000);

/// The stream of a child, at its parent.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ChildStream {
    pub state: StreamState,
    /// Since when the child accepts nothing, although it has slots for what is there.
    stalled: Option<Stalled>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    #[default]
    Closed,
    Open,
    /// It takes no more for the moment.
    Full,
}

#[derive(Debug, Clone, Copy)]
struct Stalled {
    acked: Sequence,
    since: Nanoseconds,
    /// Whether the child has had a stream meanwhile.
    has_stream: bool,
}

impl ChildStream {
    /// The child has opened it.
    pub const fn open(&mut self) {
        self.state = StreamState::Open;
        if let Some(stalled) = &mut self.stalled {
            stalled.has_stream = true;
        }
    }

    /// The child has acknowledged the packets before `acked`; `awaits_stream` says that there are
    /// more, for which it has slots.
    pub fn check(&mut self, now: Nanoseconds, acked: Sequence, awaits_stream: bool) {
        self.stalled = self.stalled.filter(|stalled| awaits_stream && stalled.acked == acked);
        if awaits_stream {
            let has_stream = self.state != StreamState::Closed;
            self.stalled.get_or_insert(Stalled { acked, since: now, has_stream });
        }
    }

    /// The parent did not run for a while.
    pub fn on_suspend(&mut self, pause: Pause) {
        if let Some(stalled) = &mut self.stalled {
            pause.leave_out(&mut stalled.since);
        }
    }

    /// Why a child that was heard at `heard_at` and has acknowledged the packets before `acked` has
    /// failed, if it has.
    pub fn failure(
        &self,
        now: Nanoseconds,
        heard_at: Nanoseconds,
        acked: Sequence,
        timeouts: Timeouts,
    ) -> Option<PeerFailure> {
        let stalled = self.stalled.filter(|stalled| stalled.acked == acked)?;
        // The child tries another stream or several meanwhile.
        let with_stream = Nanoseconds(timeouts.peer_timeout.0.saturating_mul(3));
        let span = if stalled.has_stream { with_stream } else { with_stream.min(OPEN_TIMEOUT) };
        let is_heard = now.since(heard_at) < Nanoseconds(timeouts.peer_timeout.0.min(span.0) / 2);
        (is_heard && now.since(stalled.since) > span).then_some(PeerFailure::AcceptsNothing { span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACKED: Sequence = Sequence(7);

    /// When a child that answers all the time is lost, in ms; with or without a stream meanwhile.
    fn lost_after_ms(peer_timeout_ms: u64, has_stream: bool) -> u64 {
        let peer_timeout = Nanoseconds::from_ms(peer_timeout_ms);
        let timeouts = Timeouts { peer_timeout, keepalive: peer_timeout, min_rto: Nanoseconds::from_ms(1) };
        let stalled = Stalled { acked: ACKED, since: Nanoseconds::ZERO, has_stream: false };
        let mut stream = ChildStream { state: StreamState::Closed, stalled: Some(stalled) };
        if has_stream {
            stream.open();
        }
        let is_lost = |&ms: &u64| {
            let now = Nanoseconds::from_ms(ms);
            let failure = |heard_at| stream.failure(now, heard_at, ACKED, timeouts);
            // One that may be stopped is waited for.
            assert_eq!(failure(Nanoseconds::ZERO), None);
            failure(now).is_some()
        };
        (100..).step_by(100).find(is_lost).unwrap()
    }

    #[test]
    fn a_child_that_answers_and_opens_no_stream_is_lost_soon() {
        assert_eq!(lost_after_ms(30_000, false), 10_100);
        assert_eq!(lost_after_ms(30_000, true), 90_100);
        assert_eq!(lost_after_ms(800, false), 2_500);
    }

    #[test]
    fn a_child_that_accepts_something_is_not_lost() {
        let stalled = Stalled { acked: ACKED, since: Nanoseconds::ZERO, has_stream: false };
        let stream = ChildStream { state: StreamState::Closed, stalled: Some(stalled) };
        let [now, peer_timeout] = [60_000, 1_000].map(Nanoseconds::from_ms);
        let timeouts = Timeouts { peer_timeout, keepalive: peer_timeout, min_rto: peer_timeout };
        assert_eq!(stream.failure(now, now, ACKED + 1, timeouts), None);
    }
}
