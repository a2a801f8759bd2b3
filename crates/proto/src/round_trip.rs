//! How long an answer takes, and how long to wait for one.

use crate::Nanoseconds;
use crate::lent::LentTrip;

/// The round trip to one neighbour, estimated as RFC 6298 says. Acknowledgments give back the time at which the packet was
/// sent that asked for them, so that repeated packets do not spoil the estimate (RFC 7323, section 4).
#[derive(Debug, Clone)]
pub(crate) struct RoundTrip {
    floor: Nanoseconds,
    smoothed: Option<Nanoseconds>,
    variation: Nanoseconds,
    shortest: Nanoseconds,
    last: Nanoseconds,
}

/// The wait before anything is known. RFC 6298 says a second, for the Internet; a cluster answers in microseconds, and its
/// hosts when they are scheduled.
const FIRST_WAIT: Nanoseconds = Nanoseconds::from_ms(10);

/// A queue on the way that takes longer is a bad one (`CoDel`, RFC 8289, section 4.2: 5 ms).
const QUEUE_MAX: Nanoseconds = Nanoseconds::from_ms(5);

/// No answer takes longer; one that seems to speaks of another clock.
const SAMPLE_MAX: Nanoseconds = Nanoseconds::from_ms(60_000);

impl RoundTrip {
    /// Nothing is known but that a wait is never shorter than `floor`.
    pub const fn new(floor: Nanoseconds) -> Self {
        Self {
            floor,
            smoothed: None,
            variation: Nanoseconds::ZERO,
            shortest: Nanoseconds(u64::MAX),
            last: Nanoseconds::ZERO,
        }
    }

    /// Takes in a measured round trip (RFC 6298, section 2.2 and 2.3).
    pub fn measured(&mut self, sample: Nanoseconds) {
        let sample = sample.min(SAMPLE_MAX);
        self.shortest = self.shortest.min(sample);
        self.last = sample;
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = Nanoseconds(sample.0 / 2);
            }
            Some(smoothed) => {
                self.variation = Nanoseconds((3 * self.variation.0 + smoothed.0.abs_diff(sample.0)) / 4);
                self.smoothed = Some(Nanoseconds((7 * smoothed.0 + sample.0) / 8));
            }
        }
    }

    pub const fn lend(&self) -> LentTrip {
        let Self { smoothed, variation, shortest, last, .. } = *self;
        LentTrip { smoothed, variation, shortest, last }
    }

    pub const fn take_back(&mut self, lent: LentTrip) {
        let LentTrip { smoothed, variation, shortest, last } = lent;
        (self.smoothed, self.variation, self.shortest, self.last) = (smoothed, variation, shortest, last);
    }

    /// How long to wait for an answer before asking again.
    pub fn wait(&self) -> Nanoseconds {
        let Some(smoothed) = self.smoothed else { return FIRST_WAIT };
        self.floor.max(smoothed + Nanoseconds(4 * self.variation.0))
    }

    /// Whether packets wait in a queue on the way for so long that more of them would only wait longer. The last answer says so: a
    /// window may have doubled by the time that the mean does.
    pub fn is_queueing(&self) -> bool {
        self.last.since(self.shortest) > QUEUE_MAX
    }

    /// Whether an answer may speak of a packet that was sent that long ago. A quicker one was under way already.
    pub const fn may_have_passed(&self, span: Nanoseconds) -> bool {
        self.smoothed.is_none() || span.0 >= self.shortest.0 / 8 * 7
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_rfc() {
        let mut trip = RoundTrip::new(Nanoseconds(100));
        assert_eq!(trip.wait(), FIRST_WAIT);
        trip.measured(Nanoseconds(800));
        // The first sample is the mean, half of it the variation.
        assert_eq!((trip.smoothed, trip.wait()), (Some(Nanoseconds(800)), Nanoseconds(800 + 4 * 400)));
        trip.measured(Nanoseconds(1_600));
        assert_eq!((trip.smoothed, trip.wait()), (Some(Nanoseconds(900)), Nanoseconds(900 + 4 * 500)));
    }

    #[test]
    fn an_answer_to_a_forged_time_leaves_a_wait_that_ends() {
        let mut trip = RoundTrip::new(Nanoseconds(100));
        for _ in 0..100 {
            trip.measured(Nanoseconds(u64::MAX));
            trip.measured(Nanoseconds(0));
        }
        assert!(trip.wait() <= Nanoseconds(SAMPLE_MAX.0 * 5));
    }

    #[test]
    fn a_wait_is_never_below_the_floor() {
        let mut trip = RoundTrip::new(Nanoseconds(1_000));
        for _ in 0..100 {
            trip.measured(Nanoseconds(10));
        }
        assert_eq!(trip.wait(), Nanoseconds(1_000));
    }

    #[test]
    fn a_round_trip_that_has_grown_by_more_than_a_queue_should_take_tells_of_one() {
        let mut trip = RoundTrip::new(Nanoseconds(1));
        assert!(!trip.is_queueing());
        trip.measured(Nanoseconds::from_us(100));
        trip.measured(Nanoseconds::from_us(5_000));
        assert!(!trip.is_queueing());
        trip.measured(Nanoseconds::from_us(5_200));
        assert!(trip.is_queueing());
        trip.measured(Nanoseconds::from_us(200));
        assert!(!trip.is_queueing());
    }

    #[test]
    fn an_answer_cannot_be_quicker_than_the_quickest() {
        let mut trip = RoundTrip::new(Nanoseconds(1));
        assert!(trip.may_have_passed(Nanoseconds(0)));
        trip.measured(Nanoseconds(800));
        trip.measured(Nanoseconds(2_000));
        assert!(!trip.may_have_passed(Nanoseconds(699)));
        assert!(trip.may_have_passed(Nanoseconds(700)));
    }
}
