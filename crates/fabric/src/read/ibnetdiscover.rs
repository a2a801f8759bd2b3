//! The output of `ibnetdiscover` of infiniband-diags; its manual page calls it "topology file
//! format".

use std::collections::BTreeMap;

use winnow::ascii::{dec_uint, hex_digit1, space0, space1};
use winnow::combinator::{alt, delimited, opt, preceded};
use winnow::token::{rest, take_till};
use winnow::{ModalResult, Parser};

use super::parts::{Connection, End, Parts, SwitchPart};
use super::{Read, Source, start_of, without_mark};
use crate::error::FabricError;

/// Reads the output of `ibnetdiscover`.
///
/// A host is a channel adapter (`Ca`) or a router (`Rt`) with its first connected port; a note
/// lists further ones. Names are the node descriptions; where two are equal, the GUID is appended.
/// Ports of InfiniBand switches count from 1: a switch with 36 ports has ports 0 to 36 here, and
/// port 0 stays empty. Hosts and switches are numbered in the order of their blocks; links, after
/// those of the hosts, in the order of their first switch and port. A switch linked to itself is
/// noted, and that link is left out.
///
/// # Errors
/// [`FabricError::Malformed`], also if the two sides of a link do not agree, or a link joins two
/// channel adapters.
pub fn ibnetdiscover(file: &str, text: &str) -> Result<Read, FabricError> {
    let text = without_mark(text);
    let source = Source::new(file, text);
    let nodes = nodes(text, &source)?;
    let ports = PortsInUse::new(&nodes, &source)?;
    ports.check()?;

    let mut made = Made { names: names(&nodes), switch_of_node: vec![0; nodes.len()], ..Made::default() };
    let is_switch = |&number: &usize| nodes[number].kind == Kind::Switch;
    let (switches, others): (Vec<usize>, Vec<usize>) = (0..nodes.len()).partition(is_switch);
    for &number in &switches {
        made.add_switch(number, &nodes[number]);
    }
    for number in others {
        made.add_host(number, nodes[number].line, &ports);
    }
    for number in switches {
        made.add_links(number, &ports);
    }
    Ok(Read { topology: made.parts.topology(&source)?, notes: made.notes })
}

/// The fabric so far.
#[derive(Default)]
struct Made {
    names: Vec<String>,
    switch_of_node: Vec<usize>,
    parts: Parts,
    notes: Vec<String>,
}

impl Made {
    fn add_switch(&mut self, number: usize, node: &Node) {
        self.switch_of_node[number] = self.parts.switches.len();
        self.parts.switches.push(SwitchPart {
            name: Some(self.names[number].clone()),
            port_count: node.port_count.saturating_add(1),
            rank: None,
            line: node.line,
        });
    }

    fn add_host(&mut self, number: usize, line: usize, ports: &PortsInUse) {
        let name = &self.names[number];
        let mut connected = ports.of(number);
        let Some((port, first)) = connected.next() else {
            self.notes.push(format!("'{name}' has no connected port; it is left out"));
            return;
        };
        let (host, count) = (self.parts.connections.len(), 1 + connected.count());
        if count > 1 {
            self.notes
                .push(format!("h{host} '{name}' has {count} connected ports; only port {port} is used"));
        }
        self.parts.connections.push(Connection::Host {
            name: Some(name.clone()),
            at: self.far_end(first),
            line,
        });
    }

    /// Adds the links of a switch to later switches; its other links are added with the earlier
    /// switch.
    fn add_links(&mut self, number: usize, ports: &PortsInUse) {
        for (port, far) in ports.of(number) {
            if ports.nodes[far.node].kind != Kind::Switch {
                continue;
            }
            if number < far.node {
                let from = End { switch: self.switch_of_node[number], port: Some(port), line: far.line };
                let link = Connection::Link { from, to: self.far_end(far), one_way: false, line: far.line };
                self.parts.connections.push(link);
            } else if number == far.node && port <= far.port {
                let (name, other) = (&self.names[number], far.port);
                self.notes
                    .push(format!("port {port} of switch '{name}' is linked to its port {other}; left out"));
            }
        }
    }

    fn far_end(&self, far: &FarPort) -> End {
        End { switch: self.switch_of_node[far.node], port: Some(far.port), line: far.line }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    ChannelAdapter,
    Router,
}

/// A block: a switch or channel adapter, and the far ends of its ports.
struct Node<'a> {
    kind: Kind,
    port_count: u32,
    /// Such as `H-0002c9030000f3a1`.
    id: &'a str,
    name: Option<&'a str>,
    ports: Vec<PortLine<'a>>,
    line: usize,
}

