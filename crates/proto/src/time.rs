//! Time, as it is handed in.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in time of one node's own clock, or a span of it, in nanoseconds. The clock never goes back; where it began is of no
/// matter.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// None of it.
    pub const ZERO: Self = Self(0);

    /// So many microseconds.
    pub const fn from_us(microseconds: u64) -> Self {
        Self(microseconds * 1_000)
    }

    /// So many milliseconds.
    pub const fn from_ms(milliseconds: u64) -> Self {
        Self(milliseconds * 1_000_000)
    }

    /// How long ago `earlier` was; nothing if it is yet to come.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanoseconds {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Nanoseconds {
    fn add_assign(&mut self, span: Self) {
        *self = *self + span;
    }
}

impl Sub for Nanoseconds {
    type Output = Self;
    fn sub(self, span: Self) -> Self {
        self.since(span)
    }
}

/// In the largest of ns, us, ms and s that leaves no fraction.
impl fmt::Display for Nanoseconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (size, unit) = units
            .into_iter()
            .find(|(size, _)| self.0 != 0 && self.0.is_multiple_of(*size))
            .unwrap_or((1, "ns"));
        write!(formatter, "{} {unit}", self.0 / size)
    }
}
