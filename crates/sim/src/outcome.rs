//! What a run gives.

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
    /// More was sent than the fabric carries.
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

/// A destination has the whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Who.
    pub member: MemberId,
    /// On which host.
    pub host: HostId,
    /// When its process has it.
    pub cycle: Cycles,
}

/// What a run gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// From the start of the send at the root until the last destination has the message; `None` unless complete.
    pub latency: Option<Cycles>,
    /// Who has received, by member.
    pub deliveries: Vec<Delivery>,
    /// How many worms were put into the fabric; local ones are not.
    pub worms: u32,
    /// How many cycles the processes of each host spent on sending and receiving, by host.
    pub cpu_busy: Vec<Cycles>,
    /// What waits for what, where the run ended deadlocked.
    pub deadlock: Option<Deadlock>,
}
