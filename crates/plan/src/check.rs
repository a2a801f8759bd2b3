//! Checks that a plan fits a fabric.

use std::collections::BTreeSet;

use treecast_fabric::{Channel, Fabric, Link, Overlap, Routing, UpDown, Vertex};

use crate::error::PlanError;
use crate::group::Placement;
use crate::plan::{Plan, Worm, WormKind};

impl Plan {
    /// Checks that the plan can be carried out on a fabric: its members run there, and every route
    /// leads from the sender over existing channels to exactly the receivers. Cost: the length of
    /// all routes.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`]; [`PlanError::Unsound`] naming the worm and what is wrong
    /// with it.
    pub fn check(&self, fabric: &Fabric) -> Result<(), PlanError> {
        self.placement().check_fabric(fabric)?;
        for (position, worm) in self.worms().iter().enumerate() {
            check_route(fabric, self.placement(), worm)
                .map_err(|what| PlanError::unsound(position, &what))?;
        }
        Ok(())
    }
}

/// Checks that a worm of this kind may have its route, or may have none.
fn check_route(fabric: &Fabric, placement: &Placement, worm: &Worm) -> Result<(), String> {
    match (worm.kind, worm.route.is_empty()) {
        (WormKind::Tree, _) => check_tree(fabric, placement, worm),
        (WormKind::Local, false) => Err("a local worm crosses no links".into()),
        (WormKind::Path, true) => Err("a path worm needs its route".into()),
        (WormKind::Path, false)
            if !matches!(fabric.routing(), Routing::UpDown(_) | Routing::DimensionOrder(_)) =>
        {
            let routing = fabric.routing().name();
            Err(format!("a path worm needs up*/down* or dimension-order routing, this is {routing}"))
        }
        (_, true) => Ok(()),
        (_, false) => check_connected(fabric, placement, worm),
    }
}

/// Checks that some switch reaches all receivers. A route may be given only where the fabric
/// determines it, and must be that one.
fn check_tree(fabric: &Fabric, placement: &Placement, worm: &Worm) -> Result<(), String> {
    let topology = fabric.topology();
    let Some(routing) = fabric.routing().up_down() else {
        return Err(format!("a tree worm needs up*/down* routing, this is {}", fabric.routing().name()));
    };
    let source = placement.host_of(worm.from);
    let hosts = placement.hosts_of(&worm.to);
    let targets = UpDown::switches_of(topology, &hosts);
    let origin = topology.switch_of(source);
    if routing.ascent(topology, origin, &targets).is_none() {
        return Err(format!("no switch above {source} reaches every receiver by going down"));
    }
    if worm.route.is_empty() {
        return Ok(());
    }
    if !fabric.routing().is_deterministic(topology) {
        return Err("this fabric routes tree worms adaptively: its route must be empty".into());
    }
    if routing.tree_route(topology, source, &hosts, Overlap::default()).as_ref() != Some(&worm.route) {
        return Err("its route is not the one that a tree worm takes on this fabric".into());
    }
    Ok(())
}

/// Checks that a route of existing channels begins with the sender's link, is connected, visits no
/// vertex twice, does not turn up after going down on up*/down* networks, and ends at exactly the
/// receivers' hosts, in their order.
fn check_connected(fabric: &Fabric, placement: &Placement, worm: &Worm) -> Result<(), String> {
    let topology = fabric.topology();
    let channels = fabric.routing().virtual_channel_count();
    let exists =
        |channel: &&Channel| channel.link.0 < topology.link_count() && channel.virtual_channel < channels;
    if let Some(unknown) = worm.route.iter().find(|channel| !exists(channel)) {
        let Channel { link, virtual_channel } = unknown;
        return Err(format!("the fabric has no virtual channel {virtual_channel} of {link}"));
    }
    let name = |link| topology.link_name(link);
    let injection = topology.injection(placement.host_of(worm.from));
    let mut links = worm.route.iter().map(|channel| channel.link);
    if links.next() != Some(injection) {
        return Err(format!("its route does not begin with its sender's link '{}'", name(injection)));
    }
    let mut at = topology.link(injection).to;
    let mut reached = BTreeSet::from([at]);
    let mut gone_down = false;
    let mut served = Vec::new();
    for link in links {
        let Link { from, to, .. } = topology.link(link);
        if from != at {
            return Err(format!("its route is not connected at '{}'", name(link)));
        }
        if !reached.insert(to) {
            return Err(format!("its route visits {to} twice"));
        }
        match to {
            Vertex::Host(host) => served.push(host),
            Vertex::Switch(_) => at = to,
        }
        if let (Some(routing), Vertex::Switch(_)) = (fabric.routing().up_down(), to) {
            let up = routing.is_up(topology, link);
            if up && gone_down {
                return Err(format!("its route goes up by '{}' after it has gone down", name(link)));
            }
            gone_down |= !up;
        }
    }
    let mut hosts: Vec<_> = worm.to.iter().map(|&to| placement.host_of(to)).collect();
    hosts.dedup();
    if served != hosts {
        let list = |hosts: &[_]| crate::render::short_list(hosts.iter().map(ToString::to_string), 8);
        return Err(format!("its route serves {}, its receivers are on {}", list(&served), list(&hosts)));
    }
    let last = worm.route[worm.route.len() - 1].link;
    if topology.link(last).to.host().is_none() {
        return Err(format!("its route ends at a switch, with '{}'", name(last)));
    }
    Ok(())
}
