//! Dense numbers for the members of a group, so that tables over them are in proportion to the
//! group.

use treecast_terms::MemberId;

/// Dense numbers from 0 for some members: positions in a sorted list, or their ids if they are most
/// of all members.
#[derive(Debug, Clone)]
pub(crate) enum Numbering {
    Ids(usize),
    Positions(Vec<MemberId>),
}

/// Whether a group is so small a part of all members that a table over all would be out of
/// proportion.
pub(crate) fn is_sparse(members: usize, all: usize) -> bool {
    members.saturating_mul(16) < all
}

impl Numbering {
    /// Numbers for these members, each given once or more, among `count` in all.
    pub(crate) fn of(members: impl Iterator<Item = MemberId> + Clone, count: u32) -> Self {
        if !is_sparse(members.clone().count(), count as usize) {
            return Self::Ids(count as usize);
        }
        let mut positions: Vec<MemberId> = members.collect();
        positions.sort_unstable();
        positions.dedup();
        Self::Positions(positions)
    }

    /// An upper bound of the numbers, exclusive.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ids(count) => *count,
            Self::Positions(positions) => positions.len(),
        }
    }

    /// The number of a member; `None` if there is no such member, or it is not in the group.
    pub(crate) fn number(&self, member: MemberId) -> Option<usize> {
        match self {
            Self::Ids(count) => Some(member.index()).filter(|index| index < count),
            Self::Positions(positions) => positions.binary_search(&member).ok(),
        }
    }
}