/// A line of a block.
struct PortLine<'a> {
    number: u32,
    far_id: &'a str,
    far_port: u32,
    line: usize,
}

fn nodes<'a>(text: &'a str, source: &Source) -> Result<Vec<Node<'a>>, FabricError> {
    let mut nodes: Vec<Node> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let (line, text) = (index + 1, text.trim());
        if let Ok((kind, port_count, id, name)) = node_line.parse(text) {
            nodes.push(Node { kind, port_count, id, name, ports: Vec::new(), line });
        } else if let Ok((number, far_id, far_port)) = port_line.parse(text) {
            let Some(node) = nodes.last_mut() else {
                return Err(source.error(line, "this port comes before any Switch, Ca or Rt"));
            };
            if number == 0 || number > node.port_count {
                let reason =
                    format!("{} has no port {number}: its ports are 1 to {}", node.id, node.port_count);
                return Err(source.error(line, reason));
            }
            node.ports.push(PortLine { number, far_id, far_port, line });
        } else if !is_passed_over(text) {
            let reason = format!("'{}' is not a line of ibnetdiscover output", start_of(text));
            return Err(source.error(line, reason));
        }
    }
    Ok(nodes)
}

/// Blank lines, comments, headings, and the identifiers before a block.
fn is_passed_over(text: &str) -> bool {
    const STARTS: [&str; 4] = ["#", "Chassis ", "Non-Chassis Nodes", "Hostname:"];
    const KEYS: [&str; 6] = ["vendid", "devid", "sysimgguid", "switchguid", "caguid", "rtguid"];
    text.is_empty()
        || STARTS.iter().any(|start| text.starts_with(start))
        || text.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key))
}

/// `Switch 36 "S-0002c902004885b0" # "leaf1" enhanced port 0 lid 3 lmc 0`
fn node_line<'a>(input: &mut &'a str) -> ModalResult<(Kind, u32, &'a str, Option<&'a str>)> {
    let kind =
        alt(("Switch".value(Kind::Switch), "Ca".value(Kind::ChannelAdapter), "Rt".value(Kind::Router)));
    let ports = delimited(space1, dec_uint, space1);
    (kind, ports, quoted, preceded(space0, comment))
        .map(|(kind, ports, id, name)| (kind, ports, id, name))
        .parse_next(input)
}

/// `[1][ext 19](2c9030000f3a2) "S-0002c902004885b0"[19][ext 1] # lid 4 lmc 0 "leaf1" lid 3 4xQDR`
fn port_line<'a>(input: &mut &'a str) -> ModalResult<(u32, &'a str, u32)> {
    let end = || (opt(external), space0, opt(guid), space0);
    (port, end(), quoted, port, end(), comment)
        .map(|(number, _, far_id, far_port, _, _)| (number, far_id, far_port))
        .parse_next(input)
}

fn port(input: &mut &str) -> ModalResult<u32> {
    delimited('[', dec_uint, ']').parse_next(input)
}

fn external(input: &mut &str) -> ModalResult<()> {
    delimited("[ext ", dec_uint::<_, u32, _>, ']').void().parse_next(input)
}

fn guid(input: &mut &str) -> ModalResult<()> {
    delimited('(', (opt("0x"), hex_digit1), ')').void().parse_next(input)
}

fn quoted<'a>(input: &mut &'a str) -> ModalResult<&'a str> {
    delimited('"', take_till(1.., '"'), '"').parse_next(input)
}

/// The text between the first and the last quote after a `#`; a node description may contain
/// quotes.
fn comment<'a>(input: &mut &'a str) -> ModalResult<Option<&'a str>> {
    let between = |text: &'a str| text.split_once('"')?.1.rsplit_once('"').map(|(name, _)| name.trim());
    opt(preceded('#', rest))
        .map(|text| text.and_then(between).filter(|name| !name.is_empty()))
        .parse_next(input)
}

/// The far end of a port.
struct FarPort {
    node: usize,
    port: u32,
    line: usize,
}

/// All ports in use, by node and port.
struct PortsInUse<'a> {
    nodes: &'a [Node<'a>],
    source: &'a Source<'a>,
    far_ports: BTreeMap<(usize, u32), FarPort>,
}

