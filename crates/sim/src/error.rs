//! Why a run is not possible.

use thiserror::Error;
use treecast_plan::PlanError;
use treecast_terms::{Cycles, Flits, SpecError};

/// Why a run is not possible. Each names the value that offends.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SimError {
    /// A parameter that is malformed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A plan that does not fit the fabric.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A message of no flits.
    #[error("the message has 0 flits: it needs at least 1")]
    EmptyMessage,
    /// A message that is too long.
    #[error("a message of {message} is too long: it has at most {message_max}")]
    MessageTooLong {
        /// Its length.
        message: Flits,
        /// The bound.
        message_max: Flits,
    },
    /// A message of too many packets.
    #[error("the message has {packets} packets, at most {packets_max} are possible")]
    TooManyPackets {
        /// How many it would have.
        packets: u64,
        /// The bound.
        packets_max: u32,
    },
    /// A load that no host can apply.
    #[error(
        "a load of {0} flits a host and cycle is not possible: give a number above 0 and at most 1, such as 0.02"
    )]
    Load(f64),
    /// A load so low that next to nothing is sent.
    #[error("{message} at a load of {load:?} are sent once in more than 10^15 cycles: give a higher load")]
    Gap {
        /// The length of each message.
        message: Flits,
        /// The applied load.
        load: f64,
    },
    /// Bursts that alone go beyond the bound of multicasts in flight.
    #[error(
        "bursts of {size} multicasts do not fit a bound of {most} in flight: give smaller ones, or a higher backlog_max"
    )]
    Burst {
        /// Multicasts at once.
        size: u32,
        /// The bound.
        most: usize,
    },
    /// A multicast to nobody, or to more hosts than there are others.
    #[error(
        "a degree of {degree} is not possible among {hosts} hosts: it takes at least 1, and fewer than there are hosts"
    )]
    Degree {
        /// How many destinations each multicast would have.
        degree: u32,
        /// How many hosts there are.
        hosts: u32,
    },
    /// A measurement of no cycles, or of too many.
    #[error(
        "of {cycles} the first {warmup} are not measured: at least 20 must be left to measure, and there are at most 2^48"
    )]
    Window {
        /// Cycles that pass before the measurement.
        warmup: Cycles,
        /// Cycles of the run.
        cycles: Cycles,
    },
    /// A bound of no multicasts in flight.
    #[error("at least one multicast must be allowed to be in flight (backlog_max)")]
    NoBacklog,
    /// A precision out of range.
    #[error("a precision of {0} is not possible: give a share from 0.001 to 0.5")]
    Precision(f64),
    /// A packet that does not fit an input buffer.
    #[error(
        "{packet} flits of payload and {header} of header are a packet that does not fit an input buffer of {buffer} \
         (set buffer_flits or packet_flits)"
    )]
    PacketExceedsBuffer {
        /// Payload.
        packet: u64,
        /// The longest header of the plan's worms.
        header: u64,
        /// The buffer.
        buffer: u64,
    },
    /// A header that does not fit an input buffer, where that need not hold a whole packet.
    #[error(
        "a switch must read {header} header flits at once, which do not fit an input buffer of {buffer} (set buffer_flits \
         to at least {header}, or headers=free)"
    )]
    HeaderExceedsBuffer {
        /// The most that a switch must read of one of the worms.
        header: u64,
        /// The buffer.
        buffer: u64,
    },
    /// A switching that a simulator does not know.
    #[error("the simulator event has virtual cut-through alone: switching=wormhole needs --simulator cycle")]
    NeedsCycle,
}
