//! Changes of the tree: members that are lost, moved or relieved, and the epoch that follows.

use treecast_wire::MemberId;

use super::{Loss, MemberTable};
use crate::{MemberLoss, Nanoseconds};

impl MemberTable {
    /// Makes a member a leaf: its children become the root's.
    pub fn relieve(&mut self, member: MemberId) {
        if member == self.root || !self.has(member) {
            return;
        }
        for child in self.record(member).children.clone() {
            self.move_below_root(child);
        }
    }

    /// A member with a parent that is alive becomes a child of the root.
    ///
    /// Its parent's parent will not do: it may learn of the change after the parent, and take the
    /// acknowledgments of the parent alone for those of the subtree that it had. The root makes the
    /// change, and frees nothing that its new child may lack.
    pub(super) fn move_below_root(&mut self, member: MemberId) {
        let root = self.root;
        let Some(parent) = self.record(member).parent.filter(|&parent| parent != root) else { return };
        self.record_mut(parent).children.retain(|&child| child != member);
        self.record_mut(root).children.push(member);
        self.record_mut(member).parent = Some(root);
        self.has_changed = true;
    }

    /// Removes a member; its children are adopted by its parent, in its place.
    pub(super) fn remove(&mut self, member: MemberId, loss: MemberLoss) {
        self.losses.push(Loss { member, reader: None, why: loss });
        let orphans = std::mem::take(&mut self.record_mut(member).children);
        let parent = self.record(member).parent.expect("the root is never removed");
        for &orphan in &orphans {
            self.record_mut(orphan).parent = Some(parent);
        }
        let siblings = &mut self.record_mut(parent).children;
        let place = siblings.iter().position(|&child| child == member).expect("a parent lists its children");
        siblings.splice(place..=place, orphans);
        self.present -= 1;
        let epoch = self.epoch;
        let record = self.record_mut(member);
        record.loss = Some(loss);
        record.parent = None;
        record.suspicion = None;
        let was_unacked = record.acked_epoch != epoch;
        self.unacked -= usize::from(was_unacked);
        self.schedule(member);
        self.has_changed = true;
    }

    /// The tree has changed: there is a new epoch.
    pub(super) fn change_tree(&mut self, now: Nanoseconds) {
        self.has_changed = false;
        self.epoch += 1;
        for record in &mut self.records {
            record.announce(now);
        }
        self.announce_tree();
    }

    /// All members are to be sent their tables.
    pub(super) fn announce_tree(&mut self) {
        let (root, epoch) = (self.root, self.epoch);
        self.record_mut(root).acked_epoch = epoch;
        let others: Vec<MemberId> = self.others().collect();
        self.unacked = others.len();
        self.tasks = others.iter().filter_map(|&member| Some((self.task_time(member)?, member))).collect();
        self.deadlines = others.iter().filter_map(|&member| Some((self.deadline(member)?, member))).collect();
    }
}
