//! How long a waiting thread spins before it sleeps.
//!
//! To wake a sleeping thread takes longer than most messages. A thread that spins, and yields the
//! processor after each check of its condition, costs the others of the machine little, as long as
//! these yield too or have processors of their own. Next to a thread that computes it gets the
//! processor only after that one's time slice; and it occupies a processor on which threads could
//! run that wait for another one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::sched_yield;

/// Decides, for all threads that wait at a node, whether to spin before they sleep.
#[derive(Debug)]
pub struct SpinPolicy {
    /// How long to spin each time; none: as long as recent waits suggest.
    fixed: Option<Duration>,
    /// The mean of recent waits, in microseconds. Each wait changes it by a fraction, and threads
    /// may overwrite one another's change.
    mean_us: AtomicU32,
    /// The number of waits until spinning is tried again, after another thread has kept the
    /// processor.
    paused: AtomicU32,
}

/// If waits last longer than this on average, threads sleep at once. A longer wait counts as twice
/// this at most.
const MEAN_MAX: Duration = Duration::from_millis(1);

/// The weight of one wait in the mean.
const MEAN_WEIGHT: u32 = 8;

/// Another thread has kept the processor if the time from one check to the next is longer. A time
/// slice is longer, and what some tens of other threads take that spin or handle a message is
/// shorter.
const CHECK_MAX: Duration = Duration::from_micros(1_500);

/// The number of waits for which threads sleep at once after that.
const PAUSED_WAITS: u32 = 64;

impl SpinPolicy {
    /// Spins for this time in each wait, or as long as recent waits suggest.
    pub const fn new(fixed: Option<Duration>) -> Self {
        let mean_us = AtomicU32::new(2 * MEAN_MAX.as_micros() as u32);
        Self { fixed, mean_us, paused: AtomicU32::new(0) }
    }

    /// A wait begins.
    pub fn begin(&self) -> Spin<'_> {
        let now = Instant::now();
        Spin { policy: self, begun: now, checked: now, until: now + self.span() }
    }

    /// How long the next wait may spin.
    fn span(&self) -> Duration {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        let paused = self.paused.load(Ordering::Relaxed);
        if paused > 0 {
            self.paused.store(paused - 1, Ordering::Relaxed);
            return Duration::ZERO;
        }
        let mean = Duration::from_micros(self.mean_us.load(Ordering::Relaxed).into());
        if mean > MEAN_MAX { Duration::ZERO } else { 2 * mean + CHECK_MAX }
    }

    /// Learns how long a wait was.
    fn learn(&self, wait: Duration) {
        let us = wait.min(2 * MEAN_MAX).as_micros() as u32;
        let mean = self.mean_us.load(Ordering::Relaxed);
        self.mean_us.store((mean * (MEAN_WEIGHT - 1) + us) / MEAN_WEIGHT, Ordering::Relaxed);
    }
}

/// One wait: dropped when it is over.
#[derive(Debug)]
pub struct Spin<'a> {
    policy: &'a SpinPolicy,
    begun: Instant,
    checked: Instant,
    until: Instant,
}

impl Spin<'_> {
    /// Whether the wait spins at all: [`Spin::goes_on`] says later when it ceases to.
    pub fn begins(&self) -> bool {
        self.checked < self.until
    }

    /// Whether to check again, and not to sleep. If so, other threads have had the processor in
    /// between.
    pub fn goes_on(&mut self) -> bool {
        if self.until <= self.checked {
            return false;
        }
        sched_yield();
        let now = Instant::now();
        if now - self.checked > CHECK_MAX && self.policy.fixed.is_none() {
            self.policy.paused.store(PAUSED_WAITS, Ordering::Relaxed);
            self.until = now;
        }
        self.checked = now;
        now < self.until
    }
}

impl Drop for Spin<'_> {
    fn drop(&mut self) {
        if self.policy.fixed.is_none() {
            self.policy.learn(self.begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_spin_while_waits_are_short_and_sleep_at_once_when_they_are_long() {
        let policy = SpinPolicy::new(None);
        assert_eq!(policy.span(), Duration::ZERO);
        (0..20).for_each(|_| policy.learn(Duration::from_micros(100)));
        let span = policy.span();
        assert!(span > CHECK_MAX && span < CHECK_MAX + MEAN_MAX, "{span:?}");
        (0..20).for_each(|_| policy.learn(Duration::from_secs(1)));
        assert_eq!(policy.span(), Duration::ZERO);
    }

    #[test]
    fn a_thread_that_keeps_the_processor_ends_spinning_for_some_waits() {
        let policy = SpinPolicy::new(None);
        (0..20).for_each(|_| policy.learn(Duration::ZERO));
        let mut spin = policy.begin();
        spin.checked -= 2 * CHECK_MAX;
        assert!(!spin.goes_on());
        assert!(!spin.goes_on());
        let paused = (0..PAUSED_WAITS).take_while(|_| policy.span().is_zero()).count();
        assert_eq!(paused, PAUSED_WAITS as usize);
        assert!(!policy.span().is_zero());
    }

    #[test]
    fn a_fixed_span_stays() {
        let policy = SpinPolicy::new(Some(Duration::ZERO));
        assert!(!policy.begin().goes_on());
        (0..20).for_each(|_| policy.learn(Duration::ZERO));
        assert_eq!(policy.span(), Duration::ZERO);
        let policy = SpinPolicy::new(Some(Duration::from_mins(1)));
        assert!(policy.begin().goes_on());
    }
}
