//! Random fabrics for the property tests.

use proptest::prelude::*;
use treecast_fabric::generate::{GridShape, Irregular, LinkDensity, fat_tree, grid, irregular, leaf_spine};
use treecast_fabric::{FabricError, Topology};

/// A valid irregular fabric: 1 to 24 switches with 3 to 12 ports.
pub fn irregular_fabric() -> impl Strategy<Value = Topology> {
    let numbers = (1..=24_u32, 3..=12_u32, 1..=60_u32, 0.0..=1.0_f64, any::<u64>());
    numbers.prop_filter_map("fewer ports than hosts", |(switches, ports, hosts, connectivity, seed)| {
        let links = LinkDensity::Connectivity(connectivity);
        match irregular(Irregular { switches, ports, hosts, links, seed }) {
            Ok(topology) => Some(topology),
            Err(FabricError::MoreHostsThanPorts { hosts_max, .. }) => {
                let hosts = u32::try_from(hosts_max).ok()?;
                irregular(Irregular { switches, ports, hosts, links, seed }).ok()
            }
            Err(error) => panic!("{error}"),
        }
    })
}

/// A torus or mesh of at most 125 nodes.
pub fn grid_fabric() -> impl Strategy<Value = Topology> {
    let shapes =
        prop_oneof![Just(GridShape::Torus), Just(GridShape::UnidirectionalTorus), Just(GridShape::Mesh)];
    (shapes, 2..=5_u32, 1..=3_u32).prop_map(|(shape, k, n)| grid(shape, k, n).unwrap())
}

/// A fat tree of at most 54 hosts, or a leaf-spine network of at most 18.
pub fn tiered_fabric() -> impl Strategy<Value = Topology> {
    let two_tiers = (1..6_u32, 1..4_u32, 1..4_u32)
        .prop_map(|(leaves, spines, down)| leaf_spine(leaves, spines, leaves * down).unwrap());
    prop_oneof![(1..=3_u32).prop_map(|half| fat_tree(2 * half).unwrap()), two_tiers]
}

/// Any fabric without one-way links.
pub fn two_way_fabric() -> impl Strategy<Value = Topology> {
    let two_way = grid_fabric().prop_filter("one-way links", |topology| {
        topology.grid().is_some_and(treecast_fabric::Grid::is_bidirectional)
    });
    prop_oneof![4 => irregular_fabric(), 1 => tiered_fabric(), 1 => two_way]
}
