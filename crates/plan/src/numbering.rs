//! Small numbers for the members that take part, so that tables over them are in proportion to the group.

use crate::MemberId;

/// Numbers from 0 for some of the members there are: places in a sorted list, or where they are many of all, their ids.
#[derive(Debug, Clone)]
pub(crate) enum Numbering {
    Ids(usize),
    Places(Vec<MemberId>),
}

/// Whether so few of all members take part that a table over all is too large for them.
pub(crate) fn is_sparse(taking_part: usize, all: usize) -> bool {
    taking_part.saturating_mul(16) < all
}

impl Numbering {
    /// Numbers for these members, each given once or more, among `count` in all.
    pub(crate) fn of(members: impl Iterator<Item = MemberId> + Clone, count: u32) -> Self {
        if !is_sparse(members.clone().count(), count as usize) {
            return Self::Ids(count as usize);
        }
        let mut places: Vec<MemberId> = members.collect();
        places.sort_unstable();
        places.dedup();
        Self::Places(places)
    }

    /// Numbers are below that.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ids(count) => *count,
            Self::Places(places) => places.len(),
        }
    }

    /// The number of a member; `None` where there is no such member, or it takes no part and so has none.
    pub(crate) fn number(&self, member: MemberId) -> Option<usize> {
        match self {
            Self::Ids(count) => Some(member.index()).filter(|index| index < count),
            Self::Places(places) => places.binary_search(&member).ok(),
        }
    }
}
