//! Properties of every plan, on random fabrics and groups.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Case, cases, fabric};
use proptest::prelude::*;
use treecast_fabric::{Fabric, HostId, LinkId, Overlap, SwitchId, Vertex};
use treecast_plan::{
    FlatScheme, Group, MemberId, MemberList, Order, Placement, Plan, PlanOptions, Scheme, TorusScheme,
    TreeScheme, Worm, WormKind, plan,
};

/// Every member receives once, and sends only afterwards.
fn check_delivery(case: &Case, group: &Group, plan: &Plan) -> Result<(), TestCaseError> {
    let mut holders = BTreeSet::from([group.root()]);
    let mut next_index: BTreeMap<MemberId, u32> = BTreeMap::new();
    for worm in plan.worms() {
        prop_assert!(holders.contains(&worm.from), "{case:?}: {} sends too early", worm.from);
        let index = next_index.entry(worm.from).or_default();
        prop_assert_eq!(worm.index, *index);
        *index += 1;
        for &to in &worm.to {
            prop_assert!(holders.insert(to), "{case:?}: {to} receives twice");
        }
    }
    let mut wanted: BTreeSet<MemberId> = group.destinations().iter().copied().collect();
    wanted.insert(group.root());
    prop_assert_eq!(holders, wanted);
    Ok(())
}

/// An explicit route begins at its sender, is connected, and ends at its receivers' hosts, each
/// once; no vertex is entered twice, except a switch where a tree worm turns from up to down.
fn check_route(fabric: &Fabric, plan: &Plan, worm: &Worm) -> Result<(), TestCaseError> {
    let topology = fabric.topology();
    let sender = Vertex::Host(plan.placement().host_of(worm.from));
    let mut reached = vec![sender];
    let mut entered = Vec::new();
    for (position, channel) in worm.route.iter().enumerate() {
        let link = topology.link(channel.link);
        prop_assert!(channel.virtual_channel < fabric.routing().virtual_channel_count());
        prop_assert_eq!(position == 0, link.from == sender);
        prop_assert!(reached.contains(&link.from));
        let routing = fabric.routing().up_down().filter(|_| worm.kind == WormKind::Tree);
        let upwards = routing.is_some_and(|routing| {
            let between = link.from.switch().is_some() && link.to.switch().is_some();
            position == 0 || (between && routing.is_up(topology, channel.link))
        });
        prop_assert!(!entered.contains(&(link.to, upwards)), "{} is entered twice", link.to);
        entered.push((link.to, upwards));
        reached.push(link.to);
    }
    let mut served: Vec<HostId> = reached[1..].iter().filter_map(|vertex| vertex.host()).collect();
    let mut hosts: Vec<HostId> = worm.to.iter().map(|&to| plan.placement().host_of(to)).collect();
    hosts.sort_unstable();
    hosts.dedup();
    served.sort_unstable();
    prop_assert_eq!(served, hosts);
    Ok(())
}

/// The switch links of a path are zero or more up, then zero or more down.
fn check_up_down(fabric: &Fabric, worm: &Worm) -> Result<(), TestCaseError> {
    let (topology, routing) = (fabric.topology(), fabric.routing().up_down().unwrap());
    let between = |link: LinkId| Some((topology.link(link).from.switch()?, topology.link(link).to.switch()?));
    let links: Vec<(LinkId, SwitchId, SwitchId)> = worm
        .route
        .iter()
        .filter_map(|channel| between(channel.link).map(|(from, to)| (channel.link, from, to)))
        .collect();
    prop_assert!(links.windows(2).all(|pair| pair[0].2 == pair[1].1));
    let ups: Vec<bool> = links.iter().map(|&(link, ..)| routing.is_up(topology, link)).collect();
    prop_assert!(ups.windows(2).all(|pair| pair[0] || !pair[1]), "turns up after going down");
    Ok(())
}

