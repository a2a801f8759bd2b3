//! Routes from host to host.

use super::{Channel, Minimal, NextLinks, Routing, UpDown, Valiant, end};
use crate::ids::{HostId, LinkId, SwitchId};
use crate::topology::Topology;

/// Finds routes between hosts: those that the fabric determines, or representative ones of adaptive
/// routing, which take the lowest-numbered link at each step; of routing by random intermediates,
/// the minimal ones. Consecutive queries for routes to one switch share a search.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec, HostId, RouteFinder};
///
/// let fabric = Fabric::from_spec(&"fat-tree:k=4".parse::<FabricSpec>()?)?;
/// let mut finder = RouteFinder::new(fabric.topology(), fabric.routing());
/// assert_eq!(finder.route(HostId(0), HostId(15)).len(), 6);
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
#[derive(Debug)]
pub struct RouteFinder<'a> {
    topology: &'a Topology,
    search: Search<'a>,
}

#[derive(Debug)]
enum Search<'a> {
    UpDown(UpwardSearch<'a>),
    ShortestPath(NextLinks<'a>),
    DimensionOrder(&'a super::DimensionOrder),
    Minimal(Minimal),
    Valiant(Valiant),
}

impl<'a> RouteFinder<'a> {
    /// A finder for a routed topology. Cost: the number of links on up*/down* networks, else
    /// constant.
    pub fn new(topology: &'a Topology, routing: &'a Routing) -> Self {
        let search = match routing {
            Routing::UpDown(routing) => Search::UpDown(UpwardSearch::new(topology, routing)),
            Routing::ShortestPath(_) => {
                Search::ShortestPath(NextLinks::new(topology, routing).expect("shortest paths are adaptive"))
            }
            Routing::DimensionOrder(routing) => Search::DimensionOrder(routing),
            Routing::Minimal(routing) => Search::Minimal(*routing),
            Routing::Valiant(routing) => Search::Valiant(*routing),
        };
        Self { topology, search }
    }

    /// The channels from one host to another, from injection to ejection. Cost: the switches above
    /// the two ends; in dimension order the length of the route; over shortest paths also the
    /// number of links, once per target.
    pub fn route(&mut self, from: HostId, to: HostId) -> Vec<Channel> {
        let topology = self.topology;
        let (origin, target) = (topology.switch_of(from), topology.switch_of(to));
        let plain = |link| Channel { link, virtual_channel: 0 };
        let mut route = vec![plain(topology.injection(from))];
        if origin != target {
            match &mut self.search {
                Search::UpDown(search) => search.extend(origin, target, &mut route),
                Search::ShortestPath(links) => {
                    let mut at = origin;
                    while let Some(&link) = links.towards(target, at, false).first() {
                        route.push(plain(link));
                        at = end(topology, link);
                    }
                }
                Search::Minimal(routing) => return routing.route(topology, from, to),
                Search::Valiant(routing) => return routing.route(topology, from, to, None),
                Search::DimensionOrder(routing) => {
                    route.extend(routing.channels(topology, routing.links(topology, origin, target)));
                }
            }
        }
        route.push(plain(topology.ejection(to)));
        route
    }
}

/// Finds shortest legal up*/down* routes by examining only the switches above the two ends, which
/// are few on a wide fat tree.
#[derive(Debug)]
struct UpwardSearch<'a> {
    topology: &'a Topology,
    routing: &'a UpDown,
    /// The switches at the other ends of a switch's links up; and every switch's position, the
    /// uppermost first.
    above: Vec<Vec<SwitchId>>,
    place: Vec<u32>,
    target: Option<SwitchId>,
    /// Links from each switch to the target: going down only, and on the shortest legal route.
    down: Vec<u32>,
    shortest: Vec<u32>,
    /// The switches whose entries are set for the current target.
    set: Vec<SwitchId>,
}

/// No route, or not known yet.
const NONE: u32 = u32::MAX;

impl<'a> UpwardSearch<'a> {
    fn new(topology: &'a Topology, routing: &'a UpDown) -> Self {
        let count = topology.switch_count() as usize;
        let above = |switch| {
            let up = topology.neighbours(switch).filter(|&(link, _)| routing.is_up(topology, link));
            up.map(|(_, next)| next).collect()
        };
        let mut place = vec![0; count];
        for (index, switch) in (0..).zip(routing.top_down()) {
            place[switch.index()] = index;
        }
        Self {
            topology,
            routing,
            above: topology.switches().map(above).collect(),
            place,
            target: None,
            down: vec![NONE; count],
            shortest: vec![NONE; count],
            set: Vec::new(),
        }
    }

    /// Appends the route from one switch to another.
    fn extend(&mut self, from: SwitchId, target: SwitchId, route: &mut Vec<Channel>) {
        if self.target != Some(target) {
            self.aim(target);
        }
        self.measure(from);
        let (mut at, mut gone_down) = (from, false);
        while at != target {
            let (link, next, up) =
                self.step(at, gone_down).expect("a legal route leads between any two switches");
            route.push(Channel { link, virtual_channel: 0 });
            at = next;
            gone_down = !up;
        }
    }

    /// The first link out of a switch on a shortest legal route; the switch at its end, and whether
    /// it goes up.
    fn step(&self, at: SwitchId, gone_down: bool) -> Option<(LinkId, SwitchId, bool)> {
        let left = |gone_down: bool| if gone_down { &self.down } else { &self.shortest };
        let here = left(gone_down)[at.index()];
        self.topology
            .neighbours(at)
            .map(|(link, next)| (link, next, self.routing.is_up(self.topology, link)))
            .find(|&(_, next, up)| !(up && gone_down) && left(!up)[next.index()].checked_add(1) == Some(here))
    }

    /// Sets another target: counts the links down to it. Every link has a reverse, so the search
    /// goes up from it.
    fn aim(&mut self, target: SwitchId) {
        for switch in self.set.drain(..) {
            self.down[switch.index()] = NONE;
            self.shortest[switch.index()] = NONE;
        }
        self.target = Some(target);
        self.down[target.index()] = 0;
        self.set.push(target);
        let mut next = 0;
        while let Some(&switch) = self.set.get(next) {
            next += 1;
            for &above in &self.above[switch.index()] {
                if self.down[above.index()] == NONE {
                    self.down[above.index()] = self.down[switch.index()] + 1;
                    self.set.push(above);
                }
            }
        }
    }

    /// Finds the shortest legal distances from a switch and from all above it.
    fn measure(&mut self, from: SwitchId) {
        /// Marks a switch whose distance is being computed.
        const OPEN: u32 = NONE - 1;
        let mut open = Vec::new();
        let mut stack = vec![from];
        while let Some(switch) = stack.pop() {
            if self.shortest[switch.index()] == NONE {
                self.shortest[switch.index()] = OPEN;
                open.push(switch);
                stack.extend(&self.above[switch.index()]);
            }
        }
        open.sort_unstable_by_key(|switch| self.place[switch.index()]);
        for &switch in &open {
            let above = self.above[switch.index()].iter().map(|above| self.shortest[above.index()]);
            let over = above.min().unwrap_or(NONE).saturating_add(1);
            self.shortest[switch.index()] = over.min(self.down[switch.index()]);
        }
        self.set.extend(open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Fabric, FabricSpec, RoutingPolicy};

    #[test]
    fn routes_take_the_lowest_port_of_the_shortest_legal_ones_at_each_step() {
        let irregular = (0..20).map(|seed| format!("irregular:switches=12,ports=6,hosts=24,seed={seed}"));
        let others = ["fat-tree:k=4", "mesh:k=4,n=2", "torus:k=5,n=2", "star:3"].map(String::from);
        for spec in irregular.chain(others) {
            let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
            let fabric = Fabric::new(topology, RoutingPolicy::UpDown { root: None, channels: 1 }).unwrap();
            let (topology, routing) = (fabric.topology(), fabric.routing().up_down().unwrap());
            let mut finder = RouteFinder::new(topology, fabric.routing());
            for to in topology.hosts() {
                let distances = routing.distances(topology, topology.switch_of(to));
                for from in topology.hosts() {
                    let mut expected = vec![topology.injection(from)];
                    let (mut at, mut gone_down) = (topology.switch_of(from), false);
                    while let Some(link) = routing.shortest_links(topology, &distances, at, gone_down).next()
                    {
                        expected.push(link);
                        gone_down |= !routing.is_up(topology, link);
                        at = super::super::end(topology, link);
                    }
                    expected.push(topology.ejection(to));
                    let route: Vec<LinkId> =
                        finder.route(from, to).into_iter().map(|channel| channel.link).collect();
                    assert_eq!(route, expected, "{spec} {from} {to}");
                }
            }
        }
    }
}
