//! Published results on contention, checked on random groups.

use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy};
use treecast_plan::{Analysis, Group, MemberId, MemberList, Order, Placement, PlanOptions, plan};

/// Analyses a scheme for a random group of each seed.
fn analyses(fabric: &Fabric, scheme: &str, order: Option<Order>, seeds: u64) -> Vec<Analysis> {
    let hosts = fabric.topology().host_count();
    let placement = Placement::one_per_host(hosts);
    (0..seeds)
        .map(|seed| {
            let root = MemberId((seed % u64::from(hosts)) as u32);
            let count = 1 + (seed * 7 % u64::from(hosts - 1)) as u32;
            let destinations = MemberList::Random(count).resolve(&placement, root, seed).unwrap();
            let group = Group::new(placement.clone(), root, destinations).unwrap();
            let plan =
                plan(fabric, &group, &scheme.parse().unwrap(), &PlanOptions { order, packets: 1 }).unwrap();
            plan.analyse(fabric, 1).unwrap()
        })
        .collect()
}

fn contending(spec: &str, routing: &str, scheme: &str, seeds: u64) -> u64 {
    let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
    let fabric = Fabric::new(topology, routing.parse::<RoutingPolicy>().unwrap()).unwrap();
    analyses(&fabric, scheme, None, seeds).iter().map(|analysis| analysis.contending_pairs).sum()
}

#[test]
fn u_torus_has_no_contention_on_virtual_channels() {
    assert_eq!(contending("torus:k=4,n=2,uni", "dimension-order", "u-torus", 3_000), 0);
    assert_eq!(contending("torus:k=8,n=2,uni", "dimension-order", "u-torus", 3_000), 0);
}

#[test]
fn u_torus_has_contention_without_virtual_channels() {
    assert!(contending("torus:k=4,n=2,uni", "dimension-order:channels=none", "u-torus", 200) > 0);
}

#[test]
fn a_binomial_tree_has_contention_on_a_torus() {
    assert!(contending("torus:k=4,n=2,uni", "dimension-order", "binomial", 200) > 0);
}

#[test]
fn chain_concatenated_order_has_less_contention_than_a_random_one() {
    let fabric = Fabric::from_spec(&"icpp98:switches=16,hosts=64".parse::<FabricSpec>().unwrap()).unwrap();
    let contending = |order: &str| {
        let order = Some(order.parse().unwrap());
        analyses(&fabric, "binomial", order, 200)
            .iter()
            .map(|analysis| analysis.contending_pairs)
            .sum::<u64>()
    };
    let (ordered, random) = (contending("cco"), contending("random"));
    assert!(2 * ordered < random, "cco {ordered}, random {random}");
}
