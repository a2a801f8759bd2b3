//! Topologies: hosts, switches with numbered ports, directed links.

mod builder;

pub use builder::TopologyBuilder;

use crate::grid::Grid;
use crate::ids::{HostId, LinkId, PortNumber, SwitchId, Vertex};
use crate::limits;
use crate::structure::Structure;

/// A directed link. The port of a host is always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// The end where flits enter.
    pub from: Vertex,
    /// The port at `from`.
    pub from_port: PortNumber,
    /// The end where flits leave.
    pub to: Vertex,
    /// The port at `to`.
    pub to_port: PortNumber,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HostRecord {
    name: Option<String>,
    injection: LinkId,
    ejection: LinkId,
    switch: SwitchId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SwitchRecord {
    name: Option<String>,
    port_count: u32,
}

/// Hosts, switches and directed links, immutable and connected.
///
/// Every host is attached to one switch by one link in each direction. Between two switches there
/// may be any number of links, in one direction or in both. Sizes: at most [`Topology::HOSTS_MAX`]
/// hosts and [`Topology::SWITCHES_MAX`] switches; memory is a few dozen bytes per link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    hosts: Vec<HostRecord>,
    switches: Vec<SwitchRecord>,
    links: Vec<Link>,
    reverse: Vec<Option<LinkId>>,
    /// Links out of each switch in the order of their ports; `outgoing_start[s]..outgoing_start[s +
    /// 1]` are those of s.
    outgoing: Vec<LinkId>,
    outgoing_start: Vec<u32>,
    incoming: Vec<LinkId>,
    incoming_start: Vec<u32>,
    attached: Vec<HostId>,
    attached_start: Vec<u32>,
    ranks: Option<Vec<u32>>,
    grid: Option<Grid>,
    structure: Option<Structure>,
}

impl Topology {
    /// The maximum number of hosts.
    pub const HOSTS_MAX: u32 = limits::HOSTS_MAX;
    /// The maximum number of switches.
    pub const SWITCHES_MAX: u32 = limits::SWITCHES_MAX;
    /// The maximum number of ports of a switch.
    pub const PORTS_MAX: u32 = limits::PORTS_MAX;
    /// The maximum number of directed links.
    pub const LINKS_MAX: u32 = limits::LINKS_MAX;

    /// The number of hosts.
    pub fn host_count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The number of switches.
    pub fn switch_count(&self) -> u32 {
        self.switches.len() as u32
    }

