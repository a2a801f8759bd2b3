//! Where data comes from.

use super::Carrier;

/// The source of a data packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// From the parent, along the tree.
    Parent(Carrier),
    /// By multicast, from the root, which is the parent.
    ParentByMulticast,
    /// By multicast, from the root, which is not the parent.
    RootByMulticast,
}

impl DataSource {
    pub const fn is_multicast(self) -> bool {
        !matches!(self, Self::Parent(_))
    }

    pub const fn carrier(self) -> Carrier {
        match self {
            Self::Parent(carrier) => carrier,
            Self::ParentByMulticast | Self::RootByMulticast => Carrier::Datagram,
        }
    }
}