/// The most worms into the fabric that one member sends.
fn fan_out(plan: &Plan) -> usize {
    let sends = plan.sends();
    (0..plan.placement().member_count()).map(|member| sends.of(MemberId(member)).len()).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn every_member_contributes_once_after_its_children(case in cases()) {
        let fabric = case.fabric();
        let Some(plan) = case.plan(&fabric) else { return Ok(()) };
        let reduction = plan.reduction(&fabric).unwrap();
        let mut received: BTreeMap<MemberId, Vec<u32>> = BTreeMap::new();
        let mut parents = BTreeMap::new();
        for contribution in reduction.contributions() {
            let (from, to) = (contribution.from(), contribution.to());
            prop_assert_eq!(parents.insert(from, to), None);
            prop_assert!(!parents.contains_key(&to), "{case:?}: {to} has contributed before {from}");
            let combined = received.remove(&from).unwrap_or_default();
            prop_assert_eq!(combined.len(), contribution.combined as usize);
            prop_assert!(combined.iter().all(|&step| step < contribution.step));
            let steps = received.entry(to).or_default();
            prop_assert!(!steps.contains(&contribution.step), "{to} receives twice in a step");
            steps.push(contribution.step);
            let host_of = |member| plan.placement().host_of(member);
            prop_assert_eq!(contribution.worm.kind == WormKind::Local, host_of(from) == host_of(to));
            if !contribution.worm.route.is_empty() {
                check_route(&fabric, &plan, &contribution.worm)?;
            }
        }
        let senders = plan.worms().iter().flat_map(|worm| worm.to.iter().map(|&to| (to, worm.from)));
        prop_assert_eq!(parents, senders.collect());
        prop_assert_eq!(received.len(), 1);
        prop_assert_eq!(received[&plan.root()].len(), reduction.combined_at_root() as usize);
        // A receiver takes contributions as they arrive: the way up needs no more steps than the
        // way down.
        if plan.worms().iter().all(|worm| worm.to.len() == 1) {
            prop_assert!(u64::from(reduction.steps()) <= plan.analyse(&fabric, 1).unwrap().steps);
        }
    }

    #[test]
    fn a_plan_delivers_once_over_connected_routes(case in cases()) {
        let fabric = case.fabric();
        let group = case.group(&fabric);
        let Some(plan) = case.plan(&fabric) else { return Ok(()) };
        check_delivery(&case, &group, &plan)?;
        prop_assert!(plan.covers(&group));
        let determined = fabric.routing().is_deterministic(fabric.topology());
        for worm in plan.worms() {
            let has_route = worm.kind == WormKind::Path || (determined && worm.kind != WormKind::Local);
            prop_assert_eq!(!worm.route.is_empty(), has_route, "{:?}", worm);
            if has_route {
                check_route(&fabric, &plan, worm)?;
            }
            if worm.kind == WormKind::Path && fabric.routing().up_down().is_some() {
                check_up_down(&fabric, worm)?;
            }
        }
    }

    #[test]
    fn a_plan_keeps_the_bounds_of_its_scheme(case in cases()) {
        let fabric = case.fabric();
        let group = case.group(&fabric);
        let Some(plan) = case.plan(&fabric) else { return Ok(()) };
        let analysis = plan.analyse(&fabric, 1).unwrap();
        let n = group.size();
        let doubling = u64::from(u32::BITS - (n - 1).leading_zeros());
        match case.scheme() {
            Scheme::Flat(FlatScheme::Tree(tree)) => match tree {
                TreeScheme::Separate => prop_assert_eq!(analysis.steps, u64::from(n - 1)),
                TreeScheme::Serial => prop_assert_eq!((analysis.steps, fan_out(&plan)), (u64::from(n - 1), 1)),
                TreeScheme::Binary => prop_assert!(fan_out(&plan) <= 2),
                TreeScheme::Binomial => prop_assert_eq!(analysis.steps, doubling),
                TreeScheme::KBinomial { k: Some(k) } => prop_assert!(fan_out(&plan) <= k as usize),
                TreeScheme::KBinomial { k: None } | TreeScheme::Postal { .. } => {}
            },
            Scheme::Flat(FlatScheme::Torus(TorusScheme::U)) => {
                prop_assert_eq!(analysis.steps, doubling);
            }
            _ => {}
        }
        if case.scheme().takes_order() && case.order.is_none() {
            prop_assert!(analysis.id_rule, "{:?}", case);
            for worm in plan.worms() {
                prop_assert!(worm.from == plan.root() || worm.to.iter().all(|&to| to > worm.from));
            }
        }
        prop_assert_eq!(plan.scheme().to_string().parse(), Ok(case.scheme()));
    }

    #[test]
    fn no_text_causes_a_panic(
        scheme in "[a-z-]{0,8}(:[a-z]{1,6}(=[a-z0-9.-]{0,6})?(,[a-z]{1,6}=[0-9e.-]{0,9}){0,3})?|\\PC{0,20}",
        list in "[0-9,-]{0,12}|random:[0-9]{0,10}|\\PC{0,12}",
        order in "[a-z]{1,6}(:seed=[0-9]{1,25})?|\\PC{0,12}",
        known in prop::sample::select(&Scheme::NAMES[..]),
        keys in "[a-z]{1,8}=[a-z0-9.-]{1,6}",
        packets in any::<u32>(),
    ) {
        let fabric = fabric("icpp98", "auto");
        let placement = Placement::one_per_host(32);
        let named = [scheme.clone(), format!("{}:{keys}", known.0), format!("{}:{},{keys}", known.0, known.1)];
        let order = order.parse::<Order>().ok();
        let _ = list.parse::<MemberList>().and_then(|list| list.resolve(&placement, MemberId(0), 1));
        let group = Group::new(placement, MemberId(0), (1..9).map(MemberId).collect()).unwrap();
        for scheme in named.iter().filter_map(|text| text.parse::<Scheme>().ok()) {
            if let Ok(plan) = plan(&fabric, &group, &scheme, &PlanOptions { order, packets }) {
                prop_assert!(plan.analyse(&fabric, packets).is_ok());
            }
        }
    }
}

