//! Whom packets wait for: each host of a copy looks again and again, and the host that copies puts
//! the looks together.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use treecast_node::Group;

/// How often a host looks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The looks that count: those of this last time.
const SPAN: Duration = Duration::from_secs(3);

/// The looks of a member, and how often its packets waited for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waits {
    pub looks: u32,
    /// The children that it has in the tree.
    pub children: u32,
    /// The looks at which its packets waited for this member: for itself, or for a child.
    pub for_members: BTreeMap<u32, u32>,
    /// The looks at which this member's writing waited for its disk.
    pub for_disk: u32,
}

impl Waits {
    /// Looks once.
    pub fn look(&mut self, group: &Group) {
        self.looks += 1;
        self.children = group.child_count() as u32;
        for member in group.slow_members() {
            *self.for_members.entry(member).or_default() += 1;
        }
    }

    /// Whether the member's writing mostly waited for its disk when packets waited for the member.
    pub fn is_disk(&self, member: u32) -> bool {
        self.for_disk * 2 > self.for_members.get(&member).copied().unwrap_or_default()
    }

    /// The share of looks, from 0 to 1, at which it waited for a member.
    pub fn share(&self, member: u32) -> f64 {
        let waited = self.for_members.get(&member).copied().unwrap_or_default();
        f64::from(waited) / f64::from(self.looks.max(1))
    }
}

/// The looks of a member during the last seconds.
#[derive(Debug, Default)]
pub(crate) struct RecentWaits(VecDeque<(Instant, Waits)>);

impl RecentWaits {
    pub fn add(&mut self, now: Instant, waits: Waits) {
        if waits.looks > 0 {
            self.0.push_back((now, waits));
        }
        self.0.retain(|(at, _)| now.duration_since(*at) < SPAN);
    }

    /// Forgets what was in another tree.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn sum(&self) -> Waits {
        let mut sum = Waits::default();
        for (_, waits) in &self.0 {
            sum.looks += waits.looks;
            sum.children = waits.children;
            sum.for_disk += waits.for_disk;
            for (&member, &looks) in &waits.for_members {
                *sum.for_members.entry(member).or_default() += looks;
            }
        }
        sum
    }
}
