//! The outcome of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::HostId;
use treecast_plan::MemberId;
use treecast_terms::Cycles;

use crate::deadlock::Deadlock;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every destination has the message.
    Complete,
    /// The offered load is more than the fabric sustains.
    Saturated,
    /// Worms wait for one another in a cycle.
    Deadlocked,
    /// The run reached its last cycle before every destination had the message.
    Incomplete,
}

impl Status {
    /// The exit status of a command whose run ended so.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Saturated => 3,
            Self::Deadlocked => 4,
            Self::Incomplete => 5,
        }
    }

    /// Its name: `complete`, `saturated`, `deadlocked`, `incomplete`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Saturated => "saturated",
            Self::Deadlocked => "deadlocked",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The delivery of the whole message to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The destination.
    pub member: MemberId,
    /// Its host.
    pub host: HostId,
    /// The cycle in which its process has the message.
    pub cycle: Cycles,
}

/// The outcome of a run of one multicast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// From the start of the send at the root to the last delivery; `None` unless complete.
    pub latency: Option<Cycles>,
    /// All deliveries, in the order of members.
    pub deliveries: Vec<Delivery>,
    /// The number of injected worms. Local worms are not injected.
    pub worms: u32,
    /// CPU cycles that the processes of each host spent on sending and receiving, by host.
    pub cpu_busy: Vec<Cycles>,
    /// The deadlock, if the run ended in one.
    pub deadlock: Option<Deadlock>,
}
