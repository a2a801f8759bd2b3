//! Nodes with several processes on InfiniBand, after Mamidala, Chai, Jin and Panda: Efficient
//! SMP-aware MPI-level broadcast over InfiniBand's hardware multicast (2006).
//!
//! A process executes its steps in order; an event that it waits for wakes it. Two processes of a
//! node share a queue with slots in shared memory: the sender copies a message in, a flag notifies
//! the receiver, and the receiver copies the message out; a long message needs a rendezvous first,
//! and is sent in pieces. A message to another node goes in packets through bus, network interface
//! and network, and there through network interface and bus. The switches copy a packet to the
//! multicast group; at each node the network interface looks up the attached processes, and moves
//! the packet to each in turn over the bus. Multicast packets may be lost, arrive late, or find no
//! buffer. A process that has a whole broadcast acknowledges it, if its method requires that. At
//! the timeout the root retransmits all packets of a broadcast to each process that has not
//! acknowledged it; it has at most a window of broadcasts open.
//!
//! Latency is measured as in the study: in every iteration the root broadcasts, and one receiver,
//! each in turn, sends a message back. Latency is the time of the iterations less the time of these
//! messages alone, per iteration.
//!
//! Our readings of what the study leaves open:
//! - acknowledgments are for broadcasts, not for packets; acknowledgments and retransmissions go
//!   from node to node, and only retransmissions are datagrams and may be lost again;
//! - leaders forward a packet before they look at the next one;
//! - a process that has attached itself takes a packet from whichever source is first, and
//!   acknowledges nothing: it gets lost packets from its leader, which sends only those that it
//!   lacks;
//! - processes of the root's node never attach themselves: the root has the message when they
//!   enter;
//! - the leader of the root's node is never delayed.
//!
//! The task's scheme and order apply to `ori_bcst`; the other methods have no choice of tree.

mod figures;
mod node;
mod packet;
mod parameters;
pub mod policy;
mod receive;
mod root;
mod script;
mod simulation;
mod steps;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::BTreeMap;

use treecast_plan::{Group, MemberId, Plan, PlanOptions, WormKind, plan};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Picoseconds};

pub use parameters::{Method, Operation, Parameters, Turns};

use crate::task::{Measure, ModelError, Outcome, Task, check_deliveries};
use simulation::{Job, Simulation};

/// The measures of a run.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "nonleader_wait_us",
        label: "mean wait of nonleaders (us)",
        about: "mean wait of receivers that are not leaders, from entering a broadcast to having the message",
    },
    Measure {
        name: "leader_wait_us",
        label: "mean wait of leaders (us)",
        about: "mean wait of the leaders of nodes, without the root",
    },
    Measure { name: "attaches", label: "attaches", about: "how often processes attached themselves" },
    Measure { name: "detaches", label: "detaches", about: "how often processes detached themselves" },
    Measure {
        name: "acknowledgments",
        label: "acknowledgments to the root",
        about: "acknowledgments that the root got",
    },
    Measure {
        name: "retransmissions",
        label: "packets retransmitted",
        about: "packets that the root retransmitted",
    },
    Measure { name: "lost_datagrams", label: "datagrams lost", about: "datagrams that a node did not get" },
    Measure {
        name: "dropped_datagrams",
        label: "datagrams without a buffer",
        about: "datagrams that found no buffer",
    },
    Measure {
        name: "duplicate_datagrams",
        label: "duplicate datagrams",
        about: "datagrams that arrived at a process that had them already",
    },
    Measure {
        name: "root_cpu_us",
        label: "CPU time of the root per broadcast (us)",
        about: "CPU time of the root per broadcast",
    },
    Measure {
        name: "receiver_cpu_us",
        label: "mean CPU time of a receiver (us)",
        about: "mean CPU time of the receivers per broadcast",
    },
];

/// The maximum number of packets of a message.
const PACKETS_MAX: u64 = 1 << 16;

