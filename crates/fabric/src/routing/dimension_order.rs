//! Dimension-order routing on tori and meshes (Dally and Seitz: Deadlock-free message routing in multiprocessor
//! interconnection networks, 1987).

use super::{Channel, end};
use crate::error::FabricError;
use crate::grid::{Direction, Grid};
use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

/// The virtual channels of the links of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtualChannels {
    /// One channel per link: rings can deadlock under load, and worms contend on them, as on SCI ringlets.
    None,
    /// Two channels per link: on each ring a packet takes channel 0 as long as it has yet to cross the dateline, the link
    /// from the last node of the ring to the first (or back), and channel 1 otherwise.
    Dateline,
}

/// Dimension order: all steps in dimension 0, then all in dimension 1, and so on; the shorter direction of a
/// bidirectional ring, upwards if both are equally long.
#[derive(Debug, Clone)]
pub struct DimensionOrder {
    virtual_channels: VirtualChannels,
}

impl DimensionOrder {
    /// Dimension order on a torus or mesh. A mesh has no rings, so the virtual channels make no difference there.
    ///
    /// # Errors
    /// [`FabricError::RoutingMismatch`] on any other topology.
    pub fn new(topology: &Topology, virtual_channels: VirtualChannels) -> Result<Self, FabricError> {
        let Some(grid) = topology.grid() else {
            return Err(FabricError::RoutingMismatch {
                routing: "dimension-order",
                reason: "it is neither a torus nor a mesh".into(),
            });
        };
        let virtual_channels = if grid.wraps() { virtual_channels } else { VirtualChannels::None };
        Ok(Self { virtual_channels })
    }

    /// The virtual channels in use.
    pub fn virtual_channels(&self) -> VirtualChannels {
        self.virtual_channels
    }

    /// The number of virtual channels per link: 1 or 2.
    pub fn virtual_channel_count(&self) -> u8 {
        match self.virtual_channels {
            VirtualChannels::None => 1,
            VirtualChannels::Dateline => 2,
        }
    }

    /// Assigns the consecutive links of a route to virtual channels. Each stretch within one dimension counts as a ring
    /// of its own; drops to hosts between its links do not end it.
    pub fn channels(&self, topology: &Topology, links: Vec<LinkId>) -> Vec<Channel> {
        let grid = topology.grid().expect("dimension order is made for grids only");
        let mut channels: Vec<Channel> =
            links.into_iter().map(|link| Channel { link, virtual_channel: 0 }).collect();
        if self.virtual_channels == VirtualChannels::None {
            return channels;
        }
        let mut dimension_behind = None;
        let mut crosses = false;
        for channel in channels.iter_mut().rev() {
            let Some((dimension, dateline)) = step_of(topology, grid, channel.link) else { continue };
            crosses = dateline || (crosses && dimension_behind == Some(dimension));
            dimension_behind = Some(dimension);
            channel.virtual_channel = u8::from(!crosses);
        }
        channels
    }

    /// The links from one switch to another.
    pub fn links(&self, topology: &Topology, from: SwitchId, to: SwitchId) -> Vec<LinkId> {
        let grid = topology.grid().expect("dimension order is made for grids only");
        let mut at = from;
        let mut links = Vec::new();
        for dimension in 0..grid.dimensions() {
            let (here, there) = (grid.coordinate(at.0, dimension), grid.coordinate(to.0, dimension));
            let (direction, steps) = way(grid, here, there);
            for _ in 0..steps {
                let link = grid.link(at.0, dimension, direction).expect("a grid has this link");
                at = end(topology, link);
                links.push(link);
            }
        }
        links
    }
}

/// The direction along a row, and the number of steps.
fn way(grid: &Grid, from: u32, to: u32) -> (Direction, u32) {
    if !grid.wraps() {
        return if to >= from { (Direction::Plus, to - from) } else { (Direction::Minus, from - to) };
    }
    let up = (to + grid.radix() - from) % grid.radix();
    let down = (grid.radix() - up) % grid.radix();
    if grid.is_bidirectional() && down < up { (Direction::Minus, down) } else { (Direction::Plus, up) }
}

/// The dimension of a link between switches, and whether it crosses the dateline.
fn step_of(topology: &Topology, grid: &Grid, link: LinkId) -> Option<(u32, bool)> {
    let ends = topology.link(link);
    let (from, to) = (ends.from.switch()?, ends.to.switch()?);
    // Port 2d leads up in dimension d, port 2d + 1 leads down.
    let dimension = ends.from_port.0 / 2;
    let (here, there) = (grid.coordinate(from.0, dimension), grid.coordinate(to.0, dimension));
    let upwards = ends.from_port.0.is_multiple_of(2);
    Some((dimension, if upwards { there < here } else { there > here }))
}
