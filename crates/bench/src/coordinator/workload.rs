//! How messages are sent, and how late members enter their calls.

use std::time::Duration;

use crate::workers::Position;

/// How messages are sent and received.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// One at a time, each when every member's application has the one before and waits again, as
    /// in benchmarks of MPI with a barrier.
    Latency,
    /// One at a time, each when every member's node has the one before: applications may be behind.
    Stored,
    /// Back to back.
    Throughput,
    /// One per period, to members that enter their call late.
    Skew(Skew),
    /// One per period, to hosts where one process enters its call late, or to one such host.
    Late(Late),
}

/// How late members enter their call, as in the experiment of Yu, Buntinas and Panda (OSU TR33,
/// 2003): each draws a delay uniformly from -max/2 to max/2, and a negative one means no delay.
/// That experiment counts max/3 as the average.
#[derive(Debug, Clone, PartialEq)]
pub struct Skew {
    /// The average delays: every configuration is measured with each of them.
    pub averages: Vec<Duration>,
    /// The seed of the random delays.
    pub seed: u64,
}

/// One process of a host is late to every broadcast, or of each host, as the leaders are in the
/// study of papers/smpib. The root is in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Late {
    /// The number of the process on its host.
    pub process: u32,
    /// The host; none: each.
    pub host: Option<u32>,
    /// How late it is: every configuration is measured with each of these delays.
    pub delays: Vec<Duration>,
}

impl Late {
    /// Whether the member in this position is late.
    pub(super) fn is_about(&self, Position { host, process }: Position) -> bool {
        process == self.process && self.host.is_none_or(|late| late as usize == host)
    }
}
