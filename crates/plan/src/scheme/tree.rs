//! Trees over unicasts, and the tree worm.

use treecast_fabric::{Fabric, Overlap, UpDown};

use super::Sender;
use crate::order::ordered_members;
use crate::shape::Shape;
use crate::{Group, MemberId, Order, PlanError, Worm, WormKind};

/// A shape placed on the members in an order.
pub(super) fn over_order(
    fabric: &Fabric,
    group: &Group,
    shape: &Shape,
    order: Order,
) -> Result<Vec<Worm>, PlanError> {
    let members = ordered_members(fabric, group, order)?;
    Ok(over_members(fabric, group, shape, &members))
}

pub(super) fn over_members(fabric: &Fabric, group: &Group, shape: &Shape, members: &[MemberId]) -> Vec<Worm> {
    let mut sender = Sender::new(fabric, group);
    for &(from, to) in &shape.0 {
        sender.send(members[from as usize], members[to as usize]);
    }
    sender.worms
}

/// One worm to all destinations on other hosts; those on the root's host are served inside it.
pub(super) fn tree_worm(fabric: &Fabric, group: &Group) -> Result<Vec<Worm>, PlanError> {
    let Some(routing) = fabric.routing().up_down() else {
        return Err(PlanError::NeedsUpDown { scheme: "tree-worm", routing: fabric.routing().name() });
    };
    let home = group.placement().host_of(group.root());
    let (near, mut far): (Vec<_>, Vec<_>) =
        group.destinations().iter().partition(|&&member| group.placement().host_of(member) == home);
    far.sort_unstable();
    let mut sender = Sender::new(fabric, group);
    if !far.is_empty() {
        let topology = fabric.topology();
        let hosts = group.placement().hosts_of(&far);
        let origin = topology.switch_of(home);
        if routing.ascent(topology, &UpDown::switches_of(topology, &hosts)).from(origin).is_none() {
            return Err(PlanError::NoCoveringSwitch { from: origin });
        }
        let route = if sender.finder.is_some() {
            routing.tree_route(topology, home, &hosts, Overlap::default())
        } else {
            None
        };
        sender.push(group.root(), WormKind::Tree, far, route.unwrap_or_default());
    }
    for member in near {
        sender.send(group.root(), member);
    }
    Ok(sender.worms)
}
