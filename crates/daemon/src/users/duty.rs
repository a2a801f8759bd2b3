//! How much a user's thread works, so that other users have the processor too.

use std::time::Duration;

/// How long a user's thread may be busy, beyond what it has waited, while other users have clients.
/// Then it pauses for as long, so that a user has at most half of a processor by its messages, and
/// the node's own thread the rest.
const BUSY_MAX: Duration = Duration::from_micros(100);

/// How much longer a thread has worked than it has waited.
#[derive(Debug, Default)]
pub(super) struct Duty(Duration);

impl Duty {
    pub fn on_waited(&mut self, time: Duration) {
        self.0 = self.0.saturating_sub(time);
    }

    pub fn on_worked(&mut self, time: Duration) {
        self.0 += time;
    }

    /// The pause that is due, if one is.
    pub fn take_pause(&mut self) -> Option<Duration> {
        (self.0 > BUSY_MAX).then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_waits_pauses_for_as_long_as_it_works_and_one_with_as_long_waits_never() {
        let step = Duration::from_micros(40);
        let (mut worked, mut paused) = (Duration::ZERO, Duration::ZERO);
        let (mut flooded, mut calm) = (Duty::default(), Duty::default());
        for _ in 0..300 {
            flooded.on_worked(step);
            worked += step;
            paused += flooded.take_pause().unwrap_or_default();
            calm.on_worked(step);
            calm.on_waited(step);
            assert_eq!(calm.take_pause(), None);
        }
        assert_eq!(paused, worked);
    }
}
