//! The RTT estimator, and the RTO that follows from it.

use crate::Nanoseconds;
use crate::c_layout::c_layout;

c_layout! {
    /// The round-trip time to one neighbour, estimated by RFC 6298 with the variables of RFC 9002,
    /// section 5.
    ///
    /// An acknowledgment returns the timestamp of the packet that requested it, so that
    /// retransmissions do not distort the estimate (RFC 7323, section 4).
    pub struct Rtt {
        /// `SRTT`: the smoothed mean.
        pub smoothed: Nanoseconds,
        /// `RTTVAR`: the mean deviation.
        pub variation: Nanoseconds,
        /// The shortest sample; `u64::MAX` before the first one.
        pub min: Nanoseconds,
        /// The latest sample.
        pub latest: Nanoseconds,
        /// 1 once there is a sample, 0 before.
        pub is_measured: u32,
        /// Padding.
        pub reserved: u32,
    }
}

/// The RTO before the first sample. RFC 6298, section 2.1, has one second, for the Internet; hosts
/// of a cluster answer within microseconds, or once they are scheduled.
const INITIAL_RTO: Nanoseconds = Nanoseconds::from_ms(10);

/// A queueing delay above this one counts as a standing queue (`CoDel`'s target: RFC 8289, section
/// 4.2).
const QUEUEING_DELAY_MAX: Nanoseconds = Nanoseconds::from_ms(5);

/// A queueing delay above this one calls for a smaller window. Between the two a window stays as it
/// is: a sender that is scheduled late finds packets in the queue that keep the link busy
/// meanwhile.
const QUEUEING_DELAY_LONG: Nanoseconds = Nanoseconds::from_us(7_500);

/// Longer samples are clamped: they come from a timestamp of another clock.
const SAMPLE_MAX: Nanoseconds = Nanoseconds::from_ms(60_000);

impl Rtt {
    /// No sample yet.
    pub const UNKNOWN: Self = Self {
        smoothed: Nanoseconds::ZERO,
        variation: Nanoseconds::ZERO,
        min: Nanoseconds(u64::MAX),
        latest: Nanoseconds::ZERO,
        is_measured: 0,
        reserved: 0,
    };

    /// Takes in a sample (RFC 6298, sections 2.2 and 2.3).
    pub(crate) fn on_sample(&mut self, sample: Nanoseconds) {
        let sample = sample.min(SAMPLE_MAX);
        self.min = self.min.min(sample);
        self.latest = sample;
        if self.is_measured == 0 {
            self.is_measured = 1;
            self.smoothed = sample;
            self.variation = Nanoseconds(sample.0 / 2);
        } else {
            self.variation = Nanoseconds((3 * self.variation.0 + self.smoothed.0.abs_diff(sample.0)) / 4);
            self.smoothed = Nanoseconds((7 * self.smoothed.0 + sample.0) / 8);
        }
    }

    /// Takes the delay of an acknowledgment that a different node requested. It is not a round
    /// trip, so the minimum ignores it.
    pub(crate) fn on_delay(&mut self, delay: Nanoseconds) {
        let min = self.min;
        if self.is_measured == 1 {
            self.on_sample(delay);
            self.min = min;
        }
    }

    /// The retransmission timeout without backoff, at least `min_rto` (RFC 6298, sections 2.3 and
    /// 2.4).
    pub(crate) fn rto(&self, min_rto: Nanoseconds) -> Nanoseconds {
        if self.is_measured == 0 {
            INITIAL_RTO
        } else {
            min_rto.max(self.smoothed + Nanoseconds(4 * self.variation.0))
        }
    }

    /// Whether a queue of the network is so long that more packets would only wait longer. The
    /// latest sample decides: in slow start the window may double before the mean follows.
    pub(crate) fn has_standing_queue(&self) -> bool {
        self.latest.since(self.min) > QUEUEING_DELAY_MAX
    }

    /// Whether a queue of the network is so long that there should be fewer packets in flight.
    pub(crate) fn has_long_queue(&self) -> bool {
        self.latest.since(self.min) > QUEUEING_DELAY_LONG
    }

    /// The part of a window of packets with which the queue would have been as long as it may be,
    /// where it was longer.
    pub(crate) const fn without_long_queue(&self, packets: u32) -> u32 {
        let longest_us = self.min.0.saturating_add(QUEUEING_DELAY_LONG.0) / 1_000;
        let latest_us = self.latest.0 / 1_000;
        if latest_us > longest_us { (packets as u64 * longest_us / latest_us) as u32 } else { packets }
    }

