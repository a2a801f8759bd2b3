//! Simulation of plans on fabrics.
//!
//! [`Run`] says what is simulated: a plan on a fabric, who forwards ([`Offload`]), how long the message is, and the
//! [`Parameters`] of hosts, network interfaces and switches. The simulator is event-driven, exact to the cycle where an
//! input buffer holds a whole packet. docs/simulation.md states the model and derives its closed forms.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec, Flits};
//! use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
//! use treecast_sim::{Offload, Parameters, Run, Status};
//!
//! let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
//! let group = Group::new(Placement::one_per_host(4), MemberId(0), vec![MemberId(1)])?;
//! let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
//! let parameters = Parameters::default();
//! let run = Run { fabric: &fabric, plan: &plan, offload: Offload::Host, message: Flits(128), parameters: &parameters, seed: 1 };
//! let outcome = run.simulate()?;
//! assert_eq!(outcome.status, Status::Complete);
//! // Four overheads of 1,000 cycles, two bus transfers of 97, 129 flits over one switch.
//! assert_eq!(outcome.latency.unwrap().0, 4 * 1_000 + 2 * 97 + (1 + 3 + 129 - 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is pure: one seed makes one run, byte for byte.

mod document;
mod error;
mod event;
mod outcome;
mod parameters;

pub use document::{DeliveryDocument, FORMAT, RunContext, RunDocument};
pub use error::SimError;
pub use outcome::{Delivery, Outcome, Status};
pub use parameters::{Adaptive, Arbitration, Headers, Key, Parameters, RoutingStart};

use std::fmt;
use std::str::FromStr;

use treecast_fabric::{Fabric, Flits, SpecError};
use treecast_plan::{PACKETS_MAX, Plan};

/// Who forwards at a host in the middle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// The application process: it receives the whole message, and sends each copy as a message of its own.
    #[default]
    Host,
    /// The host asks, once it has received the whole message; the network interface makes the copies.
    Assisted,
    /// The network interface alone, packet by packet.
    Nic,
}

impl Offload {
    /// All of them with their names.
    pub const NAMES: [(&str, Self); 3] =
        [("host", Self::Host), ("assisted", Self::Assisted), ("nic", Self::Nic)];
}

impl FromStr for Offload {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, offload)| offload).ok_or_else(|| SpecError::UnknownName {
            what: "offload",
            given: text.into(),
            known: Self::NAMES.map(|(name, _)| name.to_string()).to_vec(),
        })
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Host => "host",
            Self::Assisted => "assisted",
            Self::Nic => "nic",
        })
    }
}

/// One multicast to simulate. The root's process begins to send at cycle 0.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Where.
    pub fabric: &'a Fabric,
    /// What.
    pub plan: &'a Plan,
    /// Who forwards.
    pub offload: Offload,
    /// The length of the message; longer ones than a packet are cut into packets.
    pub message: Flits,
    /// How fast everything is.
    pub parameters: &'a Parameters,
    /// The seed of all random choices; without random policies it changes nothing.
    pub seed: u64,
}

impl Run<'_> {
    /// Simulates it. Never hangs: it ends when nothing is left to happen, or at [`Parameters::cycles_max`].
    ///
    /// # Errors
    /// [`SimError`] where the run is not possible: an empty message, one of too many packets, a packet that does not fit
    /// an input buffer, or a plan that does not fit the fabric.
    pub fn simulate(&self) -> Result<Outcome, SimError> {
        let packets = packet_count(self.message, self.parameters.packet_flits)?;
        self.plan.check(self.fabric)?;
        event::simulate(self, packets)
    }
}

/// The longest message.
pub const MESSAGE_MAX: Flits = Flits(1 << 40);

/// How many packets a message is cut into.
///
/// # Errors
/// [`SimError::EmptyMessage`], [`SimError::MessageTooLong`] beyond [`MESSAGE_MAX`], [`SimError::TooManyPackets`] beyond
/// [`PACKETS_MAX`].
pub fn packet_count(message: Flits, packet_flits: Flits) -> Result<u32, SimError> {
    if message == Flits::ZERO {
        return Err(SimError::EmptyMessage);
    }
    if message > MESSAGE_MAX {
        return Err(SimError::MessageTooLong(message));
    }
    let packets = message.0.div_ceil(packet_flits.0.max(1));
    u32::try_from(packets)
        .ok()
        .filter(|&packets| packets <= PACKETS_MAX)
        .ok_or(SimError::TooManyPackets { packets, packets_max: PACKETS_MAX })
}
