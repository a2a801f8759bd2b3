//! The trees that the groups of a task go down.

use std::collections::BTreeMap;

use treecast_plan::{Group, MemberId, PlanOptions, Planner, Scheme, WormKind};

use super::parameters::Parameters;
use super::policies::Membership;
use crate::task::{ModelError, Task};

/// The tree of one group over the nodes of a task: the node of the root of the task first, then
/// those of its destinations in the given order.
#[derive(Debug)]
pub(super) struct Tree {
    pub root: usize,
    /// In the order in which they are served.
    pub children: Vec<Vec<usize>>,
    /// The number of members below each node that are named in the packets it receives; the NICs on
    /// the way know the others.
    pub names: Vec<u32>,
    pub leaves: u32,
}

/// The members of a task, in the order of its nodes.
pub(super) fn members(task: &Task) -> Vec<MemberId> {
    std::iter::once(task.group.root()).chain(task.group.destinations().iter().copied()).collect()
}

/// The trees of the requested number of groups. The first group is the task's. The root of each
/// further group is the next member, and its destinations are all other members, in cyclic order
/// from there on. The named members are the last ones of the task. Outsiders have no children.
pub(super) fn trees(
    parameters: &Parameters,
    task: &Task,
    scheme: &Scheme,
    packets: u32,
) -> Result<Vec<Tree>, ModelError> {
    let members = members(task);
    let count = members.len() - parameters.outsiders();
    if parameters.groups as usize > count {
        return Err(ModelError::Unsupported(format!(
            "each of {} groups has a root of its own, and there are {count} members: set groups to at most {count}",
            parameters.groups
        )));
    }
    let positions: BTreeMap<MemberId, usize> = members.iter().copied().zip(0..).collect();
    let mut planner = Planner::new(task.fabric, scheme, &PlanOptions { order: task.order, packets })?;
    let named = match parameters.membership {
        Membership::Posted => 0,
        Membership::Named => count,
        Membership::Mixed => parameters.named_destinations as usize,
    };
    let tree = |index: u32| {
        let root = index as usize;
        let others = (1..count).map(|step| members[(root + step) % count]).collect();
        let plan = planner.plan(&Group::new(task.group.placement().clone(), members[root], others)?)?;
        let mut children = vec![Vec::new(); count];
        let mut names = vec![0_u32; count];
        for worm in plan.worms() {
            let (WormKind::Unicast, &[to]) = (worm.kind, &worm.to[..]) else {
                return Err(ModelError::Unsupported(format!(
                    "Myrinet switches do not copy packets: scheme {} is not a tree of unicasts",
                    scheme.name()
                )));
            };
            children[positions[&worm.from]].push(positions[&to]);
        }
        for worm in plan.worms().iter().rev() {
            let to = positions[&worm.to[0]];
            names[positions[&worm.from]] += names[to] + u32::from(to + named >= count);
        }
        let leaves = children.iter().filter(|children| children.is_empty()).count() as u32;
        children.resize(members.len(), Vec::new());
        names.resize(members.len(), 0);
        Ok(Tree { root, children, names, leaves })
    };
    (0..parameters.groups).map(tree).collect()
}

impl Tree {
    /// The maximum number of names in a packet.
    pub fn names_max(&self) -> u64 {
        self.children[self.root].iter().map(|&child| u64::from(self.names[child])).max().unwrap_or(0)
    }
}
