//! The path up of a tree worm against an examination of every switch.

use fixedbitset::FixedBitSet;
use proptest::prelude::*;
use treecast_fabric::{LinkId, SwitchId, Topology, UpDown};

use crate::{cases, up_down::routed};

/// The number of links up from each switch to the nearest one that reaches all targets.
fn heights(topology: &Topology, routing: &UpDown, targets: &FixedBitSet) -> Vec<Option<u16>> {
    let mut heights = vec![None; topology.switch_count() as usize];
    for switch in routing.top_down() {
        let above = topology.neighbours(switch).filter(|&(link, _)| routing.is_up(topology, link));
        heights[switch.index()] = if targets.is_subset(&routing.reach(topology)[switch.index()]) {
            Some(0)
        } else {
            above.filter_map(|(_, next)| heights[next.index()].map(|links: u16| links + 1)).min()
        };
    }
    heights
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_worm_goes_up_on_shortest_paths_to_a_switch_above_all_targets(
        (topology, routing) in routed(),
        targets in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let count = topology.switch_count() as usize;
        let mut wanted = FixedBitSet::with_capacity(count);
        wanted.extend(targets.iter().map(|target| target.index(count)));
        let heights = heights(&topology, &routing, &wanted);
        for from in topology.switches() {
            prop_assert_eq!(routing.ascent(&topology, from, &wanted), heights[from.index()]);
            let mut open: Vec<(SwitchId, u16)> = heights[from.index()].map(|links| (from, links)).into_iter().collect();
            while let Some((at, links_left)) = open.pop() {
                if links_left == 0 {
                    continue;
                }
                let nearer = |&(link, next): &(LinkId, SwitchId)| {
                    routing.is_up(&topology, link) && heights[next.index()] == Some(links_left - 1)
                };
                let expected: Vec<(LinkId, SwitchId)> = topology.neighbours(at).filter(nearer).collect();
                let links: Vec<LinkId> = expected.iter().map(|&(link, _)| link).collect();
                prop_assert_eq!(routing.ascending_links(&topology, at, &wanted, links_left), links);
                open.extend(expected.into_iter().map(|(_, next)| (next, links_left - 1)));
            }
        }
    }
}
