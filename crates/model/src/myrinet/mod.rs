//! Myrinet NICs that run GM: reliable multicast by the NIC, by NIC and hosts together, and by the
//! hosts.
//!
//! After Yu, Buntinas, Panda: High Performance and Reliable NIC-Based Multicast over Myrinet/GM-2
//! (2003); with other values it serves the Myrinet half of Oral, George: A User-Level Multicast
//! Performance Comparison of SCI and Myrinet Interconnects (2003).
//!
//! A node has a process on a CPU, a bus with a DMA engine, a NIC's processor, a DMA engine to the
//! wire, and bounded resources: tokens and packet buffers. The stages of a message are the post,
//! the send event and the token; for each packet the transfer to the NIC, header and record, and
//! the wire; at the other end for each packet the buffer, the check, the receive token, the
//! transfer to the host and the acknowledgment; and after the last packet the event that the
//! process finds. Packets that are not acknowledged in time are retransmitted, with all later ones
//! (go-back-N), to the children that have not acknowledged.
//!
//! Our readings where the source is silent:
//! - A packet for which no packet buffer is free waits in the network, where Myrinet's switches
//!   hold it; here it does not block the packets behind it. Acknowledgments and credits need no
//!   packet buffer and alternate with data. An acknowledgment covers everything that has arrived
//!   when it leaves.
//! - The NIC's processor takes requests in order of arrival; returning tokens is housekeeping, in
//!   time slices of one microsecond. A packet that has reached the host is first forwarded, then
//!   acknowledged, then its event is raised.
//! - A process handles every event that is raised for it, including those of messages that it has
//!   sent.
//! - The answer of [`Operation::Multicast`] is a message from process to process. Only the last
//!   leaf answers, which gives the maximum that measurements of one leaf after another would find.
//! - Broadcasts in a row ([`Parameters::broadcasts`]): the root starts the next
//!   [`Operation::Multisend`] or [`Operation::Multicast`] when it has the acknowledgments or the
//!   answer, and a process the next [`Operation::Broadcast`] when it has returned. What a broadcast
//!   leaves to the next (tokens to be returned, their events, acknowledgments) delays it. With a
//!   barrier each broadcast is timed from the call of its root, otherwise all from the first call
//!   on. In step k of the barrier a process sends to the one 2^k places behind it. A process that
//!   computes heeds no events, and one that is in a barrier or an earlier broadcast no messages of
//!   a later one.
//! - Unicasts go from one process to another beside the multicasts of a root. They need tokens,
//!   buffers and the time of every part as all messages do, and end with the last multicast.
//! - Several groups at once have the same members, but each has its own root.
//! - FM/MC's manager is the process of the member with the lowest id; each receiver returns a
//!   credit when its process has the message. LFC divides the receive buffers of a NIC evenly among
//!   all other members; a packet keeps its buffer until it is in host memory and has left for every
//!   child; credits are returned in separate packets.
//!
//! Where children have greater ids than their parents, waits for LFC's buffers form no cycle. LFC
//! deadlocks on trees without this order, such as those of
//! [`Order::Given`](treecast_plan::Order::Given), which go round from each root. Without credits,
//! waits for the last receive tokens deadlock on the same trees; and, whatever the ids, where a
//! message is longer than the window, or where hosts forward and have too few send tokens.

mod credits;
mod deadlock;
mod flow;
mod host;
mod measure;
mod node;
mod parameters;
mod policies;
mod receive;
mod rounds;
mod row;
mod send;
mod simulation;
mod stream;
#[cfg(test)]
mod tests;
mod transits;
mod tree;
mod unicast_stream;
mod unicasts;
mod user;

pub use measure::MEASURES;
pub use parameters::Parameters;
pub use policies::{
    Barrier, EagerCopies, FirstBroadcast, Flow, Forwarding, Layer, Membership, Operation, Replicas, Unicasts,
};

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::Lambda;
use treecast_plan::{Group, MemberId, PACKETS_MAX, Placement, Scheme, TreeScheme};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Picoseconds};

use crate::task::{ModelError, Outcome, Task, check_deliveries};
use credits::{BufferCredits, Manager};
use simulation::Simulation;

