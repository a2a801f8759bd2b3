//! Dimension order on tori and meshes.

use std::collections::BTreeMap;

use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use treecast_fabric::generate::{GridShape, grid};
use treecast_fabric::{Channel, DimensionOrder, Routing, SwitchId, Topology, VirtualChannels};

use crate::up_down::check_joined;
use crate::{cases, fabrics};

/// Whether the channel dependency graph of these routes has a cycle (Dally and Seitz), so that packets can deadlock.
fn may_deadlock(topology: &Topology, channels: VirtualChannels) -> bool {
    let routing = Routing::DimensionOrder(DimensionOrder::new(topology, channels).unwrap());
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
        for (k, n) in (2..=5).flat_map(|k| (1..=3).map(move |n| (k, n))) {
            let topology = grid(shape, k, n).unwrap();
            assert!(!may_deadlock(&topology, VirtualChannels::Dateline), "{shape:?} {k} {n}");
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
    fn routes_are_minimal_and_connected(topology in fabrics::grid_fabric(), dateline in any::<bool>()) {
        let channels = if dateline { VirtualChannels::Dateline } else { VirtualChannels::None };
        let routing = Routing::DimensionOrder(DimensionOrder::new(&topology, channels).unwrap());
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
