//! Trees over unicasts, and the tree worm.

use treecast_fabric::{Fabric, Overlap, RouteFinder, Topology, UpDown};

use super::{PlanOptions, Scheme, Sender};
use crate::order::MemberOrder;
use crate::shape::{self, Shape};
use crate::{Group, MemberId, PlanError, Worm, WormKind};

/// Places the shape of a scheme on the members in an order.
#[derive(Debug)]
pub(crate) struct TreeMaker<'a> {
    order: MemberOrder<'a>,
    scheme: Scheme,
    packets: u32,
    /// The last shape, and for how many members it is: groups are often of one size.
    shape: (u32, Shape),
}

impl<'a> TreeMaker<'a> {
    pub(super) fn new(fabric: &'a Fabric, scheme: &Scheme, options: &PlanOptions) -> Result<Self, PlanError> {
        let order = MemberOrder::new(fabric, options.order.unwrap_or_default())?;
        Ok(Self { order, scheme: scheme.clone(), packets: options.packets, shape: (1, Shape(Vec::new())) })
    }

    pub(super) fn worms(&mut self, finder: &mut Option<RouteFinder>, group: &Group) -> Vec<Worm> {
        let size = group.size();
        if self.shape.0 != size {
            self.shape = (size, self.shape_of(size));
        }
        over_members(finder, group, &self.shape.1, &self.order.members(group))
    }

    fn shape_of(&self, size: u32) -> Shape {
        match &self.scheme {
            Scheme::Separate => shape::separate(size),
            Scheme::Serial => shape::serial(size),
            Scheme::Binary => shape::binary(size),
            Scheme::Binomial => shape::halving(size),
            Scheme::KBinomial { k } => {
                shape::k_binomial(size, k.unwrap_or_else(|| shape::best_k(size, self.packets)))
            }
            Scheme::Postal { lambda: Some(lambda) } => shape::postal(size, *lambda),
            other => unreachable!("{} is no tree over an order", other.name()),
        }
    }
}

pub(super) fn over_members(
    finder: &mut Option<RouteFinder>,
    group: &Group,
    shape: &Shape,
    members: &[MemberId],
) -> Vec<Worm> {
    let mut sender = Sender::new(finder, group);
    for &(from, to) in &shape.0 {
        sender.send(members[from as usize], members[to as usize]);
    }
    sender.worms
}

/// Sends one worm to all destinations on other hosts; those on the root's host are served inside it.
#[derive(Debug)]
pub(crate) struct TreeWormMaker<'a> {
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
