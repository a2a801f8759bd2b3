//! What all members of a group do together.

use core::fmt;
use core::str::FromStr;

/// An operation of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The root sends a message to all others.
    #[default]
    Broadcast,
    /// The values of all members are combined on the way up the tree, and all get the result.
    AllReduce,
    /// All wait until all have called: an all-reduce without values.
    Barrier,
}

impl Operation {
    /// All, with their names.
    pub const NAMES: [(&str, Self); 3] =
        [("broadcast", Self::Broadcast), ("all-reduce", Self::AllReduce), ("barrier", Self::Barrier)];
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(Self::NAMES[*self as usize].0)
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
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_operations() {
        for (number, (name, operation)) in Operation::NAMES.into_iter().enumerate() {
            assert_eq!((operation as usize, operation.to_string().as_str()), (number, name));
            assert_eq!(name.parse(), Ok(operation));
        }
        assert_eq!("reduce".parse::<Operation>(), Err("broadcast, all-reduce or barrier"));
    }
}
