//! The analysis against direct counts and a step-by-step simulation.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{cases, fabric};
use proptest::prelude::*;
use treecast_fabric::{Channel, Fabric, HostId, LinkId, Overlap, RouteFinder, Vertex};
use treecast_plan::{MemberId, Plan, TreeScheme, Worm, WormKind};

/// The channels of a worm that count: its own or representative ones, without those inside a node.
fn channels(fabric: &Fabric, plan: &Plan, worm: &Worm) -> Vec<Channel> {
    let topology = fabric.topology();
    let host_of = |member| plan.placement().host_of(member);
    let route = match worm.kind {
        WormKind::Local => Vec::new(),
        _ if !worm.route.is_empty() => worm.route.clone(),
        WormKind::Tree => {
            let hosts: BTreeSet<HostId> = worm.to.iter().map(|&to| host_of(to)).collect();
            let hosts: Vec<HostId> = hosts.into_iter().collect();
            let routing = fabric.routing().up_down().unwrap();
            routing.tree_route(topology, host_of(worm.from), &hosts, Overlap::FirstPort).unwrap()
        }
        _ => {
            let (from, to) = (host_of(worm.from), host_of(worm.to[0]));
            RouteFinder::new(topology, fabric.routing()).route(from, to)
        }
    };
    route.into_iter().filter(|channel| !topology.is_internal(channel.link)).collect()
}

/// For each worm the worms that precede it: those that its sender sent earlier, for a message of
/// one packet the one that brought its sender the message, and all that precede those.
fn before(plan: &Plan, packets: u32) -> Vec<BTreeSet<usize>> {
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for (position, worm) in plan.worms().iter().enumerate() {
        let mut mine = BTreeSet::new();
        for (earlier, other) in plan.worms()[..position].iter().enumerate() {
            if other.from == worm.from || (packets == 1 && other.to.contains(&worm.from)) {
                mine.insert(earlier);
                mine.extend(before[earlier].iter().copied());
            }
        }
        before.push(mine);
    }
    before
}

/// The number of stretches of channels that two worms share: shared channels that do not follow a
/// shared channel in both.
fn shared_stretches(fabric: &Fabric, a: &[Channel], b: &[Channel]) -> u64 {
    let topology = fabric.topology();
    let came_by =
        |worm: &[Channel], at: Vertex| worm.iter().find(|c| topology.link(c.link).to == at).copied();
    let begins = |channel: &&Channel| {
        let at = topology.link(channel.link).from;
        b.contains(channel) && (came_by(a, at).is_none() || came_by(a, at) != came_by(b, at))
    };
    a.iter().filter(begins).count() as u64
}

/// Steps until all members have all packets, simulated step by step: in each, every member sends
/// its next copy if it holds that packet; packet 1 to every child, then packet 2.
fn simulated_steps(plan: &Plan, packets: u32) -> u64 {
    let sends = plan.sends();
    let members: Vec<MemberId> = (0..plan.placement().member_count()).map(MemberId).collect();
    let mut held = vec![0_u32; members.len()];
    held[plan.root().index()] = packets;
    let mut next = vec![0_usize; members.len()];
    for step in 1.. {
        let mut arriving: Vec<MemberId> = Vec::new();
        for &member in &members {
            let worms = sends.of(member);
            let copy = next[member.index()];
            if copy < worms.len() * packets as usize && copy / worms.len() < held[member.index()] as usize {
                next[member.index()] += 1;
                arriving.extend(&plan.worms()[worms[copy % worms.len()] as usize].to);
            }
        }
        if arriving.is_empty() {
            return step - 1;
        }
        for to in arriving {
            held[to.index()] += 1;
        }
    }
    unreachable!("every plan ends")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn steps_agree_with_a_simulation(case in cases()) {
        let fabric = case.fabric();
        let Some(plan) = case.plan(&fabric) else { return Ok(()) };
        for packets in [1, 2, case.packets] {
            let steps = plan.analyse(&fabric, packets).unwrap().steps;
            prop_assert_eq!(steps, simulated_steps(&plan, packets), "{} packets", packets);
        }
    }

    #[test]
    fn metrics_agree_with_direct_counts(case in cases()) {
        let fabric = case.fabric();
        let Some(plan) = case.plan(&fabric) else { return Ok(()) };
        let analysis = plan.analyse(&fabric, case.packets).unwrap();
        let routes: Vec<Vec<Channel>> =
            plan.worms().iter().map(|worm| channels(&fabric, &plan, worm)).collect();
        let visits = routes.iter().map(Vec::len).sum::<usize>();
        let used: BTreeSet<LinkId> = routes.iter().flatten().map(|channel| channel.link).collect();
        prop_assert_eq!(analysis.link_visits, visits as u64);
        prop_assert_eq!(analysis.links_used as usize, used.len());
        let before = before(&plan, case.packets);
        let mut contending = 0;
        for b in 0..routes.len() {
            for a in (0..b).filter(|a| !before[b].contains(a)) {
                contending += shared_stretches(&fabric, &routes[a], &routes[b]);
            }
        }
        prop_assert_eq!(analysis.contending_pairs, contending);
        // Step by step, each holder in turn sends its next worm; a receiver holds the message in
        // the next step.
        let mut holders = BTreeMap::from([(plan.root(), (0, 0_usize))]);
        let (mut left, mut phases, mut depth, mut most_at_once) = (plan.worms().len(), 0, 0, 0);
        while left > 0 {
            phases += 1;
            let mut reached = Vec::new();
            let mut at_once = 0;
            for (&holder, (depth_here, sent)) in &mut holders {
                let Some(worm) = plan.worms().iter().filter(|worm| worm.from == holder).nth(*sent) else { continue };
                *sent += 1;
                at_once += u32::from(worm.kind != WormKind::Local);
                reached.extend(worm.to.iter().map(|&to| (to, (*depth_here + 1, 0))));
                left -= 1;
            }
            depth = reached.iter().map(|&(_, (depth, _))| depth).max().unwrap_or(0).max(depth);
            most_at_once = most_at_once.max(at_once);
            holders.extend(reached);
        }
        prop_assert_eq!(analysis.phases, phases);
        prop_assert_eq!(analysis.depth, depth);
        prop_assert_eq!(analysis.link_concurrency, most_at_once);
        let fan_out = holders.values().map(|&(_, sent)| sent).max().unwrap();
        prop_assert_eq!(analysis.max_fan_out as usize, fan_out);
        let breaks = |worm: &Worm| worm.from != plan.root() && worm.to.iter().any(|&to| to < worm.from);
        prop_assert_eq!(analysis.id_rule, !plan.worms().iter().any(breaks));
    }
}

#[test]
fn no_packets_and_too_many_are_refused() {
    let fabric = fabric("star:4", "auto");
    let group =
        treecast_plan::Group::new(treecast_plan::Placement::one_per_host(4), MemberId(0), vec![MemberId(1)]);
    let plan = treecast_plan::plan(
        &fabric,
        &group.unwrap(),
        &TreeScheme::Binomial.into(),
        &treecast_plan::PlanOptions::default(),
    );
    let error = plan.unwrap().analyse(&fabric, 0).unwrap_err();
    assert_eq!(error.to_string(), "a message has 1 to 1048576 packets, not 0");
}
