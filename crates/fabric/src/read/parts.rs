//! The parts that a file describes, each with its line, and the topology built from them.

use std::collections::BTreeMap;

use treecast_terms::nearest;

use super::Source;
use crate::error::FabricError;
use crate::fabric::FabricSpec;
use crate::generate::{GridShape, check_like, recognise};
use crate::hostlist::expand_hostlist;
use crate::ids::{PortNumber, SwitchId};
use crate::structure::Structure;
use crate::topology::{Topology, TopologyBuilder};

/// The parts of a file. Switches, hosts and links are numbered in the order of these lists.
#[derive(Default)]
pub(super) struct Parts {
    pub switches: Vec<SwitchPart>,
    pub connections: Vec<Connection>,
    pub grid: Option<GridPart>,
    pub structure: Option<StructurePart>,
}

pub(super) struct SwitchPart {
    pub name: Option<String>,
    pub port_count: u32,
    pub rank: Option<u32>,
    pub line: usize,
}

/// An item attached to ports.
pub(super) enum Connection {
    Host { name: Option<String>, at: End, line: usize },
    Link { from: End, to: End, one_way: bool, line: usize },
}

/// An end of a link at a switch. Without a port it takes the lowest one that is free after all
/// given ports are assigned.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub switch: usize,
    pub port: Option<u32>,
    /// The line that gives the port.
    pub line: usize,
}

/// The claim that the switches form a grid.
pub(super) struct GridPart {
    pub shape: GridShape,
    pub radix: u32,
    pub dimensions: u32,
    pub line: usize,
}

/// The claim that the switches form a dragonfly or a HyperX.
pub(super) struct StructurePart {
    structure: Structure,
    line: usize,
}

impl StructurePart {
    /// Reads the claim from the spec of a generator.
    pub fn new(text: &str, line: usize, source: &Source) -> Result<Self, FabricError> {
        match text.parse::<FabricSpec>().map_err(|error| source.error(line, error))? {
            FabricSpec::Structured(structure) => Ok(Self { structure, line }),
            _ => {
                Err(source
                    .error(line, format!("'{text}' is not a structure: expected a dragonfly or hyperx")))
            }
        }
    }
}

impl Parts {
    /// Adds a switch of a format without ports: it gets as many as it has connections. Returns its
    /// number.
    pub fn add_switch(&mut self, name: &str, rank: u32, line: usize) -> usize {
        self.switches.push(SwitchPart { name: Some(name.into()), port_count: 0, rank: Some(rank), line });
        self.switches.len() - 1
    }

    /// Adds the hosts of a hostlist to a switch, with a port each. All hosts are added before any
    /// link.
    pub fn add_hosts(
        &mut self,
        hostlist: &str,
        switch: usize,
        line: usize,
        source: &Source,
    ) -> Result<(), FabricError> {
        let names = expand_hostlist(hostlist).map_err(|error| source.error(line, error))?;
        if self.connections.len() + names.len() > Topology::HOSTS_MAX as usize {
            return Err(source.error(line, FabricError::TooManyHosts));
        }
        for name in names {
            let at = self.add_port(switch, line);
            self.connections.push(Connection::Host { name: Some(name), at, line });
        }
        Ok(())
    }

    /// Adds a link between two switches, with a port at each.
    pub fn add_link(&mut self, from: usize, to: usize, line: usize) {
        let (from, to) = (self.add_port(from, line), self.add_port(to, line));
        self.connections.push(Connection::Link { from, to, one_way: false, line });
    }

    fn add_port(&mut self, switch: usize, line: usize) -> End {
        self.switches[switch].port_count += 1;
        End { switch, port: None, line }
    }