/// Carries out broadcasts, or one message.
///
/// # Errors
/// [`ModelError::Unsupported`] for an offload, for an empty or too long message, for too many
/// deliveries, for a scheme with worms other than unicasts, for multicast on a fabric without
/// up*/down* routing; [`ModelError::Plan`] if the scheme does not fit.
pub fn run(parameters: &Parameters, task: &Task) -> Result<Outcome, ModelError> {
    if task.offload != Offload::Host {
        let reason = format!("offload {} is not for this model: its methods say who forwards", task.offload);
        return Err(ModelError::Unsupported(reason));
    }
    let packets = task.message.0.div_ceil(parameters.mtu.0);
    if !(1..=PACKETS_MAX).contains(&packets) {
        let most = Bytes(PACKETS_MAX * parameters.mtu.0);
        let reason = format!("a message has from 1 byte to {most}, not {}: shorten it", task.message);
        return Err(ModelError::Unsupported(reason));
    }
    let is_message = parameters.operation == Operation::PointToPoint;
    let iterations = u64::from(parameters.iterations) + u64::from(parameters.warmup_iterations);
    let iterations = if is_message { 1 } else { iterations };
    let pieces = packets.max(task.message.0.div_ceil(parameters.piece.0));
    let shorten = "take fewer iterations, shorter messages or larger pieces";
    check_deliveries(&[iterations, task.group.size().into(), pieces], shorten)?;
    let options = PlanOptions { order: task.order, packets: packets as u32 };
    let plan = plan(task.fabric, task.group, task.scheme, &options)?;
    if is_message {
        let simulation = message(parameters, task, task.group, task.message);
        task.check_stop()?;
        let latency = simulation.message_time();
        return Ok(outcome(&simulation, latency));
    }
    let mut simulation = broadcasts(parameters, task, &plan)?;
    simulation.run();
    task.check_stop()?;
    let measured = u64::from(parameters.iterations);
    let net = simulation.figures.spans.0.saturating_sub(simulation.figures.messages.0);
    let latency =
        (simulation.figures.iterations == simulation.broadcasts).then_some(Picoseconds(net / measured));
    Ok(outcome(&simulation, latency))
}

/// Broadcasts that are ready to run.
fn broadcasts<'a>(
    parameters: &'a Parameters,
    task: &Task<'a>,
    plan: &'a Plan,
) -> Result<Simulation<'a>, ModelError> {
    let is_planned = parameters.method == Method::Original;
    let is_unicast = |worm: &treecast_plan::Worm| {
        worm.to.len() == 1 && !matches!(worm.kind, WormKind::Path | WormKind::Tree)
    };
    if is_planned && !plan.worms().iter().all(is_unicast) {
        let reason = format!("ori_bcst sends messages to one process each: {} does not", plan.scheme());
        return Err(ModelError::Unsupported(reason));
    }
    let (planned, sends) = if is_planned { (Some(plan), Some(plan.sends())) } else { (None, None) };
    let job = Job::Broadcasts { plan: planned, sends };
    let mut simulation = Simulation::new(parameters, task, task.group, job, task.message);
    if !is_planned {
        simulation.route_multicast(task.fabric)?;
    }
    // A message takes equally long from all processes of a node in the same part of its memory.
    let mut known = BTreeMap::new();
    for member in simulation.turn_takers() {
        let kind = (simulation.placement.host_of(member), simulation.is_far(member, simulation.root));
        let time = *known.entry(kind).or_insert_with(|| time_back(parameters, task, member));
        simulation.turns.push((member, time));
    }
    Ok(simulation)
}

/// The time of the message of a receiver's turn by itself.
fn time_back(parameters: &Parameters, task: &Task, from: MemberId) -> Picoseconds {
    let group = Group::new(task.group.placement().clone(), from, vec![task.group.root()]);
    let group = group.expect("two members of a group are a group");
    message(parameters, task, &group, root::TURN).message_time().unwrap_or_default()
}

/// The completed run of one message from a group's root to its first destination.
fn message<'a>(
    parameters: &'a Parameters,
    task: &Task<'a>,
    group: &'a Group,
    length: Bytes,
) -> Simulation<'a> {
    let job = Job::Message { to: group.destinations()[0] };
    let mut simulation = Simulation::new(parameters, task, group, job, length);
    simulation.run();
    simulation
}

fn outcome(simulation: &Simulation, latency: Option<Picoseconds>) -> Outcome {
    let figures = &simulation.figures;
    let waiting = simulation.waiting();
    let status = match (latency, waiting.is_empty()) {
        (Some(_), true) => Status::Complete,
        _ if simulation.has_stopped() => Status::Deadlocked,
        _ => Status::Incomplete,
    };
    let fraction = |sum: f64, count: f64| if count == 0.0 { 0.0 } else { sum / count };
    let receivers = simulation.group.destinations();
    let busy: f64 = receivers.iter().map(|&id| simulation.members[id.index()].busy.us()).sum();
    let broadcasts = f64::from(figures.iterations.max(1));
    Outcome {
        status,
        latency: latency.filter(|_| status == Status::Complete),
        measured: vec![
            ("nonleader_wait_us", figures.other_wait.value().us()),
            ("leader_wait_us", figures.leader_wait.value().us()),
            ("attaches", figures.attaches as f64),
            ("detaches", figures.detaches as f64),
            ("acknowledgments", figures.acknowledgments as f64),
            ("retransmissions", figures.retransmissions as f64),
            ("lost_datagrams", figures.lost as f64),
            ("dropped_datagrams", figures.dropped as f64),
            ("duplicate_datagrams", figures.duplicates as f64),
            ("root_cpu_us", simulation.members[simulation.root.index()].busy.us() / broadcasts),
            ("receiver_cpu_us", fraction(busy, receivers.len() as f64 * broadcasts)),
        ],
        deadlock: if status == Status::Deadlocked { waiting } else { Vec::new() },
    }
}
