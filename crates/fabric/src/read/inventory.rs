//! Inventories: the racks of hosts, one host or hostlist a line. A format of ours.

use std::collections::BTreeMap;

use super::parts::Parts;
use super::{Read, Source, start_of, without_mark};
use crate::error::FabricError;
use crate::hostlist::split_names;

/// Reads an inventory of hosts and their racks.
///
/// A line names a host, or a [hostlist](crate::expand_hostlist), and its rack, separated by blanks
/// or a comma: `n[1-16] rack1`, or `n1,rack1`. A hostlist with commas outside its brackets needs
/// blanks. A `#` begins a comment; the first line may be the header `host,rack`. Each rack is a
/// switch, in the order in which the racks are first named; several racks are linked to one more
/// switch, `core`, or `core1` and so on if a rack has that name. A switch has as many ports as
/// links. Hosts are numbered in the order of the file.
///
/// # Errors
/// [`FabricError::Malformed`], also if a host is named twice.
///
/// ```
/// let text = "host,rack\nlogin,rack1\nn[1-16],rack1\nn[17-32],rack2\n";
/// let topology = treecast_fabric::read::inventory("lab.inventory", text)?.topology;
/// assert_eq!(topology.summary().to_string(), "33 hosts, 3 switches, 2 links between switches");
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
pub fn inventory(file: &str, text: &str) -> Result<Read, FabricError> {
    let text = without_mark(text);
    let source = Source::new(file, text);
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)));
    let mut lines = lines.filter(|(_, line)| !line.is_empty()).peekable();
    lines.next_if(|(_, line)| is_header(line));

    let mut racks: BTreeMap<&str, usize> = BTreeMap::new();
    let mut parts = Parts::default();
    let mut line_last = 1;
    for (line, text) in lines {
        let Some((hosts, name)) = fields(text) else {
            let reason = format!("'{}' is not a host and its rack, such as 'n1 rack1'", start_of(text));
            return Err(source.error(line, reason));
        };
        let rack = *racks.entry(name).or_insert_with(|| parts.add_switch(name, 1, line));
        parts.add_hosts(hosts, rack, line, &source)?;
        line_last = line;
    }
    if racks.len() > 1 {
        let numbered = (1..).map(|number: usize| format!("core{number}"));
        let mut names = std::iter::once("core".to_string()).chain(numbered);
        let name = names.find(|name| !racks.contains_key(name.as_str())).unwrap_or_default();
        let core = parts.add_switch(&name, 0, line_last);
        for rack in 0..core {
            parts.add_link(rack, core, parts.switches[rack].line);
        }
    }
    Ok(Read { topology: parts.topology(&source)?, notes: Vec::new() })
}

/// Whether a line is the header of an inventory.
pub(super) fn is_header(line: &str) -> bool {
    fields(line)
        .is_some_and(|(host, rack)| host.eq_ignore_ascii_case("host") && rack.eq_ignore_ascii_case("rack"))
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// The hostlist and the rack of a line; `None` unless it has exactly two fields.
fn fields(line: &str) -> Option<(&str, &str)> {
    let (hosts, rack) = if let Some((hosts, rack)) = line.split_once(char::is_whitespace) {
        let rack = rack.trim_start();
        match hosts.strip_suffix(',') {
            Some(hosts) => (hosts, rack),
            None => (hosts, rack.strip_prefix(',').unwrap_or(rack).trim_start()),
        }
    } else {
        let mut names = split_names(line);
        let fields = (names.next()?, names.next()?);
        if names.next().is_some() {
            return None;
        }
        fields
    };
    let is_rack = !rack.is_empty() && !rack.contains(|c: char| c.is_whitespace() || ",[]\"".contains(c));
    (is_rack && !hosts.is_empty() && !hosts.contains('"')).then_some((hosts, rack))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{HostId, SwitchId};
    use crate::topology::Topology;

    fn topology(text: &str) -> Topology {
        inventory("a.inventory", text).unwrap().topology
    }

    fn error(text: &str) -> String {
        inventory("a.inventory", text).unwrap_err().to_string()
    }

    /// Each switch with its hosts.
    fn racks(topology: &Topology) -> Vec<String> {
        let line = |switch: SwitchId| {
            let hosts: Vec<String> =
                topology.hosts_of(switch).iter().map(|&h| topology.host_name(h)).collect();
            format!("{}: {}", topology.switch_name(switch), hosts.join(" "))
        };
        topology.switches().map(line).collect()
    }

    #[test]
    fn every_way_to_separate_a_host_and_its_rack_is_read() {
        for text in [
            "n1 r1\nn[2,4] r1\nx,y r2\n",
            "\u{feff}Host,Rack\r\nn1,r1\r\nn[2,4],r1\r\nx,r2\r\ny,r2\r\n",
            "# lab\n\n host\track # header\n n1 ,r1\nn[2,4] , r1 # two\nx, r2\ny,  r2",
        ] {
            let topology = topology(text);
            assert_eq!(racks(&topology), ["r1: n1 n2 n4", "r2: x y", "core: "], "{text}");
            assert_eq!(topology.ranks(), Some(&[1, 1, 0][..]));
            assert_eq!(topology.port_count(SwitchId(0)), 4);
            assert!(topology.is_tree());
        }
    }

    #[test]
    fn one_rack_needs_no_core() {
        let topology = topology("n[1-3] r1");
        assert_eq!(racks(&topology), ["r1: n1 n2 n3"]);
        assert_eq!(topology.host_name(HostId(2)), "n3");
    }

    #[test]
    fn the_core_has_a_name_of_its_own() {
        assert_eq!(racks(&topology("a core\nb core1"))[2], "core2: ");
        assert_eq!(racks(&topology("a core1\nb core2"))[2], "core: ");
    }

    #[test]
    fn a_header_is_the_first_line_only() {
        assert_eq!(racks(&topology("a r\nhost rack"))[1], "rack: host");
        assert_eq!(error("host,rack"), "a.inventory:1: the fabric has no hosts");
    }

    #[test]
    fn errors_name_the_line() {
        let fields = "is not a host and its rack, such as 'n1 rack1'";
        for line in [
            "a",
            "a,",
            ",r",
            "a b c",
            "a,b,c",
            "a b,c",
            "a [1-2]",
            "\"a\",\"r\"",
            "a,\"r\"",
            "a;r",
            "n[1, 2] r",
        ] {
            assert_eq!(error(&format!("n r\n\n{line}")), format!("a.inventory:3: '{line}' {fields}"));
        }
        assert_eq!(error("a r\na s"), "a.inventory:2: host 'a' is already defined on line 1");
        assert_eq!(error("a,a r"), "a.inventory:1: host 'a' is already defined on line 1");
        let prefix = "a.inventory:1: 'n[1' is not a hostlist such as node7 or n[1-16]: ";
        assert_eq!(error("n[1 r"), format!("{prefix}a bracket is not closed"));
        assert_eq!(
            error("n[0-999999999] r"),
            "a.inventory:1: 'n[0-999999999]' names more than 1048576 hosts"
        );
        let many = "a[1-1048576] r\nb s\nc t";
        assert_eq!(error(many), "a.inventory:2: a fabric holds at most 1048576 hosts");
    }
}
