//! Random fabrics for the property tests.

use proptest::prelude::*;
use treecast_fabric::generate::{
    GridShape, Irregular, LinkDensity, RandomRegular, dragonfly, fat_tree, grid, hyperx, irregular,
    leaf_spine, random_regular,
};
use treecast_fabric::{Dragonfly, FabricError, HyperX, Sizes, Topology};

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

/// A dragonfly of at most 7 groups of 4 routers.
pub fn small_dragonfly() -> impl Strategy<Value = Topology> {
    (1..=2_u32, 1..=4_u32, 1..=3_u32, 1..=7_u32)
        .prop_map(|(p, a, h, g)| dragonfly(Dragonfly { p, a, h, g: g.min(a * h + 1) }).unwrap())
}

/// A HyperX of 1 to 3 dimensions with at most 64 switches.
pub fn small_hyperx() -> impl Strategy<Value = Topology> {
    (prop::collection::vec(1..=4_u32, 1..=3), 1..=2_u32, 1..=2_u32)
        .prop_map(|(s, k, t)| hyperx(HyperX { s: Sizes::new(&s).unwrap(), k, t }).unwrap())
}

/// A dragonfly, a HyperX, or a random regular network.
pub fn direct_fabric() -> impl Strategy<Value = Topology> {
    let regular = (2..=10_u32, 3..=5_u32, 1..=2_u32, any::<u64>()).prop_map(|(half, degree, down, seed)| {
        let switches = 2 * half;
        let parameters =
            RandomRegular { switches, degree: degree.min(switches - 1), hosts: switches * down, seed };
        random_regular(parameters).unwrap()
    });
    prop_oneof![small_dragonfly(), small_hyperx(), regular]
}

/// Any fabric without one-way links.
pub fn two_way_fabric() -> impl Strategy<Value = Topology> {
    let two_way = grid_fabric().prop_filter("one-way links", |topology| {
        topology.grid().is_some_and(treecast_fabric::Grid::is_bidirectional)
    });
    prop_oneof![4 => irregular_fabric(), 1 => tiered_fabric(), 1 => two_way, 1 => direct_fabric()]
}
