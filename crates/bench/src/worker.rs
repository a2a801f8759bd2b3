//! A worker: executes the coordinator's requests on one host, and reports its measurements.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use treecast_fabric::{Fabric, RoutingPolicy, read};
use treecast_model::{Network, NetworkError};
use treecast_node::{
    EngineChoice, Group, GroupCounters, GroupId, GroupSettings, Node, NodeError, NodeSettings,
};
use treecast_terms::Operation;

use crate::barrier::Barrier;
use crate::clock::{now_ns, process_cpu_ns, sleep_until, thread_cpu_ns};
use crate::control::{
    GroupFabric, GroupRequest, Measured, Pace, Request, Response, RunRequest, TIMEOUT, read_request,
    write_response,
};
use crate::delays::Delays;
use crate::limits;
use crate::{all_reduce, broadcast};

/// Executes requests from standard input, until it is closed.
///
/// # Errors
/// Those of standard input and output. Errors of nodes are sent to the coordinator.
pub fn work() -> io::Result<()> {
    let mut worker = Worker::default();
    let is_idle = Arc::new(AtomicBool::new(true));
    thread::spawn({
        let is_idle = Arc::clone(&is_idle);
        move || end_with_coordinator(&is_idle)
    });
    while let Some(request) = read_request()? {
        is_idle.store(false, Ordering::SeqCst);
        let response = worker.execute(request);
        write_response(&response.unwrap_or_else(|error| Response::Failed { why: error.to_string() }))?;
        is_idle.store(true, Ordering::SeqCst);
    }
    Ok(())
}

/// How long a request may go on after the coordinator has ended.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Ends this process if the coordinator ends while a request is executed. It would otherwise wait
/// for workers that have ended.
fn end_with_coordinator(is_idle: &AtomicBool) {
    let input = io::stdin();
    // The end of a pipe is reported without being asked for, that of a socket is not.
    let mut polled = [PollFd::new(&input, PollFlags::RDHUP)];
    while let Ok(0) | Err(Errno::INTR) = poll(&mut polled, None) {}
    thread::sleep(END_TIMEOUT);
    if !is_idle.load(Ordering::SeqCst) {
        process::exit(1);
    }
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
    fn execute(&mut self, request: Request) -> Result<Response, NodeError> {
        match request {
            Request::Open { bind, engine, spin_us, share } => {
                let spin = spin_us.map(Duration::from_micros);
                let settings = NodeSettings { bind, engine, spin, share, ..NodeSettings::default() };
                let started = Instant::now();
                let node = Node::open(&settings)?;
                let ns = started.elapsed().as_nanos() as u64;
                let address = node.address();
                self.nodes.push((engine, node));
                Ok(Response::Opened { address, ns })
            }
            Request::Group(request) => {
                let node = self.nodes.iter().find(|(engine, _)| *engine == request.mode.engine);
                let (_, node) = node.ok_or(NodeError::NodeClosed)?;
                let offload = request.mode.offload;
                let (number, joined) = enter(node, request)?;
                let scheme = joined.group.settings().scheme.as_ref().map(ToString::to_string);
                let parents = joined.is_root.then(|| broadcast::parents(&joined.group, offload)).flatten();
                self.groups.insert(number, joined);
                Ok(Response::Grouped { scheme, parents })
            }
            Request::Run(run) => {
                let joined = self.groups.get(&run.group).ok_or(NodeError::NodeClosed)?;
                if run.operation != Operation::Broadcast {
                    all_reduce::warm_up(&joined.group, &run)?;
                }
                let cpu = process_cpu_ns();
                let mut barrier = Barrier::new(&run).map_err(unreachable)?;
                let counted = counters(&joined.group)?;
                let mut measured = match (run.operation, joined.is_root) {
                    (Operation::Broadcast, true) => send_and_watch(&joined.group, &run, &mut barrier)?,
                    (Operation::Broadcast, false) => receive(&joined.group, &run, &mut barrier)?,
                    (Operation::AllReduce | Operation::Barrier, _) => {
                        all_reduce::measure(&joined.group, &run)?
                    }
                };
                measured.cpu_ns = (process_cpu_ns() - cpu).saturating_sub(barrier.cpu_ns);
                let counters = counters(&joined.group)?;
                measured.retransmitted = counters.retransmitted - counted.retransmitted;
                measured.packets = counters.sent - counted.sent + measured.retransmitted;
                Ok(Response::Ran(measured))
            }
            Request::Limit(request) => {
                let respond = |response| write_response(&Response::Limit(response));
                let done = limits::execute(request, respond, read_request);
                let what = "cannot measure a limit of the machine";
                done.map(Response::Limit).map_err(|source| NodeError::System { what, source })
            }
            Request::Next => Ok(Response::Failed { why: "no run waits for the next message".into() }),
            Request::Clock => Ok(Response::Clock { now_ns: now_ns() }),
            Request::Close { group } => {
                let lost = match self.groups.remove(&group) {
                    Some(Joined { group, is_root: true }) => group.close(Some(TIMEOUT))?,
                    Some(Joined { group, is_root: false }) => {
                        group.receive(Some(TIMEOUT))?;
                        Vec::new()
                    }
                    None => Vec::new(),
                };
                Ok(Response::Closed { lost: lost.iter().map(ToString::to_string).collect() })
            }
        }
    }
}