/// Carries out a task.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec};
/// use treecast_model::{Task, myrinet};
/// use treecast_plan::{Group, MemberId, Placement};
/// use treecast_sim::{Offload, Status};
/// use treecast_terms::Bytes;
///
/// let fabric = Fabric::from_spec(&"star:16".parse::<FabricSpec>()?)?;
/// let group = Group::new(Placement::one_per_host(16), MemberId(0), (1..16).map(MemberId).collect())?;
/// let scheme = "binomial".parse()?;
/// let task = Task { fabric: &fabric, group: &group, scheme: &scheme, order: None, offload: Offload::Nic,
///     message: Bytes(64), seed: 1, stop: None };
/// let outcome = myrinet::run(&myrinet::Parameters::default(), &task)?;
/// assert_eq!(outcome.status, Status::Complete);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ModelError::Plan`] if the plan cannot be made; [`ModelError::Unsupported`] for features that
/// Myrinet lacks.
pub fn run(parameters: &Parameters, task: &Task) -> Result<Outcome, ModelError> {
    let mut lambda = None;
    // A postal tree without a lambda gets that of its message on this hardware.
    let scheme = match task.scheme.as_tree() {
        Some(TreeScheme::Postal { lambda: None }) if parameters.operation != Operation::Multisend => {
            let measured = measured_lambda(parameters, task)?;
            lambda = Some(measured.copies());
            Scheme::tree(TreeScheme::Postal { lambda: Some(measured) })
        }
        _ => *task.scheme,
    };
    let mut simulation = prepare(parameters, task, &scheme)?;
    simulation.run();
    task.check_stop()?;
    let deadlock = if simulation.completed.is_some() { Vec::new() } else { simulation.deadlock() };
    let status = match (simulation.completed, deadlock.is_empty()) {
        (Some(_), _) => Status::Complete,
        (None, false) => Status::Deadlocked,
        (None, true) => Status::Incomplete,
    };
    let mut measured = simulation.measured();
    let completed = simulation.events.now();
    let is_path = scheme.name() == "serial" && task.group.size() > 2;
    let user = simulation.root_user(is_path);
    measured.extend(simulation.user_measures(user, completed));
    measured.extend(simulation.unicast_measures());
    measured.extend(lambda.map(|lambda| ("lambda", lambda)));
    Ok(Outcome { status, latency: simulation.completed, measured, deadlock })
}

/// Prepares the simulation of a task.
fn prepare<'a>(
    parameters: &'a Parameters,
    task: &'a Task,
    scheme: &Scheme,
) -> Result<Simulation<'a>, ModelError> {
    check(parameters, task)?;
    let is_mpi = parameters.layer == Layer::Mpi;
    let rendezvous = is_mpi && task.message > parameters.eager;
    let is_broadcast = matches!(parameters.operation, Operation::Broadcast | Operation::Skew);
    let is_first =
        parameters.first_broadcast == FirstBroadcast::Yes && is_broadcast && task.offload == Offload::Nic;
    // Long messages of the MPI layer, and the first message of a group, are forwarded by the hosts.
    let by_hosts = (rendezvous || is_first) && task.offload != Offload::Host;
    let (forwarder, scheme) = match parameters.operation {
        Operation::Multisend => (task.offload, &Scheme::tree(TreeScheme::Separate)),
        _ if by_hosts => (Offload::Host, &Scheme::tree(TreeScheme::Binomial)),
        _ => (task.offload, scheme),
    };
    let packets = packets(task.message, parameters.packet.0);
    let mut trees = tree::trees(parameters, task, scheme, packets as u32)?;
    for tree in &mut trees {
        if forwarder == Offload::Host {
            tree.names.fill(0);
        }
        let names = parameters.destination.0 * tree.names_max();
        if names >= parameters.packet.0 {
            return Err(ModelError::Unsupported(format!(
                "the names of {} destinations take {names} bytes, more than a packet of {} has: post the groups, or let \
                 packets be longer",
                tree.names_max(),
                parameters.packet
            )));
        }
    }
    let children = trees[0].children[trees[0].root].len();
    if parameters.unicasts == Unicasts::Members && children < 2 {
        return Err(ModelError::Unsupported(
            "unicasts=members go between the first two children of the root, and here it has one: choose another \
             scheme, or unicasts=others"
                .into(),
        ));
    }
    let mut simulation = Simulation::new(parameters, task, trees, forwarder, rendezvous);
    simulation.makes_group = is_first;
    match parameters.flow {
        Flow::None => {}
        Flow::FmMc => {
            let members = tree::members(task);
            let lowest = (0..members.len()).min_by_key(|&node| members[node]).expect("there is a root");
            simulation.manager = Some(Manager::new(lowest, parameters.manager_credits));
        }
        Flow::Lfc => {
            simulation.credits =
                Some(BufferCredits::new(parameters.nic_receive_buffers / (task.group.size() - 1)));
        }
    }
    Ok(simulation)
}

/// The number of packets of a message.
fn packets(message: Bytes, payload: u64) -> u64 {
    message.0.div_ceil(payload).max(1)
}

