//! The groups whose applications have written or read.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use treecast_proto::GroupId;

use crate::sync::lock;

/// The groups of an engine whose applications have written or read since the engine looked last: so
/// a step does not look at each group.
#[derive(Debug)]
pub struct ProgressList {
    groups: Mutex<Vec<GroupId>>,
    is_empty: AtomicBool,
}

impl Default for ProgressList {
    fn default() -> Self {
        Self { groups: Mutex::default(), is_empty: AtomicBool::new(true) }
    }
}

impl ProgressList {
    /// Adds a group. [`crate::shared_group::SharedGroup`] adds its group once until it is taken.
    pub fn add(&self, group: GroupId) {
        let mut groups = lock(&self.groups);
        groups.push(group);
        self.is_empty.store(false, Ordering::Release);
    }

    /// Moves all groups to a set.
    pub fn take(&self, into: &mut impl Extend<GroupId>) {
        // After adding a group a thread wakes the engine or takes its lock, so the next step sees
        // it.
        if self.is_empty.load(Ordering::Acquire) {
            return;
        }
        let mut groups = lock(&self.groups);
        self.is_empty.store(true, Ordering::Release);
        into.extend(groups.drain(..));
    }
}
