//! How much memory the state of a group takes.

use crate::group::Group;
use crate::protocol::ENTRY_BYTES;

/// The parameters of the size of a group's state at a node. Payloads are not part of that: their
/// memory is the caller's.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StateSize {
    /// The number of slots; 0 before the member has its place.
    pub slots: u32,
    /// At the root, the number of members that its table has room for; 0 at another member.
    pub members: usize,
    /// At the root, the number of members whose nodes several processes share.
    pub shared: usize,
    /// The number of children that there is room for.
    pub children: usize,
}

impl StateSize {
    /// The memory of the state in bytes, at most: it does not depend on what happens in the group.
    /// Beside it there are short-lived messages: hellos that wait for an answer, parts of a table
    /// that is incomplete, and contributions to an all-reduce (docs/protocol.md has their bounds).
    pub const fn bytes(self) -> u64 {
        (ENTRY_BYTES + Group::heap_bytes(self)) as u64
    }
}
