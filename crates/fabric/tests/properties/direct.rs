//! Minimal, Valiant and UGAL routing on dragonflies and HyperX networks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use treecast_fabric::generate::{dragonfly, hyperx};
use treecast_fabric::{
    Channel, Dragonfly, Fabric, HostId, HyperX, Minimal, RoutingPolicy, Sizes, Structure, SwitchId, Topology,
    Valiant,
};

use crate::up_down::check_joined;
use crate::{cases, fabrics};

/// All routes between two hosts: the minimal one, and by each intermediate.
fn routes(topology: &Topology, from: HostId, to: HostId) -> Vec<Vec<Channel>> {
    let routing = Valiant::ugal(topology).unwrap();
    let intermediates = 0..routing.intermediate_count(topology, from, to);
    let choices = intermediates.map(Some).chain([None]);
    choices.map(|choice| routing.route(topology, from, to, choice)).collect()
}

fn pairs(topology: &Topology) -> impl Iterator<Item = (HostId, HostId)> {
    let hosts = topology.host_count();
    (0..hosts * hosts)
        .map(move |pair| (HostId(pair / hosts), HostId(pair % hosts)))
        .filter(|(from, to)| from != to)
}

/// Whether the channel dependency graph of these routes has a cycle (Dally and Seitz), so that
/// packets can deadlock.
fn may_deadlock(routes: impl Iterator<Item = Vec<Channel>>) -> bool {
    let mut graph: DiGraph<Channel, ()> = DiGraph::new();
    let mut nodes = BTreeMap::new();
    let mut waits = BTreeSet::new();
    for route in routes {
        waits.extend(route.windows(2).map(|pair| (pair[0], pair[1])));
    }
    for (held, wanted) in waits {
        let [held, wanted] =
            [held, wanted].map(|channel| *nodes.entry(channel).or_insert_with(|| graph.add_node(channel)));
        graph.add_edge(held, wanted, ());
    }
    is_cyclic_directed(&graph)
}

fn is_on_one_channel(route: Vec<Channel>) -> Vec<Channel> {
    route.into_iter().map(|channel| Channel { virtual_channel: 0, ..channel }).collect()
}

/// The fewest links between two switches: on a HyperX any, on a dragonfly with at most one between
/// groups.
fn fewest(topology: &Topology, from: SwitchId, to: SwitchId) -> u32 {
    let group = |switch: SwitchId| match topology.structure() {
        Some(Structure::Dragonfly(Dragonfly { a, .. })) => switch.0 / a,
        _ => 0,
    };
    let mut queue = VecDeque::from([(from, false, 0)]);
    let mut seen = BTreeSet::from([(from, false)]);
    while let Some((at, has_crossed, distance)) = queue.pop_front() {
        if at == to {
            return distance;
        }
        for (_, next) in topology.neighbours(at) {
            let crosses = group(at) != group(next);
            if !(has_crossed && crosses) && seen.insert((next, has_crossed || crosses)) {
                queue.push_back((next, has_crossed || crosses, distance + 1));
            }
        }
    }
    unreachable!("the fabric is connected")
}

fn longest(topology: &Topology, valiant: bool) -> usize {
    let lengths = pairs(topology).flat_map(|(from, to)| {
        let mut routes = routes(topology, from, to);
        let minimal = routes.pop();
        if valiant { routes } else { minimal.into_iter().collect() }
    });
    lengths.map(|route| route.len() - 2).max().unwrap_or(0)
}

/// Section 3.1 and 4.1 of Kim and others.
#[test]
fn a_dragonfly_has_three_hops_by_minimal_routes_and_five_by_third_groups() {
    for parameters in [Dragonfly::balanced(2), Dragonfly { p: 1, a: 4, h: 2, g: 5 }] {
        let topology = dragonfly(parameters).unwrap();
        assert_eq!(longest(&topology, false), 3);
        assert_eq!(longest(&topology, true), 5);
    }
}

#[test]
fn the_longest_minimal_route_of_a_hyperx_has_a_hop_for_each_dimension() {
    for s in [&[5][..], &[4, 3], &[2, 3, 2]] {
        let topology = hyperx(HyperX { s: Sizes::new(s).unwrap(), k: 1, t: 1 }).unwrap();
        assert_eq!(longest(&topology, false), s.len());
        assert_eq!(longest(&topology, true), 2 * s.len());
    }
}

/// Each global link of a balanced dragonfly carries a^2 p^2 minimal routes, between all hosts of
/// two groups.
#[test]
fn minimal_routes_load_the_links_between_groups_equally() {
    let topology = dragonfly(Dragonfly::balanced(2)).unwrap();
    let routing = Minimal::new(&topology).unwrap();
    let mut loads: BTreeMap<_, u32> = BTreeMap::new();
    for (from, to) in pairs(&topology) {
        for channel in routing.route(&topology, from, to) {
            let ends = topology.link(channel.link);
            let (Some(from), Some(to)) = (ends.from.switch(), ends.to.switch()) else { continue };
            if from.0 / 4 != to.0 / 4 {
                *loads.entry(channel.link).or_default() += 1;
            }
        }
    }
    assert_eq!(loads.len(), 72);
    assert!(loads.values().all(|&load| load == 64));
}

#[test]
fn one_virtual_channel_less_can_deadlock() {
    let topology = dragonfly(Dragonfly::balanced(2)).unwrap();
    let routing = Minimal::new(&topology).unwrap();
    let minimal = pairs(&topology).map(|(from, to)| routing.route(&topology, from, to));
    assert!(may_deadlock(minimal.map(is_on_one_channel)));
    let topology = hyperx(HyperX { s: Sizes::new(&[3, 3]).unwrap(), k: 1, t: 1 }).unwrap();
    let all = pairs(&topology).flat_map(|(from, to)| routes(&topology, from, to));
    assert!(may_deadlock(all.map(is_on_one_channel)));
}

#[test]
fn other_fabrics_are_refused() {
    let topology = treecast_fabric::generate::star(2).unwrap();
    for (policy, name) in [
        (RoutingPolicy::Minimal, "minimal"),
        (RoutingPolicy::Valiant, "valiant"),
        (RoutingPolicy::Ugal, "ugal"),
    ] {
        let error = Fabric::new(topology.clone(), policy).unwrap_err().to_string();
        let reason = "it is neither a dragonfly nor a HyperX";
        assert_eq!(error, format!("{name} routing does not fit this fabric: {reason}"));
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn routes_are_connected_minimal_and_free_of_deadlock(
        topology in prop_oneof![fabrics::small_dragonfly(), fabrics::small_hyperx()],
    ) {
        let routing = Minimal::new(&topology).unwrap();
        let (least, most) = (routing.virtual_channel_count(), Valiant::new(&topology).unwrap().virtual_channel_count());
        for (from, to) in pairs(&topology).step_by(5) {
            let route = routing.route(&topology, from, to);
            check_joined(&topology, &route, from, to);
            prop_assert_eq!(route.len() as u32 - 2, fewest(&topology, topology.switch_of(from), topology.switch_of(to)));
            prop_assert!(route.iter().all(|channel| channel.virtual_channel < least));
            for route in routes(&topology, from, to) {
                check_joined(&topology, &route, from, to);
                prop_assert!(route.iter().all(|channel| channel.virtual_channel < most));
            }
        }
        prop_assert!(!may_deadlock(pairs(&topology).map(|(from, to)| routing.route(&topology, from, to))));
        let sample = pairs(&topology).step_by(topology.host_count() as usize / 24 + 1);
        prop_assert!(!may_deadlock(sample.flat_map(|(from, to)| routes(&topology, from, to))));
    }
}
