//! Up*/down* routing (Schroeder et al.: Autonet: a high-speed, self-configuring local area network
//! using point-to-point links, 1991).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use fixedbitset::FixedBitSet;

use super::ports::Ports;
use super::{checked_channels, end};
use crate::error::FabricError;
use crate::ids::{HostId, LinkId, SwitchId, Vertex};
use crate::topology::Topology;

/// Adaptive up*/down* routing: zero or more links up, then zero or more links down.
///
/// Every switch has a level: its distance from the root switch, or its rank if the topology has
/// natural ones. The *up* end of a link is the end with the lower level, or with the lower id if
/// the levels are equal. The links up form no cycle, nor do the links down, and no packet turns up
/// after going down: so waits for buffers cannot form a cycle. That holds on any number of virtual
/// channels, and a packet may take any virtual channel of a link.
#[derive(Debug, Clone)]
pub struct UpDown {
    levels: Vec<u32>,
    up: Ports,
    down: Ports,
    virtual_channels: u8,
    /// For each switch the switches reached by links down, itself included. Computed on first use:
    /// one bit per pair of switches.
    reach: OnceLock<Vec<FixedBitSet>>,
}

/// Shortest legal distances to one switch, from every switch, in links; four bytes per switch.
#[derive(Debug, Clone)]
pub struct Distances {
    target: SwitchId,
    /// Entry `2 * switch + gone_down`.
    links: Vec<u16>,
}

const UNREACHABLE: u16 = u16::MAX;

impl Distances {
    /// All distances unknown.
    pub(super) fn unknown(topology: &Topology, target: SwitchId) -> Self {
        Self { target, links: vec![UNREACHABLE; 2 * topology.switch_count() as usize] }
    }

    /// Sets the distance from a switch, whether gone down or not.
    pub(super) fn set(&mut self, from: SwitchId, links: u16) {
        self.links[2 * from.index()..][..2].fill(links);
    }

    /// The switch they lead to.
    pub fn target(&self) -> SwitchId {
        self.target
    }

    /// The distance from a switch in links, for a packet that has or has not gone down already;
    /// `None` if there is no legal route.
    pub fn from(&self, switch: SwitchId, gone_down: bool) -> Option<u16> {
        Some(self.links[2 * switch.index() + usize::from(gone_down)]).filter(|&links| links != UNREACHABLE)
    }
}

impl UpDown {
    /// The maximum number of switches: distances, which are smaller, fit into 16 bits.
    pub const SWITCHES_MAX: u32 = UNREACHABLE as u32;

    /// Up*/down* routing with the topology's natural ranks as levels, or breadth-first from switch
    /// 0.
    ///
    /// # Errors
    /// [`FabricError::RoutingMismatch`] if a link has no reverse, if there are more than
    /// [`UpDown::SWITCHES_MAX`] switches, or if the ranks leave two hosts no legal route.
    pub fn new(topology: &Topology) -> Result<Self, FabricError> {
        match topology.ranks() {
            None => Self::from_root(topology, SwitchId(0)),
            Some(ranks) => Self::with_levels(topology, ranks.to_vec()),
        }
    }

