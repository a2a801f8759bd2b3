//! What workers are told, and what they answer: a line of JSON each.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use treecast_node::EngineChoice;

use crate::{Mode, by_name};

/// What a worker is told. Times are of the machine's monotonic clock, in nanoseconds, which all its processes share.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open a node, beside those of other engines.
    Open {
        bind: SocketAddr,
        #[serde(with = "by_name")]
        engine: EngineChoice,
        spin_us: u64,
    },
    /// Take part in a group.
    Group(GroupOrder),
    /// Send or receive messages.
    Run(RunOrder),
    /// Say what the clock says.
    Clock,
    /// Close a group.
    Close { group: u32 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupOrder {
    pub group: u32,
    pub members: Vec<SocketAddr>,
    pub mode: Mode,
    pub message_bytes: u64,
    pub mtu_bytes: u16,
    pub bytes_per_s_max: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunOrder {
    pub group: u32,
    pub bytes: usize,
    pub messages: u32,
    pub pace: Pace,
    /// This worker is to die when it has half of the last message.
    pub dies: bool,
}

/// When messages are sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// The next one when every member has the one before.
    OneByOne,
    /// All at once.
    Stream,
    /// One a period, from a time on. Every member but the root comes late by a random time, or not at all: a number from
    /// -`late_max_ns` / 2 to `late_max_ns` / 2 is drawn, and below 0 it comes at once.
    Scheduled { first_ns: u64, period_ns: u64, late_max_ns: u64, seed: u64 },
}

/// What a worker answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Opened {
        address: SocketAddr,
    },
    /// With the scheme, if the node was given or has measured one.
    Grouped {
        scheme: Option<String>,
    },
    Ran(Measured),
    /// This is the last that is heard of it.
    Dying {
        at_ns: u64,
    },
    Clock {
        now_ns: u64,
    },
    Closed {
        lost: Vec<String>,
    },
    Failed {
        why: String,
    },
}

/// What a worker has measured, a number a message.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// At the root, when it began to send; at others, when the message was in their memory.
    pub at_ns: Vec<u64>,
    /// At the root, how long until every member had it; at others, how long they were in the call.
    pub span_ns: Vec<u64>,
    /// At others, CPU time of the thread in that call; empty in a stream, where asking for it takes longer than the call.
    pub call_cpu_ns: Vec<u64>,
    /// At others, when the kernel's packet path had the message in their memory; empty where it has no part in it.
    pub stored_ns: Vec<u64>,
    /// CPU time of the whole process.
    pub cpu_ns: u64,
    /// Data packets sent, and those of them that had been sent before.
    pub packets: u64,
    pub repeated: u64,
    /// Messages that did not come in time, and those that came twice.
    pub lost: u64,
    pub doubled: u64,
    /// At the root, which members were lost, and when it knew.
    pub losses: Vec<(u32, u64)>,
}
