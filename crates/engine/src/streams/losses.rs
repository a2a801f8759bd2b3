//! Measures the loss rate of a child's stream, above which datagrams are faster.

use treecast_proto::Nanoseconds;

/// How often the system is asked at most.
const INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

/// What was seen longer ago counts no more.
const WINDOW: Nanoseconds = Nanoseconds::from_ms(1_000);

/// The fewest intervals of a window with retransmissions. A queue that overflows, as at the end of
/// slow start, loses many segments within one or two intervals.
const INTERVALS_MIN: u32 = 4;

/// The fewest segments of a window: among fewer, a delayed acknowledgment counts as a loss.
const SEGMENTS_MIN: u64 = 250;

/// The most segments for each retransmission. With more retransmissions a tree is faster in
/// datagrams (docs/bench.md, "Streams and packets").
const SEGMENTS_PER_LOSS_MAX: u64 = 250;

/// What TCP has retransmitted on a stream lately.
#[derive(Debug, Default)]
pub struct LossMeter {
    asked_at: Nanoseconds,
    window_began_at: Nanoseconds,
    /// Since the window began.
    bytes: u64,
    retransmitted: u64,
    intervals: u32,
    /// What the system has counted so far.
    retransmitted_before: u32,
}

impl LossMeter {
    /// Counts bytes that were written. Returns whether to ask TCP for its retransmissions, and call
    /// [`LossMeter::learn`].
    pub const fn count(&mut self, now: Nanoseconds, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        now.since(self.asked_at).0 >= INTERVAL.0
    }

    /// Takes the number of segments that TCP has retransmitted since the stream began, and the
    /// length of a full segment. Returns whether the loss rate is too high.
    pub fn learn(&mut self, now: Nanoseconds, retransmitted: u32, segment_bytes: u32) -> bool {
        self.asked_at = now;
        if now.since(self.window_began_at) > WINDOW {
            (self.bytes, self.retransmitted, self.intervals) = (0, 0, 0);
            self.window_began_at = now;
        }
        let new = retransmitted.wrapping_sub(self.retransmitted_before);
        self.retransmitted_before = retransmitted;
        self.retransmitted += u64::from(new);
        self.intervals += u32::from(new > 0);
        let segments = self.bytes / u64::from(segment_bytes.max(1));
        self.intervals >= INTERVALS_MIN
            && segments >= SEGMENTS_MIN
            && self.retransmitted * SEGMENTS_PER_LOSS_MAX >= segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_448;

    /// Whether the loss rate is found too high on a stream of 100 segments in each 10 ms, given the
    /// retransmissions in each of these intervals.
    fn loses(lost: impl IntoIterator<Item = u32>) -> bool {
        let (mut meter, mut now, mut retransmitted) = (LossMeter::default(), Nanoseconds::from_ms(5_000), 0);
        lost.into_iter().any(|lost| {
            now += INTERVAL;
            retransmitted += lost;
            meter.count(now, 100 * MSS as usize) && meter.learn(now, retransmitted, MSS)
        })
    }

    #[test]
    fn one_segment_in_a_hundred_is_too_much() {
        assert!(loses([1; 4]));
        assert!(loses([5; 4]));
    }

    #[test]
    fn a_burst_or_a_segment_now_and_then_is_not() {
        assert!(!loses([0, 300, 200, 50, 0, 0, 0].into_iter().chain([0; 300])));
        assert!(!loses([0; 500]));
        assert!(!loses((0..2_000).map(|interval| u32::from(interval % 5 == 0))));
    }

    #[test]
    fn the_system_is_asked_seldom() {
        let mut meter = LossMeter::default();
        let now = Nanoseconds::from_ms(100);
        assert!(meter.count(now, 1));
        meter.learn(now, 0, MSS);
        assert!(!meter.count(now + Nanoseconds::from_ms(9), 1));
        assert!(meter.count(now + Nanoseconds::from_ms(10), 1));
    }
}
