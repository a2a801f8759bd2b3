//! Sets of groups that a step fills and empties.

use std::ops::Deref;

use smallvec::SmallVec;
use treecast_proto::GroupId;

/// A set of groups in the order of their numbers. It keeps its memory, since most steps are about
/// one group or a few, and would allocate for it again and again.
#[derive(Debug, Default)]
pub(super) struct GroupSet(Vec<GroupId>);

impl GroupSet {
    pub fn insert(&mut self, group: GroupId) {
        if let Err(place) = self.0.binary_search(&group) {
            self.0.insert(place, group);
        }
    }

    /// Removes a group; returns whether it was there.
    pub fn remove(&mut self, group: GroupId) -> bool {
        let found = self.0.binary_search(&group);
        if let Ok(place) = found {
            self.0.remove(place);
        }
        found.is_ok()
    }

    pub fn contains(&self, group: GroupId) -> bool {
        self.0.binary_search(&group).is_ok()
    }

    /// Empties the set, and returns what was in it.
    pub fn take(&mut self) -> SmallVec<[GroupId; 16]> {
        self.0.drain(..).collect()
    }
}

impl Deref for GroupSet {
    type Target = [GroupId];

    fn deref(&self) -> &[GroupId] {
        &self.0
    }
}

impl Extend<GroupId> for GroupSet {
    fn extend<T: IntoIterator<Item = GroupId>>(&mut self, groups: T) {
        for group in groups {
            self.insert(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_each_group_once_and_in_order() {
        let mut groups = GroupSet::default();
        groups.extend([5, 2, 9, 2].map(GroupId));
        assert_eq!(*groups, [2, 5, 9].map(GroupId));
        assert!(groups.contains(GroupId(5)));
        assert!(groups.remove(GroupId(5)));
        assert!(!groups.remove(GroupId(5)));
        assert_eq!(*groups, [2, 9].map(GroupId));
        assert_eq!(groups.take()[..], [2, 9].map(GroupId));
        assert!(groups.is_empty());
    }
}
