//! The graph format that yEd, networkx, igraph and others write (Brandes et al.: GraphML progress
//! report, 2001).

use std::collections::BTreeMap;

use roxmltree::{Document, Node as Element};

use super::parts::{Connection, End, GridPart, Parts, StructurePart, SwitchPart};
use super::{Read, Source, without_mark};
use crate::error::FabricError;
use crate::fabric::FabricSpec;

/// Reads GraphML.
///
/// Nodes are hosts and switches, by a datum `kind` or `type` that is `host` or `switch`; a node
/// without it is a host if it has one link, else a switch. A datum `name` or `label` names a node,
/// else its id does. A switch has as many ports as its datum `ports` says, else as many as its
/// links need; a datum `rank` gives its rank. Hosts and switches are numbered in the order of their
/// nodes, links in the order of their edges.
///
/// Edges are links in both directions, or in one if the edge or the graph is directed. Ports come
/// from `sourceport` and `targetport`, attributes or data; an edge without them takes the lowest
/// free ones. Two opposite directed edges that claim the same ports, or none, are one link in both
/// directions: a directed graph links its hosts like this. A datum `grid` of the graph, such as
/// `torus:k=4,n=2`, says that the switches form a grid, and `structure`, such as `dragonfly:p=2`,
/// that they form a dragonfly or a HyperX; this is checked.
///
/// Names of data are those of the `<key>` elements (`attr.name`), whose defaults apply; other data
/// is ignored.
///
/// # Errors
/// [`FabricError::Malformed`], also for hyperedges, nested graphs, and a node linked to itself.
///
/// ```
/// let text = "<graphml><graph edgedefault='undirected'>
///     <node id='n01'/><node id='n02'/><node id='leaf'/>
///     <edge source='n01' target='leaf'/><edge source='n02' target='leaf'/>
/// </graph></graphml>";
/// let topology = treecast_fabric::read::graphml("lab.graphml", text)?.topology;
/// assert_eq!((topology.host_count(), topology.switch_count()), (2, 1));
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
pub fn graphml(file: &str, text: &str) -> Result<Read, FabricError> {
    let text = without_mark(text);
    let source = Source::new(file, text);
    let document = Document::parse(text).map_err(|error| {
        let line = (error.pos().row as usize).clamp(1, source.line_starts.len() + 1);
        source.error(line, format!("the XML is broken: {error}"))
    })?;
    let graph = only_graph(&document, &source)?;
    let data = Data { keys: keys(&document), source: &source };
    let mut nodes = nodes(graph, &data)?;
    let edges = paired(edges(graph, &data, &nodes)?);
    for edge in &edges {
        for end in [edge.from, edge.to] {
            nodes[end.switch].degree += 1;
            nodes[end.switch].ports_min =
                nodes[end.switch].ports_min.max(end.port.map_or(0, |port| port.saturating_add(1)));
        }
    }
    let mut parts =
        Parts { grid: grid(graph, &data)?, structure: structure(graph, &data)?, ..Parts::default() };
    connect(&mut parts, nodes, &edges, &source)?;
    Ok(Read { topology: parts.topology(&source)?, notes: Vec::new() })
}

fn only_graph<'a>(document: &'a Document, source: &Source) -> Result<Element<'a, 'a>, FabricError> {
    let root = document.root_element();
    let name = root.tag_name().name();
    if name != "graphml" {
        return Err(
            source.error(source.line(root.range().start), format!("the root is <{name}>, not <graphml>"))
        );
    }
    let mut graphs = root.descendants().filter(|element| element.tag_name().name() == "graph");
    let Some(graph) = graphs.next() else {
        return Err(source.error(source.line(root.range().start), "there is no <graph>"));
    };
    match graphs.next() {
        None => Ok(graph),
        Some(second) => {
            let line = source.line(second.range().start);
            Err(source.error(line, "this is a second <graph>: a fabric is one graph, without nested graphs"))
        }
    }
}

/// A declared name of data.
struct Key<'a> {
    name: &'a str,
    domain: &'a str,
    default: Option<&'a str>,
}

fn keys<'a>(document: &'a Document) -> BTreeMap<&'a str, Key<'a>> {
    let elements = document.root_element().children().filter(|element| element.tag_name().name() == "key");
    elements
        .filter_map(|element| {
            let id = element.attribute("id")?;
            let default = element.children().find(|child| child.tag_name().name() == "default");
            let key = Key {
                name: element.attribute("attr.name").unwrap_or(id),
                domain: element.attribute("for").unwrap_or("all"),
                default: default.and_then(|default| default.text()).map(str::trim),
            };
            Some((id, key))
        })
        .collect()
}