    /// Whether an acknowledgment that arrives `elapsed` after a packet was sent may be about that
    /// packet. One that arrives earlier than seven eighths of the shortest RTT was in flight
    /// before.
    pub(crate) const fn is_plausible(&self, elapsed: Nanoseconds) -> bool {
        self.is_measured == 0 || elapsed.0 >= self.min.0 / 8 * 7
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTO: Nanoseconds = Nanoseconds(100);

    #[test]
    fn the_estimate_follows_the_rfc() {
        let mut rtt = Rtt::UNKNOWN;
        assert_eq!(rtt.rto(MIN_RTO), INITIAL_RTO);
        rtt.on_sample(Nanoseconds(800));
        // The first sample is the mean, half of it the deviation.
        assert_eq!(rtt.smoothed, Nanoseconds(800));
        assert_eq!(rtt.rto(MIN_RTO), Nanoseconds(800 + 4 * 400));
        rtt.on_sample(Nanoseconds(1_600));
        assert_eq!(rtt.smoothed, Nanoseconds(900));
        assert_eq!(rtt.rto(MIN_RTO), Nanoseconds(900 + 4 * 500));
    }

    #[test]
    fn a_forged_timestamp_leaves_a_bounded_rto() {
        let mut rtt = Rtt::UNKNOWN;
        for _ in 0..100 {
            rtt.on_sample(Nanoseconds(u64::MAX));
            rtt.on_sample(Nanoseconds(0));
        }
        assert!(rtt.rto(MIN_RTO) <= Nanoseconds(SAMPLE_MAX.0 * 5));
    }

    #[test]
    fn the_rto_is_never_below_the_minimum() {
        let mut rtt = Rtt::UNKNOWN;
        for _ in 0..100 {
            rtt.on_sample(Nanoseconds(10));
        }
        assert_eq!(rtt.rto(Nanoseconds(1_000)), Nanoseconds(1_000));
    }

    #[test]
    fn a_standing_queue_is_seen_in_the_latest_sample() {
        let mut rtt = Rtt::UNKNOWN;
        assert!(!rtt.has_standing_queue());
        rtt.on_sample(Nanoseconds::from_us(100));
        rtt.on_sample(Nanoseconds::from_us(5_000));
        assert!(!rtt.has_standing_queue());
        rtt.on_sample(Nanoseconds::from_us(5_200));
        assert!(rtt.has_standing_queue());
        rtt.on_sample(Nanoseconds::from_us(200));
        assert!(!rtt.has_standing_queue());
    }

    #[test]
    fn a_window_is_reduced_to_what_fills_the_longest_queue() {
        let mut rtt = Rtt::UNKNOWN;
        assert_eq!(rtt.without_long_queue(100), 100);
        for (sample_us, is_long, packets) in [
            (500, false, 100),
            (8_000, false, 100),
            (8_001, true, 99),
            (10_000, true, 80),
            (60_000_000, true, 0),
        ] {
            rtt.on_sample(Nanoseconds::from_us(sample_us));
            assert_eq!(
                (rtt.has_long_queue(), rtt.without_long_queue(100)),
                (is_long, packets),
                "{sample_us}"
            );
        }
    }

    #[test]
    fn the_delay_of_what_another_node_has_requested_is_no_shortest_round_trip() {
        let mut rtt = Rtt::UNKNOWN;
        rtt.on_delay(Nanoseconds(1));
        assert_eq!(rtt, Rtt::UNKNOWN);
        rtt.on_sample(Nanoseconds(800));
        rtt.on_delay(Nanoseconds(1));
        assert_eq!(rtt.min, Nanoseconds(800));
        assert!(rtt.smoothed < Nanoseconds(800));
    }

    #[test]
    fn an_acknowledgment_is_not_quicker_than_the_shortest_rtt() {
        let mut rtt = Rtt::UNKNOWN;
        assert!(rtt.is_plausible(Nanoseconds(0)));
        rtt.on_sample(Nanoseconds(800));
        rtt.on_sample(Nanoseconds(2_000));
        assert!(!rtt.is_plausible(Nanoseconds(699)));
        assert!(rtt.is_plausible(Nanoseconds(700)));
    }
}
