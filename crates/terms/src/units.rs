//! Units of simulated time and size: integers in types of their own.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        pub struct $name(pub u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                Self(items.map(|item| item.0).sum())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!("{} ", $suffix), self.0)
            }
        }
    };
}

unit!(
    /// A point in simulated time, or a span of it, in cycles.
    Cycles, "cycles"
);
unit!(
    /// A length in flits. A flit is what a link carries in one cycle: one byte.
    Flits, "flits"
);
unit!(
    /// A span of real time, or a point in it, in picoseconds.
    Picoseconds, "ps"
);
unit!(
    /// A length in bytes.
    Bytes, "bytes"
);

/// A point in time of one node's own clock, or a span of it, in nanoseconds. The clock is
/// monotonic, with any origin. Sums and differences saturate.
#[derive(
    Debug,
    Default,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
)]
#[repr(transparent)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// From microseconds.
    pub const fn from_us(microseconds: u64) -> Self {
        Self(microseconds * 1_000)
    }

    /// From milliseconds.
    pub const fn from_ms(milliseconds: u64) -> Self {
        Self(milliseconds * 1_000_000)
    }

    /// The span since `earlier`; zero if that is in the future.
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