    /// The number of directed links.
    pub fn link_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// All hosts, by number.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = HostId> + use<> {
        (0..self.host_count()).map(HostId)
    }

    /// All switches, by number.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = SwitchId> + use<> {
        (0..self.switch_count()).map(SwitchId)
    }

    /// All directed links, by number.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkId> + use<> {
        (0..self.link_count()).map(LinkId)
    }

    /// The two ends of a link.
    pub fn link(&self, link: LinkId) -> Link {
        self.links[link.index()]
    }

    /// The reverse direction of the physical link; `None` for a one-way link.
    pub fn reverse(&self, link: LinkId) -> Option<LinkId> {
        self.reverse[link.index()]
    }

    /// The physical links, each by its first directed link; those of hosts by their injection.
    pub fn physical_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links().filter(|&link| self.reverse(link).is_none_or(|reverse| link < reverse))
    }

    /// The switch that a host is attached to.
    pub fn switch_of(&self, host: HostId) -> SwitchId {
        self.hosts[host.index()].switch
    }

    /// The link from a host to its switch.
    pub fn injection(&self, host: HostId) -> LinkId {
        self.hosts[host.index()].injection
    }

    /// The link from its switch to a host.
    pub fn ejection(&self, host: HostId) -> LinkId {
        self.hosts[host.index()].ejection
    }

    /// The hosts of a switch, by number.
    pub fn hosts_of(&self, switch: SwitchId) -> &[HostId] {
        slice(&self.attached, &self.attached_start, switch)
    }

    /// The links that leave a switch, to hosts and to switches, in the order of their ports.
    pub fn links_from(&self, switch: SwitchId) -> &[LinkId] {
        slice(&self.outgoing, &self.outgoing_start, switch)
    }

    /// The links that enter a switch, from hosts and from switches, in the order of their ports.
    pub fn links_into(&self, switch: SwitchId) -> &[LinkId] {
        slice(&self.incoming, &self.incoming_start, switch)
    }

    /// The links that leave a switch towards switches, each with the switch at its other end.
    pub fn neighbours(&self, switch: SwitchId) -> impl Iterator<Item = (LinkId, SwitchId)> + '_ {
        self.links_from(switch)
            .iter()
            .filter_map(|&link| self.links[link.index()].to.switch().map(|neighbour| (link, neighbour)))
    }

    /// The number of ports of a switch, used and unused.
    pub fn port_count(&self, switch: SwitchId) -> u32 {
        self.switches[switch.index()].port_count
    }

    /// The number of directed links between switches.
    pub fn switch_link_count(&self) -> u32 {
        self.link_count() - 2 * self.host_count()
    }

    /// A host's name: the given one, or `h7`.
    pub fn host_name(&self, host: HostId) -> String {
        self.hosts[host.index()].name.clone().unwrap_or_else(|| host.to_string())
    }

    /// A switch's name: the given one, or `s7`.
    pub fn switch_name(&self, switch: SwitchId) -> String {
        self.switches[switch.index()].name.clone().unwrap_or_else(|| switch.to_string())
    }

    /// A link's name, from its ends: `h0>s1:4`, `s1:3>s2:0`, `s2:5>h9`.
    pub fn link_name(&self, link: LinkId) -> String {
        let Link { from, from_port, to, to_port } = self.link(link);
        let end = |vertex: Vertex, port: PortNumber| match vertex {
            Vertex::Host(host) => host.to_string(),
            Vertex::Switch(switch) => format!("{switch}:{port}"),
        };
        format!("{}>{}", end(from, from_port), end(to, to_port))
    }

    /// The link of that name, as [`Topology::link_name`] writes it.
    pub fn link_by_name(&self, name: &str) -> Option<LinkId> {
        let (from, _) = name.split_once('>')?;
        let candidates: &[LinkId] = if let Some(host) = from.strip_prefix('h') {
            let host: u32 = host.parse().ok()?;
            &[self.hosts.get(host as usize)?.injection]
        } else {
            let switch: u32 = from.strip_prefix('s')?.split(':').next()?.parse().ok()?;
            if switch >= self.switch_count() {
                return None;
            }
            self.links_from(SwitchId(switch))
        };
        candidates.iter().copied().find(|&link| self.link_name(link) == name)
    }

    /// The grid that the switches form, if this is a torus or a mesh. Switch and host at a position
    /// are then one node.
    pub fn grid(&self) -> Option<&Grid> {
        self.grid.as_ref()
    }

    /// The same topology with the grid that its switches form.
    pub(crate) fn with_grid(mut self, grid: Grid) -> Self {
        self.grid = Some(grid);
        self
    }

    /// The structure of a dragonfly or HyperX.
    pub fn structure(&self) -> Option<Structure> {
        self.structure
    }

    /// The same topology with its structure.
    pub(crate) fn with_structure(mut self, structure: Structure) -> Self {
        self.structure = Some(structure);
        self
    }

    /// Whether a link is inside a node: between a host and its router if both are one node (tori
    /// and meshes).
    pub fn is_internal(&self, link: LinkId) -> bool {
        let Link { from, to, .. } = self.link(link);
        self.grid.is_some() && (from.host().is_some() || to.host().is_some())
    }

    /// The rank of each switch, 0 at the top, if the topology has natural ranks (fat trees).
    pub fn ranks(&self) -> Option<&[u32]> {
        self.ranks.as_deref()
    }

    /// Whether the switches form a tree: there is exactly one simple path between any two.
    pub fn is_tree(&self) -> bool {
        self.switch_link_count() == 2 * (self.switch_count() - 1)
            && self.links().all(|link| self.reverse(link).is_some())
    }
}

fn slice<'a, T>(items: &'a [T], start: &[u32], switch: SwitchId) -> &'a [T] {
    &items[start[switch.index()] as usize..start[switch.index() + 1] as usize]
}
