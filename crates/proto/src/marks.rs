//! A mark for some of the packets that have slots.

use treecast_wire::Sequence;

/// A set of packets, all within one window of slots: a bit a slot.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    words: Box<[u64]>,
    slot_mask: u32,
    count: u32,
}

impl Marks {
    /// Nothing is marked. `slots` is a power of two.
    pub fn new(slots: u32) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self { words: vec![0; slots.div_ceil(64) as usize].into(), slot_mask: slots - 1, count: 0 }
    }

    const fn place(&self, packet: Sequence) -> (usize, u64) {
        let slot = packet.0 & self.slot_mask;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Whether the packet is marked.
    pub fn has(&self, packet: Sequence) -> bool {
        let (word, bit) = self.place(packet);
        self.words[word] & bit != 0
    }

    /// Marks the packet; says whether it was not.
    pub fn set(&mut self, packet: Sequence) -> bool {
        let (word, bit) = self.place(packet);
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u32::from(is_new);
        is_new
    }

    /// Takes the mark away; says whether there was one.
    pub fn clear(&mut self, packet: Sequence) -> bool {
        let (word, bit) = self.place(packet);
        let was_set = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.count -= u32::from(was_set);
        was_set
    }

    /// The first marked packet from `from` to before `end`, no more than the slots apart.
    pub fn first(&self, from: Sequence, end: Sequence) -> Option<Sequence> {
        if self.count == 0 {
            return None;
        }
        let length = end.distance_from(from).max(0) as u32;
        let mut step = 0;
        while step < length {
            let slot = (from + step).0 & self.slot_mask;
            let rest = self.words[(slot / 64) as usize] >> (slot % 64);
            if rest != 0 {
                let found = step + rest.trailing_zeros();
                return (found < length).then(|| from + found);
            }
            step += (64 - slot % 64).min(self.slot_mask + 1 - slot);
        }
        None
    }

    /// Whether nothing is marked.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_are_a_set(slots in 0..9_u32, start: u32, steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..200), from: u32, length: u32) {
            let slots = 1 << slots;
            let mut marks = Marks::new(slots);
            let mut set = std::collections::BTreeSet::new();
            let start = Sequence(start);
            for (is_set, step) in steps {
                let step = step % slots;
                if is_set {
                    prop_assert_eq!(marks.set(start + step), set.insert(step));
                } else {
                    prop_assert_eq!(marks.clear(start + step), set.remove(&step));
                }
                prop_assert_eq!(marks.has(start + step), is_set);
            }
            let from = from % slots;
            let length = length % (slots - from + 1);
            let first = set.range(from..from + length).next().map(|&step| start + step);
            prop_assert_eq!(marks.first(start + from, start + from + length), first);
            prop_assert_eq!(marks.is_empty(), set.is_empty());
        }
    }
}
