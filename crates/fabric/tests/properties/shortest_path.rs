//! Shortest-path routing against petgraph.

use petgraph::algo::{dijkstra, is_cyclic_directed};
use petgraph::graph::NodeIndex;
use proptest::prelude::*;
use treecast_fabric::{
    Channel, Fabric, LinkId, NextLinks, RouteFinder, Routing, RoutingPolicy, SwitchId, Topology, UpDown,
};

use crate::up_down::{check_joined, dependencies, plain, switches};
use crate::{cases, fabrics};

fn any_fabric() -> impl Strategy<Value = Topology> {
    prop_oneof![fabrics::irregular_fabric(), fabrics::tiered_fabric(), fabrics::grid_fabric()]
}

fn routed(topology: Topology) -> Fabric {
    Fabric::new(topology, RoutingPolicy::ShortestPath { channels: 2 }).unwrap()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn the_next_links_are_all_that_reduce_the_distance(topology in any_fabric()) {
        let fabric = routed(topology);
        let topology = fabric.topology();
        let graph = plain(topology, |_| true);
        let mut next = NextLinks::new(topology, fabric.routing()).unwrap();
        for at in topology.switches() {
            // Distances from `at` and from each neighbour: one less means nearer.
            let from = |switch: SwitchId| dijkstra(&graph, NodeIndex::new(switch.index()), None, |_| 1_u32);
            let here = from(at);
            let neighbours: Vec<_> =
                topology.neighbours(at).map(|(link, neighbour)| (link, from(neighbour))).collect();
            for target in topology.switches() {
                let left = NodeIndex::new(target.index());
                let nearer = neighbours.iter().filter(|(_, costs)| costs[&left] + 1 == here[&left]);
                let expected: Vec<LinkId> = nearer.map(|&(link, _)| link).collect();
                for gone_down in [false, true] {
                    prop_assert_eq!(next.towards(target, at, gone_down), &expected[..]);
                }
            }
        }
    }

    #[test]
    fn a_found_route_is_as_long_as_the_distance(topology in any_fabric()) {
        let fabric = routed(topology);
        let topology = fabric.topology();
        let Routing::ShortestPath(routing) = fabric.routing() else { unreachable!() };
        let mut finder = RouteFinder::new(topology, fabric.routing());
        for to in topology.hosts().step_by(3) {
            let distances = routing.distances(topology, topology.switch_of(to));
            for from in topology.hosts().filter(|&from| from != to) {
                let route = finder.route(from, to);
                check_joined(topology, &route, from, to);
                let links = distances.from(topology.switch_of(from), false).unwrap();
                prop_assert_eq!(route.len(), usize::from(links) + 2);
                let fixed = fabric.routing().route(topology, from, to);
                prop_assert_eq!(fixed, topology.is_tree().then_some(route));
            }
        }
    }
}

#[test]
fn on_a_ring_packets_wait_in_a_cycle() {
    let links: Vec<(u32, u32)> = (0..6).map(|switch| (switch, (switch + 1) % 6)).collect();
    let fabric = routed(switches(6, &links, &[0, 1, 2, 3, 4, 5]).build().unwrap());
    let mut finder = RouteFinder::new(fabric.topology(), fabric.routing());
    let mut routes: Vec<Vec<Channel>> = Vec::new();
    for to in fabric.topology().hosts() {
        for from in fabric.topology().hosts().filter(|&from| from != to) {
            routes.push(finder.route(from, to));
        }
    }
    assert!(is_cyclic_directed(&dependencies(routes)));
}

#[test]
fn on_a_tree_the_routes_are_those_of_up_and_down() {
    let topology = switches(6, &[(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)], &[0, 3, 4, 5]).build().unwrap();
    let up_down = Routing::UpDown(UpDown::new(&topology).unwrap());
    let fabric = routed(topology);
    let topology = fabric.topology();
    for from in topology.hosts() {
        for to in topology.hosts() {
            let route = fabric.routing().route(topology, from, to);
            assert!(route.is_some() && route == up_down.route(topology, from, to));
        }
    }
}

#[test]
fn every_routing_has_the_requested_virtual_channels() {
    let count = |spec: &str, policy: &str| {
        let topology = spec.parse::<treecast_fabric::FabricSpec>().unwrap().topology().unwrap();
        Fabric::new(topology, policy.parse().unwrap()).unwrap().routing().virtual_channel_count()
    };
    assert_eq!(count("icpp98", "auto"), 1);
    assert_eq!(count("icpp98", "up-down:root=3,channels=5"), 5);
    assert_eq!(count("torus:k=3", "shortest-path:channels=16"), 16);
    assert_eq!(count("torus:k=3", "shortest-path"), 1);
    assert_eq!(count("torus:k=3", "auto"), 2);
}
