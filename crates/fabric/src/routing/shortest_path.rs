//! Plain shortest-path routing, without deadlock avoidance.

use super::{Distances, checked_channels, end};
use crate::error::FabricError;
use crate::ids::{LinkId, SwitchId};
use crate::routing::UpDown;
use crate::topology::Topology;

/// Adaptive routing over all links that lie on a shortest path, without restrictions on turns.
///
/// It can deadlock wherever the switches form a cycle: packets may wait for one another's buffers
/// around it, and more virtual channels only make that rarer. It exists to show that, and for
/// fabrics that are trees, where the routes are those of up*/down*. A packet may take any virtual
/// channel of a link.
#[derive(Debug, Clone)]
pub struct ShortestPath {
    virtual_channels: u8,
}

impl ShortestPath {
    /// Shortest paths over links with this number of virtual channels, 1 to
    /// [`Routing::VIRTUAL_CHANNELS_MAX`](crate::Routing::VIRTUAL_CHANNELS_MAX).
    ///
    /// # Errors
    /// [`FabricError::OutOfRange`] for another number of channels; [`FabricError::RoutingMismatch`]
    /// on more than [`UpDown::SWITCHES_MAX`] switches.
    pub fn new(topology: &Topology, virtual_channels: u8) -> Result<Self, FabricError> {
        if topology.switch_count() > UpDown::SWITCHES_MAX {
            return Err(FabricError::RoutingMismatch {
                routing: "shortest-path",
                reason: format!(
                    "{} switches are more than {}",
                    topology.switch_count(),
                    UpDown::SWITCHES_MAX
                ),
            });
        }
        Ok(Self { virtual_channels: checked_channels(virtual_channels)? })
    }

    /// The number of virtual channels per link.
    pub fn virtual_channel_count(&self) -> u8 {
        self.virtual_channels
    }

    /// Distances to a switch, by a backward breadth-first search; going down makes no difference.
    /// Cost: the number of links.
    pub fn distances(&self, topology: &Topology, target: SwitchId) -> Distances {
        let mut distances = Distances::unknown(topology, target);
        let mut frontier = vec![target];
        let mut distance = 0;
        distances.set(target, distance);
        while !frontier.is_empty() {
            distance += 1;
            let mut next = Vec::new();
            for switch in frontier {
                for &link in topology.links_into(switch) {
                    if let Some(before) = topology.link(link).from.switch()
                        && distances.from(before, false).is_none()
                    {
                        distances.set(before, distance);
                        next.push(before);
                    }
                }
            }
            frontier = next;
        }
        distances
    }

    /// The links out of a switch that lie on a shortest path to the target of the distances, in the
    /// order of their ports.
    pub fn shortest_links<'a>(
        &'a self,
        topology: &'a Topology,
        distances: &'a Distances,
        at: SwitchId,
    ) -> impl Iterator<Item = LinkId> + 'a {
        let here = distances.from(at, false);
        let left = |link| distances.from(end(topology, link), false);
        topology
            .neighbours(at)
            .map(|(link, _)| link)
            .filter(move |&link| left(link).map(|left| left + 1) == here)
    }
}
