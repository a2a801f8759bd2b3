//! Which part of a host forwards.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Which part of an intermediate host forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// The application process: it receives the whole message, and sends each copy as a message of
    /// its own.
    Host,
    /// The host requests it, once it has received the whole message; the NIC (at run time the node)
    /// makes the copies.
    Assisted,
    /// The NIC alone, packet by packet.
    Nic,
    /// The switches: the root sends a packet once, to a multicast address. Who is not reached gets
    /// it as with `Nic`.
    Switch,
}

impl Offload {
    /// Each with its name, in the order of their numbers on the wire.
    pub const NAMES: [(&str, Self); 4] =
        [("host", Self::Host), ("assisted", Self::Assisted), ("nic", Self::Nic), ("switch", Self::Switch)];

    /// Whether the node forwards packets without its application.
    pub const fn is_by_node(self) -> bool {
        matches!(self, Self::Nic | Self::Switch)
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for Offload {
    type Err = UnknownOffload;

    fn from_str(text: &str) -> Result<Self, UnknownOffload> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, offload)| offload).ok_or_else(|| UnknownOffload(text.into()))
    }
}

/// A text that names no [`Offload`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownOffload(pub String);

impl fmt::Display for UnknownOffload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown offload '{}': known are host, assisted, nic, switch", self.0)
    }
}

impl core::error::Error for UnknownOffload {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        for (number, (name, offload)) in Offload::NAMES.into_iter().enumerate() {
            assert_eq!(offload as usize, number);
            assert_eq!(name.parse(), Ok(offload));
            assert_eq!(offload.to_string(), name);
        }
        assert_eq!(
            "router".parse::<Offload>().unwrap_err().to_string(),
            "unknown offload 'router': known are host, assisted, nic, switch"
        );
    }
}