    /// The topology of these parts.
    pub fn topology(self, source: &Source) -> Result<Topology, FabricError> {
        let names = switch_names(&self.switches, source)?;
        check_host_names(&self.connections, source)?;
        let ranks = ranks(&self.switches, &names, source)?;
        let origin = self.connections.iter().find_map(Connection::host_switch);
        let mut ports = Ports::new(&self.switches, &names, source)?;
        for connection in &self.connections {
            for (end, usage) in ends(connection) {
                ports.claim(end, usage)?;
            }
        }

        let mut builder = TopologyBuilder::new();
        for switch in &self.switches {
            let wrap = |error| source.error(switch.line, error);
            let id = builder.switch(switch.port_count).map_err(wrap)?;
            if let Some(name) = &switch.name {
                builder.name_switch(id, name);
            }
        }
        for connection in self.connections {
            add(&mut builder, &mut ports, connection, source)?;
        }
        if let Some(ranks) = ranks {
            builder.set_ranks(ranks);
        }
        let topology = builder.build().map_err(|error| match error {
            FabricError::NotConnected { from, to } => {
                let lost = if Some(from.index()) == origin { to } else { from };
                let reason = format!(
                    "the fabric is not connected: there is no path from switch '{}' to switch '{}'",
                    names[from.index()],
                    names[to.index()]
                );
                source.error(self.switches[lost.index()].line, reason)
            }
            other => source.error(1, other),
        })?;
        let topology = match self.structure {
            None => topology,
            Some(StructurePart { structure, line }) => {
                let wrap = |error| source.error(line, error);
                let (switches, hosts) = structure.size();
                let (has, has_hosts) = (topology.switch_count(), topology.host_count());
                // Before a model is built that may be much larger than the file.
                if (switches, hosts) != (has.into(), has_hosts.into()) {
                    let reason =
                        format!("it has {has} switches and {has_hosts} hosts, not {switches} and {hosts}");
                    return Err(wrap(FabricError::NotAGrid { grid: structure.to_string(), reason }));
                }
                let model = FabricSpec::Structured(structure).topology().map_err(wrap)?;
                check_like(&topology, &model, &structure.to_string()).map_err(wrap)?;
                topology.with_structure(structure)
            }
        };
        match self.grid {
            None => Ok(topology),
            Some(part) => recognise(&topology, part.shape, part.radix, part.dimensions)
                .map(|grid| topology.with_grid(grid))
                .map_err(|error| source.error(part.line, error)),
        }
    }
}

impl Connection {
    fn host_switch(&self) -> Option<usize> {
        match self {
            Self::Host { at, .. } => Some(at.switch),
            Self::Link { .. } => None,
        }
    }
}

fn add(
    builder: &mut TopologyBuilder,
    ports: &mut Ports,
    connection: Connection,
    source: &Source,
) -> Result<(), FabricError> {
    match connection {
        Connection::Host { name, at, line } => {
            let (switch, port) = ports.place(at, Use::Both, line)?;
            let host = builder.host(switch, port).map_err(|error| source.error(line, error))?;
            if let Some(name) = name {
                builder.name_host(host, name);
            }
        }
        Connection::Link { from, to, one_way, line } => {
            let (out, into) = if one_way { (Use::Out, Use::In) } else { (Use::Both, Use::Both) };
            let ends = (ports.place(from, out, line)?, ports.place(to, into, line)?);
            let link =
                if one_way { builder.one_way_link(ends.0, ends.1) } else { builder.link(ends.0, ends.1) };
            link.map_err(|error| source.error(line, error))?;
        }
    }
    Ok(())
}

/// The directions in which a connection uses its port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Out,
    In,
    Both,
}

fn ends(connection: &Connection) -> impl Iterator<Item = (End, Use)> {
    let (first, second) = match *connection {
        Connection::Host { at, .. } => ((at, Use::Both), None),
        Connection::Link { from, to, one_way: true, .. } => ((from, Use::Out), Some((to, Use::In))),
        Connection::Link { from, to, one_way: false, .. } => ((from, Use::Both), Some((to, Use::Both))),
    };
    std::iter::once(first).chain(second)
}

/// The ports in use, and the lines that use them.
struct Ports<'a> {
    switches: &'a [SwitchPart],
    names: &'a [String],
    source: &'a Source<'a>,
    /// By switch and port: the lines that use it outwards and inwards.
    taken: BTreeMap<(usize, u32), [Option<usize>; 2]>,
    /// Each switch's lowest port that may be free.
    next: Vec<u32>,
}

impl<'a> Ports<'a> {
    fn new(
        switches: &'a [SwitchPart],
        names: &'a [String],
        source: &'a Source<'a>,
    ) -> Result<Self, FabricError> {
        if let Some((switch, name)) =
            switches.iter().zip(names).find(|(switch, _)| switch.port_count > Topology::PORTS_MAX)
        {
            let reason = format!(
                "switch '{name}' has {} ports: at most {} are possible",
                switch.port_count,
                Topology::PORTS_MAX
            );
            return Err(source.error(switch.line, reason));
        }
        Ok(Self { switches, names, source, taken: BTreeMap::new(), next: vec![0; switches.len()] })
    }

