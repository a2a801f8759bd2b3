//! Whether a child's stream loses so many packets that datagrams are faster.

use treecast_proto::Nanoseconds;

/// How often the system is asked at most.
const INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

/// What was seen longer ago counts no more.
const WINDOW: Nanoseconds = Nanoseconds::from_ms(1_000);

/// Segments are lost at so many intervals of a window at least. A queue that overflows, as at the
/// end of slow start, loses many at once.
const INTERVALS_MIN: u32 = 4;

/// Fewer segments say little: a delayed acknowledgment may look like a loss.
const SEGMENTS_MIN: u64 = 250;

/// One in so many segments is lost at least. From there on a tree is faster in datagrams
/// (docs/bench.md, "Streams and packets").
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
    /// So many bytes were written. Whether the system is to be asked for the segments that it has
    /// retransmitted.
    pub const fn count(&mut self, now: Nanoseconds, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        now.since(self.asked_at).0 >= INTERVAL.0
    }

    /// The system has retransmitted so many segments since the stream began, of this length at
    /// most. Whether too many are lost.
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

    /// Whether a stream is found to lose too much that carries 100 segments in each 10 ms, of which
    /// so many are lost in each of these intervals.
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
