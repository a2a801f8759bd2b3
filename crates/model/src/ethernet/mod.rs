//! Hosts on Ethernet that run Treecast's nodes.
//!
//! The costs are those of one way to send a message: an engine, an offload and a transport. They
//! are measured on a real network, so that plans can be run on it, or on a larger one, before it is
//! used.
//!
//! A message is cut into pieces: packets, or reads from a stream. A host has one thread, which does
//! one job at a time, in the order in which they came: it takes a piece in and forwards it at once,
//! or has the message for the application. A thread without a job sleeps; what arrives wakes
//! it, which takes a delay and CPU time. Where the kernel's packet path is the node (`wake_for`),
//! it is a thread that does not sleep, and the application's thread is woken when the message is
//! there and has been forwarded. Threads get processors, of their host or of all hosts, in the
//! order in which they have become ready, and keep them while they have work.
//!
//! On links with a rate, a relay of offload `nic` begins with a piece, such as 64 KB of a stream,
//! when its first packet has arrived: it forwards what has arrived when its thread runs, and then
//! the rest. The work is that of the whole piece. The last byte leaves a relay after it has
//! arrived there, so that a piece passes through a chain at the rate of the links.
//!
//! Who forwards:
//! - `nic`: the node, piece by piece; then the application has the message;
//! - `assisted`: the application has the message first, and asks its node once, which sends piece
//!   by piece;
//! - `host`: the same, but it asks for each child, which gets the whole message before the next
//!   child;
//! - `switch`: the root sends each piece once, and the switches copy it.
//!
//! A member that has the last piece acknowledges it to its parent in the plan, which handles data
//! first.
//!
//! Latency is from the root's call until the application of the last member has the message.
//!
//! The model has no losses, no congestion of switches, no windows and slots (which may delay the
//! root of long messages), and one process on each host. Real nodes forward long messages in parts
//! with offload `assisted` and `host` too, at each half of their slots.

mod arrival;
mod parameters;
mod pieces;
mod processors;
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use treecast_fabric::{Channel, HostId, Overlap};
use treecast_plan::{PACKETS_MAX, Plan, PlanError, PlanOptions, WormKind, plan};
use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds};

pub use parameters::{EAGER_MAX, Parameters, Wake};
pub use pieces::PACKET;

use crate::kernel::LAST;
use crate::task::{Measure, ModelError, Outcome, Task, check_deliveries};
use pieces::Pieces;
use simulation::Simulation;

/// The measures of a run.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "mean_delivery_us",
        label: "mean delivery (us)",
        about: "mean time from the root's call until the application of a member has the message",
    },
    Measure {
        name: "cpu_us",
        label: "CPU time of all hosts per broadcast (us)",
        about: "CPU time of all hosts per broadcast",
    },
    Measure {
        name: "root_cpu_us",
        label: "CPU time of the root per broadcast (us)",
        about: "CPU time of the root per broadcast",
    },
];

/// The maximum length of a message: 1 TiB.
const MESSAGE_MAX: Bytes = Bytes(1 << 40);

/// Carries out one multicast.
///
/// # Errors
/// [`ModelError::Unsupported`] for several members on a host, for an empty or too long message, for
/// worms that the offload does not send, for offload `switch` on a fabric without up*/down*
/// routing, for too many deliveries, and for a run that could take more than 26 days of simulated
/// time; [`ModelError::Plan`] if the scheme does not fit.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method is that of one lifetime")]
pub fn run(parameters: &Parameters, task: &Task) -> Result<Outcome, ModelError> {
    simulate(parameters, task, |simulation| simulation.outcome())
}

/// Carries out one multicast; when the application of each member has the message, `None` for the
/// root and for members outside the group.
///
/// # Errors
/// Those of [`run`].
pub fn deliveries(parameters: &Parameters, task: &Task) -> Result<Vec<Option<Picoseconds>>, ModelError> {
    simulate(parameters, task, |simulation| simulation.delivered.clone())
}

/// Carries out a plan of unicasts for a task, whatever its scheme; when the application of each
/// member has the message, as in [`deliveries`].
///
/// # Errors
/// Those of [`run`].
pub(crate) fn run_plan(
    parameters: &Parameters,
    task: &Task,
    plan: &Plan,
) -> Result<(Outcome, Vec<Option<Picoseconds>>), ModelError> {
    let pieces = checked_pieces(parameters, task)?;
    check_hosts(task)?;
    carry_out(parameters, task, (plan, pieces), |simulation| {
        (simulation.outcome(), simulation.delivered.clone())
    })
}

fn simulate<T>(
    parameters: &Parameters,
    task: &Task,
    result: impl FnOnce(&Simulation) -> T,
) -> Result<T, ModelError> {
    let pieces = checked_pieces(parameters, task)?;
    let plan = checked_plan(task, pieces)?;
    carry_out(parameters, task, (&plan, pieces), result)
}

fn carry_out<T>(
    parameters: &Parameters,
    task: &Task,
    (plan, pieces): (&Plan, Pieces),
    result: impl FnOnce(&Simulation) -> T,
) -> Result<T, ModelError> {
    let multicast = if task.offload == Offload::Switch { multicast_route(task)? } else { Vec::new() };
    let mut simulation = Simulation::new(parameters, task, plan, pieces, multicast);
    simulation.run();
    task.check_stop()?;
    Ok(result(&simulation))
}

