//! What is counted in a run.

use treecast_terms::Picoseconds;

use super::policy::Average;

/// What is counted in a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// Iterations that are over, with those before the measurement.
    pub iterations: u32,
    /// What those measured took in all, and what the messages that ended them take by themselves.
    pub spans: Picoseconds,
    pub messages: Picoseconds,
    pub leader_wait: Average,
    pub other_wait: Average,
    pub attaches: u64,
    pub detaches: u64,
    pub lost: u64,
    /// Datagrams that found no buffer.
    pub dropped: u64,
    /// Datagrams that came to somebody who had them already.
    pub duplicates: u64,
    pub retransmissions: u64,
    pub acknowledgments: u64,
}
