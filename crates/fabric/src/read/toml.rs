//! The TOML format: the spec of a generated fabric, or switches, hosts and links one by one.

use std::collections::BTreeMap;

use ::toml::Spanned;
use serde::Deserialize;
use treecast_terms::nearest;

use super::parts::{Connection, End, GridPart, Parts, StructurePart, SwitchPart, no_switch};
use super::{Read, Source, without_mark};
use crate::error::FabricError;
use crate::fabric::FabricSpec;
use crate::generate::GridShape;
use crate::topology::Topology;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    generator: Option<Spanned<String>>,
    #[serde(default)]
    switch: Vec<Spanned<Switch>>,
    #[serde(default)]
    host: Vec<Spanned<Host>>,
    #[serde(default)]
    link: Vec<Spanned<Link>>,
    grid: Option<Spanned<Grid>>,
    structure: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    name: Option<String>,
    ports: u32,
    rank: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    name: Option<String>,
    switch: Spanned<String>,
    port: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    from: Spanned<String>,
    to: Spanned<String>,
    from_port: Option<Spanned<u32>>,
    to_port: Option<Spanned<u32>>,
    #[serde(default)]
    one_way: bool,
    count: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grid {
    k: u32,
    n: u32,
    shape: Shape,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    Torus,
    UnidirectionalTorus,
    Mesh,
}

/// Reads the TOML format.
///
/// Either `generator = "..."` alone, with any line a [`FabricSpec`] reads; or the tables
/// `[[switch]]` (`ports`; optional `name`, `rank`), `[[host]]` (`switch`; optional `name`, `port`)
/// and `[[link]]` (`from`, `to`; optional `from_port`, `to_port`, `one_way`, `count`). Switches,
/// hosts and links are numbered in the order of the file; those without a name are called `s0`,
/// `s1`, `h0`, `h1` by their number. If a port is given, `count` parallel links take consecutive
/// ports. An optional `[grid]` (`k`, `n`, and as `shape` one of `torus`, `unidirectional-torus`,
/// `mesh`) says that the switches form a grid, and a key `structure`, such as `structure =
/// "dragonfly:p=2"`, that they form a dragonfly or a HyperX; this is checked.
///
/// # Errors
/// [`FabricError::Malformed`].
///
/// ```
/// let text = r#"
/// [[switch]]
/// name = "leaf"
/// ports = 4
///
/// [[switch]]
/// name = "spine"
/// ports = 2
///
/// [[host]]
/// name = "n01"
/// switch = "leaf"
///
/// [[link]]
/// from = "leaf"
/// to = "spine"
/// count = 2
/// "#;
/// let topology = treecast_fabric::read::toml("lab.toml", text)?.topology;
/// assert_eq!(topology.switch_link_count(), 4);
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
pub fn toml(file: &str, text: &str) -> Result<Read, FabricError> {
    let text = without_mark(text);
    let source = Source::new(file, text);
    let parsed: File = ::toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        source.error(source.line(span.start), explained(error.message(), text.get(span).unwrap_or_default()))
    })?;
    let topology = match &parsed.generator {
        Some(generator) => generated(&parsed, generator, &source)?,
        None => explicit(parsed, &source)?,
    };
    Ok(Read { topology, notes: Vec::new() })
}

/// The parser's message with the value it is about, and for an unknown name with the nearest known
/// ones: the message has the name and then all known ones in backticks.
fn explained(message: &str, about: &str) -> String {
    let message = message
        .trim()
        .replace('\n', ": ")
        .replace("expected u32", "expected a whole number up to 4294967295");
    if message.starts_with("unknown ") {
        let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let near = names.split_first().map(|(given, known)| nearest(given, known)).unwrap_or_default();
        return if near.is_empty() {
            message
        } else {
            format!("{message}: did you mean {}?", near.join(", "))
        };
    }
    let about = about.trim();
    if message.starts_with("missing ") || about.is_empty() || about.contains('\n') || message.contains(about)
    {
        return message;
    }
    format!("{message}: '{about}'")
}

