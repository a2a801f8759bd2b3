//! The tree worm.

use treecast_fabric::{Fabric, Overlap, RouteFinder, Topology, UpDown};

use super::sender::Sender;
use crate::error::PlanError;
use crate::group::Group;
use crate::plan::{Worm, WormKind};

/// Sends one worm to all destinations on other hosts; those on the root's host are served inside
/// it.
#[derive(Debug)]
pub(super) struct TreeWormMaker<'a> {
    topology: &'a Topology,
    routing: &'a UpDown,
}

impl<'a> TreeWormMaker<'a> {
    pub(super) fn new(fabric: &'a Fabric) -> Result<Self, PlanError> {
        let Some(routing) = fabric.routing().up_down() else {
            return Err(PlanError::NeedsUpDown { scheme: "tree-worm", routing: fabric.routing().name() });
        };
        Ok(Self { topology: fabric.topology(), routing })
    }

    pub(super) fn worms(
        &self,
        finder: &mut Option<RouteFinder>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        let Self { topology, routing } = *self;
        let home = group.placement().host_of(group.root());
        let (near, mut far): (Vec<_>, Vec<_>) =
            group.destinations().iter().partition(|&&member| group.placement().host_of(member) == home);
        far.sort_unstable();
        let mut sender = Sender::new(finder, group);
        if !far.is_empty() {
            let hosts = group.placement().hosts_of(&far);
            let origin = topology.switch_of(home);
            let targets = UpDown::switches_of(topology, &hosts);
            if routing.ascent(topology, origin, &targets).is_none() {
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
}
