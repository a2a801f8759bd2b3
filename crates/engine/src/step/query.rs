//! What an application asks an engine about its groups; a client of a daemon sends the same
//! questions.

use serde::{Deserialize, Serialize};
use treecast_proto::{GroupId, MemberId};

/// A question to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// This member's children. Answered by [`Answer::Members`].
    Children {
        /// The group.
        group: u32,
    },
    /// The children that multicast reaches. Answered by [`Answer::Members`].
    ReachedChildren {
        /// The group.
        group: u32,
    },
    /// The members that the packets in this node's slots wait for. Answered by [`Answer::Members`].
    SlowMembers {
        /// The group.
        group: u32,
    },
    /// At the root, the members without a place in the tree. Answered by [`Answer::Members`].
    Unplaced {
        /// The group.
        group: u32,
    },
    /// At the root, the processes of shared nodes that have not come. Answered by
    /// [`Answer::Readers`].
    AwaitedReaders {
        /// The group.
        group: u32,
    },
    /// Answered by [`Answer::Numbers`], in the order of `GroupCounters`; none for an unknown group.
    Counters {
        /// The group.
        group: u32,
    },
    /// Answered by [`Answer::Numbers`], in the order of `KernelCounters`; none for a group without
    /// the kernel's packet path.
    KernelCounters {
        /// The group.
        group: u32,
    },
    /// Answered by [`Answer::Numbers`], in the order of `StrayCounters`.
    Strays,
}

/// The answer to a question.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The number of each.
    Members(Vec<u32>),
    /// The host and the place of each.
    Readers(Vec<(u32, u32)>),
    /// Counters, in their order.
    Numbers(Option<Vec<u64>>),
}

impl Query {
    /// The group that the question is about; none: the node.
    pub const fn group(self) -> Option<GroupId> {
        match self {
            Self::Children { group }
            | Self::ReachedChildren { group }
            | Self::SlowMembers { group }
            | Self::Unplaced { group }
            | Self::AwaitedReaders { group }
            | Self::Counters { group }
            | Self::KernelCounters { group } => Some(GroupId(group)),
            Self::Strays => None,
        }
    }

    /// The answer for an unknown group.
    pub const fn empty_answer(self) -> Answer {
        match self {
            Self::Children { .. }
            | Self::ReachedChildren { .. }
            | Self::SlowMembers { .. }
            | Self::Unplaced { .. } => Answer::Members(Vec::new()),
            Self::AwaitedReaders { .. } => Answer::Readers(Vec::new()),
            Self::Counters { .. } | Self::KernelCounters { .. } | Self::Strays => Answer::Numbers(None),
        }
    }
}

impl Answer {
    /// These members.
    pub fn members(members: impl IntoIterator<Item = MemberId>) -> Self {
        Self::Members(members.into_iter().map(|member| member.0).collect())
    }

    /// These processes: the host and the place of each.
    pub fn readers(readers: impl IntoIterator<Item = (MemberId, u32)>) -> Self {
        Self::Readers(readers.into_iter().map(|(host, place)| (host.0, place)).collect())
    }

    /// The processes of [`Answer::Readers`]; none of another answer.
    pub fn into_readers(self) -> Vec<(MemberId, u32)> {
        match self {
            Self::Readers(readers) => {
                readers.into_iter().map(|(host, place)| (MemberId(host), place)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The members of [`Answer::Members`]; none of another answer.
    pub fn into_members(self) -> Vec<MemberId> {
        match self {
            Self::Members(members) => members.into_iter().map(MemberId).collect(),
            _ => Vec::new(),
        }
    }

    /// The counters of [`Answer::Numbers`].
    pub fn into_numbers(self) -> Option<Vec<u64>> {
        match self {
            Self::Numbers(numbers) => numbers,
            _ => None,
        }
    }
}
