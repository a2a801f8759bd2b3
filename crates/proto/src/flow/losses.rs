//! Streams that lose packets, in groups that have both carriers.
//!
//! TCP takes losses for congestion and holds back what follows; datagrams are repaired from the
//! member above within a round trip. So a root whose tree has a stream that loses many packets
//! prefers datagrams for a while, and then tries streams again. A parent learns from its system
//! what its own streams lose, and says so upwards in acknowledgments.

use treecast_wire::MemberId;

use super::Flow;
use crate::Nanoseconds;

/// How long a node says that a stream of its own loses packets, after that was seen, and that one
/// further down does, after a child has said so: in a chain of 27 members nothing is said any more
/// when the root tries streams again.
const REMEMBERED: Nanoseconds = Nanoseconds::from_ms(2_000);
const PASSED_ON: Nanoseconds = Nanoseconds::from_ms(300);

/// How long a root prefers datagrams at first. Each time streams lose packets again soon after, the
/// time doubles, at most [`DOUBLINGS_MAX`] times, so that few messages go on lossy streams.
const PREFERRED_MIN: Nanoseconds = Nanoseconds::from_ms(10_000);
const DOUBLINGS_MAX: u32 = 6;

/// What a node knows of losses on the streams of its subtree.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct StreamLosses {
    /// Until when a stream of the subtree counts as one that loses packets.
    until: Nanoseconds,
    /// At the root: until when datagrams are preferred, and how often that time was doubled.
    preferred_until: Nanoseconds,
    doublings: u32,
}

impl StreamLosses {
    /// A stream of the subtree loses packets, which is to be said for so long.
    fn note(&mut self, now: Nanoseconds, said_for: Nanoseconds) {
        self.until = self.until.max(now + said_for);
        if now < self.preferred_until {
            return;
        }
        let was_preferred = self.preferred_until > Nanoseconds::ZERO;
        let span = Nanoseconds(PREFERRED_MIN.0 << self.doublings);
        let is_soon = was_preferred && now.since(self.preferred_until) < span;
        self.doublings = if is_soon { (self.doublings + 1).min(DOUBLINGS_MAX) } else { 0 };
        self.preferred_until = now + Nanoseconds(PREFERRED_MIN.0 << self.doublings);
    }
}

impl Flow {
    /// The stream of a child loses many packets, as the system says.
    pub fn on_stream_losses(&mut self, now: Nanoseconds, child: MemberId) {
        if self.child_index(child).is_some() {
            self.losses.note(now, REMEMBERED);
        }
    }

    /// A child says that a stream of its subtree loses packets.
    pub(super) fn on_losses_below(&mut self, now: Nanoseconds) {
        self.losses.note(now, PASSED_ON);
    }

    /// Whether a stream of the subtree loses packets.
    pub(super) fn has_stream_losses(&self, now: Nanoseconds) -> bool {
        now < self.losses.until
    }

    /// At the root: until when datagrams are preferred to streams.
    pub const fn datagrams_until(&self) -> Nanoseconds {
        self.losses.preferred_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_tried_again_and_more_seldom_if_they_lose_packets_again() {
        let mut losses = StreamLosses::default();
        let mut now = Nanoseconds::from_ms(1);
        let mut spans = Vec::new();
        for _ in 0..10 {
            losses.note(now, REMEMBERED);
            losses.note(now + Nanoseconds::from_ms(10), REMEMBERED);
            spans.push(losses.preferred_until.since(now).0 / 1_000_000);
            now = losses.preferred_until + Nanoseconds::from_ms(20);
        }
        let expected = [10, 20, 40, 80, 160, 320, 640, 640, 640, 640].map(|seconds| seconds * 1_000);
        assert_eq!(spans, expected);
        // Streams were good for longer than that.
        let later = losses.preferred_until + Nanoseconds::from_ms(700_000);
        losses.note(later, REMEMBERED);
        assert_eq!(losses.preferred_until.since(later), PREFERRED_MIN);
    }
}
