//! Dimension-order routing on tori and meshes (Dally and Seitz: Deadlock-free message routing in
//! multiprocessor interconnection networks, 1987).

use super::{Channel, end};
use crate::error::FabricError;
use crate::grid::{Direction, Grid};
use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

/// The virtual channels of the links of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtualChannels {
    /// One channel per link: rings can deadlock under load, and worms contend on them, as on SCI
    /// ringlets.
    None,
    /// Two channels per link: on each ring a packet takes channel 0 as long as it has yet to cross
    /// the dateline, the link from the last node of the ring to the first (or back), and channel 1
    /// otherwise.
    Dateline,
    /// Two channels per link that carry about equal loads. *Ours.* A packet that crosses the
    /// dateline takes channel 0 before it and channel 1 after it. Half of these packets cross it on
    /// either channel. A packet that does not cross it takes channel 0 near the beginning of the
    /// ring and channel 1 near its end; in between half of the packets take either.
    ///
    /// Free of deadlock: number the links of a ring in its direction from the dateline on, the
    /// dateline itself last. Every packet takes channels in the order (0, 0) .. (0, k-2), then the
    /// dateline on channel 0 or 1, then (1, 0) .. (1, k-2), where (c, j) is channel c of link j. No
    /// packet takes one dateline channel after the other. So waits follow one order, in a ring and
    /// (by dimension order) between rings.
    Balanced,
}

/// The direction around a bidirectional ring to a node half of the ring away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ties {
    /// Always towards higher coordinates. Under uniform traffic the links up then carry more than
    /// the links down: on rings of 8, 1.25 and 0.75 hops per packet.
    #[default]
    Up,
    /// By the parity of the coordinates of both ends. In two or more dimensions each node sends
    /// half of its tied packets either way, so that under uniform traffic all links carry the same.
    Even,
}

/// Dimension order: all steps in dimension 0, then all in dimension 1, and so on; the shorter
/// direction of a bidirectional ring.
#[derive(Debug, Clone)]
pub struct DimensionOrder {
    virtual_channels: VirtualChannels,
    ties: Ties,
}

impl DimensionOrder {
    /// Dimension order on a torus or mesh. A mesh has no rings, so the virtual channels make no
    /// difference there.
    ///
    /// # Errors
    /// [`FabricError::RoutingMismatch`] on any other topology.
    pub fn new(
        topology: &Topology,
        virtual_channels: VirtualChannels,
        ties: Ties,
    ) -> Result<Self, FabricError> {
        let Some(grid) = topology.grid() else {
            return Err(FabricError::RoutingMismatch {
                routing: "dimension-order",
                reason: "it is neither a torus nor a mesh".into(),
            });
        };
        let virtual_channels = if grid.wraps() { virtual_channels } else { VirtualChannels::None };
        Ok(Self { virtual_channels, ties })
    }

    /// The virtual channels in use.
    pub fn virtual_channels(&self) -> VirtualChannels {
        self.virtual_channels
    }

    /// The number of virtual channels per link: 1 or 2.
    pub fn virtual_channel_count(&self) -> u8 {
        match self.virtual_channels {
            VirtualChannels::None => 1,
            VirtualChannels::Dateline | VirtualChannels::Balanced => 2,
        }
    }

    /// Assigns the consecutive links of a route to virtual channels. Each stretch within one
    /// dimension counts as a separate ring; drops to hosts between its links do not end it.
    pub fn channels(&self, topology: &Topology, links: Vec<LinkId>) -> Vec<Channel> {
        let grid = topology.grid().expect("dimension order is made for grids only");
        let mut channels: Vec<Channel> =
            links.into_iter().map(|link| Channel { link, virtual_channel: 0 }).collect();
        if self.virtual_channels == VirtualChannels::None {
            return channels;
        }
        let late = is_late(topology, grid, &channels);
        let mut dimension_behind = None;
        let mut crosses = false;
        for channel in channels.iter_mut().rev() {
            let Some(Step { dimension, place }) = step_of(topology, grid, channel.link) else { continue };
            let dateline = place == grid.radix() - 1;
            let crosses_later = crosses && dimension_behind == Some(dimension);
            crosses = dateline || crosses_later;
            dimension_behind = Some(dimension);
            let first = match self.virtual_channels {
                VirtualChannels::Balanced if crosses_later => true,
                VirtualChannels::Balanced if dateline => late,
                VirtualChannels::Balanced => place < switching_place(grid, late),
                VirtualChannels::Dateline | VirtualChannels::None => crosses,
            };
            channel.virtual_channel = u8::from(!first);
        }
        if self.virtual_channels == VirtualChannels::Balanced {
            after_datelines(topology, grid, &mut channels);
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
            let (direction, steps) = self.way(grid, (from.0, to.0), dimension, (here, there));
            for _ in 0..steps {
                let link = grid.link(at.0, dimension, direction).expect("a grid has this link");
                at = end(topology, link);
                links.push(link);
            }
        }
        links
    }

