//! The size of a topology in one line.

use std::collections::BTreeSet;
use std::fmt;

use crate::topology::Topology;

/// The size of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Hosts.
    pub hosts: u32,
    /// Switches.
    pub switches: u32,
    /// Physical links between switches, one-way links included.
    pub switch_links: u32,
    /// The one-way links among them.
    pub one_way_links: u32,
    /// The parallel links among them: those that repeat the ends and direction of an earlier link.
    pub parallel_links: u32,
}

impl Topology {
    /// The size; it prints as one line.
    ///
    /// ```
    /// let spec: treecast_fabric::FabricSpec = "icpp98".parse()?;
    /// let summary = spec.topology()?.summary();
    /// assert_eq!(summary.to_string(), "32 hosts, 8 switches, 10 links between switches (1 parallel)");
    /// # Ok::<(), treecast_fabric::FabricError>(())
    /// ```
    pub fn summary(&self) -> Summary {
        let mut joined = BTreeSet::new();
        let mut summary = Summary {
            hosts: self.host_count(),
            switches: self.switch_count(),
            switch_links: 0,
            one_way_links: 0,
            parallel_links: 0,
        };
        for link in self.physical_links() {
            let ends = self.link(link);
            let (Some(from), Some(to)) = (ends.from.switch(), ends.to.switch()) else { continue };
            let one_way = self.reverse(link).is_none();
            let pair = if one_way { (from, to) } else { (from.min(to), from.max(to)) };
            summary.switch_links += 1;
            summary.one_way_links += u32::from(one_way);
            summary.parallel_links += u32::from(!joined.insert((pair, one_way)));
        }
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, switches, switch_links, one_way_links, parallel_links } = *self;
        let counted = |count: u32, what: &str, plural: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { plural })
        };
        let (hosts, switches) = (counted(hosts, "host", "s"), counted(switches, "switch", "es"));
        let links = counted(switch_links, "link", "s");
        write!(formatter, "{hosts}, {switches}, {links} between switches")?;
        match (parallel_links, one_way_links) {
            (0, 0) => Ok(()),
            (parallel, 0) => write!(formatter, " ({parallel} parallel)"),
            (0, one_way) => write!(formatter, " ({one_way} one-way)"),
            (parallel, one_way) => write!(formatter, " ({parallel} parallel, {one_way} one-way)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fabric::FabricSpec;

    #[test]
    fn a_topology_prints_in_a_line() {
        let line = |spec: &str| spec.parse::<FabricSpec>().unwrap().topology().unwrap().summary().to_string();
        assert_eq!(line("star:1"), "1 host, 1 switch, 0 links between switches");
        assert_eq!(line("torus:k=2,n=1"), "2 hosts, 2 switches, 2 links between switches (1 parallel)");
        assert_eq!(line("torus:k=3,n=1,uni"), "3 hosts, 3 switches, 3 links between switches (3 one-way)");
        assert_eq!(line("fat-tree:k=4"), "16 hosts, 20 switches, 32 links between switches");
    }
}
