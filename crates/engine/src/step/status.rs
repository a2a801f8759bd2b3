//! The state of an engine's groups, for people to look at.

use treecast_proto::GroupId;
use treecast_shm::clock;

use super::core::Core;
use crate::status::GroupDocument;

impl Core {
    /// Its groups, or those of one user of a daemon.
    pub fn status(&self, only_of: Option<u32>) -> Vec<GroupDocument> {
        let groups = self.groups.iter().filter_map(|(&group, entry)| {
            let owner = entry.shared_group.clients.as_ref().map(|clients| clients.owner().0);
            let is_shown = only_of.is_none() || owner == only_of;
            is_shown.then(|| self.group_status(group, owner))?
        });
        groups.collect()
    }

    fn group_status(&self, group: GroupId, owner: Option<u32>) -> Option<GroupDocument> {
        let mut status = self.protocol.status(group)?;
        let in_kernel = status.place.as_mut().is_some_and(|place| self.fast_path.update(group, place));
        let counters = self.fast_path.counters(group);
        Some(GroupDocument::new(clock::now(), group, owner, &status, in_kernel, counters))
    }
}
