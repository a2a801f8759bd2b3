//! How a tree worm finds its way: up to a switch above all destinations, then down a copy a port.

use fixedbitset::FixedBitSet;

use super::{Channel, UpDown};
use crate::{HostId, LinkId, SwitchId, Topology};

/// Where a tree worm with a given set of destination switches stops going up.
#[derive(Debug, Clone)]
pub struct Ascent {
    /// Links up to the nearest switch from which all are reached downwards, a switch.
    links: Vec<u16>,
}

const NEVER: u16 = u16::MAX;

impl Ascent {
    /// How many links up it is from a switch to the nearest that reaches every destination downwards; `None` where no
    /// such switch stands above it.
    pub fn from(&self, switch: SwitchId) -> Option<u16> {
        Some(self.links[switch.index()]).filter(|&links| links != NEVER)
    }
}

impl UpDown {
    /// The switches of some hosts: a bit a switch.
    pub fn switches_of(topology: &Topology, hosts: &[HostId]) -> FixedBitSet {
        let mut switches = FixedBitSet::with_capacity(topology.switch_count() as usize);
        switches.extend(hosts.iter().map(|&host| topology.switch_of(host).index()));
        switches
    }

    /// The channels of a tree worm from one host to others, injection first, in the order of a walk down the tree: the
    /// determined ones, or where the way up is adaptive those with the lowest-numbered links.
    ///
    /// `None` where no switch above the sender reaches all.
    pub fn tree_route(
        &self,
        topology: &Topology,
        from: HostId,
        to: &[HostId],
        overlap: Overlap,
    ) -> Option<Vec<Channel>> {
        let targets = Self::switches_of(topology, to);
        let ascent = self.ascent(topology, &targets);
        let mut at = topology.switch_of(from);
        ascent.from(at)?;
        let mut links = vec![topology.injection(from)];
        while ascent.from(at) != Some(0) {
            let link = self.ascending_links(topology, &ascent, at).next()?;
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

    /// Where a worm for these destination switches (a bit a switch) stops going up. Cost: the number of links, and a
    /// comparison of bit strings a switch.
    pub fn ascent(&self, topology: &Topology, targets: &FixedBitSet) -> Ascent {
        let reach = self.reach(topology);
        let mut links = vec![NEVER; topology.switch_count() as usize];
        for switch in self.top_down() {
            links[switch.index()] = if targets.is_subset(&reach[switch.index()]) {
                0
            } else {
                let above = topology.neighbours(switch).filter(|&(link, _)| self.is_up(topology, link));
                above.map(|(_, next)| links[next.index()].saturating_add(1)).min().unwrap_or(NEVER)
            };
        }
        Ascent { links }
    }

    /// The links up that lie on a shortest way to where the worm stops going up, in the order of their ports.
    pub fn ascending_links<'a>(
        &'a self,
        topology: &'a Topology,
        ascent: &'a Ascent,
        at: SwitchId,
    ) -> impl Iterator<Item = LinkId> + 'a {
        let here = ascent.from(at);
        topology
            .neighbours(at)
            .filter(move |&(link, next)| {
                self.is_up(topology, link) && ascent.from(next).map(|left| left + 1) == here
            })
            .map(|(link, _)| link)
    }

    /// The copies that a worm going down makes at a switch: each link down with the destination switches its copy goes
    /// on to. The switch itself is taken from `targets` by the caller, who serves its hosts.
    ///
    /// Where the reachable sets of ports overlap, each port in turn takes only the bits not yet taken: copy = header AND
    /// reach, header = header AND NOT reach, the rule that BIER uses (RFC 8279, section 6.5). So nobody gets two copies.
    pub fn copies(
        &self,
        topology: &Topology,
        at: SwitchId,
        targets: &FixedBitSet,
        overlap: Overlap,
    ) -> Vec<(LinkId, FixedBitSet)> {
        let reach = self.reach(topology);
        let mut ports: Vec<(LinkId, SwitchId)> =
            topology.neighbours(at).filter(|&(link, _)| !self.is_up(topology, link)).collect();
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

/// Which port takes a destination that several reach. *Ours*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// The lowest port.
    #[default]
    FirstPort,
    /// The port that reaches most of the destinations, the lowest on ties: fewer copies.
    WidestFirst,
}