impl<'a> PortsInUse<'a> {
    fn new(nodes: &'a [Node<'a>], source: &'a Source<'a>) -> Result<Self, FabricError> {
        let mut numbers = BTreeMap::new();
        for (number, node) in nodes.iter().enumerate() {
            if let Some(before) = numbers.insert(node.id, number) {
                let reason = format!("{} is already defined on line {}", node.id, nodes[before].line);
                return Err(source.error(node.line, reason));
            }
        }
        let mut far_ports = BTreeMap::new();
        for (number, node) in nodes.iter().enumerate() {
            for port in &node.ports {
                let Some(&peer) = numbers.get(port.far_id) else {
                    return Err(source.error(port.line, format!("{} has no block of its own", port.far_id)));
                };
                let far = FarPort { node: peer, port: port.far_port, line: port.line };
                if let Some(before) = far_ports.insert((number, port.number), far) {
                    let reason = format!("port {} is already defined on line {}", port.number, before.line);
                    return Err(source.error(port.line, reason));
                }
            }
        }
        Ok(Self { nodes, source, far_ports })
    }

    /// The ports of a node in use, lowest first.
    fn of(&self, node: usize) -> impl Iterator<Item = (u32, &FarPort)> {
        self.far_ports.range((node, 0)..=(node, u32::MAX)).map(|(&(_, port), far)| (port, far))
    }

    /// Checks that both sides of each link agree, and that one of them is a switch.
    fn check(&self) -> Result<(), FabricError> {
        for (&(node, port), far) in &self.far_ports {
            let (here, there) = (&self.nodes[node], &self.nodes[far.node]);
            let claim = format!("port {port} of {} is linked to port {} of {}", here.id, far.port, there.id);
            let reason = match self.far_ports.get(&(far.node, far.port)) {
                None => format!("{claim}, but the block on line {} does not list that link", there.line),
                Some(back) if (back.node, back.port) != (node, port) => {
                    let (other, other_port) = (self.nodes[back.node].id, back.port);
                    format!("{claim}, but line {} says: to port {other_port} of {other}", back.line)
                }
                Some(_) if here.kind != Kind::Switch && there.kind != Kind::Switch => {
                    format!("{claim} without a switch between them")
                }
                Some(_) => continue,
            };
            return Err(self.source.error(far.line, reason));
        }
        Ok(())
    }
}

/// The names of all nodes: description or id, followed by the id if another node of the kind has
/// the same name.
fn names(nodes: &[Node]) -> Vec<String> {
    let key = |node: &Node| (node.kind == Kind::Switch, node.name.map(str::to_string));
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(key(node)).or_insert(0) += 1;
    }
    let name = |node: &Node| match node.name {
        None => node.id.to_string(),
        Some(name) if counts[&key(node)] > 1 => format!("{name} ({})", node.id),
        Some(name) => name.to_string(),
    };
    nodes.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{HostId, SwitchId};

    /// Two switches with a node each, with every variant of a line.
    const SMALL: &str = "#
# Topology file: generated on Mon Mar  4 09:12:33 2024

Chassis 1 (guid 0x8f1040041254a)

# Spine Nodes
vendid=0x8f1
devid=0x5a31
sysimgguid=0x8f10400411a08\t\t# Chassis 1
switchguid=0x8f10400411a08(8f10400411a08)\t# ISR9288/ISR9096 sFB-12D chip 2
Switch\t24 \"S-0008f10400411a08\"\t\t# \"the \"big\" one\" base port 0 lid 6 lmc 0
[1][ext 7]\t\"S-0008f10400411a09\"[24][ext 3]\t\t# \"twin\" lid 3 4xSDR s=1 w=2 v=4
[2]\t\"H-0008f10403961354\"[2](8f10403961355) \t\t# \"twin\" lid 4 4xSDR

Non-Chassis Nodes

switchguid=0x8f10400411a09(8f10400411a09)
Switch\t24 \"S-0008f10400411a09\"\t\t# \"twin\" base port 0 lid 3 lmc 0
[24][ext 3]\t\"S-0008f10400411a08\"[1][ext 7]\t\t# \"the \"big\" one\" lid 6 4xSDR
[1]\t\"R-0008f10403961358\"[1](8f10403961359) \t\t# \"twin\" lid 4 4xSDR

