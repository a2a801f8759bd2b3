//! Sets of packets.

use treecast_wire::Sequence;

/// A set of packets within one window of slots: one bit per slot, which take memory from the first
/// packet on.
#[derive(Debug, Clone)]
pub(crate) struct Bitmap {
    /// Empty before the first packet.
    words: Box<[u64]>,
    slot_mask: u32,
    count: u32,
}

impl Bitmap {
    /// The empty set. `slots` is a power of two.
    pub fn new(slots: u32) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self { words: Box::default(), slot_mask: slots - 1, count: 0 }
    }

    /// The memory that a set allocates with its first packet, in bytes.
    pub const fn heap_bytes(slots: u32) -> usize {
        Self::words(slots) * size_of::<u64>()
    }

    const fn words(slots: u32) -> usize {
        slots.div_ceil(64) as usize
    }

    const fn word_and_bit(&self, packet: Sequence) -> (usize, u64) {
        let slot = packet.0 & self.slot_mask;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Whether the packet is in the set.
    pub fn contains(&self, packet: Sequence) -> bool {
        let (word, bit) = self.word_and_bit(packet);
        self.count > 0 && self.words[word] & bit != 0
    }

    /// Adds a packet; false if it was in the set.
    pub fn insert(&mut self, packet: Sequence) -> bool {
        let (word, bit) = self.word_and_bit(packet);
        if self.words.is_empty() {
            self.words = vec![0; Self::words(self.slot_mask + 1)].into();
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u32::from(is_new);
        is_new
    }

    /// Removes a packet; false if it was not in the set.
    pub fn remove(&mut self, packet: Sequence) -> bool {
        if self.count == 0 {
            return false;
        }
        let (word, bit) = self.word_and_bit(packet);
        let was_set = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.count -= u32::from(was_set);
        was_set
    }

    /// The first packet of the set from `from` to before `end`, which is at most the number of
    /// slots after `from`.
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

    /// Whether the set is empty.
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
        fn a_bitmap_is_a_set(slots in 0..9_u32, start: u32, steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..200), from: u32, length: u32) {
            let slots = 1 << slots;
            let mut bitmap = Bitmap::new(slots);
            let mut set = std::collections::BTreeSet::new();
            let start = Sequence(start);
            for (is_set, step) in steps {
                let step = step % slots;
                if is_set {
                    prop_assert_eq!(bitmap.insert(start + step), set.insert(step));
                } else {
                    prop_assert_eq!(bitmap.remove(start + step), set.remove(&step));
                }
                prop_assert_eq!(bitmap.contains(start + step), is_set);
            }
            let from = from % slots;
            let length = length % (slots - from + 1);
            let first = set.range(from..from + length).next().map(|&step| start + step);
            prop_assert_eq!(bitmap.first(start + from, start + from + length), first);
            prop_assert_eq!(bitmap.is_empty(), set.is_empty());
        }
    }
}
