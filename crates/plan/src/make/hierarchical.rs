//! Hierarchical trees: one member of each rack is reached from another rack, and forwards the
//! message inside.
//!
//! After Kielmann et al. (MPI's collective communication operations for clustered wide area
//! systems, 1999), for two levels, and Karonis et al. (Exploiting hierarchy in parallel computer
//! networks to optimize collective operation performance, 2000), for several, on the switches of a
//! fabric.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use treecast_fabric::{Fabric, RouteFinder, Topology};
use treecast_terms::MemberId;

use super::sender::Sender;
use super::tree;
use crate::error::PlanError;
use crate::group::Group;
use crate::hierarchy::{Cluster, Hierarchy};
use crate::plan::Worm;
use crate::scheme::TreeScheme;

/// Makes hierarchical trees on one fabric.
#[derive(Debug)]
pub(super) struct HierarchicalMaker<'a> {
    topology: &'a Topology,
    hierarchy: Hierarchy,
    across: TreeScheme,
    inside: TreeScheme,
    packets: u32,
}

/// The racks and clusters that have members.
struct Occupied {
    /// The members of each rack, its entry first: the root, or the member with the lowest id.
    members: BTreeMap<Cluster, Vec<MemberId>>,
    /// The racks and clusters in each cluster, in the order of their entries.
    parts: BTreeMap<Cluster, Vec<Cluster>>,
    /// The member through which each rack or cluster is reached.
    entries: BTreeMap<Cluster, MemberId>,
}

impl<'a> HierarchicalMaker<'a> {
    pub(super) fn new(fabric: &'a Fabric, across: TreeScheme, inside: TreeScheme, packets: u32) -> Self {
        Self { topology: fabric.topology(), hierarchy: Hierarchy::new(fabric), across, inside, packets }
    }

    /// The worms of a group: across the parts of a cluster before those inside a part, so that far
    /// members are reached first. A chain across racks continues from the last member of a rack
    /// instead, so that every member sends once.
    pub(super) fn worms(
        &self,
        finder: &mut Option<RouteFinder>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        let occupied = self.occupied(group);
        let is_chain = self.across == TreeScheme::Serial;
        let mut sender = Sender::new(finder, group);
        let mut last = None;
        let mut stack = vec![self.hierarchy.top()];
        while let Some(cluster) = stack.pop() {
            if let Some(parts) = occupied.parts.get(&cluster) {
                if !is_chain {
                    let entries: Vec<MemberId> = parts.iter().map(|part| occupied.entries[part]).collect();
                    let shape = tree::shape_of(self.across, entries.len() as u32, self.packets)?;
                    sender.send_along(&shape, &entries);
                }
                stack.extend(parts.iter().rev());
                continue;
            }
            let members = &occupied.members[&cluster];
            if let Some(last) = last.filter(|_| is_chain) {
                sender.send(last, members[0]);
            }
            sender.send_along(&tree::shape_of(self.inside, members.len() as u32, self.packets)?, members);
            last = members.last().copied();
        }
        Ok(sender.worms)
    }

    fn occupied(&self, group: &Group) -> Occupied {
        // The root comes first everywhere, so that parents have lower ids than their children
        // unless they are the root.
        let mut ordered = group.destinations().to_vec();
        ordered.sort_unstable();
        ordered.insert(0, group.root());
        let mut members: BTreeMap<Cluster, Vec<MemberId>> = BTreeMap::new();
        let mut parts: BTreeMap<Cluster, Vec<Cluster>> = BTreeMap::new();
        let mut entries: BTreeMap<Cluster, MemberId> = BTreeMap::new();
        for member in ordered {
            let mut at = self.topology.switch_of(group.placement().host_of(member)).0;
            members.entry(at).or_default().push(member);
            while let Entry::Vacant(vacant) = entries.entry(at) {
                vacant.insert(member);
                let parent = self.hierarchy.parent(at);
                if parent != at {
                    parts.entry(parent).or_default().push(at);
                }
                at = parent;
            }
        }
        Occupied { members, parts, entries }
    }
}