/// The number of copies that each host gets from the tree worm of a policy.
fn served(fabric: &Fabric, to: &[HostId], overlap: Overlap) -> Option<Vec<HostId>> {
    let topology = fabric.topology();
    let routing = fabric.routing().up_down().unwrap();
    let route = routing.tree_route(topology, HostId(0), to, overlap)?;
    let mut reached = vec![Vertex::Host(HostId(0))];
    let mut down_from_here = false;
    for channel in route {
        let link = topology.link(channel.link);
        assert!(reached.contains(&link.from));
        reached.push(link.to);
        if link.from.switch().is_some() && link.to.switch().is_some() {
            let up = routing.is_up(topology, channel.link);
            assert!(!(up && down_from_here), "goes up after it went down");
            down_from_here |= !up;
        }
    }
    let mut hosts: Vec<HostId> = reached[1..].iter().filter_map(|vertex| vertex.host()).collect();
    hosts.sort_unstable();
    Some(hosts)
}

#[test]
fn tree_worms_serve_each_host_once_where_reachabilities_overlap() {
    let mut overlapping = 0;
    for seed in 0..60 {
        let fabric =
            fabric(&format!("irregular:switches=8,ports=8,hosts=24,connectivity=0.9,seed={seed}"), "auto");
        let (topology, routing) = (fabric.topology(), fabric.routing().up_down().unwrap());
        let reach = routing.reach(topology);
        overlapping += usize::from(topology.switches().any(|at| {
            let below: Vec<SwitchId> = topology
                .neighbours(at)
                .filter(|&(link, _)| !routing.is_up(topology, link))
                .map(|(_, below)| below)
                .collect();
            (0..below.len())
                .any(|a| (0..a).any(|b| !reach[below[a].index()].is_disjoint(&reach[below[b].index()])))
        }));
        for step in 1..4 {
            let to: Vec<HostId> = (1..24).step_by(step).map(HostId).collect();
            for overlap in [Overlap::FirstPort, Overlap::WidestFirst] {
                assert_eq!(served(&fabric, &to, overlap), Some(to.clone()), "seed {seed} {overlap:?}");
            }
        }
    }
    assert!(overlapping > 40, "only {overlapping} of 60 fabrics had overlaps");
}
