//! Where data comes from.

use super::Way;

/// The source of a data packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// From the parent, along the tree.
    Parent(Way),
    /// By multicast, from the root, which is the parent.
    ParentByMulticast,
    /// By multicast, from the root, which is not the parent.
    RootByMulticast,
}

impl DataSource {
    pub const fn is_multicast(self) -> bool {
        !matches!(self, Self::Parent(_))
    }

    pub const fn way(self) -> Way {
        match self {
            Self::Parent(way) => way,
            Self::ParentByMulticast | Self::RootByMulticast => Way::Datagram,
        }
    }
}
