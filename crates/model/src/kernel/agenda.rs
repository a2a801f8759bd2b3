//! What is to happen, and when.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use treecast_fabric::Picoseconds;

/// A run that has come so far is given up: no time can overflow before.
pub const LAST: Picoseconds = Picoseconds(1 << 61);

/// Events by their time; those of one time in the order in which they were planned.
///
/// ```
/// use treecast_fabric::Picoseconds;
/// use treecast_model::kernel::Agenda;
///
/// let mut agenda = Agenda::default();
/// agenda.at(Picoseconds(20), "later");
/// agenda.after(Picoseconds(10), "sooner");
/// assert_eq!(agenda.advance(), Some("sooner"));
/// assert_eq!(agenda.now(), Picoseconds(10));
/// ```
#[derive(Debug)]
pub struct Agenda<E> {
    now: Picoseconds,
    planned: u64,
    events: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    time: Picoseconds,
    place: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Picoseconds, u64) {
        (self.time, self.place)
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

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: Picoseconds::ZERO, planned: 0, events: BinaryHeap::new() }
    }
}

impl<E> Agenda<E> {
    /// The time of the event taken last.
    pub fn now(&self) -> Picoseconds {
        self.now
    }

    /// Plans an event for a time that has not passed.
    pub fn at(&mut self, time: Picoseconds, event: E) {
        debug_assert!(time >= self.now, "nothing is planned into the past");
        self.events.push(Reverse(Entry { time, place: self.planned, event }));
        self.planned += 1;
    }

    /// Plans an event for so much later.
    pub fn after(&mut self, span: Picoseconds, event: E) {
        self.at(self.now + span, event);
    }

    /// Takes the next event: from now on it is its time.
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
    fn events_of_one_time_come_as_they_were_planned() {
        let mut agenda = Agenda::default();
        for event in 0..5 {
            agenda.at(Picoseconds(7), event);
        }
        agenda.at(Picoseconds(3), 9);
        let order: Vec<u32> = std::iter::from_fn(|| agenda.advance()).collect();
        assert_eq!(order, [9, 0, 1, 2, 3, 4]);
        assert_eq!(agenda.now(), Picoseconds(7));
    }
}
