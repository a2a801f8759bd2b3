//! Identifiers: integers in newtypes, dense from 0; and vertices, which are hosts or switches.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into a table with one entry per id.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A host. Hosts are numbered from 0 without gaps.
    HostId(u32), "h"
);
id!(
    /// A switch. Switches are numbered from 0 without gaps.
    SwitchId(u32), "s"
);
id!(
    /// A directed link. A physical link is two of them.
    LinkId(u32), "link "
);
id!(
    /// A port of a switch, below the switch's number of ports.
    PortNumber(u32), ""
);

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vertex {
    /// A host: one network interface, one link in and one out.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

impl Vertex {
    /// The switch, if it is one.
    pub const fn switch(self) -> Option<SwitchId> {
        match self {
            Self::Switch(switch) => Some(switch),
            Self::Host(_) => None,
        }
    }

    /// The host, if it is one.
    pub const fn host(self) -> Option<HostId> {
        match self {
            Self::Host(host) => Some(host),
            Self::Switch(_) => None,
        }
    }
}

impl fmt::Display for Vertex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => host.fmt(formatter),
            Self::Switch(switch) => switch.fmt(formatter),
        }
    }
}
