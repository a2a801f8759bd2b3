//! SCI ringlets on unidirectional tori, after Oral and George: A user-level multicast performance
//! comparison of SCI and Myrinet interconnects (2003).
//!
//! A process writes a message into the memory of another, in one transaction for each piece of up
//! to 64 bytes: the CPU copies the piece, and the I/O bus and the adapter take it to the ringlet.
//! On every ringlet that it crosses, a packet is a separate subaction: it goes over the links to
//! the node where it leaves, is stripped there, and an echo goes over the remaining links back to
//! where it came from, so that every link of the ringlet is used once. The node at the corner
//! stores the whole packet and sends it on. When the piece is in memory, the adapter there sends a
//! response, which returns by its own route, also in dimension order, with an echo on each ringlet.
//! At a node, passing packets have priority over the node's own, and wait in the bypass queue only
//! while the node is sending.
//!
//! Our readings, where the study leaves them open:
//! - request and response are end to end, packet and echo for each ringlet (as in IEEE 1596); a
//!   corner's queue is never full, so no echo asks for a retry;
//! - a message and its flag are one piece if they fit; otherwise the flag is a separate piece,
//!   written when all pieces before it have responses;
//! - a process begins its next message when it has written the last piece of the current one, with
//!   or without a response, as long as not too many transactions are outstanding; a stalled CPU
//!   counts as busy;
//! - a message that a relay receives or sends goes through a message library, which is modelled
//!   after the sources of SCI-MPICH: a short one in a slot that its receiver polls, one up to
//!   [`Parameters::eager`] at once into a buffer of the library, a longer one after a handshake and
//!   in blocks; the receiver copies it out of the buffer. Slots and buffers never run out, because
//!   one multicast is in flight;
//! - the root's call is complete when its transactions have responses; on a path, when a notice
//!   from its end has arrived;
//! - worms are hypothetical hardware: a request with an address for each receiver, which adapters
//!   copy as it passes and which loses an address at each; its last receiver responds for all.

mod library;
mod links;
mod messages;
mod parameters;
mod path;
mod process;
mod simulation;
#[cfg(test)]
mod tests;

use treecast_fabric::{Grid, Routing};
use treecast_plan::{PACKETS_MAX, PlanOptions, WormKind, plan};
use treecast_sim::Offload;
use treecast_terms::Bytes;

pub use parameters::{Library, Parameters};

use crate::task::{Measure, ModelError, Outcome, ROOT_USER_SHARE, ROOT_USER_US, Task, check_deliveries};
use simulation::Simulation;

/// The measures of a run.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "root_cpu_utilization",
        label: "utilization of the root's CPU (0 to 1)",
        about: "fraction of the latency in which the root's CPU prepares, copies or stalls",
    },
    ROOT_USER_US,
    ROOT_USER_SHARE,
    Measure {
        name: "link_concentration_run",
        label: "link concentration (visits a link)",
        about: "link visits of messages over distinct links visited, counted in the run; echoes and responses apart",
    },
    Measure {
        name: "link_concentration_plan",
        label: "link concentration (visits a link)",
        about: "the same as the plan has it",
    },
    Measure {
        name: "link_concurrency_run",
        label: "link concurrency (messages at a time)",
        about: "the most messages in transit at a time in the run, from the first byte on a link to the last one off it",
    },
    Measure {
        name: "link_concurrency_plan",
        label: "link concurrency (messages a step)",
        about: "the most messages that the plan puts into one step, where a sender starts one message a step",
    },
    Measure {
        name: "carried_bytes",
        label: "carried by all links (bytes)",
        about: "what all links carry, each packet on each link: requests, responses and echoes",
    },
];

/// Carries out one multicast. Its latency is from the call at the root until the last destination
/// has seen the message.
///
/// # Errors
/// [`ModelError::Unsupported`] for any fabric but a unidirectional torus without virtual channels,
/// for several processes per node, for an offload, for an empty or too long message, for too many
/// deliveries; [`ModelError::Plan`] if the scheme does not fit.
pub fn run(parameters: &Parameters, task: &Task) -> Result<Outcome, ModelError> {
    let grid = checked_grid(task)?;
    let packets = task.message.0.div_ceil(parameters.data.0);
    if !(1..u64::from(PACKETS_MAX)).contains(&packets) {
        let most = Bytes(u64::from(PACKETS_MAX - 1) * parameters.data.0);
        return Err(ModelError::Unsupported(format!(
            "a message has from 1 byte to {most}, not {}: shorten it, or raise data_bytes",
            task.message
        )));
    }
    if parameters.envelope + parameters.flag > parameters.data {
        let reason = "envelope and flag are one transaction: lower envelope_bytes, or raise data_bytes";
        return Err(ModelError::Unsupported(reason.into()));
    }
    let destinations = task.group.destinations().len() as u64;
    check_deliveries(&[destinations, packets], "take fewer destinations or a shorter message")?;
    let options = PlanOptions { order: task.order, packets: packets as u32 };
    let plan = plan(task.fabric, task.group, task.scheme, &options)?;
    if let Some(worm) = plan.worms().iter().find(|worm| worm.kind == WormKind::Local) {
        let reason = format!("{} and {} share a node: SCI nodes run one process each", worm.from, worm.to[0]);
        return Err(ModelError::Unsupported(reason));
    }
    let is_path = matches!(task.scheme.name(), "s-torus" | "serial") && plan.worms().len() > 1;
    let mut simulation = Simulation::new(task, grid, &plan, parameters, is_path);
    simulation.run();
    task.check_stop()?;
    let analysis = plan.analyse(task.fabric, 1)?;
    Ok(simulation.outcome(&analysis))
}

fn checked_grid<'a>(task: &Task<'a>) -> Result<&'a Grid, ModelError> {
    let refused = |reason: String| Err(ModelError::Unsupported(reason));
    let routing = task.fabric.routing();
    let grid = task.fabric.topology().grid().filter(|grid| grid.wraps() && !grid.is_bidirectional());
    let Some(grid) = grid else {
        return refused("SCI needs a unidirectional torus, such as torus:k=4,n=2,uni".into());
    };
    if !matches!(routing, Routing::DimensionOrder(_)) || routing.virtual_channel_count() > 1 {
        return refused(
            "ringlets have no virtual channels: choose the routing dimension-order:channels=none".into(),
        );
    }
    if task.offload != Offload::Host {
        return refused(format!(
            "offload {} is not for SCI: hosts forward, or worms (form=worm)",
            task.offload
        ));
    }
    Ok(grid)
}