    /// Claims the port that an end names, if it names one.
    fn claim(&mut self, end: End, usage: Use) -> Result<(), FabricError> {
        let Some(port) = end.port else { return Ok(()) };
        let name = &self.names[end.switch];
        let port_count = self.switches[end.switch].port_count;
        if port >= port_count {
            let reason = match port_count {
                0 => format!("switch '{name}' has no port {port}: it has none"),
                _ => format!("switch '{name}' has no port {port}: its ports are 0 to {}", port_count - 1),
            };
            return Err(self.source.error(end.line, reason));
        }
        let lines = self.taken.entry((end.switch, port)).or_default();
        for (taken, unused) in lines.iter_mut().zip([Use::In, Use::Out]) {
            if usage == unused {
                continue;
            }
            if let Some(line) = taken {
                let reason = format!("port {port} of switch '{name}' is already in use, on line {line}");
                return Err(self.source.error(end.line, reason));
            }
            *taken = Some(end.line);
        }
        Ok(())
    }

    /// The port of an end: the one it claimed, or the lowest free one, claimed now.
    fn place(&mut self, end: End, usage: Use, line: usize) -> Result<(SwitchId, PortNumber), FabricError> {
        let switch = SwitchId(end.switch as u32);
        if let Some(port) = end.port {
            return Ok((switch, PortNumber(port)));
        }
        let mut port = self.next[end.switch];
        while self.taken.contains_key(&(end.switch, port)) {
            port += 1;
        }
        let SwitchPart { port_count, .. } = self.switches[end.switch];
        if port >= port_count {
            let name = &self.names[end.switch];
            return Err(self
                .source
                .error(line, format!("switch '{name}' has no free port: it has {port_count}")));
        }
        self.next[end.switch] = port + 1;
        self.claim(End { port: Some(port), line, ..end }, usage)?;
        Ok((switch, PortNumber(port)))
    }
}

/// The names of the switches, given or `s7`, without duplicates.
fn switch_names(switches: &[SwitchPart], source: &Source) -> Result<Vec<String>, FabricError> {
    let names: Vec<String> = switches
        .iter()
        .enumerate()
        .map(|(index, switch)| switch.name.clone().unwrap_or_else(|| format!("s{index}")))
        .collect();
    check_distinct("switch", names.iter().zip(switches.iter().map(|switch| switch.line)), source)?;
    Ok(names)
}

fn check_host_names(connections: &[Connection], source: &Source) -> Result<(), FabricError> {
    let hosts = connections.iter().filter_map(|connection| match connection {
        Connection::Host { name, line, .. } => Some((name, *line)),
        Connection::Link { .. } => None,
    });
    let names: Vec<(String, usize)> = hosts
        .enumerate()
        .map(|(index, (name, line))| (name.clone().unwrap_or_else(|| format!("h{index}")), line))
        .collect();
    check_distinct("host", names.iter().map(|(name, line)| (name, *line)), source)
}

/// The error for a switch that no part has, with the names nearest to it.
pub(super) fn no_switch(name: &str, numbers: &BTreeMap<String, usize>) -> String {
    let known: Vec<&String> = numbers.keys().collect();
    let hint = match &nearest(name, &known)[..] {
        [] => String::new(),
        near => format!(": did you mean {}?", near.join(", ")),
    };
    format!("there is no switch '{name}'{hint}")
}

pub(super) fn check_distinct<'a>(
    what: &str,
    names: impl Iterator<Item = (&'a String, usize)>,
    source: &Source,
) -> Result<(), FabricError> {
    let mut lines = BTreeMap::new();
    for (name, line) in names {
        if name.is_empty() {
            return Err(source.error(line, format!("the name of this {what} is empty")));
        }
        if let Some(before) = lines.insert(name, line) {
            return Err(source.error(line, format!("{what} '{name}' is already defined on line {before}")));
        }
    }
    Ok(())
}

/// The ranks of the switches: all have one, or none.
fn ranks(
    switches: &[SwitchPart],
    names: &[String],
    source: &Source,
) -> Result<Option<Vec<u32>>, FabricError> {
    let unranked = switches.iter().position(|switch| switch.rank.is_none());
    match (unranked, switches.iter().position(|switch| switch.rank.is_some())) {
        (_, None) => Ok(None),
        (None, _) => Ok(Some(switches.iter().filter_map(|switch| switch.rank).collect())),
        (Some(without), Some(with)) => {
            let reason = format!(
                "switch '{}' has no rank, but switch '{}' has one: give all a rank or none",
                names[without], names[with]
            );
            Err(source.error(switches[without].line, reason))
        }
    }
}