caguid=0x8f10403961354
Ca\t2 \"H-0008f10403961354\"\t\t# \"twin\" (scp)
[2](8f10403961355) \t\"S-0008f10400411a08\"[2]\t\t# lid 4 lmc 0 \"the\" lid 6 4xSDR

rtguid=0x8f10403961358
Rt\t2 \"R-0008f10403961358\"\t\t# \"twin\"
[1](8f10403961359) \t\"S-0008f10400411a09\"[1]\t\t# lid 4 lmc 0 \"twin\" lid 6 4xSDR

Ca\t1 \"H-0008f10403961360\"
";

    fn error(text: &str) -> String {
        ibnetdiscover("f.topo", text).unwrap_err().to_string()
    }

    #[test]
    fn every_variant_of_a_line_is_read() {
        for text in [SMALL.to_string(), SMALL.replace('\n', "\r\n")] {
            let Read { topology, notes } = ibnetdiscover("f.topo", &text).unwrap();
            assert_eq!(topology.host_name(HostId(0)), "twin (H-0008f10403961354)");
            assert_eq!(topology.host_name(HostId(1)), "twin (R-0008f10403961358)");
            assert_eq!(topology.switch_name(SwitchId(0)), "the \"big\" one");
            assert_eq!(topology.switch_name(SwitchId(1)), "twin");
            assert_eq!(topology.port_count(SwitchId(1)), 25);
            let names: Vec<String> =
                topology.links().step_by(2).map(|link| topology.link_name(link)).collect();
            assert_eq!(names, ["h0>s0:2", "h1>s1:1", "s0:1>s1:24"]);
            assert_eq!(notes, ["'H-0008f10403961360' has no connected port; it is left out"]);
        }
    }

    #[test]
    fn sides_that_disagree_are_named_with_both_lines() {
        let (s8, s9) = ("S-0008f10400411a08", "S-0008f10400411a09");
        assert_eq!(
            error(
                &SMALL.replace(
                    "[24][ext 3]\t\"S-0008f10400411a08\"[1]",
                    "[24][ext 3]\t\"S-0008f10400411a08\"[4]"
                )
            ),
            format!(
                "f.topo:12: port 1 of {s8} is linked to port 24 of {s9}, but line 19 says: to port 4 of {s8}"
            )
        );
        assert_eq!(
            error(&SMALL.replace("\n[1](8f10403961359)", "\n[2](8f10403961359)")),
            format!(
                "f.topo:20: port 1 of {s9} is linked to port 1 of R-0008f10403961358, but the block on line 27 does \
                 not list that link"
            )
        );
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(error("[1]\t\"S-1\"[2]"), "f.topo:1: this port comes before any Switch, Ca or Rt");
        assert_eq!(error("\nSwotch 3"), "f.topo:2: 'Swotch 3' is not a line of ibnetdiscover output");
        let two = "Ca\t1 \"H-1\"\n[1]\t\"H-2\"[1]\nCa\t1 \"H-2\"\n[1]\t\"H-1\"[1]\n";
        assert_eq!(
            error(two),
            "f.topo:2: port 1 of H-1 is linked to port 1 of H-2 without a switch between them"
        );
        assert_eq!(
            error(&two.replace("[1]\t\"H-2", "[2]\t\"H-2")),
            "f.topo:2: H-1 has no port 2: its ports are 1 to 1"
        );
        assert_eq!(
            error(&two.replace("Ca\t1 \"H-2\"\n", "").replace("H-2", "H-1")),
            "f.topo:3: port 1 is already defined on line 2"
        );
        assert_eq!(error(&two.replace("\"H-2\"[1]", "\"H-3\"[1]")), "f.topo:2: H-3 has no block of its own");
        assert_eq!(error(&format!("{two}{two}")), "f.topo:5: H-1 is already defined on line 1");
        assert_eq!(error("Switch\t1 \"S-1\"\n"), "f.topo:1: the fabric has no hosts");
    }

    #[test]
    fn a_switch_plugged_into_itself_is_noted() {
        let text = "Switch\t8 \"S-1\"\n[2]\t\"S-1\"[3]\n[3]\t\"S-1\"[2]\n[1]\t\"H-1\"[1]\nCa\t1 \"H-1\"\n[1]\t\"S-1\"[1]\n";
        let Read { topology, notes } = ibnetdiscover("f.topo", text).unwrap();
        assert_eq!(topology.switch_link_count(), 0);
        assert_eq!(notes, ["port 2 of switch 'S-1' is linked to its port 3; left out"]);
    }
}