/// Looks up the data of elements.
struct Data<'a> {
    keys: BTreeMap<&'a str, Key<'a>>,
    source: &'a Source<'a>,
}

impl<'a> Data<'a> {
    /// The datum of that name with its line: the element's own, else the default of the key. An
    /// empty one counts as missing.
    fn get(&self, element: Element<'a, 'a>, name: &str) -> Option<(&'a str, usize)> {
        let own = element.children().filter(|child| child.tag_name().name() == "data").find(|child| {
            let id = child.attribute("key").unwrap_or_default();
            self.keys.get(id).map_or(id, |key| key.name) == name
        });
        let (value, at) = if let Some(own) = own {
            (own.text().map(str::trim), own)
        } else {
            let domains = ["all", element.tag_name().name()];
            let key = self.keys.values().find(|key| key.name == name && domains.contains(&key.domain));
            (key.and_then(|key| key.default), element)
        };
        value.filter(|value| !value.is_empty()).map(|value| (value, self.line(at)))
    }

    /// A datum that is a whole number.
    fn number(&self, element: Element<'a, 'a>, name: &str) -> Result<Option<(u32, usize)>, FabricError> {
        let attribute = element.attribute(name).map(|value| (value, self.line(element)));
        let Some((value, line)) = attribute.or_else(|| self.get(element, name)) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some((number, line))),
            Err(_) => Err(self.source.error(line, format!("{name}='{value}' is not a whole number"))),
        }
    }

    fn line(&self, element: Element) -> usize {
        self.source.line(element.range().start)
    }
}

struct Node<'a> {
    id: &'a str,
    name: String,
    is_host: Option<bool>,
    ports: Option<u32>,
    rank: Option<u32>,
    degree: u32,
    /// The number of ports that the given port numbers require.
    ports_min: u32,
    line: usize,
}

fn nodes<'a>(graph: Element<'a, 'a>, data: &Data<'a>) -> Result<Vec<Node<'a>>, FabricError> {
    let elements = graph.children().filter(|element| element.tag_name().name() == "node");
    elements
        .map(|element| {
            let line = data.line(element);
            let Some(id) = element.attribute("id") else {
                return Err(data.source.error(line, "this node has no id"));
            };
            let name = data.get(element, "name").or_else(|| data.get(element, "label"));
            Ok(Node {
                id,
                name: name.map_or(id, |(name, _)| name).to_string(),
                is_host: is_host(element, data)?,
                ports: data.number(element, "ports")?.map(|(ports, _)| ports),
                rank: data.number(element, "rank")?.map(|(rank, _)| rank),
                degree: 0,
                ports_min: 0,
                line,
            })
        })
        .collect()
}

fn is_host<'a>(element: Element<'a, 'a>, data: &Data<'a>) -> Result<Option<bool>, FabricError> {
    match data.get(element, "kind").or_else(|| data.get(element, "type")) {
        None => Ok(None),
        Some(("host", _)) => Ok(Some(true)),
        Some(("switch", _)) => Ok(Some(false)),
        Some((other, line)) => {
            Err(data.source.error(line, format!("unknown kind of node '{other}': expected host or switch")))
        }
    }
}

/// An edge between two nodes; its ends count nodes, not switches.
struct Edge {
    from: End,
    to: End,
    one_way: bool,
    line: usize,
}

fn edges<'a>(graph: Element<'a, 'a>, data: &Data<'a>, nodes: &[Node]) -> Result<Vec<Edge>, FabricError> {
    let mut numbers = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        if let Some(before) = numbers.insert(node.id, number) {
            let reason = format!("node '{}' is already defined on line {}", node.id, nodes[before].line);
            return Err(data.source.error(node.line, reason));
        }
    }
    let directed_default = match graph.attribute("edgedefault") {
        None | Some("undirected") => false,
        Some("directed") => true,
        Some(other) => {
            let reason = format!("edgedefault='{other}' is neither directed nor undirected");
            return Err(data.source.error(data.line(graph), reason));
        }
    };
    let mut edges = Vec::new();
    for element in graph.children() {
        match element.tag_name().name() {
            "edge" => edges.push(edge(element, data, &numbers, directed_default)?),
            "hyperedge" => {
                return Err(data
                    .source
                    .error(data.line(element), "hyperedges are not supported: a link has two ends"));
            }
            _ => {}
        }
    }
    Ok(edges)
}

