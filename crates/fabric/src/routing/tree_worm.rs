//! How a tree worm finds its way: up to a switch above all destinations, then down a copy a port.

use fixedbitset::FixedBitSet;

use super::{Channel, UpDown};
use crate::{HostId, LinkId, SwitchId, Topology};

/// The shortest ways up from a tree worm's sender to a switch that reaches all destinations downwards.
#[derive(Debug, Clone)]
pub struct Ascent {
    /// The switches on these ways by their links from the sender, each list sorted. A switch is on one list only: a way
    /// that comes to it over more links is not a shortest one. Empty where there is no such way.
    layers: Vec<Vec<SwitchId>>,
}

impl Ascent {
    /// How many links up it is from a switch on one of these ways to where it ends; `None` for any other switch, and so
    /// for the sender's if no switch above it reaches all destinations.
    pub fn from(&self, switch: SwitchId) -> Option<u16> {
        let layer = self.layers.iter().position(|layer| layer.binary_search(&switch).is_ok())?;
        Some((self.layers.len() - 1 - layer) as u16)
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
        let mut at = topology.switch_of(from);
        let ascent = self.ascent(topology, at, &targets);
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

    /// Where a worm from a switch for these destination switches (a bit a switch) stops going up. Cost: the links up out
    /// of the switches above the sender that are no higher than where it stops, and a comparison of bit strings for each
    /// such switch.
    pub fn ascent(&self, topology: &Topology, from: SwitchId, targets: &FixedBitSet) -> Ascent {
        let reach = self.reach(topology);
        let above = |switch| {
            let up = topology.neighbours(switch).filter(|&(link, _)| self.is_up(topology, link));
            up.map(|(_, next)| next)
        };
        let mut layers = Vec::new();
        let mut layer = vec![from];
        loop {
            let reaching = |switch: &SwitchId| targets.is_subset(&reach[switch.index()]);
            let ends: Vec<SwitchId> = layer.iter().copied().filter(reaching).collect();
            if !ends.is_empty() {
                layers.push(ends);
                break;
            }
            if layer.is_empty() {
                return Ascent { layers: Vec::new() };
            }
            let mut next: Vec<SwitchId> = layer.iter().flat_map(|&switch| above(switch)).collect();
            next.sort_unstable();
            next.dedup();
            layers.push(std::mem::replace(&mut layer, next));
        }
        // What does not lead on to an end is left out, from the ends downwards.
        for lower in (0..layers.len() - 1).rev() {
            let (here, higher) = layers.split_at_mut(lower + 1);
            here[lower].retain(|&switch| above(switch).any(|next| higher[0].binary_search(&next).is_ok()));
        }
        Ascent { layers }
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
