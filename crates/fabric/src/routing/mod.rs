//! Routing: the links that packets may take.

mod dimension_order;
mod direct;
mod next_links;
mod ports;
mod route_finder;
mod shortest_path;
mod tree_worm;
mod up_down;

pub use dimension_order::{DimensionOrder, Ties, VirtualChannels};
pub use direct::{Minimal, Valiant};
pub use next_links::NextLinks;
pub use route_finder::RouteFinder;
pub use shortest_path::ShortestPath;
pub use tree_worm::Overlap;
pub use up_down::{Distances, UpDown};

use crate::error::FabricError;
use crate::ids::{HostId, LinkId, SwitchId};
use crate::topology::Topology;

/// A virtual channel of a directed link: the link, and one of the input buffers at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The link.
    pub link: LinkId,
    /// The virtual channel, from 0.
    pub virtual_channel: u8,
}

/// The routing of a fabric.
#[derive(Debug, Clone)]
pub enum Routing {
    /// Adaptive up*/down* routing.
    UpDown(UpDown),
    /// Adaptive over all shortest paths, without deadlock avoidance.
    ShortestPath(ShortestPath),
    /// Dimension order on a torus or mesh.
    DimensionOrder(DimensionOrder),
    /// Minimal on a dragonfly or HyperX.
    Minimal(Minimal),
    /// By random intermediates on a dragonfly or HyperX: Valiant, UGAL.
    Valiant(Valiant),
}

impl Routing {
    /// The maximum number of virtual channels of a link.
    pub const VIRTUAL_CHANNELS_MAX: u8 = 16;

    /// Its name: `up-down`, `shortest-path`, `dimension-order`, `minimal`, `valiant`, `ugal`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::UpDown(_) => "up-down",
            Self::ShortestPath(_) => "shortest-path",
            Self::DimensionOrder(_) => "dimension-order",
            Self::Minimal(_) => "minimal",
            Self::Valiant(routing) if routing.is_adaptive() => "ugal",
            Self::Valiant(_) => "valiant",
        }
    }

    /// The number of virtual channels per link. The route determines the channel of a packet; on
    /// up*/down* and shortest-path networks a packet may take any virtual channel of a link.
    pub fn virtual_channel_count(&self) -> u8 {
        match self {
            Self::UpDown(routing) => routing.virtual_channel_count(),
            Self::ShortestPath(routing) => routing.virtual_channel_count(),
            Self::DimensionOrder(routing) => routing.virtual_channel_count(),
            Self::Minimal(routing) => routing.virtual_channel_count(),
            Self::Valiant(routing) => routing.virtual_channel_count(),
        }
    }

    /// Whether the fabric determines the route between any two hosts: dimension order and minimal
    /// routing always do, up*/down* and shortest-path routing do if the switches form a tree.
    pub fn is_deterministic(&self, topology: &Topology) -> bool {
        match self {
            Self::UpDown(_) | Self::ShortestPath(_) => topology.is_tree(),
            Self::DimensionOrder(_) | Self::Minimal(_) => true,
            Self::Valiant(_) => false,
        }
    }

    /// The channels from one host to another, from injection to ejection, if the fabric determines
    /// them.
    ///
    /// `None` if routing is adaptive, see [`Routing::is_deterministic`]. For many routes, and for
    /// representative ones of adaptive routing, use a [`RouteFinder`].
    pub fn route(&self, topology: &Topology, from: HostId, to: HostId) -> Option<Vec<Channel>> {
        self.is_deterministic(topology).then(|| RouteFinder::new(topology, self).route(from, to))
    }

    /// The up*/down* routing, if it is one.
    pub fn up_down(&self) -> Option<&UpDown> {
        match self {
            Self::UpDown(routing) => Some(routing),
            _ => None,
        }
    }
}

/// A valid number of virtual channels per link.
fn checked_channels(channels: u8) -> Result<u8, FabricError> {
    if (1..=Routing::VIRTUAL_CHANNELS_MAX).contains(&channels) {
        return Ok(channels);
    }
    Err(FabricError::OutOfRange {
        key: "channels",
        value: channels.to_string(),
        expected: format!("1 to {}", Routing::VIRTUAL_CHANNELS_MAX),
    })
}

/// The switch at the end of a link; callers follow only links between switches.
fn end(topology: &Topology, link: LinkId) -> SwitchId {
    topology.link(link).to.switch().expect("a link between switches")
}
