//! Dimension order on tori and meshes.

use std::collections::BTreeMap;

use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use proptest::sample::select;
use treecast_fabric::generate::{GridShape, grid};
use treecast_fabric::{Channel, DimensionOrder, Routing, SwitchId, Ties, Topology, VirtualChannels};

use crate::up_down::check_joined;
use crate::{cases, fabrics};

/// Whether the channel dependency graph of these routes has a cycle (Dally and Seitz), so that
/// packets can deadlock.
fn may_deadlock(topology: &Topology, channels: VirtualChannels) -> bool {
    [Ties::Up, Ties::Even].into_iter().any(|ties| has_cyclic_waits(topology, channels, ties))
}

fn has_cyclic_waits(topology: &Topology, channels: VirtualChannels, ties: Ties) -> bool {
    let routing = Routing::DimensionOrder(DimensionOrder::new(topology, channels, ties).unwrap());
    let mut graph: DiGraph<Channel, ()> = DiGraph::new();
    let mut nodes = BTreeMap::new();
    for from in topology.hosts() {
        for to in topology.hosts().filter(|&to| to != from) {
            let route = routing.route(topology, from, to).unwrap();
            for pair in route.windows(2) {
                let [held, wanted] = [pair[0], pair[1]]
                    .map(|channel| *nodes.entry(channel).or_insert_with(|| graph.add_node(channel)));
                graph.update_edge(held, wanted, ());
            }
        }
    }
    is_cyclic_directed(&graph)
}

#[test]
fn with_datelines_no_torus_deadlocks() {
    for shape in [GridShape::Torus, GridShape::UnidirectionalTorus] {
        let sizes = (2..=5).flat_map(|k| (1..=3).map(move |n| (k, n)));
        for (k, n) in sizes.chain([(6, 2), (7, 2), (8, 2), (16, 1), (17, 1)]) {
            let topology = grid(shape, k, n).unwrap();
            for channels in [VirtualChannels::Dateline, VirtualChannels::Balanced] {
                assert!(!may_deadlock(&topology, channels), "{shape:?} {k} {n} {channels:?}");
            }
        }
    }
}

#[test]
fn without_datelines_rings_of_four_and_more_deadlock() {
    for (k, n) in (4..=5).flat_map(|k| (1..=2).map(move |n| (k, n))) {
        assert!(may_deadlock(&grid(GridShape::Torus, k, n).unwrap(), VirtualChannels::None), "{k} {n}");
    }
    for (k, n) in (3..=5).flat_map(|k| (1..=2).map(move |n| (k, n))) {
        let topology = grid(GridShape::UnidirectionalTorus, k, n).unwrap();
        assert!(may_deadlock(&topology, VirtualChannels::None), "{k} {n}");
    }
}

#[test]
fn a_mesh_needs_no_datelines() {
    for (k, n) in (2..=5).flat_map(|k| (1..=3).map(move |n| (k, n))) {
        assert!(!may_deadlock(&grid(GridShape::Mesh, k, n).unwrap(), VirtualChannels::None), "{k} {n}");
    }
}

/// The number of routes, one between any two hosts, over each channel of the links between nodes.
fn routes_over(topology: &Topology, channels: VirtualChannels, ties: Ties) -> BTreeMap<Channel, u32> {
    let routing = Routing::DimensionOrder(DimensionOrder::new(topology, channels, ties).unwrap());
    let mut over = BTreeMap::new();
    for from in topology.hosts() {
        for to in topology.hosts().filter(|&to| to != from) {
            for channel in routing.route(topology, from, to).unwrap() {
                if !topology.is_internal(channel.link) {
                    *over.entry(channel).or_default() += 1;
                }
            }
        }
    }
    over
}

#[test]
fn even_ties_load_all_links_equally() {
    let loads = |k, ties| {
        let over = routes_over(&grid(GridShape::Torus, k, 2).unwrap(), VirtualChannels::None, ties);
        (*over.values().min().unwrap(), *over.values().max().unwrap())
    };
    // On a ring of 8 nodes links up carry 1 + 2 + 3 + 4 routes, links down 1 + 2 + 3, for each node
    // across.
    assert_eq!(loads(8, Ties::Up), (6 * 8, 10 * 8));
    for (k, routes) in [(2, 1), (4, 8), (6, 27), (8, 64)] {
        assert_eq!(loads(k, Ties::Even), (routes, routes), "{k}");
    }
}

#[test]
fn balanced_channels_share_the_load_of_a_link() {
    let busiest_fraction = |shape, k, channels| {
        let topology = grid(shape, k, 2).unwrap();
        let over = routes_over(&topology, channels, Ties::Even);
        let mut links: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (channel, routes) in over {
            links.entry(channel.link).or_default().push(routes);
        }
        let share = |routes: &Vec<u32>| {
            f64::from(*routes.iter().max().unwrap()) / f64::from(routes.iter().sum::<u32>())
        };
        links.values().map(share).fold(0.0, f64::max)
    };
    // Next to the dateline the packets that cross it are on one channel: on longer rings they are
    // most of the load there.
    for (shape, k, most) in [
        (GridShape::Torus, 4, 0.7),
        (GridShape::Torus, 7, 0.7),
        (GridShape::Torus, 8, 0.65),
        (GridShape::Torus, 16, 0.77),
        (GridShape::UnidirectionalTorus, 8, 0.76),
    ] {
        // Only one channel of the dateline is used.
        assert!(busiest_fraction(shape, k, VirtualChannels::Dateline) > 0.999);
        let busiest = busiest_fraction(shape, k, VirtualChannels::Balanced);
        assert!(busiest <= most, "{shape:?} {k}: {busiest}");
    }
}

/// The fewest links between two nodes: along each dimension the distance of a ring or a row.
fn fewest(topology: &Topology, from: SwitchId, to: SwitchId) -> u32 {
    let grid = topology.grid().unwrap();
    let along = |(here, there): (u32, u32)| {
        let up = (there + grid.radix() - here) % grid.radix();
        match (grid.wraps(), grid.is_bidirectional()) {
            (false, _) => here.abs_diff(there),
            (true, true) => up.min(grid.radix() - up),
            (true, false) => up,
        }
    };
    grid.coordinates(from.0).zip(grid.coordinates(to.0)).map(along).sum()
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn routes_are_minimal_and_connected(
        topology in fabrics::grid_fabric(),
        channels in select(vec![VirtualChannels::None, VirtualChannels::Dateline, VirtualChannels::Balanced]),
        ties in select(vec![Ties::Up, Ties::Even]),
    ) {
        let routing = Routing::DimensionOrder(DimensionOrder::new(&topology, channels, ties).unwrap());
        for from in topology.hosts().step_by(3) {
            for to in topology.hosts().filter(|&to| to != from) {
                let route = routing.route(&topology, from, to).unwrap();
                check_joined(&topology, &route, from, to);
                let least = fewest(&topology, topology.switch_of(from), topology.switch_of(to));
                prop_assert_eq!(route.len() as u32, least + 2);
                prop_assert!(route.iter().all(|channel| channel.virtual_channel < routing.virtual_channel_count()));
            }
        }
    }
}
