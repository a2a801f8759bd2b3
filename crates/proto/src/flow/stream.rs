//! Data on streams: a TCP connection from each child carries what its parent sends, in order and
//! without loss, so that nothing is retransmitted and no congestion window is kept. A stream that
//! breaks is opened again by the child, and begins with the packet that the child expects.
//!
//! Acknowledgments only free slots: they are requested for every quarter of them, for the packet
//! that closes the group, and when the root wants to know. So a message wakes no process on its
//! way back.

use treecast_wire::{MemberId, Sequence, Transport};

use super::child::Child;
use super::{Flow, PeerFailure, Timeouts};
use crate::Nanoseconds;

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

/// The stream to the parent, at the child.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ParentStream {
    /// The next packet expected, which the parent has, and since when nothing has arrived.
    awaited: Option<(Sequence, Nanoseconds)>,
    /// Whether the stream is to be opened again.
    is_stalled: bool,
}

/// An event of a child's stream, at its parent's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamChange {
    /// It takes no more for the moment.
    Full,
    /// It takes more.
    Writable,
    /// It is closed.
    Closed,
}

impl Flow {
    /// Whether data goes on streams.
    pub const fn is_by_streams(&self) -> bool {
        matches!(self.config.transport, Transport::Streams)
    }

    /// A child has opened its stream, which is to begin with this packet. Returns whether the
    /// stream is taken.
    pub fn attach(&mut self, now: Nanoseconds, member: MemberId, next: Sequence) -> bool {
        let end = self.state.next;
        let Some(index) = self.child_index(member).filter(|_| self.is_by_streams()) else { return false };
        let child = &mut self.children[index];
        if child.is_established {
            if next.is_before(child.state.acked) || end.is_before(next) {
                return false;
            }
            // What was sent on an earlier stream and has not arrived is sent again.
            child.state.sent = next;
            child.state.timer_started_at = now;
        }
        child.stream.open();
        true
    }

    /// The stream of a child has changed. That of a child which has gone is ignored.
    pub fn set_stream(&mut self, member: MemberId, change: StreamChange) {
        let Some(index) = self.child_index(member) else { return };
        let stream = &mut self.children[index].stream;
        if stream.state != StreamState::Closed {
            stream.state = match change {
                StreamChange::Full => StreamState::Full,
                StreamChange::Writable => StreamState::Open,
                StreamChange::Closed => StreamState::Closed,
            };
        }
    }

    /// Whether a child has a stream.
    pub fn has_stream(&self, member: MemberId) -> bool {
        let index = self.child_index(member);
        index.is_some_and(|index| self.children[index].stream.state != StreamState::Closed)
    }

    /// The children whose streams are to be closed.
    pub fn poll_detached(&mut self) -> impl Iterator<Item = MemberId> {
        self.detached.drain(..)
    }

    /// At the root: the application waits until all members have what is queued.
    pub fn flush(&mut self, now: Nanoseconds) {
        let next = self.state.next;
        self.flushed = next;
        self.request_stability(now, next);
    }

    /// At the root: whether the last packet of a message requests acknowledgments. An application
    /// that has waited for the message before will wait for this one too.
    pub(super) fn is_flushed_by_message(&self) -> bool {
        self.flushed == self.message_start
    }

    /// Asks the children, and they theirs, to say when the subtree has the packets before this one.
    pub fn request_stability(&mut self, now: Nanoseconds, upto: Sequence) {
        let is_wanted = |child: &Child| {
            let is_asked =
                child.is_probe_due || child.owes_ack() && !child.state.ack_requested.is_before(upto);
            child.is_established && child.state.stable.is_before(upto) && !is_asked
        };
        for child in self.children.iter_mut().filter(|child| is_wanted(child)) {
            child.is_probe_due = true;
            child.state.timer_started_at = now;
            self.probing += 1;
        }
    }

    /// A child's timer has expired: finds out whether it accepts nothing.
    pub(super) fn check_stream(&mut self, now: Nanoseconds, index: usize) {
        if !self.is_by_streams() {
            return;
        }
        let limit = self.limit_of(&self.children[index]);
        let child = &mut self.children[index];
        let acked = child.state.acked;
        let awaits_stream = child.is_established && acked.is_before(limit.min(child.state.window_end));
        let stream = &mut child.stream;
        stream.stalled = stream.stalled.filter(|stalled| awaits_stream && stalled.acked == acked);
        if awaits_stream {
            let has_stream = stream.state != StreamState::Closed;
            stream.stalled.get_or_insert(Stalled { acked, since: now, has_stream });
        }
    }

    /// The parent says by a probe that it has packets before `end` for this node. A stream that
    /// carries none of them for long is opened again: its other end may be gone without a trace.
    pub(super) fn check_parent_stream(&mut self, now: Nanoseconds, end: Sequence) {
        let next = self.state.next;
        let stream = &mut self.parent_stream;
        let is_awaited = next.is_before(end);
        stream.awaited = stream.awaited.filter(|(awaited, _)| is_awaited && *awaited == next);
        if is_awaited {
            let (_, since) = stream.awaited.get_or_insert((next, now));
            if now.since(*since) > Nanoseconds(self.config.timeouts.peer_timeout.0 / 2) {
                stream.is_stalled = true;
                *since = now;
            }
        }
    }

    /// Whether the stream to the parent is to be opened again; once.
    pub const fn take_stalled(&mut self) -> bool {
        std::mem::replace(&mut self.parent_stream.is_stalled, false)
    }
}

impl ChildStream {
    const fn open(&mut self) {
        self.state = StreamState::Open;
        if let Some(stalled) = &mut self.stalled {
            stalled.has_stream = true;
        }
    }

    /// The parent was suspended: that the child accepted nothing meanwhile means nothing.
    pub const fn on_suspend(&mut self) {
        self.stalled = None;
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
