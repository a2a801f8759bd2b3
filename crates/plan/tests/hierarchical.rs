//! Hierarchical trees on random trees of switches: what crosses each link is counted along the
//! routes of the plan.

use std::fmt::Write;

use proptest::prelude::*;
use treecast_fabric::{Fabric, LinkId, RoutingPolicy, SwitchId, read};
use treecast_plan::{Group, MemberId, MemberList, Placement, Plan, PlanOptions, WormKind, plan};

const SCHEMES: [&str; 5] = [
    "hierarchical",
    "hierarchical:across=separate,inside=serial",
    "hierarchical:across=postal,across-lambda=4,inside=postal,inside-lambda=2",
    "hierarchical:across=serial,inside=binomial",
    "hierarchical:across=serial,inside=serial",
];

/// A tree of switches, each with its upper switch, and its hosts.
#[derive(Debug, Clone)]
struct Tree {
    uppers: Vec<usize>,
    hosts: Vec<usize>,
    has_ranks: bool,
}

impl Tree {
    fn depth(&self, switch: usize) -> usize {
        if switch == 0 { 0 } else { 1 + self.depth(self.uppers[switch - 1]) }
    }

    fn fabric(&self) -> Fabric {
        let mut text = String::new();
        for switch in 0..=self.uppers.len() {
            text += "[[switch]]\nports = 64\n";
            if self.has_ranks {
                writeln!(text, "rank = {}", self.depth(switch)).unwrap();
            }
        }
        for host in &self.hosts {
            writeln!(text, "[[host]]\nswitch = 's{host}'").unwrap();
        }
        for (lower, upper) in (1..).zip(&self.uppers) {
            writeln!(text, "[[link]]\nfrom = 's{lower}'\nto = 's{upper}'").unwrap();
        }
        Fabric::new(read::toml("tree.toml", &text).unwrap().topology, RoutingPolicy::Auto).unwrap()
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    (1_usize..12, any::<bool>()).prop_flat_map(|(switches, has_ranks)| {
        let uppers = (0..switches - 1).map(|switch| 0..=switch).collect::<Vec<_>>();
        let hosts = prop::collection::vec(0..switches, 2..40);
        (uppers, hosts).prop_map(move |(uppers, hosts)| Tree { uppers, hosts, has_ranks })
    })
}

fn group(fabric: &Fabric, seed: u64) -> Group {
    let hosts = fabric.topology().host_count();
    let placement = Placement::one_per_host(hosts);
    let root = MemberId((seed % u64::from(hosts)) as u32);
    let count = 1 + (seed / 7 % u64::from(hosts - 1)) as u32;
    let destinations = MemberList::Random(count).resolve(&placement, root, seed).unwrap();
    Group::new(placement, root, destinations).unwrap()
}

fn planned(fabric: &Fabric, group: &Group, scheme: &str) -> Plan {
    plan(fabric, group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap()
}

/// The number of worms that cross each directed link.
fn crossings(fabric: &Fabric, plan: &Plan) -> Vec<u32> {
    let mut crossings = vec![0; fabric.topology().link_count() as usize];
    for worm in plan.worms() {
        assert_eq!(worm.kind, WormKind::Unicast);
        worm.route.iter().for_each(|channel| crossings[channel.link.index()] += 1);
    }
    crossings
}

/// The links between switches, one of each pair of directions, with the switches that are on the
/// side of its `to`.
fn cuts(fabric: &Fabric) -> Vec<(LinkId, Vec<SwitchId>)> {
    let topology = fabric.topology();
    let between = topology.physical_links().filter(|&link| {
        topology.link(link).from.switch().is_some() && topology.link(link).to.switch().is_some()
    });
    between
        .map(|link| {
            let mut side = vec![topology.link(link).to.switch().unwrap()];
            let mut next = 0;
            while let Some(&switch) = side.get(next) {
                next += 1;
                for (other, neighbour) in topology.neighbours(switch) {
                    if Some(other) != topology.reverse(link) && !side.contains(&neighbour) {
                        side.push(neighbour);
                    }
                }
            }
            (link, side)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn one_worm_enters_each_subtree(tree in trees(), seed in any::<u64>(), scheme in prop::sample::select(&SCHEMES[..])) {
        let fabric = tree.fabric();
        let topology = fabric.topology();
        let group = group(&fabric, seed);
        let plan = planned(&fabric, &group, scheme);
        prop_assert!(plan.covers(&group));
        let crossings = crossings(&fabric, &plan);
        let is_chain = scheme.contains("across=serial");
        for (link, side) in cuts(&fabric) {
            let here = crossings[link.index()];
            let back = crossings[topology.reverse(link).unwrap().index()];
            let is_on_side = |member: MemberId| side.contains(&topology.switch_of(group.placement().host_of(member)));
            let has_members = group.destinations().iter().any(|&member| is_on_side(member));
            let is_of_root = is_on_side(group.root());
            // Of the two sides of a link one is the subtree. Without ranks the plan decides which
            // one.
            let is_ranked_down = topology.ranks().is_some_and(|ranks| {
                let [from, to] = [topology.link(link).from, topology.link(link).to].map(|end| end.switch().unwrap());
                ranks[from.index()] < ranks[to.index()]
            });
            let entered = if topology.ranks().is_none() { here.min(back) } else if is_ranked_down { here } else { back };
            prop_assert!(entered <= 1, "{} of {scheme}: {here} and {back}", topology.link_name(link));
            if is_ranked_down {
                prop_assert_eq!(here, u32::from(has_members && !is_of_root));
            }
            if is_chain {
                prop_assert!(here <= 1 && back <= 1, "{} of {scheme}: {here} and {back}", topology.link_name(link));
            }
        }
        if !is_chain {
            prop_assert!(plan.analyse(&fabric, 1).unwrap().id_rule);
        }
    }

    #[test]
    fn in_one_rack_it_is_the_tree_inside(hosts in 2_u32..40, seed in any::<u64>()) {
        let fabric = Fabric::from_spec(&format!("star:{hosts}").parse().unwrap()).unwrap();
        let group = group(&fabric, seed);
        let hierarchical = planned(&fabric, &group, "hierarchical:across=separate,inside=postal,inside-lambda=3");
        let tree = planned(&fabric, &group, "postal:lambda=3");
        prop_assert_eq!(hierarchical.worms(), tree.worms());
    }

    #[test]
    fn with_a_member_in_each_rack_it_is_the_tree_across(k in 2_u32..6, seed in any::<u64>()) {
        let fabric = Fabric::from_spec(&format!("mesh:k={k}").parse().unwrap()).unwrap();
        let group = group(&fabric, seed);
        let hierarchical = planned(&fabric, &group, "hierarchical:inside=separate");
        let tree = planned(&fabric, &group, "binomial");
        prop_assert_eq!(hierarchical.worms(), tree.worms());
    }
}

#[test]
fn a_chain_sends_once_from_each_member() {
    let fabric = Fabric::from_spec(&"fat-tree:k=4".parse().unwrap()).unwrap();
    let placement = Placement::one_per_host(16);
    // The root is in the second rack of the second pod.
    let destinations = MemberList::All.resolve(&placement, MemberId(7), 1).unwrap();
    let group = Group::new(placement, MemberId(7), destinations).unwrap();
    let chain = planned(&fabric, &group, "hierarchical:across=serial,inside=serial");
    let receivers: Vec<u32> = chain.worms().iter().map(|worm| worm.to[0].0).collect();
    assert_eq!(receivers, [6, 4, 5, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(chain.analyse(&fabric, 1).unwrap().max_fan_out, 1);
}

#[test]
fn deep_trees_need_no_deep_stack() {
    let tree = Tree { uppers: (0..20_000).collect(), hosts: (0..20_000).collect(), has_ranks: false };
    let fabric = tree.fabric();
    let group = group(&fabric, 140_001);
    assert!(planned(&fabric, &group, "hierarchical").covers(&group));
}
