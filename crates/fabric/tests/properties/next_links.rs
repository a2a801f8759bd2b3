//! Cached next links against a search for each target.

use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec, LinkId, NextLinks, Routing, SwitchId, Topology};

use crate::{cases, up_down::routed};

fn agrees(topology: &Topology, routing: &Routing, targets: impl Iterator<Item = SwitchId>) {
    let mut next = NextLinks::new(topology, routing).unwrap();
    let up_down = routing.up_down().unwrap();
    for target in targets {
        let distances = up_down.distances(topology, target);
        for at in topology.switches() {
            for gone_down in [false, true] {
                let expected: Vec<LinkId> =
                    up_down.shortest_links(topology, &distances, at, gone_down).collect();
                assert_eq!(next.towards(target, at, gone_down), expected, "{target} from {at}, {gone_down}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn next_links_are_those_of_shortest_legal_routes((topology, routing) in routed()) {
        // Twice each: the second result comes from the cache.
        let targets = topology.switches().chain(topology.switches());
        agrees(&topology, &Routing::UpDown(routing), targets);
    }
}

#[test]
fn a_wide_fat_tree_needs_no_search_for_the_same_links() {
    let fabric = Fabric::from_spec(&"fat-tree:k=30".parse::<FabricSpec>().unwrap()).unwrap();
    let count = fabric.topology().switch_count();
    assert!(count > 1024, "more than are cached");
    agrees(fabric.topology(), fabric.routing(), (0..count).step_by(97).map(SwitchId));
}

#[test]
fn dimension_order_leaves_no_choice() {
    let fabric = Fabric::from_spec(&"torus:k=4,n=2".parse::<FabricSpec>().unwrap()).unwrap();
    assert!(NextLinks::new(fabric.topology(), fabric.routing()).is_none());
}
