//! Data on streams: a TCP connection from each child carries what its parent sends, in order and
//! without loss, so that nothing is retransmitted and no congestion window is kept. A stream that
//! breaks is opened again by the child, and begins with the packet that the child expects.
//!
//! Acknowledgments only free slots: a member sends them unasked when the parent knows of less than
//! half of the slots as free. They are requested for every quarter of the slots by messages longer
//! than half of them, for the packet that closes the group, and when the root wants to know. So
//! most messages wake no process on their way back.

use treecast_wire::{MemberId, Sequence};

use super::child::Child;
use super::child_stream::StreamState;
use super::{Carrier, Flow, Slot};
use crate::{Nanoseconds, Refused};

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
    /// A child has opened its stream, which is to begin with this packet. Returns whether the
    /// stream is taken.
    pub fn attach(&mut self, now: Nanoseconds, member: MemberId, next: Sequence) -> bool {
        let end = self.state.next;
        let Some(index) = self.child_index(member).filter(|_| self.has_streams()) else { return false };
        let child = &mut self.children[index];
        if child.is_established {
            // Datagrams may have come since it was opened.
            let is_behind = child.carrier == Carrier::Stream && next.is_before(child.state.acked);
            if is_behind || end.is_before(next) {
                return false;
            }
            // What was sent on an earlier stream and has not arrived is sent again.
            if child.carrier == Carrier::Stream {
                child.state.sent = next;
                child.state.timer_started_at = now;
                child.asked_before = None;
            }
        }
        child.stream.open();
        self.find_unserved(index);
        self.ask_before_other_carrier(index);
        true
    }

    /// The first packet that some child has not been sent, or may not have, since its stream has
    /// ended. All before it are needed by readers only, unless a stream breaks.
    pub fn unsent(&self) -> Sequence {
        let has_been_sent = |child: &Child| {
            let is_certain = child.carrier == Carrier::Stream && child.stream.state != StreamState::Closed;
            if is_certain { child.state.sent } else { child.state.acked }
        };
        self.children.iter().map(has_been_sent).fold(self.state.next, Sequence::min)
    }

    /// At a member: payloads before this packet are in slots no more. The root retains all that
    /// some member may lack, so a child that lacks one of these becomes the root's.
    pub fn forget(&mut self, before: Sequence) -> Result<(), Refused> {
        let (freed, unsent) = (self.state.freed, self.unsent());
        if self.config.is_root || unsent.is_before(before) {
            return Err(Refused::Packet { given: before, from: freed, end: unsent });
        }
        self.forgotten = self.forgotten.max(before);
        Ok(())
    }

    /// Whether this node has the next packet of a child.
    pub(super) fn serves(&self, child: &Child) -> bool {
        !child.state.sent.is_before(self.forgotten)
    }

    /// A child has said how far it is. If this node does not retain what follows, the root is told
    /// at once.
    pub(super) fn find_unserved(&mut self, index: usize) {
        let child = &self.children[index];
        if child.is_established && !self.serves(child) {
            self.state.timer_at = Nanoseconds::ZERO;
        }
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

    /// Whether the packets of a message request no acknowledgments to free slots: on streams, if
    /// half of the slots hold the message. Members acknowledge anyway when their parents know of
    /// less than half of the slots as free ([`Flow::has_news`]); each acknowledgment wakes a
    /// process. The parent of a longer message is to know of free slots before it has to wait for
    /// them.
    pub(super) const fn is_acked_by_window(&self, &Slot { ref piece, carrier, .. }: &Slot) -> bool {
        let half_bytes = (self.config.slots as u64 / 2) * self.config.payload_bytes_max as u64;
        matches!(carrier, Carrier::Stream) && piece.message_length <= half_bytes
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
        if !self.has_streams() {
            return;
        }
        let child = &self.children[index];
        let acked = child.state.acked;
        let limit = self.limit_of(child).min(child.state.window_end);
        let awaits_stream =
            child.is_established && acked.is_before(limit) && self.slot(acked).carrier == Carrier::Stream;
        let child = &mut self.children[index];
        child.stream.check(now, acked, awaits_stream);
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

#[cfg(test)]
mod tests {
    use treecast_wire::{Data, Offload, PayloadChecksum, Timestamp, Transport};

    use super::*;
    use crate::Settings;
    use crate::flow::{Ack, ChildAddress, DataSource, FlowConfig};
    use crate::state::Start;

    const CHILD: MemberId = MemberId(2);
    const NOW: Nanoseconds = Nanoseconds::from_ms(1);

    /// A member with one child, which has a stream and waits for the first packet.
    fn member_with_a_child(transport: Transport) -> Flow {
        let mut flow = Flow::new(FlowConfig {
            slots: 8,
            payload_bytes_max: 1_000,
            offload: Offload::Nic,
            integrity: treecast_wire::Integrity::default(),
            transport,
            multicast: None,
            start: Start { packet: Sequence(0), message: 0, bytes: 0 },
            bytes_per_s_max: None,
            is_root: false,
            timeouts: (&Settings::default()).into(),
        });
        flow.set_children(NOW, 1, &[ChildAddress { member: CHILD, address: "127.0.0.1:2".parse().unwrap() }]);
        let ack = Ack {
            epoch: 1,
            next: Sequence(0),
            stable: Sequence(0),
            receive_window: 8,
            missing: None,
            timestamp: Timestamp(1),
            echo: Timestamp(0),
            is_reached: false,
            is_congested: false,
        };
        assert!(flow.handle_ack(NOW, CHILD, &ack));
        assert!(flow.attach(NOW, CHILD, Sequence(0)));
        while flow.poll_probe(NOW, Timestamp(NOW.0)).is_some() {}
        flow.poll_ack(NOW);
        flow
    }

    /// The packet of a message of one byte, which requests no acknowledgment.
    const SHORT_MESSAGE: Data = Data {
        message: 0,
        offset: 0,
        length: 1,
        message_length: 1,
        checksum: PayloadChecksum(0),
        ack_requested: false,
        retransmitted: false,
        close: false,
        distribution: treecast_wire::Distribution::Tree,
    };

    /// A probe goes as a datagram, and may overtake what is on the stream.
    #[test]
    fn children_are_asked_whenever_the_probe_comes() {
        for transport in [Transport::Streams, Transport::Both] {
            for is_overtaken in [false, true] {
                let mut flow = member_with_a_child(transport);
                let sent_at = Timestamp(NOW.0 + 5);
                if is_overtaken {
                    flow.handle_probe(NOW, Sequence(1), sent_at);
                    assert!(flow.poll_probe(NOW, sent_at).is_none());
                }
                flow.handle_data(
                    NOW,
                    Sequence(0),
                    &SHORT_MESSAGE,
                    Timestamp(NOW.0),
                    DataSource::Parent(Carrier::Stream),
                );
                if !is_overtaken {
                    flow.handle_probe(NOW, Sequence(1), sent_at);
                }
                let probe = flow.poll_probe(NOW, sent_at);
                let segment = flow.poll_segment(NOW).unwrap();
                assert!(
                    segment.data.ack_requested || probe.is_some(),
                    "{transport:?}, overtaken {is_overtaken}: the child is not asked"
                );
            }
        }
    }
}
