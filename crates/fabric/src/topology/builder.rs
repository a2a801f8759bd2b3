//! Builds topologies, with a check of each step.

use std::collections::{BTreeMap, BTreeSet};

use super::{HostRecord, Link, SwitchRecord, Topology, Vertex};
use crate::error::FabricError;
use crate::grid::Grid;
use crate::ids::{HostId, LinkId, PortNumber, SwitchId};
use crate::structure::Structure;

/// Builds a [`Topology`], with a check of each step.
///
/// ```
/// use treecast_fabric::{PortNumber, TopologyBuilder};
///
/// let mut builder = TopologyBuilder::new();
/// let switch = builder.switch(4)?;
/// for port in 0..3 {
///     builder.host(switch, PortNumber(port))?;
/// }
/// assert_eq!(builder.build()?.host_count(), 3);
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
#[derive(Debug, Default)]
pub struct TopologyBuilder {
    hosts: Vec<HostRecord>,
    switches: Vec<SwitchRecord>,
    links: Vec<Link>,
    reverse: Vec<Option<LinkId>>,
    /// Ports in use, out of and into a switch; a link in both directions takes the same port in
    /// both.
    used: [BTreeMap<(SwitchId, PortNumber), LinkId>; 2],
    ranks: Option<Vec<u32>>,
    grid: Option<Grid>,
    structure: Option<Structure>,
}

impl TopologyBuilder {
    /// An empty topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a switch with ports `0..port_count`.
    ///
    /// # Errors
    /// [`FabricError::TooManySwitches`] beyond [`Topology::SWITCHES_MAX`],
    /// [`FabricError::TooManyPorts`] beyond [`Topology::PORTS_MAX`].
    pub fn switch(&mut self, port_count: u32) -> Result<SwitchId, FabricError> {
        if self.switches.len() as u32 >= Topology::SWITCHES_MAX {
            return Err(FabricError::TooManySwitches);
        }
        if port_count > Topology::PORTS_MAX {
            return Err(FabricError::TooManyPorts(port_count));
        }
        self.switches.push(SwitchRecord { name: None, port_count });
        Ok(SwitchId(self.switches.len() as u32 - 1))
    }

    /// Adds a host on a port of a switch, with its link in both directions.
    ///
    /// # Errors
    /// [`FabricError::NoSuchSwitch`], [`FabricError::NoSuchPort`], [`FabricError::PortInUse`],
    /// [`FabricError::TooManyLinks`], or [`FabricError::TooManyHosts`] beyond
    /// [`Topology::HOSTS_MAX`].
    pub fn host(&mut self, switch: SwitchId, port: PortNumber) -> Result<HostId, FabricError> {
        if self.hosts.len() as u32 >= Topology::HOSTS_MAX {
            return Err(FabricError::TooManyHosts);
        }
        let host = HostId(self.hosts.len() as u32);
        let injection = self.connect(Vertex::Host(host), PortNumber(0), Vertex::Switch(switch), port)?;
        self.hosts.push(HostRecord { name: None, injection, ejection: LinkId(injection.0 + 1), switch });
        Ok(host)
    }

    /// Links two switches in both directions. Returns the link from `a` to `b`; its reverse has the
    /// next number.
    ///
    /// # Errors
    /// [`FabricError::NoSuchSwitch`], [`FabricError::NoSuchPort`], [`FabricError::PortInUse`],
    /// [`FabricError::SelfLink`], or [`FabricError::TooManyLinks`] beyond [`Topology::LINKS_MAX`].
    pub fn link(
        &mut self,
        (a, a_port): (SwitchId, PortNumber),
        (b, b_port): (SwitchId, PortNumber),
    ) -> Result<LinkId, FabricError> {
        self.connect(Vertex::Switch(a), a_port, Vertex::Switch(b), b_port)
    }

    /// Links two switches in one direction only.
    ///
    /// # Errors
    /// As [`TopologyBuilder::link`].
    pub fn one_way_link(
        &mut self,
        (from, from_port): (SwitchId, PortNumber),
        (to, to_port): (SwitchId, PortNumber),
    ) -> Result<LinkId, FabricError> {
        let (from, to) = (Vertex::Switch(from), Vertex::Switch(to));
        self.check_new(from, to)?;
        self.check_end(0, from, from_port)?;
        self.check_end(1, to, to_port)?;
        Ok(self.push(Link { from, from_port, to, to_port }, None))
    }

    /// Names a host. The default name is `h7`; setting that name has no effect.
    pub fn name_host(&mut self, host: HostId, name: impl Into<String>) {
        self.hosts[host.index()].name = Some(name.into()).filter(|name| *name != host.to_string());
    }

    /// Names a switch. The default name is `s7`; setting that name has no effect.
    pub fn name_switch(&mut self, switch: SwitchId, name: impl Into<String>) {
        self.switches[switch.index()].name = Some(name.into()).filter(|name| *name != switch.to_string());
    }

    /// Sets the rank of each switch, 0 at the top.
    pub fn set_ranks(&mut self, ranks: Vec<u32>) {
        assert_eq!(ranks.len(), self.switches.len(), "one rank a switch");
        self.ranks = Some(ranks);
    }

