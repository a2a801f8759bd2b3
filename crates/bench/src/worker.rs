//! One host of a benchmark: does what it is told, line by line, and says what it has measured.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};
use treecast_node::{Group, GroupId, GroupSettings, Node, NodeError, NodeSettings};

use crate::{Engine, Mode};

/// What a worker is told. Times are of the machine's monotonic clock, in nanoseconds, which all its processes share.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open a node.
    Open { bind: SocketAddr, engine: Engine },
    /// Take part in a group.
    Group(GroupOrder),
    /// Send or receive messages.
    Run(RunOrder),
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
    Opened { address: SocketAddr },
    Grouped,
    Ran(Measured),
    Closed { lost: Vec<String> },
    Failed { why: String },
}

/// What a worker has measured, a number a message.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// At the root, when it began to send; at others, when the message was in their memory.
    pub at_ns: Vec<u64>,
    /// At the root, how long until every member had it; at others, how long they were in the call.
    pub span_ns: Vec<u64>,
    /// CPU time of the whole process.
    pub cpu_ns: u64,
    /// Data packets sent, and those of them that had been sent before.
    pub packets: u64,
    pub repeated: u64,
    /// Messages that did not come in time, and those that came twice.
    pub lost: u64,
    pub doubled: u64,
}

/// No message takes longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Does what the lines of standard input say, until they end.
///
/// # Errors
/// Those of standard input and output. What goes wrong with nodes is answered.
pub fn work() -> io::Result<()> {
    let mut worker = Worker::default();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(order) => worker.obey(order).unwrap_or_else(|error| Answer::Failed { why: error.to_string() }),
            Err(error) => Answer::Failed { why: error.to_string() },
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Worker {
    node: Option<Node>,
    groups: BTreeMap<u32, Joined>,
}

#[derive(Debug)]
struct Joined {
    group: Group,
    is_root: bool,
}

impl Worker {
    fn obey(&mut self, order: Order) -> Result<Answer, NodeError> {
        match order {
            Order::Open { bind, engine: Engine::User } => {
                let node = Node::open(&NodeSettings { bind, ..NodeSettings::default() })?;
                let address = node.address();
                self.node = Some(node);
                Ok(Answer::Opened { address })
            }
            Order::Group(order) => {
                let node = self.node.as_ref().ok_or(NodeError::NodeClosed)?;
                let (number, joined) = enter(node, order)?;
                self.groups.insert(number, joined);
                Ok(Answer::Grouped)
            }
            Order::Run(order) => {
                let joined = self.groups.get(&order.group).ok_or(NodeError::NodeClosed)?;
                let (cpu, counted) = (process_cpu_ns(), joined.group.counters());
                let mut measured = if joined.is_root {
                    send(&joined.group, &order)
                } else {
                    receive(&joined.group, &order)
                }?;
                measured.cpu_ns = process_cpu_ns() - cpu;
                let counters = joined.group.counters();
                measured.repeated = counters.repeated - counted.repeated;
                measured.packets = counters.sent - counted.sent + measured.repeated;
                Ok(Answer::Ran(measured))
            }
            Order::Close { group } => {
                let lost = match self.groups.remove(&group) {
                    Some(Joined { group, is_root: true }) => group.close(Some(PATIENCE))?,
                    Some(Joined { group, is_root: false }) => {
                        group.receive(Some(PATIENCE))?;
                        Vec::new()
                    }
                    None => Vec::new(),
                };
                Ok(Answer::Closed { lost: lost.iter().map(ToString::to_string).collect() })
            }
        }
    }
}

fn enter(node: &Node, order: GroupOrder) -> Result<(u32, Joined), NodeError> {
    let GroupOrder { group: number, members, mode, message_bytes, mtu_bytes, bytes_per_s_max } = order;
    let is_root = members.first() == Some(&node.address());
    let settings = GroupSettings {
        group: GroupId(number),
        offload: mode.offload,
        scheme: mode.scheme,
        message_bytes,
        mtu_bytes,
        bytes_per_s_max,
        ..GroupSettings::new(members)
    };
    let group = node.group(&settings)?;
    group.wait_until_ready(Some(PATIENCE))?;
    Ok((number, Joined { group, is_root }))
}

fn send(group: &Group, order: &RunOrder) -> Result<Measured, NodeError> {
    let mut message = vec![0; order.bytes];
    let mut measured = Measured::default();
    for number in 0..order.messages {
        mark(&mut message, number);
        if let Pace::Scheduled { first_ns, period_ns, .. } = order.pace {
            sleep_until(first_ns + u64::from(number) * period_ns);
        }
        let start = now_ns();
        group.send(&message)?;
        if !matches!(order.pace, Pace::Stream) || number + 1 == order.messages {
            group.flush(Some(PATIENCE))?;
        }
        measured.at_ns.push(start);
        measured.span_ns.push(now_ns() - start);
    }
    Ok(measured)
}

fn receive(group: &Group, order: &RunOrder) -> Result<Measured, NodeError> {
    let mut message = vec![0; order.bytes];
    let mut measured = Measured::default();
    let mut expected = 0;
    let mut lateness = Lateness::new(order.pace, group.member().unwrap_or_default());
    while expected < order.messages {
        lateness.wait(order.pace, expected);
        let start = now_ns();
        match group.receive_into(&mut message, Some(PATIENCE)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(NodeError::TimedOut) => {
                measured.lost += u64::from(order.messages - expected);
                break;
            }
            Err(error) => return Err(error),
        }
        let end = now_ns();
        // Messages of fewer bytes than a number are told by their turn.
        let number = marked(&message).unwrap_or(expected);
        if number < expected {
            measured.doubled += 1;
            continue;
        }
        measured.lost += u64::from(number - expected);
        expected = number + 1;
        measured.at_ns.push(end);
        measured.span_ns.push(end - start);
    }
    Ok(measured)
}

/// How late a member comes to each message.
struct Lateness {
    random: Pcg64,
}

impl Lateness {
    fn new(pace: Pace, member: u32) -> Self {
        let seed = if let Pace::Scheduled { seed, .. } = pace { seed } else { 0 };
        Self { random: Pcg64::seed_from_u64(seed ^ u64::from(member) << 32) }
    }

    fn wait(&mut self, pace: Pace, number: u32) {
        let Pace::Scheduled { first_ns, period_ns, late_max_ns, .. } = pace else { return };
        let half = (late_max_ns / 2) as i64;
        let drawn = if half == 0 { 0 } else { self.random.random_range(-half..=half) };
        sleep_until(first_ns + u64::from(number) * period_ns + drawn.max(0) as u64);
    }
}

const NUMBER_BYTES: usize = 4;

fn mark(message: &mut [u8], number: u32) {
    if let Some(place) = message.first_chunk_mut::<NUMBER_BYTES>() {
        *place = number.to_le_bytes();
    }
}

fn marked(message: &[u8]) -> Option<u32> {
    message.first_chunk::<NUMBER_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}

pub(crate) fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn process_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

const fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps: another process is to have the processor meanwhile.
fn sleep_until(time_ns: u64) {
    let left = time_ns.saturating_sub(now_ns());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}
