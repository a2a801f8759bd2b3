//! Next links computed from what each switch reaches downwards, on fabrics where every link joins
//! adjacent levels.
//!
//! There each link up leads one level up, and each link down one level down. So a route of `u`
//! links up and `d` links down from level `a` to level `b` has `a - u + d = b`: its length `u + d =
//! 2u + b - a` depends on `u` alone, and
//!
//! - a packet that has gone down, or at a switch that reaches the target downwards (`u = 0` is then
//!   the least), takes any link down to a switch that reaches the target: all downward paths to the
//!   target are equally long;
//! - any other packet takes the links up that lead to a switch that reaches the target with the
//!   fewest links up. Those switches are `u` levels higher; the search goes level by level, the
//!   lowest common level first.
//!
//! The result is that of a search over the whole fabric, at the cost of one bit per port, and
//! upwards of the switches above.

use fixedbitset::FixedBitSet;

use super::super::UpDown;
use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

#[derive(Debug)]
pub(super) struct Levelled<'a> {
    routing: &'a UpDown,
    reach: &'a [FixedBitSet],
    levels: Vec<u32>,
    /// By switch, the last round of the search that failed there.
    failed: Vec<u64>,
    round: u64,
    answer: Vec<LinkId>,
}

/// With more levels there are many upward paths, and the cache of the table is cheaper.
const LEVELS_MAX: u32 = 8;

impl<'a> Levelled<'a> {
    /// `None` if some link joins levels that are not adjacent, or there are more than
    /// [`LEVELS_MAX`] levels.
    pub(super) fn new(topology: &'a Topology, routing: &'a UpDown) -> Option<Self> {
        let levels: Vec<u32> = topology.switches().map(|switch| routing.level(switch)).collect();
        let lowest = levels.iter().max()?;
        let highest = levels.iter().min()?;
        let neighbouring = |switch: SwitchId| {
            topology
                .neighbours(switch)
                .all(|(_, next)| levels[switch.index()].abs_diff(levels[next.index()]) == 1)
        };
        if lowest - highest >= LEVELS_MAX || !topology.switches().all(neighbouring) {
            return None;
        }
        Some(Self {
            routing,
            reach: routing.reach(topology),
            failed: vec![0; levels.len()],
            levels,
            round: 0,
            answer: Vec::new(),
        })
    }

    pub(super) fn towards(&mut self, target: SwitchId, at: SwitchId, gone_down: bool) -> &[LinkId] {
        self.answer.clear();
        if at == target {
            return &self.answer;
        }
        if gone_down || self.reaches(at, target) {
            let reaches = |next: SwitchId| self.reach[next.index()][target.index()];
            let reaching = self.routing.links_down(at).iter().filter(|&&(_, next)| reaches(next));
            self.answer.extend(reaching.map(|&(link, _)| link));
            return &self.answer;
        }
        // Levels begin at 0.
        for links_left in 0..self.levels[at.index()] {
            self.round += 1;
            for &(link, next) in self.routing.links_up(at) {
                if self.rises(next, target, links_left) {
                    self.answer.push(link);
                }
            }
            if !self.answer.is_empty() {
                break;
            }
        }
        &self.answer
    }

    fn reaches(&self, from: SwitchId, target: SwitchId) -> bool {
        self.reach[from.index()][target.index()]
    }

    /// Whether a switch that reaches the target is exactly this number of links up. Within one
    /// round the number for a switch is always the same, since it has one level; so a switch that
    /// failed once is skipped.
    fn rises(&mut self, from: SwitchId, target: SwitchId, links_left: u32) -> bool {
        if links_left == 0 {
            return self.reaches(from, target);
        }
        if self.failed[from.index()] == self.round {
            return false;
        }
        for &(_, above) in self.routing.links_up(from) {
            if self.rises(above, target, links_left - 1) {
                return true;
            }
        }
        self.failed[from.index()] = self.round;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::FabricSpec;

    fn holds_the_shortest_links(topology: &Topology) {
        let routing = UpDown::new(topology).unwrap();
        let mut levelled = Levelled::new(topology, &routing).unwrap();
        for target in topology.switches() {
            let distances = routing.distances(topology, target);
            for at in topology.switches() {
                for gone_down in [false, true] {
                    let expected: Vec<LinkId> =
                        routing.shortest_links(topology, &distances, at, gone_down).collect();
                    assert_eq!(
                        levelled.towards(target, at, gone_down),
                        expected,
                        "{at} {target} {gone_down}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_search_over_the_whole_fabric_finds_the_same_links() {
        for spec in
            ["star:3", "fat-tree:k=2", "fat-tree:k=4", "fat-tree:k=8", "mesh:k=4,n=2", "torus:k=4,n=3"]
        {
            holds_the_shortest_links(&spec.parse::<FabricSpec>().unwrap().topology().unwrap());
        }
    }

    #[test]
    fn ragged_trees_with_several_tops_are_supported() {
        // Two tops over three middles over four leaves, not all joined, one pair joined twice.
        let links =
            [(2, 0), (2, 1), (3, 0), (3, 1), (4, 1), (5, 2), (6, 2), (6, 3), (7, 4), (8, 4), (8, 3), (5, 2)];
        let mut builder = crate::topology::TopologyBuilder::new();
        for _ in 0..9 {
            builder.switch(8).unwrap();
        }
        for leaf in 5..9 {
            builder.host(SwitchId(leaf), crate::ids::PortNumber(7)).unwrap();
        }
        for (a, b) in links {
            let ends = [a, b].map(|switch| (SwitchId(switch), builder.free_port(SwitchId(switch)).unwrap()));
            builder.link(ends[0], ends[1]).unwrap();
        }
        builder.set_ranks(vec![0, 0, 1, 1, 1, 2, 2, 2, 2]);
        holds_the_shortest_links(&builder.build().unwrap());
    }

    #[test]
    fn links_within_a_level_and_many_levels_use_the_table() {
        for spec in ["torus:k=5,n=1", "mesh:k=9,n=1"] {
            let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
            assert!(Levelled::new(&topology, &UpDown::new(&topology).unwrap()).is_none(), "{spec}");
        }
    }
}
