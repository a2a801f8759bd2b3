//! The control protocol between the coordinator and its workers: requests and responses, one line
//! of JSON each.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use treecast_node::{CongestionControl, EngineChoice};
use treecast_terms::Operation;

use crate::mode::{Mode, by_name};

/// The bound on every call of a group.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// A request to a worker. Times are on the worker's monotonic clock, in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Open a node, beside those of other engines.
    Open {
        bind: SocketAddr,
        #[serde(with = "by_name")]
        engine: EngineChoice,
        spin_us: Option<u64>,
        /// The text by which the processes of a host share a node; `None` if each has its own.
        share: Option<String>,
    },
    /// Create a group at the root, or join it.
    Group(GroupRequest),
    /// Send or receive messages.
    Run(RunRequest),
    /// At the root, in a run: send the next message.
    Next,
    /// Take part in the measurement of a limit of the machine.
    Limit(LimitRequest),
    /// Read the clock.
    Clock,
    /// Close a group.
    Close { group: u32 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupRequest {
    pub group: u32,
    pub members: Vec<SocketAddr>,
    /// The number of the member that gets the request.
    pub member: usize,
    pub token: String,
    pub mode: Mode,
    pub message_bytes: u64,
    pub mtu_bytes: u16,
    pub bytes_per_s_max: Option<u64>,
    pub tcp_congestion: Option<CongestionControl>,
    /// The fabric for which the tree is made.
    pub fabric: Option<GroupFabric>,
    /// The costs of the network, in Treecast's own format.
    pub network: Option<String>,
}

/// A fabric, and the names of the members' hosts on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupFabric {
    /// In Treecast's own format.
    pub toml: String,
    pub hosts: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    pub group: u32,
    #[serde(with = "by_name")]
    pub operation: Operation,
    pub bytes: usize,
    pub messages: u32,
    pub pace: Pace,
    /// How the workers meet before each message, with [`Pace::Barrier`].
    pub meeting: Meeting,
    /// Whether the root waits after each message until all members have it.
    pub flushes: bool,
    /// At the root: record when members are lost. At another member: be killed halfway through the
    /// last message.
    pub dies: bool,
}

/// How workers meet at a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Meeting {
    /// On one machine: each writes the number of the call that it enters into a
    /// [`Board`](crate::board::Board) in this file, which has room for this number of members, the
    /// root included. The barrier wakes no process while a message is being delivered.
    Board { path: PathBuf, members: u32 },
    /// The worker of the root gets a [`Request::Next`] for each message, when all others have sent
    /// a [`Response::Waits`].
    Coordinator,
}

/// When messages are sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// The next one when every member's application has the one before and waits again
    /// ([`Meeting`]).
    Barrier,
    /// The next one when every member's node has the one before.
    Stored,
    /// Back to back.
    Stream,
    /// One per period, from a start time on. The root is in time.
    Scheduled { first_ns: u64, period_ns: u64, delay: Delay },
}

/// How long after the start of a period a member enters its call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delay {
    /// Drawn uniformly from -`max_ns` / 2 to `max_ns` / 2; a negative draw means no delay.
    Random { max_ns: u64, seed: u64 },
    /// The same each time, at one process of one host, or of each; the others are in time.
    OfProcess { process: u32, host: Option<u32>, ns: u64 },
}

/// A worker's response.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Response {
    Opened {
        address: SocketAddr,
        /// The time to open the node.
        ns: u64,
    },
    /// The scheme that the node was given or has chosen by measurement, if there is one; at the
    /// root also the parent of each other member, if it knows its plan.
    Grouped {
        scheme: Option<String>,
        parents: Option<Vec<u32>>,
    },
    /// At a member, in a run: it enters the call for the message with this number.
    Waits {
        number: u32,
    },
    Ran(Measured),
    Limit(LimitResponse),
    /// The last response of a worker before it is killed.
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

/// The measurements of a worker; lists have one entry per message, or call of an all-reduce.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// At the root, when it began to send or called; at others, when the application had the
    /// message or the result.
    pub at_ns: Vec<u64>,
    /// At the root of a broadcast, how long until every member had the message; else the duration
    /// of the call.
    pub span_ns: Vec<u64>,
    /// At others, CPU time of the calling thread in the call; empty in a stream, where reading the
    /// clock takes longer than the call.
    pub call_cpu_ns: Vec<u64>,
    /// At others, when the kernel's packet path, or a node that several processes share, stored the
    /// message in its slots; empty with other nodes.
    pub stored_ns: Vec<u64>,
    /// CPU time of the whole process.
    pub cpu_ns: u64,
    /// Data packets that the host has sent, including retransmissions.
    pub packets: u64,
    pub retransmitted: u64,
    /// Messages that were not received, and messages that were received twice.
    pub lost: u64,
    pub duplicates: u64,
    /// At the root, the lost members, and when the root reported each.
    pub losses: Vec<(u32, u64)>,
}

/// How processes notice a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Notice {
    Futex,
    Yield,
    Udp,
}

/// A request to a process of the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitRequest {
    /// Notice this number of changes, and write down when: as the process with this number of all.
    /// Answered by `Ready`, and by `Done` after the last change.
    Notice { board: PathBuf, notice: Notice, number: u32, processes: u32, rounds: u32 },
    /// Accept one TCP connection, which is answered by `Ready`, and then wait for `Connect`.
    Relay,
    /// Pass on what comes over the connection. Answered by `Done` when all has come and gone.
    Connect { next: Option<SocketAddr> },
}

/// A response of such a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitResponse {
    /// Where its socket is, if it has one.
    Ready {
        address: Option<SocketAddr>,
    },
    Done {
        at_ns: u64,
    },
}

/// The next request; none at the end of the input.
pub(crate) fn read_request() -> io::Result<Option<Request>> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

pub(crate) fn write_response(response: &Response) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, response)?;
    output.write_all(b"\n")?;
    output.flush()
}
