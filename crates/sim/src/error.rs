//! Errors of simulations.

use thiserror::Error;
use treecast_plan::PlanError;
use treecast_terms::{Cycles, Flits, Offload, SpecError};

/// Why a run was rejected. Each error names the offending value.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SimError {
    /// An invalid parameter.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A plan that does not fit the fabric.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A message of no flits.
    #[error("the message has 0 flits: it needs at least 1")]
    EmptyMessage,
    /// A message longer than [`MESSAGE_MAX`](crate::MESSAGE_MAX).
    #[error("a message of {message} is too long: it has at most {message_max}")]
    MessageTooLong {
        /// Its length.
        message: Flits,
        /// The bound.
        message_max: Flits,
    },
    /// A message of too many packets.
    #[error("the message has {packets} packets: at most {packets_max} are allowed")]
    TooManyPackets {
        /// How many it would have.
        packets: u64,
        /// The bound.
        packets_max: u32,
    },
    /// A contribution of several packets.
    #[error(
        "a contribution of {message} does not fit one packet, of {packet}: give a shorter --message, or set packet_flits"
    )]
    ContributionTooLong {
        /// Its length.
        message: Flits,
        /// The payload of a packet.
        packet: Flits,
    },
    /// A barrier with another length than [`BARRIER_MESSAGE`](crate::BARRIER_MESSAGE).
    #[error("a barrier has no values: leave out the length of its message, {0}")]
    BarrierWithValues(Flits),
    /// An offered load out of range.
    #[error("invalid load of {0} flits/host/cycle: expected a number above 0 and at most 1, such as 0.02")]
    Load(f64),
    /// A load so low that a host would send less than once in 10^15 cycles.
    #[error(
        "messages of {message} at a load of {load:?} are sent less than once in 10^15 cycles: give a higher load"
    )]
    Gap {
        /// The length of each message.
        message: Flits,
        /// The offered load.
        load: f64,
    },
    /// Bursts larger than the bound of multicasts in flight.
    #[error(
        "bursts of {size} multicasts exceed the bound of {most} in flight: give smaller bursts, or a higher backlog_max"
    )]
    Burst {
        /// Multicasts in one burst.
        size: u32,
        /// The bound.
        most: usize,
    },
    /// A number of destinations out of range.
    #[error("invalid degree {degree}: expected at least 1 and less than the number of hosts, {hosts}")]
    Degree {
        /// Destinations per multicast.
        degree: u32,
        /// The number of hosts.
        hosts: u32,
    },
    /// A traffic pattern with one destination for each host, and a number of destinations other
    /// than 1.
    #[error("invalid degree {degree}: hosts have one destination each with the destination sets '{pattern}'")]
    PatternDegree {
        /// The name of the pattern.
        pattern: &'static str,
        /// Destinations per multicast.
        degree: u32,
    },
    /// A traffic pattern that the number of hosts does not allow.
    #[error("the destination sets '{pattern}' need {expected}, and the fabric has {hosts}")]
    Pattern {
        /// The name of the pattern.
        pattern: &'static str,
        /// The number of hosts that it needs.
        expected: &'static str,
        /// The number of hosts.
        hosts: u32,
    },
    /// A measurement window that is too short, or a run that is too long.
    #[error(
        "invalid window: {cycles} with a warm-up of {warmup}; a run measures at least 20 cycles and has at most 2^48"
    )]
    Window {
        /// Cycles before the measurement window.
        warmup: Cycles,
        /// Cycles of the run.
        cycles: Cycles,
    },
    /// A bound of zero multicasts in flight.
    #[error("invalid backlog_max: at least one multicast must be allowed in flight")]
    NoBacklog,
    /// A precision out of range.
    #[error("invalid precision {0}: expected a share from 0.001 to 0.5")]
    Precision(f64),
    /// A packet larger than an input buffer.
    #[error(
        "a packet of {packet} payload flits and {header} header flits does not fit an input buffer of {buffer} flits (set \
         buffer_flits or packet_flits)"
    )]
    PacketExceedsBuffer {
        /// Payload.
        packet: u64,
        /// The longest header of the plan's worms.
        header: u64,
        /// The buffer.
        buffer: u64,
    },
    /// With wormhole switching, a header larger than an input buffer.
    #[error(
        "a switch must read {header} header flits at once, which do not fit an input buffer of {buffer} flits (set \
         buffer_flits to at least {header}, or headers=free)"
    )]
    HeaderExceedsBuffer {
        /// The maximum number of header flits that a switch must read at once.
        header: u64,
        /// The buffer.
        buffer: u64,
    },
    /// Wormhole switching with the event-driven simulator.
    #[error(
        "the simulator event supports virtual cut-through only: switching=wormhole needs --simulator cycle"
    )]
    NeedsCycle,
    /// Offload `switch`, which is for groups of real nodes.
    #[error(
        "offload switch is for groups of nodes: here switches replicate tree worms, as in scheme tree-worm"
    )]
    OffloadSwitch,
    /// The [`Watch`](crate::Watch) of the run has ended it.
    #[error("the run was interrupted")]
    Interrupted,
}

/// Checks that this part of a host forwards in simulations.
pub fn check_offload(offload: Offload) -> Result<(), SimError> {
    if offload == Offload::Switch { Err(SimError::OffloadSwitch) } else { Ok(()) }
}