fn edge<'a>(
    element: Element<'a, 'a>,
    data: &Data<'a>,
    numbers: &BTreeMap<&str, usize>,
    directed_default: bool,
) -> Result<Edge, FabricError> {
    let line = data.line(element);
    let end = |which: &str, port: &str| {
        let Some(id) = element.attribute(which) else {
            return Err(data.source.error(line, format!("this edge has no {which}")));
        };
        let Some(&node) = numbers.get(id) else {
            return Err(data.source.error(line, format!("{which}='{id}' is not a node")));
        };
        let port = data.number(element, port)?;
        Ok(End { switch: node, port: port.map(|(port, _)| port), line: port.map_or(line, |(_, line)| line) })
    };
    let (from, to) = (end("source", "sourceport")?, end("target", "targetport")?);
    if from.switch == to.switch {
        let id = element.attribute("source").unwrap_or_default();
        return Err(data.source.error(line, format!("node '{id}' is linked to itself")));
    }
    let one_way = match element.attribute("directed") {
        None => directed_default,
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            return Err(data.source.error(line, format!("directed='{other}' is neither true nor false")));
        }
    };
    Ok(Edge { from, to, one_way, line })
}

/// Merges two opposite directed edges that claim the same ports into one edge.
fn paired(edges: Vec<Edge>) -> Vec<Edge> {
    let mut alone: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let mut paired: Vec<Edge> = Vec::new();
    for edge in edges {
        let (from, to) = ((edge.from.switch, edge.from.port), (edge.to.switch, edge.to.port));
        if edge.one_way {
            if let Some(back) = alone.get_mut(&(to, from)).and_then(Vec::pop) {
                paired[back].one_way = false;
                continue;
            }
            alone.entry((from, to)).or_default().push(paired.len());
        }
        paired.push(edge);
    }
    paired
}

fn grid<'a>(graph: Element<'a, 'a>, data: &Data<'a>) -> Result<Option<GridPart>, FabricError> {
    let Some((text, line)) = data.get(graph, "grid") else { return Ok(None) };
    match text.parse::<FabricSpec>().map_err(|error| data.source.error(line, error))? {
        FabricSpec::Grid(shape, radix, dimensions) => Ok(Some(GridPart { shape, radix, dimensions, line })),
        _ => Err(data.source.error(line, format!("'{text}' is not a grid: expected a torus or mesh"))),
    }
}

fn structure<'a>(graph: Element<'a, 'a>, data: &Data<'a>) -> Result<Option<StructurePart>, FabricError> {
    let Some((text, line)) = data.get(graph, "structure") else { return Ok(None) };
    StructurePart::new(text, line, data.source).map(Some)
}

/// Adds the switches in the order of their nodes, and hosts and links in the order of the edges.
fn connect(parts: &mut Parts, nodes: Vec<Node>, edges: &[Edge], source: &Source) -> Result<(), FabricError> {
    let mut hosts = Vec::new();
    let mut switch_of_node = Vec::new();
    for (number, node) in nodes.into_iter().enumerate() {
        if node.is_host.unwrap_or(node.degree == 1) {
            hosts.push((number, node));
            switch_of_node.push(None);
        } else {
            switch_of_node.push(Some(parts.switches.len()));
            parts.switches.push(SwitchPart {
                name: Some(node.name),
                port_count: node.ports.unwrap_or(node.degree.max(node.ports_min)),
                rank: node.rank,
                line: node.line,
            });
        }
    }
    let mut ends = host_ends(edges, &switch_of_node, source)?;
    let hosts = hosts.into_iter().map(|(number, node)| match ends.remove(&number) {
        Some(at) => Ok(Connection::Host { name: Some(node.name), at, line: node.line }),
        None => Err(source.error(node.line, format!("host '{}' has no link", node.name))),
    });
    let mut hosts = hosts.collect::<Result<Vec<_>, _>>()?.into_iter();
    for edge in edges {
        match (at_switch(edge.from, &switch_of_node), at_switch(edge.to, &switch_of_node)) {
            (Some(from), Some(to)) => {
                parts.connections.push(Connection::Link { from, to, one_way: edge.one_way, line: edge.line });
            }
            _ => parts.connections.extend(hosts.next()),
        }
    }
    Ok(())
}

/// The end with the number of its switch, if it is at a switch.
fn at_switch(end: End, switch_of_node: &[Option<usize>]) -> Option<End> {
    switch_of_node[end.switch].map(|switch| End { switch, ..end })
}