fn generated(parsed: &File, generator: &Spanned<String>, source: &Source) -> Result<Topology, FabricError> {
    let line = source.line(generator.span().start);
    let whole = parsed.switch.is_empty()
        && parsed.host.is_empty()
        && parsed.link.is_empty()
        && parsed.grid.is_none()
        && parsed.structure.is_none();
    if !whole {
        return Err(source.error(line, "a generator describes the whole fabric: remove everything else"));
    }
    let spec: FabricSpec = generator.get_ref().parse().map_err(|error| source.error(line, error))?;
    spec.topology().map_err(|error| source.error(line, error))
}

fn explicit(parsed: File, source: &Source) -> Result<Topology, FabricError> {
    let mut parts = Parts::default();
    let mut numbers = BTreeMap::new();
    for (index, switch) in parsed.switch.into_iter().enumerate() {
        let line = source.line(switch.span().start);
        let Switch { name, ports, rank } = switch.into_inner();
        numbers.entry(name.clone().unwrap_or_else(|| format!("s{index}"))).or_insert(index);
        parts.switches.push(SwitchPart { name, port_count: ports, rank, line });
    }
    let names = Names { numbers, source };

    let hosts = parsed.host.into_iter().map(|host| (host.span().start, Entry::Host(host.into_inner())));
    let links = parsed.link.into_iter().map(|link| (link.span().start, Entry::Link(link.into_inner())));
    let mut entries: Vec<(usize, Entry)> = hosts.chain(links).collect();
    entries.sort_by_key(|&(start, _)| start);
    for (start, entry) in entries {
        let line = source.line(start);
        match entry {
            Entry::Host(host) => {
                let at = names.end(&host.switch, host.port.as_ref(), line)?;
                parts.connections.push(Connection::Host { name: host.name, at, line });
            }
            Entry::Link(link) => add_links(&mut parts, &link, &names, line)?,
        }
    }
    parts.grid = parsed.grid.map(|grid| GridPart {
        line: source.line(grid.span().start),
        shape: match grid.get_ref().shape {
            Shape::Torus => GridShape::Torus,
            Shape::UnidirectionalTorus => GridShape::UnidirectionalTorus,
            Shape::Mesh => GridShape::Mesh,
        },
        radix: grid.get_ref().k,
        dimensions: grid.get_ref().n,
    });
    if let Some(structure) = parsed.structure {
        let line = source.line(structure.span().start);
        parts.structure = Some(StructurePart::new(structure.get_ref(), line, source)?);
    }
    parts.topology(source)
}

/// The items that are numbered in the order of the file.
enum Entry {
    Host(Host),
    Link(Link),
}

fn add_links(parts: &mut Parts, link: &Link, names: &Names, line: usize) -> Result<(), FabricError> {
    let from = names.end(&link.from, link.from_port.as_ref(), line)?;
    let to = names.end(&link.to, link.to_port.as_ref(), line)?;
    let count = link.count.as_ref().map_or(1, |count| *count.get_ref());
    let most = parts.switches[from.switch].port_count.min(parts.switches[to.switch].port_count);
    if count == 0 || count > most.max(1) {
        let line = link.count.as_ref().map_or(line, |count| names.source.line(count.span().start));
        let reason = format!("count={count} is out of range: 1 to {most}, the ports of the smaller switch");
        return Err(names.source.error(line, reason));
    }
    for further in 0..count {
        let shifted = |end: End| End { port: end.port.map(|port| port.saturating_add(further)), ..end };
        parts.connections.push(Connection::Link {
            from: shifted(from),
            to: shifted(to),
            one_way: link.one_way,
            line,
        });
    }
    Ok(())
}

/// The switches by name.
struct Names<'a> {
    numbers: BTreeMap<String, usize>,
    source: &'a Source<'a>,
}