    /// Declares that the switches form a grid.
    pub fn set_grid(&mut self, grid: Grid) {
        assert_eq!(grid.node_count() as usize, self.switches.len(), "one switch per node of the grid");
        self.grid = Some(grid);
    }

    /// Declares what the switches form.
    pub(crate) fn set_structure(&mut self, structure: Structure) {
        self.structure = Some(structure);
    }

    /// The lowest free port of a switch.
    pub fn free_port(&self, switch: SwitchId) -> Option<PortNumber> {
        let count = self.switches.get(switch.index())?.port_count;
        (0..count)
            .map(PortNumber)
            .find(|&port| self.used.iter().all(|used| !used.contains_key(&(switch, port))))
    }

    /// The topology.
    ///
    /// # Errors
    /// [`FabricError::NoHosts`], [`FabricError::NameInUse`], [`FabricError::NotConnected`] with a
    /// switch that host 0 does not reach or that does not reach host 0.
    pub fn build(self) -> Result<Topology, FabricError> {
        if self.hosts.is_empty() {
            return Err(FabricError::NoHosts);
        }
        check_names(self.hosts.iter().map(|host| &host.name), "h")?;
        check_names(self.switches.iter().map(|switch| &switch.name), "s")?;
        let switch_count = self.switches.len();
        let by_port =
            |side: usize| csr(switch_count, self.used[side].iter().map(|(&(s, _), &link)| (s, link)));
        let (outgoing, outgoing_start) = by_port(0);
        let (incoming, incoming_start) = by_port(1);
        let mut by_switch: Vec<(SwitchId, HostId)> =
            self.hosts.iter().zip(0..).map(|(host, id)| (host.switch, HostId(id))).collect();
        by_switch.sort_unstable();
        let (attached, attached_start) = csr(switch_count, by_switch.into_iter());
        let topology = Topology {
            hosts: self.hosts,
            switches: self.switches,
            links: self.links,
            reverse: self.reverse,
            outgoing,
            outgoing_start,
            incoming,
            incoming_start,
            attached,
            attached_start,
            ranks: self.ranks,
            grid: self.grid,
            structure: self.structure,
        };
        check_connected(&topology)?;
        Ok(topology)
    }

    fn connect(
        &mut self,
        a: Vertex,
        a_port: PortNumber,
        b: Vertex,
        b_port: PortNumber,
    ) -> Result<LinkId, FabricError> {
        self.check_new(a, b)?;
        for side in 0..2 {
            self.check_end(side, a, a_port)?;
            self.check_end(side, b, b_port)?;
        }
        let there = LinkId(self.links.len() as u32);
        let back = LinkId(there.0 + 1);
        self.push(Link { from: a, from_port: a_port, to: b, to_port: b_port }, Some(back));
        self.push(Link { from: b, from_port: b_port, to: a, to_port: a_port }, Some(there));
        Ok(there)
    }

    /// A link from a switch to itself goes neither up nor down: it would close a cycle in any
    /// routing.
    fn check_new(&self, from: Vertex, to: Vertex) -> Result<(), FabricError> {
        match from {
            Vertex::Switch(switch) if from == to => Err(FabricError::SelfLink(switch)),
            _ if self.links.len() as u32 > Topology::LINKS_MAX - 2 => Err(FabricError::TooManyLinks),
            _ => Ok(()),
        }
    }

    fn check_end(&self, side: usize, vertex: Vertex, port: PortNumber) -> Result<(), FabricError> {
        let Vertex::Switch(switch) = vertex else { return Ok(()) };
        let record = self.switches.get(switch.index()).ok_or(FabricError::NoSuchSwitch(switch))?;
        if port.0 >= record.port_count {
            return Err(FabricError::NoSuchPort { switch, port, port_count: record.port_count });
        }
        if self.used[side].contains_key(&(switch, port)) {
            return Err(FabricError::PortInUse { vertex, port });
        }
        Ok(())
    }

    fn push(&mut self, link: Link, reverse: Option<LinkId>) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        for (side, vertex, port) in [(0, link.from, link.from_port), (1, link.to, link.to_port)] {
            if let Vertex::Switch(switch) = vertex {
                self.used[side].insert((switch, port), id);
            }
        }
        self.links.push(link);
        self.reverse.push(reverse);
        id
    }
}

/// Items grouped by switch: all items in one vector, and the start of each switch's items.
fn csr<T>(switch_count: usize, sorted: impl Iterator<Item = (SwitchId, T)>) -> (Vec<T>, Vec<u32>) {
    let mut items = Vec::new();
    let mut start = vec![0; switch_count + 1];
    for (switch, item) in sorted {
        items.push(item);
        start[switch.index() + 1] = items.len() as u32;
    }
    for index in 1..=switch_count {
        start[index] = start[index].max(start[index - 1]);
    }
    (items, start)
}