/// # Errors
/// Why the node does not have the group any more, such as that the root has lost this member.
fn counters(group: &Group) -> Result<GroupCounters, NodeError> {
    let why = || group.close(Some(Duration::ZERO)).err().unwrap_or(NodeError::NodeClosed);
    group.counters().ok_or_else(why)
}

fn enter(node: &Node, request: GroupRequest) -> Result<(u32, Joined), NodeError> {
    let GroupRequest {
        group: number,
        members,
        member,
        token,
        mode,
        message_bytes,
        mtu_bytes,
        bytes_per_s_max,
        tcp_congestion,
        fabric,
        network,
    } = request;
    let mut settings = GroupSettings {
        group: GroupId(number),
        member: Some(member),
        token,
        offload: Some(mode.offload),
        scheme: mode.scheme,
        authentication: Some(mode.authentication),
        is_encrypted: mode.is_encrypted,
        integrity: mode.integrity,
        transport: Some(mode.transport),
        message_bytes,
        mtu_bytes: Some(mtu_bytes),
        bytes_per_s_max,
        tcp_congestion,
        ..GroupSettings::new(members)
    };
    if let Some(GroupFabric { toml, hosts }) = fabric {
        settings = GroupSettings { hosts, ..settings }.with_fabric(read_fabric(&toml)?);
    }
    if let Some(toml) = network {
        settings = settings.with_network(read_network(&toml)?);
    }
    let group = node.group(&settings)?;
    group.wait_until_ready(Some(TIMEOUT))?;
    let is_root = group.is_root();
    Ok((number, Joined { group, is_root }))
}

fn read_fabric(toml: &str) -> Result<Fabric, NodeError> {
    let fabric =
        read::toml("the fabric", toml).and_then(|read| Fabric::new(read.topology, RoutingPolicy::Auto));
    fabric.map_err(|error| NodeError::Plan(error.into()))
}

fn read_network(toml: &str) -> Result<Network, NodeError> {
    Network::parse("the network", toml)
        .map_err(|NetworkError { file, reason, .. }| NodeError::File { path: file, reason })
}

fn send(group: &Group, run: &RunRequest, barrier: &mut Barrier) -> Result<Measured, NodeError> {
    let mut message = touched(run.bytes);
    let mut measured = Measured::default();
    for number in 0..run.messages {
        set_message_number(&mut message, number);
        if let Pace::Scheduled { first_ns, period_ns, .. } = run.pace {
            sleep_until(first_ns + u64::from(number) * period_ns);
        }
        barrier.wait(number).map_err(unreachable)?;
        let start = now_ns();
        group.send(&message)?;
        let is_flushed = run.flushes && !matches!(run.pace, Pace::Stream);
        if is_flushed || number + 1 == run.messages {
            group.flush(Some(TIMEOUT))?;
        }
        measured.at_ns.push(start);
        measured.span_ns.push(now_ns() - start);
    }
    Ok(measured)
}

/// A buffer whose pages the system has mapped, as those of a program that uses a buffer again.
fn touched(bytes: usize) -> Vec<u8> {
    // The system maps pages of zeros when they are first written.
    vec![u8::MAX; bytes]
}