    /// The direction along a row between two places of it, and the number of steps, for a packet
    /// between two nodes.
    fn way(
        &self,
        grid: &Grid,
        nodes: (u32, u32),
        dimension: u32,
        (here, there): (u32, u32),
    ) -> (Direction, u32) {
        if !grid.wraps() {
            return if there >= here {
                (Direction::Plus, there - here)
            } else {
                (Direction::Minus, here - there)
            };
        }
        let up = (there + grid.radix() - here) % grid.radix();
        let down = (grid.radix() - up) % grid.radix();
        let tied_down = up == down && self.ties == Ties::Even && {
            // Without the coordinate that the tie itself determines: it would cancel that of the
            // sender.
            let sum = coordinate_sum(grid, nodes.0) + coordinate_sum(grid, nodes.1)
                - grid.coordinate(nodes.1, dimension);
            !sum.is_multiple_of(2)
        };
        if grid.is_bidirectional() && (down < up || tied_down) {
            (Direction::Minus, down)
        } else {
            (Direction::Plus, up)
        }
    }
}

fn coordinate_sum(grid: &Grid, node: u32) -> u32 {
    grid.coordinates(node).sum()
}

/// Which half of the packets a route belongs to where [`VirtualChannels::Balanced`] divides them:
/// those that change to channel 1 late. Bit 1 of the sum of the coordinates, since bit 0 decides
/// ties.
fn is_late(topology: &Topology, grid: &Grid, route: &[Channel]) -> bool {
    let between = |channel: &Channel| {
        let link = topology.link(channel.link);
        Some((link.from.switch()?, link.to.switch()?))
    };
    let mut links = route.iter().filter_map(between);
    let Some((from, mut to)) = links.next() else { return false };
    if let Some((_, last)) = links.next_back() {
        to = last;
    }
    (coordinate_sum(grid, from.0) + coordinate_sum(grid, to.0)) & 2 != 0
}

/// The place in the ring from which on a packet that does not cross the dateline takes channel 1.
/// Before 3/8 of the longest way, channel 1 has the packets that have crossed the dateline, and the
/// others hardly fill channel 0. The same holds at the end of the ring, for the packets that are
/// yet to cross.
fn switching_place(grid: &Grid, late: bool) -> u32 {
    let reach = if grid.is_bidirectional() { grid.radix() / 2 } else { grid.radix() };
    let early = reach * 3 / 8;
    if late { (grid.radix() - 1).saturating_sub(early) } else { early }
}

/// Puts the links behind a dateline on channel 1.
fn after_datelines(topology: &Topology, grid: &Grid, channels: &mut [Channel]) {
    let mut crossed = None;
    for channel in channels {
        let Some(Step { dimension, place }) = step_of(topology, grid, channel.link) else { continue };
        if place == grid.radix() - 1 {
            crossed = Some(dimension);
        } else if crossed == Some(dimension) {
            channel.virtual_channel = 1;
        } else {
            crossed = None;
        }
    }
}

/// A link between switches: its dimension, and its place in the ring in its direction. The first
/// link behind the dateline has place 0, the dateline k - 1.
struct Step {
    dimension: u32,
    place: u32,
}

fn step_of(topology: &Topology, grid: &Grid, link: LinkId) -> Option<Step> {
    let ends = topology.link(link);
    let (from, _) = (ends.from.switch()?, ends.to.switch()?);
    // Port 2d leads up in dimension d, port 2d + 1 leads down.
    let dimension = ends.from_port.0 / 2;
    let here = grid.coordinate(from.0, dimension);
    let upwards = ends.from_port.0.is_multiple_of(2);
    Some(Step { dimension, place: if upwards { here } else { grid.radix() - 1 - here } })
}
