//! Whether a plan fits a fabric.

use std::collections::BTreeSet;

use treecast_fabric::{Channel, Fabric, UpDown, Vertex};

use crate::{Placement, Plan, PlanError, Worm, WormKind};

impl Plan {
    /// Checks that the plan can be carried out on a fabric: its members live there, and every route leads from the sender
    /// over existing channels to just the receivers. Cost: the length of all routes.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`]; [`PlanError::Unsound`] naming the worm and what is wrong with it.
    pub fn check(&self, fabric: &Fabric) -> Result<(), PlanError> {
        self.check_placement(fabric)?;
        for (position, worm) in self.worms().iter().enumerate() {
            check_route(fabric, self.placement(), worm)
                .map_err(|what| PlanError::unsound(position, &what))?;
        }
        Ok(())
    }

    /// Checks that the plan's members live on a fabric.
    pub(crate) fn check_placement(&self, fabric: &Fabric) -> Result<(), PlanError> {
        let (placed, hosts) = (self.placement().host_count(), fabric.topology().host_count());
        if placed == hosts { Ok(()) } else { Err(PlanError::PlacementMismatch { placed, hosts }) }
    }
}

/// Whether a worm of this kind can have the route it has, or can do without.
fn check_route(fabric: &Fabric, placement: &Placement, worm: &Worm) -> Result<(), String> {
    let topology = fabric.topology();
    if worm.kind == WormKind::Tree {
        let source = placement.host_of(worm.from);
        let Some(routing) = fabric.routing().up_down() else {
            return Err(format!("a tree worm needs up*/down* routing, this is {}", fabric.routing().name()));
        };
        let targets = UpDown::switches_of(topology, &placement.hosts_of(&worm.to));
        if routing.ascent(topology, &targets).from(topology.switch_of(source)).is_none() {
            return Err(format!("no switch above {source} reaches every receiver by going down"));
        }
    }
    match (worm.kind, worm.route.is_empty()) {
        (WormKind::Local, false) => Err("a local worm crosses no links".into()),
        (WormKind::Path, true) => Err("a path worm needs its route".into()),
        (_, true) => Ok(()),
        (_, false) => check_connected(fabric, placement, worm),
    }
}

/// Whether a route begins with the sender's link, goes on from where it came to (a path from its last switch, a tree
/// from any), comes nowhere twice, and ends at just the receivers' hosts, on a path in their order. Only a tree worm may
/// come down to a switch that it passed on its way up.
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
    let tree = fabric.routing().up_down().filter(|_| worm.kind == WormKind::Tree);
    let injection = topology.injection(placement.host_of(worm.from));
    let mut channels = worm.route.iter();
    if channels.next().map(|channel| channel.link) != Some(injection) {
        return Err(format!("its route does not begin with its sender's link '{}'", name(injection)));
    }
    let mut at = topology.link(injection).to;
    // Vertices reached, and whether by going down a tree.
    let mut reached = BTreeSet::from([(at, false)]);
    let mut served = Vec::new();
    for channel in channels {
        let link = topology.link(channel.link);
        let down = tree.is_some_and(|routing| {
            link.from.switch().is_some()
                && !(link.to.switch().is_some() && routing.is_up(topology, channel.link))
        });
        let goes_on = if tree.is_some() {
            reached.contains(&(link.from, false)) || (down && reached.contains(&(link.from, true)))
        } else {
            link.from == at
        };
        if !goes_on {
            return Err(format!("nothing leads to '{}' on its route", name(channel.link)));
        }
        if !reached.insert((link.to, down)) {
            return Err(format!("its route comes to {} twice", link.to));
        }
        match link.to {
            Vertex::Host(host) => served.push(host),
            switch @ Vertex::Switch(_) => at = switch,
        }
    }
    let mut hosts: Vec<_> = worm.to.iter().map(|&to| placement.host_of(to)).collect();
    hosts.dedup();
    if worm.kind == WormKind::Tree {
        hosts = placement.hosts_of(&worm.to);
        served.sort_unstable();
    }
    if served != hosts {
        let list = |hosts: &[_]| crate::render::short_list(hosts.iter().map(ToString::to_string), 8);
        return Err(format!("its route serves {}, its receivers are on {}", list(&served), list(&hosts)));
    }
    Ok(())
}
