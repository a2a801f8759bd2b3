//! Writers: each writes a [`Topology`] as the text of a file from which a reader builds the same
//! topology.

use std::fmt::{self, Write};

use crate::fabric::FabricSpec;
use crate::generate::GridShape;
use crate::grid::Grid;
use crate::ids::Vertex;
use crate::topology::{Link, Topology};

impl Topology {
    /// The whole topology in the format of [`read::toml`](crate::read::toml()), which builds an
    /// equal topology from it.
    ///
    /// ```
    /// let topology = treecast_fabric::generate::star(3)?;
    /// assert_eq!(treecast_fabric::read::toml("star.toml", &topology.to_toml())?.topology, topology);
    /// # Ok::<(), treecast_fabric::FabricError>(())
    /// ```
    pub fn to_toml(&self) -> String {
        text(|out| self.write_toml(out))
    }

    /// The whole topology in the format of [`read::graphml`](crate::read::graphml()), which builds
    /// an equal topology from it, except for unusual names: XML has no control characters, which
    /// become U+FFFD, and white space around a name is lost.
    ///
    /// ```
    /// let topology = treecast_fabric::generate::star(3)?;
    /// assert_eq!(treecast_fabric::read::graphml("star.graphml", &topology.to_graphml())?.topology, topology);
    /// # Ok::<(), treecast_fabric::FabricError>(())
    /// ```
    pub fn to_graphml(&self) -> String {
        text(|out| self.write_graphml(out))
    }

    fn write_toml(&self, out: &mut String) -> fmt::Result {
        if let Some(grid) = self.grid() {
            let shape = match shape(grid) {
                GridShape::Torus => "torus",
                GridShape::UnidirectionalTorus => "unidirectional-torus",
                GridShape::Mesh => "mesh",
            };
            let (k, n) = (grid.radix(), grid.dimensions());
            writeln!(out, "[grid]\nk = {k}\nn = {n}\nshape = \"{shape}\"\n")?;
        }
        if let Some(structure) = self.structure() {
            writeln!(out, "structure = \"{structure}\"\n")?;
        }
        let quoted = toml::Value::String;
        for switch in self.switches() {
            let (name, ports) = (quoted(self.switch_name(switch)), self.port_count(switch));
            writeln!(out, "[[switch]]\nname = {name}\nports = {ports}")?;
            if let Some(ranks) = self.ranks() {
                writeln!(out, "rank = {}", ranks[switch.index()])?;
            }
            writeln!(out)?;
        }
        for link in self.physical_links() {
            let Link { from, from_port, to, to_port } = self.link(link);
            let switch = |end: Vertex| end.switch().map(|switch| quoted(self.switch_name(switch)));
            match (from, switch(from), switch(to)) {
                (Vertex::Host(host), _, Some(to)) => {
                    let name = quoted(self.host_name(host));
                    writeln!(out, "[[host]]\nname = {name}\nswitch = {to}\nport = {to_port}\n")?;
                }
                (_, Some(from), Some(to)) => {
                    let one_way = if self.reverse(link).is_none() { "one_way = true\n" } else { "" };
                    writeln!(out, "[[link]]\nfrom = {from}\nto = {to}")?;
                    writeln!(out, "from_port = {from_port}\nto_port = {to_port}\n{one_way}")?;
                }
                _ => unreachable!("a host's link is listed by its injection"),
            }
        }
        Ok(())
    }

    fn write_graphml(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
        writeln!(out, "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">")?;
        for (domain, name, kind) in KEYS {
            writeln!(
                out,
                "  <key id=\"{name}\" for=\"{domain}\" attr.name=\"{name}\" attr.type=\"{kind}\"/>"
            )?;
        }
        writeln!(out, "  <graph id=\"fabric\" edgedefault=\"undirected\">")?;
        if let Some(grid) = self.grid() {
            let spec = FabricSpec::Grid(shape(grid), grid.radix(), grid.dimensions());
            writeln!(out, "    {}", datum("grid", spec))?;
        }
        if let Some(structure) = self.structure() {
            writeln!(out, "    {}", datum("structure", structure))?;
        }
        for switch in self.switches() {
            let (name, ports) = (escaped(&self.switch_name(switch)), self.port_count(switch));
            let rank = self.ranks().map(|ranks| datum("rank", ranks[switch.index()])).unwrap_or_default();
            let data = [datum("kind", "switch"), datum("name", name), datum("ports", ports), rank].concat();
            writeln!(out, "    <node id=\"{switch}\">{data}</node>")?;
        }
        for host in self.hosts() {
            let name = escaped(&self.host_name(host));
            let data = [datum("kind", "host"), datum("name", name)].concat();
            writeln!(out, "    <node id=\"{host}\">{data}</node>")?;
        }
        for link in self.physical_links() {
            let Link { from, from_port, to, to_port } = self.link(link);
            let directed = if self.reverse(link).is_none() { " directed=\"true\"" } else { "" };
            let ports = [datum("sourceport", from_port), datum("targetport", to_port)].concat();
            writeln!(out, "    <edge source=\"{from}\" target=\"{to}\"{directed}>{ports}</edge>")?;
        }
        writeln!(out, "  </graph>\n</graphml>")
    }
}

/// The data of GraphML elements: element, name, type.
const KEYS: [(&str, &str, &str); 8] = [
    ("graph", "grid", "string"),
    ("graph", "structure", "string"),
    ("node", "kind", "string"),
    ("node", "name", "string"),
    ("node", "ports", "int"),
    ("node", "rank", "int"),
    ("edge", "sourceport", "int"),
    ("edge", "targetport", "int"),
];

fn text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut out = String::new();
    write(&mut out).expect("writing to a string does not fail");
    out
}

fn shape(grid: &Grid) -> GridShape {
    match (grid.wraps(), grid.is_bidirectional()) {
        (false, _) => GridShape::Mesh,
        (true, true) => GridShape::Torus,
        (true, false) => GridShape::UnidirectionalTorus,
    }
}

fn datum(key: &str, value: impl fmt::Display) -> String {
    format!("<data key=\"{key}\">{value}</data>")
}

fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for character in name.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