    /// Up*/down* routing with breadth-first levels from a root switch.
    ///
    /// # Errors
    /// [`FabricError::NoSuchSwitch`], or as [`UpDown::new`].
    pub fn from_root(topology: &Topology, root: SwitchId) -> Result<Self, FabricError> {
        if root.0 >= topology.switch_count() {
            return Err(FabricError::NoSuchSwitch(root));
        }
        let mut levels = vec![u32::MAX; topology.switch_count() as usize];
        levels[root.index()] = 0;
        let mut frontier = vec![root];
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for switch in frontier {
                for (_, neighbour) in topology.neighbours(switch) {
                    if levels[neighbour.index()] == u32::MAX {
                        levels[neighbour.index()] = levels[switch.index()] + 1;
                        next.push(neighbour);
                    }
                }
            }
            frontier = next;
        }
        Self::with_levels(topology, levels)
    }

    fn with_levels(topology: &Topology, levels: Vec<u32>) -> Result<Self, FabricError> {
        if let Some(link) = topology.links().find(|&link| topology.reverse(link).is_none()) {
            return Err(FabricError::RoutingMismatch {
                routing: "up-down",
                reason: format!("{} is a one-way link", topology.link_name(link)),
            });
        }
        if topology.switch_count() > Self::SWITCHES_MAX {
            return Err(FabricError::RoutingMismatch {
                routing: "up-down",
                reason: format!("{} switches are more than {}", topology.switch_count(), Self::SWITCHES_MAX),
            });
        }
        let is_up = |from: SwitchId, to: SwitchId| key(&levels, to) < key(&levels, from);
        let up = Ports::new(topology, is_up);
        let down = Ports::new(topology, |from, to| !is_up(from, to));
        let routing = Self { levels, up, down, virtual_channels: 1, reach: OnceLock::new() };
        if let Some((from, to)) = routing.hosts_apart(topology) {
            return Err(FabricError::RoutingMismatch {
                routing: "up-down",
                reason: format!(
                    "no route leads up, then down from the hosts of {} to those of {}",
                    topology.switch_name(from),
                    topology.switch_name(to)
                ),
            });
        }
        Ok(routing)
    }

    /// The same with this number of virtual channels per link, 1 to
    /// [`Routing::VIRTUAL_CHANNELS_MAX`](crate::Routing::VIRTUAL_CHANNELS_MAX).
    ///
    /// # Errors
    /// [`FabricError::OutOfRange`] for another number.
    pub fn with_virtual_channels(mut self, count: u8) -> Result<Self, FabricError> {
        self.virtual_channels = checked_channels(count)?;
        Ok(self)
    }

    /// Two switches with hosts and without a legal route between them. A route goes up to a common
    /// ancestor, so two switches have a route if and only if they share an ancestor without links
    /// up (a top). Breadth-first levels have one top, the root; natural ranks may have several.
    fn hosts_apart(&self, topology: &Topology) -> Option<(SwitchId, SwitchId)> {
        let mut tops: Vec<FixedBitSet> = vec![FixedBitSet::new(); self.levels.len()];
        let mut top_count = 0;
        for switch in self.top_down() {
            let mut mine = FixedBitSet::new();
            for &(_, above) in self.links_up(switch) {
                mine.union_with(&tops[above.index()]);
            }
            if mine.is_clear() {
                mine.grow_and_insert(top_count);
                top_count += 1;
            }
            tops[switch.index()] = mine;
        }
        let mut distinct: BTreeMap<&FixedBitSet, SwitchId> = BTreeMap::new();
        for switch in topology.switches().filter(|&switch| !topology.hosts_of(switch).is_empty()) {
            distinct.entry(&tops[switch.index()]).or_insert(switch);
        }
        let apart_from =
            |a: &FixedBitSet| distinct.iter().find(|(b, _)| a.is_disjoint(b)).map(|(_, &switch)| switch);
        distinct.iter().find_map(|(a, &from)| apart_from(a).map(|to| (from, to)))
    }

    /// The number of virtual channels per link, 1 by default.
    pub fn virtual_channel_count(&self) -> u8 {
        self.virtual_channels
    }

    /// The level of a switch.
    pub fn level(&self, switch: SwitchId) -> u32 {
        self.levels[switch.index()]
    }

    /// Whether a link between switches goes up.
    pub fn is_up(&self, topology: &Topology, link: LinkId) -> bool {
        let from = topology.link(link).from.switch().expect("a link between switches");
        self.is_above(end(topology, link), from)
    }

    /// Whether a link between two switches goes up to the first.
    fn is_above(&self, upper: SwitchId, lower: SwitchId) -> bool {
        key(&self.levels, upper) < key(&self.levels, lower)
    }

    /// The links up out of a switch with the switches at their ends, in the order of their ports.
    pub fn links_up(&self, switch: SwitchId) -> &[(LinkId, SwitchId)] {
        self.up.of(switch)
    }

    /// The links down out of a switch with the switches at their ends, in the order of their ports.
    pub fn links_down(&self, switch: SwitchId) -> &[(LinkId, SwitchId)] {
        self.down.of(switch)
    }

    /// The switches, the uppermost first: every link up leads to an earlier one.
    pub fn top_down(&self) -> Vec<SwitchId> {
        let mut order: Vec<SwitchId> = (0..self.levels.len() as u32).map(SwitchId).collect();
        order.sort_by_key(|&switch| key(&self.levels, switch));
        order
    }

    /// The switches reached from each by going down only, itself included: one bit per switch.
    pub fn reach(&self, topology: &Topology) -> &[FixedBitSet] {
        self.reach.get_or_init(|| {
            let count = topology.switch_count() as usize;
            let mut reach = vec![FixedBitSet::new(); count];
            for &switch in self.top_down().iter().rev() {
                let mut mine = FixedBitSet::with_capacity(count);
                mine.insert(switch.index());
                for &(_, below) in self.links_down(switch) {
                    mine.union_with(&reach[below.index()]);
                }
                reach[switch.index()] = mine;
            }
            reach
        })
    }

    /// The reachability bit string of a link that leaves a switch: the hosts that a worm reaches
    /// through it by going down. A link up has none.
    pub fn reachable_hosts(&self, topology: &Topology, link: LinkId) -> FixedBitSet {
        let mut hosts = FixedBitSet::with_capacity(topology.host_count() as usize);
        match topology.link(link).to {
            Vertex::Host(host) => hosts.insert(host.index()),
            Vertex::Switch(_) if self.is_up(topology, link) => {}
            Vertex::Switch(switch) => {
                for below in self.reach(topology)[switch.index()].ones() {
                    hosts.extend(
                        topology.hosts_of(SwitchId(below as u32)).iter().map(|host: &HostId| host.index()),
                    );
                }
            }
        }
        hosts
    }

    /// Shortest legal distances to a switch, by a backward breadth-first search. Cost: the number
    /// of links.
    pub fn distances(&self, topology: &Topology, target: SwitchId) -> Distances {
        let Distances { mut links, .. } = Distances::unknown(topology, target);
        let state = |switch: SwitchId, gone_down: bool| 2 * switch.index() + usize::from(gone_down);
        let mut frontier = vec![(target, false), (target, true)];
        for &(switch, gone_down) in &frontier {
            links[state(switch, gone_down)] = 0;
        }
        let mut distance = 0;
        while !frontier.is_empty() {
            distance += 1;
            let mut next = Vec::new();
            for (switch, gone_down) in frontier {
                for &link in topology.links_into(switch) {
                    let Some(before) = topology.link(link).from.switch() else { continue };
                    // Only a packet that has not gone down takes a link up, and stays in that
                    // state; any packet takes a link down, and has gone down then.
                    let predecessors: &[bool] = match (self.is_above(switch, before), gone_down) {
                        (true, false) => &[false],
                        (false, true) => &[false, true],
                        _ => continue,
                    };
                    for &earlier in predecessors {
                        let entry = &mut links[state(before, earlier)];
                        if *entry == UNREACHABLE {
                            *entry = distance;
                            next.push((before, earlier));
                        }
                    }
                }
            }
            frontier = next;
        }
        Distances { target, links }
    }

    /// All legal next links towards a switch, in the order of their ports: those with a legal route
    /// from there on.
    pub fn legal_links<'a>(
        &'a self,
        topology: &'a Topology,
        distances: &'a Distances,
        at: SwitchId,
        gone_down: bool,
    ) -> impl Iterator<Item = LinkId> + 'a {
        self.onward(topology, distances, at, gone_down).map(|(link, _)| link)
    }

    /// The legal next links that lie on a shortest legal route to a switch, in the order of their
    /// ports.
    pub fn shortest_links<'a>(
        &'a self,
        topology: &'a Topology,
        distances: &'a Distances,
        at: SwitchId,
        gone_down: bool,
    ) -> impl Iterator<Item = LinkId> + 'a {
        let here = distances.from(at, gone_down);
        self.onward(topology, distances, at, gone_down)
            .filter(move |&(_, left)| Some(left + 1) == here)
            .map(|(link, _)| link)
    }

    fn onward<'a>(
        &'a self,
        topology: &'a Topology,
        distances: &'a Distances,
        at: SwitchId,
        gone_down: bool,
    ) -> impl Iterator<Item = (LinkId, u16)> + 'a {
        topology.neighbours(at).filter_map(move |(link, next)| {
            let up = self.is_above(next, at);
            if up && gone_down {
                return None;
            }
            distances.from(next, !up).map(|left| (link, left))
        })
    }
}

/// The total order that distinguishes up from down.
fn key(levels: &[u32], switch: SwitchId) -> (u32, SwitchId) {
    (levels[switch.index()], switch)
}