fn check(parameters: &Parameters, task: &Task) -> Result<(), ModelError> {
    let unsupported = |text: String| Err(ModelError::Unsupported(text));
    let processes = task.group.placement().processes();
    if processes != 1 {
        return unsupported(format!("a Myrinet NIC serves one process here, not {processes}"));
    }
    let packets = packets(task.message, parameters.packet.0);
    if packets > u64::from(PACKETS_MAX) {
        let most = Bytes(u64::from(PACKETS_MAX).saturating_mul(parameters.packet.0));
        return unsupported(format!(
            "a message has at most {most}, not {}: shorten it, or raise packet_bytes",
            task.message
        ));
    }
    let Parameters { groups, messages, broadcasts, .. } = *parameters;
    check_deliveries(
        &[groups.into(), messages.into(), broadcasts.into(), task.group.size().into(), packets],
        "take fewer groups, messages or broadcasts, or shorter ones",
    )?;
    if broadcasts > 1 && groups > 1 {
        return unsupported("broadcasts in a row have one root: set groups=1, or broadcasts=1".into());
    }
    if broadcasts > 1 && parameters.first_broadcast == FirstBroadcast::Yes {
        return unsupported("first_broadcast=yes is a single broadcast: set broadcasts=1".into());
    }
    if parameters.unicasts != Unicasts::None {
        check_unicasts(parameters, task)?;
    }
    if task.offload == Offload::Switch {
        return unsupported("offload switch is not for Myrinet: its switches replicate nothing".into());
    }
    if parameters.flow != Flow::None && task.offload != Offload::Nic {
        return unsupported(
            "flow=fm-mc and flow=lfc are for NICs that forward: choose offload nic, or flow=none".into(),
        );
    }
    if parameters.flow == Flow::Lfc {
        let peers = task.group.size() - 1;
        if parameters.loss > 0.0 {
            return unsupported("flow=lfc takes the network to be reliable: set loss=0".into());
        }
        if parameters.nic_receive_buffers < peers {
            return unsupported(format!(
                "flow=lfc keeps a packet buffer for each of {peers} peers: nic_receive_buffers={} is too few",
                parameters.nic_receive_buffers
            ));
        }
    }
    Ok(())
}

/// Checks what unicasts need.
fn check_unicasts(parameters: &Parameters, task: &Task) -> Result<(), ModelError> {
    let unsupported = |text: String| Err(ModelError::Unsupported(text));
    let Parameters { operation, groups, flow, .. } = *parameters;
    if operation != Operation::Multicast || groups > 1 || flow != Flow::None {
        return unsupported(
            "unicasts go beside the multicasts of one root, without credits: set operation=multicast, groups=1, \
             flow=none"
                .into(),
        );
    }
    let members = task.group.size();
    if parameters.unicasts == Unicasts::Others && members < 4 {
        return unsupported(format!(
            "unicasts=others leave two members for multicasts, and there are {members} in all: take 4 or more"
        ));
    }
    Ok(())
}

/// The lambda of a message, as the study defines it: the number of destinations that a sender can
/// send to before its first receiver can start to send. That is the time from the root's call until
/// a process has the message, over the time that one more destination takes the root, from three
/// runs on an idle star; rounded down, and at least 1.
fn measured_lambda(parameters: &Parameters, task: &Task) -> Result<Lambda, ModelError> {
    let latency = |operation, hosts: u32| {
        let parameters = Parameters {
            operation,
            layer: Layer::Gm,
            flow: Flow::None,
            membership: Membership::Posted,
            first_broadcast: FirstBroadcast::No,
            groups: 1,
            messages: 1,
            broadcasts: 1,
            barrier: Barrier::None,
            unicasts: Unicasts::None,
            skew: Picoseconds::ZERO,
            loss: 0.0,
            ..parameters.clone()
        };
        let fabric = Fabric::from_spec(&FabricSpec::Star(hosts))?;
        let destinations = (1..hosts).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(hosts), MemberId(0), destinations)?;
        let task = Task {
            fabric: &fabric,
            group: &group,
            scheme: &Scheme::tree(TreeScheme::Separate),
            order: None,
            ..*task
        };
        let latency = run(&parameters, &task)?.latency;
        latency.ok_or_else(|| ModelError::Unsupported("no reply on an idle star of this hardware".into()))
    };
    let whole = latency(Operation::Broadcast, 2)?;
    let more = latency(Operation::Multisend, 3)?.0.saturating_sub(latency(Operation::Multisend, 2)?.0);
    let destinations = (whole.0 / more.max(1)).clamp(1, 1_000_000);
    Ok(Lambda(destinations as u32 * 1000))
}