/// Checks that no two hosts, and no two switches, have the same name, given or by default.
fn check_names<'a>(
    names: impl Iterator<Item = &'a Option<String>> + Clone,
    default_prefix: &str,
) -> Result<(), FabricError> {
    let mut given = BTreeSet::new();
    for name in names.clone().flatten() {
        if !given.insert(name.as_str()) {
            return Err(FabricError::NameInUse(name.clone()));
        }
    }
    if given.is_empty() {
        return Ok(());
    }
    let defaults = names.enumerate().filter(|(_, name)| name.is_none());
    for default in defaults.map(|(index, _)| format!("{default_prefix}{index}")) {
        if given.contains(default.as_str()) {
            return Err(FabricError::NameInUse(default));
        }
    }
    Ok(())
}

/// Checks that every switch reaches every other: all from the first, and the first from all.
fn check_connected(topology: &Topology) -> Result<(), FabricError> {
    let origin = topology.switch_of(HostId(0));
    for forwards in [true, false] {
        let mut seen = vec![false; topology.switch_count() as usize];
        let mut open = vec![origin];
        seen[origin.index()] = true;
        while let Some(switch) = open.pop() {
            let links = if forwards { topology.links_from(switch) } else { topology.links_into(switch) };
            for &link in links {
                let Link { from, to, .. } = topology.link(link);
                let Some(next) = if forwards { to } else { from }.switch() else { continue };
                if !std::mem::replace(&mut seen[next.index()], true) {
                    open.push(next);
                }
            }
        }
        if let Some(lost) = seen.iter().position(|&reached| !reached) {
            let lost = SwitchId(lost as u32);
            return Err(FabricError::NotConnected {
                from: if forwards { origin } else { lost },
                to: if forwards { lost } else { origin },
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_switches() -> TopologyBuilder {
        let mut builder = TopologyBuilder::new();
        let (a, b) = (builder.switch(4).unwrap(), builder.switch(4).unwrap());
        builder.host(a, PortNumber(0)).unwrap();
        builder.host(b, PortNumber(0)).unwrap();
        builder
    }

    #[test]
    fn links_are_found_by_the_name_they_print() {
        let mut builder = two_switches();
        for port in 1..3 {
            builder.link((SwitchId(0), PortNumber(port)), (SwitchId(1), PortNumber(port + 1))).unwrap();
        }
        let topology = builder.build().unwrap();
        for link in topology.links() {
            assert_eq!(topology.link_by_name(&topology.link_name(link)), Some(link));
        }
        assert_eq!(topology.link_name(LinkId(4)), "s0:1>s1:2");
        for invalid in ["", "s0", "x>y", "s9:0>s1:1", "h9>s0:0", "s0:1>s1:3"] {
            assert_eq!(topology.link_by_name(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn an_unlinked_switch_is_not_connected() {
        let lost = FabricError::NotConnected { from: SwitchId(0), to: SwitchId(1) };
        assert_eq!(two_switches().build().unwrap_err(), lost);
    }

    #[test]
    fn switches_that_reach_each_other_in_one_direction_only_are_not_connected() {
        let mut builder = two_switches();
        builder.one_way_link((SwitchId(0), PortNumber(1)), (SwitchId(1), PortNumber(1))).unwrap();
        let lost = FabricError::NotConnected { from: SwitchId(1), to: SwitchId(0) };
        assert_eq!(builder.build().unwrap_err(), lost);
    }

    #[test]
    fn a_port_takes_one_plug() {
        let mut builder = two_switches();
        let taken = builder.host(SwitchId(0), PortNumber(0)).unwrap_err();
        assert_eq!(taken.to_string(), "port 0 of s0 is in use already");
        let beyond = builder.host(SwitchId(0), PortNumber(4)).unwrap_err();
        assert_eq!(beyond.to_string(), "s0 has no port 4: its ports are 0 to 3");
    }

    #[test]
    fn a_switch_is_not_linked_to_itself() {
        let ends = ((SwitchId(0), PortNumber(1)), (SwitchId(0), PortNumber(2)));
        let error = FabricError::SelfLink(SwitchId(0));
        assert_eq!(two_switches().link(ends.0, ends.1), Err(error.clone()));
        assert_eq!(two_switches().one_way_link(ends.0, ends.1), Err(error));
    }

    #[test]
    fn no_two_go_by_one_name() {
        let named = |first: &str, second: Option<&str>| {
            let mut builder = two_switches();
            builder.link((SwitchId(0), PortNumber(1)), (SwitchId(1), PortNumber(1))).unwrap();
            builder.name_switch(SwitchId(0), first);
            if let Some(second) = second {
                builder.name_switch(SwitchId(1), second);
            }
            builder.build().map(|topology| topology.switch_name(SwitchId(0)))
        };
        assert_eq!(named("a", Some("b")), Ok("a".into()));
        assert_eq!(named("h0", None), Ok("h0".into()));
        assert_eq!(named("a", Some("a")), Err(FabricError::NameInUse("a".into())));
        assert_eq!(named("s1", None), Err(FabricError::NameInUse("s1".into())));
        assert_eq!(named("s1", Some("s0")), Ok("s1".into()));
    }
}
