//! Sequence numbers.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of a packet in its group. It wraps, and is compared by serial number arithmetic (RFC
/// 1982), which is defined for numbers less than 2^31 apart; windows are far smaller
/// ([`crate::Table::SLOTS_MAX`]).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Sequence(pub u32);

impl Sequence {
    /// Whether this number comes before the other.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// The distance from the other number to this one; negative if this one is before it.
    pub const fn distance_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// The earlier one.
    pub const fn min(self, other: Self) -> Self {
        if self.is_before(other) { self } else { other }
    }

    /// The later one.
    pub const fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// The numbers from this one to before `end`; none if `end` is not later.
    pub fn until(self, end: Self) -> impl DoubleEndedIterator<Item = Self> {
        (0..end.distance_from(self).max(0) as u32).map(move |step| self + step)
    }
}

impl Add<u32> for Sequence {
    type Output = Self;
    fn add(self, steps: u32) -> Self {
        Self(self.0.wrapping_add(steps))
    }
}

impl AddAssign<u32> for Sequence {
    fn add_assign(&mut self, steps: u32) {
        *self = *self + steps;
    }
}

impl Sub<u32> for Sequence {
    type Output = Self;
    fn sub(self, steps: u32) -> Self {
        Self(self.0.wrapping_sub(steps))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_across_the_wrap() {
        let last = Sequence(u32::MAX);
        assert!(last.is_before(last + 1));
        assert_eq!(last + 1, Sequence(0));
        assert_eq!((last + 3).distance_from(last - 2), 5);
        assert_eq!(last.min(Sequence(2)), last);
        assert_eq!(last.max(Sequence(2)), Sequence(2));
        assert!(last.until(Sequence(2)).eq([last, Sequence(0), Sequence(1)]));
        assert_eq!(Sequence(2).until(last).count(), 0);
    }
}
