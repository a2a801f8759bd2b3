//! Routing of tree worms: up to a switch above all destinations, then down with one copy per port.

use std::collections::BTreeSet;

use fixedbitset::FixedBitSet;

use super::{Channel, UpDown};
use crate::ids::{HostId, LinkId, SwitchId};
use crate::topology::Topology;

impl UpDown {
    /// The switches of some hosts, as a bit set.
    pub fn switches_of(topology: &Topology, hosts: &[HostId]) -> FixedBitSet {
        let mut switches = FixedBitSet::with_capacity(topology.switch_count() as usize);
        switches.extend(hosts.iter().map(|&host| topology.switch_of(host).index()));
        switches
    }

    /// The channels of a tree worm from one host to others, injection first, in preorder of the
    /// tree: the determined ones, or those with the lowest-numbered links if the path up is
    /// adaptive.
    ///
    /// `None` if no switch above the sender reaches all.
    pub fn tree_route(
        &self,
        topology: &Topology,
        from: HostId,
        to: &[HostId],
        overlap: Overlap,
    ) -> Option<Vec<Channel>> {
        let targets = Self::switches_of(topology, to);
        let mut at = topology.switch_of(from);
        let mut links = vec![topology.injection(from)];
        for links_left in (1..=self.ascent(topology, at, &targets)?).rev() {
            let link = self.ascending_links(topology, at, &targets, links_left)[0];
            links.push(link);
            at = super::end(topology, link);
        }
        let mut hosts = to.to_vec();
        hosts.sort_unstable_by_key(|&host| (topology.switch_of(host), host));
        let mut open = vec![(at, targets)];
        while let Some((at, targets)) = open.pop() {
            if targets[at.index()] {
                let first = hosts.partition_point(|&host| topology.switch_of(host) < at);
                let here = hosts[first..].iter().take_while(|&&host| topology.switch_of(host) == at);
                links.extend(here.map(|&host| topology.ejection(host)));
            }
            for (link, copy) in self.copies(topology, at, &targets, overlap) {
                links.push(link);
                open.push((super::end(topology, link), copy));
            }
        }
        Some(links.into_iter().map(|link| Channel { link, virtual_channel: 0 }).collect())
    }

    /// The number of links that a worm for these destination switches (a bit set) goes up from a
    /// switch: to the nearest switch that reaches all of them by going down. `None` if no switch
    /// above does.
    pub fn ascent(&self, topology: &Topology, from: SwitchId, targets: &FixedBitSet) -> Option<u16> {
        for links in 0.. {
            let mut climb = Climb::new(self, topology, targets);
            if climb.ends_at(from, links) {
                return Some(links);
            }
            if !climb.goes_on {
                break;
            }
        }
        None
    }

    /// The links up out of a switch, in the order of their ports, that lie on a shortest path to a
    /// switch where such a worm turns down, `links_left` links above this one.
    pub fn ascending_links(
        &self,
        topology: &Topology,
        at: SwitchId,
        targets: &FixedBitSet,
        links_left: u16,
    ) -> Vec<LinkId> {
        let mut climb = Climb::new(self, topology, targets);
        let leads_on = |&&(_, above): &&(LinkId, SwitchId)| climb.ends_at(above, links_left - 1);
        self.links_up(at).iter().filter(leads_on).map(|&(link, _)| link).collect()
    }

    /// The copies that a worm going down makes at a switch: each link down with the destination
    /// switches of its copy. The switch itself is taken from `targets` by the caller, who serves
    /// its hosts.
    ///
    /// Where the reachable sets of ports overlap, each port in turn takes only the bits not yet
    /// taken: copy = header AND reach, header = header AND NOT reach, the rule that BIER uses (RFC
    /// 8279, section 6.5). So no destination gets two copies.
    pub fn copies(
        &self,
        topology: &Topology,
        at: SwitchId,
        targets: &FixedBitSet,
        overlap: Overlap,
    ) -> Vec<(LinkId, FixedBitSet)> {
        let reach = self.reach(topology);
        let mut ports = self.links_down(at).to_vec();
        if overlap == Overlap::WidestFirst {
            let width = |switch: SwitchId| targets.intersection_count(&reach[switch.index()]);
            ports.sort_by_key(|&(_, below)| std::cmp::Reverse(width(below)));
        }
        let mut left = targets.clone();
        left.set(at.index(), false);
        let mut copies = Vec::new();
        for (link, below) in ports {
            if left.is_disjoint(&reach[below.index()]) {
                continue;
            }
            let mut copy = left.clone();
            copy.intersect_with(&reach[below.index()]);
            left.difference_with(&copy);
            copies.push((link, copy));
        }
        copies
    }
}

/// The depth-limited search for a switch that reaches all targets, a given number of links up. It
/// ends at the first one, and examines few if there are many.
struct Climb<'a> {
    routing: &'a UpDown,
    reach: &'a [FixedBitSet],
    targets: &'a FixedBitSet,
    /// Pairs of a switch and a number of links up for which there is none.
    failed: BTreeSet<(SwitchId, u16)>,
    /// Whether the limit cut the search off.
    goes_on: bool,
}

impl<'a> Climb<'a> {
    fn new(routing: &'a UpDown, topology: &Topology, targets: &'a FixedBitSet) -> Self {
        let reach = routing.reach(topology);
        Self { routing, reach, targets, failed: BTreeSet::new(), goes_on: false }
    }

    /// Whether a switch this number of links above another reaches all targets.
    fn ends_at(&mut self, from: SwitchId, links_left: u16) -> bool {
        let above = self.routing.links_up(from);
        if links_left == 0 {
            self.goes_on |= !above.is_empty();
            return self.targets.is_subset(&self.reach[from.index()]);
        }
        if self.failed.contains(&(from, links_left)) {
            return false;
        }
        let found = above.iter().any(|&(_, above)| self.ends_at(above, links_left - 1));
        if !found {
            self.failed.insert((from, links_left));
        }
        found
    }
}

/// The choice among several ports that reach a destination. *Ours*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// The lowest port.
    #[default]
    FirstPort,
    /// The port that reaches most of the destinations, the lowest on ties: fewer copies.
    WidestFirst,
}
