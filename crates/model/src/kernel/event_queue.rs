//! The event queue.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering as MemoryOrdering};

use treecast_terms::Picoseconds;

/// A run that reaches this time is ended: no earlier time can overflow.
pub const LAST: Picoseconds = Picoseconds(1 << 61);

/// Events in the order of their times; events of one time in the order in which they were
/// scheduled.
///
/// ```
/// use treecast_terms::Picoseconds;
/// use treecast_model::kernel::EventQueue;
///
/// let mut events = EventQueue::default();
/// events.schedule(Picoseconds(20), "later");
/// events.schedule_after(Picoseconds(10), "sooner");
/// assert_eq!(events.advance(), Some("sooner"));
/// assert_eq!(events.now(), Picoseconds(10));
/// ```
#[derive(Debug)]
pub struct EventQueue<'a, E> {
    now: Picoseconds,
    scheduled: u64,
    events: BinaryHeap<Reverse<Entry<E>>>,
    stop: Option<&'a AtomicBool>,
}

#[derive(Debug)]
struct Entry<E> {
    time: Picoseconds,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Picoseconds, u64) {
        (self.time, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventQueue<'_, E> {
    fn default() -> Self {
        Self::stopped_by(None)
    }
}

impl<'a, E> EventQueue<'a, E> {
    /// An empty queue that has no next event once `stop` is set.
    pub fn stopped_by(stop: Option<&'a AtomicBool>) -> Self {
        Self { now: Picoseconds::ZERO, scheduled: 0, events: BinaryHeap::new(), stop }
    }

    /// The time of the event taken last.
    pub fn now(&self) -> Picoseconds {
        self.now
    }

    /// Schedules an event for the current time or later.
    pub fn schedule(&mut self, time: Picoseconds, event: E) {
        debug_assert!(time >= self.now, "events are scheduled for the current time or later");
        self.events.push(Reverse(Entry { time, number: self.scheduled, event }));
        self.scheduled += 1;
    }

    /// Schedules an event after a span from now.
    pub fn schedule_after(&mut self, span: Picoseconds, event: E) {
        self.schedule(self.now + span, event);
    }

    /// Takes the next event and advances the clock to its time. `None` if there is none, or if the
    /// queue is stopped.
    pub fn advance(&mut self) -> Option<E> {
        if self.stop.is_some_and(|stop| stop.load(MemoryOrdering::Relaxed)) {
            return None;
        }
        let Reverse(Entry { time, event, .. }) = self.events.pop()?;
        self.now = time;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_come_in_the_order_of_scheduling() {
        let mut events = EventQueue::default();
        for event in 0..5 {
            events.schedule(Picoseconds(7), event);
        }
        events.schedule(Picoseconds(3), 9);
        let order: Vec<u32> = std::iter::from_fn(|| events.advance()).collect();
        assert_eq!(order, [9, 0, 1, 2, 3, 4]);
        assert_eq!(events.now(), Picoseconds(7));
    }

    #[test]
    fn a_queue_that_is_stopped_has_no_next_event() {
        let stop = AtomicBool::new(false);
        let mut events = EventQueue::stopped_by(Some(&stop));
        events.schedule(Picoseconds(1), 'a');
        events.schedule(Picoseconds(2), 'b');
        assert_eq!(events.advance(), Some('a'));
        stop.store(true, MemoryOrdering::Relaxed);
        assert_eq!((events.advance(), events.now()), (None, Picoseconds(1)));
    }
}