/// Sends, while another thread watches for lost members.
fn send_and_watch(group: &Group, run: &RunRequest, barrier: &mut Barrier) -> Result<Measured, NodeError> {
    let has_sent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = run.dies.then(|| scope.spawn(|| watch_losses(group, &has_sent)));
        let measured = send(group, run, barrier);
        has_sent.store(true, Ordering::Release);
        let losses = watching.map_or_else(Vec::new, |watching| watching.join().unwrap_or_default());
        Ok(Measured { losses, ..measured? })
    })
}

fn unreachable(source: io::Error) -> NodeError {
    NodeError::System { what: "cannot meet the other workers", source }
}

/// How often lost members are polled; a loss is detected within hundreds of milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

fn watch_losses(group: &Group, has_sent: &AtomicBool) -> Vec<(u32, u64)> {
    let mut known = Vec::new();
    loop {
        let is_last = has_sent.load(Ordering::Acquire);
        let now = now_ns();
        known.extend(group.losses().iter().skip(known.len()).map(|lost| (lost.member, now)));
        if is_last {
            return known;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn receive(group: &Group, run: &RunRequest, barrier: &mut Barrier) -> Result<Measured, NodeError> {
    let mut message = touched(run.bytes);
    let mut measured = Measured::default();
    let (mut expected, mut entered) = (0, None);
    let member = group.member().unwrap_or_default();
    let mut schedule = Schedule::new(run.pace, member);
    let mut returned = now_ns();
    while expected < run.messages {
        if let Some(schedule) = &mut schedule {
            schedule.wait(expected);
        }
        if entered.replace(expected) != Some(expected) {
            barrier.enter(member, expected).map_err(unreachable)?;
        }
        if run.dies && expected + 1 == run.messages {
            die_halfway(group, run.bytes)?;
        }
        // In a stream the next call follows at once, and one reading of the clock serves both.
        let is_stream = matches!(run.pace, Pace::Stream);
        let start = if is_stream { returned } else { now_ns() };
        let cpu = if is_stream { 0 } else { thread_cpu_ns() };
        match group.receive_into(&mut message, Some(TIMEOUT)) {
            Ok(Some(_)) => {}
            Ok(None) | Err(NodeError::TimedOut) => {
                measured.lost += u64::from(run.messages - expected);
                break;
            }
            Err(error) => return Err(error),
        }
        let end = now_ns();
        returned = end;
        if !is_stream {
            measured.call_cpu_ns.push(thread_cpu_ns() - cpu);
        }
        // A message too short for a number is assumed to be the expected one.
        let number = message_number(&message).unwrap_or(expected);
        if number < expected {
            measured.duplicates += 1;
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

/// Receives half of the next message, and ends without closing anything, as a host does that loses
/// power.
fn die_halfway(group: &Group, bytes: usize) -> Result<(), NodeError> {
    let mut received = 0;
    let taken = group.receive_with(Some(TIMEOUT), u64::MAX, |_, part| {
        received += part.len();
        if received >= bytes.div_ceil(2) {
            // If either call fails, the coordinator detects the missing response.
            let _ = write_response(&Response::Dying { at_ns: now_ns() });
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    });
    taken.map(|_| ())
}

/// When a member enters its calls.
struct Schedule {
    first_ns: u64,
    period_ns: u64,
    delays: Delays,
}

impl Schedule {
    /// `None` if calls are not scheduled. The coordinator has set the delay for this process.
    fn new(pace: Pace, member: u32) -> Option<Self> {
        let Pace::Scheduled { first_ns, period_ns, delay } = pace else { return None };
        Some(Self { first_ns, period_ns, delays: Delays::new(delay, member) })
    }

    /// Sleeps until the time for the call with this number.
    fn wait(&mut self, number: u32) {
        let delay_ns = self.delays.next().unwrap_or_default();
        sleep_until(self.first_ns + u64::from(number) * self.period_ns + delay_ns);
    }
}

const NUMBER_BYTES: usize = 4;

fn set_message_number(message: &mut [u8], number: u32) {
    if let Some(bytes) = message.first_chunk_mut::<NUMBER_BYTES>() {
        *bytes = number.to_le_bytes();
    }
}

fn message_number(message: &[u8]) -> Option<u32> {
    message.first_chunk::<NUMBER_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}
