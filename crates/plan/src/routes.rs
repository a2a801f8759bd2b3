//! The routes of worms; representative ones where the fabric routes adaptively.

use treecast_fabric::{Channel, Fabric, Overlap, RouteFinder};

use crate::error::PlanError;
use crate::plan::{Plan, Worm, WormKind};

impl Plan {
    /// The channels that each worm crosses, in the order of [`Plan::worms`]; representative ones,
    /// with the lowest-numbered link at each step, where the fabric routes adaptively.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`] where the plan belongs to another fabric.
    pub fn routes(&self, fabric: &Fabric) -> Result<Vec<Vec<Channel>>, PlanError> {
        self.placement().check_fabric(fabric)?;
        let mut routes = Routes::new(self, fabric);
        Ok(self.worms().iter().map(|worm| routes.of(worm)).collect())
    }
}

/// The routes of a plan's worms on a fabric. Consecutive requests for worms to one switch share a
/// search.
pub(crate) struct Routes<'a> {
    plan: &'a Plan,
    fabric: &'a Fabric,
    finder: RouteFinder<'a>,
}

impl<'a> Routes<'a> {
    pub(crate) fn new(plan: &'a Plan, fabric: &'a Fabric) -> Self {
        Self { plan, fabric, finder: RouteFinder::new(fabric.topology(), fabric.routing()) }
    }

    /// A worm's channels: its own, or representative ones, those with the lowest-numbered link at
    /// each step.
    pub(crate) fn of(&mut self, worm: &Worm) -> Vec<Channel> {
        if worm.kind == WormKind::Local || !worm.route.is_empty() {
            return worm.route.clone();
        }
        let placement = self.plan.placement();
        let source = placement.host_of(worm.from);
        match self.fabric.routing().up_down() {
            Some(routing) if worm.kind == WormKind::Tree => {
                let hosts = placement.hosts_of(&worm.to);
                routing
                    .tree_route(self.fabric.topology(), source, &hosts, Overlap::default())
                    .unwrap_or_default()
            }
            _ => self.finder.route(source, placement.host_of(worm.to[0])),
        }
    }
}
