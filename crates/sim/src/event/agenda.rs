//! What is to happen, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_fabric::Cycles;

use super::Event;

/// How many cycles lie on the wheel: most of what happens is scheduled less far ahead. A power of two.
const SPAN: u64 = 4096;
const WORDS: usize = SPAN as usize / 64;

/// Events by their cycle; those of one cycle in the order in which they were scheduled.
///
/// A wheel holds the next [`SPAN`] cycles, a list each, and a bit for each list that is not empty; a heap holds what lies
/// farther ahead. So an event is scheduled and taken in constant time, whatever else is scheduled.
#[derive(Debug)]
pub(super) struct Agenda {
    pub now: Cycles,
    wheel: Vec<Vec<Event>>,
    occupied: [u64; WORDS],
    /// How many events of the current cycle have been taken, and of those before it.
    taken: usize,
    taken_before: u64,
    later: BinaryHeap<Reverse<(Cycles, u64, Event)>>,
    scheduled: u64,
}

impl Agenda {
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

    pub fn at(&mut self, time: Cycles, event: Event) {
        debug_assert!(time >= self.now, "nothing is scheduled into the past");
        if time.0 - self.now.0 < SPAN {
            self.put(time, event);
        } else {
            self.later.push(Reverse((time, self.scheduled, event)));
            self.scheduled += 1;
        }
    }

    pub fn after(&mut self, span: Cycles, event: Event) {
        self.at(self.now + span, event);
    }

    fn put(&mut self, time: Cycles, event: Event) {
        let slot = (time.0 % SPAN) as usize;
        self.wheel[slot].push(event);
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// How many events have been taken so far.
    pub fn taken_in_all(&self) -> u64 {
        self.taken_before + self.taken as u64
    }

    /// Whether something is left to happen in the current cycle.
    pub fn is_due(&self) -> bool {
        self.taken < self.wheel[(self.now.0 % SPAN) as usize].len()
    }

    /// The next event of the current cycle.
    pub fn next_now(&mut self) -> Option<Event> {
        let event = self.wheel[(self.now.0 % SPAN) as usize].get(self.taken).copied();
        self.taken += usize::from(event.is_some());
        event
    }

    /// The next cycle in which something happens, the current one being done.
    pub fn next(&self) -> Option<Cycles> {
        let on_wheel = self.next_on_wheel();
        on_wheel.or_else(|| self.later.peek().map(|Reverse((time, ..))| *time))
    }

    /// The first cycle after the current one whose list is not empty. What lies on the wheel comes before what lies
    /// farther ahead.
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
            // The list of the current cycle is what is found last, a whole turn ahead.
            let ahead = (slot + SPAN - self.now.0 % SPAN) % SPAN;
            (ahead != 0).then(|| self.now + Cycles(ahead))
        })
    }

    /// Goes on to a later cycle, before which nothing happens.
    pub fn advance(&mut self, to: Cycles) {
        debug_assert!(to > self.now && self.next().is_none_or(|next| next >= to), "nothing is passed over");
        let slot = (self.now.0 % SPAN) as usize;
        self.wheel[slot].clear();
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.taken_before += self.taken as u64;
        self.taken = 0;
        self.now = to;
        // What comes onto the wheel was scheduled before anything that will be put there later.
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
        fn events_come_by_cycle_and_then_as_scheduled(
            spans in proptest::collection::vec((0_u64..3 * SPAN, 0_usize..3), 1..200),
        ) {
            let mut agenda = Agenda::new();
            let mut expected = Vec::new();
            let mut found = Vec::new();
            let mut spans = spans.into_iter().zip(0..);
            // Each event that is taken schedules some more.
            let mut schedule = |agenda: &mut Agenda, count: usize, expected: &mut Vec<(u64, u32)>| {
                for ((span, more), number) in spans.by_ref().take(count) {
                    agenda.after(Cycles(span), Event::BusDone(HostId(number * 3 + more as u32)));
                    expected.push((agenda.now.0 + span, number));
                }
            };
            schedule(&mut agenda, 5, &mut expected);
            loop {
                while let Some(event) = agenda.next_now() {
                    let Event::BusDone(HostId(code)) = event else { unreachable!() };
                    found.push((agenda.now.0, code / 3));
                    schedule(&mut agenda, code as usize % 3, &mut expected);
                }
                let Some(next) = agenda.next() else { break };
                agenda.advance(next);
            }
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