impl Names<'_> {
    fn end(
        &self,
        switch: &Spanned<String>,
        port: Option<&Spanned<u32>>,
        line: usize,
    ) -> Result<End, FabricError> {
        let Some(&number) = self.numbers.get(switch.get_ref()) else {
            let line = self.source.line(switch.span().start);
            return Err(self.source.error(line, no_switch(switch.get_ref(), &self.numbers)));
        };
        let line = port.map_or(line, |port| self.source.line(port.span().start));
        Ok(End { switch: number, port: port.map(|port| *port.get_ref()), line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{HostId, LinkId, SwitchId};

    const TWO: &str = "[[switch]]\nname = 'a'\nports = 4\n[[switch]]\nports = 3\n";

    fn topology(text: &str) -> Topology {
        toml("f.toml", text).unwrap().topology
    }

    fn error(text: &str) -> String {
        toml("f.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_generator_line_makes_the_generators_topology() {
        let spec: FabricSpec = "torus:k=4,n=2".parse().unwrap();
        assert_eq!(topology("generator = 'torus:k=4,n=2'"), spec.topology().unwrap());
        assert_eq!(
            error("\n\ngenerator = 'tours:k=4'"),
            "f.toml:3: unknown fabric 'tours': did you mean torus?"
        );
        assert_eq!(error("generator = 'torus:k=1'"), "f.toml:1: k=1 is out of range: 2 to 1048576");
        assert_eq!(
            error(&format!("generator = 'star:3'\n{TWO}")),
            "f.toml:1: a generator describes the whole fabric: remove everything else"
        );
    }

    #[test]
    fn hosts_and_links_are_numbered_in_the_order_of_the_file() {
        let text = format!(
            "{TWO}[[link]]\nfrom = 'a'\nto = 's1'\n[[host]]\nswitch = 'a'\nname = 'x'\n[[host]]\nswitch = 's1'\n"
        );
        let topology = topology(&text);
        assert_eq!(topology.link_name(LinkId(0)), "s0:0>s1:0");
        assert_eq!(topology.link_name(topology.injection(HostId(1))), "h1>s1:1");
        assert_eq!(topology.host_name(HostId(0)), "x");
        assert_eq!(topology.host_name(HostId(1)), "h1");
        assert_eq!(topology.switch_name(SwitchId(0)), "a");
        assert_eq!(topology.port_count(SwitchId(0)), 4);
    }

    #[test]
    fn given_ports_are_assigned_before_the_lowest_free_ones() {
        let text = format!(
            "{TWO}[[host]]\nswitch = 'a'\n[[host]]\nswitch = 'a'\nport = 0\n\
             [[link]]\nfrom = 'a'\nto = 's1'\ncount = 2\nto_port = 1\n"
        );
        let topology = topology(&text);
        let names: Vec<String> = topology.links().map(|link| topology.link_name(link)).collect();
        let expected = ["h0>s0:1", "s0:1>h0", "h1>s0:0", "s0:0>h1"];
        let links = ["s0:2>s1:1", "s1:1>s0:2", "s0:3>s1:2", "s1:2>s0:3"];
        assert_eq!(names, [expected, links].concat());
    }

    #[test]
    fn one_way_links_share_a_port_only_with_the_opposite_direction() {
        let two = format!("{TWO}[[host]]\nswitch = 'a'\n");
        let way = "[[link]]\nfrom = 'a'\nto = 's1'\nfrom_port = 1\nto_port = 1\none_way = true\n";
        let back = "[[link]]\nfrom = 's1'\nto = 'a'\nfrom_port = 1\nto_port = 1\none_way = true\n";
        let topology = topology(&format!("{two}{way}{back}"));
        assert_eq!(topology.switch_link_count(), 2);
        assert_eq!(topology.reverse(LinkId(2)), None);
        assert_eq!(
            error(&format!("{two}{way}{way}")),
            "f.toml:17: port 1 of switch 'a' is already in use, on line 11"
        );
        assert_eq!(
            error(&format!("{two}{way}")),
            "f.toml:4: the fabric is not connected: there is no path from switch 's1' to switch 'a'"
        );
    }

    #[test]
    fn errors_name_the_line() {
        let with = |rest: &str| error(&format!("{TWO}{rest}"));
        assert_eq!(error(""), "f.toml:1: the fabric has no hosts");
        assert_eq!(with("[[host]]\nswitch = 'aa'"), "f.toml:7: there is no switch 'aa': did you mean a?");
        assert_eq!(
            with("[[host]]\nswitch = 'a'\nport = 4"),
            "f.toml:8: switch 'a' has no port 4: its ports are 0 to 3"
        );
        assert_eq!(
            with("[[switch]]\nname = 'a'\nports = 1"),
            "f.toml:6: switch 'a' is already defined on line 1"
        );
        assert_eq!(with("[[switch]]\nname = ''\nports = 1"), "f.toml:6: the name of this switch is empty");
        assert_eq!(
            with("[[switch]]\nports = 1\nrank = 1"),
            "f.toml:1: switch 'a' has no rank, but switch 's2' has one: give all a rank or none"
        );
        assert_eq!(
            with("[[link]]\nfrom = 'a'\nto = 's1'\ncount = 4"),
            "f.toml:9: count=4 is out of range: 1 to 3, the ports of the smaller switch"
        );
        assert_eq!(
            with(&"[[host]]\nswitch = 's1'\n".repeat(4)),
            "f.toml:12: switch 's1' has no free port: it has 3"
        );
        assert_eq!(with("[[link]]\nfrom = 'a'\nto = 'a'"), "f.toml:6: s0 is linked to itself");
        assert_eq!(
            with("[[switch]]\nports = 2000000"),
            "f.toml:6: switch 's2' has 2000000 ports: at most 1048576 are possible"
        );
    }

    #[test]
    fn broken_toml_and_unknown_keys_are_named_with_their_line() {
        assert_eq!(
            error("[[switch]]\nport = 3"),
            "f.toml:2: unknown field `port`, expected one of `name`, `ports`, `rank`: did you mean ports?"
        );
        assert_eq!(error("[[switch]]\nports = 1\nports = 2"), "f.toml:3: duplicate key: 'ports'");
        let broken = error("[[switch]]\nports = \n");
        assert!(broken.starts_with("f.toml:2: "), "{broken}");
        let missing = error("[[host]]\nswitch = 'a'\n[[switch]]\n");
        assert_eq!(missing, "f.toml:3: missing field `ports`");
        let negative = error("[[switch]]\nports = -1");
        assert!(negative.starts_with("f.toml:2: ") && negative.contains("-1"), "{negative}");
    }

    #[test]
    fn a_declared_grid_is_verified() {
        let ring = |k: u32| {
            let switches = "[[switch]]\nports = 3\n".repeat(3);
            let hosts = [0, 1, 2].map(|s| format!("[[host]]\nswitch = 's{s}'\nport = 2\n")).concat();
            let links = [(2, 0), (0, 1), (1, 2)]
                .map(|(from, to)| {
                    format!("[[link]]\nfrom = 's{from}'\nto = 's{to}'\nfrom_port = 0\nto_port = 1\n")
                })
                .concat();
            format!("[grid]\nk = {k}\nn = 1\nshape = 'torus'\n{switches}{hosts}{links}")
        };
        let read = topology(&ring(3));
        let link = read.grid().unwrap().link(0, 0, crate::grid::Direction::Plus).unwrap();
        assert_eq!(read.link_name(link), "s0:0>s1:1");
        assert_eq!(
            error(&ring(4)),
            "f.toml:1: this is not torus:k=4,n=1: it has 3 switches, not 4 to the power 1"
        );
        assert_eq!(
            error(&ring(3).replace("'torus'", "'mesh'")),
            "f.toml:1: this is not mesh:k=3,n=1: it has 3 hosts and 12 directed links, not 3 hosts and 10 directed \
             links"
        );
        let mut crossed = ring(3);
        crossed = crossed.replacen("switch = 's0'", "switch = 's9'", 1);
        crossed = crossed.replacen("switch = 's1'", "switch = 's0'", 1).replace("'s9'", "'s1'");
        assert_eq!(
            error(&crossed),
            "f.toml:1: this is not torus:k=3,n=1: it has link s0:2>h1 in place of s0:2>h0"
        );
    }
}
