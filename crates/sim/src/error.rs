//! Why a run is not possible.

use thiserror::Error;
use treecast_fabric::{Flits, SpecError};
use treecast_plan::PlanError;

/// Why a run is not possible. Each names the value that offends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
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
    #[error("a message of {0} is too long: it has at most {max} flits", max = crate::MESSAGE_MAX.0)]
    MessageTooLong(Flits),
    /// A message of too many packets.
    #[error("the message has {packets} packets, at most {packets_max} are possible")]
    TooManyPackets {
        /// How many it would have.
        packets: u64,
        /// The bound.
        packets_max: u32,
    },
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
}
