//! One host of a benchmark: does what it is told, line by line, and says what it has measured.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rustix::time::{ClockId, Timespec, clock_gettime};
use treecast_node::{EngineChoice, Group, GroupId, GroupSettings, Node, NodeError, NodeSettings};

use crate::order::{Answer, GroupOrder, Measured, Order, Pace, RunOrder};

/// No message takes longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Does what the lines of standard input say, until they end.
///
/// # Errors
/// Those of standard input and output. What goes wrong with nodes is answered.
pub fn work() -> io::Result<()> {
    let mut worker = Worker::default();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(order) => worker.obey(order).unwrap_or_else(|error| Answer::Failed { why: error.to_string() }),
            Err(error) => Answer::Failed { why: error.to_string() },
        };
        write_answer(&answer)?;
    }
    Ok(())
}

fn write_answer(answer: &Answer) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, answer)?;
    output.write_all(b"\n")?;
    output.flush()
}

#[derive(Debug, Default)]
struct Worker {
    nodes: Vec<(EngineChoice, Node)>,
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
            Order::Open { bind, engine, spin_us } => {
                let spin = Duration::from_micros(spin_us);
                let node = Node::open(&NodeSettings { bind, engine, spin, ..NodeSettings::default() })?;
                let address = node.address();
                self.nodes.push((engine, node));
                Ok(Answer::Opened { address })
            }
            Order::Group(order) => {
                let node = self.nodes.iter().find(|(engine, _)| *engine == order.mode.engine);
                let (_, node) = node.ok_or(NodeError::NodeClosed)?;
                let (number, joined) = enter(node, order)?;
                let scheme = joined.group.settings().scheme.as_ref().map(ToString::to_string);
                self.groups.insert(number, joined);
                Ok(Answer::Grouped { scheme })
            }
            Order::Run(order) => {
                let joined = self.groups.get(&order.group).ok_or(NodeError::NodeClosed)?;
                let (cpu, counted) = (process_cpu_ns(), joined.group.counters());
                let mut measured = if joined.is_root {
                    send_and_look(&joined.group, &order)?
                } else {
                    receive(&joined.group, &order)?
                };
                measured.cpu_ns = process_cpu_ns() - cpu;
                let counters = joined.group.counters();
                measured.repeated = counters.retransmitted - counted.retransmitted;
                measured.packets = counters.sent - counted.sent + measured.repeated;
                Ok(Answer::Ran(measured))
            }
            Order::Clock => Ok(Answer::Clock { now_ns: now_ns() }),
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

/// Sends, while another thread looks who has been lost.
fn send_and_look(group: &Group, order: &RunOrder) -> Result<Measured, NodeError> {
    let has_sent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = order.dies.then(|| scope.spawn(|| look_for_losses(group, &has_sent)));
        let measured = send(group, order);
        has_sent.store(true, Ordering::Release);
        let losses = looking.map_or_else(Vec::new, |looking| looking.join().unwrap_or_default());
        Ok(Measured { losses, ..measured? })
    })
}

/// How often is looked for losses, which are learned within hundreds of milliseconds.
const LOOK: Duration = Duration::from_millis(1);

fn look_for_losses(group: &Group, has_sent: &AtomicBool) -> Vec<(u32, u64)> {
    let mut known = Vec::new();
    loop {
        let is_last = has_sent.load(Ordering::Acquire);
        let now = now_ns();
        known.extend(group.losses().iter().skip(known.len()).map(|lost| (lost.member, now)));
        if is_last {
            return known;
        }
        std::thread::sleep(LOOK);
    }
}

fn receive(group: &Group, order: &RunOrder) -> Result<Measured, NodeError> {
    let mut message = vec![0; order.bytes];
    let mut measured = Measured::default();
    let mut expected = 0;
    let mut lateness = Lateness::new(order.pace, group.member().unwrap_or_default());
    let mut back = now_ns();
    while expected < order.messages {
        lateness.wait(order.pace, expected);
        if order.dies && expected + 1 == order.messages {
            die_in_the_middle(group, order.bytes)?;
        }
        // In a stream the next call follows at once, and the clock is not asked twice.
        let is_stream = matches!(order.pace, Pace::Stream);
        let start = if is_stream { back } else { now_ns() };
        let cpu = if is_stream { 0 } else { thread_cpu_ns() };
        match group.receive_into(&mut message, Some(PATIENCE)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(NodeError::TimedOut) => {
                measured.lost += u64::from(order.messages - expected);
                break;
            }
            Err(error) => return Err(error),
        }
        let end = now_ns();
        back = end;
        if !is_stream {
            measured.call_cpu_ns.push(thread_cpu_ns() - cpu);
        }
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
        measured.stored_ns.extend(group.stored_at().map(|at| at.0));
    }
    Ok(measured)
}

/// Receives half of the next message, and ends as a host does that loses its power.
fn die_in_the_middle(group: &Group, bytes: usize) -> Result<(), NodeError> {
    let mut received = 0;
    let taken = group.receive_with(Some(PATIENCE), u64::MAX, |_, part| {
        received += part.len();
        if received >= bytes.div_ceil(2) {
            // Whoever cannot be told, or cannot be killed, is found by what does not come.
            let _ = write_answer(&Answer::Dying { at_ns: now_ns() });
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    });
    taken.map(|_| ())
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

fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
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
