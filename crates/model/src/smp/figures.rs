//! The counters of a run.

use treecast_terms::Picoseconds;

use super::policy::Average;

/// The counters of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// Completed iterations, including the warm-up.
    pub iterations: u32,
    /// The total time of the measured iterations, and of the messages that ended them.
    pub spans: Picoseconds,
    pub messages: Picoseconds,
    pub leader_wait: Average,
    pub other_wait: Average,
    pub attaches: u64,
    pub detaches: u64,
    pub lost: u64,
    /// Datagrams that found no buffer.
    pub dropped: u64,
    /// Datagrams that arrived at a process that had them already.
    pub duplicates: u64,
    pub retransmissions: u64,
    pub acknowledgments: u64,
}
