//! The routes of worms, also where the fabric decides as they go: then representative ones.

use treecast_fabric::{Channel, Fabric, LinkId, Overlap, SwitchId, Topology, UpDown};

use crate::{Plan, Worm, WormKind};

/// The routes of a plan's worms on a fabric. Worms to one switch, asked for one after another, share a search.
pub(crate) struct Routes<'a> {
    plan: &'a Plan,
    fabric: &'a Fabric,
    search: Option<UpwardSearch<'a>>,
}

impl<'a> Routes<'a> {
    pub(crate) fn new(plan: &'a Plan, fabric: &'a Fabric) -> Self {
        let search = fabric.routing().up_down().map(|routing| UpwardSearch::new(fabric.topology(), routing));
        Self { plan, fabric, search }
    }

    /// A worm's channels: its own, or representative ones, those with the lowest-numbered link at each step.
    pub(crate) fn of(&mut self, worm: &Worm) -> Vec<Channel> {
        if worm.kind == WormKind::Local || !worm.route.is_empty() {
            return worm.route.clone();
        }
        let (topology, routing) = (self.fabric.topology(), self.fabric.routing());
        let placement = self.plan.placement();
        let (source, target) = (placement.host_of(worm.from), placement.host_of(worm.to[0]));
        match (&mut self.search, routing.up_down()) {
            (_, Some(routing)) if worm.kind == WormKind::Tree => {
                let hosts = placement.hosts_of(&worm.to);
                routing.tree_route(topology, source, &hosts, Overlap::default()).unwrap_or_default()
            }
            (Some(search), _) => {
                let mut links = vec![topology.injection(source)];
                search.extend(topology.switch_of(source), topology.switch_of(target), &mut links);
                links.push(topology.ejection(target));
                links.into_iter().map(|link| Channel { link, virtual_channel: 0 }).collect()
            }
            (None, _) => routing.representative_route(topology, source, target, &mut None),
        }
    }
}

/// Shortest legal up*/down* routes that look only at the switches above the two ends: on a wide fat tree those are few
/// of all. They are the routes of [`treecast_fabric::Routing::representative_route`].
struct UpwardSearch<'a> {
    topology: &'a Topology,
    routing: &'a UpDown,
    /// The switches at the other ends of a switch's links up; and every switch's place with the uppermost first.
    above: Vec<Vec<SwitchId>>,
    place: Vec<u32>,
    target: Option<SwitchId>,
    /// Links from each switch to the target: going down only, and on the shortest legal route.
    down: Vec<u32>,
    shortest: Vec<u32>,
    /// Whose entries are set, for the present target.
    set: Vec<SwitchId>,
}

/// No route, or none known yet.
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

    /// Appends the links of the route from one switch to another.
    fn extend(&mut self, from: SwitchId, target: SwitchId, links: &mut Vec<LinkId>) {
        if self.target != Some(target) {
            self.aim(target);
        }
        self.measure(from);
        let (mut at, mut gone_down) = (from, false);
        while at != target {
            let (link, next, up) =
                self.step(at, gone_down).expect("a legal route leads between any two switches");
            links.push(link);
            at = next;
            gone_down = !up;
        }
    }

    /// The first link out of a switch that lies on a shortest legal route; where it leads, and whether that is up.
    fn step(&self, at: SwitchId, gone_down: bool) -> Option<(LinkId, SwitchId, bool)> {
        let left = |gone_down: bool| if gone_down { &self.down } else { &self.shortest };
        let here = left(gone_down)[at.index()];
        self.topology
            .neighbours(at)
            .map(|(link, next)| (link, next, self.routing.is_up(self.topology, link)))
            .find(|&(_, next, up)| !(up && gone_down) && left(!up)[next.index()].checked_add(1) == Some(here))
    }

    /// Turns to another target: counts the links down to it. Every link has a reverse, so those lead up from it.
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
        /// Marks what is about to be measured.
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
    use treecast_fabric::{FabricSpec, HostId, RoutingPolicy};

    use super::*;

    #[test]
    fn routes_are_the_representative_ones_of_the_fabric() {
        let irregular = (0..20).map(|seed| format!("irregular:switches=12,ports=6,hosts=24,seed={seed}"));
        let others = ["fat-tree:k=4", "mesh:k=4,n=2", "torus:k=5,n=2", "star:3"].map(String::from);
        for spec in irregular.chain(others) {
            let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
            let fabric = Fabric::new(topology, RoutingPolicy::UpDown { root: None }).unwrap();
            let (topology, routing) = (fabric.topology(), fabric.routing().up_down().unwrap());
            let mut search = UpwardSearch::new(topology, routing);
            let mut distances = None;
            for to in topology.hosts() {
                for from in topology.hosts() {
                    let whole = fabric.routing().representative_route(topology, from, to, &mut distances);
                    let mut links = Vec::new();
                    let switch_of = |host: HostId| topology.switch_of(host);
                    search.extend(switch_of(from), switch_of(to), &mut links);
                    let expected: Vec<LinkId> =
                        whole[1..whole.len() - 1].iter().map(|channel| channel.link).collect();
                    assert_eq!(links, expected, "{spec} {from} {to}");
                }
            }
        }
    }
}
