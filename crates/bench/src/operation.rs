//! What all members of a group do together, and a benchmark measures.

use std::fmt;
use std::str::FromStr;

use treecast_node::Values;

use crate::error::BenchError;

/// An operation of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// The root sends a message to all others.
    #[default]
    Broadcast,
    /// All get the sums of the values of all, which are `f64`.
    AllReduce,
    /// All wait until all have come.
    Barrier,
}

impl Operation {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("broadcast", Self::Broadcast), ("all-reduce", Self::AllReduce), ("barrier", Self::Barrier)];

    /// The sizes that are measured if none are given.
    pub const fn default_sizes(self) -> &'static [usize] {
        match self {
            Self::Broadcast => &[1, 64, 1 << 10, 16 << 10],
            Self::AllReduce => &[8, 64, Values::BYTES_MAX],
            Self::Barrier => &[0],
        }
    }

    /// # Errors
    /// [`BenchError::Bounds`] and [`BenchError::Combination`] for a size that it cannot have.
    pub(crate) fn check_size(self, bytes: usize) -> Result<(), BenchError> {
        let (value, values_max) = (size_of::<f64>(), Values::BYTES_MAX);
        let (what, min, max) = match self {
            Self::Broadcast => ("a size", 0, 4 << 30),
            Self::AllReduce => ("a size of an all-reduce", value, values_max),
            Self::Barrier => ("a size of a barrier", 0, usize::MAX),
        };
        if !(min..=max).contains(&bytes) {
            let (given, min, max) = (bytes as u64, min as u64, max as u64);
            return Err(BenchError::Bounds { what, given, min, max });
        }
        let refused =
            |why| Err(BenchError::Combination { what: format!("operation {self} with {bytes} bytes"), why });
        match self {
            Self::AllReduce if !bytes.is_multiple_of(value) => refused("its values have 8 bytes each"),
            Self::Barrier if bytes > 0 => refused("a barrier has no size, so leave out --sizes"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for Operation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, operation)| operation).ok_or("broadcast, all-reduce or barrier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_operations_and_default_sizes_are_possible() {
        for (number, (name, operation)) in Operation::NAMES.into_iter().enumerate() {
            assert_eq!((operation as usize, operation.to_string().as_str()), (number, name));
            assert_eq!(name.parse(), Ok(operation));
            assert!(operation.default_sizes().iter().all(|&bytes| operation.check_size(bytes).is_ok()));
        }
        assert_eq!("reduce".parse::<Operation>(), Err("broadcast, all-reduce or barrier"));
    }

    #[test]
    fn a_size_that_an_operation_cannot_have_is_refused() {
        let refused = |operation: Operation, bytes| operation.check_size(bytes).unwrap_err().to_string();
        assert_eq!(
            refused(Operation::AllReduce, 512),
            "a size of an all-reduce must be from 8 to 504, and not 512"
        );
        assert_eq!(
            refused(Operation::AllReduce, 12),
            "operation all-reduce with 12 bytes: its values have 8 bytes each"
        );
        assert_eq!(
            refused(Operation::Barrier, 8),
            "operation barrier with 8 bytes: a barrier has no size, so leave out --sizes"
        );
    }
}
