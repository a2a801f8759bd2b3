//! The event queue.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

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
pub struct EventQueue<E> {
    now: Picoseconds,
    scheduled: u64,
    events: BinaryHeap<Reverse<Entry<E>>>,
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

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { now: Picoseconds::ZERO, scheduled: 0, events: BinaryHeap::new() }
    }
}

impl<E> EventQueue<E> {
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

    /// Takes the next event and advances the clock to its time.
    pub fn advance(&mut self) -> Option<E> {
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
}