/// The port that each host is attached to, by the number of its node.
fn host_ends(
    edges: &[Edge],
    switch_of_node: &[Option<usize>],
    source: &Source,
) -> Result<BTreeMap<usize, End>, FabricError> {
    let mut ends = BTreeMap::new();
    let mut first_lines = BTreeMap::new();
    for edge in edges {
        let (host, at) = match (at_switch(edge.from, switch_of_node), at_switch(edge.to, switch_of_node)) {
            (Some(_), Some(_)) => continue,
            (None, Some(at)) => (edge.from, at),
            (Some(at), None) => (edge.to, at),
            (None, None) => {
                return Err(source.error(edge.line, "this edge links two hosts: a host links to a switch"));
            }
        };
        if edge.one_way {
            let reason = "this edge links a host in one direction only: add the opposite edge";
            return Err(source.error(edge.line, reason));
        }
        if let Some(port) = host.port.filter(|&port| port != 0) {
            return Err(source.error(host.line, format!("a host has no port {port}: it has port 0 only")));
        }
        if let Some(before) = first_lines.insert(host.switch, edge.line) {
            let reason =
                format!("a host has one link: this edge is a second one after that on line {before}");
            return Err(source.error(edge.line, reason));
        }
        ends.insert(host.switch, at);
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{HostId, LinkId, SwitchId};
    use crate::topology::Topology;

    fn read(attributes: &str, body: &str) -> Result<Topology, FabricError> {
        graphml("f.graphml", &format!("<graphml><graph {attributes}>\n{body}\n</graph></graphml>"))
            .map(|read| read.topology)
    }

    fn error(attributes: &str, body: &str) -> String {
        read(attributes, body).unwrap_err().to_string()
    }

    const NODES: &str = "<node id='a'><data key='kind'>switch</data></node>
<node id='b'><data key='kind'>switch</data></node>
<node id='x'><data key='kind'>host</data></node>
<edge source='x' target='a' directed='false'/>
";

    #[test]
    fn keys_name_the_data_and_give_defaults() {
        let text = "<?xml version='1.0'?>
<graphml xmlns='http://graphml.graphdrawing.org/xmlns'>
  <key id='d0' for='node' attr.name='type'><default>host</default></key>
  <key id='d1' for='node' attr.name='label'/>
  <key id='d2' for='node' attr.name='ports'/>
  <key id='d3' for='node' attr.name='colour'/>
  <graph edgedefault='undirected'>
    <node id='0'><data key='d0'> switch </data><data key='d2'>9</data><data key='d3'>red</data></node>
    <node id='1'><data key='d1'>n01</data></node>
    <edge source='1' target='0' targetport='5'/>
  </graph>
</graphml>";
        let topology = graphml("f.graphml", text).unwrap().topology;
        assert_eq!(topology.port_count(SwitchId(0)), 9);
        assert_eq!(topology.switch_name(SwitchId(0)), "0");
        assert_eq!(topology.host_name(HostId(0)), "n01");
        assert_eq!(topology.link_name(LinkId(0)), "h0>s0:5");
    }

    #[test]
    fn nodes_without_a_kind_are_hosts_if_they_have_one_link() {
        let topology = read(
            "",
            "<node id='x'/><node id='a'/><node id='b'/><node id='y'/>
             <edge source='b' target='y'/><edge source='a' target='b' targetport='6'/><edge source='a' target='x'/>",
        )
        .unwrap();
        assert_eq!(topology.host_count(), 2);
        assert_eq!(topology.switch_count(), 2);
        assert_eq!(topology.host_name(HostId(0)), "x");
        let ports = [SwitchId(0), SwitchId(1)].map(|switch| topology.port_count(switch));
        assert_eq!(ports, [2, 7], "as many as the links and the given numbers require");
        assert_eq!(
            topology.link_name(LinkId(2)),
            "s0:1>s1:6",
            "links are numbered in the order of the edges"
        );
    }

    #[test]
    fn opposite_directed_edges_on_the_same_ports_are_one_link() {
        let there = "<edge source='a' target='b' sourceport='1' targetport='1'/>\n";
        let back = "<edge source='b' target='a' sourceport='1' targetport='1'/>\n";
        let elsewhere = "<edge source='b' target='a' sourceport='1' targetport='2'/>\n";
        let topology = read("edgedefault='directed'", &format!("{NODES}{there}{back}")).unwrap();
        assert_eq!(topology.reverse(LinkId(2)), Some(LinkId(3)));
        let topology = read("edgedefault='directed'", &format!("{NODES}{there}{elsewhere}")).unwrap();
        assert_eq!(topology.switch_link_count(), 2);
        assert_eq!(topology.reverse(LinkId(2)), None);
        let portless = "<edge source='a' target='b'/><edge source='b' target='a'/>";
        let topology = read("edgedefault='directed'", &format!("{NODES}{portless}{portless}")).unwrap();
        assert_eq!(topology.switch_link_count(), 4);
        assert!(topology.links().all(|link| topology.reverse(link).is_some()));
    }

    #[test]
    fn a_directed_graph_links_its_hosts_in_both_directions() {
        let one = "<node id='x'/><node id='a'/><node id='y'/><edge source='x' target='a'/>
<edge source='y' target='a'/>";
        let reason = "this edge links a host in one direction only: add the opposite edge";
        assert_eq!(error("edgedefault='directed'", one), format!("f.graphml:2: {reason}"));
        let both = format!("{one}<edge source='a' target='x'/><edge source='a' target='y'/>");
        assert_eq!(read("edgedefault='directed'", &both).unwrap().host_count(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        let with = |rest: &str| error("", &format!("{NODES}{rest}"));
        assert_eq!(
            with(""),
            "f.graphml:3: the fabric is not connected: there is no path from switch 'a' to switch 'b'"
        );
        assert_eq!(with("<hyperedge/>"), "f.graphml:6: hyperedges are not supported: a link has two ends");
        assert_eq!(
            with("<node id='c'>\n<graph/></node>"),
            "f.graphml:7: this is a second <graph>: a fabric is one graph, without nested graphs"
        );
        assert_eq!(with("<edge source='a' target='a'/>"), "f.graphml:6: node 'a' is linked to itself");
        assert_eq!(with("<edge source='a' target='c'/>"), "f.graphml:6: target='c' is not a node");
        assert_eq!(with("<edge source='a'/>"), "f.graphml:6: this edge has no target");
        assert_eq!(with("<node/>"), "f.graphml:6: this node has no id");
        assert_eq!(with("<node id='a'/>"), "f.graphml:6: node 'a' is already defined on line 2");
        assert_eq!(
            with("<node id='c'>\n<data key='type'>hots</data></node>"),
            "f.graphml:7: unknown kind of node 'hots': expected host or switch"
        );
        assert_eq!(
            with("<edge source='a' target='b' sourceport='east'/>"),
            "f.graphml:6: sourceport='east' is not a whole number"
        );
        assert_eq!(
            with("<edge source='a' target='x'/>"),
            "f.graphml:6: a host has one link: this edge is a second one after that on line 5"
        );
        assert_eq!(
            with("<node id='y'><data key='kind'>host</data></node>"),
            "f.graphml:6: host 'y' has no link"
        );
        assert_eq!(
            with("<edge source='b' target='a' directed='maybe'/>"),
            "f.graphml:6: directed='maybe' is neither true nor false"
        );
        assert_eq!(
            error("edgedefault='both'", ""),
            "f.graphml:1: edgedefault='both' is neither directed nor undirected"
        );
    }

    #[test]
    fn a_grid_is_declared_by_the_graph() {
        let not = with_grid("mesh:k=2,n=1");
        assert_eq!(
            not,
            "f.graphml:6: this is not mesh:k=2,n=1: it has 1 hosts and 4 directed links, not 2 hosts and 6 directed \
             links"
        );
        assert_eq!(with_grid("star:2"), "f.graphml:6: 'star:2' is not a grid: expected a torus or mesh");
    }

    fn with_grid(spec: &str) -> String {
        error("", &format!("{NODES}<data key='grid'>{spec}</data><edge source='a' target='b'/>"))
    }

    #[test]
    fn broken_xml_is_named_with_its_line() {
        let broken = graphml("f.graphml", "<graphml>\n<graph>\n</grap></graphml>").unwrap_err().to_string();
        assert!(broken.starts_with("f.graphml:3: the XML is broken: "), "{broken}");
        let empty = graphml("f.graphml", "").unwrap_err().to_string();
        assert!(empty.starts_with("f.graphml:1: the XML is broken: "), "{empty}");
        let other = graphml("f.graphml", "<svg/>").unwrap_err().to_string();
        assert_eq!(other, "f.graphml:1: the root is <svg>, not <graphml>");
    }
}
