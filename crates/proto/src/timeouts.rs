//! The timeouts of groups.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanoseconds;

/// The timeouts of groups, by their indices, and the earliest one.
///
/// The heap has all timeouts, and also some that have been changed since, or are there twice. These
/// are dropped when they come first, and all of them when the heap is full. So a change takes O(log
/// n) steps for n groups, on average, and allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct Timeouts {
    of: Vec<Option<Nanoseconds>>,
    heap: BinaryHeap<Reverse<(Nanoseconds, usize)>>,
}

/// The heap may be as long for few groups.
const HEAP_MIN: usize = 16;

impl Timeouts {
    /// The memory of a group's timeout in bytes: neither table is more than half empty.
    pub const ENTRY_BYTES: usize =
        2 * size_of::<Option<Nanoseconds>>() + 4 * size_of::<(Nanoseconds, usize)>();

    /// Sets the timeout of the group with this index.
    pub fn set(&mut self, index: usize, timeout: Option<Nanoseconds>) {
        if self.of.len() <= index {
            self.of.resize(index + 1, None);
            // Later changes allocate nothing.
            self.heap.reserve(self.heap_max().saturating_sub(self.heap.len()));
        }
        if std::mem::replace(&mut self.of[index], timeout) == timeout {
            return;
        }
        if let Some(timeout) = timeout {
            if self.heap.len() < self.heap_max() {
                self.heap.push(Reverse((timeout, index)));
            } else {
                self.heap.clear();
                let present = self.of.iter().enumerate();
                self.heap.extend(
                    present.filter_map(|(index, timeout)| timeout.map(|timeout| Reverse((timeout, index)))),
                );
            }
        }
    }

    /// The most entries of the heap, twice as many as there are timeouts.
    fn heap_max(&self) -> usize {
        2 * self.of.len().max(HEAP_MIN)
    }

    /// The earliest timeout, and the index of its group.
    pub fn first(&mut self) -> Option<(Nanoseconds, usize)> {
        while let Some(&Reverse((timeout, index))) = self.heap.peek() {
            if self.of[index] == Some(timeout) {
                return Some((timeout, index));
            }
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A timeout that goes and comes back is in the heap twice.
    #[test]
    fn timeouts_that_alternate_fill_no_heap() {
        let mut timeouts = Timeouts::default();
        timeouts.set(0, Some(Nanoseconds(1)));
        for new in 1..8 {
            for _ in 0..50 {
                for index in 1..=new {
                    for timeout in [6, 5, 6] {
                        timeouts.set(index, Some(Nanoseconds(timeout)));
                        assert_eq!(timeouts.first(), Some((Nanoseconds(1), 0)));
                        assert!(timeouts.heap.len() <= timeouts.heap_max());
                    }
                }
            }
        }
        timeouts.set(0, None);
        assert_eq!(timeouts.first(), Some((Nanoseconds(6), 1)));
    }

    proptest! {
        #[test]
        fn the_first_is_the_earliest(changes in prop::collection::vec((0..40_usize, prop::option::of(0..30_u64)), 0..600)) {
            let mut timeouts = Timeouts::default();
            let mut known = [None; 40];
            for (index, timeout) in changes {
                let timeout = timeout.map(Nanoseconds);
                timeouts.set(index, timeout);
                known[index] = timeout;
                let earliest = known.iter().flatten().min().copied();
                prop_assert_eq!(timeouts.first().map(|(timeout, _)| timeout), earliest);
                prop_assert!(timeouts.heap.len() <= 2 * 40);
            }
        }
    }
}
