//! The way up of a tree worm against a look at every switch.

use fixedbitset::FixedBitSet;
use proptest::prelude::*;
use treecast_fabric::{LinkId, SwitchId, Topology, UpDown};

use crate::{cases, up_down::routed};

/// Links up from each switch to the nearest that reaches all targets.
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
    fn a_worm_goes_up_the_shortest_ways_to_where_all_targets_are_below(
        (topology, routing) in routed(),
        targets in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let count = topology.switch_count() as usize;
        let mut wanted = FixedBitSet::with_capacity(count);
        wanted.extend(targets.iter().map(|target| target.index(count)));
        let heights = heights(&topology, &routing, &wanted);
        for from in topology.switches() {
            let ascent = routing.ascent(&topology, from, &wanted);
            prop_assert_eq!(ascent.from(from), heights[from.index()]);
            let mut open: Vec<SwitchId> = heights[from.index()].map(|_| from).into_iter().collect();
            while let Some(at) = open.pop() {
                prop_assert_eq!(ascent.from(at), heights[at.index()]);
                let nearer = |&(link, next): &(LinkId, SwitchId)| {
                    routing.is_up(&topology, link)
                        && heights[next.index()].map(|links| links + 1) == heights[at.index()]
                };
                let expected: Vec<(LinkId, SwitchId)> = topology.neighbours(at).filter(nearer).collect();
                let found: Vec<LinkId> = routing.ascending_links(&topology, &ascent, at).collect();
                let links: Vec<LinkId> = expected.iter().map(|&(link, _)| link).collect();
                prop_assert_eq!(found, links);
                open.extend(expected.into_iter().map(|(_, next)| next));
            }
        }
    }
}
