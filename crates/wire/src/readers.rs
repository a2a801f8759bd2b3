//! The processes that share a member's node, as reported to the root.

use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A set of the processes that share a node, by their places on it: 0 to 255.
///
/// ```
/// use treecast_wire::ReaderSet;
///
/// let mut set = ReaderSet::first(3);
/// set.remove(1);
/// assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2]);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderSet([u64; 4]);

/// The processes that share a member's node and have not come yet, and those that are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readers {
    /// Processes that have not come yet.
    pub awaited: ReaderSet,
    /// Processes that were gone before they had everything.
    pub lost: ReaderSet,
}

/// [`Readers`] in a packet: the sets as four numbers each, place 0 in the least bit of the first.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct ReadersLayout {
    awaited: [U64; 4],
    lost: [U64; 4],
}

impl ReaderSet {
    /// The greatest number of processes.
    pub const READERS_MAX: u32 = 256;

    /// The first places, up to all of them.
    pub fn first(count: u32) -> Self {
        let mut set = Self::default();
        (0..count.min(Self::READERS_MAX)).for_each(|place| set.insert(place));
        set
    }

    /// Adds a place; a place of [`Self::READERS_MAX`] or more is ignored.
    pub const fn insert(&mut self, place: u32) {
        if place < Self::READERS_MAX {
            self.0[(place / 64) as usize] |= 1 << (place % 64);
        }
    }

    /// Removes a place.
    pub const fn remove(&mut self, place: u32) {
        if place < Self::READERS_MAX {
            self.0[(place / 64) as usize] &= !(1 << (place % 64));
        }
    }

    /// Whether a place is in the set.
    pub const fn contains(&self, place: u32) -> bool {
        place < Self::READERS_MAX && self.0[(place / 64) as usize] & (1 << (place % 64)) != 0
    }

    /// Whether no place is in the set.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// The places that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The places that are in this set and not in the other one.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The places that are in one of the sets.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The places, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let set = *self;
        (0..Self::READERS_MAX).filter(move |&place| set.contains(place))
    }
}

impl ReadersLayout {
    pub fn new(readers: &Readers) -> Self {
        Self { awaited: readers.awaited.0.map(U64::new), lost: readers.lost.0.map(U64::new) }
    }

    pub fn read(&self) -> Readers {
        let set = |words: &[U64; 4]| ReaderSet(words.map(U64::get));
        Readers { awaited: set(&self.awaited), lost: set(&self.lost) }
    }
}