fn checked_pieces(parameters: &Parameters, task: &Task) -> Result<Pieces, ModelError> {
    if !(1..=MESSAGE_MAX.0).contains(&task.message.0) {
        let reason = format!("a message has from 1 byte to {MESSAGE_MAX}, not {}", task.message);
        return Err(ModelError::Unsupported(reason));
    }
    let shorten = "take fewer destinations or a shorter message";
    let destinations = task.group.destinations().len() as u64;
    let pieces = Pieces::new(task.message, parameters, destinations);
    check_deliveries(&[destinations, pieces.units().into()], shorten)?;
    if time_max_ps(parameters, task, pieces) >= u128::from(LAST.0) {
        let reason = format!("the multicast could take more than 26 days: {shorten}, or lower the costs");
        return Err(ModelError::Unsupported(reason));
    }
    Ok(pieces)
}

/// A bound of the time of a run, in picoseconds: everything that happens, one after the other.
fn time_max_ps(costs: &Parameters, task: &Task, pieces: Pieces) -> u128 {
    let sum = |spans: &[Picoseconds]| spans.iter().map(|span| u128::from(span.0)).sum::<u128>();
    // A route goes up and down, and passes no switch twice in one direction.
    let links = 2 * u128::from(task.fabric.topology().switch_count()) + 2;
    // The acknowledgment goes over the network as a unit does, and is handled after a wake-up. The
    // last packet wakes a member that has begun with its unit before.
    let units = u128::from(pieces.units()) + 3;
    let bytes = task.message + simulation::ACKNOWLEDGMENT;
    let (cold, cold_per_kb) = costs.cold_of(task.group.size());
    let per_kb = [
        cold_per_kb,
        costs.call_per_kb,
        costs.send_per_kb,
        costs.switch_copy_per_kb,
        costs.receive_per_kb,
        costs.deliver_per_kb,
    ];
    // Each cost of a unit by length is rounded up.
    let by_length = u128::from(bytes.0) * sum(&per_kb) / 1_000 + units * per_kb.len() as u128;
    let for_each_member = sum(&[costs.call, costs.ask, costs.deliver, costs.ack])
        + u128::from(pieces.count()) * sum(&[costs.send, costs.switch_copy, costs.receive])
        + units * (sum(&[costs.wake, costs.wake_cpu, cold]) + links * u128::from(costs.hop.0))
        + units * (u128::from(costs.rendezvous.0) + 2 * links * u128::from(costs.hop.0))
        + by_length
        + u128::from(bytes.time_at(costs.link_mb_per_s).0)
        + units;
    for_each_member * u128::from(task.group.size())
}

/// Checks that each member is alone on its host.
fn check_hosts(task: &Task) -> Result<(), ModelError> {
    let placement = task.group.placement();
    // Not made by `from`, in whose sorting valgrind sees a false read of uninitialised memory.
    let mut hosts = BTreeSet::new();
    hosts.insert(placement.host_of(task.group.root()));
    if let Some(member) =
        task.group.destinations().iter().find(|&&member| !hosts.insert(placement.host_of(member)))
    {
        let reason = format!("member {member} is not alone on its host: this model has one process on each");
        return Err(ModelError::Unsupported(reason));
    }
    Ok(())
}

fn checked_plan(task: &Task, pieces: Pieces) -> Result<Plan, ModelError> {
    let refused = |reason: String| Err(ModelError::Unsupported(reason));
    check_hosts(task)?;
    let packets = pieces.count().min(PACKETS_MAX.into()) as u32;
    let plan = plan(task.fabric, task.group, task.scheme, &PlanOptions { order: task.order, packets })?;
    let by_switches = task.offload == Offload::Switch;
    let unfit = plan.worms().iter().find(|worm| match worm.kind {
        WormKind::Unicast => false,
        WormKind::Tree => !by_switches,
        WormKind::Path | WormKind::Local => true,
    });
    match unfit.map(|worm| worm.kind) {
        Some(WormKind::Tree) => refused(format!("scheme {} needs offload switch", plan.scheme())),
        Some(_) => refused(format!("Ethernet does not carry the worms of scheme {}", plan.scheme())),
        None => Ok(plan),
    }
}

/// The tree of links from the root to all destinations.
fn multicast_route(task: &Task) -> Result<Vec<Channel>, ModelError> {
    let (topology, placement) = (task.fabric.topology(), task.group.placement());
    let root = placement.host_of(task.group.root());
    let hosts: Vec<HostId> = placement.hosts_of(task.group.destinations());
    let Some(routing) = task.fabric.routing().up_down() else {
        let reason = "offload switch needs up*/down* routing: choose with --routing up-down";
        return Err(ModelError::Unsupported(reason.into()));
    };
    let route = routing.tree_route(topology, root, &hosts, Overlap::default());
    Ok(route.ok_or(PlanError::NoCoveringSwitch { from: topology.switch_of(root) })?)
}
