//! The event queue: a calendar of cycles, in front of a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_terms::Cycles;

use super::Event;

/// How many cycles the wheel covers: most events are scheduled less far ahead. A power of two.
const SPAN: u64 = 4096;
const WORDS: usize = SPAN as usize / 64;

/// Events in the order of their cycles; events of one cycle in the order in which they were
/// scheduled.
///
/// A timing wheel holds one list of events for each of the next [`SPAN`] cycles, and one bit for
/// each list that is not empty; a heap holds the events that lie farther ahead. So scheduling and
/// taking an event takes constant time, however many events are scheduled.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub now: Cycles,
    wheel: Vec<Vec<Event>>,
    occupied: [u64; WORDS],
    /// How many events of the current cycle have been taken, and how many of all earlier cycles.
    taken: usize,
    taken_before: u64,
    later: BinaryHeap<Reverse<(Cycles, u64, Event)>>,
    scheduled: u64,
}

impl EventQueue {
    pub fn new() -> Self {
        Self {
            now: Cycles::ZERO,
            wheel: vec![Vec::new(); SPAN as usize],
            occupied: [0; WORDS],
            taken: 0,
            taken_before: 0,
            later: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    pub fn schedule(&mut self, time: Cycles, event: Event) {
        debug_assert!(time >= self.now, "events are scheduled for the current cycle or later");
        if time.0 - self.now.0 < SPAN {
            self.put(time, event);
        } else {
            self.later.push(Reverse((time, self.scheduled, event)));
            self.scheduled += 1;
        }
    }

    pub fn schedule_after(&mut self, span: Cycles, event: Event) {
        self.schedule(self.now + span, event);
    }

    fn put(&mut self, time: Cycles, event: Event) {
        let slot = (time.0 % SPAN) as usize;
        self.wheel[slot].push(event);
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// How many events have been taken so far.
    pub fn taken_total(&self) -> u64 {
        self.taken_before + self.taken as u64
    }

    /// Whether an event of the current cycle has not been taken.
    pub fn is_due(&self) -> bool {
        self.taken < self.wheel[(self.now.0 % SPAN) as usize].len()
    }

    /// The next event of the current cycle.
    pub fn next_now(&mut self) -> Option<Event> {
        let event = self.wheel[(self.now.0 % SPAN) as usize].get(self.taken).copied();
        self.taken += usize::from(event.is_some());
        event
    }

    /// The next cycle that has events, once those of the current cycle are done.
    pub fn next(&self) -> Option<Cycles> {
        let on_wheel = self.next_on_wheel();
        on_wheel.or_else(|| self.later.peek().map(|Reverse((time, ..))| *time))
    }

    /// The first cycle after the current one whose list is not empty. Every event on the wheel
    /// comes before every event in the heap.
    fn next_on_wheel(&self) -> Option<Cycles> {
        let start = (self.now.0 + 1) % SPAN;
        let (word, bit) = (start as usize / 64, start % 64);
        let first = self.occupied[word] & (u64::MAX << bit);
        let found = if first != 0 {
            Some((word, first))
        } else {
            (1..=WORDS).map(|step| (word + step) % WORDS).find_map(|word| {
                let bits = self.occupied[word];
                (bits != 0).then_some((word, bits))
            })
        };
        found.and_then(|(word, bits)| {
            let slot = word as u64 * 64 + u64::from(bits.trailing_zeros());
            // The search reaches the list of the current cycle last, one whole turn of the wheel
            // ahead.
            let ahead = (slot + SPAN - self.now.0 % SPAN) % SPAN;
            (ahead != 0).then(|| self.now + Cycles(ahead))
        })
    }

    /// Advances to a later cycle. There must be no event before it.
    pub fn advance(&mut self, to: Cycles) {
        debug_assert!(to > self.now && self.next().is_none_or(|next| next >= to), "no event is skipped");
        let slot = (self.now.0 % SPAN) as usize;
        self.wheel[slot].clear();
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.taken_before += self.taken as u64;
        self.taken = 0;
        self.now = to;
        // These events were scheduled before any event that will be put on the wheel later, so the
        // order of a list holds.
        while let Some(&Reverse((time, _, event))) = self.later.peek() {
            if time.0 - to.0 >= SPAN {
                break;
            }
            self.later.pop();
            self.put(time, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treecast_fabric::HostId;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn events_come_in_the_order_of_cycles_and_then_of_scheduling(
            spans in proptest::collection::vec((0_u64..3 * SPAN, 0_usize..3), 1..200),
        ) {
            let mut events = EventQueue::new();
            let mut expected = Vec::new();
            let mut found = Vec::new();
            let mut spans = spans.into_iter().zip(0..);
            // Each event that is taken schedules some more.
            let mut schedule = |events: &mut EventQueue, count: usize, expected: &mut Vec<(u64, u32)>| {
                for ((span, more), number) in spans.by_ref().take(count) {
                    events.schedule_after(Cycles(span), Event::BusDone(HostId(number * 3 + more as u32)));
                    expected.push((events.now.0 + span, number));
                }
            };
            schedule(&mut events, 5, &mut expected);
            loop {
                while let Some(event) = events.next_now() {
                    let Event::BusDone(HostId(code)) = event else { unreachable!() };
                    found.push((events.now.0, code / 3));
                    schedule(&mut events, code as usize % 3, &mut expected);
                }
                let Some(next) = events.next() else { break };
                events.advance(next);
            }
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
